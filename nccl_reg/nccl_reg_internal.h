/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nccl_reg_internal.h - what the files of this folder share. Private to them: nccl_reg.c (the registry: communicators,
 * statistics), segments.c (which segments there are, how they go and are lost), registrations.c (what a communicator
 * has registered, and what an operation needs of that) and operations.c (groups, and operations for which nothing is
 * left to be done).
 *
 * Segments and registrations lie in arrays sorted by address. A communicator compares the number of changes that it has
 * seen with the registry's, and only where they differ compares the arrays.
 *
 * Locking: struct nccl_reg has the lock, struct nccl_reg_comm its turn; each says what it guards. A turn may be held
 * when the lock is taken, never the other way round, and of a second turn nobody waits while he has one.
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

/* How long an operation waits for the device, and the end of a communicator. */
#define OP_WAIT_MS  5000u
#define END_WAIT_MS 1000u
/* How long none does after one that did in vain. */
#define OP_REST_NS 10000000000u

/* Calls of the table on a communicator. */
#define CALL_INSIDE  1u /* one is under way; set with the turn */
#define CALLS_CLOSED 2u /* and above: so often it was closed, by anybody; then none begins any more */

struct segment {
    uint64_t addr;
    size_t size, front;
    int device;
    bool plain, own;
    void *owner;
    bool leaving;     /* is to go; nobody registers it any more */
    bool claimed;     /* by the thread that tries to let it go */
    bool quarantined; /* could not be deregistered somewhere */
    void (*release)(void *arg, uint64_t addr, size_t size);
    void *release_arg;
};

/* How often a segment with a front can be registered once more, each time with so many parts more of it. */
#define WIDES 16u

struct record {
    uint64_t addr;
    size_t size, front;
    void *handle; /* NULL: was refused */
    void **wide;  /* WIDES registrations that begin in the front, the last one where it does; NULL: there are none */
    unsigned int
        widened; /* the last of these, from 1 on, which is the one that is found; 0: the one without the front */
    bool used;   /* by an operation */
    /* Who has used the one that is found for send or receive: the group of this number (0: none), and somebody before.
     */
    uint64_t group;
    bool sent;
    bool plain;
    bool pinned; /* stays as long as the communicator lives: a graph uses it, or it could not be undone */
};

/* A registration of the program's own. */
struct user {
    void *handle;
    uint64_t addr;
    size_t size;
};

struct counters {
    uint64_t ops, mixed, outside, unsafe, attached, detached, renewed, failed;
};

struct nccl_reg_comm {
    _Atomic(void *) key;        /* the communicator; NULL: gone */
    struct nccl_reg_comm *next; /* of its bucket, and all of them; neither changes once it is on the lists */
    struct nccl_reg_comm *next_all;
    atomic_uint users; /* threads in an operation, or in a group that has used it; see op_begin */
    atomic_uint calls; /* of CALL... and CALLS... */
    atomic_bool nonblocking;
    atomic_bool finalized; /* what was registered with it has been undone, and nothing comes after that */
    atomic_int device;     /* of info, for who has not the turn */
    atomic_bool known;     /* it has been added and not been cleared; written with the registry's lock */
    /* What operations in steady state look at without the turn. Written with it, but for ops, which is right as long as
     * one thread at a time is about operations with the communicator, as NCCL demands. */
    _Atomic(uint64_t) seen;          /* changes of the registry, up to the last comparison */
    struct near near;                /* places, by the index of the record there */
    _Atomic(uint64_t) ops;           /* that were over with what near says */
    struct nccl_reg_comm *next_held; /* of the turns that a thread holds which lets a segment go; his alone */
    /* Guards everything below; held over the table's calls on this communicator. */
    pthread_mutex_t turn;
    struct nccl_reg_comm_info info;
    struct record *records;
    size_t record_count, record_room;
    struct user *users_own;
    size_t user_count, user_room;
    struct counters counters;
    uint64_t rests; /* until then no operation waits for the device; see reg_now_ns */
};

struct nccl_reg {
    const struct nccl_reg_ops *ops;
    _Atomic(uint64_t) changes; /* of the segments; counted up with the lock */
    _Atomic(struct nccl_reg_comm *) buckets[BUCKETS];
    _Atomic(struct nccl_reg_comm *) all;
    atomic_uint detaching; /* threads that let a segment go, for which communicators rest */
    pthread_mutex_t lock;  /* guards everything below, and additions to the lists above */
    struct segment *segments;
    size_t segment_count, segment_room;
    size_t comm_count;
    uint64_t parked, quarantined;
    struct counters past; /* of communicators that are gone */
};

/* Of the monotonic clock. */
uint64_t reg_now_ns(void);

/* Room for one more element of an array. */
int reg_reserve(void **array, size_t count, size_t *room, size_t size);

static inline uint64_t end_of(uint64_t addr, size_t size)
{
    return addr + size < addr ? UINT64_MAX : addr + size;
}

/* No call is made on it any more. */
static inline bool comm_is_closed(const struct nccl_reg_comm *comm)
{
    return atomic_load(&comm->calls) >= CALLS_CLOSED;
}

static inline unsigned int bucket_of(const void *comm)
{
    return (unsigned int)(((uint64_t)(uintptr_t)comm * 0x9e3779b97f4a7c15u) >> 56) % BUCKETS;
}

static inline struct nccl_reg_comm *comm_find(const struct nccl_reg *reg, void *comm)
{
    struct nccl_reg_comm *found = atomic_load_explicit(&reg->buckets[bucket_of(comm)], memory_order_acquire);

    while (found && atomic_load_explicit(&found->key, memory_order_acquire) != comm)
        found = found->next;
    return found;
}

/*
 * nccl_reg.c. The communicator with its turn; NULL: it is not known any more. Turns are given back with turn_give:
 * whoever ends a communicator does not wait for its turn, and then its holder clears up.
 */
struct nccl_reg_comm *reg_comm_take(struct nccl_reg *reg, void *comm);
void reg_turn_give(struct nccl_reg *reg, struct nccl_reg_comm *comm);

/* registrations.c, all with the turn. The record that starts at addr, or NULL. */
struct record *reg_record_at(const struct nccl_reg_comm *comm, uint64_t addr);
void reg_record_delete(struct nccl_reg_comm *comm, const struct record *record);
/* Has the program registered something there itself? */
bool reg_user_holds(const struct nccl_reg_comm *comm, uint64_t addr, size_t size);
/* See nccl_reg_comm_ask. */
int reg_ask(const struct nccl_reg *reg, struct nccl_reg_comm *comm, void *key);
/* Can calls be made on it now? */
bool reg_is_ready(const struct nccl_reg *reg, struct nccl_reg_comm *comm, void *key);
/* Deregister. Not 0: it is there as before. -EIO: may still be in use, and its segment stays for good. -EPIPE: the
 * communicator was given up. */
int reg_detach(struct nccl_reg *reg, struct nccl_reg_comm *comm, void *key, struct record *record);
/* Look at an operation's buffers; a sum of NCCL_REG_... */
int reg_prepare(struct nccl_reg *reg, struct nccl_reg_comm *comm, void *key, const struct nccl_reg_op *op);

/* segments.c. A segment was not deregistered from somebody who is gone, or may yet use it. */
void reg_segment_quarantine(struct nccl_reg *reg, uint64_t addr);

/* operations.c. The number of the calling thread's outermost group, which no other has; 0: it is in none. */
uint64_t reg_group(void);
/* Is the communicator to be used at the end of this thread's group? */
bool reg_group_uses(const struct nccl_reg_comm *comm);

#endif
