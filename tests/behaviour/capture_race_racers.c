/* SPDX-License-Identifier: Apache-2.0 */
/*
 * capture_race_racers.c - the threads of capture_race that allocate, fill, look and free. A racer's look at a block is
 * in flight when the block is freed; another value than its own means that the block had a new owner too early.
 *
 * Locking: a racer is one thread's.
 */
#include "capture_race.h"

#define SLOTS 12
#define WORDS 4

struct slot {
    enum { EMPTY, LIVE, PENDING } state;
    char *p;
    size_t n; /* a multiple of 4 */
    uint32_t token;
    volatile uint32_t *pinned; /* the words that the look has read */
    cudaStream_t s;
    cudaEvent_t event;
};

struct racer {
    pthread_t thread;
    unsigned int id;
    int mode; /* of the thread */
    cudaStream_t s[STREAMS];
    struct slot slot[SLOTS];
    uint32_t *pinned;
    uint64_t seed;
    uint32_t count;
};

static struct racer racers[THREADS_MAX];

/* Log-uniform, from 256 bytes on. */
static size_t size_draw(struct racer *r)
{
    const uint64_t octaves = 63 - (uint64_t)__builtin_clzll(opt.max_bytes) - 8;
    const size_t base = (size_t)256 << bt_random(&r->seed) % octaves;

    return (base + bt_random(&r->seed) % base) & ~(size_t)3;
}

static enum fate slot_open(struct racer *r, struct slot *slot)
{
    const uint64_t dice = bt_random(&r->seed);
    CUdeviceptr p = 0;

    slot->n = size_draw(r);
    if (dice % 4) {
        MUST(cudaMalloc((void **)&slot->p, slot->n));
    } else {
        MUST(cuMemAlloc(&p, slot->n));
        slot->p = (char *)(uintptr_t)p;
    }
    atomic_fetch_add(&count.allocs, 1);
    slot->s = r->s[dice / 4 % STREAMS];
    slot->token = (r->id + 1) << 24 | (r->count++ & 0xffffff);
    MUST(cuMemsetD32Async(BT_ADDRESS(slot->p), slot->token, slot->n / 4, (CUstream)slot->s));
    slot->state = LIVE;
    return FINE;
}

/* Copies words from the ends of the block and between, and frees it while the copies are in flight. */
static enum fate slot_close(struct racer *r, struct slot *slot)
{
    const uint64_t dice = bt_random(&r->seed);

    if (dice % 32 == 0)
        MUST(cudaLaunchHostFunc(slot->s, bt_sleep_fn, (void *)(uintptr_t)200));
    for (size_t i = 0; i < WORDS; i++)
        MUST(cudaMemcpyAsync((void *)&slot->pinned[i], slot->p + (slot->n - 4) / 4 * i / (WORDS - 1) * 4, 4,
                             cudaMemcpyDeviceToHost, slot->s));
    if (dice / 32 % 4 == 0) /* a late write that the next owner must not see */
        MUST(cuMemsetD32Async(BT_ADDRESS(slot->p), slot->token ^ 0x800000, slot->n / 4, (CUstream)slot->s));
    MUST(cudaEventRecord(slot->event, slot->s));
    slot->state = PENDING;
    switch (dice / 128 % 8) {
    case 0:
        MUST(cudaFreeAsync(slot->p, slot->s));
        return FINE;
    case 1:
        MUST(cuMemFree(BT_ADDRESS(slot->p)));
        return FINE;
    default:
        MUST(cudaFree(slot->p));
        return FINE;
    }
}

static enum fate slot_verify(struct slot *slot)
{
    MUST(cudaEventSynchronize(slot->event));
    slot->state = EMPTY;
    for (int i = 0; i < WORDS; i++)
        if (slot->pinned[i] != slot->token) {
            SAY("word %d of %zu bytes at %p is %08x, filled with %08x\n", i, slot->n, (void *)slot->p, slot->pinned[i],
                slot->token);
            atomic_fetch_add(&count.foreign, 1);
            break;
        }
    atomic_fetch_add(&count.looked, 1);
    return FINE;
}

static enum fate racer_open(struct racer *r)
{
    MUST(thread_mode((enum cudaStreamCaptureMode)r->mode));
    r->s[0] = cudaStreamPerThread;
    for (int i = 1; i < STREAMS; i++)
        MUST(cudaStreamCreateWithFlags(&r->s[i], i & 1 ? cudaStreamNonBlocking : cudaStreamDefault));
    MUST(cudaMallocHost((void **)&r->pinned, SLOTS * WORDS * sizeof(*r->pinned)));
    for (int i = 0; i < SLOTS; i++) {
        r->slot[i].state = EMPTY;
        r->slot[i].pinned = r->pinned + (ptrdiff_t)i * WORDS;
        MUST(cudaEventCreateWithFlags(&r->slot[i].event, cudaEventDisableTiming));
    }
    return FINE;
}

static enum fate racer_close(struct racer *r)
{
    for (int i = 0; i < SLOTS; i++) {
        if (r->slot[i].state == LIVE)
            PASS(slot_close(r, &r->slot[i]));
        if (r->slot[i].state == PENDING)
            PASS(slot_verify(&r->slot[i]));
        MUST(cudaEventDestroy(r->slot[i].event));
    }
    MUST(cudaStreamSynchronize(cudaStreamPerThread));
    for (int i = 1; i < STREAMS; i++) {
        MUST(cudaStreamSynchronize(r->s[i]));
        MUST(cudaStreamDestroy(r->s[i]));
    }
    MUST(cudaFreeHost(r->pinned));
    return FINE;
}

static enum fate racer_run(struct racer *r)
{
    PASS(racer_open(r));
    while (atomic_load(&count.captors_left) > 0) {
        struct slot *slot = &r->slot[bt_random(&r->seed) % SLOTS];

        if (atomic_load(&count.stop))
            break;
        if (slot->state == LIVE) {
            PASS(slot_close(r, slot));
            continue;
        }
        if (slot->state == PENDING)
            PASS(slot_verify(slot));
        PASS(slot_open(r, slot));
    }
    return racer_close(r);
}

static void *racer_main(void *arg)
{
    (void)racer_run((struct racer *)arg);
    return NULL;
}

int racer_start(unsigned int id, int mode, uint64_t seed)
{
    racers[id].id = id;
    racers[id].mode = mode;
    racers[id].seed = seed;
    return pthread_create(&racers[id].thread, NULL, racer_main, &racers[id]);
}

int racer_join(unsigned int id)
{
    return pthread_join(racers[id].thread, NULL);
}
