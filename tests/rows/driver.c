/* SPDX-License-Identifier: Apache-2.0 */
/*
 * driver.c - the effects of the rows of the driver: what it is told of contexts, memory and addresses, and the ways to
 * its functions.
 *
 * Not here: the rows of the runtime (runtime.c), effects of both (effects.c), and reasons for a free to wait (waits.c).
 */
#include <cuda.h>
#include <pthread.h>

#include "effects.h"

CUcontext here, there;
CUdeviceptr far;
CUstream far_stream;

CUdeviceptr memory_take(size_t size)
{
    CUdeviceptr ptr = 0;

    return cuMemAlloc_v2(&ptr, size) ? 0 : ptr;
}

int memory_give(CUdeviceptr ptr)
{
    return (int)cuMemFree_v2(ptr);
}

static int device_start(int device, CUcontext *ret_context, CUstream *ret_stream, CUdeviceptr *ret_ptr)
{
    OK(cuDevicePrimaryCtxRetain(ret_context, device));
    OK(cuCtxSetCurrent(*ret_context));
    OK(cuStreamCreate(ret_stream, CU_STREAM_NON_BLOCKING));
    *ret_ptr = memory_take(4 << 20);
    CHECK(*ret_ptr);
    for (int i = 0; i < 2; i++) /* for what was launched before the context was known */
        CHECK(freed() >= 0);
    IS(freed(), ORDERED);
    return 0;
}

int world_start(void)
{
    OK(cuInit(0));
    return device_start(0, &here, &stream, &own);
}

int far_start(void)
{
    if (there)
        return 0;
    TRY(device_start(1, &there, &far_stream, &far));
    OK(cuCtxSetCurrent(here));
    return 0;
}

/* --- contexts --- */

/* A context that comes after it is no second one; one that the pool has never seen. */
static int effect_forgets_first(const struct expectation *e)
{
    CUcontext context, second;

    OK(cuCtxCreate_v2(&given.context, 0, 1));
    OK(row_call(e->row));
    OK(cuCtxCreate_v2(&context, 0, 1));
    for (int i = 0; i < 2; i++) /* for what was launched before the context was known */
        CHECK(freed() >= 0);
    IS(freed(), ORDERED);
    given.context = context; /* which stays, so that the next one is a second one */
    IS(row_call_answered(e->row, CUDA_ERROR_INVALID_VALUE), CUDA_ERROR_INVALID_VALUE);
    OK(cuCtxCreate_v2(&second, 0, 1));
    OK(cuCtxSetCurrent(context));
    IS(freed(), WAITED);
    return 0;
}

static int green_make(void)
{
    CUdevResourceDesc description;
    CUdevResource resource;

    OK(cuDeviceGetDevResource(0, &resource, CU_DEV_RESOURCE_TYPE_SM));
    OK(cuDevResourceGenerateDesc(&description, &resource, 1));
    OK(cuGreenCtxCreate(&given.green, description, 0, CU_GREEN_CTX_DEFAULT_STREAM));
    return 0;
}

static int effect_green(const struct expectation *e)
{
    unsigned long asked;

    TRY(green_make());
    OK(row_call(e->row));
    OK(cuCtxSetCurrent(given.made));
    asked = simgpu_count("cuMemAlloc");
    for (int i = 0; i < 2; i++)
        CHECK(freed() >= 0);
    IS(simgpu_count("cuMemAlloc"), asked + 2);
    return 0;
}

/* The handle may come back for a context that is pooled; here it is still one. */
static int effect_green_end(const struct expectation *e)
{
    unsigned long asked;

    TRY(green_make());
    OK(cuCtxFromGreenCtx(&given.made, given.green));
    OK(accepted(e->row));
    OK(cuCtxSetCurrent(given.made));
    CHECK(freed() >= 0);
    asked = simgpu_count("cuMemAlloc");
    CHECK(freed() >= 0);
    IS(simgpu_count("cuMemAlloc"), asked);
    return 0;
}

/* --- what is told --- */

static bool is_small(size_t size)
{
    return size >= 1000 && size < 100000;
}

static int effect_range(const struct expectation *e)
{
    const CUdeviceptr ptr = memory_take(1000);

    given.ptr = ptr + 100;
    OK(row_call(e->row));
    IS(given.got, ptr);
    CHECK(is_small(given.got_size));
    OK(memory_give(ptr));
    CHECK(row_call(e->row));
    return 0;
}

static int effect_range_attribute(const struct expectation *e)
{
    const CUdeviceptr ptr = memory_take(1000);
    const bool several = strcmp(e->row->symbol, "cuPointerGetAttributes") == 0;

    given.ptr = ptr + 100;
    given.attribute = CU_POINTER_ATTRIBUTE_RANGE_START_ADDR;
    OK(row_call(e->row));
    IS(given.data, ptr);
    given.attribute = CU_POINTER_ATTRIBUTE_RANGE_SIZE;
    OK(row_call(e->row));
    CHECK(is_small(given.data));
    /* Several at a time succeed natively, with zeros. */
    OK(memory_give(ptr));
    IS(row_call(e->row) != 0, !several);
    CHECK(!several || !given.data);
    return 0;
}

static void *free_elsewhere(void *arg)
{
    *(int *)arg = cuCtxSetCurrent(here) ? -1 : freed();
    return NULL;
}

/* Natively a free that another thread makes holds up that thread alone. */
static int elapsed_beside(const struct row *row)
{
    const struct rows_next answers = {
        .symbol = row->symbol, .answers = {CUDA_ERROR_NOT_READY, CUDA_SUCCESS}, .answers_count = 2};
    unsigned long asked;
    pthread_t thread;
    int got = -1;

    *rows_next = answers; /* for this thread's own frees so far */
    OK(row_call(row));
    OK(pthread_create(&thread, NULL, free_elsewhere, &got));
    OK(pthread_join(thread, NULL));
    IS(got, ORDERED);
    asked = simgpu_count("cuEventQuery");
    *rows_next = answers;
    OK(row_call(row));
    IS(simgpu_count("cuEventQuery"), asked);
    return 0;
}

/* After a free the times of what came before it can be told. */
static int effect_elapsed(const struct expectation *e)
{
    unsigned long asked;

    IS(freed(), ORDERED);
    asked = simgpu_count("cuEventQuery");
    *rows_next = (struct rows_next){
        .symbol = e->row->symbol, .answers = {CUDA_ERROR_NOT_READY, CUDA_SUCCESS}, .answers_count = 2};
    OK(row_call(e->row));
    IS(rows_next->calls, 2);
    CHECK(!rows_next->differ);
    CHECK(simgpu_count("cuEventQuery") > asked);
    /* A library that orders its own work must not be held up: its work may have to go on for the frees to end. */
    IS(freed(), ORDERED);
    asked = simgpu_count("cuEventQuery");
    IS(library_call(e->row, LIBRARY_TRANSFER, CUDA_ERROR_NOT_READY), CUDA_ERROR_NOT_READY);
    IS(rows_next->calls, 1);
    IS(simgpu_count("cuEventQuery"), asked);
    return elapsed_beside(e->row);
}

/* The fields of an event of the trace, by letters; a name stands for itself. */
static int effect_event(const struct expectation *e)
{
    char name[32] = "", letters[32] = "", field[64], *rest = NULL;

    given.got = 0xabc000;
    OK(accepted(e->row));
    sscanf(e->settings, "%31[a-z_]:%31s", name, letters);
    for (char *word = strtok_r(letters, ",", &rest); word; word = strtok_r(NULL, ",", &rest)) {
        const unsigned long long value = *word == 'p'   ? given.ptr
                                         : *word == 'g' ? given.got
                                         : *word == 'h' ? given.handle
                                         : *word == 'o' ? given.offset
                                         : *word == 'n' ? given.size
                                                        : 0;

        snprintf(field, sizeof(field), strchr("pgh", *word) ? "\"%s\":\"0x%llx\"" : "\"%s\":%llu",
                 *word == 'g' ? "p" : word, value);
        if (!trace_has(name, field, "\"result\":0"))
            return fail("no event %s with %s", name, field);
    }
    return 0;
}

/* Once something has been pooled; not where the driver refuses the call. */
static int effect_marks(const struct expectation *e)
{
    char field[96];

    snprintf(field, sizeof(field), "\"text\":\"%s\"", e->settings);
    CHECK(memory_take(4096));
    if (trace_has("mark", field, "\"tid\":"))
        return fail("a mark before the call");
    OK(accepted(e->row));
    CHECK(trace_has("mark", field, "\"tid\":"));
    return 0;
}

static int effect_unpooled(const struct expectation *e)
{
    OK(accepted(e->row));
    return 0;
}

static int after_unpooled(const struct expectation *e, const char *stderr_text)
{
    char text[128];

    snprintf(text, sizeof(text), "%s\n", e->why);
    return strstr(stderr_text, text) && strstr(stderr_text, "not pooled: ") ? 0 : fail("stderr: %s", stderr_text);
}

/* --- ways to a function of the driver --- */

static const struct {
    const char *base, *symbol, *per_thread;
    int version;
} table[] = {
#define SIM_FN(base, symbol, version)                                      {#base, #symbol, "", version},
#define SIM_PT(base, symbol, version, per_thread)                          {#base, #symbol, #per_thread, version},
#define SIM_STUB(base, symbol, version, parameters, result)                {#base, #symbol, "", version},
#define SIM_STUB_PT(base, symbol, version, per_thread, parameters, result) {#base, #symbol, #per_thread, version},
#include "stubs.def"
#include "table.h"
};

/* The answer of cuGetProcAddress, in both versions. */
static int resolved(const char *base, int version, cuuint64_t flags, void *want)
{
    const struct row *first = row_find("cuGetProcAddress"), *second = row_find("cuGetProcAddress_v2");
    CUdriverProcAddressQueryResult status;
    const __typeof__(&cuGetProcAddress) ask = first->function;
    const __typeof__(&cuGetProcAddress_v2) ask_v2 = second->function;
    void *function = NULL;

    OK(ask(base, &function, version, flags));
    CHECK(function == want);
    function = NULL;
    OK(ask_v2(base, &function, version, flags, &status));
    CHECK(function == want);
    return 0;
}

static bool is_ours(void *function)
{
    Dl_info info;

    return function && dladdr(function, &info) && strstr(info.dli_fname, "libcupool");
}

int ways(const struct expectation *e)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD), *found;
    int known = 0;

    CHECK(is_ours(e->row->function));
    found = dlsym(driver, e->row->symbol);
    CHECK(found);
    IS(is_ours(found), expects(e, "guard"));
    CHECK(!is_ours(found) || found == e->row->function);
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        const bool per_thread = strcmp(table[i].per_thread, e->row->symbol) == 0;

        if (!per_thread && strcmp(table[i].symbol, e->row->symbol) != 0)
            continue;
        known++;
        /* Per-thread forms are found from CUDA 7.0 on. */
        TRY(resolved(table[i].base, per_thread && table[i].version < 7000 ? 7000 : table[i].version,
                     per_thread ? CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM : CU_GET_PROC_ADDRESS_DEFAULT,
                     e->row->function));
    }
    CHECK(known > 0);
    return 0;
}

/* Functions that are hooked, and one that is not. */
static int effect_routes(const struct expectation *e)
{
    const bool second = strstr(e->row->symbol, "_v2");
    const __typeof__(&cuGetProcAddress) ask = e->row->function;
    const __typeof__(&cuGetProcAddress_v2) ask_v2 = e->row->function;
    CUdriverProcAddressQueryResult status;

    for (int i = 0; i < 2; i++) {
        const char *name = i ? "cuDriverGetVersion" : "cuCtxDestroy";
        void *function = NULL;

        if (second)
            OK(ask_v2(name, &function, 12000, 0, &status));
        else
            OK(ask(name, &function, 12000, 0));
        CHECK(function);
        IS(is_ours(function), !i);
    }
    return 0;
}

const struct effect effects[] = {
    {"pooled", effect_pooled, false, NULL},
    {"frees", effect_frees, false, NULL},
    {"pinned", effect_pinned, false, NULL},
    {"frees-pinned", effect_frees_pinned, false, NULL},
    {"frees-later", effect_frees_later, false, NULL},
    {"counts-idle", effect_counts_idle, false, NULL},
    {"waits", effect_waits, false, NULL},
    {"closes", effect_closes, false, NULL},
    {"opens", effect_opens, false, NULL},
    {"ends-context", effect_ends_context, true, NULL},
    {"forgets-first", effect_forgets_first, true, NULL},
    {"green", effect_green, true, NULL},
    {"green-end", effect_green_end, true, NULL},
    {"range", effect_range, false, NULL},
    {"range-attribute", effect_range_attribute, false, NULL},
    {"elapsed", effect_elapsed, false, NULL},
    {"routes", effect_routes, false, NULL},
    {"event", effect_event, true, NULL},
    {"marks", effect_marks, true, NULL},
    {"unpooled", effect_unpooled, true, after_unpooled},
    {"host-work", effect_host_work, false, NULL},
    {"node", effect_node, true, NULL},
    {"launch", effect_launch, true, NULL},
    {"saw", effect_saw, true, NULL},
    {"own", effect_own, true, NULL},
    {"syncs", effect_syncs, false, NULL},
    {"frees-first", effect_frees_first, false, NULL},
    {"forgets-stream", effect_forgets_stream, false, NULL},
    {"ipc", effect_ipc, true, NULL},
    {"transfer", effect_transfer, true, NULL},
    {"strict", effect_strict, true, NULL},
    {"strict-one", effect_strict_one, true, NULL},
    {"foreign", effect_foreign, true, NULL},
    {NULL, NULL, false, NULL},
};
