/* SPDX-License-Identifier: Apache-2.0 */
/*
 * differ_rows.c - the differential fuzzer's calls of the rows of shim/hooks/, in sequences of up to sixteen.
 *
 * The list is made by tests/rows/rows.py. A sequence makes its own memory and objects, keeps its work in order, and
 * tells all bytes at its end. Rows that are not drawn stand in `left_out`, with the reason.
 *
 * Locking: none, see differ.h.
 */
#include "differ_drawn.h"

#define CALL(symbol, names, ...)                                                                                       \
    static int symbol##_drawn(void *function_)                                                                         \
    {                                                                                                                  \
        __VA_ARGS__                                                                                                    \
        volatile int result_ = (int)((__typeof__(&(symbol)))function_)names;                                           \
                                                                                                                       \
        return result_;                                                                                                \
    }
#define RUNTIME_ROW(symbol, parameters, names, expected, words, ...) CALL(symbol, names, __VA_ARGS__)
#define DRIVER_ROW(symbol, parameters, names, expected, words, ...)  CALL(symbol, names, __VA_ARGS__)
#define MISSING_ROW(symbol)
#include "drawn.h"
#undef RUNTIME_ROW
#undef DRIVER_ROW

static const struct drawn_row rows[] = {
#define RUNTIME_ROW(symbol, parameters, names, expected, words, ...) {#symbol, #parameters, expected, symbol##_drawn},
#define DRIVER_ROW(symbol, parameters, names, expected, words, ...)  {#symbol, #parameters, expected, symbol##_drawn},
#include "drawn.h"
};
#define ROWS (sizeof(rows) / sizeof(rows[0]))

/* Rows that are not drawn, by how their names begin; the first that fits counts. why: NULL: drawn everywhere. */
static const struct {
    const char *begin, *why;
    bool simulated; /* drawn on the simulated GPU */
} left_out[] = {
    {"cudaDeviceReset", "takes all that others have with it: op_reset", false},
    {"cuMulticast", "may take down a real machine's fabric", true},
    {"cuGraphics", "no graphics on a real machine", true},
    {"cuGL", "no graphics on a real machine", true},
    {"cuEGL", "no graphics on a real machine", true},
    {"cuVDPAU", "no graphics on a real machine", true},
    {"cuModule", "a real driver trusts what it is given", true},
    {"cuLibrary", "a real driver trusts what it is given", true},
    {"cuKernel", "a real driver trusts what it is given", true},
    {"cuFunc", "a real driver trusts what it is given", true},
    {"cuLaunchHostFunc", NULL, false},
    {"cuLaunch", "a real driver trusts what it is given", true},
    {"cuImportExternal", "a real driver trusts what it is given", true},
    {"cuExternalMemory", "a real driver trusts what it is given", true},
    {"cuLogicalEndpoint", "a real driver trusts what it is given", true},
    {"cuFabricCpy", "a real driver trusts what it is given", true},
    {"cuFlushGPUDirectRDMAWrites", "needs a network card", true},
    {"cuStreamBeginCaptureToCig", "no graphics on a real machine", true},
    {"cuMemMapArrayAsync", "a real driver trusts what it is given", true},
    {"cuMemPoolImport", "a real driver trusts what it is given", true},
};

bool simulated;

/* everywhere: also the reason of those that are drawn on the simulated GPU. */
static const char *row_left_out(const struct drawn_row *row, bool everywhere)
{
    for (size_t i = 0; i < sizeof(left_out) / sizeof(left_out[0]); i++)
        if (row_is(row, left_out[i].begin))
            return simulated && left_out[i].simulated && !everywhere ? NULL : left_out[i].why;
    return NULL;
}

/* The shared runtime, whatever its version: the library that has a function which cupool does not. NULL: none. */
static void *runtime_open(void)
{
    void *known = dlsym(RTLD_DEFAULT, "cudaRuntimeGetVersion");
    Dl_info info;

    return known && dladdr(known, &info) ? dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD) : NULL;
}

/* NULL: this driver or this runtime does not have it. Each is asked by itself, because the preload exports all rows. */
static void *function_of(const struct drawn_row *row)
{
    static void *driver, *runtime;
    const bool by_runtime = strncmp(row->symbol, "cuda", 4) == 0;
    void *library;

    if (!driver)
        driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    if (!runtime)
        runtime = runtime_open();
    library = by_runtime ? runtime : driver;
    return library && dlsym(library, row->symbol) ? dlsym(RTLD_DEFAULT, row->symbol) : NULL;
}

void rows_list(void)
{
    for (size_t i = 0; i < ROWS; i++) {
        const char *why = row_left_out(&rows[i], false);
        out("%s %s\n", rows[i].symbol, why ? why : function_of(&rows[i]) ? "" : "not in this driver or runtime");
    }
}

/* Some of the calls use what earlier ones have made; most calls that do nothing on a simulated GPU are passed over. */
static const struct drawn_row *row_pick(void)
{
    const struct thing *t = chance(3) ? thing_pick(1u << K_MEMORY | 1u << K_ASYNC) : thing_pick(~(1u << K_MEMORY));
    const enum kind kind = t ? t->kind : K_MEMORY;
    const struct drawn_row *row = &rows[pick(ROWS)];

    if (chance(kind <= K_MANAGED ? 6 : 2)) {
        for (int tries = 0; tries < 600 && !kind_used(kind, row); tries++)
            row = &rows[pick(ROWS)];
    }
    for (int tries = 0; tries < 2 && row_left_out(row, true); tries++)
        row = &rows[pick(ROWS)];
    return row;
}

/* Calls that need all work to have ended, because CUDA leaves open what else would be. */
static bool needs_quiet(const struct drawn_row *row)
{
    return row_is(row, "cuMemUnmap") || row_is(row, "cuMemRelease") || row_is(row, "cuEventElapsedTime") ||
           strstr(row->symbol, "Destroy") || row_is(row, "cuMemHostRegister") || strstr(row->symbol, "BeginCapture") ||
           strstr(row->symbol, "BeginRecapture") ||
           ((row_is(row, "cuMemFree_v2") || strcmp(row->symbol, "cudaFree") == 0) &&
            thing_find(1u << K_ASYNC | 1u << K_MANAGED, given.ptr));
}

/* Does the row make all later frees wait, with the arguments that it gets here? Then they do not show any more whether
 * calls are seen, so there are seeds without. */
static bool row_strict(const struct drawn_row *row)
{
    static const char *const words[] = {"strict \"", "strict-one \"", "strict-one second"};
    /* Work of another context, memory that goes without a wait, and the runtime's call of a strict one. */
    static const char *const others[] = {
        "cuGreen",         "cuCtxFromGreen",     "cuMemMap",     "cuMemUnmap",         "cudaIpc",
        "cuMemAllocAsync", "cuMemAllocFromPool", "cuPointerSet", "cuMemPoolSetAccess", "cuMemSetAccess"};

    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
        if (row_is(row, others[i]))
            return true;
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        if (strstr(row->expected, words[i]))
            return true;
    return false;
}

/* In braces where docs/differences.md allows another answer. */
static void answer_tell(const struct drawn_row *row, int code)
{
    if (strcmp(row->symbol, "cuPointerGetAttribute") == 0 && given.attribute == CU_POINTER_ATTRIBUTE_P2P_TOKENS)
        out(" p2p_tokens{%d}", code);
    else if (row_is(row, "cuIpcOpen") || row_is(row, "cuMemGetHandleFor") || row_is(row, "cuPointerSet"))
        out(" %s{%d}", row->symbol, code);
    else
        out(" %s=%d", row->symbol, code);
}

static bool call(const struct drawn_row *row, CUstream on)
{
    void *function = function_of(row);
    CUcontext now = NULL;
    int code;

    if (!function || (!sharing && row_strict(row)) || row_left_out(row, false) || things_count > 36 ||
        (!on && !memory_ensure()))
        return false;
    draw(row);
    if (on)
        given.stream = on;
    else if (drawn_busy && (needs_quiet(row) || (drawn_stream(row) && drawn_stream(row) != drawn_busy)))
        drawn_wait();
    code = row->call(function);
    answer_tell(row, code);
    things_after(row, code);
    (void)cuCtxGetCurrent(&now);
    if (now != drawn_own) {
        out(" other");
        (void)cuCtxPopCurrent_v2(&now);
        (void)cuCtxGetCurrent(&now);
        if (now != drawn_own)
            (void)cuCtxSetCurrent(drawn_own);
    }
    return code == 0;
}

static const struct drawn_row *row_named(const char *symbol)
{
    size_t i = 0;

    while (strcmp(rows[i].symbol, symbol) != 0)
        i++;
    return &rows[i];
}

/* A capture, with a call in it, is ended at once: others are made by op_capture. */
static void capture(CUstream stream)
{
    static const char *const ends[] = {"cuStreamEndCapture", "cuStreamEndCapture_ptsz", "cudaStreamEndCapture",
                                       "cudaStreamEndCapture_ptsz"};
    const char *end = ends[pick(4)];

    for (int tries = 0; tries < 400; tries++) {
        const struct drawn_row *row = &rows[pick(ROWS)];
        if (row_takes(row, "CUstream stream") && (row_is(row, "cuMem") || row_is(row, "cuLaunchHostFunc")) &&
            !strstr(row->symbol, "Alloc") && !strstr(row->symbol, "Free") && !row_left_out(row, false)) {
            call(row, stream);
            break;
        }
    }
    call(row_named(end), stream);
    drawn_wait(); /* a capture for graphics is none on the simulated GPU: the work has been done */
}

/* Host work, and a free that natively waits for it. */
static void begin_host_work(void)
{
    const struct drawn_row *row = &rows[pick(ROWS)];

    while (!strstr(row->expected, "host-work"))
        row = &rows[pick(ROWS)];
    call(row_named("cuMemHostAlloc"), NULL);
    call(row, NULL);
    call(row_named(chance(2) ? "cuMemFree_v2" : "cudaFree"), NULL);
}

/* Chance seldom makes these calls in this order, so half of the sequences begin with some of them. */
static void begin(void)
{
    static const char *const first[][4] = {
        {"cuMemCreate", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess"},
        {"cuMemCreate", "cuMemExportToShareableHandle", "cuMemImportFromShareableHandle"},
        {"cuMemAddressReserve", "cuMemCreate", "cuMemMap", "cuMemRetainAllocationHandle"},
        {"cuMulticastCreate", "cuMulticastAddDevice", "cuMulticastBindMem"},
        {"cuGreenCtxCreate", "cuGreenCtxStreamCreate", "cuMemsetD8Async"},
        {"cuMemPoolCreate", "cuMemAllocFromPoolAsync", "cuMemAllocFromPoolAsync_ptsz"},
        {"cuGraphAddMemcpyNode", "cuGraphInstantiateWithFlags", "cuGraphLaunch"},
        {"cuGraphAddMemsetNode", "cuGraphInstantiate_v2", "cuGraphUpload", "cuGraphLaunch"},
        {"cuGraphAddNode_v2", "cuGraphInstantiateWithParams", "cuGraphLaunch_ptsz"},
        {"cuIpcGetMemHandle", "cuIpcOpenMemHandle_v2"},
        {"cuMemHostRegister_v2", "cuMemcpyHtoDAsync_v2"},
        {"cuMemAllocManaged", "cuMemPrefetchAsync_v2"},
        {"cuMemAllocHost_v2", "cuMemHostGetDevicePointer_v2"},
        {"cuMemAllocPitch_v2", "cuMemcpy2D_v2"},
        {"cuStreamCreate", "cuMemcpyBatchAsync"},
        {"cuTexObjectCreate", "cuTexObjectDestroy"},
    };
    const uint32_t chosen = pick(sizeof(first) / sizeof(first[0]));

    for (int i = 0; i < 4 && first[chosen][i]; i++)
        call(row_named(first[chosen][i]), NULL);
}

void op_rows(void)
{
    const uint32_t n = 1 + pick(16);

    if (captured_anywhere()) {
        out(" -");
        return;
    }
    if (!drawn_start())
        return;
    if (chance(2))
        begin();
    else if (chance(2))
        begin_host_work();
    for (uint32_t i = 0; i <= n; i++) { /* as many operations as there are rows call each of them */
        const struct drawn_row *row = i ? row_pick() : &rows[op_number % ROWS];
        if (call(row, NULL) && (strstr(row->symbol, "BeginCapture") || strstr(row->symbol, "BeginRecapture")))
            capture(drawn_stream(row));
    }
    drawn_end();
}
