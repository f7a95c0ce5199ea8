/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_exports.c - shim/exports/ and shim/serve/serve.c: what the exported functions do around the real ones for
 * captures, for contexts that are not pooled, and for memory that is not. test_info.c has what they say is free.
 *
 * tests/rows tests each row of hooks.def, and the ways in which a program reaches a hook.
 */

#include "base/process.h"
#include "context/host_work.h"
#include "context/ready.h"
#include "exports/hazards.h"
#include "pool_state.h"
#include "serve/ipc_handles.h"
#include "serve/serve.h"

/* --- captures --- */

static unsigned int closed; /* captures under way when the real function was called */
static bool asks;           /* another thread's request asks the driver about them meanwhile */
static int result;          /* what it returns */

static int next(void)
{
    const unsigned int calls = fake_calls(FN(cuStreamIsCapturing));

    closed = atomic_load(&capture_count);
    assert_true(process_is_inside()); /* what it calls itself passes our hooks */
    atomic_fetch_add(&fake.ns, SECOND_NS);
    capture_active_now();
    asks = fake_calls(FN(cuStreamIsCapturing)) != calls;
    return result;
}

#define BEGINS(EACH)                                                                                                   \
    EACH(cudaStreamBeginCapture, LEGACY, ((cudaStream_t)s, cudaStreamCaptureModeGlobal))                               \
    EACH(cudaStreamBeginCapture_ptsz, PER_THREAD, ((cudaStream_t)s, cudaStreamCaptureModeGlobal))                      \
    EACH(cudaStreamBeginCaptureToGraph, LEGACY, ((cudaStream_t)s, NULL, NULL, NULL, 0, cudaStreamCaptureModeGlobal))   \
    EACH(cudaStreamBeginCaptureToGraph_ptsz, PER_THREAD,                                                               \
         ((cudaStream_t)s, NULL, NULL, NULL, 0, cudaStreamCaptureModeGlobal))                                          \
    EACH(cudaStreamBeginRecaptureToGraph, LEGACY, ((cudaStream_t)s, cudaStreamCaptureModeGlobal, NULL, NULL))          \
    EACH(cudaStreamBeginRecaptureToGraph_ptsz, PER_THREAD, ((cudaStream_t)s, cudaStreamCaptureModeGlobal, NULL, NULL)) \
    EACH(cuStreamBeginCapture, LEGACY, (s))                                                                            \
    EACH(cuStreamBeginCapture_ptsz, PER_THREAD, (s))                                                                   \
    EACH(cuStreamBeginCapture_v2, LEGACY, (s, CU_STREAM_CAPTURE_MODE_GLOBAL))                                          \
    EACH(cuStreamBeginCapture_v2_ptsz, PER_THREAD, (s, CU_STREAM_CAPTURE_MODE_GLOBAL))                                 \
    EACH(cuStreamBeginCaptureToGraph, LEGACY, (s, NULL, NULL, NULL, 0, CU_STREAM_CAPTURE_MODE_GLOBAL))                 \
    EACH(cuStreamBeginCaptureToGraph_ptsz, PER_THREAD, (s, NULL, NULL, NULL, 0, CU_STREAM_CAPTURE_MODE_GLOBAL))        \
    EACH(cuStreamBeginRecaptureToGraph, LEGACY, (s, CU_STREAM_CAPTURE_MODE_GLOBAL, NULL, NULL, NULL))                  \
    EACH(cuStreamBeginRecaptureToGraph_ptsz, PER_THREAD, (s, CU_STREAM_CAPTURE_MODE_GLOBAL, NULL, NULL, NULL))

#define ENDS(EACH)                                                                                                     \
    EACH(cudaStreamEndCapture, LEGACY, ((cudaStream_t)s, NULL))                                                        \
    EACH(cudaStreamEndCapture_ptsz, PER_THREAD, ((cudaStream_t)s, NULL))                                               \
    EACH(cuStreamEndCapture, LEGACY, (s, NULL))                                                                        \
    EACH(cuStreamEndCapture_ptsz, PER_THREAD, (s, NULL))                                                               \
    EACH(cudaStreamDestroy, LEGACY, ((cudaStream_t)s))                                                                 \
    EACH(cuStreamDestroy, LEGACY, (s))                                                                                 \
    EACH(cuStreamDestroy_v2, LEGACY, (s))

#define CALL(symbol, unnamed, arguments)                                                                               \
    static int call_##symbol(CUstream s)                                                                               \
    {                                                                                                                  \
        return (int)symbol arguments;                                                                                  \
    }
BEGINS(CALL)
ENDS(CALL)

static const struct form {
    const char *name;
    enum real_symbol symbol;
    int (*call)(CUstream stream);
    CUstream unnamed; /* what stream 0 stands for */
} begins[] =
    {
#define FORM(symbol, unnamed, arguments) {#symbol, REAL_##symbol, call_##symbol, CU_STREAM_##unnamed},
        BEGINS(FORM)},
  ends[] = {ENDS(FORM)};

/* The gate is closed before the real call, stays so if that succeeded, and opens when this stream's capture ends. */
ISOLATED_ROWS(test_begin, begins, .environment = ORDERED)
{
    const struct form *form = *state;
    struct context *context = ready();
    const CUstream streams[] = {NULL, fake_stream(0, 0)};
    uint64_t addr;

    fake.next_of[form->symbol] = (void *)next;
    for (size_t i = 0; i < COUNT(streams); i++) {
        const CUstream named = streams[i] ? streams[i] : form->unnamed;

        fake.streams[0].captures = CU_STREAM_CAPTURE_STATUS_NONE;
        closed = 0;
        result = 1;
        assert_int_equal(form->call(streams[i]), 1);
        assert_int_equal(closed, 1);
        assert_int_equal(atomic_load(&capture_count), 0);
        /* The capture can use blocks that were kept back and that the device has passed. */
        addr = block(context, 3 * MIB);
        assert_int_equal(pool_free_later(addr), 0);
        result = 0;
        assert_int_equal(form->call(streams[i]), 0);
        assert_int_equal(closed, 1);
        assert_int_equal(atomic_load(&capture_count), 1);
        assert_int_equal(block(context, 3 * MIB), addr);
        capture_check(form->unnamed == CU_STREAM_LEGACY ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY, true,
                      UINT32_MAX / 2);
        capture_check(fake_stream(1, 0), true, UINT32_MAX / 2);
        assert_int_equal(atomic_load(&capture_count), 1); /* of another stream */
        capture_check(named, true, UINT32_MAX / 2);
        assert_int_equal(atomic_load(&capture_count), 0);
        assert_int_equal(pool_free(addr), 0);
    }
}

ISOLATED_ROWS(test_end, ends, .environment = ORDERED)
{
    const struct form *form = *state;
    const bool destroys = strstr(form->name, "Destroy") != NULL;
    const CUstream streams[] = {NULL, (ready(), fake_stream(0, 0))};

    fake.next_of[form->symbol] = (void *)next;
    for (size_t i = destroys; i < COUNT(streams); i++) {
        const CUstream named = streams[i] ? streams[i] : form->unnamed;

        capture_begun(capture_begin(named), named, true);
        fake.streams[0].captures = destroys ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
        if (streams[i]) { /* it failed, and goes on */
            fake.streams[0].captures = CU_STREAM_CAPTURE_STATUS_ACTIVE;
            result = 1;
            assert_int_equal(form->call(streams[i]), 1);
            assert_int_equal(atomic_load(&capture_count), 1);
            /* The driver may crash when it is asked about a stream that is being destroyed. */
            assert_int_equal(asks, !destroys);
            atomic_fetch_add(&fake.ns, SECOND_NS);
            fake.scripts[FN(cuStreamIsCapturing)].calls = 0;
            assert_true(capture_active_now());
            assert_int_equal(fake_calls(FN(cuStreamIsCapturing)), 1);
            fake.streams[0].captures = destroys ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
        }
        result = 0;
        assert_int_equal(form->call(streams[i]), 0);
        assert_int_equal(closed, 1);
        assert_int_equal(atomic_load(&capture_count), 0);
    }
}

/* A destroyed stream's handle may come back: its debt is paid by no wait for another. */
ISOLATED_ROWS(test_destroy_debt, ends)
{
    const struct form *form = *state;
    struct context *context = ready();
    const CUstream stream = fake_stream(0, 0);
    uint64_t debts;

    hazard_context_wait_end(NULL, hazard_context_wait_begin(NULL));
    fake.next_of[form->symbol] = (void *)next;
    host_launched(stream);
    form->call(stream);
    hazard_stream_wait_end(stream, hazard_context_wait_begin(NULL));
    assert_int_equal(policy_waits(&context->policy, &debts), strstr(form->name, "Destroy") != NULL);
}

/* Switched off: nothing is done around a call. */
ISOLATED_ROWS(test_off, begins, .environment = ORDERED)
{
    const struct form *form = *state;
    const bool begins_one = strstr(form->name, "Begin") != NULL;

    fake.next_of[form->symbol] = (void *)next;
    process_bypass_begin();
    closed = 1;
    assert_int_equal(form->call(NULL), result);
    assert_int_equal(closed, 0);
    assert_int_equal(atomic_load(&capture_total), 0);
    if (!begins_one) {
        atomic_store(&capture_count, 1);
        assert_int_equal(form->call(fake_stream(0, 0)), result);
        assert_int_equal(atomic_load(&capture_count), 1);
    }
    process_bypass_end();
}
ISOLATED_AGAIN(test_off, switched_off, ISOLATED_TABLE(begins), .environment = "CUPOOL_ENABLE=0")
ISOLATED_AGAIN(test_off, ends, ISOLATED_TABLE(ends), .environment = ORDERED)

/* --- contexts that are not pooled --- */

static unsigned int converted; /* calls of cuCtxFromGreenCtx */

static int next_green(CUcontext *context, CUgreenCtx green)
{
    converted++;
    *context = (CUcontext)green;
    return result;
}

static int next_ok(void)
{
    return result;
}

static int next_last_release(CUdevice device)
{
    fake.contexts[device].active = false;
    return result;
}

/* Captures in contexts that are not pooled: a created one (9), and the primary one of device 1. Each ends with its own
 * context alone, since the other may be pooled later. */
ISOLATED_CASE(test_captures_not_pooled, .environment = ORDERED)
{
    ready();
    fake.next_of[REAL_cuCtxDestroy] = fake.next_of[REAL_cuDevicePrimaryCtxRelease] = (void *)next_ok;
    fake.contexts[1].active = true;
    for (unsigned int i = 0; i < 2; i++) {
        const CUstream stream = fake_stream(i, i ? 1 : 9);

        fake.streams[i].captures = CU_STREAM_CAPTURE_STATUS_ACTIVE;
        capture_begun(capture_begin(stream), stream, true);
    }
    result = CUDA_ERROR_INVALID_CONTEXT;
    assert_int_equal(cuCtxDestroy(fake_context(9)), result);
    assert_int_equal(atomic_load(&capture_count), 2);
    result = CUDA_SUCCESS;
    assert_int_equal(cuCtxDestroy(fake_context(8)), 0);
    assert_int_equal(cuDevicePrimaryCtxRelease(1), 0); /* not the last reference */
    assert_int_equal(atomic_load(&capture_count), 2);
    assert_int_equal(cuCtxDestroy(fake_context(9)), 0);
    assert_int_equal(atomic_load(&capture_count), 1);
    fake.next_of[REAL_cuDevicePrimaryCtxRelease] = (void *)next_last_release;
    assert_int_equal(cuDevicePrimaryCtxRelease(1), 0);
    assert_int_equal(atomic_load(&capture_count), 0);
}

ISOLATED_CASE(test_green, .environment = ORDERED)
{
    CUcontext handle = NULL;

    ready();
    fake.next_of[REAL_cuCtxFromGreenCtx] = (void *)next_green;
    fake.next_of[REAL_cuGreenCtxDestroy] = (void *)next_ok;
    result = CUDA_ERROR_INVALID_VALUE; /* no green context */
    assert_int_equal(cuGreenCtxDestroy((CUgreenCtx)fake_context(10)), result);
    process_bypass_begin();
    converted = 0;
    assert_int_equal(cuGreenCtxDestroy((CUgreenCtx)fake_context(10)), result);
    assert_int_equal(converted, 0);
    process_bypass_end();
    assert_int_equal(cuCtxFromGreenCtx(&handle, (CUgreenCtx)fake_context(10)), result);
    assert_null(context_entry_find(fake_context(10)));
    result = CUDA_SUCCESS;
    process_bypass_begin();
    assert_int_equal(cuCtxFromGreenCtx(&handle, (CUgreenCtx)fake_context(10)), result);
    assert_null(context_entry_find(fake_context(10)));
    process_bypass_end();
    assert_int_equal(cuCtxFromGreenCtx(&handle, (CUgreenCtx)fake_context(10)), 0);
    assert_ptr_equal(handle, fake_context(10));
    fake_current(handle);
    assert_null(context_current(&fake.driver));
    assert_int_equal(cuGreenCtxDestroy((CUgreenCtx)fake_context(10)), 0);
    assert_null(context_entry_find(fake_context(10)));
    assert_non_null(context_current(&fake.driver)); /* the handle came back for one that is none */
}

static int next_last_green(CUgreenCtx green)
{
    assert_true(fake_thread_is_clean(fake_context(0)));
    fake.contexts[0].active = false;
    return result;
}

/* Its reference to the primary context may be the last one, whether a context was made from it or not. */
ISOLATED_CASE(test_last_green, .environment = ORDERED)
{
    struct context *context = ready();
    const uint64_t addr = block(context, MIB);

    fake.next_of[REAL_cuCtxFromGreenCtx] = (void *)next_green;
    fake.next_of[REAL_cuGreenCtxDestroy] = (void *)next_ok;
    assert_int_equal(cuGreenCtxDestroy((CUgreenCtx)fake_context(10)), 0);
    assert_ptr_equal(pool_of(addr), context->pool); /* there are others */
    fake.next_of[REAL_cuGreenCtxDestroy] = (void *)next_last_green;
    fake_fail(FN(cuCtxGetDevice), CUDA_ERROR_UNKNOWN, 1); /* asked again */
    assert_int_equal(cuGreenCtxDestroy((CUgreenCtx)fake_context(12)), 0);
    assert_null(pool_of(addr));
    assert_int_equal(context_endings + atomic_load(&contexts.endings), 0);
}

/* --- memory that is not pooled --- */

static uint64_t given;

static int next_alloc(CUdeviceptr *ptr, size_t size)
{
    *ptr = given;
    return result;
}

/* The driver hands out what a pool believes to have: it was freed behind our back. */
ISOLATED_CASE(test_disowned, .environment = ORDERED " CUPOOL_LIMIT=4M")
{
    struct context *context = ready();
    CUdeviceptr ptr = 0;
    void *pointer = NULL;
    uint64_t addr;

    fake.next_of[REAL_cuMemAlloc_v2] = fake.next_of[REAL_cudaMalloc] = (void *)next_alloc;
    atomic_store(&context->runtime_came, true);
    for (unsigned int i = 0; i < 2; i++) {
        addr = given = block(context, 3 * MIB);
        assert_ptr_equal(pool_of(addr), context->pool);
        if (i)
            assert_int_equal(cudaMalloc(&pointer, 16 * MIB), 0);
        else
            assert_int_equal(cuMemAlloc_v2(&ptr, 16 * MIB), 0);
        assert_null(pool_of(addr));
        assert_int_equal(i ? (uint64_t)(uintptr_t)pointer : ptr, addr);
    }
    assert_int_equal(atomic_load(&context->bypassed), 2);
    assert_null(*state);
}

/* The first request that comes to the runtime's function in a primary context goes on to the runtime, and no other. */
ISOLATED_CASE(test_first_of_runtime, .environment = ORDERED)
{
    struct context *context = ready();
    void *pointer = NULL;

    fake.next_of[REAL_cuMemAlloc_v2] = fake.next_of[REAL_cudaMalloc] = (void *)next_alloc;
    given = 4096;
    for (int primary = 0; primary < 2; primary++) {
        atomic_store(&context->runtime_came, !primary);
        assert_int_equal(cudaMalloc(&pointer, MIB), 0);
        assert_int_equal((uintptr_t)pointer == given, primary);
        assert_int_equal(cudaMalloc(&pointer, MIB), 0);
        assert_ptr_equal(pool_of((uintptr_t)pointer), context->pool);
    }
    assert_int_equal(atomic_load(&context->bypassed), 0);
}

/* A context that is destroyed is none beside which the next would be a second; one whose destruction failed is. */
ISOLATED_CASE(test_destroyed)
{
    static CUresult (*const functions[])(CUcontext context) = {cuCtxDestroy, cuCtxDestroy_v2, cuCtxDetach};
    static const enum real_symbol symbols[] = {REAL_cuCtxDestroy, REAL_cuCtxDestroy_v2, REAL_cuCtxDetach};

    ready();
    for (unsigned int i = 0; i < 2 * COUNT(functions); i++) {
        const int device = 10 + (int)i;
        struct policy policy = {0};
        const char *why = NULL;

        result = i % 2 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
        fake.next_of[symbols[i / 2]] = (void *)next_ok;
        policy_context_seen(fake_context(20), device);
        assert_int_equal(functions[i / 2](fake_context(20)), result);
        policy_context_seen(fake_context(21), device);
        policy_init(&policy, device, true, &why);
        assert_string_equal(why, result ? "a second context on the device" : "default");
    }
}

/* --- memory that is not pooled --- */

static uint64_t over; /* work of the context, when the driver's free was called */

static int next_free(void)
{
    over = fake.contexts[0].over;
    return 0;
}

/* It may be a graph's, whose free waits for nothing: an earlier free natively has. */
READY_CASE(test_free_past_the_pool)
{
    policy_synced(&context->policy, 1);
    fake.contexts[0].launched = 10;
    assert_int_equal(order_ops.order(context, POOL_ORDER_FREE), 0);
    fake.relax = device_moves;
    fake.relax_arg = context->handle;
    fake.next_of[REAL_cuMemFree_v2] = (void *)next_free;
    assert_int_equal(cuMemFree_v2(0x1000), 0);
    assert_int_equal(over, 10);
    fake.contexts[0].launched = 20;
    assert_int_equal(order_ops.order(context, POOL_ORDER_FREE), 0);
    fake.next_of[REAL_cudaFree] = (void *)next_free;
    assert_int_equal(cudaFree((void *)0x1000), 0);
    assert_int_equal(over, 20);
}

/* --- the time that calls take, in the trace --- */

static int next_late(void)
{
    atomic_fetch_add(&fake.ns, 1234567);
    return result;
}

static const CUmemAllocationProp on_device = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};

#define LATE(name, call)                                                                                               \
    static int name(void)                                                                                              \
    {                                                                                                                  \
        CUmemGenericAllocationHandle handle = 7;                                                                       \
        CUdeviceptr range = 8;                                                                                         \
                                                                                                                       \
        (void)handle;                                                                                                  \
        (void)range;                                                                                                   \
        return (int)(call);                                                                                            \
    }
LATE(late_create, cuMemCreate(&handle, MIB, &on_device, 0))
LATE(late_retain, cuMemRetainAllocationHandle(&handle, (void *)0x5000))
LATE(late_release, cuMemRelease(handle))
LATE(late_reserve, cuMemAddressReserve(&range, MIB, 0, 0, 0))
LATE(late_free, cuMemAddressFree(0x5000, MIB))
LATE(late_map, cuMemMap(0x5000, MIB, 0, handle, 0))
LATE(late_unmap, cuMemUnmap(0x5000, MIB))

/* A call that takes something is told with the time of its end, one that gives something up with that of its begin: so
 * nothing in the trace is there twice. */
static const struct late {
    enum real_symbol symbol;
    int (*call)(void);
    bool takes;
    const char *event, *what;
} lates[] = {
    {REAL_cuMemCreate, late_create, true, "mem_create:", "\"n\":1048576"},
    {REAL_cuMemRetainAllocationHandle, late_retain, true, "mem_retain:", "\"p\":\"0x5000\""},
    {REAL_cuMemRelease, late_release, false, "mem_release:", "\"h\":\"0x7\""},
    {REAL_cuMemAddressReserve, late_reserve, true, "address_reserve:", "\"n\":1048576"},
    {REAL_cuMemAddressFree, late_free, false, "address_free:", "\"p\":\"0x5000\",\"n\":1048576"},
    {REAL_cuMemMap, late_map, true, "mem_map:", "\"p\":\"0x5000\",\"n\":1048576,\"h\":\"0x7\",\"offset\":0"},
    {REAL_cuMemUnmap, late_unmap, false, "mem_unmap:", "\"p\":\"0x5000\",\"n\":1048576"},
};

ISOLATED_ROWS(test_late, lates, .environment = ORDERED)
{
    const struct late *row = *state;

    ready();
    fake.step = 0;
    fake.next_of[row->symbol] = (void *)next_late;
    for (int i = 0; i < 2; i++) {
        const uint64_t begin = now();

        result = i ? CUDA_ERROR_INVALID_VALUE : 0;
        fake.traced[0] = '\0';
        assert_int_equal(row->call(), result);
        assert_non_null(strstr(fake.traced, row->event));
        assert_non_null(strstr(fake.traced, row->what));
        assert_non_null(strstr(fake.traced, i ? ",\"us\":1234.5,\"result\":1" : ",\"us\":1234.5,\"result\":0"));
        assert_int_equal(fake.traced_at, begin + (row->takes ? 1234567 : 0));
    }
}

/* --- the driver's functions by name --- */

static int next_lookup(const char *symbol, void **function)
{
    if (function)
        *function = fake.next_of[REAL_cuMemAlloc_v2];
    return result;
}

/* With CUPOOL_HOOK=runtime the program gets the driver's own functions. */
ISOLATED_CASE(test_lookup, .environment = ORDERED)
{
    void *const expected = *state ? (void *)next : (void *)cuMemAlloc_v2;
    void *found = NULL;

    fake.next_of[REAL_cuMemAlloc_v2] = (void *)next;
    fake.next_of[REAL_cuGetProcAddress] = fake.next_of[REAL_cuGetProcAddress_v2] = (void *)next_lookup;
    assert_int_equal(cuGetProcAddress("cuMemAlloc", &found, 11030, 0), 0);
    assert_ptr_equal(found, expected);
    found = NULL;
    assert_int_equal(cuGetProcAddress_v2("cuMemAlloc", &found, 12000, 0, NULL), 0);
    assert_ptr_equal(found, expected);
    result = CUDA_ERROR_NOT_FOUND;
    assert_int_equal(cuGetProcAddress("cuMemAlloc", &found, 11030, 0), result);
    assert_ptr_equal(found, next);
    assert_int_equal(cuGetProcAddress_v2("cuMemAlloc", NULL, 12000, 0, NULL), result);
}
ISOLATED_AGAIN(test_lookup, off, .environment = ORDERED " CUPOOL_HOOK=runtime", .row = "off")

/* Other processes may never finish with memory that the program has exported. */
READY_CASE(test_ipc_exported, .environment = ORDERED)
{
    const uint64_t addr = block(context, 3 * MIB);

    assert_false(context->pool->packs_never);
    serve_ipc_exported(0x1000, NULL);
    assert_false(context->pool->packs_never);
    serve_ipc_exported(addr, NULL);
    assert_true(context->pool->packs_never);
    assert_int_equal(pool_free(addr), 0);
    assert_int_not_equal(block(context, 3 * MIB), addr);
}
