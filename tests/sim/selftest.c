/* SPDX-License-Identifier: Apache-2.0 */
/*
 * selftest.c - do the stand-ins keep the contracts of README.md?
 *
 * meson builds the program with the shared and with the static cudart. It prints every failure, and exits with 1 if
 * there was one. `selftest bench` prints figures instead. It does not test the pool.
 *
 * Locking: none.
 */
#include "selftest.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

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

double now_ms(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec * 1e3 + (double)ts.tv_nsec / 1e6;
}

static void test_results(void)
{
    void *p = (void *)1, *q;
    size_t before, after, total;

    OK(cudaMalloc(&p, 0));
    CHECK(p == NULL);
    CHECK_EQ(cudaMalloc(NULL, 16), 1);
    CHECK_EQ(cudaGetLastError(), 1);
    CHECK_EQ(cudaMalloc(&p, (size_t)1 << 60), 2);
    CHECK_EQ(cudaPeekAtLastError(), 2);
    CHECK_EQ(cudaGetLastError(), 2);
    CHECK_EQ(cudaGetLastError(), 0);
    OK(cudaFree(NULL));
    CHECK_EQ(cudaFree((void *)1), 1);
    CHECK_EQ(cudaGetLastError(), 1);
    OK(cudaMemGetInfo(&before, &total));
    OK(cudaMalloc(&p, (size_t)3 << 20));
    OK(cudaMemGetInfo(&after, &total));
    CHECK_EQ((before - after) >> 20, 4);
    CHECK_EQ(cudaFree((char *)p + 512), 1);
    CHECK((uintptr_t)p % (2 << 20) == 0);
    OK(cudaFree(p));
    CHECK_EQ(cudaFree(p), 1);
    OK(cudaMemGetInfo(&after, &total));
    CHECK(before == after);
    OK(cudaMalloc(&p, 1000));
    OK(cudaMalloc(&q, 1000));
    CHECK((char *)q - (char *)p == 1024 || (char *)p - (char *)q == 1024);
    struct cudaPointerAttributes attr;
    OK(cudaPointerGetAttributes(&attr, p));
    CHECK(attr.type == cudaMemoryTypeDevice && attr.device == 0 && attr.devicePointer == p);
    OK(cudaPointerGetAttributes(&attr, &attr));
    CHECK(attr.type == cudaMemoryTypeUnregistered);
    OK(cudaFree(p));
    OK(cudaFree(q));
    cudaGetLastError();
}

static void test_contents(void)
{
    enum { BIG = 4 << 20 };
    unsigned char *h = malloc(BIG);
    void *p;

    for (int round = 0; round < 3; round++) {
        size_t dirty = 0;
        OK(cudaMalloc(&p, BIG));
        OK(cudaMemcpy(h, p, BIG, cudaMemcpyDeviceToHost));
        for (size_t i = 0; i < BIG; i++)
            dirty += h[i] != 0;
        CHECK(dirty == 0);
        OK(cudaMemset(p, 0x77, BIG));
        OK(cudaFree(p));
    }
    /* Small ones are dirty where they share a page with others, zero where they had it to themselves. */
    for (int others = 0; others < 2; others++) {
        void *other = NULL;
        if (others)
            OK(cudaMalloc(&other, 1000));
        OK(cudaMalloc(&p, 1000));
        OK(cudaMemset(p, 0x77, 1000));
        OK(cudaFree(p));
        OK(cudaMalloc(&p, 1000));
        OK(cudaMemcpy(h, p, 1000, cudaMemcpyDeviceToHost));
        CHECK_EQ(h[0], others ? 0x77 : 0);
        CHECK_EQ(h[999], others ? 0x77 : 0);
        OK(cudaFree(p));
        OK(cudaFree(other));
    }
    free(h);
}

static void test_memory_limit(void)
{
    void *p[4096];
    size_t avail, total, n = 0;

    OK(cudaMemGetInfo(&avail, &total));
    while (n < 4096 && cudaMalloc(&p[n], total / 64) == cudaSuccess)
        n++;
    CHECK_EQ(cudaGetLastError(), 2);
    CHECK(n >= 60 && n <= 64);
    while (n)
        OK(cudaFree(p[--n]));
    size_t again;
    OK(cudaMemGetInfo(&again, &total));
    CHECK(again == avail);
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

/* This program again, as an importer: a child of fork has no CUDA. */
static pid_t importer_start(const char *part, int *ret_in, int *ret_out)
{
    int to[2] = {-1, -1}, back[2] = {-1, -1};
    char fd0[16], fd1[16];

    CHECK(pipe(to) == 0 && pipe(back) == 0);
    pid_t pid = fork();
    if (pid == 0) {
        char path[512];
        ssize_t n = readlink("/proc/self/exe", path, sizeof(path) - 1);
        path[n > 0 ? n : 0] = 0;
        snprintf(fd0, sizeof(fd0), "%d", to[0]);
        snprintf(fd1, sizeof(fd1), "%d", back[1]);
        close(to[1]);
        close(back[0]);
        execl(path, path, part, fd0, fd1, (char *)NULL);
        _exit(1);
    }
    close(to[0]);
    close(back[1]);
    *ret_in = to[1];
    *ret_out = back[0];
    return pid;
}

static pid_t importer(int *ret_in, int *ret_out)
{
    return importer_start("import", ret_in, ret_out);
}

static void test_ipc(void)
{
    cudaIpcMemHandle_t h;
    void *p, *q;
    unsigned char b = 0;
    int in, out, status = 1;

    OK(cudaMalloc(&p, 100));
    OK(cudaMemset(p, 0x42, 100));
    OK(cudaDeviceSynchronize());
    OK(cudaIpcGetMemHandle(&h, p));
    CHECK_EQ(cudaIpcOpenMemHandle(&q, h, cudaIpcMemLazyEnablePeerAccess), 201);
    cudaGetLastError();
    pid_t pid = importer(&in, &out);
    CHECK(write(in, &h, sizeof(h)) == sizeof(h));
    CHECK(read(out, &b, 1) == 1 && b == 0x42);
    OK(cudaMemcpy(&b, (char *)p + 50, 1, cudaMemcpyDeviceToHost));
    CHECK(b == 0x99);
    CHECK(write(in, &b, 1) == 1);
    CHECK(read(out, &b, 1) == 1 && b == 0x99);
    CHECK(write(in, &b, 1) == 1);
    waitpid(pid, &status, 0);
    CHECK_EQ(status, 0);
    close(in);
    close(out);
    OK(cudaFree(p));
    OK(cudaMalloc(&p, 4 << 20));
    OK(cudaIpcGetMemHandle(&h, p));
    OK(cudaFree(p));
    pid = importer_start("import-stale", &in, &out);
    CHECK(write(in, &h, sizeof(h)) == sizeof(h));
    CHECK(read(out, &b, 1) == 1);
    waitpid(pid, &status, 0);
    CHECK_EQ(status, 0);
    close(in);
    close(out);
}

/* Memory that an importer has open keeps its bytes when the exporter frees it and gets the address again. */
static void test_ipc_free(void)
{
    enum { BIG = 4 << 20 };
    cudaIpcMemHandle_t h;
    unsigned char b = 0;
    void *p, *q;
    int in, out;

    OK(cudaMalloc(&p, BIG));
    OK(cudaMemset(p, 0x42, BIG));
    OK(cudaIpcGetMemHandle(&h, p));
    OK(cudaMemset((char *)p + BIG - 1, 0x43, 1)); /* after the export: still the same bytes for both */
    OK(cudaDeviceSynchronize());
    pid_t pid = importer(&in, &out);
    CHECK(write(in, &h, sizeof(h)) == sizeof(h));
    CHECK(read(out, &b, 1) == 1 && b == 0x42);
    OK(cudaFree(p));
    OK(cudaMalloc(&q, BIG));
    CHECK(p == q);
    OK(cudaMemcpy(&b, (char *)q + 50, 1, cudaMemcpyDeviceToHost));
    CHECK(b == 0); /* not 0x99, which the importer wrote: fresh memory */
    OK(cudaMemset(q, 0x11, BIG));
    OK(cudaDeviceSynchronize());
    CHECK(write(in, &b, 1) == 1); /* the importer looks again, and writes again */
    CHECK(read(out, &b, 1) == 1 && b == 0x99);
    OK(cudaMemcpy(&b, (char *)q + 50, 1, cudaMemcpyDeviceToHost));
    CHECK(b == 0x11);
    CHECK(write(in, &b, 1) == 1);
    int status = 1;
    waitpid(pid, &status, 0);
    CHECK_EQ(status, 0);
    close(in);
    close(out);
    OK(cudaFree(q));
}

/* A handle of memory that is gone cannot be opened. */
static int import_stale(int in, int out)
{
    cudaIpcMemHandle_t h;
    void *p;

    CHECK(read(in, &h, sizeof(h)) == sizeof(h));
    CHECK(cudaIpcOpenMemHandle(&p, h, cudaIpcMemLazyEnablePeerAccess) != 0);
    CHECK(write(out, &h, 1) == 1);
    return failures != 0;
}

static int import(int in, int out)
{
    cudaIpcMemHandle_t h;
    void *p;
    unsigned char b = 0;

    CHECK(read(in, &h, sizeof(h)) == sizeof(h));
    OK(cudaIpcOpenMemHandle(&p, h, cudaIpcMemLazyEnablePeerAccess));
    CHECK_EQ(cudaFree(p), 1);
    OK(cudaMemset((char *)p + 50, 0x99, 1));
    OK(cudaMemcpy(&b, p, 1, cudaMemcpyDeviceToHost));
    CHECK(write(out, &b, 1) == 1);
    CHECK(read(in, &b, 1) == 1);
    OK(cudaMemcpy(&b, (char *)p + 50, 1, cudaMemcpyDeviceToHost));
    OK(cudaMemset((char *)p + 50, 0x77, 1));
    OK(cudaDeviceSynchronize());
    CHECK(write(out, &b, 1) == 1);
    CHECK(read(in, &b, 1) == 1);
    OK(cudaIpcCloseMemHandle(p));
    return failures != 0;
}

static void test_reset(void)
{
    void *p;
    cudaStream_t s;

    OK(cudaMalloc(&p, 4096));
    OK(cudaStreamCreate(&s));
    OK(cudaMemsetAsync(p, 1, 4096, s));
    OK(cudaDeviceReset());
    CHECK_EQ(cudaFree(p), 1);
    CHECK_EQ(cudaStreamSynchronize(s), cudaErrorInvalidResourceHandle);
    cudaGetLastError();
    OK(cudaMalloc(&p, 4096));
    OK(cudaMemset(p, 1, 4096));
    OK(cudaDeviceSynchronize());
    OK(cudaFree(p));
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
    drv.ctx_current = (__typeof__(drv.ctx_current))dlsym(drv.lib, "cuCtxGetCurrent");
    if (argc == 4 && strcmp(argv[1], "import") == 0)
        return import(atoi(argv[2]), atoi(argv[3]));
    if (argc == 4 && strcmp(argv[1], "import-stale") == 0)
        return import_stale(atoi(argv[2]), atoi(argv[3]));
    if (argc == 4 && strcmp(argv[1], "import-shared") == 0)
        return selftest_import_shared(atoi(argv[2]), atoi(argv[3]));
    if (argc == 3 && strcmp(argv[1], "part") == 0)
        return selftest_part(argv[2]);
    if (argc == 2 && strcmp(argv[1], "bench") == 0) {
        bench();
        return 0;
    }
    test_resolver();
    test_results();
    test_contents();
    test_memory_limit();
    test_order();
    test_capture();
    test_calls();
    test_ipc();
    test_ipc_free();
    test_shared_memory();
    test_env();
    test_reset();
    test_retain_beside_reset();
    test_sticky(); /* last: kills a context */
    printf("%d checks, %d failures\n", checks, failures);
    return failures != 0;
}
