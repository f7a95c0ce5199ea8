/* SPDX-License-Identifier: Apache-2.0 */
/* decay.c - see decay.h. */
#include "decay.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <time.h>

#include "conf.h"
#include "context.h"
#include "core.h"
#include "log.h"

/* A decay time is so many ticks. What was idle in all but one of them goes back, so nothing is kept for longer. */
#define TICKS 8
/* How long an exit waits for the thread's current CUDA call. */
#define EXIT_WAIT_S 2

static struct {
    pthread_mutex_t lock; /* guards stop */
    pthread_cond_t wake;
    bool stop;
    pthread_t thread;
    atomic_int state; /* 0: not started, 1: somebody has begun to, 2: runs */
} decay = {.lock = PTHREAD_MUTEX_INITIALIZER};

static struct timespec after_ns(clockid_t clock, uint64_t ns)
{
    struct timespec at;

    clock_gettime(clock, &at);
    ns += (uint64_t)at.tv_nsec;
    at.tv_sec += (time_t)(ns / 1000000000);
    at.tv_nsec = (long)(ns % 1000000000);
    return at;
}

static void *run(void *arg)
{
    const uint64_t seconds = conf_get()->decay.number;
    const bool off = seconds == UINT64_MAX;
    const uint64_t tick_ns = off ? 1000000000 : seconds ? seconds * 1000000000 / TICKS : 100000000;
    struct timespec next;

    (void)arg;
    /* Whatever is called from here is our own. */
    core_bypass_begin();
    pthread_mutex_lock(&decay.lock);
    while (!decay.stop) {
        next = after_ns(CLOCK_MONOTONIC, tick_ns);
        if (pthread_cond_timedwait(&decay.wake, &decay.lock, &next) == 0 || decay.stop)
            continue;
        pthread_mutex_unlock(&decay.lock);
        context_decay_all(off ? 0 : TICKS - 1);
        pthread_mutex_lock(&decay.lock);
    }
    pthread_mutex_unlock(&decay.lock);
    return NULL;
}

/* Before the driver's own handlers, which were registered earlier: no CUDA call of ours may be under way in them. */
static void stop(void)
{
    const struct timespec limit = after_ns(CLOCK_REALTIME, EXIT_WAIT_S * 1000000000ull);

    if (atomic_load(&decay.state) != 2)
        return;
    pthread_mutex_lock(&decay.lock);
    decay.stop = true;
    pthread_cond_signal(&decay.wake);
    pthread_mutex_unlock(&decay.lock);
    pthread_timedjoin_np(decay.thread, NULL, &limit);
}

void decay_start(void)
{
    pthread_condattr_t clock;
    sigset_t all, before;
    int none = 0, rc;

    if (atomic_load_explicit(&decay.state, memory_order_relaxed) ||
        !atomic_compare_exchange_strong(&decay.state, &none, 1))
        return;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&decay.wake, &clock);
    pthread_condattr_destroy(&clock);
    /* The program's signals are for its own threads. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    rc = pthread_create(&decay.thread, NULL, run, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc) {
        log_write(LOG_INFO, "no thread to be had (error %d): idle memory is kept until the driver refuses some", rc);
        return;
    }
    pthread_setname_np(decay.thread, "cupool-decay");
    atomic_store(&decay.state, 2);
    atexit(stop);
}

void decay_forget(void)
{
    atomic_store(&decay.state, 1);
}
