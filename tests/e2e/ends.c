/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ends.c - contexts that end while other threads are in calls on them, on the simulated GPU. Its first argument is how:
 *
 *   reset N       cudaDeviceReset N times beside threads that allocate and free
 *   release N     threads that retain the primary context N times, use it and release it
 *   destroy N     cuCtxDestroy of N contexts that are current in threads that allocate and free
 *   waiting WHERE the primary context is reset while a thread waits for the device: in cudaFree (free), or because it
 *                 asked for memory that the pool has to give back (request)
 *   threads N     the first thread ends and then N others, which end the process
 *   streams N     N streams that capture are destroyed beside threads whose captures begin and end
 *   capture LIB   a capture is ended by a library (ends_deep.c) past the hooks of a preload
 *
 * Natively too the calls beside an end may fail. Afterwards all has to be well. Exit code: 0; 1 for an error of CUDA.
 */
#include <cuda.h>
#include <cuda_runtime_api.h>

#include "../program.h"
#include "simgpu.h"

#define THREADS 4
#define BLOCKS  16
#define DEVICE  ((size_t)1 << 30) /* bytes of one, as the test has it */

static atomic_bool stop;
static _Atomic(CUcontext) shared;
static atomic_ulong calls;

static CUcontext created(void)
{
    CUcontext ctx;

#if CUDA_VERSION >= 13000
    OK(cuCtxCreate(&ctx, NULL, 0, 0));
#else
    OK(cuCtxCreate(&ctx, 0, 0));
#endif
    OK(cuCtxPopCurrent(NULL));
    return ctx;
}

static pthread_t started(void *(*fn)(void *), void *arg)
{
    pthread_t thread;

    if (pthread_create(&thread, NULL, fn, arg))
        exit(5);
    return thread;
}

/* Pointers of a context that is gone are not freed: they may be another thread's by then. */
static void *requests_runtime(void *arg)
{
    unsigned int seed = (unsigned int)(uintptr_t)arg;
    void *p[BLOCKS] = {NULL};

    while (!atomic_load(&stop)) {
        void **block = &p[(unsigned int)rand_r(&seed) % BLOCKS];
        const size_t size = 1 + (size_t)rand_r(&seed) % ((size_t)1 << (rand_r(&seed) % 23));

        if (*block)
            cudaFree(*block);
        if (cudaMalloc(block, size))
            *block = NULL;
        atomic_fetch_add(&calls, 1);
    }
    return NULL;
}

/* Until so many more requests and frees have been made. */
static void calls_wait(unsigned long more)
{
    const unsigned long until = atomic_load(&calls) + more;

    while (atomic_load(&calls) < until)
        sched_yield();
}

static void usable(void)
{
    size_t n;
    void *p;

    for (int i = 0; i < 24; i++) {
        n = (size_t)1 << i;
        OK(cudaMalloc(&p, n));
        OK(cudaMemset(p, 1, n));
        OK(cudaFree(p));
    }
    OK(cudaDeviceSynchronize());
}

static void reset(long times)
{
    pthread_t threads[THREADS];

    for (uintptr_t i = 0; i < THREADS; i++)
        threads[i] = started(requests_runtime, (void *)(i + 1));
    for (long i = 0; i < times; i++) {
        calls_wait(200);
        OK(cudaDeviceReset());
    }
    atomic_store(&stop, true);
    join_all(threads, THREADS);
    OK(cudaDeviceReset()); /* and with it what a thread has freed that was another's by then */
    usable();
}

static void *retains(void *arg)
{
    const long times = *(const long *)arg;

    for (long i = 0; i < times; i++) {
        CUdeviceptr p[4];
        CUcontext ctx;

        OK(cuDevicePrimaryCtxRetain(&ctx, 0));
        OK(cuCtxSetCurrent(ctx));
        for (int k = 0; k < 4; k++) {
            OK(cuMemAlloc(&p[k], 1 + (size_t)(i * 4 + k) % 3000));
            OK(cuMemsetD8Async(p[k], 1, 1, NULL));
        }
        for (int k = 0; k < 3; k++)
            OK(cuMemFree(p[k]));
        OK(cuCtxSetCurrent(NULL));
        OK(cuDevicePrimaryCtxRelease(0));
        if (i % 7 == 0)
            usleep(50);
    }
    return NULL;
}

static void release(long times)
{
    pthread_t threads[THREADS];

    OK(cuInit(0));
    for (int i = 0; i < THREADS; i++)
        threads[i] = started(retains, &times);
    join_all(threads, THREADS);
    usable();
}

static void *requests_driver(void *arg)
{
    unsigned int seed = (unsigned int)(uintptr_t)arg;
    CUdeviceptr p;

    while (!atomic_load(&stop)) {
        if (cuCtxSetCurrent(atomic_load(&shared)) || cuMemAlloc(&p, 1 + (size_t)rand_r(&seed) % (4 << 20)))
            continue;
        cuMemFree(p);
        atomic_fetch_add(&calls, 1);
    }
    return NULL;
}

static void destroy(long times)
{
    pthread_t threads[THREADS];
    CUcontext ctx, next;

    OK(cuInit(0));
    ctx = created();
    atomic_store(&shared, ctx);
    for (uintptr_t i = 0; i < THREADS; i++)
        threads[i] = started(requests_driver, (void *)(i + 1));
    for (long i = 0; i < times; i++) {
        calls_wait(50);
        next = created();
        if (i % 2)
            atomic_store(&shared, next);
        OK(cuCtxDestroy(ctx));
        atomic_store(&shared, next);
        ctx = next;
    }
    atomic_store(&stop, true);
    join_all(threads, THREADS);
    OK(cuCtxDestroy(ctx));
    OK(cudaSetDevice(0));
    usable();
}

static void *waits_in_free(void *p)
{
    cudaFree(p); /* whatever it returns, and the same below */
    return NULL;
}

/* Natively in the free, preloaded while the pool gives back what the request needs. */
static void *waits_in_request(void *p)
{
    void *more;

    cudaFree(p);
    cudaMallocAsync(&more, DEVICE / 4 * 3, NULL);
    return NULL;
}

/* Calls of the driver that may wait for the device. */
static unsigned long waits(void)
{
    return simgpu_count("cuMemFree") + simgpu_count("cuCtxSynchronize") + simgpu_count("cuStreamSynchronize") +
           simgpu_count("cuStreamQuery");
}

static atomic_int over;

/* The device's work ends once the reset has got as far as the driver: a reset that waits for it first never returns. */
static void *ends_work(void *arg)
{
    while (!simgpu_count("cuDevicePrimaryCtxReset"))
        usleep(100);
    atomic_store(&over, 1);
    return NULL;
}

static void waiting(void *(*fn)(void *))
{
    unsigned long before;
    pthread_t thread, end;
    cudaStream_t s;
    void *p;

    OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    OK(cudaMalloc(&p, DEVICE / 2));
    OK((cudaError_t)simgpu_kernel(s, (const int *)&over, 60000000));
    before = waits();
    end = started(ends_work, NULL);
    thread = started(fn, p);
    while (waits() == before)
        usleep(100);
    OK(cudaDeviceReset());
    pthread_join(thread, NULL);
    pthread_join(end, NULL);
    usable();
}

static void *kept;

static void free_kept(void)
{
    printf("freed at exit: %d\n", (int)cudaFree(kept));
}

static void *some_requests(void *arg)
{
    void *p;

    for (int i = 0; i < 100; i++) {
        OK(cudaMalloc(&p, 1 + (size_t)rand_r(&(unsigned int){(unsigned int)i}) % (4 << 20)));
        OK(cudaFree(p));
    }
    return arg;
}

static void threads(long n)
{
    OK(cudaMalloc(&kept, 1000));
    atexit(free_kept);
    while (n--)
        started(some_requests, NULL);
    pthread_exit(NULL);
}

static void *captures(void *arg)
{
    cudaStream_t s;
    cudaGraph_t graph;

    OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    while (!atomic_load(&stop)) {
        OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed));
        OK(cudaStreamEndCapture(s, &graph));
        OK(cudaGraphDestroy(graph));
    }
    OK(cudaStreamDestroy(s));
    return arg;
}

static void streams(long times)
{
    pthread_t threads[2] = {started(captures, NULL), started(captures, NULL)};
    cudaStream_t s;

    for (long i = 0; i < times; i++) {
        OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
        OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed));
        OK(cudaStreamDestroy(s));
    }
    atomic_store(&stop, true);
    join_all(threads, 2);
    usable();
}

static void capture(const char *path)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND), *p;
    size_t before, avail, total;
    int (*end)(cudaStream_t);
    cudaStream_t s;

    if (!library || !(*(void **)&end = dlsym(library, "deep_end_capture")))
        exit(5);
    OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    OK(cudaMemGetInfo(&before, &total));
    OK(cudaMalloc(&p, 64 << 20));
    OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed));
    OK((cudaError_t)end(s));
    OK(cudaFree(p));
    /* It is memory again, now or in a while. */
    do
        OK(cudaMemGetInfo(&avail, &total));
    while (avail < before);
    usable();
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 5;
    setvbuf(stdout, NULL, _IOLBF, 0);
    alarm(60); /* a hang is a failure, too */
    if (strcmp(argv[1], "reset") == 0)
        reset(atol(argv[2]));
    else if (strcmp(argv[1], "release") == 0)
        release(atol(argv[2]));
    else if (strcmp(argv[1], "destroy") == 0)
        destroy(atol(argv[2]));
    else if (strcmp(argv[1], "waiting") == 0)
        waiting(strcmp(argv[2], "free") == 0 ? waits_in_free : waits_in_request);
    else if (strcmp(argv[1], "threads") == 0)
        threads(atol(argv[2]));
    else if (strcmp(argv[1], "streams") == 0)
        streams(atol(argv[2]));
    else if (strcmp(argv[1], "capture") == 0)
        capture(argv[2]);
    else
        return 5;
    return 0;
}
