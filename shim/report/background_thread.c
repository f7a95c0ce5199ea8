/* SPDX-License-Identifier: Apache-2.0 */
/*
 * background_thread.c - see background_thread.h.
 *
 * Locking: none; atomics and a futex.
 */
#include "report/background_thread.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/conf.h"
#include "base/descriptor.h"
#include "base/log.h"
#include "base/own_thread.h"
#include "base/process.h"
#include "clock.h"
#include "context/device.h"
#include "context/ipc_server.h"
#include "context/limits.h"
#include "trace/trace.h"
#include "trace/writer.h"

/* The longest time that exit waits for the thread's current CUDA call, and how often it looks, in nanoseconds. */
#define EXIT_WAIT_NS 2000000000u
#define EXIT_NAP_NS  20000u
/* LOOK_NS: the interval, in nanoseconds, at which the thread checks whether all of the program's threads have ended.
 * Once the program's first thread has ended the interval is LOOK_OFTEN_NS, and doubles with each check up to LOOK_NS.
 */
#define LOOK_NS       1000000000u
#define LOOK_OFTEN_NS 20000000u
/* The descriptors that the jobs have polled: the neighbours' for each device, cupool-ctl's, and importers'. */
#define POLL_MAX (DEVICES_MAX + 16 + IPC_POLLED_MAX)

static struct {
    atomic_uint wakes; /* the thread sleeps on this futex; no lock, so that a signal handler can wake it */
    atomic_bool stop;
    atomic_bool first_ends; /* the program's first thread ends, and the process may go on */
    pthread_t thread;
    sigset_t signals; /* blocked in the thread that started this one */
    atomic_int state; /* 0: not started, 1: being started, 2: running, 3: never will be */
} background;

/* Sleep for ns nanoseconds, until background_wake is called after the thread has read wakes, or until a message comes
 * for a job. */
static void sleep_ns(unsigned int wakes, uint64_t ns)
{
    const struct timespec time = {(time_t)(ns / 1000000000), (long)(ns % 1000000000)};
    struct pollfd fds[POLL_MAX];
    unsigned int count = 0;

    for (const struct background_job *job = background_jobs; job->tick; job++)
        if (job->listen)
            count += job->listen(fds + count, POLL_MAX - count);
    /* A later wake leaves a message, by which poll returns. */
    if (atomic_load(&background.wakes) != wakes || (count && (ppoll(fds, count, &time, NULL) >= 0 || errno == EINTR)))
        return;
    if (syscall(SYS_futex, &background.wakes, FUTEX_WAIT_PRIVATE, wakes, &time, NULL, 0) == 0 || errno == ETIMEDOUT ||
        errno == EAGAIN || errno == EINTR)
        return;
    nanosleep(&time, NULL); /* a seccomp filter forbids futex: the thread must not spin */
}

/* The program's first thread, as the library was loaded by it. */
static pthread_t first;
static bool has_first;

/* It ends by pthread_exit: not by exit or a return from main, which run no such destructors. */
static void first_ending(void *unused)
{
    (void)unused;
    atomic_store(&background.first_ends, true);
    if (atomic_load(&background.state) == 2)
        background_wake();
}

__attribute__((constructor)) static void first_find(void)
{
    pthread_key_t key;

    first = pthread_self();
    has_first = syscall(SYS_gettid) == getpid();
    if (has_first && !pthread_key_create(&key, first_ending))
        pthread_setspecific(key, &first);
}

/* True if the program's first thread has not ended. Without a system call: the kernel clears the thread's number in the
 * C library's record of it, which is never unmapped. */
static bool first_lives(void)
{
    clockid_t clock;

    return has_first && pthread_getcpuclockid(first, &clock) == 0;
}

/* The number of threads of the process if its first thread has ended; 0: that has not ended; -1: the kernel does not
 * say. */
static int threads_after_main(void)
{
    char text[512], state = 0;
    const char *name_end;
    int threads;

    if (first_lives())
        return 0;
    name_end = strrchr(file_text("/proc/self/stat", text, sizeof(text)), ')');
    if (!name_end || sscanf(name_end, ") %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %d", &state,
                            &threads) != 2)
        return -1;
    return state == 'Z' ? threads : 0;
}

static void jobs_end(void)
{
    for (const struct background_job *job = background_jobs; job->tick; job++)
        if (job->end)
            job->end();
}

/*
 * True if all threads of the program have ended, the first one included. Natively the process ends with the last one,
 * so this thread then becomes the last one, with its original signal mask. It also ends where the first one has ended
 * and the kernel does not say how many are left (no /proc, no descriptor to be had, a seccomp filter): the process
 * would never end otherwise.
 */
static bool is_left_alone(void)
{
    const int threads = threads_after_main();

    if (threads >= 0 && threads != 2 + trace_writes_behind())
        return false;
    trace_write_end();
    while (threads_after_main() > 2)
        nap_ns(1000000);
    if (threads < 0)
        log_write(LOG_INFO, "the first thread has ended, and /proc cannot be read: idle memory is kept from now on");
    pthread_sigmask(SIG_SETMASK, &background.signals, NULL);
    return true;
}

static void *run(void *arg)
{
    const uint64_t seconds = conf_get()->decay.number;
    const bool off = seconds == UINT64_MAX;
    const uint64_t tick_ns = off ? 1000000000 : seconds ? seconds * 1000000000 / DECAY_TICKS : 100000000;
    uint64_t tick = now_ns() + tick_ns, look = now_ns() + LOOK_NS, now, next;
    uint64_t often_ns = LOOK_OFTEN_NS, look_ns;

    (void)arg;
    /* All calls made from here are our own. */
    process_bypass_begin();
    for (;;) {
        const unsigned int wakes = atomic_load(&background.wakes);
        /* Read before the jobs run, so that the signal that came just before the end finds them once more. */
        const bool stops = atomic_load(&background.stop);

        now = now_ns();
        for (const struct background_job *job = background_jobs; job->tick; job++)
            job->tick(now);
        if (stops)
            break;
        if (now >= tick) {
            context_decay_all(off ? 0 : DECAY_TICKS - 1);
            tick = now_ns() + tick_ns;
        }
        look_ns = atomic_load(&background.first_ends) ? often_ns : LOOK_NS;
        if (now >= look || look - now > look_ns) {
            if (is_left_alone()) {
                jobs_end();
                atomic_store(&background.state, 3); /* this thread may be the one that runs exit handlers */
                break;
            }
            look = now + look_ns;
            if (look_ns < LOOK_NS)
                often_ns = 2 * often_ns < LOOK_NS ? 2 * often_ns : LOOK_NS;
        }
        next = tick < look ? tick : look;
        for (const struct background_job *job = background_jobs; job->tick; job++) {
            const uint64_t due = job->due(now);

            next = due < next ? due : next;
        }
        now = now_ns();
        if (next > now)
            sleep_ns(wakes, next - now);
    }
    process_bypass_end(); /* the program's exit handlers may run on this thread */
    return NULL;
}

void background_wake(void)
{
    const int saved = errno;

    atomic_fetch_add(&background.wakes, 1);
    syscall(SYS_futex, &background.wakes, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
    for (const struct background_job *job = background_jobs; job->tick; job++)
        if (job->ring)
            job->ring();
    errno = saved;
}

/* Exit handler. It runs before the driver's own handlers, which were registered earlier: while they run, no CUDA call
 * of ours may be under way. */
static void stop(void)
{
    const uint64_t limit = now_ns() + EXIT_WAIT_NS;
    int rc, cancel;

    if (atomic_load(&background.state) != 2 || process_is_foreign())
        return;
    atomic_store(&background.stop, true);
    background_wake();
    /* The thread that ends the process may have a cancellation pending. pthread_timedjoin_np goes by a clock that may
     * be set back meanwhile, and has no other one before glibc 2.31. The background thread does not end the jobs
     * itself, because this one rings at their sockets to wake it. */
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
    while ((rc = pthread_tryjoin_np(background.thread, NULL)) == EBUSY && now_ns() < limit)
        nap_ns(EXIT_NAP_NS);
    if (rc == 0)
        jobs_end();
    pthread_setcancelstate(cancel, NULL);
}

bool background_start(void)
{
    int now = atomic_load_explicit(&background.state, memory_order_relaxed), rc;

    if (now || !atomic_compare_exchange_strong(&background.state, &now, 1))
        return now == 1 || now == 2;
    for (const struct background_job *job = background_jobs; job->tick; job++)
        if (job->start)
            job->start();
    rc = own_thread_start("cupool-decay", run, &background.thread, &background.signals);
    if (rc) {
        atomic_store(&background.state, 3);
        jobs_end(); /* another thread may have begun */
        log_write(LOG_INFO, "no thread to be had (error %d): idle memory is kept until the driver refuses some", rc);
        return false;
    }
    atomic_store(&background.state, 2);
    atexit(stop);
    return true;
}

void background_forget(void)
{
    atomic_store(&background.state, 3);
}
