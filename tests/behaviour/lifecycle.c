/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lifecycle.c - fork, exec and exit.
 *
 * Each test runs a scenario in a fresh copy of this program (argv: --scenario NAME) and looks at its exit. It does not
 * check the answers of cudaFree while the process goes, only that the process ends in peace.
 */
#define BT_OWN_MAIN
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
BT_TEST(fork_before)
{
    pid_t pid = fork();

    if (pid == 0) {
        alarm(60);
        _exit(bt_usable(1 << 20) || bt_usable(100) ? 1 : 0);
    }
    TRY(bt_usable(1 << 20));
    return child_wait(pid);
}

BT_TEST(fork_twice)
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
BT_TEST(fork_after)
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
BT_TEST(fork_after_use)
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

BT_TEST(fork_after_exec)
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

BT_TEST(exit_live)
{
    void *p;

    for (int i = 0; i < 20; i++)
        OK(cudaMalloc(&p, (size_t)1 << i));
    return 0;
}

BT_TEST(exit_busy)
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
BT_TEST(atexit_early)
{
    CHECK(atexit(at_exit) == 0);
    OK(cudaMalloc(&at_exit_p, 4096));
    return 0;
}

BT_TEST(atexit_late)
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

BT_TEST(static_destructor)
{
    OK(cudaMalloc(&at_exit_p, 4096));
    in_destructor = true;
    return 0;
}

/* Nothing of CUDA at all. */
BT_TEST(idle)
{
    return 0;
}

BT_TEST(quick_leave)
{
    void *p;

    OK(cudaMalloc(&p, 4096));
    _exit(0);
}

BT_TEST(reset_then_exit)
{
    void *p;

    OK(cudaMalloc(&p, 4096));
    OK(cudaDeviceReset());
    return 0;
}

static int scenario_main(const char *name)
{
    const struct bt_test *scenarios[BT_TESTS_MAX];
    const size_t n = bt_all_tests(scenarios);

    for (size_t i = 0; i < n; i++)
        if (strcmp(scenarios[i]->name, name) == 0) {
            int rc;

            alarm(120);
            rc = scenarios[i]->fn();
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
    const struct bt_test *scenarios[BT_TESTS_MAX];
    const size_t n = bt_all_tests(scenarios);
    int failed = 0, found = 0;

    if (argc == 3 && strcmp(argv[1], "--scenario") == 0)
        return scenario_main(argv[2]);
    for (size_t i = 0; i < n; i++) {
        const char *name = scenarios[i]->name;
        int rc;

        if (argc > 1 && strcmp(argv[1], name) != 0)
            continue;
        found++;
        rc = scenario_run(name);
        failed += rc != 0;
        printf(rc ? "FAIL %s: %s\n" : "ok %s\n", name, bt_why);
    }
    return failed || !found;
}
