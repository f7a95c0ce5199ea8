/* SPDX-License-Identifier: Apache-2.0 */
/*
 * context_internal.h - struct context, and what context.c (which contexts there are), leaving.c (how they go), order.c
 * (how frees are ordered in one) and memory.c (where its memory comes from and goes to) share. Private to these.
 *
 * Locking: none but what is said; members that are not atomic are written while an entry is not in use.
 */
#ifndef CUPOOL_SHIM_CONTEXT_INTERNAL_H
#define CUPOOL_SHIM_CONTEXT_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "context.h"
#include "hooks.h"
#include "policy.h"
#include "pool.h"
#include "real.h"

/* Frees that may be ordered at the same time in one context, each with an event of its own. */
#define SLOTS     64
#define SLOT_LEAD SLOTS       /* the one in which one thread orders for all that come meanwhile; see order.c */
#define SLOT_ASK  (SLOTS + 1) /* for what is no free: nobody waits for what it has recorded */
#define SLOTS_ALL (SLOTS + 2)

/* A place to order a free from. Each has an event, so that no thread waits for what another has launched meanwhile. */
struct slot {
    /* Odd: somebody is ordering with it; by that the capture gate counts calls in flight. Each order is two more. */
    _Atomic(uint64_t) turn;
    _Atomic(uint64_t) done; /* the last turn whose order has succeeded: what came before that began is in order */
    _Atomic(CUevent) event; /* made and recorded by whoever has the turn; others may wait for it. The lead has none */
    atomic_uint user;       /* the thread that recorded it last for a free: its thread_slot; 0: none */
    atomic_bool waits;      /* whoever has the turn waits on the host, or is about to */
} __attribute__((aligned(64)));

/* What a thread, by its thread_slot, records when it has the lead, an event of its own, which it has at hand; and what
 * it knows. With more than SLOTS threads some share a place, and may then not know. */
#define LED_TURN_BITS 40
struct led {
    _Atomic(CUevent) event;
    _Atomic(uint64_t) turn;  /* the last one that it was recorded in; set before that one is done */
    _Atomic(uint64_t) noted; /* thread_slot, and in so many bits the turn that ordered its last free; see note() */
} __attribute__((aligned(64)));

static inline bool slot_is_busy(const struct slot *slot)
{
    return atomic_load(&slot->turn) & 1;
}

struct context {
    _Atomic(CUcontext) handle;   /* NULL: entry not in use */
    unsigned long long id;       /* tells a context from another one at the same handle; 0: the driver cannot */
    _Atomic(struct pool *) pool; /* NULL: not pooled. This and device are looked at before the context is pinned, too */
    atomic_int device;
    const struct real_driver *driver;
    bool primary;
    struct policy policy;
    size_t capacity;             /* of the device */
    _Atomic(size_t) device_free; /* as the driver said when it was last asked, less and plus our segments since */
    _Atomic(CUstream) stream;    /* of our own, for what is handed to the device on our account; NULL: not made yet */
    atomic_bool defers;          /* the driver frees through a stream */
    _Atomic(uint64_t) given;     /* bytes that went back through stream, so far */
    _Atomic(uint64_t) arrived;   /* of these, what is known to have reached the driver */
    _Atomic(uint64_t) gave_up;   /* given when a request last waited for them in vain */
    atomic_bool failed;          /* has met an error that it does not recover from */
    atomic_uint leaving;         /* threads in a call that may end it */
    atomic_uint captures;        /* capture_total when the last of them began */
    atomic_bool undecided;       /* nobody can say whether it is gone: it stays leaving */
    atomic_bool ending;          /* is gone: its pool is destroyed when no thread is in a call on it; until then */
    _Atomic(struct pool *) lingering; /* the pool, if a thread has been in such a call for too long */
    _Atomic(uint64_t) bypassed;
    struct slot slots[SLOTS_ALL];
    struct led led[SLOTS];
};

#define DEVICES_MAX 64

/* Counters of a device's contexts that are gone. */
struct past {
    bool any;
    struct pool_stats stats; /* peaks: the most, when one of them went, of its own and of those beside it */
    uint64_t bypassed;
};

/* Every context that there is, and entries of those that there were. */
struct contexts {
    pthread_mutex_t lock; /* guards making and forgetting entries, past, and the kind of new segments; readers of
                           * entries need no lock */
    struct context *_Atomic entries[CONTEXTS_MAX];
    atomic_uint count;
    atomic_uint epoch;   /* bumped whenever an entry changes meaning: threads then look again */
    atomic_uint endings; /* calls under way that may end a context; grows under the lock */
    atomic_uint ended;   /* and how many are over */
    struct past past[DEVICES_MAX];
    atomic_uint probing[DEVICES_MAX]; /* threads that hold a reference to a primary context for a moment */
};
extern struct contexts contexts;

/* The entry of the context with this handle, pooled or not. */
struct context *context_entry_find(CUcontext handle);
/* A number that no other context has had; 0: the driver cannot say. */
unsigned long long context_id(const struct real_driver *driver, CUcontext handle);
/* Calls of this thread that may end contexts. */
extern __thread unsigned int context_endings __attribute__((tls_model("initial-exec")));
/* Destroy the pools of contexts that are gone which threads have left since. */
void context_lingering_end(void);
/* For who waits in a loop and holds a pin or is in a call: false: the context is gone, or about to go, and the thread
 * has to give up. Waits while another thread's call decides that. */
bool context_stays(const struct context *context);

/* What has to be put back after a visit. */
struct visit {
    bool pushed, relaxed;
    CUstreamCaptureMode mode;
};

/* Make context current, and the thread one whose calls disturb no capture; leave puts the caller's own back. */
CUresult context_enter(const struct context *context, struct visit *visit);
void context_leave(const struct context *context, struct visit *visit);

/*
 * The next context of a device (CONTEXT_ALL: of any) from index *i on, pinned, and *i behind it; NULL: there are no
 * more. The caller unpins each.
 */
struct context *context_next(unsigned int *i, int device);
/* The same for a device, with those that may be about to go: another thread's call that decides that is waited for. */
struct context *context_next_staying(unsigned int *i, int device);

/* A context's meaning has changed: threads look again. */
void context_changed(void);

/* The tables for a context's pool; with and without CUPOOL_FILL. */
extern const struct pool_order_ops order_ops, order_filling_ops;
extern const struct pool_backend_ops memory_ops;

/* Wait on the host for all work of the context, in a way that disturbs no capture. CUDA_ERROR_NOT_READY: the driver has
 * no such way. */
CUresult order_wait(struct context *context);
/* Has everything ended that was launched in the context before? Asked until limit, of the monotonic clock, and for some
 * microseconds at least. False as well: a stream captures, for a second or until limit, or the driver cannot be asked.
 */
bool order_wait_until(struct context *context, uint64_t limit);
/* Wait on the host for what came before this thread's last free, as natively that free would have. True: no other
 * thread has ordered since, so that what our stream waits for is over, too. */
bool order_wait_own(struct context *context);
/* Of the order table: fill a block by CUPOOL_FILL. */
int memory_fill(void *arg, uint64_t addr, size_t size, bool shared, bool fresh);
/* Can the driver free through a stream on this device? */
bool memory_defers(const struct real_driver *driver, int device);

#endif
