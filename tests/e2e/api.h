/* SPDX-License-Identifier: Apache-2.0 */
/* api.h - one small interface over the ways in which programs reach CUDA's allocator. Which one is compiled in says a
 * macro: API_RUNTIME, API_DRIVER, API_PROC (cuGetProcAddress found with dlsym) or API_DLSYM (cudaMalloc found with
 * dlsym, as Python's ctypes does). Every function returns CUDA's error code, whose numbers agree in both APIs. */
#ifndef E2E_API_H
#define E2E_API_H

#include "../program.h"

#define API_NOT_FOUND 500

#if defined(API_RUNTIME)
#include <cuda_runtime_api.h>

static int api_init(void)
{
    return 0; /* the runtime starts by itself: when it does must not matter */
}

static int api_alloc(void **p, size_t n)
{
    return cudaMalloc(p, n);
}

static int api_free(void *p)
{
    return cudaFree(p);
}

static int api_fill(void *p, int byte, size_t n)
{
    return cudaMemset(p, byte, n);
}

static int api_read(void *host, void *p, size_t n)
{
    return cudaMemcpy(host, p, n, cudaMemcpyDeviceToHost);
}

static int api_capture(void)
{
    cudaStream_t stream;
    cudaGraph_t graph = NULL;
    int rc = cudaStreamCreate(&stream);

    if (!rc)
        rc = cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed);
    if (!rc)
        rc = cudaStreamEndCapture(stream, &graph);
    if (graph)
        cudaGraphDestroy(graph);
    return rc ? rc : (int)cudaStreamDestroy(stream);
}

static int api_reset(void)
{
    return cudaDeviceReset();
}

#elif defined(API_DRIVER)
#include <cuda.h>

static int api_init(void)
{
    CUcontext context;
    int rc = cuInit(0);

    if (!rc)
        rc = cuDevicePrimaryCtxRetain(&context, 0);
    return rc ? rc : (int)cuCtxSetCurrent(context);
}

static int api_alloc(void **p, size_t n)
{
    CUdeviceptr addr = 0;
    int rc = cuMemAlloc(&addr, n);

    *p = (void *)(uintptr_t)addr;
    return rc;
}

static int api_free(void *p)
{
    return cuMemFree((uintptr_t)p);
}

static int api_fill(void *p, int byte, size_t n)
{
    return cuMemsetD8((uintptr_t)p, (unsigned char)byte, n);
}

static int api_read(void *host, void *p, size_t n)
{
    return cuMemcpyDtoH(host, (uintptr_t)p, n);
}

static int api_capture(void)
{
    CUstream stream;
    CUgraph graph = NULL;
    int rc = cuStreamCreate(&stream, CU_STREAM_DEFAULT);

    if (!rc)
        rc = cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED);
    if (!rc)
        rc = cuStreamEndCapture(stream, &graph);
    if (graph)
        cuGraphDestroy(graph);
    return rc ? rc : (int)cuStreamDestroy(stream);
}

static int api_reset(void)
{
    return cuDevicePrimaryCtxReset(0);
}

#else

#include <cuda.h>
#undef cuGetProcAddress

/* Found at run time. The names without a version here, as cuGetProcAddress knows them. */
static struct {
    CUresult (*cuInit)(unsigned int);
    CUresult (*cuDevicePrimaryCtxRetain)(CUcontext *, CUdevice);
    CUresult (*cuCtxSetCurrent)(CUcontext);
    CUresult (*cuMemAlloc)(CUdeviceptr *, size_t);
    CUresult (*cuMemFree)(CUdeviceptr);
    CUresult (*cuMemsetD8)(CUdeviceptr, unsigned char, size_t);
    CUresult (*cuMemcpyDtoH)(void *, CUdeviceptr, size_t);
    int (*cudaMalloc)(void **, size_t);
    int (*cudaFree)(void *);
    int (*cudaMemset)(void *, int, size_t);
    int (*cudaMemcpy)(void *, const void *, size_t, int);
} found;

static int api_capture(void)
{
    return API_NOT_FOUND;
}

static int api_reset(void)
{
    return API_NOT_FOUND;
}

#if defined(API_PROC)

typedef CUresult get_1(const char *, void **, int, cuuint64_t);
typedef CUresult get_2(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *);

static struct {
    get_1 *one;
    get_2 *two;
    cuuint64_t flags;
} resolver;

static int lookup(const char *name, int version, cuuint64_t flags, void **ret)
{
    CUdriverProcAddressQueryResult status;

    *ret = NULL;
    return resolver.two ? (int)resolver.two(name, ret, version, flags, &status)
                        : (int)resolver.one(name, ret, version, flags);
}

/* E2E_PROC: "1" or "2", the version of cuGetProcAddress; "1self", "2self": the one that it answers when asked for
 * itself, as cudart does. E2E_FLAGS=2: functions for per-thread default streams. */
static int resolver_find(void)
{
    const char *how = getenv("E2E_PROC"), *flags = getenv("E2E_FLAGS");
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL), *self;
    int rc;

    resolver.flags = flags ? strtoull(flags, NULL, 0) : 0;
    if (!driver || !how)
        return API_NOT_FOUND;
    if (how[0] == '1')
        resolver.one = (get_1 *)dlsym(driver, "cuGetProcAddress");
    else
        resolver.two = (get_2 *)dlsym(driver, "cuGetProcAddress_v2");
    if (!resolver.one && !resolver.two)
        return API_NOT_FOUND;
    if (how[1]) {
        rc = lookup("cuGetProcAddress", how[0] == '1' ? 11030 : 12000, 0, &self);
        if (rc)
            return rc;
        if (how[0] == '1')
            resolver.one = (get_1 *)self;
        else
            resolver.two = (get_2 *)self;
    }
    return 0;
}

static int api_init(void)
{
    CUcontext context;
    int rc = resolver_find();

#define GET(name)                                                                                                      \
    if (!rc)                                                                                                           \
        rc = lookup(#name, 12000, resolver.flags, (void **)&found.name);
    GET(cuInit)
    GET(cuDevicePrimaryCtxRetain)
    GET(cuCtxSetCurrent)
    GET(cuMemAlloc)
    GET(cuMemFree)
    GET(cuMemsetD8)
    GET(cuMemcpyDtoH)
#undef GET
    if (!rc)
        rc = found.cuInit(0);
    if (!rc)
        rc = found.cuDevicePrimaryCtxRetain(&context, 0);
    return rc ? rc : (int)found.cuCtxSetCurrent(context);
}

static int api_alloc(void **p, size_t n)
{
    CUdeviceptr addr = 0;
    int rc = found.cuMemAlloc(&addr, n);

    *p = (void *)(uintptr_t)addr;
    return rc;
}

static int api_free(void *p)
{
    return found.cuMemFree((uintptr_t)p);
}

static int api_fill(void *p, int byte, size_t n)
{
    return found.cuMemsetD8((uintptr_t)p, (unsigned char)byte, n);
}

static int api_read(void *host, void *p, size_t n)
{
    return found.cuMemcpyDtoH(host, (uintptr_t)p, n);
}

/* Which object and symbol a name resolves to. */
static int api_lookup(const char *name, int version, cuuint64_t flags)
{
    Dl_info info;
    void *function;
    int rc = resolver_find();

    if (!rc)
        rc = lookup(name, version, flags, &function);
    /* Where there is nothing, older drivers answer with an error and newer ones with NULL. */
    if (rc || !function || !dladdr(function, &info) || !info.dli_sname)
        printf("%s %d: nothing\n", name, version);
    else
        printf("%s %d: %s %s\n", name, version, strrchr(info.dli_fname, '/') + 1, info.dli_sname);
    return 0;
}

#elif defined(API_DLSYM)

static int api_init(void)
{
    void *runtime = dlopen("libcudart.so.13", RTLD_NOW | RTLD_LOCAL);

    if (!runtime)
        return API_NOT_FOUND;
    *(void **)&found.cudaMalloc = dlsym(runtime, "cudaMalloc");
    *(void **)&found.cudaFree = dlsym(runtime, "cudaFree");
    *(void **)&found.cudaMemset = dlsym(runtime, "cudaMemset");
    *(void **)&found.cudaMemcpy = dlsym(runtime, "cudaMemcpy");
    return found.cudaMalloc && found.cudaFree && found.cudaMemset && found.cudaMemcpy ? 0 : API_NOT_FOUND;
}

static int api_alloc(void **p, size_t n)
{
    return found.cudaMalloc(p, n);
}

static int api_free(void *p)
{
    return found.cudaFree(p);
}

static int api_fill(void *p, int byte, size_t n)
{
    return found.cudaMemset(p, byte, n);
}

static int api_read(void *host, void *p, size_t n)
{
    return found.cudaMemcpy(host, p, n, 2 /* cudaMemcpyDeviceToHost */);
}

#endif
#endif
#endif
