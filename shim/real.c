/* SPDX-License-Identifier: Apache-2.0 */
/* real.c - see real.h. */
#include "real.h"

#include <dlfcn.h>
#include <link.h>
#include <stdatomic.h>
#include <string.h>

#include "dlsym.h"
#include "log.h"

static const struct {
    const char *name;
    void *hook;
    bool driver;
} hooks[REAL_COUNT] = {
#define RUNTIME(symbol, parameters) {#symbol, (void *)(symbol), false},
#define DRIVER(symbol, parameters)  {#symbol, (void *)(symbol), true},
#include "hooks.def"
};

static struct {
    atomic_bool filling; /* somebody fills in driver and in_driver; for good, if that fails or is cut short by a fork */
    struct real_driver driver;
    void *in_driver[REAL_COUNT]; /* each driver hook's own function in libcuda */
    _Atomic(const struct real_driver *) ready;
    _Atomic(void *) next[REAL_COUNT];
} real;

/* Names of the members of struct real_driver, in order. */
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
                                           "cuDriverGetVersion"};
_Static_assert(sizeof(driver_names) / sizeof(driver_names[0]) == sizeof(struct real_driver) / sizeof(void *),
               "one name for each member");

/* A handle to a library that is loaded already, kept loaded from now on; NULL if it is not. */
static void *loaded(const char *name)
{
    return dlopen(name, RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD | RTLD_NODELETE);
}

static void driver_fill(void *handle)
{
    void **member = (void **)&real.driver;

    for (unsigned int i = 0; i < sizeof(driver_names) / sizeof(driver_names[0]); i++)
        member[i] = dlsym_real(handle, driver_names[i]);
    for (unsigned int i = 0; i < REAL_COUNT; i++)
        real.in_driver[i] = hooks[i].driver ? dlsym_real(handle, hooks[i].name) : NULL;
}

const struct real_driver *real_driver_get(void)
{
    const struct real_driver *driver = atomic_load_explicit(&real.ready, memory_order_acquire);
    void *handle;

    if (driver)
        return driver;
    handle = loaded("libcuda.so.1");
    if (!handle)
        return NULL;
    /* Whoever comes second passes on meanwhile: a lock could be held for ever in a forked child. */
    if (atomic_exchange(&real.filling, true))
        return atomic_load_explicit(&real.ready, memory_order_acquire);
    driver_fill(handle);
    /* A library of that name without these is no driver (a stub, say). */
    if (real.driver.cuMemAlloc_v2 && real.driver.cuMemFree_v2 && real.driver.cuCtxGetCurrent &&
        real.driver.cuCtxGetDevice && real.driver.cuEventCreate && real.driver.cuCtxSynchronize &&
        real.driver.cuCtxPushCurrent_v2 && real.driver.cuCtxPopCurrent_v2 && real.driver.cuMemGetInfo_v2)
        atomic_store_explicit(&real.ready, &real.driver, memory_order_release);
    return atomic_load_explicit(&real.ready, memory_order_acquire);
}

static CUresult missing_driver(void)
{
    return CUDA_ERROR_NOT_FOUND;
}

static cudaError_t missing_runtime(void)
{
    return cudaErrorSharedObjectSymbolNotFound;
}

/* Look for a libcudart among the loaded objects: RTLD_NEXT does not see one that came in with RTLD_LOCAL. */
static int find_cudart(struct dl_phdr_info *info, size_t size, void *arg)
{
    const char *name = strrchr(info->dlpi_name ? info->dlpi_name : "", '/');

    (void)size;
    name = name ? name + 1 : info->dlpi_name;
    if (!name || strncmp(name, "libcudart.so", 12) != 0)
        return 0;
    *(const char **)arg = info->dlpi_name;
    return 1;
}

/* Keep the object that holds a function loaded. */
static void keep(const void *function)
{
    Dl_info info;

    if (dladdr(function, &info) && info.dli_fname)
        loaded(info.dli_fname);
}

/* The next definition of a hook, or NULL. */
static void *look_for(enum real_symbol symbol)
{
    void *function = dlsym_real(RTLD_NEXT, hooks[symbol].name), *handle = NULL;
    const char *path = NULL;

    if (!function && hooks[symbol].driver) {
        handle = loaded("libcuda.so.1");
    } else if (!function) {
        dl_iterate_phdr(find_cudart, &path);
        handle = path ? loaded(path) : NULL;
    }
    if (handle)
        function = dlsym_real(handle, hooks[symbol].name);
    if (!function || function == hooks[symbol].hook)
        return NULL;
    keep(function);
    atomic_store_explicit(&real.next[symbol], function, memory_order_release);
    return function;
}

void real_fill(void)
{
    for (unsigned int i = 0; i < REAL_COUNT; i++)
        if (!atomic_load_explicit(&real.next[i], memory_order_relaxed))
            look_for(i);
}

void *real_find(enum real_symbol symbol)
{
    void *function = atomic_load_explicit(&real.next[symbol], memory_order_acquire);

    if (!function)
        function = look_for(symbol);
    if (function)
        return function;
    /* Not remembered: the library may still come. */
    log_write(LOG_ERROR, "%s was called, but nothing that is loaded defines it", hooks[symbol].name);
    return hooks[symbol].driver ? (void *)missing_driver : (void *)missing_runtime;
}

void *real_route(void *function)
{
    if (!function || !real_driver_get())
        return function;
    for (unsigned int i = 0; i < REAL_COUNT; i++)
        if (real.in_driver[i] == function)
            return hooks[i].hook;
    return function;
}
