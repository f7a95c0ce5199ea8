/* SPDX-License-Identifier: Apache-2.0 */
/*
 * switch.c - what it costs a server to change its model, in three ways: another process stops and one for the next
 * model starts; the parameters are copied from pinned memory; they are inserted at the place of the last model's
 * (cupool_insert), where a parameter server has brought them. It prints a table of medians and the wrong bytes.
 *
 *     cc -D_GNU_SOURCE -O2 -Iinclude -I/usr/local/cuda/include -o switch tests/gpu/switch.c -L/usr/local/cuda/lib64
 * -lcudart CUPOOL_BACKEND=vmm CUPOOL_TRACE_FILE=off scripts/cupool-run -- ./switch [MIB [ROUNDS]]
 *
 * Defaults: 1024 MiB, 11 rounds. It takes three times MIB of the card, and as much of the host's memory. Exit status:
 * 0; 1: wrong bytes, or a call that failed.
 *
 * stop and restart: from the end of the old process to the last byte in the card: a context, cudaMalloc, and a copy
 * from memory that the host has in its cache. copy: into memory that is there. insert: cupool_withdraw of the last
 * model and cupool_insert of the next, on an idle device; first use: the first and the last eight bytes, read after
 * that.
 */
#include <cuda_runtime_api.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "../program.h"
#include "cupool.h"

#define MODELS     2
#define ROUNDS_MAX 1001

struct row {
    const char *name;
    double ms[ROUNDS_MAX];
};

static size_t size;
static int rounds;

static void row_print(struct row *row)
{
    qsort(row->ms, (size_t)rounds, sizeof(*row->ms), by_value);
    printf("%-18s %10.3f  (%.3f to %.3f)\n", row->name, row->ms[rounds / 2], row->ms[0], row->ms[rounds - 1]);
}

static int byte_of(int model)
{
    return 0x11 * (model + 1);
}

/* --- the process for one model, which starts anew --- */

static int fresh_run(const char *fd)
{
    void *block, *host = mmap(NULL, size, PROT_READ, MAP_SHARED, atoi(fd), 0);
    char c = 1;

    if (host == MAP_FAILED)
        return 1;
    OK(cudaMalloc(&block, size));
    OK(cudaMemcpy(block, host, size, cudaMemcpyHostToDevice));
    OK(cudaDeviceSynchronize());
    if (write(1, &c, 1) != 1)
        return 1;
    return (int)read(0, &c, 1); /* until the parent ends it */
}

static pid_t fresh_start(int fd, int *ret_end)
{
    int ends[2];
    posix_spawn_file_actions_t actions;
    char c, number[16], mib[24], *words[] = {"switch", mib, "1", number, NULL};
    pid_t child;

    OK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends));
    snprintf(number, sizeof(number), "%d", fd);
    snprintf(mib, sizeof(mib), "%zu", size >> 20);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], 0);
    posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
    OK(posix_spawn(&child, "/proc/self/exe", &actions, NULL, words, environ));
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    OK(read(ends[0], &c, 1) != 1);
    *ret_end = ends[0];
    return child;
}

static void restart_measure(struct row *row)
{
    const int fd = (int)syscall(SYS_memfd_create, "parameters", 0);
    char *host;
    int end, last_end;
    pid_t last;

    OK(ftruncate(fd, (off_t)size));
    host = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    memset(host, byte_of(0), size);
    last = fresh_start(fd, &last_end);
    for (int i = 0; i < rounds; i++) {
        const double start = now_ms();

        kill(last, SIGKILL);
        waitpid(last, NULL, 0);
        last = fresh_start(fd, &end);
        row->ms[i] = now_ms() - start;
        close(last_end);
        last_end = end;
    }
    kill(last, SIGKILL);
    waitpid(last, NULL, 0);
    close(last_end);
    munmap(host, size);
    close(fd);
}

/* --- the server --- */

static void copy_measure(struct row *row)
{
    void *block, *host;

    OK(cudaMalloc(&block, size));
    OK(cudaMallocHost(&host, size));
    memset(host, byte_of(0), size);
    for (int i = 0; i < rounds; i++) {
        const double start = now_ms();

        OK(cudaMemcpyAsync(block, host, size, cudaMemcpyHostToDevice, NULL));
        OK(cudaDeviceSynchronize());
        row->ms[i] = now_ms() - start;
    }
    OK(cudaFreeHost(host));
    OK(cudaFree(block));
}

static size_t wrong_in(const void *block, int model)
{
    unsigned char *host = malloc(size);
    size_t wrong = 0;

    OK(cudaMemcpy(host, block, size, cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < size; i++)
        wrong += host[i] != byte_of(model);
    free(host);
    return wrong;
}

static void first_use(const char *place)
{
    uint64_t word;

    OK(cudaMemcpy(&word, place, sizeof(word), cudaMemcpyDeviceToHost));
    OK(cudaMemcpy(&word, place + size - sizeof(word), sizeof(word), cudaMemcpyDeviceToHost));
}

static size_t insert_measure(int parameters, struct row *row, struct row *withdraw, struct row *insert, struct row *use)
{
    struct cupool_ticket tickets[MODELS];
    int64_t imports[MODELS];
    size_t wrong = 0;
    void *place;

    OK(read(parameters, tickets, sizeof(tickets)) != sizeof(tickets));
    OK(cupool_reserve(size, &place));
    for (int m = 0; m < MODELS; m++) {
        imports[m] = cupool_import(&tickets[m], NULL);
        OK(imports[m] < 0 ? imports[m] : 0);
    }
    OK(cupool_insert(place, imports[1]));
    first_use(place);
    for (int i = 0; i < rounds; i++) {
        const double start = now_ms();
        double withdrawn, inserted;

        OK(cupool_withdraw(place));
        withdrawn = now_ms();
        OK(cupool_insert(place, imports[i % MODELS]));
        inserted = now_ms();
        first_use(place);
        use->ms[i] = now_ms() - inserted;
        row->ms[i] = inserted - start;
        withdraw->ms[i] = withdrawn - start;
        insert->ms[i] = inserted - withdrawn;
        if (i < MODELS || i + MODELS >= rounds)
            wrong += wrong_in(place, i % MODELS);
    }
    OK(cupool_withdraw(place));
    for (int m = 0; m < MODELS; m++)
        OK(cupool_import_close(imports[m]));
    OK(cupool_unreserve(place));
    return wrong;
}

/* --- the parameter server --- */

static int parameters_serve(int socket)
{
    struct cupool_ticket tickets[MODELS];
    void *block;
    char c;

    if (read(socket, &c, 1) != 1)
        return 1;
    for (int m = 0; m < MODELS; m++) {
        OK(cudaMalloc(&block, size));
        OK(cudaMemset(block, byte_of(m), size));
        OK(cudaDeviceSynchronize());
        OK(cupool_export(block, &tickets[m]));
    }
    return write(socket, tickets, sizeof(tickets)) != sizeof(tickets) || read(socket, &c, 1) != 0;
}

int main(int argc, char **argv)
{
    static struct row restart = {.name = "stop and restart"}, copy = {.name = "copy"}, row = {.name = "insert"},
                      withdraw = {.name = "  withdraw"}, insert = {.name = "  insert"}, use = {.name = "first use"};
    int ends[2];
    size_t wrong;

    size = (size_t)(argc > 1 ? atoi(argv[1]) : 1024) << 20;
    rounds = argc > 2 ? atoi(argv[2]) : 11;
    if (argc == 4)
        return fresh_run(argv[3]);
    if (size < (size_t)2 << 20 || rounds < 1 || rounds > ROUNDS_MAX || !cupool_enabled()) {
        fprintf(stderr, "usage, under cupool: switch [MIB [ROUNDS]], 2 MiB or more\n");
        return 1;
    }
    OK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends));
    if (fork() == 0) {
        close(ends[0]);
        return parameters_serve(ends[1]);
    }
    close(ends[1]);
    restart_measure(&restart);
    copy_measure(&copy);
    OK(write(ends[0], "", 1) != 1);
    wrong = insert_measure(ends[0], &row, &withdraw, &insert, &use);
    printf("switch of a model of %zu MiB, ms: median (least to most) of %d\n", size >> 20, rounds);
    row_print(&restart);
    row_print(&copy);
    row_print(&row);
    row_print(&withdraw);
    row_print(&insert);
    row_print(&use);
    printf("wrong bytes: %zu\n", wrong);
    close(ends[0]);
    wait(NULL);
    return wrong != 0;
}
