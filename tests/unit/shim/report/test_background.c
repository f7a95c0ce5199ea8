/* SPDX-License-Identifier: Apache-2.0 */
/* test_background.c - the background thread sleeps in a poll of the descriptors that its jobs name, so that it answers
 * at once; at exit it ends, and then the jobs. shim/report/background_thread.c alone, with jobs and a poll that are
 * made up here. Not here: what the jobs do, exit, threads that end (tests/e2e). */
#include <sys/wait.h>

#include "base/conf.h"
#include "base/log.h"
#include "base/process.h"
#include "cases.h"
#include "clock.h"
#include "context/device.h"
#include "context/limits.h"
#include "report/background_thread.h"
#include "trace/trace.h"
#include "trace/writer.h"
#include "wrapped.h"

#define FIRST     1000
#define SECOND    1001
#define WAKINGS   3
#define SECOND_NS UINT64_C(1000000000)

static atomic_uint ticks, polls, wrong, ended;

/* --- what the thread calls --- */

__thread unsigned int process_depth __attribute__((tls_model("initial-exec")));

static struct conf conf = {.decay.number = UINT64_MAX};

const struct conf *conf_get(void)
{
    return &conf;
}

bool process_is_foreign(void)
{
    return false;
}

static atomic_uint decays, decay_age;

void context_decay_all(unsigned int age)
{
    atomic_store(&decay_age, age);
    atomic_fetch_add(&decays, 1);
}

bool trace_writes_behind(void)
{
    return false;
}

void trace_write_end(void)
{
}

void log_write(enum conf_log_level level, const char *format, ...)
{
}

WRAPPED(int, ppoll, (struct pollfd * fds, nfds_t count, const struct timespec *time, const sigset_t *mask))
{
    if (count != 2 || fds[0].fd != FIRST || fds[1].fd != SECOND)
        atomic_store(&wrong, 1);
    atomic_fetch_add(&polls, 1);
    return 1;
}

/* --- jobs --- */

static uint64_t never(uint64_t now)
{
    return UINT64_MAX;
}

static void tick(uint64_t now)
{
    atomic_fetch_add(&ticks, 1);
}

static atomic_bool sticks, stuck;

static void may_stick(uint64_t now)
{
    while (atomic_load(&sticks)) {
        atomic_store(&stuck, true);
        nap_ns(1000000);
    }
}

static void nothing(uint64_t now)
{
}

static void end(void)
{
    atomic_fetch_add(&ended, 1);
}

/* Runs behind the exit handler of the thread, which has waited for it to stop. */
static void ended_look(void)
{
    if (atomic_load(&ended) != 1)
        _exit(1);
}

static atomic_uint rings;

static void ring(void)
{
    atomic_fetch_add(&rings, 1);
}

static unsigned int listen_first(struct pollfd *fds, unsigned int max)
{
    *fds = (struct pollfd){.fd = FIRST, .events = POLLIN};
    return 1;
}

static unsigned int listen_second(struct pollfd *fds, unsigned int max)
{
    *fds = (struct pollfd){.fd = SECOND, .events = POLLIN};
    return 1;
}

const struct background_job background_jobs[] = {
    {.due = never, .tick = tick, .listen = listen_first},
    {.due = never, .tick = may_stick, .ring = ring, .end = end},
    {.due = never, .tick = nothing, .listen = listen_second},
    {0},
};

/* --- exit beside a job that does not end --- */

static _Atomic(uint64_t) stands_at; /* the clocks, in nanoseconds; 0: they are the system's */

/* The wall clock is about to be set back by an hour; each look takes a second while a job is stuck. */
WRAPPED(int, clock_gettime, (clockid_t clock, struct timespec *ts))
{
    static atomic_int passed;
    const uint64_t ns = atomic_load(&stands_at);
    const int rc = __real_clock_gettime(clock, ts);

    if (ns) {
        *ts = (struct timespec){.tv_sec = (time_t)(ns / SECOND_NS), .tv_nsec = (long)(ns % SECOND_NS)};
        return 0;
    }

    ts->tv_sec += clock == CLOCK_REALTIME ? 3600 : atomic_load(&stuck) ? ++passed : 0;
    return rc;
}

static void not_ended_look(void)
{
    _exit(atomic_load(&ended) ? 1 : 0);
}

UNIT_CASE(test_exit_waits_with_a_limit)
{
    int status = -1;
    const pid_t child = fork();

    if (child == 0) {
        alarm(20);
        atomic_store(&sticks, true);
        atexit(not_ended_look);
        if (!background_start())
            _exit(2);
        while (!atomic_load(&stuck))
            nap_ns(1000000);
        exit(3);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

#ifndef __SANITIZE_THREAD__ /* that has a thread of its own */
/* Runs behind the exit handler, which has found nothing to stop: only the first thread's end has rung. */
static void alone_look(void)
{
    _exit(atomic_load(&ended) != 1 || atomic_load(&rings) != 1);
}

/* The thread is the last one of the program, so that it ends it: it does not wait for itself. */
UNIT_CASE(test_last_thread)
{
    int status = -1;
    const pid_t child = fork();

    if (child == 0) {
        alarm(20);
        atexit(alone_look);
        atomic_store(&stuck, true); /* each look at the clock takes a second */
        if (!background_start())
            _exit(2);
        pthread_exit(NULL);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}
#endif

/* How often idle memory was looked at, once the thread has been awake some more times. */
static unsigned int decays_later(void)
{
    const unsigned int before = atomic_load(&ticks);

    while (atomic_load(&ticks) < before + 5)
        sched_yield();
    return atomic_load(&decays);
}

static const struct {
    uint64_t decay; /* the setting */
    uint64_t period;
    unsigned int age;
} looks[] = {
    {UINT64_MAX, SECOND_NS, 0},
    {20, 20 * SECOND_NS / DECAY_TICKS, DECAY_TICKS - 1},
    {0, SECOND_NS / 10, DECAY_TICKS - 1},
};

static int looks_try(unsigned int row)
{
    const uint64_t period = looks[row].period, steps[] = {0, period - 1, 1, 0, period - 1, 1, 3 * period};
    static const unsigned int expected[] = {0, 0, 1, 1, 1, 2, 3};

    alarm(20);
    conf.decay.number = looks[row].decay;
    atomic_store(&stands_at, 5 * SECOND_NS);
    if (!background_start())
        return 1;
    for (unsigned int i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
        atomic_fetch_add(&stands_at, steps[i]);
        if (decays_later() != expected[i] || (expected[i] && atomic_load(&decay_age) != looks[row].age))
            return 10 + (int)i;
    }
    return 0;
}

/* Idle memory is looked at when the time has come, however often the thread is woken. */
UNIT_CASE(test_looks_at_times)
{
    for (unsigned int row = 0; row < sizeof(looks) / sizeof(looks[0]); row++) {
        const pid_t child = fork();
        int status = -1;

        if (child == 0)
            _exit(looks_try(row));
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_int_equal(status, 0);
    }
}

/* Between two ticks the thread sleeps once. */
UNIT_CASE(test_sleeps_in_a_poll)
{
    atexit(ended_look);
    assert_true(background_start());
    while (atomic_load(&ticks) < WAKINGS)
        nap_ns(1000000);
    assert_true(atomic_load(&polls) >= WAKINGS - 1);
    assert_false(atomic_load(&wrong));
}
