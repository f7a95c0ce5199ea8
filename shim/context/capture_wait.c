/* SPDX-License-Identifier: Apache-2.0 */
/*
 * capture_wait.c - waits for the device beside a capture. See capture_wait.h.
 *
 * cuCtxSynchronize would invalidate the capture. A cuMemFree by a thread in relaxed mode does not, and it waits for the
 * device as well. So does cuMemFreeHost, which takes longer, but needs nothing of a device that is full.
 *
 * Locking: none; context->kept_byte changes by atomic operations. device.c gives the byte back.
 */
#include "context/capture_wait.h"

#include "context/enter.h"
#include "context/free_gate.h"
#include "context/pins.h"

/*
 * The driver cuts small memory from a piece of 2 MiB, which it makes for the first part and gives up with the last one.
 * To make one for each wait takes 30 times as long as the wait itself (2.6 and 87 us, H200), under a lock of the
 * driver's: two threads that free so kept a capturing thread from it for 0.1 s on average, and for a second. So one
 * part stays.
 */
static CUresult alloc_byte(struct context *context, CUdeviceptr *ret_byte)
{
    CUdeviceptr none = 0;
    CUresult result = context->driver->cuMemAlloc_v2(ret_byte, 1);

    if (result || atomic_load(&context->kept_byte) ||
        !atomic_compare_exchange_strong(&context->kept_byte, &none, *ret_byte))
        return result;
    return context->driver->cuMemAlloc_v2(ret_byte, 1);
}

/* Wait for the device by a free of the driver's; `pinned`: of host memory. A byte whose free fails is freed once more,
 * so that it is not leaked. */
static CUresult wait_by_free(struct context *context, bool pinned)
{
    const struct real_driver *driver = context->driver;
    void *host = NULL;
    CUdeviceptr byte = 0;
    bool closed;
    CUresult result = pinned ? driver->cuMemAllocHost_v2(&host, 1) : alloc_byte(context, &byte);

    if (result)
        return result;
    closed = free_gate_close(context); /* the capture may end first, and then threads ask: see driver_free.h */
    pin_sleep(context);
    result = pinned ? driver->cuMemFreeHost(host) : driver->cuMemFree_v2(byte);
    pin_wake();
    if (closed)
        free_gate_open(context);
    if (result)
        (void)(pinned ? driver->cuMemFreeHost(host) : driver->cuMemFree_v2(byte));
    return result;
}

CUresult capture_wait(struct context *context)
{
    struct visit visit;
    CUresult result = context_enter(context, &visit);

    if (!result)
        result = wait_by_free(context, /* pinned: */ false);
    if (result == CUDA_ERROR_OUT_OF_MEMORY && context->driver->cuMemAllocHost_v2 && context->driver->cuMemFreeHost)
        result = wait_by_free(context, /* pinned: */ true);
    if (!visit.relaxed) /* in another mode the call may have invalidated the capture */
        result = result ? result : CUDA_ERROR_NOT_SUPPORTED;
    context_leave(context, &visit);
    return result;
}
