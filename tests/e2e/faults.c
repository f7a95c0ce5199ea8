/* SPDX-License-Identifier: Apache-2.0 */
/*
 * faults.c - the program whose driver fails: test_faults.py injects one failing call into each run of it.
 *
 *   faults SCENARIO [FUNCTION...]
 *
 * Its work is fixed, and its own calls are few, so that most calls of the functions in shim/real/calls.def are the
 * library's. Every error is printed and the call made a second time: only one call fails, so what fails twice has been
 * broken. The ends of every block are filled, and read back before it is freed. With FAULTS_RUNTIME memory comes from
 * the runtime API, and its last error is watched too.
 *
 * Output, a line each: "calls FUNCTION BEGIN END", which calls of it the scenario covers (END is not one of them);
 * "error CODE in CALL", "again CODE in CALL"; "memory TOTAL BEFORE NATIVE SHOWN", free bytes of device 0 when nothing
 * was taken, in the end as the driver counts, and in the end as the program is told. "wrong data" and "last error"
 * lines should never be.
 */
#include <cuda.h>
#ifdef FAULTS_RUNTIME
#include <cuda_runtime_api.h>
#endif

#include "../program.h"

#define MIB        ((size_t)1 << 20)
#define ROUNDS     22                            /* some more than the 20 calls that are made to fail */
#define SOME(size) ((size) < 256 ? (size) : 256) /* so much of each end of a block is filled and read back */

struct block {
    CUdeviceptr addr;
    size_t size;
    unsigned char byte;
};

static CUcontext own; /* device 0's primary one */

static int said(int rc, const char *how, const char *call)
{
    if (rc) {
        printf("%s %d in %s\n", how, rc, call);
        fflush(stdout);
    }
    return rc;
}

#define TRY(name, call) (said((int)(call), "error", name) ? said((int)(call), "again", name) : 0)

/* --- memory, through either API --- */

#ifdef FAULTS_RUNTIME
static int last(int rc)
{
    const int left = (int)cudaGetLastError();

    if (left != rc)
        printf("last error %d after %d\n", left, rc);
    return rc;
}

static int take(CUdeviceptr *addr, size_t size)
{
    void *p = NULL;
    const int rc = last((int)cudaMalloc(&p, size));

    *addr = (uintptr_t)p;
    return rc;
}

static int give(CUdeviceptr addr)
{
    return last((int)cudaFree((void *)(uintptr_t)addr));
}

static int info(size_t *available, size_t *total)
{
    return last((int)cudaMemGetInfo(available, total));
}
#else
static int take(CUdeviceptr *addr, size_t size)
{
    return (int)cuMemAlloc(addr, size);
}

static int give(CUdeviceptr addr)
{
    return (int)cuMemFree(addr);
}

static int info(size_t *available, size_t *total)
{
    return (int)cuMemGetInfo(available, total);
}
#endif

static void check(const struct block *block, const char *when)
{
    const size_t some = SOME(block->size);
    unsigned char host[256];

    for (int end = 0; end < 2 && block->addr; end++) {
        if (TRY("cuMemcpyDtoH_v2", cuMemcpyDtoH(host, block->addr + (end ? block->size - some : 0), some)))
            continue;
        for (size_t i = 0; i < some; i++) {
            if (host[i] != block->byte) {
                printf("wrong data %s: byte %zu of the %s of %zu is %d, not %d\n", when, i, end ? "end" : "start",
                       block->size, host[i], block->byte);
                return;
            }
        }
    }
}

static struct block get(size_t size)
{
    static _Atomic unsigned int made;
    struct block block = {0, size, (unsigned char)(1 + made++ % 250)};

    if (TRY("alloc", take(&block.addr, size)))
        block.addr = 0;
    for (int end = 0; end < 2 && block.addr; end++)
        TRY("cuMemsetD8_v2", cuMemsetD8(block.addr + (end ? size - SOME(size) : 0), block.byte, SOME(size)));
    check(&block, "in a new block");
    return block;
}

static void put(struct block *block)
{
    check(block, "at the free");
    if (block->addr)
        TRY("free", give(block->addr));
    block->addr = 0;
}

static void use(CUcontext context)
{
    TRY("cuCtxSetCurrent", cuCtxSetCurrent(context));
}

static CUcontext context_new(void)
{
    CUcontext context = NULL;

#if CUDA_VERSION >= 13000
    TRY("cuCtxCreate", cuCtxCreate(&context, NULL, 0, 0));
#else
    TRY("cuCtxCreate", cuCtxCreate(&context, 0, 0));
#endif
    return context; /* and current */
}

static void ask(void)
{
    size_t available, total;

    TRY("info", info(&available, &total));
}

/* --- scenarios --- */

/* A thread of its own has a context to make current, and in the library an event of its own. */
struct helper {
    CUcontext context;
    struct block block; /* with an address: freed here */
    int rounds;
};

static void *helper_main(void *arg)
{
    struct helper *helper = arg;
    struct block block;

    use(helper->context);
    put(&helper->block);
    for (int i = 0; i < helper->rounds; i++) {
        block = get(3000 + 700 * (size_t)i);
        put(&block);
    }
    return NULL;
}

static void in_threads(struct helper *helpers, int count)
{
    pthread_t id[8];

    for (int i = 0; i < count; i++)
        if (pthread_create(&id[i], NULL, helper_main, &helpers[i]))
            abort();
    join_all(id, count);
}

/* Small and large blocks of one context, freed in another order; threads that come and go. */
static void plain(void)
{
    static const size_t sizes[] = {512, 3 * MIB, 70000, 5 * MIB, 4096, 2 * MIB};
    struct block window[5] = {{0}};
    CUdeviceptr nothing = 0;

    for (int i = 0; i < 2 * ROUNDS; i++) {
        put(&window[i * 3 % 5]);
        window[i * 3 % 5] = get(sizes[i % 6]);
        if (i % 2)
            ask();
    }
    if (take(&nothing, 0) == 0 && nothing)
        printf("an address for 0 bytes\n");
    for (int i = 0; i < ROUNDS; i++) {
        struct helper helper = {own, {0}, 1};

        in_threads(&helper, 1);
    }
    for (int i = 0; i < 5; i++)
        put(&window[i]);
}

/* Two contexts on one device; blocks are freed while the other context is current. */
static void contexts(void)
{
    CUcontext other = context_new();
    struct block in_own, in_other, stays;

    use(own);
    stays = get(4096);
    for (int i = 0; i < ROUNDS; i++) {
        const size_t size = i % 2 ? 3 * MIB : 4096;
        struct helper helper = {other, {0}, 0};

        use(own);
        in_own = get(size);
        helper.block = get(2 * size);
        use(other);
        in_other = get(size);
        put(&in_own);
        use(own);
        put(&in_other);
        in_threads(&helper, 1);
        ask();
    }
    use(other);
    get(4096); /* goes with its context */
    TRY("cuCtxDestroy_v2", cuCtxDestroy(other));
    use(own);
    put(&stays);
}

/* Contexts come and go, with memory in them. */
static void renew(void)
{
    struct block stays = get(4096), block;
    CUcontext context;

    for (int i = 0; i < ROUNDS; i++) {
        if (i % 2) {
            TRY("cuDevicePrimaryCtxRetain", cuDevicePrimaryCtxRetain(&context, 1));
            use(context);
        } else {
            context = context_new();
        }
        get(3 * MIB);
        block = get(4096);
        put(&block);
        if (i % 4 == 1)
            TRY("cuDevicePrimaryCtxReset_v2", cuDevicePrimaryCtxReset(1));
        else if (i % 2)
            TRY("cuDevicePrimaryCtxRelease_v2", cuDevicePrimaryCtxRelease(1));
        else
            TRY("cuCtxDestroy_v2", cuCtxDestroy(context));
        use(own);
        check(&stays, "beside a context that went");
    }
    put(&stays);
}

/* A device that runs out of memory, so that free memory goes back, also from one context to the other. */
static void scarce(void)
{
    CUcontext other = context_new();
    struct block few[5], in_other = get(4096), in_own;

    use(own);
    in_own = get(4096);
    for (int i = 0; i < 6; i++) {
        for (int k = 0; k < 5; k++)
            few[k] = get(5 * MIB);
        for (int k = 0; k < 5; k++)
            put(&few[k]);
        use(other);
        for (int k = 0; k < 4; k++)
            few[k] = get(7 * MIB);
        check(&in_own, "while another context is short of memory");
        for (int k = 0; k < 4; k++)
            put(&few[k]);
        use(own);
        few[0] = get(30 * MIB);
        put(&few[0]);
        ask();
    }
    put(&in_other);
    put(&in_own);
    TRY("cuCtxDestroy_v2", cuCtxDestroy(other));
}

/* Captures that are ended, and captures that go with their stream; blocks are taken and freed meanwhile. */
static void capture(void)
{
    CUstream stream = NULL;
    CUgraph graph;
    struct block before, within, again, after;

    for (int i = 0; i <= 2 * ROUNDS; i++) { /* the last stream is destroyed */
        graph = NULL;
        if (!stream)
            TRY("cuStreamCreate", cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
        before = get(4096);
        again = get(300);
        TRY("cuStreamBeginCapture_v2", cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
        if (i % 4 == 0)
            cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED); /* refused: it captures already */
        within = get(8192);
        put(&before); /* kept back */
        put(&within);
        within = get(3 * MIB); /* by the driver, if nothing free fits */
        if (i % 3 == 2) {
            /* Only what the graph itself allocates can be freed in it. */
            if (stream && again.addr && cuMemFreeAsync(again.addr, stream) == CUDA_SUCCESS)
                printf("freed by a capture\n");
            TRY("cuStreamDestroy_v2", cuStreamDestroy(stream));
            stream = NULL;
        } else {
            TRY("cuStreamEndCapture", cuStreamEndCapture(stream, &graph));
            if (graph)
                TRY("cuGraphDestroy", cuGraphDestroy(graph));
        }
        if (i % 2)
            ask(); /* what was kept back is free */
        put(&within);
        put(&again);
        after = get(5000);
        put(&after);
    }
    if (stream)
        TRY("cuStreamDestroy_v2", cuStreamDestroy(stream));
}

/* Four threads at once, in a context that is known: otherwise the order of their first calls is chance. */
static void threads(void)
{
    struct helper helpers[4];
    struct block first = get(4096);

    put(&first);
    for (int i = 0; i < 4; i++)
        helpers[i] = (struct helper){own, {0}, ROUNDS};
    in_threads(helpers, 4);
}

static void CUDA_CB sleep_a_little(void *ignored)
{
    usleep(300);
}

/* Work that touches host memory and is under way at a free; the time that it took can be told after the free. */
static void copies(void)
{
    CUstream stream = NULL;
    CUevent start = NULL, end = NULL;
    struct block block;
    void *host = NULL;
    float ms;
    int rc;

    TRY("cuStreamCreate", cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    TRY("cuEventCreate", cuEventCreate(&start, 0));
    TRY("cuEventCreate", cuEventCreate(&end, 0));
    TRY("cuMemAllocHost_v2", cuMemAllocHost(&host, 4096));
    for (int i = 0; i < ROUNDS; i++) {
        block = get(4096);
        TRY("cuEventRecord", cuEventRecord(start, stream));
        TRY("cuMemcpyAsync", cuMemcpyAsync((CUdeviceptr)(uintptr_t)host, block.addr, block.addr ? 4096 : 0, stream));
        if (i % 2)
            TRY("cuLaunchHostFunc", cuLaunchHostFunc(stream, sleep_a_little, NULL));
        TRY("cuEventRecord", cuEventRecord(end, stream));
        if (!block.addr)
            continue; /* and no free */
        put(&block);
        rc = said((int)cuEventElapsedTime(&ms, start, end), "error", "elapsed");
        if (rc) {
            TRY("cuStreamSynchronize", cuStreamSynchronize(stream));
            said((int)cuEventElapsedTime(&ms, start, end), "again", "elapsed");
        }
    }
    TRY("cuStreamSynchronize", cuStreamSynchronize(stream));
    TRY("cuMemFreeHost", cuMemFreeHost(host));
    TRY("cuEventDestroy_v2", cuEventDestroy(start));
    TRY("cuEventDestroy_v2", cuEventDestroy(end));
    TRY("cuStreamDestroy_v2", cuStreamDestroy(stream));
}

/* Pinned memory, of which the pool may not hold all; or just as large as what CUPOOL_HOST_POPULATE maps. */
static void pinned(void)
{
    const bool populated = getenv("CUPOOL_HOST_POPULATE");

    for (int i = 0; i < (populated ? 4 : 2 * ROUNDS); i++) {
        const size_t size = (size_t)(!populated ? 3 * (1 + i % 4) : i ? 252 + 4 * i : 128) * MIB;
        void *p = NULL;

        if (i % 2)
            TRY("cuMemHostAlloc", cuMemHostAlloc(&p, size, 0));
        else
            TRY("cuMemAllocHost_v2", cuMemAllocHost(&p, size));
        if (p && memset(p, i, SOME(size)))
            TRY("cuMemFreeHost", cuMemFreeHost(p));
    }
}

/* Memory is idle long enough for what the library does by the clock. */
static void idle(void)
{
    struct block block;

    for (int i = 0; i < 3; i++) {
        block = get(3 * MIB);
        put(&block);
        usleep(250000);
    }
}

/* Freed in a stream, every other one in another context's: kept back until the next miss, where nobody is to wait. */
static void later(void)
{
    CUcontext other = context_new();
    struct block block;

    for (int i = 0; i < ROUNDS; i++) {
        use(own);
        block = get(5 * MIB);
        check(&block, "before its free in a stream");
        use(i % 2 ? other : own);
        if (block.addr)
            TRY("free", cuMemFreeAsync(block.addr, CU_STREAM_LEGACY));
        use(own);
        block = get(9 * MIB + (size_t)i * MIB);
        put(&block);
    }
    TRY("cuCtxDestroy_v2", cuCtxDestroy(other));
}

static const struct {
    const char *name;
    void (*run)(void);
} scenarios[] = {{"plain", plain},     {"contexts", contexts}, {"renew", renew},   {"scarce", scarce},
                 {"capture", capture}, {"threads", threads},   {"copies", copies}, {"pinned", pinned},
                 {"idle", idle},       {"later", later}};

int main(int argc, char **argv)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    CUresult (*settle)(void) = driver ? (CUresult(*)(void))dlsym(driver, "cuCtxSynchronize") : NULL;
    CUresult (*native)(size_t *, size_t *) =
        driver ? (CUresult(*)(size_t *, size_t *))dlsym(driver, "cuMemGetInfo_v2") : NULL;
    unsigned long (*count)(const char *) =
        driver ? (unsigned long (*)(const char *))dlsym(driver, "simgpu_count") : NULL;
    size_t total = 0, before = 0, after = 0, shown = 0;
    unsigned long begin[64], end[64];
    struct block last_one;
    bool known = false;

    if (argc < 2 || argc > 64 || !settle || !native || !count)
        return 2;
    TRY("cuInit", cuInit(0));
    TRY("cuDevicePrimaryCtxRetain", cuDevicePrimaryCtxRetain(&own, 0));
    use(own);
    TRY("info", native(&before, &total));
#ifdef FAULTS_RUNTIME
    TRY("info", cudaFree(0)); /* the runtime makes its own start now */
#endif
    for (int i = 2; i < argc; i++)
        begin[i] = count(argv[i]) + 1;
    for (unsigned int i = 0; i < sizeof(scenarios) / sizeof(scenarios[0]); i++) {
        if (strcmp(argv[1], scenarios[i].name) == 0) {
            known = true;
            scenarios[i].run();
        }
    }
    for (int i = 2; i < argc; i++)
        end[i] = count(argv[i]) + 1;
    use(own);
    /* This free orders the blocks that an earlier one could not order. */
    last_one = get(4096);
    put(&last_one);
    /* Memory on its way back counts as free before it has arrived: let it arrive. */
    settle();
    TRY("info", info(&shown, &total));
    TRY("info", native(&after, &total));
    for (int i = 2; i < argc; i++)
        printf("calls %s %lu %lu\n", argv[i], begin[i], end[i]);
    printf("memory %zu %zu %zu %zu\n", total, before, after, shown);
    return known ? 0 : 2;
}
