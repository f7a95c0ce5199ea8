/* SPDX-License-Identifier: Apache-2.0 */
/*
 * crowd.c - others want memory, too.
 *
 * What it is: nearly the whole card was in use and has been freed. Natively it is then everybody's: of every other
 * call that takes memory, of another size, of another process. Preloaded, this process has it at once; another process
 * has it CUPOOL_DECAY seconds later at most (1 here, unless the environment says otherwise), which is waited for, with
 * ten seconds to spare. Giving back meanwhile harms no capture and hangs no program.
 *
 * What it is not: fragmentation (oom.c, fill_up.c). Memory counts per process on the simulated GPU, so what takes two
 * processes is skipped there.
 *
 * crowd --child free | take BYTES: the other process, without the preload.
 */
#include "behaviour.h"

#include <dlfcn.h>
#include <spawn.h>
#include <sys/wait.h>

/* Not in the simulated runtime. */
#pragma weak cudaMallocArray
#pragma weak cudaMalloc3DArray
#pragma weak cudaFreeArray

#define BLOCKS   4096
#define SPARE_S  10
#define SLACK    (16 * BT_MIB)
#define TAKE_ALL ((size_t)1 << 46)

extern char **environ;

static void *block[BLOCKS];
static int blocks;
static size_t start_free, start_child, peak;

static int decay_seconds(void)
{
    const char *decay = getenv("CUPOOL_DECAY");

    return decay && *decay ? atoi(decay) : 10;
}

/* The driver's own function, whatever is preloaded. */
static void *driver_symbol(const char *name)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);

    return driver ? dlsym(driver, name) : NULL;
}

static bool simulated(void)
{
    return driver_symbol("simgpu_count") != NULL;
}

/* What the driver calls free: what a pool holds is not. */
static size_t driver_free(void)
{
    CUresult (*get)(size_t *, size_t *) = NULL;
    size_t avail = 0, total;

    *(void **)&get = driver_symbol("cuMemGetInfo_v2");
    return get && get(&avail, &total) == CUDA_SUCCESS ? avail : 0;
}

static int blocks_free(void)
{
    for (; blocks > 0; blocks--)
        OK(cudaFree(block[blocks - 1]));
    return 0;
}

static void clean_up(void)
{
    (void)blocks_free();
}

/* Blocks of n bytes, up to max bytes in all or until one is refused. */
static int take(size_t n, size_t max)
{
    size_t got = 0;

    for (; blocks < BLOCKS && got + n <= max; got += n) {
        int rc = (int)cudaMalloc(&block[blocks], n);

        if (rc == cudaErrorMemoryAllocation)
            break;
        OK(rc);
        blocks++;
    }
    (void)cudaGetLastError();
    peak = got > peak ? got : peak;
    return 0;
}

/* The card to the last page, mainly in blocks of n bytes, then nothing. */
static int hoard(size_t n)
{
    TRY(blocks_free());
    TRY(take(n, TAKE_ALL));
    TRY(take(n / 16 > 2 * BT_MIB ? n / 16 : 2 * BT_MIB, TAKE_ALL));
    TRY(take(2 * BT_MIB, TAKE_ALL));
    CHECK(blocks > 8 && blocks < BLOCKS);
    TRY(blocks_free());
    OK(cudaDeviceSynchronize());
    return 0;
}

static int hoard_usual(void)
{
    return hoard(start_free / 64);
}

static size_t most(void)
{
    return start_free / 10 * 6;
}

static int most_usable(void)
{
    void *p;

    OK(cudaMalloc(&p, most()));
    TRY(bt_fill(p, BT_MIB, 1));
    OK(cudaFree(p));
    return 0;
}

/* --- this process, at once --- */

static int get_info(void)
{
    size_t avail, total;

    TRY(hoard_usual());
    OK(cudaMemGetInfo(&avail, &total));
    if (avail + SLACK < start_free)
        return BT_FAIL("%zu MiB free, once %zu", avail / BT_MIB, start_free / BT_MIB);
    CHECK(avail <= start_free + SLACK);
    OK(cuMemGetInfo(&avail, &total));
    CHECK(avail + SLACK >= start_free && avail <= start_free + SLACK);
    return 0;
}

/* As a framework that empties its cache and asks what is free. */
static int empty_cache(void)
{
    size_t avail, total;

    TRY(take(start_free / 50, most()));
    OK(cudaMemGetInfo(&avail, &total));
    CHECK(avail <= start_free - most() + start_free / 20);
    TRY(blocks_free());
    OK(cudaMemGetInfo(&avail, &total));
    CHECK(avail + SLACK >= start_free);
    return 0;
}

static int larger_blocks(void)
{
    TRY(hoard(start_free / 1024));
    return most_usable();
}

static int smaller_blocks(void)
{
    TRY(hoard(start_free / 16));
    TRY(take(start_free / 2048, start_free / 10 * 9));
    CHECK(blocks >= 2048 / 10 * 9);
    return blocks_free();
}

static int pitch(void)
{
    size_t width;
    void *p;

    TRY(hoard_usual());
    OK(cudaMallocPitch(&p, &width, BT_MIB, most() / BT_MIB));
    TRY(bt_fill(p, BT_MIB, 1));
    OK(cudaFree(p));
    return 0;
}

static int in_stream_order(void)
{
    cudaMemPool_t pool;
    cudaStream_t s;
    void *p;

    TRY(hoard_usual());
    OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    OK(cudaMallocAsync(&p, most(), s));
    OK(cudaMemsetAsync(p, 1, BT_MIB, s));
    OK(cudaFreeAsync(p, s));
    OK(cudaStreamSynchronize(s));
    OK(cudaDeviceGetDefaultMemPool(&pool, 0));
    OK(cudaMemPoolTrimTo(pool, 0));
    OK(cudaStreamDestroy(s));
    return 0;
}

/* A few MiB only, but nothing is left for them. */
static int managed(void)
{
    char *p;

    TRY(hoard_usual());
    OK(cudaMallocManaged((void **)&p, 4 * BT_MIB, cudaMemAttachGlobal));
    TRY(bt_fill(p, 4 * BT_MIB, 3));
    CHECK(p[0] == 3 && p[4 * BT_MIB - 1] == 3);
    OK(cudaFree(p));
    return 0;
}

static int array(void)
{
    const struct cudaChannelFormatDesc format = {32, 0, 0, 0, cudaChannelFormatKindFloat};
    cudaArray_t a[64];
    int n = 0;

    if (!cudaMallocArray || !cudaFreeArray)
        SKIP("no arrays here");
    TRY(hoard_usual());
    for (; n < 64; n++) /* 512 MiB each on a large card */
        OK(cudaMallocArray(&a[n], &format, 16384, start_free / 128 / 65536, 0));
    while (n > 0)
        OK(cudaFreeArray(a[--n]));
    return 0;
}

static int array_3d(void)
{
    const struct cudaChannelFormatDesc format = {32, 0, 0, 0, cudaChannelFormatKindFloat};
    cudaArray_t a[16];
    int n = 0;

    if (!cudaMalloc3DArray || !cudaFreeArray)
        SKIP("no arrays here");
    TRY(hoard_usual());
    for (; n < 16; n++)
        OK(cudaMalloc3DArray(&a[n], &format, (struct cudaExtent){1024, 1024, start_free / 32 / (4 * BT_MIB)}, 0));
    while (n > 0)
        OK(cudaFreeArray(a[--n]));
    return 0;
}

/* Virtual memory management: as frameworks do that put their weights to sleep and wake them at the same addresses. */
static int mapped(void)
{
    const CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    const CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
                                    .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    const size_t n = most() / (2 * BT_MIB) * (2 * BT_MIB);
    CUmemGenericAllocationHandle handle;
    CUdeviceptr p;

    for (int round = 0; round < 2; round++) {
        TRY(hoard_usual());
        OK(cuMemCreate(&handle, n, &prop, 0));
        OK(cuMemAddressReserve(&p, n, 0, 0, 0));
        OK(cuMemMap(p, n, 0, handle, 0));
        OK(cuMemSetAccess(p, n, &access, 1));
        TRY(bt_fill((void *)(uintptr_t)p, BT_MIB, 7));
        OK(cuMemUnmap(p, n));
        OK(cuMemRelease(handle));
        OK(cuMemAddressFree(p, n));
    }
    return 0;
}

static int streams(void)
{
    cudaStream_t s[96];
    void *p;

    TRY(hoard_usual());
    OK(cudaMalloc(&p, BT_MIB));
    for (int i = 0; i < 96; i++) {
        OK(cudaStreamCreateWithFlags(&s[i], i % 2 ? cudaStreamNonBlocking : cudaStreamDefault));
        OK(cudaMemsetAsync(p, i, BT_MIB, s[i]));
    }
    OK(cudaDeviceSynchronize());
    for (int i = 0; i < 96; i++)
        OK(cudaStreamDestroy(s[i]));
    OK(cudaFree(p));
    return 0;
}

/* A graph of many nodes, captured before, instantiated and launched when nothing is left. */
static int graph(void)
{
    cudaGraphExec_t exec[16];
    cudaGraph_t made;
    cudaStream_t s;
    char *p;

    OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    OK(cudaMalloc((void **)&p, BT_MIB));
    OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed));
    for (size_t i = 0; i < 1024; i++)
        OK(cudaMemsetAsync(p + i * 1024, 9, 1024, s));
    OK(cudaStreamEndCapture(s, &made));
    TRY(hoard_usual());
    for (int i = 0; i < 16; i++) {
        OK(cudaGraphInstantiate(&exec[i], made, 0));
        TRY(bt_fill(p, BT_MIB, 0));
        OK(cudaGraphLaunch(exec[i], s));
        OK(cudaStreamSynchronize(s));
        TRY(bt_verify(p, BT_MIB, 9));
    }
    for (int i = 0; i < 16; i++)
        OK(cudaGraphExecDestroy(exec[i]));
    OK(cudaGraphDestroy(made));
    OK(cudaStreamDestroy(s));
    OK(cudaFree(p));
    return 0;
}

static int pinned(void)
{
    void *p;

    TRY(hoard_usual());
    OK(cudaMallocHost(&p, 64 * BT_MIB));
    OK(cudaFreeHost(p));
    return 0;
}

static int second_context(void)
{
    CUcontext context, before;
    CUdeviceptr p;

    TRY(hoard_usual());
    OK(cuCtxGetCurrent(&before));
#if CUDA_VERSION >= 13000
    OK(cuCtxCreate(&context, NULL, 0, 0));
#else
    OK(cuCtxCreate(&context, 0, 0));
#endif
    OK(cuMemAlloc(&p, most()));
    OK(cuMemsetD8(p, 1, BT_MIB));
    OK(cuMemFree(p));
    OK(cuCtxDestroy(context));
    OK(cuCtxSetCurrent(before));
    return 0;
}

/* --- another process --- */

static int child_main(int argc, char **argv)
{
    size_t avail, total;
    void *p;

    if (argc < 3 || cudaFree(NULL) || cudaMemGetInfo(&avail, &total))
        return 3;
    if (strcmp(argv[2], "free") == 0) {
        printf("%zu\n", avail);
        return 0;
    }
    return argc == 4 && cudaMalloc(&p, strtoull(argv[3], NULL, 0)) == cudaSuccess ? 0 : 3;
}

/* Run the other process. Answers with its exit status and what it printed. */
static int child(const char *what, size_t n, size_t *ret_number)
{
    char bytes[32], text[64] = "", program[] = "/proc/self/exe";
    char *argv[] = {program, (char *)"--child", (char *)(uintptr_t)what, n ? bytes : NULL, NULL}, *env[512];
    posix_spawn_file_actions_t files;
    int out[2], status = -1, count = 0;
    ssize_t got;
    pid_t pid;

    snprintf(bytes, sizeof(bytes), "%zu", n);
    for (char **at = environ; *at && count < 511; at++)
        if (strncmp(*at, "LD_PRELOAD=", 11) != 0)
            env[count++] = *at;
    env[count] = NULL;
    if (pipe(out))
        return -1;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_adddup2(&files, out[1], 1);
    posix_spawn_file_actions_addclose(&files, out[0]);
    if (posix_spawn(&pid, program, &files, NULL, argv, env) == 0) {
        close(out[1]);
        got = read(out[0], text, sizeof(text) - 1);
        text[got > 0 ? got : 0] = 0;
        waitpid(pid, &status, 0);
    } else {
        close(out[1]);
    }
    posix_spawn_file_actions_destroy(&files);
    close(out[0]);
    *ret_number = strtoull(text, NULL, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* Try until it is right or the time is over. */
static bool comes_true(bool (*right)(void))
{
    const uint64_t end = bt_ns() + (uint64_t)(decay_seconds() + SPARE_S) * 1000000000u;

    do {
        if (right())
            return true;
        bt_nap(100000);
    } while (bt_ns() < end);
    return right();
}

static bool child_takes_most(void)
{
    size_t ignored;

    return child("take", start_child / 10 * 8, &ignored) == 0;
}

static int second_process(void)
{
    size_t ignored;

    if (simulated())
        SKIP("memory counts per process on the simulated GPU");
    TRY(hoard_usual());
    if (!comes_true(child_takes_most))
        return BT_FAIL("another process cannot have 80 %% (exit %d); %zu of %zu MiB are free",
                       child("take", start_child / 10 * 8, &ignored), driver_free() / BT_MIB, start_free / BT_MIB);
    return most_usable();
}

/* What may be held without need. */
static size_t held_max(void)
{
    return 64 * BT_MIB > peak / 20 ? 64 * BT_MIB : peak / 20;
}

static bool child_sees_it_free(void)
{
    size_t avail;

    return child("free", 0, &avail) == 0 && avail + held_max() + SLACK >= start_child;
}

static int idle_seen_outside(void)
{
    if (simulated())
        SKIP("memory counts per process on the simulated GPU");
    TRY(hoard_usual());
    CHECK(comes_true(child_sees_it_free));
    return most_usable();
}

/* --- giving back when idle --- */

static bool mostly_free(void)
{
    return driver_free() + held_max() + SLACK >= start_free;
}

/* Until it is given back, which need not happen, or has been long enough. */
static void idle_wait(void)
{
    const uint64_t end = bt_ns() + (uint64_t)(decay_seconds() + 2) * 1000000000u;

    while (!mostly_free() && bt_ns() < end)
        bt_nap(20000);
}

#define GIVEN_BACK()                                                                                                   \
    do {                                                                                                               \
        if (!comes_true(mostly_free))                                                                                  \
            return BT_FAIL("line %d: %zu of %zu MiB are free after %d s", __LINE__, driver_free() / BT_MIB,            \
                           start_free / BT_MIB, decay_seconds() + SPARE_S);                                            \
    } while (0)

/* Also twice, and what is in use stays. */
static int idle(void)
{
    const size_t n = 3 * BT_MIB;
    char *live[8];

    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 8; i++) {
            OK(cudaMalloc((void **)&live[i], n));
            TRY(bt_fill(live[i], n, i + 1));
        }
        TRY(hoard_usual());
        GIVEN_BACK();
        for (int i = 0; i < 8; i++) {
            TRY(bt_verify(live[i], n, i + 1));
            OK(cudaFree(live[i]));
        }
        TRY(most_usable());
    }
    return 0;
}

static bool mostly_free_beside_work(void)
{
    for (int i = 0; i < 20; i++)
        if (bt_usable(64 * BT_KIB))
            return false;
    return mostly_free();
}

/* What small blocks come and go in is in use; the rest is not. */
static int idle_beside_work(void)
{
    void *neighbour; /* so that there is always room for them: nothing is given back because a request was refused */

    OK(cudaMalloc(&neighbour, 64 * BT_KIB));
    TRY(hoard_usual());
    CHECK(comes_true(mostly_free_beside_work));
    OK(cudaFree(neighbour));
    return 0;
}

/* Memory is given back while a capture is open, or not: it survives. */
static int idle_in_capture(void)
{
    static const enum cudaStreamCaptureMode modes[] = {cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal,
                                                       cudaStreamCaptureModeRelaxed};
    cudaGraphExec_t exec;
    cudaGraph_t made;
    cudaStream_t s;
    char *p;

    OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    OK(cudaMalloc((void **)&p, BT_MIB));
    for (int i = 0; i < 3; i++) {
        TRY(hoard_usual());
        OK(cudaStreamBeginCapture(s, modes[i]));
        OK(cudaMemsetAsync(p, i + 5, BT_MIB, s));
        if (bt_preloaded()) /* whether it is given back in here or not */
            bt_nap((uint64_t)(decay_seconds() + 2) * 1000000);
        OK(cudaMemsetAsync(p, i + 6, BT_KIB, s));
        OK(cudaStreamEndCapture(s, &made));
        OK(cudaGraphInstantiate(&exec, made, 0));
        OK(cudaGraphLaunch(exec, s));
        OK(cudaStreamSynchronize(s));
        TRY(bt_verify(p, BT_KIB, i + 6));
        TRY(bt_verify(p + BT_KIB, BT_MIB - BT_KIB, i + 5));
        OK(cudaGraphExecDestroy(exec));
        OK(cudaGraphDestroy(made));
    }
    OK(cudaStreamDestroy(s));
    OK(cudaFree(p));
    GIVEN_BACK();
    return 0;
}

/* Work that waits for a flag, and its release, launched later. */
struct waiting {
    cudaStream_t waits, sets;
    uint32_t *flag; /* in host memory */
    int done;
};

static int release(void *arg)
{
    struct waiting *w = (struct waiting *)arg;

    OK(cuStreamWriteValue32((CUstream)w->sets, (CUdeviceptr)(uintptr_t)w->flag, 1, 0));
    OK(cudaStreamSynchronize(w->sets));
    OK(cudaStreamSynchronize(w->waits));
    __atomic_store_n(&w->done, 1, __ATOMIC_RELEASE);
    return 0;
}

/* The driver's free waits for all work, and holds back launches meanwhile: nobody asked for one here. */
static int idle_behind_wait(void)
{
    struct bt_thread t;
    struct waiting w = {0};
    bool stalled = false;

    OK(cudaStreamCreateWithFlags(&w.waits, cudaStreamNonBlocking));
    OK(cudaStreamCreateWithFlags(&w.sets, cudaStreamNonBlocking));
    OK(cudaMallocHost((void **)&w.flag, 4096));
    *w.flag = 0;
    TRY(hoard_usual());
    OK(cuStreamWaitValue32((CUstream)w.waits, (CUdeviceptr)(uintptr_t)w.flag, 1, CU_STREAM_WAIT_VALUE_EQ));
    idle_wait();
    TRY(bt_thread_start(&t, release, &w));
    for (int i = 0; i < 200 && !__atomic_load_n(&w.done, __ATOMIC_ACQUIRE); i++)
        bt_nap(100000);
    stalled = !__atomic_load_n(&w.done, __ATOMIC_ACQUIRE);
    __atomic_store_n(w.flag, 1, __ATOMIC_SEQ_CST); /* to the rescue */
    TRY(bt_thread_join(&t));
    OK(cudaStreamDestroy(w.waits));
    OK(cudaStreamDestroy(w.sets));
    OK(cudaFreeHost(w.flag));
    CHECK(!stalled);
    GIVEN_BACK();
    return 0;
}

static const struct bt_test tests[] = {
    {"get_info", get_info},
    {"empty_cache", empty_cache},
    {"larger_blocks", larger_blocks},
    {"smaller_blocks", smaller_blocks},
    {"pitch", pitch},
    {"in_stream_order", in_stream_order},
    {"managed", managed},
    {"array", array},
    {"array_3d", array_3d},
    {"mapped", mapped},
    {"streams", streams},
    {"graph", graph},
    {"pinned", pinned},
    {"second_context", second_context},
    {"second_process", second_process},
    {"idle_seen_outside", idle_seen_outside},
    {"idle", idle},
    {"idle_beside_work", idle_beside_work},
    {"idle_in_capture", idle_in_capture},
    {"idle_behind_wait", idle_behind_wait},
    {NULL, NULL},
};

int main(int argc, char **argv)
{
    size_t total;

    if (argc > 1 && strcmp(argv[1], "--child") == 0)
        return child_main(argc, argv);
    if (!getenv("CUPOOL_DECAY")) { /* the library has read it long ago */
        setenv("CUPOOL_DECAY", "1", 1);
        execv("/proc/self/exe", argv);
        return 1;
    }
    bt_cleanup = clean_up;
    if (cudaFree(NULL) || bt_usable(BT_KIB) || bt_usable(2 * BT_MIB) || cudaMemGetInfo(&start_free, &total) ||
        (!simulated() && child("free", 0, &start_child))) {
        printf("FAIL start: %s\n", bt_why);
        return 1;
    }
    return bt_main(argc, argv, tests);
}
