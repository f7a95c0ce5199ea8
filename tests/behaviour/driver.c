/* SPDX-License-Identifier: Apache-2.0 */
/*
 * driver.c - the driver's allocation calls, by every way of getting at them.
 *
 * The tests call cuMemAlloc and cuMemFree linked, through both arities of cuGetProcAddress and through dlsym, mixed
 * with each other and with the runtime's. Contexts are in contexts.c.
 */
#define BT_BEGIN() cudaFree(NULL)
#include "work.h"

#include <dlfcn.h>

typedef CUresult (*alloc_fn)(CUdeviceptr *, size_t);
typedef CUresult (*free_fn)(CUdeviceptr);
typedef CUresult (*lookup_v1_fn)(const char *, void **, int, cuuint64_t);
typedef CUresult (*lookup_v2_fn)(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *);

static void *ptr(CUdeviceptr p)
{
    return (void *)(uintptr_t)p;
}

static CUdeviceptr dptr(void *p)
{
    return (CUdeviceptr)(uintptr_t)p;
}

BT_TEST(arguments)
{
    CUdeviceptr p = 0;

    EXPECT(cuMemAlloc(&p, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT(cuMemAlloc(NULL, 16), CUDA_ERROR_INVALID_VALUE);
    EXPECT(cuMemAlloc(&p, (size_t)1 << 60), CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuMemFree(0));
    LAST(cudaSuccess);
    return 0;
}

BT_TEST(address_range)
{
    static const size_t sizes[] = {1, 1000, 4096, 70000, 3 << 20, 64 << 20};

    for (int i = 0; i < 6; i++) {
        size_t n = sizes[i], size = 0;
        CUdeviceptr p, base = 0;

        OK(cuMemAlloc(&p, n));
        for (size_t off = 0; off < n; off += n / 3 + 1) {
            OK(cuMemGetAddressRange(&base, &size, p + off));
            CHECK(base == p && size == n);
            OK(cuPointerGetAttribute(&base, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, p + off));
            OK(cuPointerGetAttributes(1, (CUpointer_attribute[]){CU_POINTER_ATTRIBUTE_RANGE_SIZE}, (void *[]){&size},
                                      p + off));
            CHECK(base == p && size == n);
        }
        OK(cuMemGetAddressRange(&base, NULL, p));
        OK(cuMemGetAddressRange(NULL, &size, p));
        CHECK(base == p && size == n);
        if (n == 1000 && dlsym(RTLD_DEFAULT, "simgpu_count")) { /* what a real one says there has not been asked */
            EXPECT(cuMemGetAddressRange(&base, &size, p + n), CUDA_ERROR_NOT_FOUND);
            CHECK(base == p && size == n); /* it has written nothing */
        }
        OK(cuMemFree(p));
    }
    return 0;
}

/* The memory of cuMemAlloc is its context's, and cannot be shared by handles of virtual memory. */
BT_TEST(attributes)
{
    static const size_t sizes[] = {1000, 3 << 20};
    CUpointer_attribute both[] = {CU_POINTER_ATTRIBUTE_CONTEXT, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES};

    for (int i = 0; i < 2; i++) {
        CUcontext current = NULL, context = NULL, again = NULL;
        unsigned long long types = 1, types_again = 1;
        CUdeviceptr p;
        int device = -1;

        OK(cuCtxGetCurrent(&current));
        OK(cuMemAlloc(&p, sizes[i]));
        OK(cuPointerGetAttribute(&context, CU_POINTER_ATTRIBUTE_CONTEXT, p + sizes[i] / 2));
        OK(cuPointerGetAttribute(&types, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, p));
        OK(cuPointerGetAttribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, p));
        OK(cuPointerGetAttributes(2, both, (void *[]){&again, &types_again}, p));
        CHECK(context == current && again == current && device == 0);
        CHECK(types == 0 && types_again == 0);
        OK(cuMemFree(p));
    }
    return 0;
}

/* Of freed memory the driver knows nothing: one question is an error, of many the answers are those for any address. */
BT_TEST(freed_address)
{
    static const size_t sizes[] = {1, 70000, 3 << 20, 64 << 20};
    static CUpointer_attribute of[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                                       CU_POINTER_ATTRIBUTE_RANGE_SIZE, CU_POINTER_ATTRIBUTE_DEVICE_POINTER};

    for (int i = 0; i < 4; i++) {
        unsigned long long live[4] = {0}, freed[4] = {77, 77, 77, 77}, one;
        void *to_live[] = {&live[0], &live[1], &live[2], &live[3]};
        void *to_freed[] = {&freed[0], &freed[1], &freed[2], &freed[3]};
        struct cudaPointerAttributes attributes;
        CUdeviceptr p, at;
        int fd;

        OK(cuMemAlloc(&p, sizes[i]));
        at = p + sizes[i] / 2;
        OK(cuPointerGetAttributes(4, of, to_live, at));
        CHECK(live[0] == CU_MEMORYTYPE_DEVICE && live[1] == p && live[2] == sizes[i] && live[3] == at);
        OK(cuMemFree(p));
        OK(cuPointerGetAttributes(4, of, to_freed, at));
        /* Drivers write zeros here or not; what they do not do is tell of the block. */
        CHECK((unsigned int)freed[0] != CU_MEMORYTYPE_DEVICE && freed[1] != p && freed[2] != sizes[i]);
        for (int k = 0; k < 4; k++)
            EXPECT(cuPointerGetAttribute(&one, of[k], at), CUDA_ERROR_INVALID_VALUE);
        one = 1;
        EXPECT(cuPointerSetAttribute(&one, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, at), CUDA_ERROR_INVALID_VALUE);
        CHECK(cuMemGetHandleForAddressRange(&fd, p, 4096, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0) != CUDA_SUCCESS);
        OK(cudaPointerGetAttributes(&attributes, ptr(at)));
        CHECK(attributes.type == cudaMemoryTypeUnregistered && !attributes.devicePointer);
    }
    LAST(cudaSuccess);
    return 0;
}

BT_TEST(mixed)
{
    for (int i = 0; i < 100; i++) {
        size_t n = i % 3 ? 4096 : 3 << 20;
        CUdeviceptr p;
        void *q;

        OK(cuMemAlloc(&p, n));
        OK(cudaMalloc(&q, n));
        CHECK(ptr(p) != q);
        OK(cudaMemset(ptr(p), 1, n));
        OK(cudaMemset(q, 2, n));
        TRY(bt_verify(ptr(p), n, 1));
        TRY(bt_verify(q, n, 2));
        OK(cudaFree(ptr(p)));
        OK(cuMemFree(dptr(q)));
    }
    LAST(cudaSuccess);
    return 0;
}

/* Allocation and free got in some way work, together and mixed with the linked ones. */
static int pair_works(alloc_fn alloc, free_fn release)
{
    CUdeviceptr p = 0, q = 0;

    OK(alloc(&p, 5000));
    OK(cuMemAlloc(&q, 5000));
    TRY(bt_fill(ptr(p), 5000, 1));
    TRY(bt_fill(ptr(q), 5000, 2));
    TRY(bt_verify(ptr(p), 5000, 1));
    OK(release(p));
    TRY(bt_verify(ptr(q), 5000, 2));
    OK(release(q));
    OK(alloc(&p, 3 << 20));
    OK(cuMemFree(p));
    OK(alloc(&p, 3 << 20));
    OK(cudaFree(ptr(p)));
    EXPECT(release(p), CUDA_ERROR_INVALID_VALUE);
    return 0;
}

static int lookup_pair(lookup_v2_fn v2, lookup_v1_fn v1, int version, cuuint64_t flags)
{
    CUdriverProcAddressQueryResult status = (CUdriverProcAddressQueryResult)77;
    void *alloc = NULL, *release = NULL;

    if (v2) {
        OK(v2("cuMemAlloc", &alloc, version, flags, &status));
        CHECK(status == CU_GET_PROC_ADDRESS_SUCCESS);
        OK(v2("cuMemFree", &release, version, flags, NULL));
    } else {
        OK(v1("cuMemAlloc", &alloc, version, flags));
        OK(v1("cuMemFree", &release, version, flags));
    }
    CHECK(alloc && release);
    return pair_works((alloc_fn)alloc, (free_fn)release);
}

static int lookup_all(lookup_v2_fn v2, lookup_v1_fn v1)
{
    for (cuuint64_t flags = 0; flags <= 2; flags++) {
        TRY(lookup_pair(v2, v1, 3020, flags));
        TRY(lookup_pair(v2, v1, 12000, flags));
        TRY(lookup_pair(v2, v1, CUDA_VERSION, flags));
    }
    return 0;
}

BT_TEST(lookup_linked)
{
    return lookup_all(cuGetProcAddress, NULL);
}

/* As cudart does it: dlsym on the driver's handle. */
BT_TEST(lookup_by_dlsym)
{
    void *lib = dlopen("libcuda.so.1", RTLD_NOW), *v1, *v2;

    CHECK(lib);
    v2 = dlsym(lib, "cuGetProcAddress_v2");
    CHECK(v2);
    TRY(lookup_all((lookup_v2_fn)v2, NULL));
    v1 = dlsym(lib, "cuGetProcAddress");
    CHECK(v1 && v1 != v2);
    return lookup_all(NULL, (lookup_v1_fn)v1);
}

/* The lookup looks itself up: the arity depends on the version asked for. */
BT_TEST(lookup_of_lookup)
{
    void *v1 = NULL, *v2 = NULL;

    OK(cuGetProcAddress("cuGetProcAddress", &v2, 12000, 0, NULL));
    OK(cuGetProcAddress("cuGetProcAddress", &v1, 11030, 0, NULL));
    CHECK(v1 && v2 && v1 != v2);
    TRY(lookup_all((lookup_v2_fn)v2, NULL));
    return lookup_all(NULL, (lookup_v1_fn)v1);
}

BT_TEST(lookup_runtime)
{
    enum cudaDriverEntryPointQueryResult status;
    void *alloc = NULL, *release = NULL;

    OK(cudaGetDriverEntryPointByVersion("cuMemAlloc", &alloc, 12000, cudaEnableDefault, &status));
    CHECK(status == cudaDriverEntryPointSuccess);
    OK(cudaGetDriverEntryPointByVersion("cuMemFree", &release, 12000, cudaEnableDefault, &status));
    return pair_works((alloc_fn)alloc, (free_fn)release);
}

BT_TEST(lookup_status)
{
    CUdriverProcAddressQueryResult status = (CUdriverProcAddressQueryResult)77;
    void *p = (void *)1;

    /* The status says it, not the result. A NULL name or pointer crashes natively. */
    OK(cuGetProcAddress("cuNoSuchFunctionAtAll", &p, CUDA_VERSION, 0, &status));
    CHECK(status == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND && p == NULL);
    p = (void *)1;
    OK(cuGetProcAddress("cuMemAllocAsync", &p, 3020, 0, &status));
    CHECK(status == CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT && p == NULL);
    OK(cuGetProcAddress("cuMemAllocAsync", &p, CUDA_VERSION, 0, &status));
    CHECK(status == CU_GET_PROC_ADDRESS_SUCCESS && p);
    EXPECT(cuGetProcAddress("cuMemAlloc", &p, 99000, 0, &status), CUDA_ERROR_INVALID_VALUE);
    EXPECT(cuGetProcAddress("cuMemAlloc", &p, CUDA_VERSION, 4, &status), CUDA_ERROR_INVALID_VALUE);
    return 0;
}

/* Symbols taken by hand, around every wrapper: a pair of their own, and frees of memory that came the usual way. */
BT_TEST(dlsym_direct)
{
    void *lib = dlopen("libcuda.so.1", RTLD_NOW);
    alloc_fn alloc;
    free_fn release;
    CUdeviceptr p, q, r;
    int rc;

    CHECK(lib);
    alloc = (alloc_fn)dlsym(lib, "cuMemAlloc_v2");
    release = (free_fn)dlsym(lib, "cuMemFree_v2");
    CHECK(alloc && release);
    OK(alloc(&p, 5000));
    TRY(bt_fill(ptr(p), 5000, 1));
    OK(release(p));
    OK(alloc(&p, 5000));
    OK(cuMemFree(p));
    OK(cuMemAlloc(&p, 5000));
    OK(cuMemAlloc(&q, 5000));
    OK(cuMemAlloc(&r, 5000));
    TRY(bt_fill(ptr(p), 5000, 1));
    TRY(bt_fill(ptr(r), 5000, 3));
    /* Preloaded this may be refused (the block is not the driver's own), but it may not take the neighbours away. */
    rc = (int)release(q);
    CHECK(rc == 0 || (bt_preloaded() && rc == CUDA_ERROR_INVALID_VALUE));
    TRY(bt_verify(ptr(p), 5000, 1));
    TRY(bt_verify(ptr(r), 5000, 3));
    if (rc)
        OK(cuMemFree(q));
    OK(cuMemFree(p));
    OK(cuMemFree(r));
    return 0;
}

/* dlsym still does all that it did. */
BT_TEST(dlsym_others)
{
    void *lib = dlopen("libcuda.so.1", RTLD_NOW);

    CHECK(lib);
    CHECK(dlsym(lib, "cuInit"));
    CHECK(dlsym(lib, "cuNoSuchFunctionAtAll") == NULL);
    CHECK(dlerror());
    CHECK(dlsym(RTLD_DEFAULT, "malloc"));
    CHECK(dlsym(RTLD_NEXT, "malloc"));
    CHECK(dlsym(RTLD_DEFAULT, "cuMemAlloc_v2"));
    CHECK(dlsym(RTLD_DEFAULT, "cuGetProcAddress_v2"));
    CHECK(dlvsym(RTLD_DEFAULT, "memcpy", "GLIBC_0.0.1") == NULL);
    return 0;
}

BT_TEST(many)
{
    static CUdeviceptr p[1000];

    for (int i = 0; i < 1000; i++)
        OK(cuMemAlloc(&p[i], (size_t)(i * 37 % 9000 + 1)));
    for (int i = 0; i < 1000; i++)
        OK(cuMemFree(p[(i * 77) % 1000]));
    return 0;
}

/* Memory goes without a wait, after a free that natively has waited for the work on it. The work is none of the host's,
 * which that free would wait for. */
static int goes_after(int (*take)(void **ret, cudaStream_t s), int (*give)(void *p), bool pinned)
{
    const char *policy = getenv("CUPOOL_FREE");
    void *p, *victim;
    cudaStream_t s;

    if (policy && (!strcmp(policy, "ordered") || !strcmp(policy, "relaxed")))
        SKIP("ordered and relaxed wait for nothing");
    TRY(bt_work_begin());
    OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    OK(pinned ? cudaMallocHost(&victim, 1000) : cudaMalloc(&victim, 1000));
    TRY(take(&p, s));
    OK(cudaDeviceSynchronize());
    TRY(bt_work(s, NULL, 50000));
    OK(cudaMemsetAsync(p, 1, 2 * BT_MIB, s));
    OK(pinned ? cudaFreeHost(victim) : cudaFree(victim));
    TRY(give(p));
    OK(cudaStreamSynchronize(s));
    OK(cudaStreamDestroy(s));
    return 0;
}

static int goes_after_free(int (*take)(void **ret, cudaStream_t s), int (*give)(void *p))
{
    return goes_after(take, give, /* pinned: */ false);
}

static int take_async(void **ret, cudaStream_t s)
{
    OK(cudaMallocAsync(ret, 2 * BT_MIB, s));
    return 0;
}

static int give_async(void *p)
{
    OK(cudaFree(p));
    return 0;
}

static int give_async_driver(void *p)
{
    OK(cuMemFree(dptr(p)));
    return 0;
}

static int take_mapped(void **ret, cudaStream_t s)
{
    const CUmemAllocationProp what = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    const CUmemAccessDesc access = {.location = what.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle handle;
    CUdeviceptr p;

    OK(cuMemCreate(&handle, 2 * BT_MIB, &what, 0));
    OK(cuMemAddressReserve(&p, 2 * BT_MIB, 0, 0, 0));
    OK(cuMemMap(p, 2 * BT_MIB, 0, handle, 0));
    OK(cuMemRelease(handle));
    OK(cuMemSetAccess(p, 2 * BT_MIB, &access, 1));
    *ret = ptr(p);
    return 0;
}

static int give_mapped(void *p)
{
    OK(cuMemUnmap(dptr(p), 2 * BT_MIB));
    OK(cuMemAddressFree(dptr(p), 2 * BT_MIB));
    return 0;
}

BT_TEST(async_after_free)
{
    TRY(goes_after_free(take_async, give_async));
    return goes_after_free(take_async, give_async_driver);
}

BT_TEST(unmap_after_free)
{
    return goes_after_free(take_mapped, give_mapped);
}

/* With CUPOOL_VMM=1 the driver unmaps it at the next call. */
static int give_mapped_part(void *p)
{
    CUdeviceptr other;

    OK(cuMemUnmap(dptr(p), 2 * BT_MIB));
    OK(cuMemAddressReserve(&other, 2 * BT_MIB, 0, 0, 0));
    OK(cuMemAddressFree(other, 2 * BT_MIB));
    OK(cuMemAddressFree(dptr(p), 2 * BT_MIB));
    return 0;
}

static int give_access_first(void *p)
{
    const CUmemAccessDesc none = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
                                  .flags = CU_MEM_ACCESS_FLAGS_PROT_NONE};

    OK(cuMemSetAccess(dptr(p), 2 * BT_MIB, &none, 1));
    OK(cudaDeviceSynchronize());
    return give_mapped(p);
}

BT_TEST(no_access_after_free)
{
    return goes_after_free(take_mapped, give_access_first);
}

BT_TEST(unmap_after_pinned_free)
{
    return goes_after(take_mapped, give_mapped, /* pinned: */ true);
}

BT_TEST(unmap_alone_after_free)
{
    return goes_after_free(take_mapped, give_mapped_part);
}
