/* SPDX-License-Identifier: Apache-2.0 */
/*
 * threads.c - many threads allocate and free at once.
 *
 * Eight threads use one or two devices; the owner or another thread checks every block's bytes before the free. Reuse
 * with work in flight is in order.c and stamp.c.
 */
#include "behaviour.h"

#define THREADS 8
#define LIVE    24
#define ITERS   400

struct worker {
    struct bt_thread thread;
    int id, device;
    pthread_barrier_t *barrier;
    struct worker *all;
    unsigned char *p[LIVE]; /* read by the neighbour after the barrier */
    size_t n[LIVE];
};

static int block_check(const struct worker *w, int k)
{
    unsigned char first, last;
    int want = (w->id * LIVE + k) & 0xff;

    OK(cudaMemcpy(&first, w->p[k], 1, cudaMemcpyDeviceToHost));
    OK(cudaMemcpy(&last, w->p[k] + w->n[k] - 1, 1, cudaMemcpyDeviceToHost));
    CHECK(first == want && last == want);
    return 0;
}

static int hammer_run(struct worker *w)
{
    uint64_t seed = (uint64_t)w->id;

    OK(cudaSetDevice(w->device));
    for (int i = 0; i < ITERS; i++) {
        int k = (int)(bt_random(&seed) % LIVE);

        if (w->p[k]) {
            TRY(block_check(w, k));
            OK(cudaFree(w->p[k]));
        }
        w->n[k] = 1 + bt_random(&seed) % ((size_t)1 << (6 + bt_random(&seed) % 15));
        OK(cudaMalloc((void **)&w->p[k], w->n[k]));
        OK(cudaMemsetAsync(w->p[k], w->id * LIVE + k, w->n[k], cudaStreamPerThread));
        OK(cudaStreamSynchronize(cudaStreamPerThread));
    }
    return 0;
}

/* Afterwards everybody frees what the next one owns. */
static int hammer(void *arg)
{
    struct worker *w = (struct worker *)arg, *next = &w->all[(w->id + 1) % THREADS];
    int rc = hammer_run(w);

    pthread_barrier_wait(w->barrier);
    for (int k = 0; k < LIVE && !rc; k++)
        if (next->p[k]) {
            rc = block_check(next, k);
            if (!rc && cudaFree(next->p[k]))
                rc = BT_FAIL("freeing the neighbour's block");
        }
    return rc;
}

static int run(const void *arg)
{
    const int devices = *(const int *)arg;
    static struct worker w[THREADS];
    pthread_barrier_t barrier;
    int rc = 0;

    TRY(bt_devices(devices));
    memset(w, 0, sizeof(w));
    pthread_barrier_init(&barrier, NULL, THREADS);
    for (int i = 0; i < THREADS; i++) {
        w[i].id = i;
        w[i].device = i % devices;
        w[i].barrier = &barrier;
        w[i].all = w;
        TRY(bt_thread_start(&w[i].thread, hammer, &w[i]));
    }
    for (int i = 0; i < THREADS; i++)
        rc |= bt_thread_join(&w[i].thread);
    pthread_barrier_destroy(&barrier);
    return rc;
}

/* Everybody's first call at once. The first test: the process's first calls. */
static int first_fn(void *arg)
{
    void *p;

    pthread_barrier_wait((pthread_barrier_t *)arg);
    OK(cudaMalloc(&p, 1000));
    OK(cudaFree(p));
    return 0;
}

BT_TEST(first_at_once)
{
    struct bt_thread t[THREADS];
    pthread_barrier_t barrier;
    int rc = 0;

    pthread_barrier_init(&barrier, NULL, THREADS);
    for (int i = 0; i < THREADS; i++)
        TRY(bt_thread_start(&t[i], first_fn, &barrier));
    for (int i = 0; i < THREADS; i++)
        rc |= bt_thread_join(&t[i]);
    pthread_barrier_destroy(&barrier);
    return rc;
}
BT_ROW(one_device, run, &(const int){1})
BT_ROW(two_devices, run, &(const int){2})

/* Threads come and go. */
BT_TEST(short_lived)
{
    for (int i = 0; i < 60; i++) {
        struct bt_thread t;
        pthread_barrier_t barrier;

        pthread_barrier_init(&barrier, NULL, 1);
        TRY(bt_thread_start(&t, first_fn, &barrier));
        TRY(bt_thread_join(&t));
        pthread_barrier_destroy(&barrier);
    }
    return 0;
}
