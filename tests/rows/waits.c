/* SPDX-License-Identifier: Apache-2.0 */
/*
 * waits.c - the effects by which a free comes to wait on the host: what host work makes it wait, and which waits have
 * seen that work end, what makes a device strict.
 *
 * It does not test that the waits are needed; tests/behaviour/auto_*.c do.
 */
#include <cuda.h>

#include "effects.h"

static char host[64]; /* memory of the processor's own */

/* --- settings of an effect --- */

/* In front of it is one without an effect. */
static void given_access_behind(void)
{
    given.access[1] = given.access[0];
    given.access[0] =
        (CUmemAccessDesc){.location = {.type = CU_MEM_LOCATION_TYPE_HOST}, .flags = CU_MEM_ACCESS_FLAGS_PROT_NONE};
    given.count = 2;
}

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
        given.access[0].location.type = (CUmemLocationType)number;
    else if (strcmp(name, "other") == 0)
        given.access[0].location.id = 1;
    else if (strcmp(name, "behind") == 0) /* what the settings before this one say is in the second of two */
        given_access_behind();
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

/* Nor does one of a library that orders its own work. */
static int library_changes_nothing(const struct row *row)
{
    OK(library_call(row, LIBRARY_TRANSFER, CUDA_SUCCESS));
    CHECK(freed() >= 0);
    IS(freed(), ORDERED);
    return 0;
}

static int becomes_strict(const struct expectation *e, const char *why, bool others)
{
    char reason[128];

    TRY(far_start());
    TRY(changes_nothing(e));
    TRY(settings_apply(e->settings, far));
    if (others)
        TRY(library_changes_nothing(e->row));
    OK(accepted(e->row));
    CHECK(freed() >= 0);
    IS(freed(), WAITED);
    IS(freed(), WAITED);
    snprintf(reason, sizeof(reason), "\"why\":\"%s\"", why);
    CHECK(trace_has("policy", "\"d\":0,", reason));
    IS(trace_has("policy", "\"d\":1,", reason), others);
    return 0;
}

int effect_strict(const struct expectation *e)
{
    return becomes_strict(e, e->why, true);
}

int effect_strict_one(const struct expectation *e)
{
    return becomes_strict(e, e->why, false);
}

int effect_foreign(const struct expectation *e)
{
    return becomes_strict(e, "copies between devices or contexts", true);
}

/* Libraries that map host memory for their own use read it when their own work is over. */
int effect_own(const struct expectation *e)
{
    TRY(far_start());
    TRY(settings_apply(e->settings, far));
    OK(library_call(e->row, LIBRARY_MATH, CUDA_SUCCESS));
    IS(freed(), ORDERED);
    return 0;
}

/* --- host work --- */

/* The next free waits on the host, and no other one; not if the stream has been waited for, which the library can tell
 * only if it knows which stream the work is on. */
static int waits_once(const struct row *row)
{
    IS(row_call_answered(row, CUDA_ERROR_INVALID_VALUE), CUDA_ERROR_INVALID_VALUE);
    IS(freed(), ORDERED);
    TRY(library_changes_nothing(row));
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

int effect_host_work(const struct expectation *e)
{
    if (*e->settings) {
        OK(accepted(e->row));
        IS(freed(), ORDERED);
    }
    TRY(settings_apply(e->settings, (CUdeviceptr)(uintptr_t)host));
    return waits_once(e->row);
}

static int launch(int want)
{
    OK(accepted(row_find("cuGraphLaunch")));
    IS(freed(), want);
    return 0;
}

int effect_node(const struct expectation *e)
{
    /* Nodes that touch no host memory; the fill is one of device memory. */
    static const int harmless[] = {
        CU_GRAPH_NODE_TYPE_KERNEL,    CU_GRAPH_NODE_TYPE_MEMSET,     CU_GRAPH_NODE_TYPE_GRAPH,
        CU_GRAPH_NODE_TYPE_EMPTY,     CU_GRAPH_NODE_TYPE_WAIT_EVENT, CU_GRAPH_NODE_TYPE_EVENT_RECORD,
        CU_GRAPH_NODE_TYPE_MEM_ALLOC, CU_GRAPH_NODE_TYPE_MEM_FREE,   CU_GRAPH_NODE_TYPE_CONDITIONAL};

    TRY(launch(ORDERED));
    for (size_t i = 0; *e->settings && i < sizeof(harmless) / sizeof(harmless[0]); i++) {
        given.node_type = harmless[i];
        given_fill();
        OK(accepted(e->row));
        TRY(launch(ORDERED));
    }
    TRY(settings_apply(e->settings, (CUdeviceptr)(uintptr_t)host));
    OK(accepted(e->row));
    return launch(WAITED);
}

int effect_launch(const struct expectation *e)
{
    OK(accepted(e->row));
    IS(freed(), ORDERED);
    OK(accepted(row_find("cuGraphAddHostNode")));
    TRY(waits_once(e->row));
    /* The node may be of another device than the stream. */
    TRY(far_start());
    OK(cuCtxSetCurrent(there));
    CHECK(freed() >= 0); /* its first free waits */
    IS(freed(), ORDERED);
    given.stream = stream;
    OK(accepted(e->row));
    IS(freed(), WAITED);
    return 0;
}

static int host_work(CUstream on)
{
    CUstream before = given.stream;

    given.stream = on;
    OK(accepted(row_find("cuLaunchHostFunc")));
    given.stream = before;
    return 0;
}

static int syncs(const struct row *row, CUstream on, int want)
{
    TRY(host_work(on));
    IS(row_call_answered(row, CUDA_ERROR_INVALID_VALUE), CUDA_ERROR_INVALID_VALUE);
    IS(freed(), WAITED);
    TRY(host_work(on));
    OK(accepted(row));
    IS(freed(), want);
    IS(freed(), ORDERED);
    return 0;
}

int effect_syncs(const struct expectation *e)
{
    CUstream another;

    if (strcmp(e->settings, "stream") == 0) {
        TRY(syncs(e->row, stream, ORDERED));
        OK(cuStreamCreate(&another, CU_STREAM_NON_BLOCKING));
        TRY(syncs(e->row, another, WAITED));
        given.stream = NULL;
        return syncs(e->row, CU_STREAM_LEGACY, is_per_thread(e->row) ? WAITED : ORDERED);
    }
    if (strcmp(e->settings, "named") == 0) {
        TRY(far_start());
        given.context = there;
        TRY(syncs(e->row, stream, WAITED));
    }
    given.context = here;
    return syncs(e->row, stream, ORDERED);
}

/* It waits for the work before a free, and only for that; not if a library makes it that orders its own work. */
int effect_frees_first(const struct expectation *e)
{
    static int go;

    __atomic_store_n(&go, 0, __ATOMIC_RELEASE); /* another row may have set it */
    CHECK(freed() >= 0);                        /* may owe */
    IS(freed(), ORDERED);
    OK(simgpu_kernel(stream, &go, 10000000));
    OK(accepted(e->row));
    IS(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    IS(freed(), ORDERED);
    OK(library_call(e->row, LIBRARY_TRANSFER, CUDA_SUCCESS));
    IS(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    __atomic_store_n(&go, 1, __ATOMIC_RELEASE);
    OK(cuStreamSynchronize(stream));
    OK(simgpu_kernel(stream, NULL, 30000));
    IS(freed(), ORDERED);
    OK(accepted(e->row));
    OK(cuStreamQuery(stream));
    return 0;
}

/* Its handle may come back for another stream: to wait for that is no wait for this work. */
int effect_forgets_stream(const struct expectation *e)
{
    OK(cuStreamCreate(&given.stream, CU_STREAM_NON_BLOCKING));
    TRY(host_work(given.stream));
    OK(accepted(e->row));
    OK(cuStreamSynchronize(given.stream));
    IS(freed(), WAITED);
    return 0;
}

/* Once the program has been told of an error that the context does not recover from, its requests get it too. */
int effect_saw(const struct expectation *e)
{
    unsigned long asked;

    IS(row_call_answered(e->row, CUDA_ERROR_INVALID_VALUE), CUDA_ERROR_INVALID_VALUE);
    asked = simgpu_count("cuMemAlloc");
    CHECK(freed() >= 0);
    IS(simgpu_count("cuMemAlloc"), asked);
    IS(row_call_answered(e->row, CUDA_ERROR_ILLEGAL_ADDRESS), CUDA_ERROR_ILLEGAL_ADDRESS); /* of another context */
    CHECK(freed() >= 0);
    IS(simgpu_count("cuMemAlloc"), asked);
    simgpu_refuse("cuMemGetInfo_v2", CUDA_ERROR_ILLEGAL_ADDRESS);
    IS(row_call_answered(e->row, CUDA_ERROR_ILLEGAL_ADDRESS), CUDA_ERROR_ILLEGAL_ADDRESS);
    memory_take(1000);
    IS(simgpu_count("cuMemAlloc"), asked + 1);
    return 0;
}
