/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pause_app.c - a program that pauses and resumes its memory. Its arguments are commands, done in order; what the
 * library answers is printed, one line each:
 *
 *   alloc:SIZE           one more block, kept and filled with bytes of its own
 *   free:I               the block of this number (from 0), whose number is not used again
 *   check                are the bytes of all blocks right: "check WRONG OF"
 *   pause:FLAGS          1 keeps, 2 discards: "pause RC REASON"
 *   resume               "resume RC REASON"
 *   forget               the contents are lost on purpose: fill all blocks again
 *   info                 free memory of the device: "free BYTES"
 *   stats                "stats held live paused"
 *   trim
 *   begin end            a relaxed capture, on a stream of its own
 *   graph replay         capture a graph that fills block 0 and copies it to block 1; launch it and wait
 *   busy:MS              a kernel of this length on a stream of its own, and behind it new contents for block 0
 *   device:D reset
 *   cycles:N:FLAGS       so many times: pause, free and get some blocks at random, resume, check: "cycles WRONG OF"
 *   threads:N:ROUNDS     N threads get and free beside a thread that pauses and resumes: "threads WRONG"
 *   retains              from now on a thread retains and releases the primary context of device 0, over and over
 *   exports:ROUNDS       a thread exports blocks beside so many pauses: "exports WRONG", the pauses of exported memory
 *   export               of block 0: "export CUDA_ERROR"
 *   beside:SYMBOL:WORD   at the driver's next call of this symbol another thread does this word, export or pause
 *   mark:TEXT            printed, at once
 *   wait                 until a line comes on stdin
 *
 * Exit code 0; 5 for a word that is none, 6 where CUDA fails.
 */
#include <cuda_runtime_api.h>

#include "../program.h"
#include "cupool.h"

#define BLOCKS_MAX 256
#define CU(call)                                                                                                       \
    do {                                                                                                               \
        const int rc_ = (int)(call);                                                                                   \
        if (rc_) {                                                                                                     \
            fprintf(stderr, "line %d: %d\n", __LINE__, rc_);                                                           \
            fflush(stdout);                                                                                            \
            _exit(6);                                                                                                  \
        }                                                                                                              \
    } while (0)

static struct {
    unsigned char *p;
    size_t size;
    unsigned int seed;
} blocks[BLOCKS_MAX];
static int count, device;
static unsigned int seeds = 1;
static unsigned char *host;
static size_t host_size;
static cudaStream_t stream;
static cudaGraphExec_t exec;

static void host_room(size_t size)
{
    if (size <= host_size)
        return;
    host = realloc(host, size);
    if (!host)
        _exit(6);
    host_size = size;
}

/* The bytes are this thread's alone, and many: the thread sanitizer would take longer for them than for all else. */
__attribute__((no_sanitize("thread"))) static void pattern_write(unsigned char *to, unsigned int seed, size_t size)
{
    unsigned int state = seed * 2654435761u + 1;

    for (size_t i = 0; i < size; i++) {
        if (i % 64 == 0)
            state = state * 1664525u + 1013904223u;
        to[i] = (unsigned char)((state >> 24) + i);
    }
}

/* Bytes of their own for each block, which differ in each 4 KiB as well. */
static void pattern(unsigned int seed, size_t size)
{
    host_room(size);
    pattern_write(host, seed, size);
}

static void fill(int i)
{
    blocks[i].seed = seeds++;
    pattern(blocks[i].seed, blocks[i].size);
    CU(cudaMemcpy(blocks[i].p, host, blocks[i].size, cudaMemcpyHostToDevice));
}

static int is_wrong(int i)
{
    unsigned char *bytes = malloc(blocks[i].size);
    int wrong;

    if (!bytes)
        _exit(6);
    CU(cudaMemcpy(bytes, blocks[i].p, blocks[i].size, cudaMemcpyDeviceToHost));
    pattern(blocks[i].seed, blocks[i].size);
    wrong = memcmp(bytes, host, blocks[i].size) != 0;
    free(bytes);
    return wrong;
}

static void get(int i, size_t size)
{
    CU(cudaMalloc((void **)&blocks[i].p, size));
    blocks[i].size = size;
    fill(i);
}

static void put(int i)
{
    CU(cudaFree(blocks[i].p));
    blocks[i].p = NULL;
}

static int wrong_ones(int *ret_of)
{
    int wrong = 0;

    *ret_of = 0;
    for (int i = 0; i < count; i++) {
        if (!blocks[i].p)
            continue;
        wrong += is_wrong(i);
        ++*ret_of;
    }
    return wrong;
}

static void graph(void)
{
    cudaStream_t own;
    cudaGraph_t made;

    CU(cudaStreamCreate(&own));
    CU(cudaStreamBeginCapture(own, cudaStreamCaptureModeRelaxed));
    CU(cudaMemsetAsync(blocks[0].p, 0x5a, blocks[0].size, own));
    CU(cudaMemcpyAsync(blocks[1].p, blocks[0].p, blocks[0].size, cudaMemcpyDeviceToDevice, own));
    CU(cudaStreamEndCapture(own, &made));
    CU(cudaGraphInstantiate(&exec, made, 0));
}

static void replay(void)
{
    size_t wrong = 0;

    CU(cudaGraphLaunch(exec, 0));
    CU(cudaDeviceSynchronize());
    host_room(blocks[0].size);
    CU(cudaMemcpy(host, blocks[1].p, blocks[0].size, cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < blocks[0].size; i++)
        wrong += host[i] != 0x5a;
    printf("replay %zu\n", wrong);
    fill(0);
    fill(1);
}

static void cycles(int n, unsigned int flags)
{
    int wrong = 0, of = 0, bad = 0, here;
    unsigned int seed = 7;

    for (int n_left = n; n_left; n_left--) {
        bad += cupool_pause(device, flags) != 0;
        for (int i = 0; i < count; i++) {
            if (blocks[i].p && rand_r(&seed) % 8 == 0)
                put(i);
            else if (!blocks[i].p && rand_r(&seed) % 2)
                get(i, (size_t)(rand_r(&seed) % 64 + 1) << (rand_r(&seed) % 8 ? 9 : 16));
        }
        bad += cupool_resume(device) != 0;
        if (flags == CUPOOL_DISCARD)
            for (int i = 0; i < count; i++)
                if (blocks[i].p)
                    fill(i);
        wrong += wrong_ones(&here);
        of += here;
    }
    printf("cycles %d %d %d\n", wrong, bad, of > n);
}

static atomic_bool over;
static atomic_int failures;

static void *work(void *arg)
{
    unsigned int seed = *(unsigned int *)arg, rounds = *(unsigned int *)arg >> 8;
    void *p[8] = {NULL};

    for (unsigned int i = 0; i < rounds; i++) {
        const unsigned int at = (unsigned int)rand_r(&seed) % 8;

        if (p[at] && cudaFree(p[at]))
            failures++;
        if (cudaMalloc(&p[at], (size_t)(rand_r(&seed) % 64 + 1) << (rand_r(&seed) % 2 ? 16 : 9)))
            failures++;
    }
    for (int i = 0; i < 8; i++)
        if (cudaFree(p[i]))
            failures++;
    return NULL;
}

static void *pauses(void *arg)
{
    while (!over) {
        if (cupool_pause(device, CUPOOL_KEEP) || cupool_resume(device))
            failures++;
    }
    return NULL;
}

/* Blocks are got and freed beside the pauses, and not touched. */
static void threads(unsigned int n, unsigned int rounds)
{
    pthread_t others[16] = {0}, pausing;
    unsigned int seed[16];

    pthread_create(&pausing, NULL, pauses, NULL);
    for (unsigned int i = 0; i < n && i < 16; i++) {
        seed[i] = rounds << 8 | i;
        pthread_create(&others[i], NULL, work, &seed[i]);
    }
    for (unsigned int i = 0; i < n && i < 16; i++)
        pthread_join(others[i], NULL);
    over = true;
    pthread_join(pausing, NULL);
    over = false;
    printf("threads %d\n", (int)failures);
}

static atomic_int exported, exports;

static void *export_all(void *arg)
{
    cudaIpcMemHandle_t handle;
    void *p;

    while (!over) {
        CU(cudaMalloc(&p, 600));
        if (!cudaIpcGetMemHandle(&handle, p)) {
            exported = 1;
            exports++;
            usleep(100);
            exported = 0;
        }
        CU(cudaFree(p));
        usleep(100);
    }
    return NULL;
}

static void exports_beside(int rounds)
{
    int wrong = 0, paused = 0;
    pthread_t other;

    pthread_create(&other, NULL, export_all, NULL);
    while (paused < rounds || !exports) {
        usleep(150);
        if (cupool_pause(device, CUPOOL_KEEP))
            continue;
        wrong += exported;
        paused++;
        cupool_resume(device);
    }
    over = true;
    pthread_join(other, NULL);
    over = false;
    printf("exports %d\n", wrong);
}

static void *retain_and_release(void *arg)
{
    int (*retain)(void *, int) = __extension__(int (*)(void *, int)) dlsym(RTLD_DEFAULT, "cuDevicePrimaryCtxRetain");
    int (*release)(int) = __extension__(int (*)(int)) dlsym(RTLD_DEFAULT, "cuDevicePrimaryCtxRelease_v2");
    void *context;

    if (!retain || !release)
        _exit(6);
    while (!retain(&context, 0) && !release(0)) /* until the process ends */
        ;
    return NULL;
}

static void busy(unsigned int ms)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    int (*kernel)(void *, const int *, unsigned int) =
        driver ? (__extension__(int (*)(void *, const int *, unsigned int)) dlsym(driver, "simgpu_kernel")) : NULL;

    if (!stream)
        CU(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CU(kernel ? kernel(stream, NULL, ms * 1000) : 1);
    blocks[0].seed = seeds++;
    pattern(blocks[0].seed, blocks[0].size);
    CU(cudaMemcpyAsync(blocks[0].p, host, blocks[0].size, cudaMemcpyHostToDevice, stream));
}

static void stats(void)
{
    struct cupool_stats now = {0};

    cupool_stats_get(device, &now);
    printf("stats %llu %llu %llu\n", (unsigned long long)now.held, (unsigned long long)now.live,
           (unsigned long long)now.paused);
}

static void reset(void)
{
    CU(cudaDeviceReset());
    count = 0;
    stream = NULL;
}

static void capture(int begins)
{
    static cudaStream_t own;
    cudaGraph_t made;

    if (begins) {
        CU(cudaStreamCreate(&own));
        CU(cudaStreamBeginCapture(own, cudaStreamCaptureModeRelaxed));
    } else {
        CU(cudaStreamEndCapture(own, &made));
    }
}

static void info(void)
{
    size_t left, total;

    CU(cudaMemGetInfo(&left, &total));
    printf("free %zu\n", left);
}

static void await(void)
{
    char line[16];

    fflush(stdout);
    if (!fgets(line, sizeof(line), stdin))
        _exit(0);
}

static void outcome(const char *what, int rc)
{
    printf("%s %d %s\n", what, rc, cupool_pause_reason());
}

static void check(void)
{
    int of = 0;
    const int wrong = wrong_ones(&of);

    printf("check %d %d\n", wrong, of);
}

static void export_first(void)
{
    cudaIpcMemHandle_t handle;

    printf("export %d\n", (int)cudaIpcGetMemHandle(&handle, blocks[0].p));
}

static const char *_Atomic beside;

static void *beside_do(void *word)
{
    if (strcmp(word, "pause") == 0)
        outcome("pause", cupool_pause(device, CUPOOL_KEEP));
    else
        export_first();
    return NULL;
}

static void beside_once(void)
{
    const char *word = atomic_exchange(&beside, NULL);
    pthread_t other;

    if (!word)
        return;
    CU(pthread_create(&other, NULL, beside_do, (void *)(uintptr_t)word));
    CU(pthread_join(other, NULL));
}

static void beside_set(char *symbol)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    void (*before)(const char *, void (*)(void)) = NULL;
    char *colon = strchr(symbol, ':');

    if (driver)
        *(void **)&before = dlsym(driver, "simgpu_before");
    CU(before && colon ? 0 : 1);
    *colon = '\0';
    atomic_store(&beside, colon + 1);
    before(symbol, beside_once);
}

static int answer(const char *arg, const char *colon, const char *second)
{
    const int of = atoi(colon);

    if (strncmp(arg, "pause:", 6) == 0)
        outcome("pause", cupool_pause(device, (unsigned int)of));
    else if (strcmp(arg, "resume") == 0)
        outcome("resume", cupool_resume(device));
    else if (strcmp(arg, "check") == 0)
        check();
    else if (strncmp(arg, "cycles:", 7) == 0)
        cycles(of, (unsigned int)atoi(second));
    else if (strncmp(arg, "threads:", 8) == 0)
        threads((unsigned int)of, (unsigned int)atoi(second));
    else if (strncmp(arg, "exports:", 8) == 0)
        exports_beside(of);
    else if (strcmp(arg, "export") == 0)
        export_first();
    else if (strcmp(arg, "stats") == 0)
        stats();
    else if (strcmp(arg, "info") == 0)
        info();
    else if (strcmp(arg, "trim") == 0)
        printf("trim %d\n", cupool_trim(device) > 0);
    else if (strncmp(arg, "mark:", 5) == 0)
        printf("%s\n", colon);
    else
        return 0;
    return 1;
}

static int command(const char *arg, char *colon)
{
    pthread_t other;

    if (strncmp(arg, "alloc:", 6) == 0)
        get(count++, strtoul(colon, NULL, 0));
    else if (strncmp(arg, "free:", 5) == 0)
        put(atoi(colon));
    else if (strcmp(arg, "forget") == 0)
        for (int i = 0; i < count; i++)
            fill(i);
    else if (strcmp(arg, "begin") == 0 || strcmp(arg, "end") == 0)
        capture(arg[0] == 'b');
    else if (strcmp(arg, "graph") == 0)
        graph();
    else if (strcmp(arg, "replay") == 0)
        replay();
    else if (strncmp(arg, "busy:", 5) == 0)
        busy((unsigned int)atoi(colon));
    else if (strncmp(arg, "device:", 7) == 0)
        CU(cudaSetDevice(device = atoi(colon)));
    else if (strcmp(arg, "reset") == 0)
        reset();
    else if (strcmp(arg, "wait") == 0)
        await();
    else if (strncmp(arg, "beside:", 7) == 0)
        beside_set(colon);
    else if (strcmp(arg, "retains") == 0)
        CU(pthread_create(&other, NULL, retain_and_release, NULL));
    else
        return 0;
    return 1;
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        char *colon = strchr(argv[i], ':'), *second = colon ? strchr(colon + 1, ':') : NULL;

        if (!answer(argv[i], colon ? colon + 1 : "", second ? second + 1 : "") &&
            !command(argv[i], colon ? colon + 1 : argv[i] + strlen(argv[i])))
            return 5;
        fflush(stdout);
    }
    return 0;
}
