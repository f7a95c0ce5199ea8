/* SPDX-License-Identifier: Apache-2.0 */
/*
 * real.h - the real functions behind ours. The only place that calls dlsym or dlopen.
 *
 * Nothing is loaded that the program has not loaded itself: libcuda and libcudart are looked for among what is there,
 * and looked for again as long as they are not found.
 *
 * Threads: all functions, from any thread; no locks held over calls into CUDA.
 */
#ifndef CUPOOL_SHIM_REAL_H
#define CUPOOL_SHIM_REAL_H

#include <stdbool.h>

#include "hooks.h"

/* What we call in the driver for ourselves. Members are NULL where the driver lacks them. */
struct real_driver {
    CUresult (*cuMemAlloc_v2)(CUdeviceptr *, size_t);
    CUresult (*cuMemFree_v2)(CUdeviceptr);
    CUresult (*cuMemGetInfo_v2)(size_t *, size_t *);
    CUresult (*cuCtxGetCurrent)(CUcontext *);
    CUresult (*cuCtxGetDevice)(CUdevice *);
    CUresult (*cuCtxPushCurrent_v2)(CUcontext);
    CUresult (*cuCtxPopCurrent_v2)(CUcontext *);
    CUresult (*cuCtxSynchronize)(void);
    CUresult (*cuCtxRecordEvent)(CUcontext, CUevent); /* 12.5 and later */
    CUresult (*cuCtxWaitEvent)(CUcontext, CUevent);
    CUresult (*cuEventCreate)(CUevent *, unsigned int);
    CUresult (*cuDevicePrimaryCtxRetain)(CUcontext *, CUdevice);
    CUresult (*cuDevicePrimaryCtxRelease_v2)(CUdevice);
    CUresult (*cuDevicePrimaryCtxGetState)(CUdevice, unsigned int *, int *);
    CUresult (*cuStreamGetCtx)(CUstream, CUcontext *);
    CUresult (*cuStreamIsCapturing)(CUstream, CUstreamCaptureStatus *);
    CUresult (*cuThreadExchangeStreamCaptureMode)(CUstreamCaptureMode *);
    CUresult (*cuDriverGetVersion)(int *);
    CUresult (*cuEventQuery)(CUevent);
    CUresult (*cuPointerGetAttribute)(void *, CUpointer_attribute, CUdeviceptr);
    CUresult (*cuStreamCreate)(CUstream *, unsigned int);
    CUresult (*cuStreamQuery)(CUstream);
    CUresult (*cuStreamSynchronize)(CUstream);
    CUresult (*cuMemsetD8Async)(CUdeviceptr, unsigned char, size_t, CUstream);
    CUresult (*cuMemFreeAsync)(CUdeviceptr, CUstream);
    CUresult (*cuCtxGetId)(CUcontext, unsigned long long *);
    CUresult (*cuDeviceGetAttribute)(int *, CUdevice_attribute, CUdevice);
    CUresult (*cuDeviceGetCount)(int *);
    CUresult (*cuDeviceGetName)(char *, int, CUdevice);
    CUresult (*cuDeviceGetUuid_v2)(CUuuid *, CUdevice);
    CUresult (*cuMemcpyDtoHAsync_v2)(void *, CUdeviceptr, size_t, CUstream);
    CUresult (*cuStreamDestroy_v2)(CUstream);
    CUresult (*cuEventRecord)(CUevent, CUstream);
};

/* The driver, or NULL as long as the program has not loaded libcuda.so.1. */
const struct real_driver *real_driver_get(void);

/*
 * The next definition of one of our hooks: what the program would have called. real_next(SYMBOL) has the right type and
 * is never NULL: where there is none, a function that returns "not found" errors stands in.
 */
#define real_next(symbol) ((__typeof__(&(symbol)))real_find(REAL_##symbol))

enum real_symbol {
#define RUNTIME(symbol, parameters) REAL_##symbol,
#define DRIVER(symbol, parameters)  REAL_##symbol,
#include "hooks.def"
    REAL_COUNT
};

void *real_find(enum real_symbol symbol);

/*
 * The same for a function of the runtime, as the code at this address would have called it: with several libcudart in
 * the process each object has its own, with a last error and a state of its own.
 */
#define real_runtime(symbol, caller) ((__typeof__(&(symbol)))real_find_for(REAL_##symbol, caller))
void *real_find_for(enum real_symbol symbol, const void *caller);

/* The hooks of NCCL's functions. */
enum real_nccl_symbol {
#define NCCL(symbol, parameters) REAL_NCCL_##symbol,
#include "hooks.def"
    REAL_NCCL_COUNT
};

/* A copy of NCCL: what we call in it for ourselves, and what our hooks stand for. NULL where it lacks them. */
struct real_nccl {
    ncclResult_t (*ncclGetVersion)(int *);
    ncclResult_t (*ncclMemAlloc)(void **, size_t);
    ncclResult_t (*ncclMemFree)(void *);
    ncclResult_t (*ncclCommRegister)(ncclComm_t, void *, size_t, void **);
    ncclResult_t (*ncclCommDeregister)(ncclComm_t, void *);
    ncclResult_t (*ncclCommGetAsyncError)(ncclComm_t, ncclResult_t *);
    ncclResult_t (*ncclCommCuDevice)(ncclComm_t, int *);
    ncclResult_t (*ncclCommUserRank)(ncclComm_t, int *);
    ncclResult_t (*ncclCommCount)(ncclComm_t, int *);
    void *next[REAL_NCCL_COUNT];
};

/*
 * The NCCL that the code at this address would have called: the next one in the order of the loader, or, where that
 * knows none (a plugin has brought it for itself), the one of the object that holds the address. NULL as an address:
 * whichever is there. Returns NULL if none is loaded. Stays valid.
 */
const struct real_nccl *real_nccl_get(const void *caller);

/* The same for one function; as real_next, never NULL. */
#define real_nccl_next(symbol, caller) ((__typeof__(&(symbol)))real_nccl_find(REAL_NCCL_##symbol, caller))
void *real_nccl_find(enum real_nccl_symbol symbol, const void *caller);

/* True if an object is loaded whose file name begins with this. */
bool real_is_loaded(const char *name);

/* What cuGetProcAddress should answer instead of a function of the driver: our hook for it, or the function itself. */
void *real_route(void *function);

#endif
