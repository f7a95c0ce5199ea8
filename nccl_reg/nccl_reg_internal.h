/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nccl_reg_internal.h - the structures and functions that the files of this folder share. Private to them: nccl_reg.c
 * (the registry: communicators, statistics), segments.c (how segments come, go and are lost), registrations.c (the
 * registrations of a communicator, and those that an operation needs) and operations.c (groups, and operations that
 * need no registration).
 *
 * Segments and registrations are in arrays sorted by address. A communicator compares the registry's number of changes
 * with the number at its last comparison, and compares the arrays only if the two differ.
 *
 * Locking: struct nccl_reg has the lock, struct nccl_reg_comm its turn; each declaration says what it guards. A turn
 * may be held when the lock is taken, never the other way round. A thread that holds one turn never waits for a second
 * one.
 */
#ifndef CUPOOL_NCCL_REG_INTERNAL_H
#define CUPOOL_NCCL_REG_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "nccl_reg.h"
#include "near.h"

#define BUCKETS 256u

/* The longest waits for the device, in milliseconds: of an operation, and at the end of a communicator. */
#define OP_WAIT_MS  5000u
#define END_WAIT_MS 1000u
/* For this time, in nanoseconds, no operation waits after one has waited in vain. */
#define OP_REST_NS 10000000000u

/* Calls of the table on a communicator. */
#define CALL_INSIDE  1u /* one call is under way; set with the turn */
#define CALLS_CLOSED 2u /* and above: the number of times that it was closed; while there is one, no call begins */

/* Memory that is registered as a whole; see struct nccl_reg_segment_info. Guarded by the registry's lock. */
struct segment {
    uint64_t addr;
    size_t size, front;
    int device;
    bool plain, own;
    void *owner;
    bool leaving;     /* has to go; no communicator registers it any more */
    bool claimed;     /* by the thread that tries to release it */
    bool quarantined; /* a deregistration has failed */
    void (*release)(void *arg, uint64_t addr, size_t size);
    void *release_arg;
};

/* The number of further registrations of a segment with a front, each with one more part of the front. */
#define WIDES 16u

/* The registrations of one segment with one communicator; guarded by its turn. */
struct record {
    uint64_t addr;
    size_t size, front;
    void *handle; /* NULL: NCCL refused */
    void **wide;  /* WIDES registrations that begin in the front, the last one at its start; NULL: none */
    unsigned int
        widened; /* the number, from 1 on, of the last of these, which NCCL finds; 0: the one without the front */
    bool used;   /* by an operation */
    /* Users of the registration that NCCL finds, for send or receive: the group of this number (0: none), and (sent) an
     * earlier operation. */
    uint64_t group;
    bool sent;
    bool plain;
    bool pinned; /* kept as long as the communicator lives: a graph uses it, or it could not be undone */
};

/* A registration that the program itself has made. */
struct user {
    void *handle;
    uint64_t addr;
    size_t size;
};

/* Parts of struct nccl_reg_stats. All members are uint64_t: counters_add relies on that. */
struct counters {
    uint64_t ops, mixed, outside, unsafe, attached, detached, renewed, failed;
};

/* An entry for a communicator. Entries are never freed while the registry exists, and are reused. */
struct nccl_reg_comm {
    _Atomic(void *) key;        /* the communicator; NULL: gone */
    struct nccl_reg_comm *next; /* the lists of its bucket and of all communicators; both constant once it is on the
                                   lists */
    struct nccl_reg_comm *next_all;
    atomic_uint users; /* threads in an operation, or in a group that has used it; see op_begin */
    atomic_uint calls; /* CALL_INSIDE, and a multiple of CALLS_CLOSED */
    atomic_bool nonblocking;
    atomic_bool finalized; /* its registrations have been undone, and no new ones are made */
    atomic_int device;     /* a copy of info.device for threads without the turn */
    atomic_bool known;     /* it has been added and not cleared; written with the registry's lock */
    /* The members that operations in the steady state read without the turn. They are written with the turn, except
     * ops, which is right as long as one thread at a time makes operations with the communicator, as NCCL demands. */
    _Atomic(uint64_t) seen;          /* the registry's changes at the last comparison */
    struct near near;                /* the lookup cache, with indices into records */
    _Atomic(uint64_t) ops;           /* operations that needed only the lookup cache */
    struct nccl_reg_comm *next_held; /* list of the turns that a thread holds to release a segment; used by that
                                        thread alone */
    /* Guards the members below; held over the table's calls on this communicator. */
    pthread_mutex_t turn;
    struct nccl_reg_comm_info info;
    struct record *records;
    size_t record_count, record_room;
    struct user *users_own;
    size_t user_count, user_room;
    struct counters counters;
    uint64_t rests; /* until this time no operation waits for the device, see reg_now_ns */
};

struct nccl_reg {
    const struct nccl_reg_ops *ops;
    _Atomic(uint64_t) changes; /* of the segments; incremented with the lock */
    _Atomic(struct nccl_reg_comm *) buckets[BUCKETS];
    _Atomic(struct nccl_reg_comm *) all;
    atomic_uint detaching; /* threads that are releasing a segment, for which communicators must be at rest */
    pthread_mutex_t lock;  /* guards the members below, and additions to the lists above */
    struct segment *segments;
    size_t segment_count, segment_room;
    size_t comm_count;
    uint64_t parked, quarantined;
    struct counters past; /* of communicators that are gone */
};

/* The monotonic clock in nanoseconds. */
uint64_t reg_now_ns(void);

/* Make room for one more element of an array. -ENOMEM: the array is unchanged. */
int reg_reserve(void **array, size_t count, size_t *room, size_t size);

static inline uint64_t end_of(uint64_t addr, size_t size)
{
    return addr + size < addr ? UINT64_MAX : addr + size;
}

/* True if no call is made on the communicator any more. */
static inline bool comm_is_closed(const struct nccl_reg_comm *comm)
{
    return atomic_load(&comm->calls) >= CALLS_CLOSED;
}

static inline unsigned int bucket_of(const void *comm)
{
    return (unsigned int)(((uint64_t)(uintptr_t)comm * 0x9e3779b97f4a7c15u) >> 56) % BUCKETS;
}

/* The entry of a communicator; NULL: not known. Without the turn it may end at any time. */
static inline struct nccl_reg_comm *comm_find(const struct nccl_reg *reg, void *comm)
{
    struct nccl_reg_comm *found = atomic_load_explicit(&reg->buckets[bucket_of(comm)], memory_order_acquire);

    while (found && atomic_load_explicit(&found->key, memory_order_acquire) != comm)
        found = found->next;
    return found;
}

/*
 * nccl_reg.c. take: the communicator with its turn; NULL: not known any more. give: release the turn. A thread that
 * ends a communicator does not wait for its turn; then the holder clears the entry when it gives the turn back.
 */
struct nccl_reg_comm *reg_comm_take(struct nccl_reg *reg, void *comm);
void reg_turn_give(struct nccl_reg *reg, struct nccl_reg_comm *comm);

/* registrations.c, all with the turn. The record that starts at addr; NULL: none. */
struct record *reg_record_at(const struct nccl_reg_comm *comm, uint64_t addr);
void reg_record_delete(struct nccl_reg_comm *comm, const struct record *record);
/* True if the program itself has registered memory there. */
bool reg_user_holds(const struct nccl_reg_comm *comm, uint64_t addr, size_t size);
/* See nccl_reg_comm_ask. */
int reg_ask(const struct nccl_reg *reg, struct nccl_reg_comm *comm, void *key);
/* True if calls can be made on the communicator now. */
bool reg_is_ready(const struct nccl_reg *reg, struct nccl_reg_comm *comm, void *key);
/* Deregister. After an error the registration is unchanged. -EIO: the memory may still be in use, and its segment is
 * never released. -EPIPE: the communicator was closed. */
int reg_detach(struct nccl_reg *reg, struct nccl_reg_comm *comm, void *key, struct record *record);
/* Prepare the buffers of an operation; returns a sum of NCCL_REG_... */
int reg_prepare(struct nccl_reg *reg, struct nccl_reg_comm *comm, void *key, const struct nccl_reg_op *op);

/* segments.c. A deregistration of the segment has failed, so a peer may still use it. */
void reg_segment_quarantine(struct nccl_reg *reg, uint64_t addr);

/* operations.c. A unique number of the calling thread's outermost group; 0: it is in none. */
uint64_t reg_group(void);
/* True if this thread's open group uses the communicator. */
bool reg_group_uses(const struct nccl_reg_comm *comm);

#endif
