/* SPDX-License-Identifier: Apache-2.0 */
/* waits.h - for waits.c alone: another thread whose cudaFree natively waits for work that this thread ends. */
#ifndef CUPOOL_TESTS_BEHAVIOUR_WAITS_H
#define CUPOOL_TESTS_BEHAVIOUR_WAITS_H

#include "work.h"

#include <stdatomic.h>

static int release;
static atomic_int launched;
static size_t sizes[2]; /* the thread frees the first, and then asks for the second */
static void *held;      /* what it has at the end */

/* No test comes to the end of this, which is less than a thread waits for its own frees. */
#define LONG_US 20000000u
/* Longer than a request waits for other threads' frees, however often it asks. */
#define OWN_US 6000000u

static int freeing_main(void *unused)
{
    void *p;

    OK(cudaMalloc(&p, sizes[0]));
    TRY(bt_work(NULL, &release, LONG_US));
    atomic_store(&launched, 1);
    OK(cudaFree(p)); /* natively until the work is over */
    held = NULL;
    if (sizes[1])
        OK(cudaMalloc(&held, sizes[1]));
    atomic_store(&launched, 2);
    return 0;
}

/* Another thread has launched work, and freed memory that it used; preloaded, it has gone on and asked for more. */
static int begin(struct bt_thread *thread, size_t first, size_t second)
{
    const char *policy = getenv("CUPOOL_FREE");
    const bool waits = !bt_preloaded() || (policy && !strcmp(policy, "strict"));

    TRY(bt_work_begin());
    TRY(bt_usable(
        4096)); /* the first free of all waits, for what was launched before the library knew of the context */
    sizes[0] = first;
    sizes[1] = second;
    bt_work_reset(&release);
    atomic_store(&launched, 0);
    TRY(bt_thread_start(thread, freeing_main, NULL));
    while (atomic_load(&launched) < (waits ? 1 : 2))
        bt_nap(100);
    return 0;
}

/* The device has worked until now. */
static int end(struct bt_thread *thread)
{
    const cudaError_t busy = cudaStreamQuery(NULL);

    bt_work_end(&release);
    TRY(bt_thread_join(thread));
    OK(cudaDeviceSynchronize()); /* a machine under load needs longer for that than a request waits */
    EXPECT(busy, cudaErrorNotReady);
    OK(cudaFree(held));
    return 0;
}

#endif
