/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lifecycle.c - fork, exec and exit.
 *
 * Each test runs a scenario in a fresh copy of this program (argv: --scenario NAME) and looks at its exit. It does not
 * check the answers of cudaFree while the process goes, only that the process ends in peace.
 */
#include "behaviour.h"

#include <sys/wait.h>

static void *at_exit_p;
static bool in_destructor;

static int child_wait(pid_t pid)
{
    int status = 0;

    CHECK(pid > 0 && waitpid(pid, &status, 0) == pid);
    if (!WIFEXITED(status) || WEXITSTATUS(status))
        return BT_FAIL("child: status 0x%x", status);
    return 0;
}

/* Forked before anything of CUDA: both sides work. */
static int fork_before(void)
{
    pid_t pid = fork();

    if (pid == 0) {
        alarm(60);
        _exit(bt_usable(1 << 20) || bt_usable(100) ? 1 : 0);
    }
    TRY(bt_usable(1 << 20));
    return child_wait(pid);
}

static int fork_twice(void)
{
    for (int i = 0; i < 2; i++) {
        pid_t pid = fork();

        if (pid == 0)
            _exit(bt_usable(5000) ? 1 : 0);
        TRY(child_wait(pid));
    }
    return bt_usable(5000);
}

/* Forked after: the child leaves, the parent goes on. */
static int fork_after(void)
{
    void *p;

    OK(cudaMalloc(&p, 1 << 20));
    TRY(bt_fill(p, 1 << 20, 1));
    for (int i = 0; i < 5; i++) {
        pid_t pid = fork();

        if (pid == 0)
            _exit(0);
        TRY(bt_usable(3000));
        TRY(child_wait(pid));
    }
    TRY(bt_verify(p, 1 << 20, 1));
    OK(cudaFree(p));
    return bt_usable(1 << 20);
}

/* CUDA does not work in such a child, and says so. */
static int fork_after_use(void)
{
    void *p, *q = NULL;
    pid_t pid;

    OK(cudaMalloc(&p, 4096));
    OK(cudaMalloc(&q, 4096));
    OK(cudaFree(q));
    pid = fork();
    if (pid == 0) {
        int rc;

        alarm(60);
        rc = (int)cudaMalloc(&q, 4096);
        if (rc != cudaErrorInitializationError)
            _exit(10 + rc);
        rc = (int)cudaFree(p);
        _exit(rc == cudaErrorInitializationError ? 0 : 100 + rc % 100);
    }
    TRY(child_wait(pid));
    OK(cudaFree(p));
    return bt_usable(4096);
}

static int fork_after_exec(void)
{
    pid_t pid;

    TRY(bt_usable(4096));
    pid = fork();
    if (pid == 0) {
        execl("/proc/self/exe", "lifecycle", "--scenario", "fork_before", (char *)NULL);
        _exit(4);
    }
    TRY(child_wait(pid));
    return bt_usable(4096);
}

static int exit_live(void)
{
    void *p;

    for (int i = 0; i < 20; i++)
        OK(cudaMalloc(&p, (size_t)1 << i));
    return 0;
}

static int exit_busy(void)
{
    void *p, *q;

    OK(cudaMalloc(&p, 4096));
    OK(cudaMalloc(&q, 4096));
    TRY(bt_slow(NULL, 20000));
    OK(cudaMemcpyAsync(q, p, 4096, cudaMemcpyDeviceToDevice, NULL));
    OK(cudaFree(p));
    return 0;
}

static void at_exit(void)
{
    void *q = NULL;

    (void)cudaFree(at_exit_p);
    (void)cudaMalloc(&q, 100);
    (void)cudaFree(q);
}

/* Registered before CUDA starts: runs after the driver's own handlers. */
static int atexit_early(void)
{
    CHECK(atexit(at_exit) == 0);
    OK(cudaMalloc(&at_exit_p, 4096));
    return 0;
}

static int atexit_late(void)
{
    OK(cudaMalloc(&at_exit_p, 4096));
    CHECK(atexit(at_exit) == 0);
    return 0;
}

/* As a C++ program's static object frees. */
__attribute__((destructor)) static void destructor(void)
{
    if (in_destructor)
        at_exit();
}

static int static_destructor(void)
{
    OK(cudaMalloc(&at_exit_p, 4096));
    in_destructor = true;
    return 0;
}

/* Nothing of CUDA at all. */
static int idle(void)
{
    return 0;
}

static int quick_leave(void)
{
    void *p;

    OK(cudaMalloc(&p, 4096));
    _exit(0);
}

static int reset_then_exit(void)
{
    void *p;

    OK(cudaMalloc(&p, 4096));
    OK(cudaDeviceReset());
    return 0;
}

static const struct bt_test scenarios[] = {BT_TEST(fork_before),
                                           BT_TEST(fork_twice),
                                           BT_TEST(fork_after),
                                           BT_TEST(fork_after_use),
                                           BT_TEST(fork_after_exec),
                                           BT_TEST(exit_live),
                                           BT_TEST(exit_busy),
                                           BT_TEST(atexit_early),
                                           BT_TEST(atexit_late),
                                           BT_TEST(static_destructor),
                                           BT_TEST(idle),
                                           BT_TEST(quick_leave),
                                           BT_TEST(reset_then_exit),
                                           {.name = NULL}};

static int scenario_main(const char *name)
{
    for (const struct bt_test *s = scenarios; s->name; s++)
        if (strcmp(s->name, name) == 0) {
            int rc;

            alarm(120);
            rc = s->fn();
            if (rc)
                fprintf(stderr, "%s: %s\n", name, bt_why);
            return rc; /* through exit() */
        }
    return 4;
}

static int scenario_run(const char *name)
{
    pid_t pid;

    fflush(NULL);
    pid = fork();
    if (pid == 0) {
        execl("/proc/self/exe", "lifecycle", "--scenario", name, (char *)NULL);
        _exit(4);
    }
    return child_wait(pid);
}

int main(int argc, char **argv)
{
    int failed = 0, found = 0;

    if (argc == 3 && strcmp(argv[1], "--scenario") == 0)
        return scenario_main(argv[2]);
    for (const struct bt_test *s = scenarios; s->name; s++) {
        int rc;

        if (argc > 1 && strcmp(argv[1], s->name) != 0)
            continue;
        found++;
        rc = scenario_run(s->name);
        failed += rc != 0;
        printf(rc ? "FAIL %s: %s\n" : "ok %s\n", s->name, bt_why);
    }
    return failed || !found;
}
