/* SPDX-License-Identifier: Apache-2.0 */
/*
 * host_memory.c - see host_memory.h.
 *
 * A token of the pool is an event on every pooled context. As every call that could disturb a capture, recording and
 * asking happen in a slot of the context (free_order.h), for which a beginning capture waits.
 *
 * Locking: host.making, while the pool is made. Tokens are taken and given by atomic operations.
 */
#include "context/host_memory.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "base/conf.h"
#include "base/log.h"
#include "clock.h"
#include "context/capture_gate.h"
#include "context/context_state.h"
#include "context/enter.h"
#include "context/free_gate.h"
#include "context/free_order.h"
#include "context/free_policy.h"
#include "context/host_observer.h"
#include "context/host_populate.h"
#include "context/limits.h"
#include "context/numa_key.h"
#include "context/pins.h"
#include "context/registry.h"
#include "lock.h"

/* How long a request asks whether other threads' memory has become idle. */
#define ASK_NS 300000000u
/* The pool has up to 64 tokens, and each thread may have one of its own. */
#define TOKENS 128u
/* The longest pause of a thread that waits, in nanoseconds. */
#define NAP_MAX_NS 1000000u

/* It keeps its events for the next time that it is recorded. */
struct token {
    atomic_bool taken;    /* the pool has it, or a thread */
    unsigned int entries; /* that the registry had; those without an event are over */
    unsigned int count;   /* of its events that were recorded */
    struct {
        CUevent event;
        unsigned int life; /* of the entry, when the event was made */
        atomic_bool over;
    } events[CONTEXTS_MAX]; /* by the context's entry in the registry */
};

static struct {
    _Atomic(struct host_pool *) pool;
    const struct real_driver *driver;
    pthread_mutex_t making; /* one thread makes the pool */
    /* Of an entry of the registry: how many contexts it has meant that have ended, and their events with them. */
    atomic_uint lives[CONTEXTS_MAX];
    struct token tokens[TOKENS];
} host = {.making = PTHREAD_MUTEX_INITIALIZER};

/* The first one that is unused: it is the most likely to have events. */
static struct token *token_take(void)
{
    for (struct token *token = host.tokens; token < host.tokens + TOKENS; token++)
        if (!atomic_exchange(&token->taken, true))
            return token;
    return NULL;
}

static void token_give(struct token *token)
{
    atomic_store(&token->taken, false);
}

/* Record the token's event for a context. The caller holds a slot of it, and is inside its gate. */
static CUresult event_record(struct context *context, unsigned int entry, struct token *token)
{
    const unsigned int life = atomic_load(&host.lives[entry]);
    _Atomic(CUevent) event = NULL;

    if (!token->events[entry].event || token->events[entry].life != life) {
        const CUresult result = order_event_make(context, &event);

        if (result)
            return result;
        token->events[entry].event = event;
        token->events[entry].life = life;
    }
    atomic_store_explicit(&token->events[entry].over, false, memory_order_relaxed);
    token->count++;
    return host.driver->cuCtxRecordEvent(context_handle(context), token->events[entry].event);
}

/* Record an event of the token in a pinned context. -EBUSY: a stream captures, or a free in the driver would hold the
 * record up. */
static int record_in(struct context *context, unsigned int entry, struct token *token)
{
    struct slot *slot = order_slot_take(context);
    CUresult result = CUDA_ERROR_NOT_READY;

    if (!capture_active() && free_gate_enter(context)) {
        result = event_record(context, entry, token);
        free_gate_leave(context);
    }
    order_slot_give(slot, CUDA_ERROR_NOT_READY); /* nothing was put in order */
    if (!result)
        return 0;
    order_failed(context, result);
    atomic_store_explicit(&token->events[entry].over, true, memory_order_relaxed);
    if (context_failed(context)) /* its work has been aborted */
        return 0;
    return result == CUDA_ERROR_NOT_READY ||
                   (result >= CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED && result <= CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD)
               ? -EBUSY
               : -EIO;
}

static int record(void *arg, uint64_t *at)
{
    struct token *token = *at ? (struct token *)(uintptr_t)*at : token_take();
    int rc = token ? 0 : -EBUSY;

    (void)arg;
    *at = (uintptr_t)token;
    if (token)
        token->entries = token->count = 0;
    for (unsigned int i = 0; !rc && i < atomic_load(&contexts.count); i++) {
        struct context *context = atomic_load(&contexts.entries[i]);

        token->entries = i + 1;
        atomic_store_explicit(&token->events[i].over, true, memory_order_relaxed);
        if (!atomic_load(&context->handle) || !context->pool || atomic_load(&context->ending))
            continue;
        if (!context_pin(context))
            return -EBUSY; /* a call of another thread decides whether it stays */
        rc = record_in(context, i, token);
        context_unpin(context);
    }
    return rc;
}

static bool has_ended(const struct token *token, unsigned int entry)
{
    return atomic_load(&host.lives[entry]) != token->events[entry].life;
}

/* Ask about one event; results as query's. */
static int query_one(const struct token *token, unsigned int i)
{
    struct context *context = atomic_load(&contexts.entries[i]);
    CUresult result = CUDA_ERROR_NOT_READY;
    struct slot *slot;
    bool captures;

    if (has_ended(token, i))
        return 1;
    if (!context_pin(context))
        return 0;
    slot = order_slot_take(context);
    captures = capture_active();
    if (!captures && !has_ended(token, i))
        result = host.driver->cuEventQuery(token->events[i].event);
    order_slot_give(slot, CUDA_ERROR_NOT_READY);
    if (result != CUDA_ERROR_NOT_READY)
        order_failed(context, result);
    if (context_failed(context))
        result = CUDA_SUCCESS;
    context_unpin(context);
    return captures ? -EBUSY : result == CUDA_SUCCESS ? 1 : result == CUDA_ERROR_NOT_READY ? 0 : -EIO;
}

/* As query_one, unless it is known that the event is over. */
static int query_entry(struct token *token, unsigned int i)
{
    int rc;

    if (i >= token->entries || atomic_load_explicit(&token->events[i].over, memory_order_acquire))
        return 1;
    rc = query_one(token, i);
    if (rc == 1)
        atomic_store_explicit(&token->events[i].over, true, memory_order_release);
    return rc;
}

static int query(void *arg, uint64_t value)
{
    struct token *token = (struct token *)(uintptr_t)value;
    int rc = 1;

    (void)arg;
    for (unsigned int i = 0; rc == 1 && i < token->entries; i++)
        rc = query_entry(token, i);
    return rc;
}

static unsigned int entry_of(const struct context *context)
{
    unsigned int i = 0;

    while (atomic_load(&contexts.entries[i]) != context)
        i++;
    return i;
}

/* Natively a free waits for its own context, which need not be the owner's, so with several contexts this wait has a
 * limit. */
static int wait_for(void *arg, uint64_t value, uint64_t owner)
{
    struct token *token = (struct token *)(uintptr_t)value;
    const unsigned int entry = entry_of((const struct context *)(uintptr_t)owner);
    const uint64_t limit = token->count > 1 ? now_ns() + ORDER_OTHERS_WAIT_NS : UINT64_MAX;
    unsigned int times = 0;
    int rc;

    (void)arg;
    while ((rc = query_entry(token, entry)) == 0 && now_ns() < limit)
        lock_pause(times++, NAP_MAX_NS);
    return rc == 1 ? 0 : rc ? rc : -ETIMEDOUT;
}

static void drop(void *arg, uint64_t value)
{
    (void)arg;
    token_give((struct token *)(uintptr_t)value);
}

static int alloc(void *arg, const struct host_key *key, size_t size, uint64_t *ret_addr)
{
    void *p = NULL;
    CUresult result;

    (void)arg;
    if (capture_active_now())
        return -EAGAIN;
    if (!host_populate(host.driver, key->owner, key->flags == HOST_MEMORY_PLAIN ? HOST_POPULATE_FLAGS : key->flags,
                       size, ret_addr))
        return 0;
    result = key->flags == HOST_MEMORY_PLAIN ? host.driver->cuMemAllocHost_v2(&p, size)
                                             : host.driver->cuMemHostAlloc(&p, size, key->flags);
    *ret_addr = (uintptr_t)p;
    return !result ? 0 : result == CUDA_ERROR_OUT_OF_MEMORY ? -ENOMEM : -EIO;
}

/* With the slot: is all work of the context over? */
static bool is_idle(struct context *context, unsigned int entry)
{
    struct token *token;
    CUresult result;

    if (!free_gate_enter(context))
        return false;
    token = token_take();
    result = token ? event_record(context, entry, token) : CUDA_ERROR_NOT_READY;
    if (!result)
        result = host.driver->cuEventQuery(token->events[entry].event);
    if (token)
        token_give(token);
    free_gate_leave(context);
    return result == CUDA_SUCCESS;
}

/* Meanwhile the driver holds up what other threads record or launch in the context. */
static CUresult free_by_driver(struct context *context, uint64_t addr)
{
    const bool closed = free_gate_close(context);
    const CUresult result = host_populated(addr) ? host_populated_free(host.driver, addr)
                                                 : host.driver->cuMemFreeHost((void *)(uintptr_t)addr);

    if (closed)
        free_gate_open(context);
    return result;
}

/* The driver's calls wait for the work of the owner, and for no other context's. */
static int give_back(void *arg, const struct host_key *key, uint64_t addr, size_t size, bool may_wait)
{
    struct context *context = (struct context *)(uintptr_t)key->owner;
    CUresult result = CUDA_ERROR_NOT_READY;
    struct visit visit;
    struct slot *slot;
    uint64_t since = 0;

    (void)arg;
    if (!context_pin(context))
        return -EBUSY; /* it is ending, and its memory with it */
    slot = order_slot_take(context);
    atomic_store(&slot->waits, true);
    if (!capture_active_now() && (may_wait || is_idle(context, entry_of(context)))) {
        result = context_enter(context, &visit);
        pin_sleep(context);
        since = now_ns();
        if (!result)
            result = free_by_driver(context, addr);
        pin_wake();
        context_leave(context, &visit);
    }
    atomic_store(&slot->waits, false);
    order_slot_give(slot, CUDA_ERROR_NOT_READY);
    if (result != CUDA_ERROR_NOT_READY)
        host_observe_freed(key, addr, size, since, !result);
    context_unpin(context);
    if (result && result != CUDA_ERROR_NOT_READY)
        log_once(LOG_INFO, "pinned memory could not be given back (error %d)", (int)result);
    return result == CUDA_ERROR_NOT_READY ? -EBUSY : 0;
}

static const struct host_ops host_ops = {.alloc = alloc,
                                         .free = give_back,
                                         .record = record,
                                         .query = query,
                                         .wait = wait_for,
                                         .drop = drop,
                                         .got = host_observe_got,
                                         .lost = host_observe_lost};

static struct host_pool *make(const struct real_driver *driver, uint64_t limit)
{
    const struct host_config config = {
        .ops = &host_ops, .limit = (size_t)limit, .bound_min = BOUND_MIN, .ask_ns = ASK_NS};
    struct host_pool *pool = NULL;

    if (!driver->cuCtxRecordEvent || !driver->cuEventQuery || !driver->cuMemAllocHost_v2 || !driver->cuMemHostAlloc ||
        !driver->cuMemFreeHost) {
        log_once(LOG_WARN,
                 "CUPOOL_HOST_POOL has no effect: the driver lacks cuCtxRecordEvent (12.5 and later have it)");
        return NULL;
    }
    host.driver = driver;
    return host_pool_create(&config, &pool) ? NULL : pool;
}

struct host_pool *host_memory_pool(void)
{
    return atomic_load_explicit(&host.pool, memory_order_acquire);
}

struct host_pool *host_memory_make(const struct real_driver *driver, uint64_t limit)
{
    struct host_pool *pool = host_memory_pool();

    if (pool)
        return pool;
    pthread_mutex_lock(&host.making);
    pool = host_memory_pool();
    if (!pool) {
        pool = make(driver, limit);
        atomic_store_explicit(&host.pool, pool, memory_order_release);
    }
    pthread_mutex_unlock(&host.making);
    return pool;
}

int host_memory_alloc(struct context *context, unsigned int flags, size_t size, uint64_t *ret_addr)
{
    const struct host_key key = {.owner = (uintptr_t)context, .numa = numa_key(), .flags = flags};

    return host_pool_alloc(host_memory_pool(), &key, size, ret_addr);
}

int host_memory_owner(uint64_t addr, struct context **ret_context)
{
    struct host_key key;
    size_t size;
    const int rc = host_pool_find(host_memory_pool(), addr, &size, &key);

    if (!rc)
        *ret_context = (struct context *)(uintptr_t)key.owner;
    return rc;
}

int host_memory_order(struct context *context)
{
    int rc;

    if (conf_get()->free.number == FREE_RELAXED && !policy_is_strict(&context->policy))
        return 0;
    if (!context_pin_staying_once(context))
        return 0;
    rc = order_pool(context, POOL_ORDER_FREE);
    context_unpin(context);
    return rc == -EBUSY ? 0 : rc; /* a capture: the block is deferred */
}

bool host_memory_stats(struct host_stats *ret_stats)
{
    struct host_pool *pool = host_memory_pool();

    if (pool)
        host_pool_stats_get(pool, ret_stats);
    return pool;
}

void host_memory_context_ended(const struct context *context)
{
    struct host_pool *pool = host_memory_pool();

    if (!pool)
        return;
    atomic_fetch_add(&host.lives[entry_of(context)], 1);
    host_pool_owner_gone(pool, (uintptr_t)context);
    host_populated_owner_gone((uintptr_t)context);
}
