/* SPDX-License-Identifier: Apache-2.0 */
/*
 * differ_drawn.c - the differential fuzzer's arguments for the rows of shim/hooks/.
 *
 * Each argument is an object that an earlier call of the sequence has made, or a size, an extent, a flag; now and then
 * a wrong one. Never memory that has been freed where work would use it: under cupool that would be another block's
 * (docs/differences.md, "out-of-bounds accesses").
 *
 * Locking: none, see differ.h.
 */
#include "differ_drawn.h"

struct given given;
struct drawn drawn;
unsigned int drawn_called;

void drawn_host(void *arg)
{
    __atomic_fetch_add((unsigned int *)arg, 1, __ATOMIC_RELEASE);
}

void drawn_callback(CUstream s, CUresult status, void *arg)
{
    drawn_host(arg);
}

bool row_is(const struct drawn_row *row, const char *begin)
{
    return strncmp(row->symbol, begin, strlen(begin)) == 0;
}

bool row_takes(const struct drawn_row *row, const char *words)
{
    return strstr(row->parameters, words) != NULL;
}

static bool per_thread(const struct drawn_row *row)
{
    return strstr(row->symbol, "_ptsz") || strstr(row->symbol, "_ptds");
}

static bool works_without_stream(const struct drawn_row *row)
{
    return (row_is(row, "cuMemcpy") || row_is(row, "cuMemset")) && !row_takes(row, "stream");
}

CUstream drawn_stream(const struct drawn_row *row)
{
    if (!row_takes(row, "CUstream stream") && !row_takes(row, "cudaStream_t stream") && !works_without_stream(row))
        return NULL;
    if (works_without_stream(row) || !given.stream)
        return per_thread(row) ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY;
    return given.stream;
}

/* ---- extents ---- */

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

static size_t size_drawn(void)
{
    return chance(8) ? 2 * MIB - 2048 + pick(4096) : chance(4) ? 1 + pick(200000) : 64 + pick(8192);
}

static const struct thing *pinned_pick(void)
{
    const struct thing *t = thing_pick(1u << K_PINNED | 1u << K_REGISTERED);

    return t && t->size >= 64 ? t : NULL;
}

/* Two pieces of memory, and how many bytes are in both. One of them may be the host's. */
static size_t ends_draw(void)
{
    const struct thing *to = memory_pick(NULL), *from = memory_pick(to), *pinned = pinned_pick();

    if (pinned && chance(2))
        *(chance(4) ? &from : &to) = pinned;
    const size_t to_at = (size_t)pick((uint32_t)to->size / 2) & ~(size_t)7,
                 from_at = (size_t)pick((uint32_t)from->size / 2) & ~(size_t)7;

    given.to = to->value + to_at;
    given.from = from->value + from_at;
    return least(least(to->size - to_at, from->size - from_at), DRAWN_PAGEABLE);
}

static unsigned int element_of(const struct drawn_row *row)
{
    return strstr(row->symbol, "D32") ? 4 : strstr(row->symbol, "D16") ? 2 : 1;
}

/* Rows of bytes within n. */
static void rows_draw(const struct drawn_row *row, size_t n)
{
    const unsigned int element = element_of(row);

    drawn.height = 1 + pick(4);
    drawn.pitch = n / drawn.height & ~(size_t)7;
    drawn.width = 1 + pick((uint32_t)least(drawn.pitch / element, 4096));
    if (!drawn.pitch || drawn.width * element > drawn.pitch) {
        drawn.height = 1;
        drawn.width = 1;
        drawn.pitch = element;
    }
    if (row_is(row, "cuMemAllocPitch")) {
        drawn.width = 1 + pick(3000);
        drawn.height = 1 + pick(40);
    }
    drawn.element = 4u << pick(3);
}

#define EXTENT(copy)                                                                                                   \
    do {                                                                                                               \
        (copy).dstMemoryType = (copy).srcMemoryType = type;                                                            \
        (copy).dstDevice = given.to;                                                                                   \
        (copy).srcDevice = given.from;                                                                                 \
        (copy).dstPitch = (copy).srcPitch = drawn.pitch;                                                               \
        (copy).WidthInBytes = least(drawn.width, drawn.pitch);                                                         \
        (copy).Height = drawn.height;                                                                                  \
    } while (0)

static void operand_fill(CUmemcpy3DOperand *o, CUdeviceptr ptr)
{
    o->type = CU_MEMCPY_OPERAND_TYPE_POINTER;
    o->op.ptr.ptr = ptr;
    o->op.ptr.rowLength = drawn.pitch;
    o->op.ptr.layerHeight = drawn.height;
    o->op.ptr.locHint = given.location;
}

/* Copies between given.to and given.from; a batch's two are of one half each. */
static void copies_fill(size_t n)
{
    const CUmemorytype type = chance(2) ? CU_MEMORYTYPE_UNIFIED : CU_MEMORYTYPE_DEVICE;

    EXTENT(given.copy_2d);
    EXTENT(given.copy_3d);
    EXTENT(given.copy_peer);
    given.copy_3d.Depth = given.copy_peer.Depth = 1;
    given.copy_peer.dstContext = given.copy_peer.srcContext = drawn_own;
    for (size_t i = 0; i < 2; i++) {
        const size_t half = n / 2 & ~(size_t)7;
        CUDA_MEMCPY3D_BATCH_OP *c = &given.copy_batch[i];

        given.to_batch[i] = given.to + i * half;
        given.from_batch[i] = given.from + i * half;
        drawn.sizes[i] = half ? half : 1;
        operand_fill(&c->dst, given.to);
        operand_fill(&c->src, given.from);
        c->extent = (CUextent3D){least(drawn.width, drawn.pitch), drawn.height, 1};
        c->srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    }
    drawn.attributes[0] = (CUmemcpyAttributes){.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM};
    drawn.attributes[0].srcLocHint = drawn.attributes[0].dstLocHint = given.location;
}

static void nodes_fill(const struct drawn_row *row)
{
    const unsigned int element = 1u << pick(3);

    given.set = (CUDA_MEMSET_NODE_PARAMS){.dst = given.to,
                                          .pitch = drawn.pitch,
                                          .value = drawn.value,
                                          .elementSize = element,
                                          .width = drawn.width / element ? drawn.width / element : 1,
                                          .height = 1};
    drawn.host_node = (CUDA_HOST_NODE_PARAMS){.fn = drawn_host, .userData = &drawn_called};
    if (!row_takes(row, "CUgraphNode node"))
        given.node_type = chance(2) ? CU_GRAPH_NODE_TYPE_MEMCPY : CU_GRAPH_NODE_TYPE_MEMSET;
    given.node.type = (CUgraphNodeType)given.node_type;
    if (given.node_type == CU_GRAPH_NODE_TYPE_MEMCPY) {
        given.node.memcpy.copyParams = given.copy_3d;
        given.node.memcpy.copyCtx = drawn_own;
    } else {
        given.node.memset = (CUDA_MEMSET_NODE_PARAMS_v2){given.set.dst,   given.set.pitch,  given.set.value, element,
                                                         given.set.width, given.set.height, drawn_own};
    }
    for (int i = 0; i < 2; i++) {
        drawn.writes[i].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
        drawn.writes[i].writeValue.address = given.to + 8 * (CUdeviceptr)i;
        drawn.writes[i].writeValue.value = pick(1 << 20);
    }
    drawn.writes_node = (CUDA_BATCH_MEM_OP_NODE_PARAMS){drawn_own, 1, drawn.writes, 0};
}

/* Are there two of what the row takes some of? */
static bool counts_two(const struct drawn_row *row)
{
    return row_takes(row, "CUdeviceptr * to") || row_takes(row, "CUDA_MEMCPY3D_BATCH_OP * operations") ||
           row_takes(row, "CUmemAccessDesc * access") || row_takes(row, "CUstreamBatchMemOpParams");
}

static bool in_thing(const struct thing *t, CUdeviceptr p)
{
    return p >= t->value && p < t->value + t->size;
}

static void work_draw(const struct drawn_row *row)
{
    const size_t n = ends_draw();
    const struct thing *pinned = pinned_pick();

    rows_draw(row, n);
    drawn.value = pick(1 << 20);
    given.size = 1 + pick((uint32_t)n);
    given.count = row_is(row, "cuMemset")   ? (element_of(row) + pick((uint32_t)n)) / element_of(row)
                  : row_takes(row, "nodes") ? 0
                  : counts_two(row)         ? 1 + pick(2)
                                            : 1;
    if (given.count * element_of(row) > n && row_is(row, "cuMemset"))
        given.count = n / element_of(row);
    drawn.host_from = drawn_pageable(0);
    drawn.host_to = drawn_pageable(1);
    if (pinned && pinned->size >= given.size && !in_thing(pinned, given.to) && !in_thing(pinned, given.from) &&
        chance(2)) {
        void *const p = (void *)(uintptr_t)pinned->value; /* NOLINT: an address */
        *(row_takes(row, "void * to") ? &drawn.host_to : &drawn.host_from) = p;
    }
    copies_fill(n);
    nodes_fill(row);
}

/* ---- objects ---- */

static uint64_t value_of(const struct thing *t)
{
    return t ? t->value : 0;
}

static void stream_draw(const struct drawn_row *row)
{
    static const CUstream always[] = {NULL, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD};
    const struct thing *t = thing_pick(1u << K_STREAM);

    given.stream = chance(3) ? always[pick(3)] : drawn_main;
    if (t && (chance(2) || row_ends(row) == 1u << K_STREAM))
        given.stream = (CUstream)(uintptr_t)t->value; /* NOLINT: a handle */
    else if (row_ends(row) == 1u << K_STREAM)         /* the rest of the sequence needs it */
        given.stream = NULL;
    if (strstr(row->symbol, "BeginCapture") || strstr(row->symbol, "BeginRecapture"))
        given.stream = chance(6) ? always[pick(3)] : drawn_main;
}

static void graph_draw(const struct drawn_row *row)
{
    const struct thing *t = thing_pick(1u << K_GRAPH);
    const int wanted = strstr(row->symbol, "Memcpy")   ? CU_GRAPH_NODE_TYPE_MEMCPY
                       : strstr(row->symbol, "Memset") ? CU_GRAPH_NODE_TYPE_MEMSET
                                                       : -1;

    given.graph = (CUgraph)(uintptr_t)value_of(t); /* NOLINT: a handle */
    if (row_takes(row, "CUgraphNode * node") || strstr(row->symbol, "CaptureToGraph")) {
        CUgraph graph = NULL; /* one node in each: others would be without an order */

        (void)cuGraphCreate(&graph, 0);
        t = thing_new(K_GRAPH, (uintptr_t)graph, 0);
        given.graph = graph;
    }
    if (t && t->node && (wanted < 0 || wanted == t->node_type)) {
        drawn.node = t->node;
        given.node_type = t->node_type;
    }
    drawn.exec = t && (!row_takes(row, "CUgraphNode node") || drawn.node) ? t->exec : NULL;
}

static void virtual_draw(const struct drawn_row *row)
{
    const bool maps = row_is(row, "cuMemMap");
    const unsigned kinds = maps || row_is(row, "cuMemAddressFree") ? 1u << K_RANGE : 1u << K_MAPPED;
    const struct thing *t = thing_pick(kinds), *handle = thing_pick(1u << K_HANDLE);

    if (row_takes(row, "CUmemGenericAllocationHandle handle"))
        given.handle = maps && handle && handle->reach ? 0 : value_of(handle);
    given.memory = (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = given.location};
    if (chance(2))
        given.memory.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    if (row_is(row, "cuMemCreate") || row_is(row, "cuMemAddressReserve"))
        given.size = 2 * MIB + (chance(10) ? 4096 : 0);
    given.multicast = (CUmulticastObjectProp){.numDevices = 1, .size = 2 * MIB};
    if (!row_is(row, "cuMemMap") && !row_is(row, "cuMemUnmap") && !row_is(row, "cuMemAddressFree") &&
        !row_is(row, "cuMemSetAccess") && !row_is(row, "cuMemGetAccess") && !row_is(row, "cuMemRetain"))
        return;
    given.ptr = value_of(t);
    given.size = t ? t->size : 2 * MIB;
}

static void contexts_draw(const struct drawn_row *row)
{
    const struct thing *made = thing_pick(1u << K_CONTEXT), *retained = thing_pick(1u << K_RETAINED);
    const bool ends = row_is(row, "cuDevicePrimaryCtxRelease");

    drawn.device = chance(8) ? 63 : drawn_dev;
    if (ends)
        drawn.device = retained ? retained->dev : 63;
    if (row_is(row, "cuDevicePrimaryCtxReset"))
        drawn.device = 63;
    given.context = row_ends(row) & 1u << K_CONTEXT ? (CUcontext)(uintptr_t)value_of(made) /* NOLINT: a handle */
                                                    : drawn_own;
    drawn.from_context = drawn.to_context = drawn_own;
    drawn.peer = (CUcontext)(uintptr_t)value_of(retained); /* NOLINT: a handle */
}

/* ---- addresses ---- */

/* For questions about addresses: any. */
static CUdeviceptr asked_draw(void)
{
    const struct thing *t =
        thing_pick(1u << K_MEMORY | 1u << K_ASYNC | 1u << K_PINNED | 1u << K_MAPPED | 1u << K_MANAGED);

    switch (pick(8)) {
    case 0:
        return 0;
    case 1:
        return 0x1234;
    case 2:
        return drawn_freed;
    case 3:
        return (uintptr_t)drawn_pageable(0);
    default:
        return t ? t->value + (chance(2) ? 0 : pick((uint32_t)t->size)) : 0;
    }
}

static void ptr_draw(const struct drawn_row *row)
{
    const unsigned ends = row_ends(row);
    const struct thing *t = thing_pick(ends);

    given.ptr = row_is(row, "cuPointer") || row_is(row, "cudaPointer") || row_is(row, "cuMemGetAddressRange") ||
                        row_is(row, "cuMemGetHandle")
                    ? asked_draw()
                    : memory_pick(NULL)->value;
    if (row_is(row, "cuMemHostRegister"))
        given.ptr = (uintptr_t)drawn_pageable(2);
    if (ends & (1u << K_MEMORY | 1u << K_PINNED | 1u << K_REGISTERED)) {
        given.ptr = value_of(t);
        switch (chance(4) ? pick(4) : 4) {
        case 0:
            given.ptr = 0;
            break;
        case 1:
            given.ptr = strstr(row->symbol, "Async") ? 0 : drawn_freed;
            break;
        case 2:
            given.ptr += t && t->size > 1 ? 1 + pick((uint32_t)t->size - 1) : 0;
            break;
        case 3:
            given.ptr = (uintptr_t)drawn_pageable(0) + 8;
            break;
        default:;
        }
    }
}

static void sizes_draw(const struct drawn_row *row)
{
    if (row_is(row, "cuMemAlloc") || row_is(row, "cudaMalloc") || row_is(row, "cuMemHostAlloc") ||
        row_is(row, "cudaHostAlloc"))
        given.size = chance(16) ? 0 : chance(24) ? SIZE_MAX - pick(4096) : size_drawn();
    if (row_is(row, "cuMemAllocManaged"))
        given.size = chance(16) ? 0 : 1 + pick(20000);
    if (row_is(row, "cuMemHostRegister"))
        given.size = chance(16) ? 0 : 4096 * (1 + (size_t)pick(4));
    if (row_is(row, "cuMemGetHandleForAddressRange"))
        given.size = 4096 * (1 + (size_t)pick(4));
}

static void flags_draw(const struct drawn_row *row)
{
    if (row_is(row, "cuMemAllocManaged") || row_is(row, "cuGreenCtx") || row_is(row, "cuIpcOpen") ||
        row_is(row, "cuStreamCreate"))
        given.flags = 1;
    else if (row_is(row, "cuMemHostAlloc") || row_is(row, "cudaHostAlloc"))
        given.flags = pick(2);
    else if (row_is(row, "cuEventCreate"))
        given.flags = pick(3);
    if (chance(16))
        given.flags = 0x1000;
    drawn.long_flags = chance(16) && row_takes(row, "flags") && !row_takes(row, "CUstream") ? 0x1000 : 0;
}

static void rest_draw(const struct drawn_row *row)
{
    static const char *const names[] = {
        "cuMemAlloc",       "cuMemFree", "cuCtxSynchronize", "cuStreamBeginCapture", "cuLaunchKernel",
        "cuNoSuchFunction", ""};
    static const int versions[] = {2000, 11030, 12000, 13000};
    const struct thing *to = memory_pick(NULL);

    drawn.name = names[pick(7)];
    drawn.version = versions[pick(4)];
    drawn.mode = (CUstreamCaptureMode)pick(3);
    drawn.limit = simulated ? (CUlimit)pick(3) : CU_LIMIT_PRINTF_FIFO_SIZE; /* others may take much memory */
    drawn.amount = 1024 * (1 + (size_t)pick(64));
    drawn.handle_type = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    drawn.start = drawn_events[0];
    drawn.end = drawn_events[1];
    given.attribute = (CUpointer_attribute)(1 + pick(20));
    if (!sharing && (given.attribute == CU_POINTER_ATTRIBUTE_P2P_TOKENS || row_is(row, "cuPointerSet")))
        given.attribute = CU_POINTER_ATTRIBUTE_MEMORY_TYPE; /* else frees wait from now on */
    given.data_list[0] = drawn.room[2];
    given.memory_type = CU_MEM_ALLOCATION_TYPE_PINNED;
    given.pool = (CUmemPoolProps){.allocType = given.memory_type, .location = given.location};
    given.access[0] = (CUmemAccessDesc){.location = given.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    given.access[1] = given.access[0];
    drawn.resource.resType = CU_RESOURCE_TYPE_LINEAR;
    drawn.resource.res.linear.devPtr = to->value;
    drawn.resource.res.linear.format = CU_AD_FORMAT_UNSIGNED_INT8;
    drawn.resource.res.linear.numChannels = 1;
    drawn.resource.res.linear.sizeInBytes = least(to->size, 4096);
    drawn.array_2d = (CUDA_ARRAY_DESCRIPTOR){16, 16, CU_AD_FORMAT_UNSIGNED_INT8, 1};
    drawn.array_3d = (CUDA_ARRAY3D_DESCRIPTOR){16, 16, 0, CU_AD_FORMAT_UNSIGNED_INT8, 1, 0};
    drawn.texture = value_of(thing_pick(1u << K_TEXTURE));
    drawn.array = (CUarray)(uintptr_t)value_of(thing_pick(1u << K_ARRAY));    /* NOLINT: handles */
    given.green = (CUgreenCtx)(uintptr_t)value_of(thing_pick(1u << K_GREEN)); /* NOLINT */
    drawn.pool = (CUmemoryPool)(uintptr_t)value_of(thing_pick(1u << K_POOL)); /* NOLINT */
}

/* Results are written here. */
static void results_clear(void)
{
    void *const made[] = {&given.made,         &given.graph_made, &drawn.event_made, &drawn.exec_made,
                          &drawn.node_made,    &drawn.green_made, &drawn.pool_made,  &drawn.stream_made,
                          &drawn.array_made,   &drawn.function,   &given.got,        &given.got_size,
                          &drawn.texture_made, &drawn.got_pitch,  drawn.room[2],     &drawn.got_total};
    const uint64_t never = DRAWN_NEVER;

    for (size_t i = 0; i < sizeof(made) / sizeof(made[0]); i++)
        memcpy(made[i], &never, sizeof(never));
}

void draw(const struct drawn_row *row)
{
    const int descriptor = drawn.descriptor;
    const CUdevResourceDesc resources = drawn.resources;
    const CUipcMemHandle ipc = given.ipc;

    memset(&given, 0, sizeof(given));
    memset(&drawn, 0, sizeof(drawn));
    drawn.descriptor = descriptor;
    drawn.resources = resources;
    given.ipc = ipc;
    given.location = (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = drawn_dev};
    graph_draw(row);
    work_draw(row);
    stream_draw(row);
    rest_draw(row);
    contexts_draw(row);
    ptr_draw(row);
    sizes_draw(row);
    virtual_draw(row);
    flags_draw(row);
    results_clear();
}
