/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hang.c - a program that does what makes locks hang. Its first argument is what:
 *
 *   sigexit US          allocate and free for ever; a timer's signal handler calls exit(7) after US microseconds
 *   frees N             N frees during one capture, which has to survive
 *   dlopen LIBRARY      load a library (loaded.c) whose constructor waits for a thread that allocates
 *   dlfirst LIBRARY     the same, and that is the process's first allocation
 *   refused LIBRARY     have a library (loaded.c) ask for more than there is, as the first request of all
 *   theirs LIBRARY      fill the device, free it all, and have a library (loaded.c) allocate half of it
 *   waits SECONDS       free behind device work of that length
 *   flagged N           free N blocks in the order of a stream that waits for what the host does after that
 *   overruns N          write behind N blocks, which CUDA may refuse, and free them beside a stream at rest
 *   apart CODE          exit with that code while one device does what never ends; behind blocks of another was written
 *   busy CODE           exit with that code while the device does what never ends, with memory that is not freed
 *   cancelled CODE      as busy, by a cancelled thread, while the main thread waits for it
 *   stack BYTES         allocate first while threads get such a stack, and wait until freed memory is the driver's,
 *                       whose calls for that need much more
 *   threads N           allocate and free in so many threads that are there at the same time, and in as many one by one
 *   walked N            N rounds of calls that libcudart gets, by a thread for which a walk over all objects waits
 *
 * Exit code: 0; 1 for an error of CUDA; 5 for anything else.
 */
#include <cuda_runtime_api.h>
#include <link.h>
#include <sys/time.h>

#include "../program.h"

static void on_alarm(int sig)
{
    exit(7); /* not allowed in a handler; programs do it NOLINT(bugprone-signal-handler) */
}

static void sigexit(long us)
{
    const struct itimerval timer = {{0, 0}, {us / 1000000, us % 1000000}};
    void *p[4];

    OK(cudaMalloc(&p[0], 100));
    signal(SIGALRM, on_alarm);
    setitimer(ITIMER_REAL, &timer, NULL);
    for (;;) {
        for (int i = 0; i < 4; i++)
            cudaMalloc(&p[i], 5000);
        for (int i = 0; i < 4; i++)
            cudaFree(p[i]);
    }
}

static void on_device(void *seconds)
{
    sleep((unsigned int)*(const long *)seconds);
}

static void waits(long seconds)
{
    void *p;

    OK(cudaMalloc(&p, 100));
    OK(cudaLaunchHostFunc(NULL, on_device, &seconds));
    OK(cudaFree(p));
    OK(cudaDeviceSynchronize());
}

static void on_flag(void *flag)
{
    while (!__atomic_load_n((int *)flag, __ATOMIC_ACQUIRE))
        usleep(100);
}

static void flagged(long n)
{
    static int flag;
    cudaStream_t s;
    void *p;

    alarm(50);
    OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    for (long i = 0; i < n; i++) {
        __atomic_store_n(&flag, 0, __ATOMIC_RELEASE);
        OK(cudaMalloc(&p, 1000));
        OK(cudaLaunchHostFunc(s, on_flag, &flag));
        OK(cudaFreeAsync(p, s));
        __atomic_store_n(&flag, 1, __ATOMIC_RELEASE);
        OK(cudaStreamSynchronize(s));
    }
}

static void overruns(long n)
{
    cudaStream_t s;
    void *p;

    OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    for (long i = 0; i < n; i++) {
        OK(cudaMalloc(&p, 1000));
        OK(cudaMemset(p, 7, 1001));
        OK(cudaDeviceSynchronize());
        OK(cudaFreeAsync(p, s));
    }
}

static void apart(int code)
{
    static int never;
    void *p;

    alarm(50);
    for (int i = 0; i < 40; i++) {
        OK(cudaSetDevice(i % 2));
        OK(cudaMalloc(&p, 1000));
        if (i % 2)
            OK(cudaMemset(p, 7, 1001));
    }
    OK(cudaDeviceSynchronize());
    OK(cudaSetDevice(0));
    OK(cudaLaunchHostFunc(NULL, on_flag, &never));
    exit(code);
}

static void busy(int code)
{
    static int never;
    void *p;

    alarm(50);
    OK(cudaMalloc(&p, 1000));
    OK(cudaLaunchHostFunc(NULL, on_flag, &never));
    exit(code);
}

static void *exits(void *code)
{
    pthread_cancel(pthread_self());
    exit((int)(long)code);
}

static void cancelled(long code)
{
    pthread_t thread;
    void *p;

    OK(cudaMalloc(&p, 1000));
    if (pthread_create(&thread, NULL, exits, (void *)code))
        exit(5);
    pthread_join(thread, NULL);
}

static pthread_barrier_t all_there;

static void *alloc_and_free(void *together)
{
    void *p;

    OK(cudaMalloc(&p, 512));
    if (together)
        pthread_barrier_wait(&all_there);
    OK(cudaFree(p));
    return NULL;
}

static void in_threads(long n)
{
    pthread_t *thread = calloc((size_t)n, sizeof(*thread));

    if (!thread || pthread_barrier_init(&all_there, NULL, (unsigned int)n))
        exit(5);
    for (long i = 0; i < n; i++)
        if (pthread_create(&thread[i], NULL, alloc_and_free, &all_there))
            exit(5);
    join_all(thread, n);
    for (long i = 0; i < n; i++)
        if (pthread_create(thread, NULL, alloc_and_free, NULL) || pthread_join(thread[0], NULL))
            exit(5);
    free(thread);
}

static void frees(long n)
{
    void **p = calloc((size_t)n, sizeof(*p));
    cudaGraph_t graph;
    cudaStream_t s;

    if (!p)
        exit(5);
    OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    for (long i = 0; i < n; i++)
        OK(cudaMalloc(&p[i], 512));
    alarm(50);
    OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed));
    for (long i = 0; i < n; i++)
        OK(cudaFree(p[i]));
    OK(cudaStreamEndCapture(s, &graph));
    OK(cudaGraphDestroy(graph));
    OK(cudaStreamDestroy(s));
    free(p);
}

static void *load(const char *path)
{
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);

    if (!handle) {
        printf("%s\n", dlerror());
        exit(5);
    }
    return handle;
}

static void theirs(const char *path)
{
    int (*allocate)(void **p, size_t n);
    size_t avail, total;
    void *p;

    *(void **)&allocate = dlsym(load(path), "loaded_allocate");
    if (!allocate)
        exit(5);
    OK(cudaMemGetInfo(&avail, &total));
    OK(cudaMalloc(&p, avail / 4 * 3));
    OK(cudaFree(p));
    OK(allocate(&p, avail / 2));
    OK(cudaMemset(p, 1, avail / 2));
}

static void refused(const char *path)
{
    int (*allocate)(void **p, size_t n);
    void *p;

    *(void **)&allocate = dlsym(load(path), "loaded_allocate");
    if (!allocate || allocate(&p, (size_t)1 << 50) != (int)cudaErrorMemoryAllocation)
        exit(5);
}

static void deep(void)
{
    volatile char stack[300 << 10];

    for (size_t i = 0; i < sizeof(stack); i += 512)
        stack[i] = 1;
}

static void small_stack(long bytes)
{
    void (*before)(const char *, void (*)(void)) = NULL;
    unsigned long (*count)(const char *) = NULL, freed;
    pthread_attr_t usual, small;
    void *p, *driver;

    pthread_attr_init(&usual);
    pthread_attr_init(&small);
    OK(cudaFree(NULL));
    driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    if (!driver || !(*(void **)&before = dlsym(driver, "simgpu_before")) ||
        !(*(void **)&count = dlsym(driver, "simgpu_count")))
        exit(5);
    before("cuMemFreeAsync", deep);
    OK(pthread_attr_setstacksize(&small, (size_t)bytes));
    OK(pthread_setattr_default_np(&small));
    OK(cudaMalloc(&p, 3 << 20));
    OK(pthread_setattr_default_np(&usual));
    freed = count("cuMemFree");
    OK(cudaFree(p));
    while (!count("cuMemFreeAsync") && count("cuMemFree") == freed)
        usleep(1000);
}

static void *calls_of_the_runtime(void *rounds)
{
    struct cudaPointerAttributes attributes;
    size_t avail, total;
    cudaGraph_t graph;
    cudaStream_t s;
    void *p;

    for (long i = *(long *)rounds; i > 0; i--) {
        OK(cudaMallocHost(&p, 100));
        OK(cudaPointerGetAttributes(&attributes, p));
        OK(cudaFreeHost(p));
        OK(cudaMemGetInfo(&avail, &total));
        OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
        OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed));
        OK(cudaStreamEndCapture(s, &graph));
        OK(cudaGraphDestroy(graph));
        OK(cudaStreamDestroy(s));
        OK(cudaFree(NULL));
    }
    return NULL;
}

static int on_object(struct dl_phdr_info *info, size_t size, void *rounds)
{
    pthread_t thread;

    if (pthread_create(&thread, NULL, calls_of_the_runtime, rounds))
        exit(5);
    pthread_join(thread, NULL);
    return 1;
}

static void walked(long rounds)
{
    void *p;

    OK(cudaMalloc(&p, 100)); /* CUDA is up */
    alarm(50);
    dl_iterate_phdr(on_object, &rounds);
}

int main(int argc, char **argv)
{
    void *p;

    if (argc != 3)
        return 5;
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (strcmp(argv[1], "sigexit") == 0) {
        sigexit(atol(argv[2]));
    } else if (strcmp(argv[1], "frees") == 0) {
        frees(atol(argv[2]));
    } else if (strcmp(argv[1], "waits") == 0) {
        waits(atol(argv[2]));
    } else if (strcmp(argv[1], "threads") == 0) {
        in_threads(atol(argv[2]));
    } else if (strcmp(argv[1], "stack") == 0) {
        small_stack(atol(argv[2]));
    } else if (strcmp(argv[1], "flagged") == 0) {
        flagged(atol(argv[2]));
    } else if (strcmp(argv[1], "overruns") == 0) {
        overruns(atol(argv[2]));
    } else if (strcmp(argv[1], "apart") == 0) {
        apart(atoi(argv[2]));
    } else if (strcmp(argv[1], "busy") == 0) {
        busy(atoi(argv[2]));
    } else if (strcmp(argv[1], "cancelled") == 0) {
        cancelled(atol(argv[2]));
    } else if (strcmp(argv[1], "dlfirst") == 0) {
        OK(cudaDeviceSynchronize());
        alarm(50);
        load(argv[2]);
    } else if (strcmp(argv[1], "dlopen") == 0) {
        OK(cudaMalloc(&p, 100)); /* CUDA is up: what the constructor waits for is one allocation */
        alarm(50);
        load(argv[2]);
    } else if (strcmp(argv[1], "walked") == 0) {
        walked(atol(argv[2]));
    } else if (strcmp(argv[1], "refused") == 0) {
        refused(argv[2]);
    } else if (strcmp(argv[1], "theirs") == 0) {
        theirs(argv[2]);
    } else {
        return 5;
    }
    return 0;
}
