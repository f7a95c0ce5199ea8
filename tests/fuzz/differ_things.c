/* SPDX-License-Identifier: Apache-2.0 */
/*
 * differ_things.c - what the differential fuzzer's drawn calls have made, and how a sequence of them begins and ends.
 *
 * differ_after.c finds out what a call has made and ended.
 *
 * Locking: none, see differ.h.
 */
#include "differ_drawn.h"

#define THINGS 48

struct thing things[THINGS];
int things_count;
CUcontext drawn_own;
CUstream drawn_main, drawn_busy;
CUevent drawn_events[2];
CUdeviceptr drawn_freed;
int drawn_dev;
static unsigned char pageable[3][DRAWN_PAGEABLE] __attribute__((aligned(4096)));

unsigned char *drawn_pageable(int i)
{
    return pageable[i];
}

/* Rows make handles, which have results of their own; and these make and end other things. */
static const struct {
    const char *begin;
    int makes; /* -1: nothing */
    unsigned ends;
} rows_known[] = {
    {"cuMemAllocManaged", K_MANAGED, 0},
    {"cuMemAllocHost", K_PINNED, 0},
    {"cuMemHostAlloc", K_PINNED, 0},
    {"cudaMallocHost", K_PINNED, 0},
    {"cudaHostAlloc", K_PINNED, 0},
    {"cuMemAllocAsync", K_ASYNC, 0},
    {"cuMemAllocFromPoolAsync", K_ASYNC, 0},
    {"cuMemAlloc", K_MEMORY, 0},
    {"cudaMalloc", K_MEMORY, 0},
    {"cuMemAddressReserve", K_RANGE, 0},
    {"cuMemHostRegister", K_REGISTERED, 0},
    {"cuMemFreeHost", -1, 1u << K_PINNED},
    {"cuMemFreeAsync", -1, 1u << K_MEMORY | 1u << K_ASYNC},
    {"cudaFreeAsync", -1, 1u << K_MEMORY | 1u << K_ASYNC},
    {"cuMemFree", -1, 1u << K_MEMORY | 1u << K_ASYNC | 1u << K_MANAGED},
    {"cudaFree", -1, 1u << K_MEMORY | 1u << K_ASYNC | 1u << K_MANAGED},
    {"cuMemHostUnregister", -1, 1u << K_REGISTERED},
    {"cuMemAddressFree", -1, 1u << K_RANGE},
    {"cuMemUnmap", -1, 1u << K_MAPPED},
    {"cuMemRelease", -1, 1u << K_HANDLE},
    {"cuStreamDestroy", -1, 1u << K_STREAM},
    {"cudaStreamDestroy", -1, 1u << K_STREAM},
    {"cuCtxDestroy", -1, 1u << K_CONTEXT},
    {"cuCtxDetach", -1, 1u << K_CONTEXT},
    {"cuGreenCtxDestroy", -1, 1u << K_GREEN},
    {"cuTexObjectDestroy", -1, 1u << K_TEXTURE},
    {"cuArrayDestroy", -1, 1u << K_ARRAY},
    {"cuDevicePrimaryCtxRelease", -1, 1u << K_RETAINED},
};
#define ROWS_KNOWN (sizeof(rows_known) / sizeof(rows_known[0]))

unsigned row_ends(const struct drawn_row *row)
{
    for (size_t i = 0; i < ROWS_KNOWN; i++)
        if (row_is(row, rows_known[i].begin))
            return rows_known[i].ends;
    return 0;
}

int row_makes(const struct drawn_row *row)
{
    for (size_t i = 0; i < ROWS_KNOWN; i++)
        if (row_is(row, rows_known[i].begin))
            return rows_known[i].makes;
    return -1;
}

bool kind_used(enum kind kind, const struct drawn_row *row)
{
    static const char *const words[KINDS] = {
        [K_RANGE] = "cuMemMap",
        [K_MAPPED] = "cuMemSetAccess",
        [K_HANDLE] = "CUmemGenericAllocationHandle handle",
        [K_GRAPH] = "CUgraphNode node",
        [K_POOL] = "CUmemoryPool pool",
        [K_GREEN] = "CUgreenCtx green",
        [K_RETAINED] = "CUcontext peer",
    };

    if (kind == K_GRAPH && chance(2))
        return row_takes(row, "CUgraphExec");
    return row_ends(row) & 1u << kind || (words[kind] && (row_takes(row, words[kind]) || row_is(row, words[kind])));
}

/* ---- things ---- */

struct thing *thing_pick(unsigned kinds)
{
    const int first = things_count ? (int)pick((uint32_t)things_count) : 0;

    for (int i = 0; i < things_count; i++) {
        struct thing *t = &things[(first + i) % things_count];
        if (kinds & 1u << t->kind)
            return t;
    }
    return NULL;
}

struct thing *thing_find(unsigned kinds, uint64_t value)
{
    for (int i = 0; i < things_count; i++)
        if (kinds & 1u << things[i].kind && things[i].value == value)
            return &things[i];
    return NULL;
}

struct thing *thing_new(enum kind kind, uint64_t value, size_t size)
{
    things[things_count] = (struct thing){.kind = kind, .value = value, .size = size, .dev = drawn_dev};
    return &things[things_count++];
}

void thing_gone(struct thing *t)
{
    *t = things[--things_count];
}

static bool is_memory(const struct thing *t)
{
    return (t->kind <= K_MANAGED || (t->kind == K_MAPPED && t->reach)) && t->size >= 64;
}

struct thing *memory_pick(const struct thing *but)
{
    const int first = (int)pick((uint32_t)things_count);

    for (int i = 0; i < things_count; i++) {
        struct thing *t = &things[(first + i) % things_count];
        if (t != but && is_memory(t))
            return t;
    }
    return NULL;
}

bool memory_ensure(void)
{
    CUdeviceptr p = 0;
    int n = 0;

    for (int i = 0; i < things_count; i++)
        n += is_memory(&things[i]);
    for (; n < 2; n++) {
        drawn_freed = 0;
        if (cuMemAlloc_v2(&p, 4096) || cuMemsetD8_v2(p, 7, 4096))
            return told("ensured", 1);
        drawn_wait();
        thing_new(K_MEMORY, p, 4096);
    }
    return true;
}

void drawn_wait(void)
{
    const int code = (int)cuCtxSynchronize();

    if (code)
        told("waited", code);
    drawn_busy = NULL;
}

/* ---- a sequence ---- */

bool drawn_start(void)
{
    CUdevResource resource;

    things_count = 0;
    drawn_busy = NULL;
    drawn_freed = 0;
    drawn_dev = (int)pick((uint32_t)devices);
    use(drawn_dev);
    memset(pageable, 0x22, sizeof(pageable));
    memset(&drawn, 0, sizeof(drawn));
    memset(&given, 0, sizeof(given));
    drawn.descriptor = -1;
    drawn_called = 0;
    (void)cuCtxGetCurrent(&drawn_own);
    if (cuStreamCreate(&drawn_main, CU_STREAM_NON_BLOCKING) || cuEventCreate(&drawn_events[0], CU_EVENT_DEFAULT) ||
        cuEventCreate(&drawn_events[1], CU_EVENT_DEFAULT) || cuEventRecord(drawn_events[0], drawn_main) ||
        cuEventRecord(drawn_events[1], drawn_main))
        return told("no_start", 1);
    if (cuDeviceGetDevResource(drawn_dev, &resource, CU_DEV_RESOURCE_TYPE_SM) == CUDA_SUCCESS)
        (void)cuDevResourceGenerateDesc(&drawn.resources, &resource, 1);
    return true;
}

int thing_end(struct thing *t)
{
    switch (t->kind) {
    case K_PINNED:
        return (int)cuMemFreeHost((void *)(uintptr_t)t->value); /* NOLINT: an address */
    case K_REGISTERED:
        return (int)cuMemHostUnregister((void *)(uintptr_t)t->value); /* NOLINT: an address */
    case K_MAPPED:
        return (int)cuMemUnmap(t->value, t->size) + (int)cuMemAddressFree(t->value, t->size);
    case K_RANGE:
        return (int)cuMemAddressFree(t->value, t->size);
    case K_HANDLE:
        return (int)cuMemRelease(t->value);
    case K_STREAM:
        return (int)cuStreamDestroy_v2((CUstream)(uintptr_t)t->value); /* NOLINT: handles, from here on */
    case K_EVENT:
        return (int)cuEventDestroy_v2((CUevent)(uintptr_t)t->value); /* NOLINT */
    case K_GRAPH:
        return (t->exec ? (int)cuGraphExecDestroy(t->exec) : 0) +
               (int)cuGraphDestroy((CUgraph)(uintptr_t)t->value); /* NOLINT */
    case K_POOL:
        return (int)cuMemPoolDestroy((CUmemoryPool)(uintptr_t)t->value); /* NOLINT */
    case K_GREEN:
        return (int)cuGreenCtxDestroy((CUgreenCtx)(uintptr_t)t->value); /* NOLINT */
    case K_CONTEXT:
        return (int)cuCtxDestroy_v2((CUcontext)(uintptr_t)t->value); /* NOLINT */
    case K_RETAINED:
        return (int)cuDevicePrimaryCtxRelease_v2(t->dev);
    case K_TEXTURE:
        return (int)cuTexObjectDestroy(t->value);
    case K_ARRAY:
        return (int)cuArrayDestroy((CUarray)(uintptr_t)t->value); /* NOLINT */
    default:
        return (int)cuMemFree_v2(t->value);
    }
}

static void bytes_tell(const struct thing *t)
{
    static unsigned char bytes[DRAWN_PAGEABLE];
    const size_t n = t->size < sizeof(bytes) ? t->size : sizeof(bytes);

    if (t->kind == K_PINNED || t->kind == K_REGISTERED)
        out(" %08x", sum((const void *)(uintptr_t)t->value, n)); /* NOLINT: an address */
    if (t->kind > K_MANAGED && (t->kind != K_MAPPED || !t->reach))
        return;
    if (TOLD("bytes", cuMemcpyDtoH_v2(bytes, t->value, n)))
        out(":%08x", sum(bytes, n));
}

/* Calls that have no rows. */
static void pool_look(CUmemoryPool pool)
{
    cuuint64_t keep = pick(4) * MIB, value = 1;

    TOLD("keep", cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep));
    TOLD("kept", cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &value));
    out(":%llu", (unsigned long long)value);
    TOLD("used", cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &value));
    out(":%llu", (unsigned long long)value);
    TOLD("trim", cuMemPoolTrimTo(pool, keep));
}

void drawn_end(void)
{
    static const enum kind first[] = {K_GRAPH, K_TEXTURE, K_STREAM, K_POOL};

    drawn_wait();
    out(" called=%u %08x", __atomic_load_n(&drawn_called, __ATOMIC_ACQUIRE), sum(pageable, sizeof(pageable)));
    for (int i = 0; i < things_count; i++) {
        bytes_tell(&things[i]);
        if (things[i].kind == K_POOL)
            pool_look((CUmemoryPool)(uintptr_t)things[i].value); /* NOLINT: a handle */
    }
    for (size_t i = 0; i < sizeof(first) / sizeof(first[0]) + 1; i++) {
        const unsigned kinds = i < sizeof(first) / sizeof(first[0]) ? 1u << first[i] : ~0u;
        for (struct thing *t = thing_pick(kinds); t; t = thing_pick(kinds)) {
            const int code = thing_end(t);
            if (code)
                out(" end%d=%d", (int)t->kind, code);
            thing_gone(t);
        }
    }
    if (drawn.descriptor >= 0)
        close(drawn.descriptor);
    (void)cuEventDestroy_v2(drawn_events[0]);
    (void)cuEventDestroy_v2(drawn_events[1]);
    (void)cuStreamDestroy_v2(drawn_main);
}
