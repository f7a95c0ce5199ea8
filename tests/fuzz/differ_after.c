/* SPDX-License-Identifier: Apache-2.0 */
/*
 * differ_after.c - the differential fuzzer's look at what a drawn call has written, made and ended.
 *
 * Addresses and handles are not told: only whether a result was written, and what it has to do with known memory.
 *
 * Locking: none, see differ.h.
 */
#include "differ_drawn.h"

/* An address in words: its distance from memory that is known, or whether it is anything. */
static void where(uint64_t p)
{
    for (int i = 0; i < things_count; i++) {
        if (things[i].kind <= K_MAPPED && p >= things[i].value && p < things[i].value + things[i].size) {
            out("@%d+%zu", i, (size_t)(p - things[i].value));
            return;
        }
    }
    out(p == DRAWN_NEVER ? "?" : p ? "+" : "0");
}

static void attribute_tell(void)
{
    const uint64_t data = drawn.room[2][0];

    out("%d:", (int)given.attribute);
    switch ((int)given.attribute) {
    case CU_POINTER_ATTRIBUTE_P2P_TOKENS:
        break;
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        out(data == DRAWN_NEVER ? "?" : data == (uintptr_t)drawn_own ? "own" : data ? "+" : "0");
        break;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        where(data);
        break;
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE: /* of the driver's allocation */
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
        out(data == DRAWN_NEVER ? "?" : "+");
        break;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        out(" ipc_capable{%llx}", (unsigned long long)data);
        break;
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
        out(" rdma_capable{%llx}", (unsigned long long)data);
        break;
    default:
        out("%llx", (unsigned long long)data);
    }
}

/* The results that have been written, in a few words. */
static void results_tell(const struct drawn_row *row)
{
    const struct cudaPointerAttributes *a = (const void *)drawn.room[0];

    out("/");
    if (row_takes(row, "* ptr") || row_takes(row, "* base"))
        where(given.got);
    if (row_takes(row, "size_t * size"))
        out(",%zx", given.got_size);
    if (row_takes(row, "size_t * pitch"))
        out(",%zx", drawn.got_pitch);
    if (row_takes(row, "size_t * total"))
        out(",%zx%s", drawn.got_total, given.got_size == DRAWN_NEVER ? "?" : "");
    if (row_is(row, "cuPointerGet"))
        attribute_tell();
    if (row_is(row, "cudaPointerGet")) {
        out("%d,%d,", (int)a->type, a->device);
        where((uintptr_t)a->devicePointer);
    }
    if (row_takes(row, "* * function"))
        out("%d", drawn.function != NULL);
}

static bool made(const void *handle)
{
    return (uintptr_t)handle != DRAWN_NEVER && handle;
}

static void handles_made(const struct drawn_row *row)
{
    if (made(drawn.stream_made))
        thing_new(K_STREAM, (uintptr_t)drawn.stream_made, 0)->reach = row_takes(row, "green");
    if (made(drawn.event_made))
        thing_new(K_EVENT, (uintptr_t)drawn.event_made, 0);
    if (made(drawn.pool_made) && row_is(row, "cuMemPoolCreate"))
        thing_new(K_POOL, (uintptr_t)drawn.pool_made, 0);
    if (made(drawn.green_made))
        thing_new(K_GREEN, (uintptr_t)drawn.green_made, 0);
    if (made(drawn.array_made))
        thing_new(K_ARRAY, (uintptr_t)drawn.array_made, 0);
    if (drawn.texture_made != DRAWN_NEVER && drawn.texture_made)
        thing_new(K_TEXTURE, drawn.texture_made, 0);
    if (made(given.made) && row_is(row, "cuDevicePrimaryCtxRetain"))
        thing_new(K_RETAINED, (uintptr_t)given.made, 0)->dev = drawn.device;
    if (made(given.made) && strstr(row->symbol, "CtxCreate"))
        thing_new(K_CONTEXT, (uintptr_t)given.made, 0);
    if (made(given.graph_made) && !thing_find(1u << K_GRAPH, (uintptr_t)given.graph_made)) /* of a capture to a graph */
        thing_new(K_GRAPH, (uintptr_t)given.graph_made, 0);
    if (row_takes(row, "CUmemGenericAllocationHandle * handle"))
        thing_new(K_HANDLE, given.handle, 2 * MIB)->reach = !row_is(row, "cuMemCreate");
}

static void graph_after(const struct drawn_row *row)
{
    struct thing *t = given.graph ? thing_find(1u << K_GRAPH, (uintptr_t)given.graph) : NULL;

    if (t && made(drawn.exec_made)) {
        if (t->exec)
            (void)cuGraphExecDestroy(t->exec);
        t->exec = drawn.exec_made;
    }
    if (t && made(drawn.node_made)) {
        t->node = drawn.node_made;
        t->node_type = strstr(row->symbol, "Memcpy")    ? CU_GRAPH_NODE_TYPE_MEMCPY
                       : strstr(row->symbol, "Memset")  ? CU_GRAPH_NODE_TYPE_MEMSET
                       : strstr(row->symbol, "AddNode") ? given.node_type
                                                        : -1;
    }
}

/* Fresh memory gets bytes that are known, in the stream that it was had on. */
static void memory_made(const struct drawn_row *row, enum kind kind)
{
    size_t size = row_is(row, "cuMemAllocPitch") ? drawn.got_pitch * drawn.height : given.size;
    uint64_t p = kind == K_REGISTERED ? given.ptr : given.got;
    int code = 0;

    drawn_freed = 0;
    if (!p)
        return;
    for (int i = 0; i < things_count; i++)
        if (things[i].kind < K_RANGE && p < things[i].value + things[i].size && things[i].value < p + size)
            out(" overlap");
    if (kind == K_PINNED || kind == K_REGISTERED)
        memset((void *)(uintptr_t)p, 0x33, size); /* NOLINT: an address */
    else if (kind == K_ASYNC)
        code = (int)cuMemsetD8Async(p, 0x33, size, drawn_stream(row));
    else if (kind != K_RANGE)
        code = (int)cuMemsetD8_v2(p, 0x33, size);
    if (code)
        told("filled", code);
    if (kind != K_ASYNC && kind != K_RANGE)
        drawn_wait();
    thing_new(kind, p, size);
}

/* Work that names memory must not run once it is gone. */
static void graphs_end(void)
{
    for (int i = things_count - 1; i >= 0; i--) {
        if (things[i].kind == K_GRAPH || things[i].kind == K_TEXTURE) {
            (void)thing_end(&things[i]);
            thing_gone(&things[i]);
        }
    }
}

/* Natively the free has waited, and nobody else: so much does the host see. */
static void host_tell(void)
{
    out(" called=%u", __atomic_load_n(&drawn_called, __ATOMIC_ACQUIRE));
    for (int i = 0; i < things_count; i++) {
        if (things[i].kind == K_PINNED || things[i].kind == K_REGISTERED)
            out(" %08x", sum((const void *)(uintptr_t)things[i].value, things[i].size)); /* NOLINT: an address */
    }
}

static void ended(const struct drawn_row *row, unsigned ends)
{
    const uint64_t value = ends & 1u << K_STREAM    ? (uintptr_t)given.stream
                           : ends & 1u << K_CONTEXT ? (uintptr_t)given.context
                           : ends & 1u << K_GREEN   ? (uintptr_t)given.green
                           : ends & 1u << K_TEXTURE ? drawn.texture
                           : ends & 1u << K_ARRAY   ? (uintptr_t)drawn.array
                           : ends & 1u << K_HANDLE  ? given.handle
                                                    : given.ptr;
    struct thing *t = thing_find(ends, value);

    if (ends & 1u << K_RETAINED)
        t = thing_pick(1u << K_RETAINED);
    if (!t)
        return;
    if (t->kind == K_MEMORY && !strstr(row->symbol, "Async")) {
        drawn_freed = value;
        if (hazards)
            host_tell();
    }
    if (t->kind == K_MAPPED) {
        t->kind = K_RANGE;
        t->reach = false;
    } else {
        thing_gone(t);
    }
    if (ends & (1u << K_MEMORY | 1u << K_PINNED | 1u << K_REGISTERED | 1u << K_MAPPED))
        graphs_end();
}

static void descriptor_after(const struct drawn_row *row)
{
    const int fd = (int)drawn.room[0][0];

    if (fd <= 2)
        return;
    if (row_is(row, "cuMemExport") && drawn.descriptor < 0)
        drawn.descriptor = fd;
    else if (row_is(row, "cuMemExport") || row_is(row, "cuMemGetHandleFor"))
        close(fd);
}

void things_after(const struct drawn_row *row, int code)
{
    const int makes = row_makes(row);
    const unsigned ends = row_ends(row);
    struct thing *t;

    results_tell(row);
    if (code)
        return;
    drawn_busy = drawn_stream(row) ? drawn_stream(row) : drawn_busy;
    descriptor_after(row);
    if (ends && !(row_is(row, "cuMemFree") && !given.ptr))
        ended(row, ends);
    handles_made(row);
    graph_after(row);
    if (makes >= 0)
        memory_made(row, (enum kind)makes);
    if (row_is(row, "cuMemMap") && !row_takes(row, "list")) {
        if ((t = thing_find(1u << K_RANGE, given.ptr)))
            t->kind = K_MAPPED;
        if ((t = thing_find(1u << K_HANDLE, given.handle)))
            t->reach = true;
    }
    if (row_is(row, "cuMemSetAccess") && (t = thing_find(1u << K_MAPPED, given.ptr)) && !t->reach) {
        t->reach = true;
        if (cuMemsetD8_v2(t->value, 0x33, t->size))
            told("filled", 1);
        drawn_wait();
    }
}
