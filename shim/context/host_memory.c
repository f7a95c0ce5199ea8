/* SPDX-License-Identifier: Apache-2.0 */
/*
 * host_memory.c - see host_memory.h.
 *
 * A token of the pool is an event on every pooled context. As every call that could disturb a capture, recording and
 * asking happen in a slot of the context (free_order.h), for which a beginning capture waits.
 *
 * Locking: host.lock, a leaf lock, for the unused tokens and events; never held over a CUDA call.
 */
#include "context/host_memory.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "base/log.h"
#include "clock.h"
#include "context/capture_gate.h"
#include "context/context_state.h"
#include "context/enter.h"
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
#define ASK_MS 300
/* The pool has up to 64 tokens, and each thread may have one more that it is about to enter. */
#define TOKENS 128u
#define SPARES TOKENS
/* The longest pause of a thread that waits, in nanoseconds. */
#define NAP_MAX_NS 1000000u

struct token {
    struct token *next;
    unsigned int count;
    struct {
        unsigned int entry; /* of the context, in contexts.entries */
        unsigned int life;
        CUevent event;
        atomic_bool over;
    } events[CONTEXTS_MAX];
};

/* The part of an entry of the registry that belongs to this file. */
struct entry {
    unsigned int life; /* of the contexts that it has meant so far; events of earlier ones have ended with them */
    unsigned int count;
    CUevent spares[SPARES];
};

static struct {
    _Atomic(struct host_pool *) pool;
    const struct real_driver *driver;
    pthread_mutex_t making; /* one thread makes the pool */
    struct lock lock;       /* guards the members below */
    struct token *unused;
    unsigned int given; /* so many of tokens have been in use */
    struct token tokens[TOKENS];
    struct entry entries[CONTEXTS_MAX];
    atomic_bool unwaited; /* a free has not waited for its context since host_memory_unwaited */
} host = {.making = PTHREAD_MUTEX_INITIALIZER};

static struct token *token_take(void)
{
    struct token *token;

    lock_take(&host.lock);
    token = host.unused;
    if (token)
        host.unused = token->next;
    else if (host.given < TOKENS)
        token = &host.tokens[host.given++];
    lock_give(&host.lock);
    if (token)
        token->count = 0;
    return token;
}

/* Give a token back, with its events. */
static void token_give(struct token *token)
{
    lock_take(&host.lock);
    for (unsigned int i = 0; i < token->count; i++) {
        struct entry *entry = &host.entries[token->events[i].entry];

        if (entry->life == token->events[i].life && entry->count < SPARES)
            entry->spares[entry->count++] = token->events[i].event;
    }
    token->next = host.unused;
    host.unused = token;
    lock_give(&host.lock);
}

/* An event of the context, unused. */
static CUresult event_take(struct context *context, unsigned int entry, unsigned int *ret_life, CUevent *ret_event)
{
    _Atomic(CUevent) event = NULL;
    CUresult result = CUDA_SUCCESS;

    lock_take(&host.lock);
    *ret_life = host.entries[entry].life;
    if (host.entries[entry].count)
        event = host.entries[entry].spares[--host.entries[entry].count];
    lock_give(&host.lock);
    if (!event)
        result = order_event_make(context, &event);
    *ret_event = event;
    return result;
}

/* Record an event of the token in a pinned context. -EBUSY: a stream captures. */
static int record_in(struct context *context, unsigned int entry, struct token *token)
{
    struct slot *slot = order_slot_take(context);
    CUresult result = CUDA_ERROR_NOT_READY;
    const unsigned int i = token->count;

    if (!capture_active()) {
        result = event_take(context, entry, &token->events[i].life, &token->events[i].event);
        if (!result) {
            token->events[i].entry = entry;
            atomic_store_explicit(&token->events[i].over, false, memory_order_relaxed);
            token->count++;
            result = host.driver->cuCtxRecordEvent(context_handle(context), token->events[i].event);
        }
    }
    order_slot_give(slot, CUDA_ERROR_NOT_READY); /* nothing was put in order */
    if (!result)
        return 0;
    order_failed(context, result);
    if (token->count > i)
        atomic_store_explicit(&token->events[i].over, true, memory_order_relaxed);
    if (context_failed(context)) /* its work has been aborted */
        return 0;
    return result == CUDA_ERROR_NOT_READY ||
                   (result >= CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED && result <= CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD)
               ? -EBUSY
               : -EIO;
}

static int record(void *arg, uint64_t *ret_token)
{
    struct token *token = token_take();
    int rc = token ? 0 : -EBUSY;

    (void)arg;
    for (unsigned int i = 0; !rc && i < atomic_load(&contexts.count); i++) {
        struct context *context = atomic_load(&contexts.entries[i]);

        if (!atomic_load(&context->handle) || !context->pool || atomic_load(&context->ending))
            continue;
        if (!context_pin(context)) {
            /* A call of another thread decides whether it stays. */
            rc = atomic_load(&context->handle) && !atomic_load(&context->ending) ? -EBUSY : 0;
            continue;
        }
        rc = record_in(context, i, token);
        context_unpin(context);
    }
    if (rc && token)
        token_give(token);
    if (!rc)
        *ret_token = (uintptr_t)token;
    return rc;
}

static bool has_ended(const struct token *token, unsigned int i)
{
    bool ended;

    lock_take(&host.lock);
    ended = host.entries[token->events[i].entry].life != token->events[i].life;
    lock_give(&host.lock);
    return ended;
}

/* Ask about one event; results as query's. */
static int query_one(const struct token *token, unsigned int i)
{
    struct context *context = atomic_load(&contexts.entries[token->events[i].entry]);
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
    if (result && result != CUDA_ERROR_NOT_READY)
        order_failed(context, result);
    if (context_failed(context))
        result = CUDA_SUCCESS;
    context_unpin(context);
    return captures ? -EBUSY : result == CUDA_SUCCESS ? 1 : result == CUDA_ERROR_NOT_READY ? 0 : -EIO;
}

static int query(void *arg, uint64_t value)
{
    struct token *token = (struct token *)(uintptr_t)value;
    int rc = 1;

    (void)arg;
    for (unsigned int i = 0; rc == 1 && i < token->count; i++) {
        if (atomic_load_explicit(&token->events[i].over, memory_order_acquire))
            continue;
        rc = query_one(token, i);
        if (rc == 1)
            atomic_store_explicit(&token->events[i].over, true, memory_order_release);
    }
    return rc;
}

/* Natively a free waits for its own context, so with several contexts this wait has a limit. */
static int wait_for(void *arg, uint64_t value)
{
    const struct token *token = (const struct token *)(uintptr_t)value;
    const uint64_t limit = token->count > 1 ? now_ns() + ORDER_OTHERS_WAIT_NS : UINT64_MAX;
    unsigned int times = 0;
    int rc;

    while ((rc = query(arg, value)) == 0 && now_ns() < limit)
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
    if (!host_populate(host.driver, key->flags == HOST_MEMORY_PLAIN ? HOST_POPULATE_FLAGS : key->flags, size, ret_addr))
        return 0;
    result = key->flags == HOST_MEMORY_PLAIN ? host.driver->cuMemAllocHost_v2(&p, size)
                                             : host.driver->cuMemHostAlloc(&p, size, key->flags);
    *ret_addr = (uintptr_t)p;
    return !result ? 0 : result == CUDA_ERROR_OUT_OF_MEMORY ? -ENOMEM : -EIO;
}

/* With the slot: is all work of the context over? */
static bool is_idle(struct context *context, unsigned int entry)
{
    unsigned int life;
    CUevent event;
    CUresult result = event_take(context, entry, &life, &event);

    if (!result)
        result = host.driver->cuCtxRecordEvent(context_handle(context), event);
    if (!result)
        result = host.driver->cuEventQuery(event);
    lock_take(&host.lock);
    if (event && host.entries[entry].life == life && host.entries[entry].count < SPARES)
        host.entries[entry].spares[host.entries[entry].count++] = event;
    lock_give(&host.lock);
    return result == CUDA_SUCCESS;
}

static unsigned int entry_of(const struct context *context)
{
    unsigned int i = 0;

    while (atomic_load(&contexts.entries[i]) != context)
        i++;
    return i;
}

/* Wait for all work that was launched so far. */
static int wait_for_all(void)
{
    uint64_t token;
    int rc = record(NULL, &token);

    if (rc)
        return rc;
    rc = wait_for(NULL, token);
    drop(NULL, token);
    return rc;
}

static CUresult free_by_driver(uint64_t addr)
{
    return host_populated(addr) ? host_populated_free(host.driver, addr)
                                : host.driver->cuMemFreeHost((void *)(uintptr_t)addr);
}

static int give_back(void *arg, const struct host_key *key, uint64_t addr, size_t size, bool may_wait)
{
    struct context *context = (struct context *)(uintptr_t)key->owner;
    CUresult result = CUDA_ERROR_NOT_READY;
    struct visit visit;
    struct slot *slot;
    uint64_t since = 0;

    (void)arg;
    if (may_wait && host_populated(addr) && wait_for_all()) /* memory of the driver's own is waited for by the driver */
        return -EBUSY;
    if (!context_pin(context))
        return -EBUSY; /* it is ending, and its memory with it */
    slot = order_slot_take(context);
    atomic_store(&slot->waits, true);
    if (!capture_active_now() && (may_wait || is_idle(context, entry_of(context)))) {
        result = context_enter(context, &visit);
        pin_sleep(context);
        since = now_ns();
        if (!result)
            result = free_by_driver(addr);
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
    return result == CUDA_ERROR_NOT_READY ? -EBUSY : result ? -EIO : 0;
}

static void lost(void *arg, const struct host_key *key, uint64_t addr, size_t size)
{
    host_populated_lost(addr);
    host_observe_lost(arg, key, addr, size);
}

static const struct host_ops host_ops = {.alloc = alloc,
                                         .free = give_back,
                                         .record = record,
                                         .query = query,
                                         .wait = wait_for,
                                         .drop = drop,
                                         .got = host_observe_got,
                                         .lost = lost};

static struct host_pool *make(const struct real_driver *driver, uint64_t limit)
{
    const struct host_config config = {
        .ops = &host_ops, .limit = (size_t)limit, .bound_min = BOUND_MIN, .ask_ms = ASK_MS};
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

CUresult host_memory_wait(struct context *context)
{
    CUresult result = CUDA_SUCCESS;
    uint64_t seq;
    bool waits;

    if (!context_pin(context))
        return CUDA_SUCCESS;
    waits = policy_waits(&context->policy, &seq);
    if (!waits) { /* then again: whoever makes the device strict meanwhile waits for this free, or it waits itself */
        if (!atomic_load(&host.unwaited))
            atomic_store(&host.unwaited, true);
        waits = policy_waits(&context->policy, &seq);
    }
    if (waits) {
        result = order_wait(context);
        if (!result)
            policy_synced(&context->policy, seq);
    }
    context_unpin(context);
    return result == CUDA_ERROR_NOT_READY ? CUDA_SUCCESS : result; /* a capture: the block is deferred */
}

bool host_memory_unwaited(void)
{
    return atomic_load(&host.unwaited) && atomic_exchange(&host.unwaited, false);
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
    const unsigned int entry = pool ? entry_of(context) : 0;

    if (!pool)
        return;
    lock_take(&host.lock);
    host.entries[entry].life++;
    host.entries[entry].count = 0;
    lock_give(&host.lock);
    host_pool_owner_gone(pool, (uintptr_t)context);
}
