/* SPDX-License-Identifier: Apache-2.0 */
/*
 * api.c - the functions that include/cupool.h declares, for programs that know the library.
 *
 * It decides nothing about memory, and nothing else in the library calls it.
 *
 * Locking: none of its own.
 */
#include "cupool.h"

#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <string.h>

#include "base/log.h"
#include "base/process.h"
#include "context/backend.h"
#include "context/counters.h"
#include "context/device.h"
#include "context/host_memory.h"
#include "context/ipc_insert.h"
#include "context/lifetime.h"
#include "context/limits.h"
#include "context/pause.h"
#include "exports/export.h"
#include "nccl/register_calls.h"
#include "nccl/window.h"
#include "pool.h"
#include "real/real.h"
#include "serve/ipc_handles.h"
#include "serve/serve.h"
#include "trace/json.h"
#include "trace/trace.h"

/* The size of the first release's struct: no caller has a smaller one. */
#define STATS_SIZE_MIN offsetof(struct cupool_stats, nccl_segments)

EXPORT int cupool_lib_version(void)
{
    return CUPOOL_VERSION_NUMBER;
}

EXPORT int cupool_lib_enabled(void)
{
    return process_serves();
}

EXPORT int64_t cupool_lib_trim(int device)
{
    uint64_t bytes;

    if (!process_serves())
        return -ENOSYS;
    if (device < CUPOOL_ALL_DEVICES || !device_exists(device))
        return -EINVAL;
    if (nccl_reg_group_depth())
        return 0;
    bytes = serve_release(device, "program");
    if (device == CUPOOL_ALL_DEVICES && host_memory_pool())
        bytes += host_pool_trim(host_memory_pool(), /* may_wait: */ true);
    return (int64_t)bytes;
}

/* A sum over the counters of one device, or of all. */
struct sum {
    int device;
    struct cupool_stats stats;
};

static void add(void *arg, int device, const struct pool_stats *more, uint64_t bypassed)
{
    struct sum *sum = arg;
    struct cupool_stats *to = &sum->stats;

    if (sum->device != CUPOOL_ALL_DEVICES && sum->device != device)
        return;
    to->bypassed += bypassed;
#define COUNTER(name, traced) to->name += more->name;
#include "counters.def"
#undef COUNTER
}

static void add_nccl(struct cupool_stats *to)
{
    struct nccl_reg_stats nccl;

    if (!nccl_stats_get(&nccl))
        return;
    to->nccl_segments = nccl.segments;
    to->nccl_registered = nccl.attached;
    to->nccl_deregistered = nccl.detached;
    to->nccl_failed = nccl.failed;
    to->nccl_parked = nccl.parked;
}

static void add_host(struct cupool_stats *to)
{
    struct host_stats host;

    if (!host_memory_stats(&host))
        return;
#define HOST_COUNTER(name) to->host_##name = host.name;
#define HOST_OWN(name)     to->host_##name = host.name;
#include "host_counters.def"
#undef HOST_COUNTER
#undef HOST_OWN
}

EXPORT int cupool_lib_stats_get(int device, struct cupool_stats *stats)
{
    struct sum sum = {.device = device};
    size_t size;

    if (!process_serves())
        return -ENOSYS;
    if (!stats || device < CUPOOL_ALL_DEVICES || !device_exists(device) || stats->size < STATS_SIZE_MIN)
        return -EINVAL;
    size = stats->size;
    context_stats_each(/* ending: */ false, add, &sum);
    add_nccl(&sum.stats);
    add_host(&sum.stats);
    sum.stats.size = size < sizeof(*stats) ? size : sizeof(*stats);
    memset(stats, 0, size); /* a newer program's struct is longer than ours */
    memcpy(stats, &sum.stats, sum.stats.size);
    return 0;
}

EXPORT int cupool_lib_mark(const char *text)
{
    char escaped[384];

    if (!process_serves())
        return -ENOSYS;
    if (!text)
        return -EINVAL;
    if (!process_has_begun())
        return -EAGAIN;
    json_text(escaped, sizeof(escaped), text);
    trace_event("mark", "\"text\":\"%s\"", escaped);
    return 0;
}

#define SAME_NUMBER(symbol, name) _Static_assert((int)CUPOOL_BACKEND_##symbol == (int)BACKEND_##symbol, #name);
BACKENDS(SAME_NUMBER)

EXPORT int cupool_lib_backend_set(int backend)
{
    int rc;

    if (!process_serves())
        return -ENOSYS;
    if (backend < 0 || backend >= BACKEND_COUNT)
        return -EINVAL;
    if (!process_has_begun())
        return -EAGAIN;
    rc = backend_find((enum backend)backend);
    if (rc)
        return rc;
    trace_event("backend", "\"b\":\"%s\"", backend_name((unsigned int)backend));
    context_back((enum backend)backend);
    /* In a group or during a capture, idle memory of the other kind goes back with a later free. */
    if (!nccl_reg_group_depth())
        serve_release(CUPOOL_ALL_DEVICES, "backend");
    return 0;
}

/* Neither works inside a host function or after CUDA's own exit handlers. */
static bool driver_answers(void)
{
    const struct real_driver *driver = real_driver_get();
    CUcontext ignored;

    return driver && driver->cuCtxGetCurrent(&ignored) == CUDA_SUCCESS;
}

EXPORT int cupool_lib_pause(int device, unsigned int flags)
{
    uint64_t bytes;
    int rc;

    if (!process_serves())
        return -ENOSYS;
    if (device < 0 || device >= DEVICES_MAX || (flags != CUPOOL_KEEP && flags != CUPOOL_DISCARD))
        return -EINVAL;
    if (!process_has_begun())
        return -EAGAIN;
    if (!device_exists(device))
        return -EINVAL;
    rc = driver_answers() ? pause_device(device, flags == CUPOOL_KEEP, PAUSE_NO_LIMIT, &bytes) : -EIO;
    if (rc)
        log_write(LOG_WARN, "device %d is not paused: %s", device, pause_reason());
    return rc;
}

EXPORT int cupool_lib_resume(int device)
{
    uint64_t bytes;
    int rc;

    if (!process_serves())
        return -ENOSYS;
    if (device < 0 || device >= DEVICES_MAX)
        return -EINVAL;
    if (!process_has_begun())
        return -EAGAIN;
    if (!device_exists(device))
        return -EINVAL;
    rc = driver_answers() ? resume_device(device, &bytes) : -EIO;
    if (rc)
        log_write(LOG_WARN, "device %d is not resumed: %s", device, pause_reason());
    return rc;
}

EXPORT const char *cupool_lib_pause_reason(void)
{
    return pause_reason();
}

_Static_assert(sizeof(struct cupool_ticket) == IPC_HANDLE_BYTES, "it is also a handle of CUDA IPC");

/* A call that asks the system and the driver for something. A thread of the program that is to be cancelled returns
 * first, since an import that it works on would be BUSY for ever, and errno stays. */
struct call {
    int error, cancel;
};

static void call_begin(struct call *call)
{
    call->error = errno;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &call->cancel);
}

static int64_t call_end(const struct call *call, int64_t rc)
{
    pthread_setcancelstate(call->cancel, NULL);
    errno = call->error;
    return rc;
}

EXPORT int cupool_lib_export(const void *block, struct cupool_ticket *ret_ticket)
{
    struct call call;

    if (!process_serves())
        return -ENOSYS;
    call_begin(&call);
    return (int)call_end(&call, ret_ticket ? serve_ipc_export((uintptr_t)block, ret_ticket) : -EINVAL);
}

EXPORT int64_t cupool_lib_import(const struct cupool_ticket *ticket, size_t *ret_size)
{
    struct call call;
    int64_t import;
    size_t size;

    if (!process_serves())
        return -ENOSYS;
    call_begin(&call);
    import = ticket ? serve_ipc_import(ticket, &size) : -EINVAL;
    if (import > 0 && ret_size)
        *ret_size = size;
    return call_end(&call, import);
}

EXPORT int cupool_lib_import_close(int64_t import)
{
    struct call call;

    if (!process_serves())
        return -ENOSYS;
    call_begin(&call);
    return (int)call_end(&call, insert_close(import));
}

EXPORT int cupool_lib_reserve(size_t size, void **ret_range)
{
    struct call call;
    uint64_t range;
    int rc;

    if (!process_serves())
        return -ENOSYS;
    call_begin(&call);
    rc = ret_range ? insert_reserve(size, &range) : -EINVAL;
    if (!rc)
        *ret_range = (void *)(uintptr_t)range; /* NOLINT: an address */
    return (int)call_end(&call, rc);
}

EXPORT int cupool_lib_unreserve(void *range)
{
    struct call call;

    if (!process_serves())
        return -ENOSYS;
    call_begin(&call);
    return (int)call_end(&call, insert_unreserve((uintptr_t)range));
}

EXPORT int cupool_lib_insert(void *at, int64_t import)
{
    struct call call;

    if (!process_serves())
        return -ENOSYS;
    call_begin(&call);
    return (int)call_end(&call, insert_map((uintptr_t)at, import));
}

EXPORT int cupool_lib_withdraw(void *at)
{
    struct call call;

    if (!process_serves())
        return -ENOSYS;
    call_begin(&call);
    return (int)call_end(&call, insert_unmap((uintptr_t)at));
}

EXPORT int cupool_lib_window_register(void *comm, const void *ptr, size_t size, void **ret_window)
{
    if (!process_serves())
        return -ENOSYS;
    return comm && ret_window ? window_register(comm, (uintptr_t)ptr, size, (ncclWindow_t *)ret_window) : -EINVAL;
}

EXPORT int cupool_lib_window_deregister(void *comm, void *window)
{
    if (!process_serves())
        return -ENOSYS;
    return comm && window ? window_deregister(comm, window) : -EINVAL;
}
