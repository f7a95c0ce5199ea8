/* SPDX-License-Identifier: Apache-2.0 */
/*
 * serve.c - see serve.h.
 *
 * Locking: none.
 */
#include "serve/serve.h"

#include <errno.h>
#include <stdatomic.h>

#include "base/conf.h"
#include "base/log.h"
#include "base/process.h"
#include "clock.h"
#include "context/backend.h"
#include "context/capture_gate.h"
#include "context/enter.h"
#include "context/free_order.h"
#include "context/ipc_server.h"
#include "context/ipc_table.h"
#include "context/lifetime.h"
#include "context/nccl_memory.h"
#include "context/pins.h"
#include "context/registry.h"
#include "context/returning.h"
#include "context/wait_device.h"
#include "lock.h"
#include "nccl/direct.h"
#include "pool.h"
#include "real/caller.h"
#include "real/real.h"
#include "report/guard.h"
#include "trace/stacks.h"
#include "trace/trace.h"

/* The caller of the runtime's function that has passed its call on to a hook of the driver; NULL: none. */
static __thread const void *runtime_caller __attribute__((tls_model("initial-exec")));

/* The state of a request of this thread that the pool has not served, until its bypassed call is over. */
enum {
    REQUEST_NONE,
    REQUEST_ASKED, /* the pool has asked other processes for it */
    REQUEST_EARLY, /* the pool has not looked at all of its free memory */
    REQUEST_LATE,  /* serve_alloc_refused has served it */
};
static __thread unsigned char request __attribute__((tls_model("initial-exec")));

void serve_call_from(const void *caller)
{
    runtime_caller = caller;
}

const void *serve_caller(const void *caller)
{
    return runtime_caller ? runtime_caller : caller;
}

void serve_begin(void)
{
    process_start();
    trace_open();
}

static inline size_t guarded(size_t size)
{
    return guard_on() ? guard_padded(size) : size;
}

/* A block of the pool is about to be handed out. */
static inline void note_alloc(struct context *context, uint64_t addr, size_t size, const void *caller)
{
    if (guard_on())
        guard_alloc(context, addr, size, caller);
    if (trace_allocs())
        stacks_alloc(context_device(context), addr, size, caller);
}

/* Serve a request in a context that stays valid meanwhile. */
static inline enum serve_verdict alloc_in(struct context *context, size_t size, const void *caller, uint64_t *ret_addr)
{
    const int rc = pool_alloc(context_pool(context), guarded(size), ret_addr);

    if (rc == -ENOMEM && context_backed_by_nccl(context))
        return SERVE_REFUSED;
    if (rc) {
        request = rc == -ENOMEM ? REQUEST_ASKED : REQUEST_EARLY;
        context_bypassed(context);
        return SERVE_BYPASS;
    }
    note_alloc(context, *ret_addr, size, caller);
    return SERVE_DONE;
}

enum serve_verdict serve_alloc(size_t size, const void *caller, bool by_runtime, uint64_t *ret_addr)
{
    const struct real_driver *driver;
    enum serve_verdict verdict;
    struct context *context;
    struct pins *own;

    if (!size || process_is_passive())
        return SERVE_FORWARD;
    caller = serve_caller(caller);
    if (caller_is_outside(caller_of(caller))) {
        if (caller_of(caller) == CALLER_INSIDE)
            nccl_works();
        return SERVE_BYPASS;
    }
    driver = real_driver_get();
    if (!driver)
        return SERVE_FORWARD;
    if (process_state_get() == PROCESS_NEW)
        process_start();
    if (guard_on() && guard_own())
        return SERVE_BYPASS;
    context = context_begin(driver, by_runtime, &own);
    if (!context)
        return SERVE_FORWARD;
    if (runtime_caller)
        context_met_runtime(context);
    verdict = alloc_in(context, size, caller, ret_addr);
    pin_end(own);
    return verdict;
}

bool serve_alloc_refused(size_t size, uint64_t *ret_addr)
{
    const struct real_driver *driver = request == REQUEST_EARLY ? real_driver_get() : NULL;
    struct context *context;
    struct pins *own;

    if (!driver)
        return false;
    context = context_begin(driver, /* by_runtime: */ false, &own);
    if (!context)
        return false;
    if (pool_alloc_refused(context_pool(context), guarded(size), ret_addr) == 0)
        request = REQUEST_LATE;
    pin_end(own);
    return request == REQUEST_LATE;
}

/* The memory at addr is a block of the pool, which serve_alloc_refused has got. */
static __attribute__((noinline, cold)) void note_late(uint64_t addr, size_t size, const void *caller)
{
    struct pins *own = pin_begin(PIN_ADDRESS(addr));
    struct pool *pool = atomic_load_explicit(&contexts_closing, memory_order_acquire) ? NULL : pool_of(addr);

    if (pool)
        note_alloc(context_of(pool), addr, size, caller);
    pin_end(own);
}

bool serve_bypass_failed(const void *caller)
{
    request = REQUEST_NONE;
    return !process_is_passive() && !caller_is_outside(caller_of(serve_caller(caller)));
}

void serve_bypassed(uint64_t addr, size_t size, const void *caller)
{
    const bool is_late = request == REQUEST_LATE;

    request = REQUEST_NONE;
    caller = serve_caller(caller);
    if (is_late) {
        note_late(addr, size, caller);
        return;
    }
    pool_disown(addr, size);
    if (!caller_is_outside(caller_of(caller)))
        direct_allocated(addr, size);
    if (backend_chosen() == BACKEND_NCCL && !process_is_passive() && !caller_is_outside(caller_of(caller)))
        log_once(
            LOG_WARN,
            "%zu bytes come from cudaMalloc, not from NCCL (a capture is under way, or CUPOOL_LIMIT is reached); if "
            "that is not so on all ranks, and they are registered, the job may hang",
            size);
    if (guard_on() && guard_own() && !process_is_passive() && !caller_is_outside(caller_of(caller)))
        guard_alloc(NULL, addr, size, caller);
}

/* How the pool gets a block back. freed: for pool_free_async. */
typedef int release_fn(uint64_t addr, uint64_t freed);

static int release_free(uint64_t addr, uint64_t freed)
{
    return pool_free(addr);
}

static int release_later(uint64_t addr, uint64_t freed)
{
    return pool_free_later(addr);
}

static int release_never(uint64_t addr, uint64_t freed)
{
    return pool_free_never(addr);
}

static inline int release_checked(release_fn *release, uint64_t addr, uint64_t freed)
{
    if (guard_on())
        guard_free(addr, /* may_wait: */ release == release_free);
    return release(addr, freed);
}

static __attribute__((noinline)) int release_traced(release_fn *release, uint64_t addr, uint64_t freed)
{
    struct trace_block event = {.device = -1, .addr = addr};
    struct pool *pool = NULL;
    size_t block = 0, size = pool_live(addr, &pool, &block);
    int rc;

    if (size && guard_on())
        guard_block_size(addr, &size);
    if (size) {
        event.device = context_device(context_of(pool));
        event.size = size;
        trace_block(TRACE_BLOCK_FREE_REQUESTED, &event);
    }
    rc = release_checked(release, addr, freed);
    if (size && rc == 0)
        trace_block(TRACE_BLOCK_FREE_COMPLETED, &event);
    return rc;
}

static inline int release_now(release_fn *release, uint64_t addr, uint64_t freed)
{
    return trace_allocs() ? release_traced(release, addr, freed) : release_checked(release, addr, freed);
}

/* Pins the memory; waits while a call is under way that may end its context, not for ever. The caller ends the pin. */
static struct pins *pin_beside_end(uint64_t addr, enum context_free *ret_may)
{
    const uint64_t limit = now_ns() + CONTEXT_LEAVING_WAIT_NS;
    struct pins *own = pin_begin(PIN_ADDRESS(addr));

    if (!context_endings && !context_pool_at(addr)) { /* nor another pool's, if the driver has given it away */
        *ret_may = FREE_NEVER;
        return own;
    }
    atomic_fetch_add(&context_waiters, 1);
    for (unsigned int i = 0; (*ret_may = context_may_free(addr, limit)) == FREE_WAIT; i++) {
        pin_end(own);
        lock_relax(i);
        own = pin_begin(PIN_ADDRESS(addr));
    }
    atomic_fetch_sub(&context_waiters, 1);
    return own;
}

/* A free while a call is under way that may end a context, perhaps this memory's. Kept out of line, away from the usual
 * path. */
static __attribute__((noinline, cold)) int release_beside_end(release_fn *release, uint64_t addr, uint64_t freed)
{
    enum context_free may;
    struct pins *own = pin_beside_end(addr, &may);
    int rc = -ENOENT; /* the context is gone: the driver may have given its addresses to somebody else */

    if (may == FREE_NOW)
        rc = release_now(release, addr, freed);
    else if (may == FREE_LATER)
        rc = release == release_free ? pool_free_later(addr) : release(addr, freed);
    pin_end(own);
    return rc;
}

__thread bool serve_had_context;

/* A context has ended in this process. */
static atomic_bool any_ended;
/* The driver answers this thread, and the thread's context has not ended. */
static __thread bool answered __attribute__((tls_model("initial-exec")));

void serve_context_ended(void)
{
    atomic_store(&any_ended, true);
    answered = false;
    serve_had_context = false;
}

/* True if the context that is current has ended: the driver refuses every free then. A capture would be disturbed by
 * the question: *ret_asked. */
static bool current_is_over(const struct real_driver *driver, CUcontext current, bool *ret_asked)
{
    const bool may = current && atomic_load(&any_ended);
    size_t free, total;

    *ret_asked = !may || !capture_active();
    return may && *ret_asked && driver->cuMemGetInfo_v2(&free, &total) == CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

/*
 * Does the driver answer this thread? It refuses on the threads of its own that run host functions, and a free that has
 * no need of the driver has to be refused there too. Every other thread keeps its answers, so it asks once, and again
 * after it has ended a context. *ret_over: its current context has ended.
 */
static __attribute__((noinline, cold)) bool thread_asks(bool *ret_over)
{
    const struct real_driver *driver = real_driver_get();
    CUcontext current = NULL;
    bool asked;

    *ret_over = false;
    if (!driver)
        return true;
    if (driver->cuCtxGetCurrent(&current) == CUDA_ERROR_NOT_PERMITTED)
        return false;
    *ret_over = current_is_over(driver, current, &asked);
    answered = asked && !*ret_over;
    return true;
}

bool serve_is_answered(bool *ret_over)
{
    *ret_over = false;
    return answered || thread_asks(ret_over);
}

static inline bool thread_is_answered(void)
{
    bool over;

    return serve_is_answered(&over);
}

/* As thread_is_answered. *ret_verdict: if not, the answer to a free that natively waits. */
static inline bool thread_may_free(uint64_t addr, enum serve_verdict *ret_verdict)
{
    bool over;

    if (answered || (thread_asks(&over) && !over))
        return true;
    *ret_verdict = !pool_of(addr) ? SERVE_FORWARD : over ? SERVE_OVER : SERVE_UNFREED;
    return false;
}

/* A free of memory that no pool has. The driver would free a segment a second time that is on its way back to it. */
static __attribute__((noinline, cold)) enum serve_verdict free_elsewhere(uint64_t addr)
{
    return returning_is(real_driver_get(), addr) ? SERVE_INVALID : SERVE_FORWARD;
}

static enum serve_verdict free_with(release_fn *release, uint64_t addr, uint64_t freed)
{
    enum serve_verdict verdict;
    struct pins *own;
    bool closing;
    int rc;

    if (process_is_passive())
        return SERVE_FORWARD;
    if (!thread_may_free(addr, &verdict) && (verdict != SERVE_OVER || release == release_free))
        return verdict;
    own = pin_begin(PIN_ADDRESS(addr));
    closing = atomic_load_explicit(&contexts_closing, memory_order_acquire);
    rc = closing ? 0 : release_now(release, addr, freed);
    pin_end(own);
    if (closing)
        rc = release_beside_end(release, addr, freed);
    switch (rc) {
    case 0:
        return SERVE_DONE;
    case -ENOENT:
        return free_elsewhere(addr);
    case -EINVAL:
        return SERVE_INVALID;
    case -ENOTRECOVERABLE:
        return SERVE_UNFREED;
    default:
        return SERVE_FAILED;
    }
}

/* Wait as the free would have. False: it could not, most likely because of an earlier error of the context. */
static bool parked_wait(uint64_t addr)
{
    enum context_free may;
    struct pins *own = pin_beside_end(addr, &may);
    struct pool *pool = may == FREE_NOW ? pool_of(addr) : NULL;
    const bool done = !pool || !order_wait(context_of(pool));

    pin_end(own);
    return done;
}

/* A free of a block that may be exported. True: another process holds it, so it stays handed out for now, and
 * *ret_verdict is the answer. */
static __attribute__((noinline, cold)) bool free_parks(uint64_t addr, bool waits, enum serve_verdict *ret_verdict)
{
    enum ipc_free is;

    if (process_is_passive() || !(waits ? thread_may_free(addr, ret_verdict) : thread_is_answered()))
        return false;
    is = ipc_table_free(addr);
    *ret_verdict = is == IPC_FREE_AGAIN ? SERVE_INVALID : SERVE_DONE;
    if (is == IPC_FREE_PARKED && waits && !parked_wait(addr))
        *ret_verdict = SERVE_FAILED;
    return is != IPC_FREE_NOW;
}

static int parked_release(uint64_t addr, uint64_t freed)
{
    return ipc_table_take(addr) ? pool_free_later(addr) : -ENOENT;
}

void serve_ipc_tick(uint64_t now)
{
    uint64_t addr;

    ipc_server_tick(now);
    while (ipc_table_any() && ipc_table_released(&addr)) {
        process_bypass_end(); /* this is a free of the program's */
        free_with(parked_release, addr, 0);
        process_bypass_begin();
        ipc_table_take(addr); /* if its context is gone */
        /* That may have closed a descriptor of GPU memory, which takes longer than all that an open needs of us. */
        ipc_server_tick(now_ns());
    }
}

enum serve_verdict serve_free(uint64_t addr)
{
    enum serve_verdict verdict;

    if (ipc_table_any() && free_parks(addr, /* waits: */ true, &verdict))
        return verdict;
    return free_with(release_free, addr, 0);
}

enum serve_verdict serve_free_later(uint64_t addr, CUstream stream)
{
    struct pool *pool = process_is_passive() ? NULL : context_pool_at(addr);
    enum serve_verdict verdict;
    uint64_t freed;

    if (!pool)
        return free_with(release_later, addr, 0);
    if (!thread_is_answered() || context_failed(context_of(pool)))
        return SERVE_UNFREED;
    /* The next order in the context covers the work of its own streams only; a stream of another context has to be
     * waited for. */
    switch (context_wait_foreign(context_of(pool), stream, &freed)) {
    case CUDA_SUCCESS:
        if (ipc_table_any() && free_parks(addr, /* waits: */ false, &verdict))
            return verdict;
        return free_with(pool_free_async, addr, freed ? freed : POOL_FREED_UNMARKED);
    case CUDA_ERROR_INVALID_HANDLE:
        return SERVE_NOWHERE;
    default:
        log_once(LOG_WARN, "memory that was freed on another context's stream is not used again: the stream has not "
                           "come there within a second");
        return free_with(release_never, addr, 0);
    }
}

void serve_failed_begin(uint64_t addr, struct serve_failed *ret_failed)
{
    struct pins *own = pin_begin(PIN_ADDRESS(addr));
    struct pool *pool = atomic_load_explicit(&contexts_closing, memory_order_acquire) ? NULL : pool_of(addr);

    ret_failed->context = pool ? context_of(pool) : NULL;
    if (ret_failed->context)
        (void)context_enter(ret_failed->context, &ret_failed->visit);
    /* Not kept over the caller's call: a thread that ends the context by the runtime's function holds the runtime's
     * lock, which that call waits for. Entries stay, so the context can be left after it has ended. */
    pin_end(own);
}

void serve_failed_end(struct serve_failed *failed)
{
    if (failed->context)
        context_leave(failed->context, &failed->visit);
}

bool serve_lacks_context(void)
{
    const struct real_driver *driver = serve_had_context ? NULL : real_driver_get();
    CUcontext handle = NULL;

    if (!driver || driver->cuCtxGetCurrent(&handle)) /* if the driver fails here, its error is not the program's */
        return false;
    serve_had_context = handle != NULL;
    return !serve_had_context && !capture_active();
}

bool serve_has_asked(void)
{
    const bool asked = request == REQUEST_ASKED;

    request = asked ? REQUEST_NONE : request;
    return asked;
}
