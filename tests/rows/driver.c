/* SPDX-License-Identifier: Apache-2.0 */
/*
 * driver.c - the effects of the rows of the driver: who owes a wait, who makes a device strict, what is told.
 *
 * What it is not: the rows of the runtime (runtime.c), and what both have (effects.c).
 */
#include <cuda.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "effects.h"

static CUcontext here, there; /* the primary contexts of devices 0 and 1 */
static CUdeviceptr far;       /* memory of the pool on device 1 */
static CUstream far_stream;
static char host[64]; /* memory of the processor's own */

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

/* The library knows device 1 as well. */
static int far_start(void)
{
    if (there)
        return 0;
    TRY(device_start(1, &there, &far_stream, &far));
    OK(cuCtxSetCurrent(here));
    return 0;
}

/* --- settings of an effect --- */

static int setting(const char *name, long number, CUdeviceptr special)
{
    static CUctxCigParam graphics;

    if (strcmp(name, "to") == 0)
        given.to = special;
    else if (strcmp(name, "from") == 0)
        given.from = special;
    else if (strcmp(name, "on") == 0)
        given.stream = far_stream;
    else if (strcmp(name, "host") == 0 || strcmp(name, "device") == 0) /* the kind of memory that a copy says it is */
        *(given.to == special ? &given.to_type : &given.from_type) =
            name[0] == 'h' ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
    else if (strcmp(name, "node") == 0)
        given.node_type = (int)number;
    else if (strcmp(name, "flags") == 0)
        given.flags = (unsigned int)number;
    else if (strcmp(name, "attribute") == 0)
        given.attribute = (CUpointer_attribute)number;
    else if (strcmp(name, "access") == 0)
        given.access.location.type = (CUmemLocationType)number;
    else if (strcmp(name, "other") == 0)
        given.access.location.id = 1;
    else if (strcmp(name, "location") == 0)
        given.location.type = (CUmemLocationType)number;
    else if (strcmp(name, "type") == 0)
        given.memory_type = (CUmemAllocationType)number;
    else if (strcmp(name, "second") == 0)
        given.made = (CUcontext)0xbeef;
    else if (strcmp(name, "cig") == 0)
        given.context_parameters.cigParams = &graphics;
    else if (strcmp(name, "only") != 0)
        return fail("no such setting: %s", name);
    return 0;
}

/* special: the address that "to" or "from" stands for. */
static int settings_apply(const char *settings, CUdeviceptr special)
{
    char text[64], *rest = NULL;

    snprintf(text, sizeof(text), "%s", settings);
    for (char *word = strtok_r(text, ",", &rest); word; word = strtok_r(NULL, ",", &rest)) {
        char *number = strchr(word, '=');

        if (number)
            *number++ = '\0';
        TRY(setting(word, number ? strtol(number, NULL, 0) : 0, special));
    }
    given_fill();
    return 0;
}

static int accepted(const struct row *row)
{
    return row_call_answered(row, CUDA_SUCCESS);
}

/* --- strict --- */

/* A call without the settings changes nothing for long. */
static int changes_nothing(const struct expectation *e)
{
    if (!*e->settings || strstr(e->settings, "only"))
        return 0;
    OK(accepted(e->row));
    CHECK(freed() >= 0); /* may owe */
    IS(freed(), ORDERED);
    return 0;
}

static int becomes_strict(const struct expectation *e, const char *why, bool others)
{
    char reason[128];

    TRY(far_start());
    TRY(changes_nothing(e));
    TRY(settings_apply(e->settings, far));
    OK(accepted(e->row));
    CHECK(freed() >= 0);
    IS(freed(), WAITED);
    IS(freed(), WAITED);
    snprintf(reason, sizeof(reason), "\"why\":\"%s\"", why);
    CHECK(trace_has("policy", "\"d\":0,", reason));
    IS(trace_has("policy", "\"d\":1,", reason), others);
    return 0;
}

static int effect_strict(const struct expectation *e)
{
    return becomes_strict(e, e->why, true);
}

static int effect_strict_one(const struct expectation *e)
{
    return becomes_strict(e, e->why, false);
}

static int effect_reach(const struct expectation *e)
{
    return becomes_strict(e, "copies between devices or contexts", true);
}

/* --- debts --- */

/* The next free waits on the host, and no other one; not if the stream has been waited for, which the library can tell
 * only if it knows which stream the work is on. */
static int owes(const struct row *row)
{
    IS(row_call_answered(row, CUDA_ERROR_INVALID_VALUE), CUDA_ERROR_INVALID_VALUE);
    IS(freed(), ORDERED);
    OK(accepted(row));
    IS(freed(), WAITED);
    IS(freed(), ORDERED);
    OK(accepted(row));
    OK(cuStreamSynchronize(stream));
    IS(freed(), ORDERED);
    given.stream = NULL;
    OK(accepted(row));
    OK(cuStreamSynchronize(CU_STREAM_LEGACY));
    IS(freed(), is_per_thread(row) ? WAITED : ORDERED);
    return 0;
}

static int effect_owes(const struct expectation *e)
{
    if (*e->settings) {
        OK(accepted(e->row));
        IS(freed(), ORDERED);
    }
    TRY(settings_apply(e->settings, (CUdeviceptr)(uintptr_t)host));
    return owes(e->row);
}

static int launch(int want)
{
    OK(accepted(row_find("cuGraphLaunch")));
    IS(freed(), want);
    return 0;
}

static int effect_node(const struct expectation *e)
{
    TRY(launch(ORDERED));
    for (int type = CU_GRAPH_NODE_TYPE_KERNEL; *e->settings && type <= CU_GRAPH_NODE_TYPE_MEMSET; type += 2) {
        given.node_type = type;
        given_fill();
        OK(accepted(e->row));
        TRY(launch(ORDERED));
    }
    TRY(settings_apply(e->settings, (CUdeviceptr)(uintptr_t)host));
    OK(accepted(e->row));
    return launch(WAITED);
}

static int effect_launch(const struct expectation *e)
{
    OK(accepted(e->row));
    IS(freed(), ORDERED);
    OK(accepted(row_find("cuGraphAddHostNode")));
    return owes(e->row);
}

static int debt(CUstream on)
{
    CUstream before = given.stream;

    given.stream = on;
    OK(accepted(row_find("cuLaunchHostFunc")));
    given.stream = before;
    return 0;
}

static int pays(const struct row *row, CUstream on, int want)
{
    TRY(debt(on));
    IS(row_call_answered(row, CUDA_ERROR_INVALID_VALUE), CUDA_ERROR_INVALID_VALUE);
    IS(freed(), WAITED);
    TRY(debt(on));
    OK(accepted(row));
    IS(freed(), want);
    IS(freed(), ORDERED);
    return 0;
}

static int effect_pays(const struct expectation *e)
{
    CUstream another;

    if (strcmp(e->settings, "stream") == 0) {
        TRY(pays(e->row, stream, ORDERED));
        OK(cuStreamCreate(&another, CU_STREAM_NON_BLOCKING));
        TRY(pays(e->row, another, WAITED));
        given.stream = NULL;
        return pays(e->row, CU_STREAM_LEGACY, is_per_thread(e->row) ? WAITED : ORDERED);
    }
    if (strcmp(e->settings, "named") == 0) {
        TRY(far_start());
        given.context = there;
        TRY(pays(e->row, stream, WAITED));
    }
    given.context = here;
    return pays(e->row, stream, ORDERED);
}

/* Its handle may come back for another stream: to wait for that pays nothing. */
static int effect_forgets_debtor(const struct expectation *e)
{
    OK(cuStreamCreate(&given.stream, CU_STREAM_NON_BLOCKING));
    TRY(debt(given.stream));
    OK(accepted(e->row));
    OK(cuStreamSynchronize(given.stream));
    IS(freed(), WAITED);
    return 0;
}

/* --- contexts --- */

/* A context that comes after it is no second one. */
static int effect_forgets_first(const struct expectation *e)
{
    CUcontext context;

    OK(cuCtxCreate_v2(&given.context, 0, 1));
    CHECK(freed() >= 0);
    OK(row_call(e->row));
    OK(cuCtxCreate_v2(&context, 0, 1));
    CHECK(freed() >= 0);
    CHECK(!trace_has("policy", "second", ""));
    OK(cuCtxCreate_v2(&context, 0, 1));
    CHECK(trace_has("policy", "\"d\":1,", "second"));
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

    given.ptr = ptr + 100;
    given.attribute = CU_POINTER_ATTRIBUTE_RANGE_START_ADDR;
    OK(row_call(e->row));
    IS(given.data, ptr);
    given.attribute = CU_POINTER_ATTRIBUTE_RANGE_SIZE;
    OK(row_call(e->row));
    CHECK(is_small(given.data));
    OK(memory_give(ptr));
    CHECK(row_call(e->row));
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
    return 0;
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

/* What cuGetProcAddress answers, in both versions. */
static int resolved(const char *base, int version, cuuint64_t flags, void *want)
{
    const struct row *first = row_find("cuGetProcAddress"), *second = row_find("cuGetProcAddress_v2");
    CUdriverProcAddressQueryResult status;
    void *function = NULL;

    OK(((__typeof__(&cuGetProcAddress))first->function)(base, &function, version, flags));
    CHECK(function == want);
    function = NULL;
    OK(((__typeof__(&cuGetProcAddress_v2))second->function)(base, &function, version, flags, &status));
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
    CUdriverProcAddressQueryResult status;

    for (int i = 0; i < 2; i++) {
        const char *name = i ? "cuDriverGetVersion" : "cuCtxDestroy";
        void *function = NULL;

        if (second)
            OK(((__typeof__(&cuGetProcAddress_v2))e->row->function)(name, &function, 12000, 0, &status));
        else
            OK(((__typeof__(&cuGetProcAddress))e->row->function)(name, &function, 12000, 0));
        CHECK(function);
        IS(is_ours(function), !i);
    }
    return 0;
}

const struct effect effects[] = {
    {"pooled", effect_pooled, false, NULL},
    {"frees", effect_frees, false, NULL},
    {"frees-later", effect_frees_later, false, NULL},
    {"counts-idle", effect_counts_idle, false, NULL},
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
    {"unpooled", effect_unpooled, true, after_unpooled},
    {"owes", effect_owes, false, NULL},
    {"node", effect_node, true, NULL},
    {"launch", effect_launch, true, NULL},
    {"pays", effect_pays, false, NULL},
    {"forgets-debtor", effect_forgets_debtor, false, NULL},
    {"ipc", effect_ipc, true, NULL},
    {"transfer", effect_transfer, true, NULL},
    {"strict", effect_strict, true, NULL},
    {"strict-one", effect_strict_one, true, NULL},
    {"reach", effect_reach, true, NULL},
    {NULL, NULL, false, NULL},
};
