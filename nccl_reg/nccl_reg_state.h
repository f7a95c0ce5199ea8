/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nccl_reg_state.h - the structures that the files of this folder share, and what guards each member. Private to
 * nccl_reg. It decides nothing: registrations.h and segment_release.c do.
 *
 * Segments and registrations are in arrays sorted by address. A communicator compares the registry's number of changes
 * with the number at its last comparison, and compares the arrays only if the two differ.
 *
 * Ownership: the registry owns its segments and entries, an entry its records.
 *
 * Locking: struct nccl_reg and struct nccl_reg_comm have a lock each; each declaration says what it guards. A
 * communicator's lock may be held when the registry's lock is taken, never the other way round. A thread that holds one
 * communicator's lock never waits for a second one. No errors.
 */
#ifndef CUPOOL_NCCL_REG_NCCL_REG_STATE_H
#define CUPOOL_NCCL_REG_NCCL_REG_STATE_H
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lookup.h"
#include "nccl_reg.h"

#define BUCKETS 256u

/* Calls of the table on a communicator. */
#define CALL_INSIDE  1u /* one call is under way; set with the communicator's lock */
#define CALLS_CLOSED 2u /* and above: the number of times that it was closed; while there is one, no call begins */

/* The work of a communicator that does not block. */
#define WORK_IDLE  1u /* a question that the program's own thread asked has found that all of it has ended */
#define WORK_BEGUN 2u /* and above: the number of times that some was begun, or was found not to have ended */

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
    bool ending;      /* its owner is about to end; no communicator registers it any more */
    void (*release)(void *arg, uint64_t addr, size_t size);
    void *release_arg;
};

/* The number of further registrations of a segment with a front, each with one more part of the front. */
#define WIDES 16u

/* The registrations of one segment with one communicator; guarded by its lock. */
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

/* Parts of struct nccl_reg_stats. All members are uint64_t: reg_counters_add relies on that. */
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
    atomic_uint work; /* WORK_IDLE, and a multiple of WORK_BEGUN, which goes on with the entry's next communicator */
    atomic_bool finalized; /* its registrations have been undone, and no new ones are made */
    atomic_int device;     /* a copy of info.device for threads without the communicator's lock */
    atomic_bool known;     /* it has been added and not cleared; written with the registry's lock */
    /* The members that operations in the steady state read without the communicator's lock. They are written with the
     * communicator's lock, except ops, which is right as long as one thread at a time makes operations with the
     * communicator, as NCCL demands. */
    _Atomic(uint64_t) seen;          /* the registry's changes at the last comparison */
    struct lookup lookup;            /* the lookup cache, with indices into records */
    _Atomic(uint64_t) ops;           /* operations that needed only the lookup cache */
    struct nccl_reg_comm *next_held; /* list of the locks that a thread holds to release a segment; used by that
                                        thread alone */
    /* Guards the members below; held over the table's calls on this communicator. */
    pthread_mutex_t lock;
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
    _Atomic(uint64_t) changes; /* of the segments; incremented with the registry's lock */
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

static inline uint64_t end_of(uint64_t addr, size_t size)
{
    return addr + size < addr ? UINT64_MAX : addr + size;
}

/* True if no call is made on the communicator any more. */
static inline bool comm_is_closed(const struct nccl_reg_comm *comm)
{
    return atomic_load(&comm->calls) >= CALLS_CLOSED;
}

/* Work was begun, or goes on. A question that was asked before does not know of it. */
static inline void work_goes_on(struct nccl_reg_comm *comm)
{
    atomic_fetch_add(&comm->work, WORK_BEGUN);
    atomic_fetch_and(&comm->work, ~WORK_IDLE);
}

/* The answer to a question asked when comm->work was `then`; state as in nccl_reg_ops.ask. */
static inline void work_seen(struct nccl_reg_comm *comm, unsigned int then, int state)
{
    if (state)
        work_goes_on(comm);
    else
        atomic_compare_exchange_strong(&comm->work, &then, then | WORK_IDLE);
}

#endif
