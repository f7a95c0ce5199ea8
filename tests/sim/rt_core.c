/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rt_core.c - the simulated cudart's way to the driver, its lazy contexts, its last error.
 *
 * See rt.h. cudaGetDriverEntryPoint is here because it uses this resolver; the other runtime functions are elsewhere.
 *
 * Locking: a mutex around the table of primary contexts; the fast path reads one atomic.
 */
#include "rt.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>

#define DEVICES_MAX 64

struct rt_driver rt_drv;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static CUresult init_result;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static CUcontext primaries[DEVICES_MAX];
static bool live[DEVICES_MAX];  /* retained, and not reset since */
static _Atomic unsigned resets; /* a thread that saw its context live need not look again while this stands */
static __thread cudaError_t last_error;
static __thread int device;
static __thread CUcontext seen;
static __thread unsigned seen_resets;

static void *find(const char *base, int version, cuuint64_t flags)
{
    void *fn = NULL;

    return rt_drv.get_proc(base, &fn, version, flags, NULL) == CUDA_SUCCESS ? fn : NULL;
}

static void init(void)
{
    void *lib = dlopen("libcuda.so.1", RTLD_NOW);
    void *fn = lib ? dlsym(lib, "cuGetProcAddress_v2") : NULL;

    init_result = (CUresult)cudaErrorInsufficientDriver;
    if (!fn)
        return;
    rt_drv.get_proc = (__typeof__(rt_drv.get_proc))fn;
    /* The real one asks for the resolver itself, too, and goes on with what it gets. */
    find("cuGetProcAddress", 11030, 0);
    fn = find("cuGetProcAddress", 12000, 0);
    if (fn)
        rt_drv.get_proc = (__typeof__(rt_drv.get_proc))fn;
#define F(base, sym, ver) rt_drv.base = (__typeof__(rt_drv.base))find(#base, ver, 0);
#define P(base, sym, ver)                                                                                              \
    rt_drv.base[0] = (__typeof__(rt_drv.base[0]))find(#base, ver, 0);                                                  \
    rt_drv.base[1] = (__typeof__(rt_drv.base[0]))find(#base, (ver) < 7000 ? 7000 : (ver),                              \
                                                      CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM);
    RT_DRIVER(F, P)
#undef F
#undef P
    init_result = rt_drv.cuInit ? rt_drv.cuInit(0) : init_result;
}

CUresult rt_driver_init(void)
{
    pthread_once(&once, init);
    return init_result;
}

/* A device's primary context, retained once per process, and anew after a reset. */
CUresult rt_primary(int dev, CUcontext *ret)
{
    CUresult r = CUDA_SUCCESS;

    if (dev < 0 || dev >= DEVICES_MAX)
        return CUDA_ERROR_INVALID_DEVICE;
    pthread_mutex_lock(&lock);
    if (!live[dev]) {
        r = rt_drv.cuDevicePrimaryCtxRetain(&primaries[dev], dev);
        live[dev] = r == CUDA_SUCCESS;
    }
    *ret = primaries[dev];
    pthread_mutex_unlock(&lock);
    return r;
}

/* The runtime meets a context that is current. If it is a primary context, the runtime has a reference of its own from
 * now on, and another context if this one was reset. */
static CUresult adopt(CUcontext *ctx)
{
    CUcontext primary = NULL;
    unsigned flags;
    int active = 0;
    CUdevice dev = -1;

    pthread_mutex_lock(&lock);
    for (int i = 0; i < DEVICES_MAX; i++) {
        if (primaries[i] == *ctx && !live[i])
            dev = i;
    }
    pthread_mutex_unlock(&lock);
    if (dev >= 0)
        return rt_primary(dev, ctx);
    if (rt_drv.cuCtxGetDevice(&dev) != CUDA_SUCCESS || dev >= DEVICES_MAX)
        return CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    if (!live[dev] && rt_drv.cuDevicePrimaryCtxGetState(dev, &flags, &active) == CUDA_SUCCESS && active &&
        rt_drv.cuDevicePrimaryCtxRetain(&primary, dev) == CUDA_SUCCESS) {
        if (primary == *ctx) {
            primaries[dev] = primary;
            live[dev] = true;
        } else {
            rt_drv.cuDevicePrimaryCtxRelease(dev);
        }
    }
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

CUresult rt_enter(void)
{
    CUresult r = rt_driver_init();
    CUcontext ctx = NULL;

    if (r == CUDA_SUCCESS)
        r = rt_drv.cuCtxGetCurrent(&ctx);
    if (r != CUDA_SUCCESS)
        return r;
    unsigned now = atomic_load(&resets);
    if (ctx && ctx == seen && seen_resets == now)
        return CUDA_SUCCESS;
    if (!ctx) {
        r = rt_primary(device, &ctx);
        if (r == CUDA_SUCCESS)
            r = rt_drv.cuCtxSetCurrent(ctx);
    } else {
        r = adopt(&ctx);
    }
    if (r == CUDA_SUCCESS) {
        seen = ctx;
        seen_resets = now;
    }
    return r;
}

CUresult rt_enter_for(cudaStream_t stream)
{
    return stream && stream != cudaStreamLegacy && stream != cudaStreamPerThread ? rt_driver_init() : rt_enter();
}

CUresult rt_enter_to_free(cudaStream_t stream)
{
    CUresult r = rt_driver_init();
    CUcontext ctx = NULL;

    if (r == CUDA_SUCCESS)
        r = rt_drv.cuCtxGetCurrent(&ctx);
    return r != CUDA_SUCCESS || ctx ? r : rt_enter_for(stream);
}

/* The primary context that is current was reset, or its last reference released, without the runtime: let there be
 * another one. False: it is no primary context of the runtime's, or there is none to be had. */
bool rt_renew(void)
{
    CUcontext ctx = NULL;
    unsigned flags;
    bool found = false;

    if (rt_drv.cuCtxGetCurrent(&ctx) != CUDA_SUCCESS || !ctx)
        return false;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < DEVICES_MAX; i++) {
        int active = 1;
        if (primaries[i] != ctx)
            continue;
        found = true;
        if (rt_drv.cuDevicePrimaryCtxGetState(i, &flags, &active) == CUDA_SUCCESS && !active)
            live[i] = false;
    }
    atomic_fetch_add(&resets, 1);
    pthread_mutex_unlock(&lock);
    return found && rt_enter() == CUDA_SUCCESS;
}

/* Codes of driver and runtime are the same numbers. "Not ready" is an answer, not an error. */
cudaError_t rt_done(CUresult r)
{
    if (r != CUDA_SUCCESS && r != CUDA_ERROR_NOT_READY)
        last_error = (cudaError_t)r;
    return (cudaError_t)r;
}

cudaError_t rt_last(bool clear)
{
    cudaError_t e = last_error;

    if (clear)
        last_error = cudaSuccess;
    return e;
}

int rt_device(void)
{
    CUcontext ctx = NULL;
    CUdevice dev;

    if (rt_drv.cuCtxGetCurrent(&ctx) == CUDA_SUCCESS && ctx && rt_drv.cuCtxGetDevice(&dev) == CUDA_SUCCESS)
        return dev;
    return device;
}

CUresult rt_device_set(int dev)
{
    CUcontext ctx;
    int n = 0;
    CUresult r = rt_drv.cuDeviceGetCount(&n);

    if (r == CUDA_SUCCESS && (dev < 0 || dev >= n))
        r = CUDA_ERROR_INVALID_DEVICE;
    if (r == CUDA_SUCCESS)
        r = rt_primary(dev, &ctx);
    if (r == CUDA_SUCCESS)
        r = rt_drv.cuCtxSetCurrent(ctx);
    if (r == CUDA_SUCCESS)
        device = dev;
    return r;
}

CUresult rt_device_reset(void)
{
    int dev = rt_device();

    pthread_mutex_lock(&lock);
    CUresult r = dev < DEVICES_MAX && live[dev] ? rt_drv.cuDevicePrimaryCtxReset(dev) : CUDA_SUCCESS;
    if (dev < DEVICES_MAX)
        live[dev] = false;
    atomic_fetch_add(&resets, 1);
    pthread_mutex_unlock(&lock);
    return r;
}

static CUresult entry_point(const char *symbol, void **fn, unsigned version, unsigned long long flags,
                            enum cudaDriverEntryPointQueryResult *status)
{
    CUdriverProcAddressQueryResult found = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    int have = 0;

    if (!symbol || !fn)
        return CUDA_ERROR_INVALID_VALUE;
    rt_drv.cuDriverGetVersion(&have);
    CUresult r = rt_drv.get_proc(symbol, fn, (int)version > have ? have : (int)version, flags, &found);
    if (status)
        *status = (enum cudaDriverEntryPointQueryResult)found;
    return r;
}

RT_FN(cudaGetDriverEntryPoint,
      (const char *symbol, void **fn, unsigned long long flags, enum cudaDriverEntryPointQueryResult *status),
      entry_point(symbol, fn, CUDART_VERSION, flags, status))
RT_FN(cudaGetDriverEntryPoint_ptsz,
      (const char *symbol, void **fn, unsigned long long flags, enum cudaDriverEntryPointQueryResult *status),
      entry_point(symbol, fn, CUDART_VERSION, flags ? flags : CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, status))
RT_FN(cudaGetDriverEntryPointByVersion,
      (const char *symbol, void **fn, unsigned int version, unsigned long long flags,
       enum cudaDriverEntryPointQueryResult *status),
      entry_point(symbol, fn, version, flags, status))
RT_FN(cudaGetDriverEntryPointByVersion_ptsz,
      (const char *symbol, void **fn, unsigned int version, unsigned long long flags,
       enum cudaDriverEntryPointQueryResult *status),
      entry_point(symbol, fn, version, flags ? flags : CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, status))
