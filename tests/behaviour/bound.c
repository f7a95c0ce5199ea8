/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bound.c - what a program takes of the device, however far its host is ahead: never more than 1.10 times what the
 * driver alone would have had in use at the peak, and 64 MiB.
 *
 * The driver is asked past the library, so that the pool's memory, and memory on its way back, count. The model of
 * the driver is the sum of live blocks, from 2 MiB on in whole units. A thread that frees would natively wait with
 * that block still in use: so much is allowed for each other thread. More than one block of other threads may be behind
 * unfinished work and come on top (docs/memory.md), so several threads wait for the device before they free.
 */
#include "work.h"

#include <stdatomic.h>

#define UNIT        (2 * BT_MIB)
#define THREADS_MAX 4

static struct {
    pthread_mutex_t lock;       /* guards live and peak */
    size_t live, peak, largest; /* what the driver alone would have in use; the largest block */
    size_t base, slack;         /* in use before the test; what relaxed may defer */
    CUresult (*info)(size_t *, size_t *);
    unsigned int threads;
    atomic_uint violations;
    _Atomic size_t most;
} all = {.lock = PTHREAD_MUTEX_INITIALIZER};

static size_t native(size_t size)
{
    return size < UNIT ? (size + 511) / 512 * 512 : (size + UNIT - 1) / UNIT * UNIT;
}

static size_t in_use(void)
{
    size_t free = 0, total = 0;

    all.info(&free, &total);
    return total - free;
}

static int begin(unsigned int threads)
{
    const char *policy = getenv("CUPOOL_FREE");
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY);

    CHECK(driver);
    all.info = (CUresult(*)(size_t *, size_t *))dlsym(driver, "cuMemGetInfo_v2");
    TRY(bt_work_begin());
    CHECK(all.info);
    OK(cudaDeviceSynchronize());
    if (!all.base)
        all.base = in_use();
    all.live = 0;
    all.largest = 0;
    all.slack = policy && !strcmp(policy, "relaxed") ? 64 * BT_MIB : 0;
    all.threads = threads;
    atomic_store(&all.violations, 0);
    atomic_store(&all.most, 0);
    return 0;
}

/* Device work that takes about so long. */
static int work(cudaStream_t stream, unsigned int us)
{
    return bt_work(stream, NULL, us);
}

/* With the lock. */
static size_t bound(void)
{
    const size_t others = (all.threads - 1) * native(all.largest);
    const size_t slack = all.slack > all.peak / 10 ? all.slack : all.slack ? all.peak / 10 : 0;

    return all.peak + all.peak / 10 + 64 * BT_MIB + others + others / 10 + slack;
}

static void check(void)
{
    size_t most, used = in_use();

    /* Behind that: what other threads get meanwhile raises the bound alone, which only grows. Their frees may wait for
     * work of this moment, so for several threads it is the bound at the end. */
    pthread_mutex_lock(&all.lock);
    most = bound();
    pthread_mutex_unlock(&all.lock);
    used = used > all.base ? used - all.base : 0;
    if (used > atomic_load(&all.most))
        atomic_store(&all.most, used);
    if (used > most && all.threads == 1)
        atomic_fetch_add(&all.violations, 1);
}

static int get(void **ret_ptr, size_t size)
{
    pthread_mutex_lock(&all.lock);
    all.live += native(size);
    all.peak = all.live > all.peak ? all.live : all.peak;
    all.largest = size > all.largest ? size : all.largest;
    pthread_mutex_unlock(&all.lock);
    OK(cudaMalloc(ret_ptr, size));
    check();
    return 0;
}

static int put(void *ptr, size_t size)
{
    if (all.threads > 1)
        OK(cudaDeviceSynchronize());
    OK(cudaFree(ptr));
    pthread_mutex_lock(&all.lock);
    all.live -= ptr ? native(size) : 0;
    pthread_mutex_unlock(&all.lock);
    return 0;
}

static int end(void)
{
    OK(cudaDeviceSynchronize());
    if (atomic_load(&all.most) > bound())
        atomic_fetch_add(&all.violations, 1);
    if (atomic_load(&all.violations))
        return BT_FAIL("%u times beyond the bound: %zu MiB at most, %zu live", atomic_load(&all.violations),
                       atomic_load(&all.most) / BT_MIB, all.peak / BT_MIB);
    printf("  %zu MiB live at most, %zu of the device in use\n", all.peak / BT_MIB, atomic_load(&all.most) / BT_MIB);
    return 0;
}

/* Memory that goes back by cudaFreeAsync, with a device that is idle each time. */
BT_TEST(freed_async)
{
    cudaStream_t stream;
    void *p;

    TRY(begin(1));
    OK(cudaStreamCreate(&stream));
    for (int i = 0; i < 40; i++) {
        TRY(get(&p, 8 * BT_MIB));
        OK(cudaMemsetAsync(p, i, 1024, stream));
        OK(cudaFreeAsync(p, stream));
        OK(cudaStreamSynchronize(stream));
        all.live -= 8 * BT_MIB;
    }
    OK(cudaStreamDestroy(stream));
    return end();
}

/* Blocks of random sizes, mostly small, sometimes all of nearly one size. */
struct random_program {
    uint64_t state;
    unsigned int steps;
};

static size_t random_size(uint64_t *state, unsigned int step)
{
    const unsigned int bits = step / 400 % 2 ? 8 : 1;
    const size_t least = (size_t)1 << (16 + bt_random(state) % bits + (bits == 1) * (4 + step / 800 % 4));

    return least + bt_random(state) % least;
}

static int random_run(void *arg)
{
    struct random_program *program = (struct random_program *)arg;
    uint64_t *state = &program->state;
    void *blocks[24] = {NULL};
    size_t sizes[24] = {0};
    cudaStream_t streams[2];

    for (int i = 0; i < 2; i++)
        OK(cudaStreamCreateWithFlags(&streams[i], i ? cudaStreamNonBlocking : cudaStreamDefault));
    for (unsigned int step = 0; step < program->steps; step++) {
        const size_t i = bt_random(state) % 24;

        if (blocks[i])
            TRY(put(blocks[i], sizes[i]));
        sizes[i] = random_size(state, step);
        TRY(get(&blocks[i], sizes[i]));
        if (bt_random(state) % 4 == 0)
            TRY(work(streams[bt_random(state) % 2], (unsigned int)(bt_random(state) % 300)));
    }
    for (size_t i = 0; i < 24; i++)
        if (blocks[i])
            TRY(put(blocks[i], sizes[i]));
    for (int i = 0; i < 2; i++)
        OK(cudaStreamDestroy(streams[i]));
    return 0;
}

static unsigned int steps(void)
{
    const char *text = getenv("BOUND_STEPS");

    return text && *text ? (unsigned int)strtoul(text, NULL, 0) : 2000;
}

BT_TEST(random_one)
{
    struct random_program program = {.state = 1, .steps = steps()};

    TRY(begin(1));
    TRY(random_run(&program));
    return end();
}

BT_TEST(random_threads)
{
    struct random_program programs[THREADS_MAX];
    struct bt_thread threads[THREADS_MAX];
    int rc = 0;

    TRY(begin(THREADS_MAX));
    for (unsigned int i = 0; i < THREADS_MAX; i++) {
        programs[i] = (struct random_program){.state = i + 1, .steps = steps() / THREADS_MAX};
        TRY(bt_thread_start(&threads[i], random_run, &programs[i]));
    }
    for (unsigned int i = 0; i < THREADS_MAX; i++)
        rc = bt_thread_join(&threads[i]) ? 1 : rc;
    return rc ? rc : end();
}

/* Parts that hold many blocks of one size each, which do not fit into what the part before has left. */
BT_TEST(phases)
{
    void *blocks[32];

    TRY(begin(1));
    for (size_t part = 0; part < 24; part++) {
        const size_t size = (20 + 4 * (part % 8)) * BT_MIB + 4096, count = 480 * BT_MIB / size;

        for (size_t i = 0; i < count; i++)
            TRY(get(&blocks[i], size));
        TRY(work(NULL, 2000));
        for (size_t i = 0; i < count; i++)
            TRY(put(blocks[i], size));
    }
    return end();
}

/* A list that is appended to: a larger block, work on both, the smaller one freed. */
BT_TEST(append)
{
    TRY(begin(1));
    for (int round = 0; round < 3; round++) {
        void *old = NULL, *new;
        size_t had = 0;

        for (size_t i = 1; i <= 300; i++) {
            const size_t size = i * BT_MIB + 512 * i;

            TRY(get(&new, size));
            TRY(work(NULL, 500));
            TRY(put(old, had));
            old = new;
            had = size;
        }
        TRY(put(old, had));
    }
    return end();
}
