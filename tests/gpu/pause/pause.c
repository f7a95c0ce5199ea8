/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pause.c - what a pause costs on a real GPU: `run` beside it compiles and starts it under the library.
 *
 *   pause SEGMENTS MIB CYCLES CYCLE_MIB
 *
 * Prints a table: pause and resume of so many segments of so many MiB without their contents and with them (cold: the
 * first time; warm: the pinned pool has the memory), the memory of the card in use, whether a graph replays, and after
 * CYCLES cycles of CYCLE_MIB MiB the number of blocks with wrong bytes. Fewer segments where not so many fit. No
 * figure is asserted. Exit status: 0; 1 bytes were wrong, or a call failed.
 *
 * One thread.
 */
#include <cuda_runtime_api.h>

#include "../../program.h"
#include "cupool.h"

#define MIB      ((size_t)1 << 20)
#define PIECE    (16 * MIB)
#define MOST     256
#define REPEATS  5
#define CU(call) check((int)(call), #call, __LINE__)

static struct {
    unsigned char *p;
    size_t size;
} blocks[MOST];
static int count;
static unsigned char *pattern, *back;

static void check(int rc, const char *call, int line)
{
    if (!rc)
        return;
    fprintf(stderr, "line %d: %s: %d %s\n", line, call, rc, rc < 0 ? cupool_pause_reason() : "");
    exit(1);
}

static double used_mib(void)
{
    size_t left, total;

    CU(cudaMemGetInfo(&left, &total));
    return (double)(total - left) / (double)MIB;
}

/* Bytes that differ in every block and piece. */
static unsigned char salt(int block, size_t at)
{
    return (unsigned char)(block * 31 + (int)(at / PIECE) * 7 + 1);
}

static void fill(int block)
{
    for (size_t at = 0; at < blocks[block].size; at += PIECE) {
        const size_t n = blocks[block].size - at < PIECE ? blocks[block].size - at : PIECE;

        pattern[0] = salt(block, at);
        CU(cudaMemcpy(blocks[block].p + at, pattern, n, cudaMemcpyHostToDevice));
    }
}

static int is_wrong(int block)
{
    for (size_t at = 0; at < blocks[block].size; at += PIECE) {
        const size_t n = blocks[block].size - at < PIECE ? blocks[block].size - at : PIECE;

        pattern[0] = salt(block, at);
        CU(cudaMemcpy(back, blocks[block].p + at, n, cudaMemcpyDeviceToHost));
        if (memcmp(back, pattern, n) != 0)
            return 1;
    }
    return 0;
}

static int wrong_blocks(void)
{
    int wrong = 0;

    for (int i = 0; i < count; i++)
        wrong += is_wrong(i);
    return wrong;
}

/* A pause and a resume; their milliseconds. */
static void cycle(unsigned int flags, double *ret_pause, double *ret_resume, double *ret_used)
{
    double start = now_ms();

    CU(cupool_pause(0, flags));
    *ret_pause = now_ms() - start;
    *ret_used = used_mib();
    start = now_ms();
    CU(cupool_resume(0));
    *ret_resume = now_ms() - start;
}

static void row(const char *what, double pause, double resume, double gib)
{
    printf("%-26s pause %9.2f ms", what, pause);
    if (gib > 0)
        printf(" %6.1f GB/s", gib * 1.073741824 / pause * 1e3);
    printf("   resume %9.2f ms", resume);
    if (gib > 0)
        printf(" %6.1f GB/s", gib * 1.073741824 / resume * 1e3);
    printf("\n");
}

static void repeat(const char *what, unsigned int flags, double gib)
{
    double pause[REPEATS], resume[REPEATS], used;

    for (int i = 0; i < REPEATS; i++)
        cycle(flags, &pause[i], &resume[i], &used);
    qsort(pause, REPEATS, sizeof(*pause), by_value);
    qsort(resume, REPEATS, sizeof(*resume), by_value);
    row(what, pause[REPEATS / 2], resume[REPEATS / 2], gib);
}

static int take(int wanted, size_t mib)
{
    while (count < wanted && count < MOST && cudaMalloc((void **)&blocks[count].p, mib * MIB) == cudaSuccess)
        blocks[count++].size = mib * MIB;
    cudaGetLastError();
    return count;
}

static cudaGraphExec_t graph(void)
{
    cudaStream_t stream;
    cudaGraph_t made;
    cudaGraphExec_t exec;

    CU(cudaStreamCreate(&stream));
    CU(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    CU(cudaMemcpyAsync(blocks[0].p, blocks[1].p, PIECE, cudaMemcpyDeviceToDevice, stream));
    CU(cudaStreamEndCapture(stream, &made));
    CU(cudaGraphInstantiate(&exec, made, 0));
    return exec;
}

static int big(int segments, size_t mib, double context)
{
    double pause, resume, used, gib;
    cudaGraphExec_t exec;
    int wrong;

    gib = (double)take(segments, mib) * (double)mib / 1024;
    if (count < 2)
        check(1, "no memory", __LINE__);
    printf("segments                   %d of %zu MiB; card in use before %.0f MiB, with them %.0f\n", count, mib,
           context, used_mib());
    exec = graph();
    repeat("discard, median of 5", CUPOOL_DISCARD, 0);
    for (int i = 0; i < count; i++)
        fill(i);
    cycle(CUPOOL_KEEP, &pause, &resume, &used);
    row("keep, cold", pause, resume, gib);
    printf("card in use while paused   %.0f MiB\n", used);
    repeat("keep, warm, median of 5", CUPOOL_KEEP, gib);
    wrong = wrong_blocks();
    printf("wrong blocks               %d of %d\n", wrong, count);
    CU(cudaGraphLaunch(exec, 0));
    CU(cudaDeviceSynchronize());
    pattern[0] = salt(1, 0);
    CU(cudaMemcpy(back, blocks[0].p, PIECE, cudaMemcpyDeviceToHost));
    printf("graph replays              %s\n", memcmp(back, pattern, PIECE) == 0 ? "yes" : "no, wrong bytes");
    wrong += memcmp(back, pattern, PIECE) != 0;
    while (count)
        CU(cudaFree(blocks[--count].p));
    cupool_trim(0);
    return wrong;
}

/* Blocks of many sizes, some of which are freed and got again while the device is paused. */
static int cycles(int n, size_t mib)
{
    unsigned int seed = 5;
    int wrong = 0;

    for (size_t left = mib * MIB; left && count < 64; count++) {
        blocks[count].size = ((size_t)(rand_r(&seed) % 100) + 1) << (count % 2 ? 18 : 9);
        blocks[count].size = blocks[count].size < left ? blocks[count].size : left;
        left -= blocks[count].size;
        CU(cudaMalloc((void **)&blocks[count].p, blocks[count].size));
        fill(count);
    }
    for (int i = 0; i < n; i++) {
        const int at = (int)(rand_r(&seed) % (unsigned int)count);

        CU(cupool_pause(0, CUPOOL_KEEP));
        CU(cudaFree(blocks[at].p));
        CU(cudaMalloc((void **)&blocks[at].p, blocks[at].size));
        fill(at);
        CU(cupool_resume(0));
        wrong += wrong_blocks();
    }
    printf("%d cycles of %d blocks     wrong %d\n", n, count, wrong);
    return wrong;
}

int main(int argc, char **argv)
{
    unsigned int state = 1;
    double context;
    int wrong;

    if (argc != 5 || !cupool_enabled()) {
        fprintf(stderr, "pause SEGMENTS MIB CYCLES CYCLE_MIB, with libcupool.so preloaded\n");
        return 1;
    }
    CU(cudaHostAlloc((void **)&pattern, PIECE, 0));
    CU(cudaHostAlloc((void **)&back, PIECE, 0));
    for (size_t i = 0; i < PIECE; i++)
        pattern[i] = (unsigned char)((state = state * 1664525u + 1013904223u) >> 24);
    context = used_mib();
    wrong = big(atoi(argv[1]), (size_t)atol(argv[2]), context);
    wrong += cycles(atoi(argv[3]), (size_t)atol(argv[4]));
    return wrong != 0;
}
