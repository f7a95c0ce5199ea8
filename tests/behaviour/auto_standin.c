/* SPDX-License-Identifier: Apache-2.0 */
/*
 * auto_standin.c - stand-ins for libraries that programs use, known to cupool by their files' names.
 *
 * libuct_standin.so asks the driver about a buffer as UCX does (linked to libcuda), mca_standin.so as Open MPI's
 * components do (dlsym, -DSTANDIN_DLSYM), libmpi_standin.so as MPICH does (through a shared libcudart,
 * -DSTANDIN_RUNTIME); then a network card reads or writes the buffer, past every stream. The card is simgpu_poke and
 * simgpu_host, which auto_nic.c hands in. libcublas_standin.so copies to the program's memory without waiting, as
 * cublasGetVectorAsync does; on a real GPU the libraries move nothing else.
 */
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef int poke_fn(unsigned long long addr, const void *from, size_t n);
typedef void *host_fn(unsigned long long addr, size_t n);

int standin_put(CUdeviceptr addr, const void *from, size_t n, poke_fn *poke);
int standin_get(CUdeviceptr addr, void *to, size_t n, host_fn *host);
int standin_fetch(void *to, CUdeviceptr from, size_t n, CUstream stream);

/* 0: device memory. */
#if defined STANDIN_DLSYM
static int ask(CUdeviceptr addr)
{
    void *lib = dlopen("libcuda.so.1", RTLD_NOW);
    CUresult (*get)(void *, CUpointer_attribute, CUdeviceptr) =
        (CUresult(*)(void *, CUpointer_attribute, CUdeviceptr))(lib ? dlsym(lib, "cuPointerGetAttribute") : NULL);
    unsigned int type = 0;
    int rc = get ? (int)get(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, addr) : -1;

    return rc ? rc : type != CU_MEMORYTYPE_DEVICE;
}
#elif defined STANDIN_RUNTIME
static int ask(CUdeviceptr addr)
{
    struct cudaPointerAttributes attr;
    int rc = (int)cudaPointerGetAttributes(&attr, (const void *)(uintptr_t)addr);

    return rc ? rc : attr.type != cudaMemoryTypeDevice;
}
#else
static int ask(CUdeviceptr addr)
{
    unsigned int type = 0, managed = 0;
    int device = -1;
    CUpointer_attribute attrs[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                   CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
    void *data[] = {&type, &managed, &device};
    int rc = (int)cuPointerGetAttributes(3, attrs, data, addr);

    return rc ? rc : type != CU_MEMORYTYPE_DEVICE || device < 0;
}
#endif

int standin_put(CUdeviceptr addr, const void *from, size_t n, poke_fn *poke)
{
    int rc = ask(addr);

    return rc ? rc : poke(addr, from, n);
}

int standin_get(CUdeviceptr addr, void *to, size_t n, host_fn *host)
{
    int rc = ask(addr);
    const void *at = rc ? NULL : host(addr, n);

    if (at)
        memcpy(to, at, n);
    return rc ? rc : at == NULL;
}

int standin_fetch(void *to, CUdeviceptr from, size_t n, CUstream stream)
{
    volatile int rc = (int)cuMemcpyDtoHAsync(to, from, n, stream);

    return rc; /* through memory, so that this is no tail call: who calls is told by the return address */
}
