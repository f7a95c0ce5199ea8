/* SPDX-License-Identifier: Apache-2.0 */
/*
 * serve/pinned_requests.c - see pinned_requests.h.
 *
 * Locking: none.
 */
#include "serve/pinned_requests.h"

#include <errno.h>
#include <stdatomic.h>

#include "base/conf.h"
#include "base/memory_limit.h"
#include "base/process.h"
#include "context/enter.h"
#include "context/host_memory.h"
#include "context/lifetime.h"
#include "context/pins.h"
#include "context/registry.h"
#include "real/caller.h"
#include "real/real.h"
#include "report/background_thread.h"
#include "report/guard.h"

/* Idle memory is looked at so often in a decay time, and goes back after all looks but one. */
#define LOOKS 8

static atomic_ullong tick_at; /* in nanoseconds of the monotonic clock; 0: nothing has been pooled */

/* The setting; by default an eighth of what the process may take, shared by the ranks of the host. */
static uint64_t limit(void)
{
    const uint64_t set = conf_get()->host_limit.number, memory = set ? 0 : machine_memory();

    return set ? set : memory / 8 / machine_ranks();
}

/* Inside a host function the driver refuses every call, and so must we. */
static bool is_answered(const struct real_driver *driver)
{
    CUcontext ignored;

    return driver->cuCtxGetCurrent(&ignored) != CUDA_ERROR_NOT_PERMITTED;
}

enum serve_verdict serve_host_alloc(unsigned int flags, size_t size, const void *caller, uint64_t *ret_addr)
{
    const struct real_driver *driver;
    struct context *context;
    struct pins *own;
    int rc;

    if (!size || process_is_passive() || !conf_get()->host_pool.number ||
        caller_is_outside(caller_of(serve_caller(caller))))
        return SERVE_FORWARD;
    driver = real_driver_get();
    if (!driver || !is_answered(driver))
        return SERVE_FORWARD;
    if (process_state_get() == PROCESS_NEW)
        process_start();
    if (guard_on() && guard_own())
        return SERVE_FORWARD;
    if (!host_memory_pool() && !host_memory_make(driver, limit()))
        return SERVE_FORWARD;
    context = context_begin(driver, /* by_runtime: */ false, &own);
    if (!context)
        return SERVE_FORWARD;
    rc = host_memory_alloc(context, flags, size, ret_addr);
    pin_end(own);
    if (!rc && !atomic_load_explicit(&tick_at, memory_order_relaxed)) {
        atomic_store(&tick_at, 1);
        background_start();
    }
    return rc ? SERVE_FORWARD : SERVE_DONE;
}

void serve_host_wanted(void)
{
    const struct real_driver *driver = conf_get()->host_pool.number ? real_driver_get() : NULL;

    if (driver && (host_memory_pool() || host_memory_make(driver, limit())))
        atomic_store(&tick_at, 1);
}

void serve_host_passed(uint64_t addr, size_t size)
{
    struct host_pool *pool = host_memory_pool();

    if (pool)
        host_pool_disown(pool, addr, size);
}

enum serve_verdict serve_host_free(uint64_t addr)
{
    struct host_pool *pool = host_memory_pool();
    struct context *context;
    bool over;
    int rc;

    if (!pool || process_is_passive())
        return SERVE_FORWARD;
    rc = host_memory_owner(addr, &context);
    if (rc == -ENOENT)
        return SERVE_FORWARD;
    if (!serve_is_answered(&over))
        return SERVE_FAILED;
    if (over)
        return SERVE_OVER;
    if (rc)
        return SERVE_INVALID;
    /* After an error of the order alone the block is freed all the same: it serves again only once the work is over. */
    if (context_failed(context) || (host_memory_order(context) && context_failed(context)))
        return SERVE_FAILED;
    rc = host_pool_free(pool, addr);
    return !rc ? SERVE_DONE : rc == -EINVAL ? SERVE_INVALID : rc == -ENOENT ? SERVE_FORWARD : SERVE_FAILED;
}

void serve_host_failed_begin(uint64_t addr, struct serve_failed *ret_failed)
{
    struct context *context;

    *ret_failed = (struct serve_failed){0};
    if (host_memory_owner(addr, &context) || !context_pin(context))
        return;
    ret_failed->context = context;
    (void)context_enter(context, &ret_failed->visit);
    /* See serve_failed_begin. */
    context_unpin(context);
}

void serve_host_failed_end(struct serve_failed *failed)
{
    if (failed->context)
        context_leave(failed->context, &failed->visit);
}

bool serve_host_range(uint64_t addr, uint64_t *ret_base, size_t *ret_size)
{
    struct host_pool *pool = host_memory_pool();
    const int rc = pool ? host_pool_block(pool, addr, ret_base, ret_size) : -ENOENT;

    if (rc == -EINVAL)
        *ret_size = 0;
    return rc != -ENOENT;
}

uint64_t serve_host_due(uint64_t now)
{
    const uint64_t at = atomic_load(&tick_at);

    (void)now;
    return at && conf_get()->decay.number != UINT64_MAX ? at : UINT64_MAX;
}

void serve_host_tick(uint64_t now)
{
    const uint64_t seconds = conf_get()->decay.number;

    if (now < serve_host_due(now))
        return;
    (void)host_pool_decay(host_memory_pool(), LOOKS - 1);
    atomic_store(&tick_at, now + (seconds ? seconds * 1000000000 / LOOKS : 100000000));
}
