/* SPDX-License-Identifier: Apache-2.0 */
/*
 * selftest.c - do the stand-ins keep those contracts of README.md that neither the probe nor tests/behaviour shows?
 *
 * meson builds the program with the shared and with the static cudart. It prints every failure, and exits with 1 if
 * there was one. It does not test the pool.
 *
 * Locking: none.
 */
#include "selftest.h"

int failures, checks;
struct driver drv;

void gate_hold(void *arg)
{
    struct gate *g = arg;

    while (!__atomic_load_n(&g->open, __ATOMIC_ACQUIRE))
        nap_ms(1);
}

void gate_open(struct gate *g)
{
    __atomic_store_n(&g->open, 1, __ATOMIC_RELEASE);
}

void nap_ms(int ms)
{
    struct timespec ts = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L};

    nanosleep(&ts, NULL);
}

static void test_resolver(void)
{
    void *a = NULL, *b = NULL;
    CUdriverProcAddressQueryResult st;

    OK(drv.get_proc("cuMemAlloc", &a, 3020, 0, &st));
    CHECK(st == CU_GET_PROC_ADDRESS_SUCCESS && a == dlsym(drv.lib, "cuMemAlloc_v2"));
    OK(drv.get_proc("cuMemAlloc", &a, 2000, 0, &st));
    CHECK(a == dlsym(drv.lib, "cuMemAlloc"));
    OK(drv.get_proc("cuMemcpyAsync", &a, 13000, 2, &st));
    CHECK(a == dlsym(drv.lib, "cuMemcpyAsync_ptsz"));
    OK(drv.get_proc("cuMemcpyHtoD", &a, 7000, 2, &st));
    CHECK(a == dlsym(drv.lib, "cuMemcpyHtoD_v2_ptds"));
    OK(drv.get_proc("cuMemFree", &a, 7000, 2, &st));
    CHECK(a == dlsym(drv.lib, "cuMemFree_v2"));
    OK(drv.get_proc("cuGetProcAddress", &a, 11030, 0, &st));
    OK(drv.get_proc("cuGetProcAddress", &b, 12000, 0, &st));
    CHECK(a == dlsym(drv.lib, "cuGetProcAddress") && b == dlsym(drv.lib, "cuGetProcAddress_v2"));
    OK(drv.get_proc("cuCtxRecordEvent", &a, 12000, 0, &st));
    CHECK(st == CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT && !a);
    OK(drv.get_proc("cuNoSuchThing", &a, 12000, 0, &st));
    CHECK(st == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND && !a);
    CHECK_EQ(drv.get_proc("cuMemAlloc", &a, 99000, 0, &st), CUDA_ERROR_INVALID_VALUE);
}

static struct {
    unsigned long (*count)(const char *name);
    unsigned long retains; /* so far */
    struct gate gate;
} ending;

static void *ending_reset(void *arg)
{
    OK(cudaDeviceReset()); /* waits for the stream */
    return arg;
}

static void *ending_over(void *arg)
{
    while (ending.count("cuDevicePrimaryCtxRetain") == ending.retains)
        nap_ms(1);
    nap_ms(10); /* for the call to get on */
    gate_open(&ending.gate);
    return arg;
}

/* A primary context that is retained while another thread's call ends it is a new one, or one that stays. */
static void test_retain_beside_reset(void)
{
    CUresult (*retain)(CUcontext *, CUdevice);
    CUresult (*release)(CUdevice);
    pthread_t resets, opens;
    unsigned long before;
    CUcontext ctx;
    cudaStream_t s;
    void *p;

    *(void **)&ending.count = dlsym(drv.lib, "simgpu_count");
    *(void **)&retain = dlsym(drv.lib, "cuDevicePrimaryCtxRetain");
    *(void **)&release = dlsym(drv.lib, "cuDevicePrimaryCtxRelease_v2");
    OK(cudaStreamCreate(&s));
    OK(cudaLaunchHostFunc(s, gate_hold, &ending.gate));
    before = ending.count("cuDevicePrimaryCtxReset");
    CHECK(pthread_create(&resets, NULL, ending_reset, NULL) == 0);
    while (ending.count("cuDevicePrimaryCtxReset") == before)
        nap_ms(1);
    nap_ms(10);
    ending.retains = ending.count("cuDevicePrimaryCtxRetain");
    CHECK(pthread_create(&opens, NULL, ending_over, NULL) == 0);
    OK(retain(&ctx, 0));
    pthread_join(resets, NULL);
    pthread_join(opens, NULL);
    CHECK_EQ(ending.gate.open, 1);
    OK(cudaMalloc(&p, 4096));
    OK(cudaMemset(p, 1, 4096));
    OK(cudaFree(p));
    OK(release(0));
    OK(cudaMalloc(&p, 4096)); /* the runtime has a reference of its own */
    OK(cudaFree(p));
}

/* Batches of copies are refused on the legacy stream and without attributes. */
static void test_batch(void)
{
    struct cudaMemcpyAttributes attrs = {.srcAccessOrder = cudaMemcpySrcAccessOrderStream};
    char from[16], to[16];
    void *dsts[] = {to};
    const void *srcs[] = {from};
    size_t sizes[] = {16}, first = 0;

    CHECK_EQ(cudaMemcpyBatchAsync(dsts, srcs, sizes, 1, &attrs, &first, 1, cudaStreamLegacy), 1);
    CHECK_EQ(cudaMemcpyBatchAsync(dsts, srcs, sizes, 1, &attrs, &first, 0, cudaStreamPerThread), 1);
    cudaGetLastError();
}

/* A launch that waits its turn does what the executable graph was when it was made. */
static void test_graph_launch(void)
{
    LOAD(cuCtxGetCurrent);
    LOAD(cuMemAlloc_v2);
    LOAD(cuStreamCreate);
    LOAD(cuGraphCreate);
    LOAD(cuGraphAddMemsetNode);
    LOAD(cuGraphInstantiateWithFlags);
    LOAD(cuLaunchHostFunc);
    LOAD(cuGraphLaunch);
    LOAD(cuGraphExecMemsetNodeSetParams);
    LOAD(cuStreamSynchronize);
    LOAD(cuMemcpyDtoH_v2);
    LOAD(cuGraphExecDestroy);
    LOAD(cuGraphDestroy);
    LOAD(cuStreamDestroy_v2);
    LOAD(cuMemFree_v2);
    CUDA_MEMSET_NODE_PARAMS params = {.value = 1, .elementSize = 1, .width = 16, .height = 1};
    struct gate gate = {0};
    unsigned char bytes[16];
    CUdeviceptr p;
    CUcontext ctx;
    CUstream stream;
    CUgraph graph;
    CUgraphNode node;
    CUgraphExec exec;

    OK(p_cuCtxGetCurrent(&ctx));
    OK(p_cuMemAlloc_v2(&p, sizeof(bytes)));
    OK(p_cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(p_cuGraphCreate(&graph, 0));
    params.dst = p;
    OK(p_cuGraphAddMemsetNode(&node, graph, NULL, 0, &params, ctx));
    OK(p_cuGraphInstantiateWithFlags(&exec, graph, 0));
    OK(p_cuLaunchHostFunc(stream, gate_hold, &gate));
    OK(p_cuGraphLaunch(exec, stream));
    params.value = 2;
    OK(p_cuGraphExecMemsetNodeSetParams(exec, node, &params, ctx));
    gate_open(&gate);
    OK(p_cuStreamSynchronize(stream));
    OK(p_cuMemcpyDtoH_v2(bytes, p, sizeof(bytes)));
    CHECK(bytes[0] == 1 && bytes[15] == 1);
    OK(p_cuGraphExecDestroy(exec));
    OK(p_cuGraphDestroy(graph));
    OK(p_cuStreamDestroy_v2(stream));
    OK(p_cuMemFree_v2(p));
}

/* A plain fill of host memory has ended when it returns. */
static void test_fill_of_host(void)
{
    LOAD(cuMemAllocHost_v2);
    LOAD(cuMemsetD8_v2);
    LOAD(cuMemFreeHost);
    unsigned char *p;
    int wrong = 0;

    OK(p_cuMemAllocHost_v2((void **)&p, 16));
    for (int i = 1; i <= 200; i++) {
        OK(p_cuMemsetD8_v2((CUdeviceptr)(uintptr_t)p, (unsigned char)i, 16));
        wrong += __atomic_load_n(&p[15], __ATOMIC_ACQUIRE) != (unsigned char)i;
    }
    CHECK_EQ(wrong, 0);
    OK(p_cuMemFreeHost(p));
}

/* Pools of the program's own. */
static void test_pools(void)
{
    LOAD(cuMemPoolCreate);
    LOAD(cuMemAllocFromPoolAsync);
    LOAD(cuMemFreeAsync);
    LOAD(cuMemPoolTrimTo);
    LOAD(cuMemPoolDestroy);
    const CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                  .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    CUmemoryPool pool, other;
    CUdeviceptr p;

    OK(p_cuMemPoolCreate(&pool, &props));
    OK(p_cuMemPoolCreate(&other, &props));
    CHECK(pool != other);
    OK(p_cuMemAllocFromPoolAsync(&p, 100, pool, NULL));
    OK(p_cuMemFreeAsync(p, NULL));
    OK(p_cuMemPoolTrimTo(pool, 0));
    OK(p_cuMemPoolDestroy(pool));
    CHECK_EQ(p_cuMemPoolTrimTo(pool, 0), CUDA_ERROR_INVALID_VALUE);
    OK(p_cuMemPoolDestroy(other));
}

static void test_sticky(void)
{
    void *p;
    struct gate g = {0};
    cudaStream_t s;

    OK(cudaSetDevice(1));
    OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    OK(cudaMalloc(&p, 4 << 20));
    OK(cudaSetDevice(0));
    cudaStream_t s0;
    OK(cudaStreamCreateWithFlags(&s0, cudaStreamNonBlocking));
    /* Device 0 works on device 1's memory; a free there does not wait for device 0, which then faults. */
    OK(cudaLaunchHostFunc(s0, gate_hold, &g));
    OK(cudaMemsetAsync(p, 1, 4 << 20, s0));
    OK(cudaFree(p));
    gate_open(&g);
    CHECK_EQ(cudaDeviceSynchronize(), 700);
    CHECK_EQ(cudaMalloc(&p, 16), 700);
    CHECK_EQ(cudaGetLastError(), 700);
    OK(cudaSetDevice(1));
    OK(cudaMalloc(&p, 16));
    OK(cudaFree(p));
}

int main(int argc, char **argv)
{
    drv.lib = dlopen("libcuda.so.1", RTLD_NOW);
    if (!drv.lib)
        return 77;
    drv.get_proc = (__typeof__(drv.get_proc))dlsym(drv.lib, "cuGetProcAddress_v2");
    drv.ctx_record = (__typeof__(drv.ctx_record))dlsym(drv.lib, "cuCtxRecordEvent");
    drv.ctx_wait = (__typeof__(drv.ctx_wait))dlsym(drv.lib, "cuCtxWaitEvent");
    if (argc == 3 && strcmp(argv[1], "part") == 0)
        return selftest_part(argv[2]);
    OK(cudaFree(NULL)); /* for a context */
    test_resolver();
    test_env();
    test_batch();
    test_graph_launch();
    test_fill_of_host();
    test_pools();
    test_retain_beside_reset();
    test_sticky(); /* last: kills a context */
    printf("%d checks, %d failures\n", checks, failures);
    return failures != 0;
}
