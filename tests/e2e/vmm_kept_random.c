/* SPDX-License-Identifier: Apache-2.0 */
/* vmm_kept_random.c - a random program of correct calls: eight buffers that are taken and given up, also in part; and
 * four threads that take and give up buffers. And a second reference to a buffer. */

#include "vmm_kept.h"

static uint64_t rng;

static unsigned int below(unsigned int n)
{
    rng ^= rng << 13;
    rng ^= rng >> 7;
    rng ^= rng << 17;
    return (unsigned int)(rng % n);
}

struct slot {
    struct buffer b;
    bool range, mapped, reached;
    int refs;
    unsigned char byte; /* 0: not written */
};

static void step(struct slot *s, unsigned char byte)
{
    switch (below(8)) {
    case 0:
        if (!s->range && !s->refs)
            s->b.size = (1 + below(2)) * UNIT;
        if (!s->range)
            OK(cuMemAddressReserve(&s->b.at, s->b.size, 0, 0, 0));
        s->range = true;
        break;
    case 1:
        if (!s->range && !s->refs)
            s->b.size = (1 + below(2)) * UNIT;
        if (!s->refs && !s->mapped) {
            OK(create(&s->b));
            s->refs = 1;
            s->byte = 0;
        }
        break;
    case 2:
        if (s->range && s->refs && !s->mapped) {
            OK(cuMemMap(s->b.at, s->b.size, 0, s->b.handle, 0));
            s->mapped = true;
            s->reached = false;
            s->byte = contents_stay ? s->byte : 0;
        }
        break;
    case 3:
        if (s->mapped && !s->reached)
            OK(let(&s->b));
        s->reached = s->mapped;
        break;
    case 4:
        if (s->mapped && s->reached && s->byte)
            check(&s->b, s->byte);
        if (s->mapped && s->reached)
            fill(&s->b, s->byte = byte);
        break;
    case 5:
        if (s->mapped)
            OK(cuMemUnmap(s->b.at, s->b.size));
        s->mapped = false;
        break;
    case 6:
        if (s->refs)
            OK(cuMemRelease(s->b.handle));
        s->refs = 0;
        break;
    default:
        if (s->range && !s->mapped) {
            OK(cuMemAddressFree(s->b.at, s->b.size));
            s->range = false;
        }
    }
}

void random_program(uint64_t seed)
{
    struct slot slots[8] = {0};

    rng = seed;
    for (int i = 0; i < 4000; i++) {
        struct slot *s = &slots[below(8)];

        if (below(3) == 0 && !s->range && !s->refs && !s->mapped) { /* the usual way */
            s->b = take((1 + below(2)) * UNIT);
            s->range = s->mapped = s->reached = true;
            s->refs = 1;
            fill(&s->b, s->byte = (unsigned char)(1 + i % 250));
        } else if (below(3) == 0 && s->range && s->refs && s->mapped && s->reached) {
            check(&s->b, s->byte ? s->byte : (fill(&s->b, 1), (unsigned char)1));
            give(&s->b);
            memset(s, 0, sizeof(*s));
        } else {
            step(s, (unsigned char)(1 + i % 250));
        }
        if (i % 50 == 0)
            info();
    }
}

static CUdeviceptr asked;

static void ask(void)
{
    unsigned int type;

    (void)cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, asked);
}

void asked_from_within(void)
{
    void (*before)(const char *symbol, void (*call)(void)) =
        (void (*)(const char *, void (*)(void)))dlsym(RTLD_DEFAULT, "simgpu_before");
    struct buffer b = take(UNIT);
    CUdeviceptr at;

    asked = b.at;
    if (before)
        before("cuMemUnmap", ask);
    OK(cuMemUnmap(b.at, UNIT));
    OK(cuMemRelease(b.handle));
    OK(cuMemAddressReserve(&at, UNIT, 0, 0, 0)); /* the addresses of b are kept, so its memory goes back here */
    OK(cuMemAddressFree(at, UNIT));
    OK(cuMemAddressFree(b.at, UNIT));
    if (before)
        before(NULL, NULL);
}

static void CUDA_CB call_back(void *arg)
{
    ask();
    *(CUresult *)arg = cuMemAddressFree(asked, UNIT);
}

void called_back(void)
{
    struct buffer b = take(UNIT);
    CUresult result;

    asked = b.at;
    give(&b);
    OK(cuLaunchHostFunc(NULL, call_back, &result));
    OK(cuStreamSynchronize(NULL));
    printf("in a host function %d\n", (int)result);
    info();
}

void exported_by_nccl(void)
{
    struct buffer b = take(UNIT), c, theirs = {.size = UNIT};

    fill(&b, 21);
    theirs.handle = nccl_shares(b.at);
    give(&b);
    c = take(UNIT);
    fill(&c, 22);
    OK(cuMemAddressReserve(&theirs.at, UNIT, 0, 0, 0));
    OK(cuMemMap(theirs.at, UNIT, 0, theirs.handle, 0));
    OK(let(&theirs));
    if (contents_stay)
        check(&theirs, 21);
    check(&c, 22);
    info();
    give(&theirs);
    give(&c);
}

void held_by_nccl(void)
{
    struct buffer b = take(UNIT), c;
    const CUmemGenericAllocationHandle own = nccl_retains(b.at);

    give(&b);
    c = take(UNIT);
    info(); /* both */
    OK(nccl_releases(own));
    info();
    give(&c);
    info();
}

void at_its_addresses(void)
{
    struct buffer b = take(UNIT);
    CUdeviceptr at;

    give(&b);
    OK(cuMemAddressReserve(&at, UNIT, 0, b.at, 0));
    OK(cuMemAddressFree(at, UNIT));
}

/* --- threads --- */

static CUcontext shared;

static void *one_thread(void *arg)
{
    struct buffer b[3];

    OK(cuCtxSetCurrent(shared));
    for (int round = 0; round < 100; round++) {
        const unsigned char byte = (unsigned char)(round + 50 * (int)(intptr_t)arg);

        for (int i = 0; i < 3; i++) {
            b[i] = take((1 + (size_t)(round + i) % 3) * UNIT);
            fill(&b[i], (unsigned char)(byte + i));
        }
        for (int i = 0; i < 3; i++) {
            check(&b[i], (unsigned char)(byte + i));
            give(&b[i]);
        }
    }
    return NULL;
}

void threads(void)
{
    pthread_t thread[4];

    OK(cuCtxGetCurrent(&shared));
    for (intptr_t i = 0; i < 4; i++)
        pthread_create(&thread[i], NULL, one_thread, (void *)i); /* NOLINT(performance-no-int-to-ptr) */
    join_all(thread, 4);
    info();
}

void retained(void)
{
    CUmemGenericAllocationHandle again;

    for (int round = 0; round < 3; round++) {
        struct buffer b = take(UNIT);

        OK(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)b.at)); /* NOLINT(performance-no-int-to-ptr) */
        OK(cuMemRelease(again));
        give(&b);
    }
}
