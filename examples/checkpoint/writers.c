/* SPDX-License-Identifier: Apache-2.0 */
/*
 * writers.c - threads in the background that run jobs in the order in which they came.
 *
 * Here: a queue with room for the jobs of one checkpoint.
 *
 * Not here: aware of what jobs do, or whether they fail.
 *
 * Threads: writers_put by any; the others by the training one. `lock` guards all.
 */
#include "checkpoint.h"

#include <pthread.h>

#define ROOM        (2 * TENSORS_MAX)
#define WRITERS_MAX 64

struct job {
    void (*run)(void *arg);
    void *arg;
};

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct job job[ROOM];
    unsigned first, end; /* of the jobs, modulo ROOM */
    int ending, threads;
    pthread_t thread[WRITERS_MAX];
} writers = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static void *writer_main(void *arg)
{
    CUDA(cudaSetDevice(rank_device));
    (void)pthread_mutex_lock(&writers.lock);
    for (;;) {
        if (writers.first != writers.end) {
            struct job job = writers.job[writers.first++ % ROOM];

            (void)pthread_mutex_unlock(&writers.lock);
            job.run(job.arg);
            (void)pthread_mutex_lock(&writers.lock);
        } else if (writers.ending) {
            break;
        } else {
            (void)pthread_cond_wait(&writers.changed, &writers.lock);
        }
    }
    (void)pthread_mutex_unlock(&writers.lock);
    return arg;
}

void writers_begin(int threads)
{
    writers.threads = threads < WRITERS_MAX ? threads : WRITERS_MAX;
    for (int i = 0; i < writers.threads; i++)
        if (pthread_create(&writers.thread[i], NULL, writer_main, NULL))
            ranks_fail(__FILE__, __LINE__, "pthread_create", "no thread");
}

void writers_put(void (*run)(void *arg), void *arg)
{
    (void)pthread_mutex_lock(&writers.lock);
    writers.job[writers.end++ % ROOM] = (struct job){run, arg};
    (void)pthread_cond_signal(&writers.changed);
    (void)pthread_mutex_unlock(&writers.lock);
}

void writers_end(void)
{
    (void)pthread_mutex_lock(&writers.lock);
    writers.ending = 1;
    (void)pthread_cond_broadcast(&writers.changed);
    (void)pthread_mutex_unlock(&writers.lock);
    for (int i = 0; i < writers.threads; i++)
        (void)pthread_join(writers.thread[i], NULL);
}
