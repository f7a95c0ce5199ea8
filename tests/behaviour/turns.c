/* SPDX-License-Identifier: Apache-2.0 */
/*
 * turns.c - two processes of one user on one card that take most of it in turns, 0.1 s apart: natively a process that
 * has freed its memory keeps none of it, so no request is refused.
 *
 * The library must not wait for CUPOOL_DECAY here: what it holds without need goes to the other process when the driver
 * refuses that a request. Memory that goes back by time is in idle.c. On the simulated GPU the two processes share a
 * card by SIMGPU_SHARED: a file that each run makes for itself, and that has no name, so that nothing is left of it.
 *
 * turns --other: the other process, with the same preload. It reads letters from stdin and answers each with one: 't'
 * takes its part and frees it, 'w' frees it while the device is at work.
 */
#define BT_OWN_MAIN
#include "behaviour.h"

#include <spawn.h>
#include <sys/wait.h>

#define REQUESTS 12
#define APART_US 100000
/* Work of this length is over before the library gives up. */
#define WORK_US 20000

extern char **environ;

static struct {
    pid_t pid; /* 0: not started */
    int to, from;
} other;
static size_t part; /* bytes */

static bool simulated(void)
{
    return bt_driver("simgpu_count") != NULL;
}

/* Take the part and free it, at once or while the device is at work. */
static int take(bool at_work)
{
    cudaStream_t s;
    void *p;
    int rc;

    OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    rc = (int)cudaMalloc(&p, part);
    if (rc == 0) {
        TRY(bt_fill(p, BT_MIB, 1));
        if (at_work)
            TRY(bt_slow(s, WORK_US));
        OK(cudaFree(p));
    }
    OK(cudaStreamSynchronize(s));
    OK(cudaStreamDestroy(s));
    return rc;
}

static int part_find(void)
{
    size_t avail, total;

    OK(cudaMemGetInfo(&avail, &total));
    part = avail / 10 * 7;
    return 0;
}

/* --- the other process --- */

static int other_main(void)
{
    char letter;

    if (cudaFree(NULL) || part_find())
        return 3;
    for (; read(0, &letter, 1) == 1;) {
        const int rc = letter == '?' ? 0 : take(letter == 'w');
        const char answer = rc == 0 ? 'o' : rc == cudaErrorMemoryAllocation ? 'r' : 'e';

        (void)cudaGetLastError();
        if (write(1, &answer, 1) != 1)
            return 3;
    }
    return 0;
}

static void other_end(void)
{
    int status;

    if (!other.pid)
        return;
    close(other.to);
    close(other.from);
    waitpid(other.pid, &status, 0);
    other.pid = 0;
}

/* Have it do something. 'o': done, 'r': it was refused memory; else an error. */
static char other_does(char letter)
{
    char answer = 'e';

    return write(other.to, &letter, 1) == 1 && read(other.from, &answer, 1) == 1 ? answer : 'e';
}

static int other_start(void)
{
    char program[] = "/proc/self/exe", option[] = "--other", *argv[] = {program, option, NULL};
    posix_spawn_file_actions_t files;
    int to[2], from[2], rc;

    CHECK(pipe(to) == 0 && pipe(from) == 0);
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_adddup2(&files, to[0], 0);
    posix_spawn_file_actions_adddup2(&files, from[1], 1);
    for (int i = 0; i < 2; i++) {
        posix_spawn_file_actions_addclose(&files, to[i]);
        posix_spawn_file_actions_addclose(&files, from[i]);
    }
    rc = posix_spawn(&other.pid, program, &files, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&files);
    close(to[0]);
    close(from[1]);
    other.to = to[1];
    other.from = from[0];
    CHECK(rc == 0);
    CHECK(other_does('?') == 'o'); /* its context takes memory, too */
    return part_find();
}

static int turns(bool at_work)
{
    char text[REQUESTS + 1] = "";
    int refused = 0;

    TRY(other_start());
    for (int i = 0; i < REQUESTS; i++) {
        const int rc = i % 2 ? 0 : take(at_work);

        text[i] = (char)(i % 2 ? other_does(at_work ? 'w' : 't') : rc == cudaErrorMemoryAllocation ? 'r' : 'o');
        CHECK(rc == 0 || rc == cudaErrorMemoryAllocation);
        CHECK(text[i] != 'e');
        (void)cudaGetLastError();
        refused += text[i] == 'r';
        bt_nap(APART_US);
    }
    other_end();
    if (refused)
        return BT_FAIL("%d of %d requests of %zu MiB were refused: %s", refused, REQUESTS, part / BT_MIB, text);
    return 0;
}

BT_TEST(in_turns)
{
    return turns(false);
}

BT_TEST(behind_work)
{
    if (simulated())
        SKIP("the work may take longer on a busy machine");
    return turns(true);
}

/* Calls that no pool serves find the memory as well. */
BT_TEST(other_calls)
{
    cudaMemPool_t pool;
    cudaStream_t s;
    size_t width;
    void *p;

    TRY(other_start());
    CHECK(other_does('t') == 'o');
    OK(cudaMalloc(&p, BT_MIB)); /* the library has begun */
    OK(cudaFree(p));
    OK(cudaMallocPitch(&p, &width, BT_MIB, part / BT_MIB));
    OK(cudaFree(p));
    CHECK(other_does('t') == 'o');
    OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    OK(cudaMallocAsync(&p, part, s));
    OK(cudaFreeAsync(p, s));
    OK(cudaStreamSynchronize(s));
    OK(cudaDeviceGetDefaultMemPool(&pool, 0));
    OK(cudaMemPoolTrimTo(pool, 0));
    OK(cudaStreamDestroy(s));
    CHECK(other_does('t') == 'o');
    other_end();
    return 0;
}

/* A simulated GPU reads this with the first call. */
static bool card_make(void)
{
    static FILE *file; /* until this process ends */
    char path[64];

    file = tmpfile();
    if (!file)
        return false;
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)getpid(), fileno(file));
    return setenv("SIMGPU_SHARED", path, 1) == 0;
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "--other") == 0)
        return other_main();
    bt_cleanup = other_end;
    if ((simulated() && !card_make()) || cudaFree(NULL)) {
        printf("FAIL start\n");
        return 1;
    }
    return bt_main(argc, argv);
}
