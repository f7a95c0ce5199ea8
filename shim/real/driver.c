/* SPDX-License-Identifier: Apache-2.0 */
/*
 * driver.c - the driver's functions that the library itself calls; see real.h.
 *
 * Locking: real.lock guards the search for them; the rest is atomic.
 */
#include <stdatomic.h>

#include "lock.h"
#include "real/dlsym_next.h"
#include "real/loaded.h"
#include "real/real_internal.h"

/* The longest time, in nanoseconds, that a thread waits for another one that searches the driver's functions. */
#define FILL_WAIT_NS 1000000000u

static struct {
    struct lock lock;  /* guards writes to functions and hooked; a forked child may find it held for ever */
    atomic_bool tried; /* the search has ended, or a thread has waited for it too long */
    struct real_driver functions;
    void *hooked[REAL_COUNT]; /* the driver's own function for each hook of the driver */
    _Atomic(const struct real_driver *) ready;
} real;

/* The names of the members of struct real_driver, in order. */
static const char *const driver_names[] = {"cuMemAlloc_v2",
                                           "cuMemFree_v2",
                                           "cuMemGetInfo_v2",
                                           "cuCtxGetCurrent",
                                           "cuCtxGetDevice",
                                           "cuCtxPushCurrent_v2",
                                           "cuCtxPopCurrent_v2",
                                           "cuCtxSynchronize",
                                           "cuCtxRecordEvent",
                                           "cuCtxWaitEvent",
                                           "cuEventCreate",
                                           "cuDevicePrimaryCtxRetain",
                                           "cuDevicePrimaryCtxRelease_v2",
                                           "cuDevicePrimaryCtxGetState",
                                           "cuStreamGetCtx",
                                           "cuStreamIsCapturing",
                                           "cuThreadExchangeStreamCaptureMode",
                                           "cuDriverGetVersion",
                                           "cuEventQuery",
                                           "cuPointerGetAttribute",
                                           "cuStreamCreate",
                                           "cuStreamQuery",
                                           "cuStreamSynchronize",
                                           "cuMemsetD8Async",
                                           "cuMemFreeAsync",
                                           "cuCtxGetId",
                                           "cuDeviceGetAttribute",
                                           "cuDeviceGetCount",
                                           "cuDeviceGetName",
                                           "cuDeviceGetUuid_v2",
                                           "cuMemcpyDtoHAsync_v2",
                                           "cuStreamDestroy_v2",
                                           "cuEventRecord"};
_Static_assert(sizeof(driver_names) / sizeof(driver_names[0]) == sizeof(struct real_driver) / sizeof(void *),
               "one name for each member");

static void driver_fill(void *handle)
{
    void **member = (void **)&real.functions;

    for (unsigned int i = 0; i < sizeof(driver_names) / sizeof(driver_names[0]); i++)
        member[i] = dlsym_real(handle, driver_names[i]);
    for (unsigned int i = 0; i < REAL_COUNT; i++)
        real.hooked[i] = real_hooks[i].driver ? dlsym_real(handle, real_hooks[i].name) : NULL;
}

const struct real_driver *real_driver_get(void)
{
    const struct real_driver *driver = atomic_load_explicit(&real.ready, memory_order_acquire);
    void *handle;

    if (driver)
        return driver;
    handle = loaded_handle("libcuda.so.1");
    if (!handle)
        return NULL;
    if (atomic_load(&real.tried))
        return atomic_load_explicit(&real.ready, memory_order_acquire);
    /* The runtime asks once for the functions that its calls will go to, so the answer must wait for this search. */
    if (!lock_take_within(&real.lock, FILL_WAIT_NS)) {
        atomic_store(&real.tried, true);
        return NULL;
    }
    if (!atomic_load(&real.tried)) {
        driver_fill(handle);
        next_fill();
    }
    /* A library of this name without these functions is no driver (but, for example, a stub). */
    if (real.functions.cuMemAlloc_v2 && real.functions.cuMemFree_v2 && real.functions.cuCtxGetCurrent &&
        real.functions.cuCtxGetDevice && real.functions.cuEventCreate && real.functions.cuCtxSynchronize &&
        real.functions.cuCtxPushCurrent_v2 && real.functions.cuCtxPopCurrent_v2 && real.functions.cuMemGetInfo_v2)
        atomic_store_explicit(&real.ready, &real.functions, memory_order_release);
    atomic_store(&real.tried, true);
    lock_give(&real.lock);
    return atomic_load_explicit(&real.ready, memory_order_acquire);
}

enum real_symbol real_symbol_of(const void *function)
{
    unsigned int i = 0;

    if (!function || !real_driver_get())
        return REAL_COUNT;
    while (i < REAL_COUNT && real.hooked[i] != function)
        i++;
    return i;
}
