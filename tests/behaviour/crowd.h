/* SPDX-License-Identifier: Apache-2.0 */
/*
 * crowd.h - nearly the whole card was in use and has been freed; now another call or another process wants it. For
 * crowd.c and idle.c.
 *
 * CUPOOL_DECAY is 1 here, unless the environment says otherwise (main sets it and starts the program anew).
 * Memory counts per process on the simulated GPU, so tests with two processes are skipped there.
 */
#ifndef BEHAVIOUR_CROWD_H
#define BEHAVIOUR_CROWD_H

#define BT_OWN_MAIN
#include "behaviour.h"

#include <spawn.h>
#include <sys/wait.h>

#define BLOCKS   4096
#define SPARE_S  10
#define SLACK    (16 * BT_MIB)
#define TAKE_ALL ((size_t)1 << 46)

extern char **environ;

static void *block[BLOCKS];
static int blocks;
static size_t start_free, start_child, peak;

BT_UNUSED static int decay_seconds(void)
{
    const char *decay = getenv("CUPOOL_DECAY");

    return decay && *decay ? atoi(decay) : 10;
}

BT_UNUSED static bool simulated(void)
{
    return bt_driver("simgpu_count") != NULL;
}

/* The free memory by the driver: memory that a pool holds does not count. */
BT_UNUSED static size_t driver_free(void)
{
    CUresult (*get)(size_t *, size_t *) = NULL;
    size_t avail = 0, total;

    *(void **)&get = bt_driver("cuMemGetInfo_v2");
    return get && get(&avail, &total) == CUDA_SUCCESS ? avail : 0;
}

BT_UNUSED static int blocks_free(void)
{
    for (; blocks > 0; blocks--)
        OK(cudaFree(block[blocks - 1]));
    return 0;
}

BT_UNUSED static void clean_up(void)
{
    (void)blocks_free();
}

/* Blocks of n bytes, up to max bytes in all or until one is refused. */
BT_UNUSED static int take(size_t n, size_t max)
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
BT_UNUSED static int hoard(size_t n)
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

BT_UNUSED static int hoard_usual(void)
{
    return hoard(start_free / 64);
}

BT_UNUSED static size_t most(void)
{
    return start_free / 10 * 6;
}

BT_UNUSED static int most_usable(void)
{
    void *p;

    OK(cudaMalloc(&p, most()));
    TRY(bt_fill(p, BT_MIB, 1));
    OK(cudaFree(p));
    return 0;
}

/* --- another process --- */

BT_UNUSED static int child_main(int argc, char **argv)
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
BT_UNUSED static int child(const char *what, size_t n, size_t *ret_number)
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

int main(int argc, char **argv)
{
    size_t total;

    if (argc > 1 && strcmp(argv[1], "--child") == 0)
        return child_main(argc, argv);
    if (!getenv("CUPOOL_DECAY")) { /* the library has read it already */
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
    return bt_main(argc, argv);
}

#endif
