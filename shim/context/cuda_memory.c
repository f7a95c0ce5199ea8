/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_memory.c - see cuda_memory.h.
 *
 * Locking: none; counters are atomic.
 */
#include "context/cuda_memory.h"

#include "base/log.h"
#include "context/context_state.h"
#include "context/enter.h"
#include "context/free_gate.h"
#include "context/free_order.h"
#include "context/own_stream.h"
#include "context/pins.h"
#include "context/returning.h"

bool cuda_memory_defers(const struct real_driver *driver, int device)
{
    const CUdevice_attribute pools = CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED;
    int supported = 0;
    CUresult result;

    if (!driver->cuMemFreeAsync || !driver->cuStreamQuery || !driver->cuStreamSynchronize ||
        !driver->cuDeviceGetAttribute)
        return false;
    result = driver->cuDeviceGetAttribute(&supported, pools, device);
    if (result) /* asked again, as in free_through */
        result = driver->cuDeviceGetAttribute(&supported, pools, device);
    return !result && supported;
}

/* Free memory through a stream. Tried again if it fails: a context that has once failed to does not do so any more, and
 * without that nothing goes back while a stream captures, so that requests would be refused. */
static bool free_through(const struct real_driver *driver, uint64_t addr, CUstream stream)
{
    CUresult result = driver->cuMemFreeAsync(addr, stream);

    if (result && !order_is_sticky(result))
        result = driver->cuMemFreeAsync(addr, stream);
    return !result;
}

static CUresult get(struct context *context, CUdeviceptr *ret_addr, size_t size)
{
    return context->driver->cuMemAlloc_v2(ret_addr, size);
}

/* Threads that would be held up meanwhile go without their calls, as beside the program's own free. */
static CUresult free_waiting(struct context *context, uint64_t addr)
{
    const struct real_driver *driver = context->driver;
    const bool closed = free_gate_close(context);
    CUresult result;

    pin_sleep(context);
    result = driver->cuMemFree_v2(addr);
    if (result && !order_is_sticky(result)) /* tried again, because the memory would be lost */
        result = driver->cuMemFree_v2(addr);
    pin_wake();
    if (closed)
        free_gate_open(context);
    return result;
}

static bool put(struct context *context, uint64_t addr, size_t size)
{
    const struct real_driver *driver = context->driver;
    bool arrives_later = false, can_defer;
    struct visit visit;
    CUresult result;
    CUstream stream;

    result = context_enter(context, &visit);
    stream = result || !atomic_load(&context->defers) ? NULL : own_stream(context);
    can_defer = stream && returning_add(driver, addr);
    /*
     * cuMemFree waits for the device, including work launched after the program's own free, and holds up every launch
     * meanwhile. cuMemFreeAsync on our own stream does neither: the stream waits only for the work that the frees have
     * ordered, and the memory arrives when a thread synchronises the stream.
     */
    own_stream_busy_begin(context);
    arrives_later = can_defer && free_through(driver, addr, stream);
    if (arrives_later)
        atomic_fetch_add(&context->given, size);
    own_stream_busy_end(context);
    if (!arrives_later) {
        /* Also after an error of context_enter: the address alone names the memory. */
        if (can_defer)
            atomic_store(&context->defers, false);
        result = free_waiting(context, addr);
    }
    context_leave(context, &visit);
    if (result && result != CUDA_ERROR_DEINITIALIZED)
        log_once(LOG_WARN, "the driver did not take back %zu bytes at %#llx (error %d)", size, (unsigned long long)addr,
                 (int)result);
    return !arrives_later;
}

const struct memory_source cuda_source = {.get = get, .put = put};
