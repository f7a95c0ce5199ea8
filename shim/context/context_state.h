/* SPDX-License-Identifier: Apache-2.0 */
/*
 * context_state.h - struct context and the table of contexts. Private to the room; other rooms have pointers.
 *
 * It has no functions but slot_is_busy.
 *
 * Locking: contexts.lock, where a member says so. Members that are not atomic are written only while the entry is not
 * in use.
 */
#ifndef CUPOOL_SHIM_CONTEXT_CONTEXT_STATE_H
#define CUPOOL_SHIM_CONTEXT_CONTEXT_STATE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "context/free_policy.h"
#include "context/free_streams.h"
#include "context/limits.h"
#include "pool.h"
#include "real/hooks.h"
#include "real/real.h"

struct vmm_mapping;

/* The number of frees that can be ordered at the same time in one context, each with an event of its own. */
#define SLOTS         64
#define SLOT_COMBINER SLOTS       /* the combiner's slot, in which one thread orders for all others; see free_order.c */
#define SLOT_ASK      (SLOTS + 1) /* for order_pool with POOL_ORDER_ASK; no thread waits for its event */
#define SLOTS_ALL     (SLOTS + 2)
/* In slot->user: threads that the thread which ordered their frees does not know, or several. */
#define SLOT_USER_OTHERS UINT_MAX
/* In the user of the combiner's slot, added to the number of a thread: it is ordering, or waiting on the host. */
#define SLOT_USER_UNDER_WAY 0x80000000u

/* A thread holds a slot while it orders a free. Each slot has an event of its own, so that a thread never waits for
 * work that another thread has launched meanwhile. */
struct slot {
    /* A sequence number: odd while a thread holds the slot. Each hold adds two. The capture gate finds calls in flight
     * by it. */
    _Atomic(uint64_t) seq;
    _Atomic(uint64_t) done; /* the last batch that succeeded: all work launched before that batch began is in order */
    _Atomic(CUevent) event; /* made and recorded by the holder; other threads may query it. The combiner's slot has
                               none, see struct batch */
    atomic_uint user;       /* thread_slot of the thread that last recorded the event for a free; 0: none. In the
                               combiner's slot: of the thread that has made the last free ordered in any slot */
    atomic_bool waits;      /* the holder waits on the host, or is about to */
} __attribute__((aligned(64)));

/* State of the combiner by thread (index thread_slot % SLOTS): the event that this thread records when it is the
 * combiner, and the batch that ordered its last free. With more than SLOTS threads some share an entry and may
 * overwrite each other's own_seq. */
#define BATCH_SEQ_BITS 40
#define BATCH_SEQ_MASK (((uint64_t)1 << BATCH_SEQ_BITS) - 1)
struct batch {
    _Atomic(CUevent) event;
    _Atomic(uint64_t) seq;     /* the last batch for which event was recorded; set before that batch is done */
    _Atomic(uint64_t) own_seq; /* thread_slot, and in the lowest BATCH_SEQ_BITS bits those of the batch that ordered its
                                last free; see batch_own_set() */
} __attribute__((aligned(64)));

/* Segments of virtual memory on their way back to the driver, and events for them; vmm_memory.c. */
struct departures {
    struct vmm_mapping *first, *last; /* with departures_lock, as the events */
    CUevent *events;                  /* unused ones, events_unused of them, with room for events_room */
    size_t events_unused, events_room;
    _Atomic(uint64_t) put, gone; /* bytes so far */
};

/* The segments whose memory is away while the context's device is paused, and the contents of live blocks in host
 * memory; pause.c and pause_copies.c. It belongs to the thread that pauses or resumes the device. */
struct paused_range {
    uint64_t segment, addr;
    size_t size;
};
struct paused {
    uint64_t *segments; /* their addresses, sorted: as of pause_segments_find */
    size_t segment_count, segment_room;
    struct paused_range *ranges;
    size_t count, room;
    uint64_t *chunks; /* their bytes follow each other in these, which are pinned */
    size_t chunk_count;
    bool pooled; /* the chunks are the pinned pool's */
    bool failed; /* there was no host memory for one of these lists */
};

static inline bool slot_is_busy(const struct slot *slot)
{
    return atomic_load(&slot->seq) & 1;
}

struct context {
    _Atomic(CUcontext) handle;   /* NULL: entry not in use */
    unsigned long long id;       /* distinguishes contexts that reuse a handle; 0: the driver has no cuCtxGetId */
    _Atomic(struct pool *) pool; /* NULL: not pooled. This and device are also read before the context is pinned */
    atomic_int device;
    const struct real_driver *driver;
    bool primary;
    atomic_bool runtime_came; /* the runtime has had a request in it: natively it then has a reference of its own to a
                                 primary context */
    struct policy policy;
    struct free_streams free_streams;
    size_t capacity;                /* of the device, in bytes */
    _Atomic(size_t) device_free;    /* free bytes as the driver last said, adjusted for what is known since then;
                                       device_free.c */
    atomic_bool free_unsure;        /* there may be more */
    _Atomic(CUstream) stream;       /* our own stream, for fills and for freeing segments; NULL: not created yet */
    _Atomic(CUdeviceptr) kept_byte; /* memory of the driver's; 0: none yet; capture_wait.c */
    atomic_uint streaming;          /* threads that are putting work on stream */
    atomic_uint syncing;            /* threads that are synchronising it, because it is idle */
    atomic_bool defers;             /* segments go back with cuMemFreeAsync on stream */
    atomic_bool mixed;              /* the pool's segments may come from several backends */
    bool maps;                      /* the driver and the device have virtual memory calls */
    struct departures departures;
    struct paused paused;
    _Atomic(uint64_t) given;      /* bytes given back through stream so far */
    _Atomic(uint64_t) arrived;    /* of these, the bytes known to have reached the driver */
    _Atomic(uint64_t) gave_up[2]; /* arrivals_given() + 1 when a thread last waited in vain for memory that other
                                     threads' frees released, and that its own frees did; 0: none has */
    atomic_bool failed;           /* the context has met a sticky error, from which it does not recover */
    atomic_uint freeing;          /* number of threads in frees of the driver's, which wait there; free_gate.h */
    atomic_uint inside;           /* number of threads in calls that such a free would hold up */
    atomic_uint leaving;          /* number of threads in a call that may end the context */
    atomic_bool waited_for;       /* a thread has waited for these calls in vain; see context_wait_frees */
    atomic_uint captures;         /* capture_total when the last of these calls began */
    atomic_bool undecided;        /* the driver could not say whether the context is gone; it stays marked as leaving */
    atomic_bool ending;           /* the context is gone; set until its pool is destroyed, once no thread is in a call
                                     on it */
    _Atomic(struct pool *) lingering; /* the pool, if a thread stayed in such a call for more than a second */
    _Atomic(uint64_t) bypassed;
    struct slot slots[SLOTS_ALL];
    struct batch batches[SLOTS];
};

/* Counters of a device's contexts that are gone. */
struct past {
    bool any;
    struct pool_stats stats; /* the peaks are the greatest sums at the time when one of the contexts ended, over it
                                and those still there */
    uint64_t bypassed;
};

/* The registry: entries are never freed, and are reused after their context has ended. */
struct contexts {
    pthread_mutex_t lock; /* guards making and clearing entries, past, and the kind of new segments; readers of
                             entries take no lock */
    struct context *_Atomic entries[CONTEXTS_MAX];
    atomic_uint count;
    atomic_uint epoch;   /* incremented whenever an entry changes its meaning; threads then drop their cached entry */
    atomic_uint endings; /* calls under way that may end a context; incremented under the lock */
    atomic_uint ended;   /* number of such calls that have returned */
    struct past past[DEVICES_MAX];
    atomic_uint probing[DEVICES_MAX]; /* threads that hold a reference to a primary context for a moment, see
                                         facts_primary and context_wait_primaries */
};
extern struct contexts contexts __attribute__((visibility("hidden")));

#endif
