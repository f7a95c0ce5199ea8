/* SPDX-License-Identifier: Apache-2.0 */
/*
 * registry.c - see registry.h. lifetime.c makes entries, context_end.c ends them.
 *
 * Locking: contexts.lock guards making entries; it is never held over a CUDA call.
 */
#include "context/registry.h"

#include <stdlib.h>
#include <string.h>

#include "base/conf_types.h"
#include "clock.h"
#include "context/context_state.h"
#include "context/pins.h"
#include "lock.h"

struct contexts contexts = {.lock = PTHREAD_MUTEX_INITIALIZER};

__thread unsigned int context_endings __attribute__((tls_model("initial-exec")));
atomic_uint contexts_closing;
atomic_uint context_waiters;

bool context_pin(struct context *context)
{
    if (!pins_add(context))
        return false;
    if (!atomic_load(&context->leaving) && atomic_load(&context->handle) && context->pool)
        return true;
    pins_remove(context);
    return false;
}

void context_unpin(struct context *context)
{
    pins_remove(context);
}

/* The thread that ends the context looks at the pins between `ending` and the pool's destruction. */
static bool pin_pool(struct context *context)
{
    /* Again if there was no host memory for the thread's record, but now there is. */
    if (!pins_add(context) && !(pins_possible() && pins_add(context)))
        return false;
    if (!atomic_load(&context->ending) && !atomic_load(&context->undecided) && atomic_load(&context->handle) &&
        context->pool)
        return true;
    pins_remove(context);
    return false;
}

struct context *context_next(unsigned int *i, int device)
{
    while (*i < atomic_load(&contexts.count)) {
        struct context *context = atomic_load(&contexts.entries[(*i)++]);

        if (!context_pin(context))
            continue;
        if (device == CONTEXT_ALL || context->device == device)
            return context;
        context_unpin(context);
    }
    return NULL;
}

void context_changed(void)
{
    atomic_fetch_add(&contexts.epoch, 1);
}

struct context *context_entry_find(CUcontext handle)
{
    const unsigned int count = atomic_load_explicit(&contexts.count, memory_order_acquire);

    for (unsigned int i = 0; i < count; i++) {
        struct context *context = atomic_load_explicit(&contexts.entries[i], memory_order_acquire);

        if (atomic_load_explicit(&context->handle, memory_order_acquire) == handle)
            return context;
    }
    return NULL;
}

struct context *context_entry_new(void)
{
    const unsigned int count = atomic_load(&contexts.count);
    struct context *context;

    for (unsigned int i = 0; i < count; i++) {
        context = atomic_load(&contexts.entries[i]);
        if (!atomic_load(&context->handle) && !atomic_load(&context->ending) && !atomic_load(&context->leaving))
            return context;
    }
    context = count < CONTEXTS_MAX ? aligned_alloc(64, sizeof(*context)) : NULL;
    if (context) {
        memset(context, 0, sizeof(*context));
        atomic_store(&contexts.entries[count], context);
        atomic_store_explicit(&contexts.count, count + 1, memory_order_release);
    }
    return context;
}

/*
 * Another thread is in a call that may end this context; usually it releases a reference that is not the last one. The
 * request waits, because a request that went to the driver instead would be one that other ranks serve from their
 * pools.
 */
bool context_is_leaving(const struct context *context)
{
    uint64_t limit;
    bool leaving;

    if (!atomic_load(&context->leaving))
        return false;
    if (context_endings)
        return true;
    limit = now_ns() + CONTEXT_LEAVING_WAIT_NS;
    atomic_fetch_add(&context_waiters, 1);
    for (unsigned int i = 0; (leaving = atomic_load(&context->leaving)) && now_ns() < limit; i++)
        lock_relax(i);
    atomic_fetch_sub(&context_waiters, 1);
    return leaving;
}

/* True while a call of another thread decides whether the context stays. */
static bool is_decided_on(const struct context *context)
{
    return atomic_load(&context->leaving) && !atomic_load(&context->ending) && !atomic_load(&context->undecided);
}

bool context_stays(const struct context *context)
{
    while (is_decided_on(context)) {
        if (context_endings)
            return false;
        /* The context may end beside this thread, which makes no call of the driver until that is decided. */
        pin_sleep(context);
        atomic_fetch_add(&context_waiters, 1);
        for (unsigned int i = 0; is_decided_on(context); i++)
            lock_relax(i);
        atomic_fetch_sub(&context_waiters, 1);
        pin_wake();
    }
    return !atomic_load(&context->ending);
}

/* As context_is_leaving, but once a thread has waited in vain for the calls under way, others do not. */
static bool is_leaving_once(struct context *context)
{
    bool leaving;

    if (atomic_load(&context->waited_for))
        return atomic_load(&context->leaving);
    leaving = context_is_leaving(context);
    if (leaving && !context_endings)
        atomic_store(&context->waited_for, true);
    return leaving;
}

/* Pin a context of the device. One that cannot be pinned is tried again until is_left_out, which waits, returns true.
 * False: left out, or gone. A thread without a record leaves all out: it would try for ever. A context that this thread
 * has pinned already is left out, too: the call that may end it waits for that pin. */
static bool pin_after_wait(struct context *context, int device, bool (*is_left_out)(struct context *context))
{
    while (atomic_load(&context->handle) && (device == CONTEXT_ALL || context->device == device) && context->pool) {
        if (context_pin(context))
            return true;
        if (!pins_possible() || pins_has(context) || is_left_out(context))
            break;
    }
    return false;
}

static struct context *next_after_wait(unsigned int *i, int device, bool (*is_left_out)(struct context *context))
{
    while (*i < atomic_load(&contexts.count)) {
        struct context *context = atomic_load(&contexts.entries[(*i)++]);

        if (pin_after_wait(context, device, is_left_out))
            return context;
    }
    return NULL;
}

bool context_pin_staying_once(struct context *context)
{
    return pin_after_wait(context, CONTEXT_ALL, is_leaving_once);
}

struct context *context_next_staying(unsigned int *i, int device)
{
    return next_after_wait(i, device, is_leaving_once);
}

static bool pin_counted(struct context *context, int device, bool *ret_leaving)
{
    if (!pin_pool(context))
        return false;
    *ret_leaving = atomic_load(&context->leaving);
    if (device != CONTEXT_ALL && context->device != device) {
        pins_remove(context);
        return false;
    }
    if (!*ret_leaving || !context->primary)
        return true;
    pins_remove(context); /* that call waits for it */
    *ret_leaving = !pin_after_wait(context, device, is_leaving_once);
    return !*ret_leaving || pin_pool(context);
}

struct context *context_next_pool(unsigned int *i, int device, bool *ret_leaving)
{
    while (*i < atomic_load(&contexts.count)) {
        struct context *context = atomic_load(&contexts.entries[(*i)++]);

        if (pin_counted(context, device, ret_leaving))
            return context;
    }
    return NULL;
}

static bool is_gone(struct context *context)
{
    return !context_stays(context) || atomic_load(&context->undecided);
}

struct context *context_next_decided(unsigned int *i, int device)
{
    return next_after_wait(i, device, is_gone);
}

enum context_free context_may_free(uint64_t addr, uint64_t limit)
{
    const struct pool *pool = pool_of(addr);
    const struct context *context = pool ? context_of(pool) : NULL;

    if (!context)
        return FREE_NOW;
    if (atomic_load(&context->ending))
        return FREE_NEVER;
    if (!is_decided_on(context))
        return FREE_NOW;
    return context_endings || now_ns() >= limit ? FREE_LATER : FREE_WAIT;
}

/* Beside a call that may end the context: before that returns, the driver may give the context's addresses to others.
 * Virtual memory has no context, so where the pool may have some, only memory of another context is somebody else's. */
static bool is_given_away(const struct pool *pool, const struct context *context, uint64_t addr)
{
    const struct real_driver *driver = context->driver;
    CUcontext owner = NULL;
    CUresult result;

    if (!driver->cuPointerGetAttribute)
        return false;
    result = driver->cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, addr);
    if (!result && owner)
        return owner != context_handle(context);
    return (!result || result == CUDA_ERROR_INVALID_VALUE) && pool_kind_get(pool) == BACKEND_CUDA &&
           !atomic_load(&context->mixed);
}

struct pool *context_pool_at(uint64_t addr)
{
    struct pool *pool = pool_of(addr);
    const struct context *context;

    if (!pool || !atomic_load_explicit(&contexts_closing, memory_order_acquire))
        return pool;
    context = context_of(pool);
    if (atomic_load(&context->ending) || (is_decided_on(context) && is_given_away(pool, context, addr)))
        return NULL;
    return pool;
}

CUcontext context_handle(const struct context *context)
{
    return atomic_load_explicit(&context->handle, memory_order_relaxed);
}

struct context *context_find(CUcontext handle)
{
    struct context *context = handle ? context_entry_find(handle) : NULL;

    return context && context->pool ? context : NULL;
}

struct policy *context_policy(CUcontext handle)
{
    struct context *context = context_find(handle);

    return context ? &context->policy : NULL;
}

void context_policy_each(void (*each)(struct policy *policy, const void *arg), const void *arg)
{
    /* Unpinned, because a context that another thread gives up a reference to must not be left out; entries stay. */
    for (unsigned int i = 0; i < atomic_load(&contexts.count); i++) {
        struct context *context = atomic_load(&contexts.entries[i]);

        if (atomic_load(&context->handle) && atomic_load(&context->pool))
            each(&context->policy, arg);
    }
}

bool context_several(void)
{
    return atomic_load(&contexts.count) > 1;
}

void context_stream_gone(CUstream stream)
{
    for (unsigned int i = 0; i < atomic_load(&contexts.count); i++) {
        struct context *context = atomic_load(&contexts.entries[i]);

        policy_host_work_stream_gone(&context->policy, stream);
        free_streams_gone(&context->free_streams, stream);
    }
}

CUresult context_of_stream(const struct real_driver *driver, CUstream stream, CUcontext *ret_handle)
{
    CUresult result;

    if (!driver->cuStreamGetCtx)
        return CUDA_ERROR_NOT_SUPPORTED;
    result = driver->cuStreamGetCtx(stream, ret_handle);
    if (result) /* asked again, because frees wait for the work of this context */
        result = driver->cuStreamGetCtx(stream, ret_handle);
    return result;
}

CUcontext context_stream(const struct real_driver *driver, CUstream stream)
{
    CUcontext handle = NULL;

    if (stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD || context_of_stream(driver, stream, &handle))
        driver->cuCtxGetCurrent(&handle);
    return handle;
}

struct pool *context_pool(const struct context *context)
{
    return context->pool;
}

bool context_failed(const struct context *context)
{
    return atomic_load_explicit(&context->failed, memory_order_relaxed);
}

int context_device(const struct context *context)
{
    return context->device;
}

bool context_backed_by_nccl(const struct context *context)
{
    return pool_kind_get(context->pool) == BACKEND_NCCL;
}

bool context_defers(const struct context *context)
{
    return pool_kind_get(context->pool) == BACKEND_VMM || atomic_load(&context->defers);
}

struct context *context_of(const struct pool *pool)
{
    return pool_arg(pool);
}

void context_bypassed(struct context *context)
{
    atomic_fetch_add_explicit(&context->bypassed, 1, memory_order_relaxed);
}

void context_exempt(CUcontext handle)
{
    struct context *context;

    pthread_mutex_lock(&contexts.lock);
    context = context_entry_find(handle);
    if (!context) {
        context = context_entry_new();
        if (context) {
            context->pool = NULL;
            context->primary = false;
            atomic_store_explicit(&context->handle, handle, memory_order_release);
            context_changed();
        }
    }
    pthread_mutex_unlock(&contexts.lock);
}
