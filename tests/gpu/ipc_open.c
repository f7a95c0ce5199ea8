/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ipc_open.c - what CUDA IPC costs, and whether the importer sees the right bytes: one process exports blocks of three
 * sizes, a copy of this program opens and closes them, in both directions. It prints a table of medians and the number
 * of wrong bytes.
 *
 *     cc -D_GNU_SOURCE -O2 -I/usr/local/cuda/include -o ipc_open tests/gpu/ipc_open.c -L/usr/local/cuda/lib64 -lcudart
 *     ./ipc_open; for b in cuda vmm; do CUPOOL_BACKEND=$b scripts/cupool-run -- ./ipc_open; done
 *
 * handle: cudaIpcGetMemHandle of a block the first time. first: cudaIpcOpenMemHandle where nothing of the exporter is
 * open. next: where another block of its driver allocation is open, as far as small blocks share one. close: of the
 * last open block of an allocation.
 *
 * It is no test of what happens when a process dies; tests/e2e/test_ipc.py is.
 */
#include <cuda_runtime_api.h>

#include "../program.h"

#define ROUNDS 51

/* The exporter's message: two blocks of a size. */
struct pair {
    cudaIpcMemHandle_t handles[2];
    size_t size;
    unsigned char byte;
};

struct times {
    double first, next, close;
    long wrong;
};

static void fill(void *p, size_t size, unsigned char byte)
{
    OK(cudaMemset(p, byte, size));
    OK(cudaDeviceSynchronize());
}

static long wrong_in(const void *p, size_t size, unsigned char byte)
{
    unsigned char *copy = malloc(size);
    long wrong = 0;

    OK(cudaMemcpy(copy, p, size, cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < size; i++)
        wrong += copy[i] != byte;
    free(copy);
    return wrong;
}

static void transfer(int fd, void *data, size_t size, int writes)
{
    for (size_t done = 0; done < size;) {
        const ssize_t n =
            writes ? write(fd, (char *)data + done, size - done) : read(fd, (char *)data + done, size - done);

        if (n <= 0)
            exit(writes ? 1 : 0); /* the other process has ended */
        done += (size_t)n;
    }
}

/* Opens, reads, writes and closes what the exporter names. */
static void import(int in, int out)
{
    struct times times;
    struct pair pair;
    void *p[2];
    double t;

    OK(cudaFree(NULL));
    for (;;) {
        transfer(in, &pair, sizeof(pair), 0);
        t = now_us();
        OK(cudaIpcOpenMemHandle(&p[0], pair.handles[0], cudaIpcMemLazyEnablePeerAccess));
        times.first = now_us() - t;
        t = now_us();
        OK(cudaIpcOpenMemHandle(&p[1], pair.handles[1], cudaIpcMemLazyEnablePeerAccess));
        times.next = now_us() - t;
        times.wrong = wrong_in(p[0], pair.size, pair.byte) + wrong_in(p[1], pair.size, (unsigned char)(pair.byte + 1));
        fill(p[0], pair.size, (unsigned char)(pair.byte + 2));
        fill(p[1], pair.size, (unsigned char)(pair.byte + 3));
        OK(cudaIpcCloseMemHandle(p[0]));
        t = now_us();
        OK(cudaIpcCloseMemHandle(p[1]));
        times.close = now_us() - t;
        transfer(out, &times, sizeof(times), 1);
    }
}

static double median(double *values)
{
    qsort(values, ROUNDS, sizeof(*values), by_value);
    return values[ROUNDS / 2];
}

static long measure(size_t size, int to, int from)
{
    double handle[ROUNDS], first[ROUNDS], next[ROUNDS], close[ROUNDS], t;
    struct times times;
    struct pair pair = {.size = size};
    void *p[2], *front;
    long wrong = 0;

    OK(cudaMalloc(&front, 5000)); /* a small block that begins a driver allocation is not what is looked for */
    for (int i = 0; i < ROUNDS; i++) {
        pair.byte = (unsigned char)(i * 4);
        for (int k = 0; k < 2; k++) {
            OK(cudaMalloc(&p[k], size));
            fill(p[k], size, (unsigned char)(pair.byte + k));
        }
        t = now_us();
        OK(cudaIpcGetMemHandle(&pair.handles[0], p[0]));
        handle[i] = now_us() - t;
        OK(cudaIpcGetMemHandle(&pair.handles[1], p[1]));
        transfer(to, &pair, sizeof(pair), 1);
        transfer(from, &times, sizeof(times), 0);
        first[i] = times.first;
        next[i] = times.next;
        close[i] = times.close;
        wrong += times.wrong + wrong_in(p[0], size, (unsigned char)(pair.byte + 2)) +
                 wrong_in(p[1], size, (unsigned char)(pair.byte + 3));
        OK(cudaFree(p[0]));
        OK(cudaFree(p[1]));
    }
    OK(cudaFree(front));
    printf("%12zu %9.1f %9.1f %9.1f %9.1f %9ld\n", size, median(handle), median(first), median(next), median(close),
           wrong);
    fflush(stdout);
    return wrong;
}

int main(int argc, char **argv)
{
    static const size_t sizes[] = {100, 300 << 10, 64 << 20};
    int to[2], from[2], status = 0;
    char in[16], out[16];
    long wrong = 0;
    pid_t pid;

    if (argc == 3) {
        import(atoi(argv[1]), atoi(argv[2]));
        return 0;
    }
    if (pipe(to) || pipe(from))
        return 1;
    snprintf(in, sizeof(in), "%d", to[0]);
    snprintf(out, sizeof(out), "%d", from[1]);
    pid = fork();
    if (pid == 0) {
        close(to[1]);
        close(from[0]);
        execl("/proc/self/exe", "ipc_open", in, out, (char *)NULL);
        _exit(1);
    }
    close(to[0]);
    close(from[1]);
    printf("%12s %9s %9s %9s %9s %9s\n", "bytes", "handle us", "first us", "next us", "close us", "wrong");
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        wrong += measure(sizes[i], to[1], from[0]);
    close(to[1]);
    waitpid(pid, &status, 0);
    return wrong || status ? 1 : 0;
}
