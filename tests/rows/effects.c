/* SPDX-License-Identifier: Apache-2.0 */
/*
 * effects.c - the effects that rows of both APIs have, and what tests of effects share.
 *
 * Each effect is seen from outside: by how often the simulated GPU's functions were called, by results, by
 * the trace.
 *
 * Not here: the effects that only calls of the driver have (driver.c).
 */
#include "effects.h"

#include <libgen.h>

int freed_usually = ORDERED;
CUdeviceptr own;
CUstream stream;

int freed(void)
{
    const CUdeviceptr ptr = memory_take(1000);
    const unsigned long recorded = simgpu_count("cuCtxRecordEvent"), waited = simgpu_count("cuCtxSynchronize");

    if (!ptr || memory_give(ptr))
        return -1;
    return simgpu_count("cuCtxSynchronize") != waited     ? WAITED
           : simgpu_count("cuCtxRecordEvent") != recorded ? ORDERED
                                                          : KEPT;
}

int accepted(const struct row *row)
{
    return row_call_answered(row, CUDA_SUCCESS);
}

bool is_per_thread(const struct row *row)
{
    return strstr(row->symbol, "_pts") || strstr(row->symbol, "_ptds");
}

/* A row of the same API; in the form for per-thread default streams if that is what like has. */
const struct row *row_like(const struct row *like, const char *driver, const char *runtime)
{
    char symbol[64];

    snprintf(symbol, sizeof(symbol), "%s%s", like->runtime ? runtime : driver, is_per_thread(like) ? "_ptsz" : "");
    return row_find(symbol);
}

void given_reset(void)
{
    static CUcontext current;

    cuCtxGetCurrent(&current);
    memset(&given, 0, sizeof(given));
    given.to = given.ptr = own;
    given.from = own + 4096;
    given.stream = stream;
    given.size = 2 << 20;
    given.offset = 0x3000;
    given.count = 1;
    given.context = (CUcontext)0xc0de;
    given.made = current;
    given.handle = 0x777;
    given.attribute = CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
    given.data_list[0] = &given.data;
    given.location = (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_DEVICE};
    given.memory_type = CU_MEM_ALLOCATION_TYPE_PINNED;
    given.access[0] = (CUmemAccessDesc){.location = given.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    given.memory.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    given.memory.location = given.location;
    given.multicast.size = given.size;
    given.to_type = given.from_type = CU_MEMORYTYPE_UNIFIED;
    given_fill();
}

static void fill_node(void)
{
    /* How the parameters of a batch of copies begin: CU_GRAPH_NODE_TYPE_MEMCPY_BATCH of CUDA 13.4. */
    const struct {
        size_t count;
        CUdeviceptr *to, *from;
    } batch = {1, &given.to, &given.from};

    memset(&given.node, 0, sizeof(given.node));
    given.node.type = (CUgraphNodeType)given.node_type;
    if (given.node_type == CU_GRAPH_NODE_TYPE_MEMCPY)
        given.node.memcpy.copyParams = given.copy_3d;
    else if (given.node_type == CU_GRAPH_NODE_TYPE_MEMSET)
        given.node.memset = (CUDA_MEMSET_NODE_PARAMS_v2){.dst = given.to, .pitch = 1, .elementSize = 1};
    else if (given.node_type == 14)
        memcpy(&given.node.memcpy, &batch, sizeof(batch));
}

#define FILL(copy)                                                                                                     \
    do {                                                                                                               \
        (copy).dstMemoryType = given.to_type;                                                                          \
        (copy).srcMemoryType = given.from_type;                                                                        \
        (copy).dstDevice = given.to;                                                                                   \
        (copy).srcDevice = given.from;                                                                                 \
    } while (0)

static void fill_batch(void)
{
    for (size_t i = 0; i < 2; i++) {
        const bool first_of_two = !i && given.count > 1;
        CUDA_MEMCPY3D_BATCH_OP *copy = &given.copy_batch[i];

        given.to_batch[i] = first_of_two ? own : given.to;
        given.from_batch[i] = first_of_two ? own + 4096 : given.from;
        copy->src.type = copy->dst.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
        copy->dst.op.ptr.ptr = given.to_batch[i];
        copy->src.op.ptr.ptr = given.from_batch[i];
    }
}

void given_fill(void)
{
    FILL(given.copy_2d);
    FILL(given.copy_3d);
    FILL(given.copy_peer);
    fill_batch();
    given.set.dst = given.to;
    given.pool.allocType = given.memory_type;
    given.pool.location = given.location;
    fill_node();
}

/* --- effects --- */

int effect_pooled(const struct expectation *e)
{
    unsigned long asked;

    OK(freed() < 0);
    asked = simgpu_count("cuMemAlloc");
    given.size = 1000;
    for (int i = 0; i < 3; i++) {
        given.got = 0;
        OK(row_call(e->row));
        CHECK(given.got);
        OK(memory_give(given.got));
    }
    IS(simgpu_count("cuMemAlloc"), asked);
    return 0;
}

int effect_frees(const struct expectation *e)
{
    const unsigned long given_back = simgpu_count("cuMemFree"), recorded = simgpu_count("cuCtxRecordEvent"),
                        waited = simgpu_count("cuCtxSynchronize");

    given.ptr = memory_take(1000);
    CHECK(given.ptr);
    OK(row_call(e->row));
    IS(simgpu_count("cuMemFree"), given_back);
    IS(simgpu_count("cuCtxRecordEvent"), recorded + (freed_usually == ORDERED));
    IS(simgpu_count("cuCtxSynchronize"), waited + (freed_usually == WAITED));
    IS(row_call(e->row), CUDA_ERROR_INVALID_VALUE); /* the second time */
    return 0;
}

static unsigned long pinned_by_driver(void)
{
    return simgpu_count("cuMemAllocHost") + simgpu_count("cuMemHostAlloc");
}

/* Pinned memory is handed out again; with CUPOOL_HOOK=runtime nothing of it is pooled. */
int effect_pinned(const struct expectation *e)
{
    unsigned long asked = 0;

    given.size = 1000;
    for (int i = 0; i < 3; i++) {
        given.got = 0;
        OK(row_call(e->row));
        CHECK(given.got);
        OK(cuMemFreeHost((void *)(uintptr_t)given.got));
        asked = i ? asked : pinned_by_driver();
    }
    IS(pinned_by_driver(), asked + (freed_usually == ORDERED ? 0 : 2));
    return 0;
}

int effect_frees_pinned(const struct expectation *e)
{
    const unsigned long given_back = simgpu_count("cuMemFreeHost");
    void *pinned = NULL;

    OK(cuMemHostAlloc(&pinned, 1000, 0));
    given.ptr = (CUdeviceptr)(uintptr_t)pinned;
    OK(row_call(e->row));
    IS(simgpu_count("cuMemFreeHost"), given_back);
    IS(row_call(e->row), CUDA_ERROR_INVALID_VALUE); /* the second time */
    return 0;
}

/* On a stream that captures it fails, and frees nothing. captured: the stream that does; on: the stream of the free. */
static int frees_later_captured(const struct row *row, CUstream captured, CUstream on, bool fails)
{
    const CUdeviceptr ptr = memory_take(1000);

    given.stream = captured;
    OK(row_call(row_like(row, "cuStreamBeginCapture", "cudaStreamBeginCapture")));
    given.stream = on;
    given.ptr = ptr;
    IS(row_call(row) != 0, fails);
    given.stream = captured;
    row_call(row_like(row, "cuStreamEndCapture", "cudaStreamEndCapture")); /* it may be lost */
    if (fails)
        OK(memory_give(ptr));
    return 0;
}

int effect_frees_later(const struct expectation *e)
{
    const unsigned long given_back = simgpu_count("cuMemFreeAsync"), recorded = simgpu_count("cuCtxRecordEvent"),
                        waited = simgpu_count("cuCtxSynchronize");
    CUstream blocking;

    for (int i = 0; i < 2; i++) {
        given.ptr = memory_take(1000);
        given.stream = i ? stream : NULL;
        CHECK(given.ptr);
        OK(row_call(e->row));
        IS(simgpu_count("cuMemFreeAsync"), given_back);
        IS(simgpu_count("cuCtxRecordEvent"), recorded);
        IS(simgpu_count("cuCtxSynchronize"), waited);
    }
    CHECK(row_call(e->row)); /* the second time */
    TRY(frees_later_captured(e->row, stream, stream, true));
    if (is_per_thread(e->row))
        TRY(frees_later_captured(e->row, NULL, NULL, true));
    /* The legacy stream has its part in what a blocking stream captures, the per-thread one has not. */
    OK(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    return frees_later_captured(e->row, blocking, NULL, !is_per_thread(e->row));
}

int effect_counts_idle(const struct expectation *e)
{
    size_t before;
    CUdeviceptr ptr;

    OK(row_call(e->row));
    before = given.got_size;
    ptr = memory_take(8 << 20);
    CHECK(ptr);
    OK(row_call(e->row));
    IS(given.got_size, before - (8 << 20));
    OK(memory_give(ptr));
    OK(row_call(e->row));
    IS(given.got_size, before);
    return 0;
}

static struct {
    const struct row *info, *free;
    CUdeviceptr ptr;
    int error;
    bool asked;
} question;

/* A block is freed, which gets no event beside the driver's call. Then the free memory is asked about, and with it
 * whether the work before a deferred free is over. */
static void question_ask(void)
{
    const unsigned long recorded = simgpu_count("cuCtxRecordEvent");
    const __typeof__(given) outer = given;

    question.error = 0;
    if (question.ptr) {
        given.ptr = question.ptr;
        given.stream = CU_STREAM_PER_THREAD;
        question.ptr = 0;
        question.error = row_call(question.free);
    }
    question.error |= row_call(question.info);
    given = outer;
    question.asked = simgpu_count("cuCtxRecordEvent") != recorded;
}

/* Not inside of the driver's call, whose symbol is the setting; the row's own is one of the driver. */
int effect_waits(const struct expectation *e)
{
    question.info = row_like(e->row, "cuMemGetInfo_v2", "cudaMemGetInfo");
    question.free = row_like(e->row, "cuMemFreeAsync", "cudaFreeAsync");
    question.ptr = memory_take(1000);
    CHECK(question.ptr);
    given_reset();
    question.error = -1;
    simgpu_before(*e->settings ? e->settings : e->row->symbol, question_ask);
    (void)row_call(e->row); /* some refuse what is given */
    simgpu_before("", NULL);
    OK(question.error);
    CHECK(!question.asked);
    question_ask();
    OK(question.error);
    CHECK(question.asked);
    return 0;
}

int effect_ipc(const struct expectation *e)
{
    /* A block has a ticket, if processes can open it: by a hook of the driver. */
    const char *hook = getenv("CUPOOL_HOOK");
    const bool ticket = !hook || strcmp(hook, "runtime") != 0;

    given.ptr = memory_take(1000);
    CHECK(given.ptr);
    IS(row_call(e->row), ticket ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
    CHECK(trace_has("ipc", "\"d\":0", ticket ? "\"ok\":1" : "\"ok\":0"));
    CHECK(trace_has("policy", "memory exported", "") == ticket);
    given.ptr = own;
    OK(row_call(e->row));
    CHECK(trace_has("ipc", "\"d\":0", "\"ok\":1"));
    CHECK(trace_has("policy", "\"d\":0", "\"why\":\"memory exported to other processes\""));
    return 0;
}

int library_call(const struct row *row, const char *file, int answer)
{
    int (*call)(const struct given *arguments, const char *symbol, void *function);
    char program[2048], path[4096];
    const ssize_t n = readlink("/proc/self/exe", program, sizeof(program) - 1);
    void *library;
    int result;

    CHECK(n > 0);
    program[n] = '\0';
    snprintf(path, sizeof(path), "%s/%s", dirname(program), file);
    library = dlopen(path, RTLD_NOW);
    if (!library)
        return fail("%s", dlerror());
    *(void **)&call = dlsym(library, "rows_library_call");
    CHECK(call);
    *rows_next = (struct rows_next){.symbol = row->symbol, .answers = {answer}, .answers_count = 1};
    result = call(&given, row->symbol, row->function);
    rows_next->symbol = NULL;
    return result;
}

int effect_transfer(const struct expectation *e)
{
    if (!row_is_answered(e->row)) /* a static cudart's calls are the program's own */
        return 0;
    OK(row_call(e->row));
    CHECK(!trace_has("policy", "\"d\":0", "MPI"));
    OK(library_call(e->row, LIBRARY_TRANSFER, ANSWER_REAL));
    CHECK(trace_has("policy", "\"d\":0", "\"why\":\"MPI or UCX moves its memory\""));
    return 0;
}

/* --- captures --- */

/* The gate is open, and not only because somebody has asked the driver. */
static int is_open(void)
{
    const unsigned long asked = simgpu_count("cuStreamIsCapturing");

    IS(freed(), freed_usually);
    IS(simgpu_count("cuStreamIsCapturing"), asked);
    return 0;
}

static int captures_on(const struct row *begin, const struct row *end, CUstream on)
{
    given.stream = on;
    given.count = 0;
    OK(cuGraphCreate(&given.graph, 0));
    TRY(is_open());
    OK(row_call(begin));
    IS(freed(), KEPT);
    given.graph_made = NULL;
    if (row_is_answered(end)) { /* an end that fails is none */
        IS(row_call_answered(end, CUDA_ERROR_INVALID_VALUE), CUDA_ERROR_INVALID_VALUE);
        IS(freed(), KEPT);
    }
    OK(row_call(end));
    CHECK(given.graph_made || strstr(end->symbol, "Destroy"));
    return is_open();
}

static int captures(const struct row *begin, const struct row *end)
{
    TRY(captures_on(begin, end, stream));
    return is_per_thread(begin) ? captures_on(begin, end, NULL) : 0;
}

int effect_closes(const struct expectation *e)
{
    const struct row *row = e->row;

    if (row_is_answered(row)) {
        IS(row_call_answered(row, CUDA_ERROR_INVALID_VALUE), CUDA_ERROR_INVALID_VALUE);
        TRY(is_open());
    }
    return captures(row, row_like(row, "cuStreamEndCapture", "cudaStreamEndCapture"));
}

int effect_opens(const struct expectation *e)
{
    const struct row *begin = row_like(e->row, "cuStreamBeginCapture", "cudaStreamBeginCapture");
    CUstream other;

    if (strcmp(e->settings, "destroys") != 0)
        return captures(begin, e->row);
    OK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    return captures_on(begin, e->row, other);
}

/* --- contexts --- */

static int pool_is_there(void)
{
    unsigned long asked;

    CHECK(freed() >= 0);
    asked = simgpu_count("cuMemAlloc");
    CHECK(freed() >= 0);
    IS(simgpu_count("cuMemAlloc"), asked);
    CHECK(!trace_has("segment_free", "\"why\":\"context\"", ""));
    return 0;
}

int effect_ends_context(const struct expectation *e)
{
    static const int errors[] = {CUDA_ERROR_INVALID_VALUE,   CUDA_ERROR_INVALID_CONTEXT, CUDA_ERROR_INVALID_DEVICE,
                                 CUDA_ERROR_NOT_INITIALIZED, CUDA_ERROR_NOT_PERMITTED,   CUDA_ERROR_DEINITIALIZED};
    CUcontext current;

    if (strstr(e->row->symbol, "cuCtxDestroy") || strstr(e->row->symbol, "cuCtxDetach")) {
        OK(cuCtxCreate_v2(&given.context, 0, 1));
        TRY(pool_is_there());
    }
    /* A call that has done nothing. */
    for (size_t i = 0; row_is_answered(e->row) && i < sizeof(errors) / sizeof(errors[0]); i++) {
        IS(row_call_answered(e->row, errors[i]), errors[i]);
        TRY(pool_is_there());
    }
    if (strcmp(e->settings, "last") == 0) { /* only the last reference is the context's end */
        OK(cuDevicePrimaryCtxRetain(&current, 0));
        OK(row_call(e->row));
        TRY(pool_is_there());
    }
    OK(row_call(e->row));
    CHECK(trace_has("segment_free", "\"why\":\"context\"", ""));
    return 0;
}

/* --- what every row does --- */

bool expects(const struct expectation *e, const char *word)
{
    const char *found = strstr(e->row->expected, word);

    return found && (found == e->row->expected || found[-1] == ' ') && strchr("; ", found[strlen(word)]);
}

static unsigned long memory_given_back(void)
{
    return simgpu_count("cuMemFree") + simgpu_count("cuMemFreeAsync");
}

/* A call that takes memory is made again; all hand on what they are given and what they get. */
int arguments(const struct expectation *e)
{
    const bool twice = expects(e, "retry");
    unsigned long given_back;
    CUcontext current;
    CUdeviceptr idle;

    if (!row_is_answered(e->row))
        return 0;
    /* Each is another one, and the pool's business is none of them. */
    given.size = expects(e, "pooled") || expects(e, "pinned") ? 0 : 0x6006;
    given.ptr = 0x7007000;
    given.flags = 0x40000;
    IS(row_call_answered(e->row, CUDA_ERROR_INVALID_VALUE), CUDA_ERROR_INVALID_VALUE);
    IS(rows_next->calls, 1);
    IS(rows_next->got.size, rows_sent.size);
    IS(memcmp(rows_next->got.bytes, rows_sent.bytes, rows_sent.size), 0);
    if (e->row->runtime)
        return 0;

    OK(cuCtxGetCurrent(&current));
    idle = memory_take(8 << 20);
    CHECK(idle);
    OK(memory_give(idle));
    if (strstr(e->row->symbol, "CtxCreate")) /* a thread that has no context yet */
        OK(cuCtxSetCurrent(NULL));
    given_back = memory_given_back();
    *rows_next = (struct rows_next){
        .symbol = e->row->symbol, .answers = {CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_INVALID_VALUE}, .answers_count = 2};
    IS(row_call(e->row), twice ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_OUT_OF_MEMORY);
    rows_next->symbol = NULL;
    OK(cuCtxSetCurrent(current));
    IS(rows_next->calls, 1 + twice);
    CHECK(!rows_next->differ);
    IS(memory_given_back() > given_back, twice);
    return 0;
}
