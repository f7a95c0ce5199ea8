/* SPDX-License-Identifier: Apache-2.0 */
/* test_lookup.c - shim/context/lifetime.c: the context of a request, all of a device's, whose streams' work is foreign
 * to one, and what is found beside calls that may end one, at an address as well. */

#include <errno.h>

#include "exports/memory.h"
#include "exports/vmm_served.h"
#include "ready.h"
#include "serve/ipc_handles.h"
#include "serve/serve.h"

/* --- a request's context --- */

ISOLATED_CASE(test_begin)
{
    struct context *context = ready(), *other;
    struct pins *own = NULL;

    assert_ptr_equal(context_begin(&fake.driver, false, &own), context);
    assert_true(busy(context, true));
    pin_end(own);
    assert_false(busy(context, true));
    fake_current(fake_context(1)); /* one that nobody has seen */
    other = context_begin(&fake.driver, false, &own);
    assert_ptr_equal(other->handle, fake_context(1));
    assert_true(busy(other, true) && !busy(context, true));
    pin_end(own);
    context_changed(); /* looked at again */
    assert_ptr_equal(context_begin(&fake.driver, false, &own), other);
    pin_end(own);
    context_exempt(fake_context(10));
    fake_current(fake_context(10));
    assert_null(context_begin(&fake.driver, false, &own));
    assert_false(busy(other, true) || busy(context, true));
    fake_fail(FN(cuCtxGetCurrent), CUDA_ERROR_UNKNOWN, 1);
    assert_null(context_begin(&fake.driver, false, &own));
}

static unsigned int each_count;

static void count(struct policy *policy, const void *arg)
{
    assert_non_null(policy);
    each_count += arg == &each_count;
}

ISOLATED_CASE(test_each)
{
    struct context *found[8] = {NULL}, *first;
    unsigned int n = 0;

    first = ready();
    pooled(1);
    pooled(4);
    context_exempt(fake_context(10));
    context_policy_each(count, &each_count);
    assert_int_equal(each_count, 3);
    for (unsigned int i = 0; (found[n] = context_next(&i, 0)); n++)
        assert_true(busy(found[n], true)); /* pinned */
    assert_int_equal(n, 2);
    assert_ptr_equal(found[0], first);
    assert_ptr_equal(found[1], context_find(fake_context(4)));
    for (unsigned int i = 0; i < n; i++)
        context_unpin(found[i]);
    assert_false(busy(found[0], true) || busy(found[1], true));
    n = 0;
    for (unsigned int i = 0; (found[n] = context_next_staying(&i, 1)); context_unpin(found[n]))
        n++;
    assert_int_equal(n, 1);
    /* A call gives a reference to it up; its work is under way. */
    atomic_store(&context_find(fake_context(1))->leaving, 1);
    each_count = 0;
    context_policy_each(count, &each_count);
    assert_int_equal(each_count, 3);
}

/* --- streams of others --- */

ISOLATED_CASE(test_stream)
{
    const CUstream stream = (ready(), fake_stream(0, 1));

    assert_ptr_equal(context_stream(&fake.driver, stream), fake_context(1));
    assert_ptr_equal(context_stream(&fake.driver, CU_STREAM_LEGACY), fake_context(0));
    assert_ptr_equal(context_stream(&fake.driver, CU_STREAM_PER_THREAD), fake_context(0));
    fake_fail(FN(cuStreamGetCtx), CUDA_ERROR_UNKNOWN, 1);
    assert_ptr_equal(context_stream(&fake.driver, stream), fake_context(1));
    fake_fail(FN(cuStreamGetCtx), CUDA_ERROR_UNKNOWN, 2);
    assert_ptr_equal(context_stream(&fake.driver, stream), fake_context(0));
    fake_lack(FN(cuStreamGetCtx));
    assert_ptr_equal(context_stream(&fake.driver, stream), fake_context(0));
}

#define OWN         0
#define LEGACY      1000 /* this and the next: with another context current */
#define THREAD      1001
#define NOT_PRIMARY 1002 /* as 8, but the memory is that of a context which is not primary */

static const struct foreign {
    unsigned int context; /* of the stream */
    size_t lacks, fails;
    CUresult error, result;
    unsigned int queries; /* how often the event behind its work is asked for before it is reached */
    bool once;            /* it fails once, and not each of the two times that it is asked */
} foreigns[] = {
    {OWN, FNS, FNS, 0, CUDA_SUCCESS, 0, false},
    {1, FNS, FNS, 0, CUDA_SUCCESS, 11, false},
    {4, FNS, FNS, 0, CUDA_SUCCESS, 11, false}, /* another one of the device, pooled */
    {LEGACY, FNS, FNS, 0, CUDA_SUCCESS, 11, false},
    {THREAD, FNS, FNS, 0, CUDA_SUCCESS, 11, false},
    {10, FNS, FNS, 0, CUDA_SUCCESS, 0, false},  /* green and exempt: a part of the device's primary one */
    {8, FNS, FNS, 0, CUDA_SUCCESS, 0, false},   /* green; nobody has seen it */
    {9, FNS, FNS, 0, CUDA_SUCCESS, 11, false},  /* green, of another device */
    {11, FNS, FNS, 0, CUDA_SUCCESS, 11, false}, /* nobody has seen it; of the device */
    {2, FNS, FNS, 0, CUDA_SUCCESS, 11, false},  /* nobody has seen it; of another one */
    {NOT_PRIMARY, FNS, FNS, 0, CUDA_SUCCESS, 11, false},
    {8, FNS, FN(cuStreamGetGreenCtx), CUDA_ERROR_UNKNOWN, CUDA_SUCCESS, 0, true},
    {8, FNS, FN(cuStreamGetGreenCtx), CUDA_ERROR_UNKNOWN, CUDA_SUCCESS, 11, false},
    {8, FN(cuStreamGetGreenCtx), FNS, 0, CUDA_SUCCESS, 11, false},
    {8, FNS, FN(cuCtxPushCurrent_v2), CUDA_ERROR_UNKNOWN, CUDA_SUCCESS, 11, false},
    {8, FNS, FN(cuCtxGetDevice), CUDA_ERROR_UNKNOWN, CUDA_SUCCESS, 11, false},
    {1, FNS, FN(cuStreamGetCtx), CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_INVALID_HANDLE, 0, false},
    {1, FNS, FN(cuStreamGetCtx), CUDA_ERROR_UNKNOWN, CUDA_SUCCESS, 0, false},
    {1, FNS, FN(cuEventQuery), CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_UNKNOWN, 2, false},
    {1, FNS, FN(cuEventQuery), CUDA_ERROR_LAUNCH_FAILED, CUDA_ERROR_LAUNCH_FAILED, 2, false},
    {1, FNS, FN(cuEventQuery), CUDA_ERROR_UNKNOWN, CUDA_SUCCESS, 12, true},
    {1, FNS, FN(cuEventCreate), CUDA_ERROR_UNKNOWN, CUDA_ERROR_UNKNOWN, 0, false},
    {1, FNS, FN(cuEventCreate), CUDA_ERROR_UNKNOWN, CUDA_SUCCESS, 11, true},
    {1, FNS, FN(cuEventRecord), CUDA_ERROR_UNKNOWN, CUDA_ERROR_UNKNOWN, 0, false},
    {1, FNS, FN(cuEventRecord), CUDA_ERROR_UNKNOWN, CUDA_SUCCESS, 11, true},
    {1, FNS, FN(cuCtxPushCurrent_v2), CUDA_ERROR_UNKNOWN, CUDA_ERROR_UNKNOWN, 0, false},
    {1, FNS, FN(cuCtxPushCurrent_v2), CUDA_ERROR_UNKNOWN, CUDA_SUCCESS, 11, true},
    {1, FNS, FN(cuStreamGetCtx), CUDA_ERROR_UNKNOWN, CUDA_SUCCESS, 11, true},
    {9, FNS, FN(cuCtxPopCurrent_v2), CUDA_ERROR_UNKNOWN, CUDA_SUCCESS, 11, true},
    {1, FN(cuStreamGetCtx), FNS, 0, CUDA_SUCCESS, 0, false},
    {1, FN(cuEventRecord), FNS, 0, CUDA_SUCCESS, 0, false},
    {1, FN(cuEventQuery), FNS, 0, CUDA_SUCCESS, 0, false},
    {1, FN(cuEventDestroy_v2), FNS, 0, CUDA_SUCCESS, 0, false},
    {1, FN(cuThreadExchangeStreamCaptureMode), FNS, 0, CUDA_SUCCESS, 11, false},
};

static void stream_moves(void *arg)
{
    fake.streams[0].over++;
}

static bool disturbs; /* a question was asked that would end a capture */

static void event_asked(void *arg)
{
    disturbs |= fake.driver.cuThreadExchangeStreamCaptureMode && fake_thread_is_clean(arg);
}

/* A default stream has the work of stream 0. */
static CUresult record_default(CUevent event, CUstream stream)
{
    assert_true((uintptr_t)stream <= 16);
    ((struct fake_event *)event)->stream = &fake.streams[0];
    ((struct fake_event *)event)->at = fake.streams[0].launched;
    return CUDA_SUCCESS;
}

ISOLATED_ROWS(test_foreign, foreigns)
{
    const struct foreign *row = *state;
    struct context *context = ready();
    CUstream stream = row->context == LEGACY        ? CU_STREAM_LEGACY
                      : row->context == THREAD      ? CU_STREAM_PER_THREAD
                      : row->context == NOT_PRIMARY ? fake_stream(0, 8)
                                                    : fake_stream(0, row->context);
    uint64_t freed;

    pooled(1);
    pooled(4);
    context_exempt(fake_context(10));
    for (unsigned int i = 8; i <= 10; i++)
        fake.contexts[i].green = true;
    fake.contexts[9].device = 1;
    context->primary = row->context != NOT_PRIMARY;
    if (row->context == LEGACY || row->context == THREAD) {
        fake_current(fake_context(1));
        fake.driver.cuEventRecord = record_default;
    }
    fake.streams[0].launched = 10;
    fake.relax = stream_moves;
    fake_before(FN(cuEventQuery), event_asked, fake_context(0));
    if (row->lacks < FNS)
        fake_lack(row->lacks);
    if (row->fails < FNS)
        fake_fail(row->fails, row->error, row->once ? 1 : 2);
    assert_int_equal(context_wait_foreign(context, stream, &freed), row->result);
    assert_int_equal(fake_calls(FN(cuEventQuery)), row->queries);
    assert_true(row->queries < 11 || fake_calls(FN(cuEventDestroy_v2)));
    assert_false(disturbs);
    assert_true(fake_thread_is_clean(fake_context(row->context == LEGACY || row->context == THREAD)));
}

static void thirtieth_ends(void *arg)
{
    if (fake.relaxes == 30)
        atomic_store((atomic_uint *)arg, 0);
}

READY_CASE(test_foreign_limit) /* the event stays: beside a free in the driver its end would be held up */
{
    const uint64_t start = atomic_load(&fake.ns);
    struct context *other = pooled(1);
    uint64_t freed = 1;

    fake_stream(0, 1);
    fake.streams[0].launched = 1;
    atomic_store(&other->freeing, 1);
    fake.relax = thirtieth_ends, fake.relax_arg = &other->freeing;
    assert_int_equal(context_wait_foreign(context, fake_stream(0, 1), &freed), CUDA_ERROR_NOT_READY);
    assert_int_equal(atomic_load(&fake.ns) - start, SECOND_NS);
    assert_null(strstr(fake_log(), "gone:"));
    atomic_store(&other->freeing, 1); /* a free in the driver, which would hold a record up */
    assert_int_equal(context_wait_foreign(context, fake_stream(0, 1), &freed), CUDA_ERROR_NOT_READY);
    assert_null(strstr(fake_log(), "record:"));
    fake_current(NULL);
    assert_int_equal(freed, 0);
    assert_int_equal(context_wait_foreign(context, CU_STREAM_LEGACY, &freed), CUDA_SUCCESS);
}

/* Memory that a stream of another device frees is used again once the stream has come there. If it has not within a
 * second, its work may still use the memory, which nobody gets any more. */
READY_CASE(test_foreign_free, .environment = ORDERED)
{
    const uint64_t addr = block(context, 3 * MIB);
    CUstream stream;

    pooled(1);
    stream = fake_stream(0, 1);
    for (int late = 0; late < 2; late++) {
        fake.streams[0].launched = (uint64_t)late;
        assert_int_equal(serve_free_later(addr, stream), SERVE_DONE);
        assert_int_equal(serve_free_later(addr, stream), SERVE_INVALID);
        if (late)
            assert_int_not_equal(block(context, 3 * MIB), addr);
        else
            assert_int_equal(block(context, 3 * MIB), addr);
    }
}

/* --- beside calls that may end a context --- */

/* Another thread's call decides: that is waited for, a second at most. */
READY_CASE(test_beside_leaving)
{
    uint64_t start = atomic_load(&fake.ns);
    unsigned int i = 0;

    atomic_store(&context->leaving, 1);
    context_changed();
    assert_null(context_current(&fake.driver));
    assert_int_equal(atomic_load(&fake.ns) - start, SECOND_NS);
    start = atomic_load(&fake.ns);
    assert_null(context_next_staying(&i, 0));
    assert_int_equal(atomic_load(&fake.ns) - start, SECOND_NS);
    i = 0;
    assert_null(context_next_staying(&i, 0)); /* nor again */
    assert_int_equal(atomic_load(&fake.ns) - start, SECOND_NS);
    atomic_store(&context->waited_for, false);
    i = 0;
    assert_null(context_next_staying(&i, 1)); /* of another device: not waited for */
    i = 0;
    assert_null(context_next(&i, 0));
    assert_int_equal(atomic_load(&fake.ns) - start, SECOND_NS);
    assert_non_null(pin_begin((uintptr_t)context)); /* that call waits for this thread */
    i = 0;
    assert_null(context_next_staying(&i, 0));
    pin_end(pins_own);
    assert_int_equal(atomic_load(&fake.ns) - start, SECOND_NS);
    context_endings = 1; /* this thread makes such a call itself */
    context_changed();
    assert_null(context_current(&fake.driver));
    assert_int_equal(atomic_load(&fake.ns) - start, SECOND_NS);
    context_endings = 0;
    context_changed();
    fake.relaxes = 0;
    fake.relax = thirtieth_ends;
    fake.relax_arg = &context->leaving;
    assert_ptr_equal(context_current(&fake.driver), context);
    assert_int_equal(fake.relaxes, 30);
    atomic_store(&context->leaving, 1);
    atomic_store(&context->waited_for, false);
    fake.relaxes = i = 0;
    assert_ptr_equal(context_next_staying(&i, 0), context);
    assert_int_equal(fake.relaxes, 30);
    context_unpin(context);
}

/* A destruction is not waited for, and the pool stays as long as it is looked at. */
READY_CASE(test_pool_beside_leaving)
{
    bool leaving = false;
    unsigned int i = 0;

    context->primary = false;
    atomic_store(&context->leaving, 1);
    assert_ptr_equal(context_next_pool(&i, 0, &leaving), context);
    assert_true(leaving && busy(context, true));
    context_unpin(context);
    assert_null(context_next_pool(&i, 0, &leaving));
    assert_false(busy(context, true));
}

/* A context that nobody knows may be ending. */
ISOLATED_CASE(test_beside_ending)
{
    uint64_t start;

    atomic_store(&contexts.endings, 1);
    start = atomic_load(&fake.ns);
    assert_null(context_current(&fake.driver));
    assert_int_equal(atomic_load(&fake.ns) - start, SECOND_NS);
    context_endings = 1;
    start = atomic_load(&fake.ns);
    assert_null(context_current(&fake.driver));
    assert_int_equal(atomic_load(&fake.ns), start);
    context_endings = 0;
    assert_null(context_current(&fake.driver)); /* threads have waited for this call before */
    assert_int_equal(atomic_load(&fake.ns), start);
    atomic_store(&contexts.ended, 1); /* another one begins */
    fake.relaxes = 0;
    fake.relax = thirtieth_ends;
    fake.relax_arg = &contexts.endings;
    assert_non_null(context_current(&fake.driver));
    assert_int_equal(fake.relaxes, 30);
}

static void ending_passes(void *arg)
{
    if (fake_calls(FN(cuMemGetInfo_v2)) == 1)
        atomic_fetch_add(&contexts.ended, 1);
    if (fake_calls(FN(cuMemGetInfo_v2)) == 2)
        atomic_store((atomic_uint *)arg, 1);
    if (fake_calls(FN(cuMemGetInfo_v2)) == 3)
        atomic_store((atomic_uint *)arg, 0);
}

/* An answer found while a context ended is looked up anew. */
ISOLATED_CASE(test_ended_meanwhile)
{
    fake_before(FN(cuMemGetInfo_v2), ending_passes, &contexts.endings);
    fake.relax = thirtieth_ends;
    fake.relax_arg = &contexts.endings;
    assert_non_null(context_current(&fake.driver));
    assert_int_equal(fake_calls(FN(cuMemGetInfo_v2)), 3);
}

static void *see(void *arg)
{
    fake_current(fake_context(0));
    *(struct context **)arg = context_current(&fake.driver);
    return NULL;
}

static void seen_elsewhere(void *arg)
{
    fake_before(FN(cuMemGetInfo_v2), NULL, NULL);
    elsewhere(see, arg);
}

/* Two threads see a context for the first time: one entry, and one line in the trace. */
ISOLATED_CASE(test_seen_meanwhile)
{
    struct context *other = NULL, *own;

    fake_before(FN(cuMemGetInfo_v2), seen_elsewhere, &other);
    own = context_current(&fake.driver);
    assert_non_null(own);
    assert_ptr_equal(own, other);
    assert_int_equal(atomic_load(&contexts.count), 1);
    assert_ptr_equal(strstr(fake.traced, "device:"), fake.traced);
    assert_null(strstr(fake.traced + 1, "device:"));
}

/* --- an address --- */

static CUcontext owner;      /* of the memory at an address */
static CUresult owner_asked; /* and what the question returns */

static CUresult owner_find(void *data, CUpointer_attribute attribute, CUdeviceptr addr)
{
    assert_true(attribute == CU_POINTER_ATTRIBUTE_CONTEXT && addr);
    *(CUcontext *)data = owner;
    return owner_asked;
}

static const struct given_away {
    CUresult asked;
    unsigned int owner; /* a context, counted from 1; 0: none */
    enum backend kind;
    bool is_ours;
} given_aways[] = {
    {CUDA_SUCCESS, 1, BACKEND_CUDA, true},       {CUDA_SUCCESS, 2, BACKEND_CUDA, false},
    {CUDA_SUCCESS, 2, BACKEND_VMM, false},       {CUDA_SUCCESS, 0, BACKEND_CUDA, false},
    {CUDA_SUCCESS, 0, BACKEND_VMM, true},        {CUDA_ERROR_INVALID_VALUE, 0, BACKEND_CUDA, false},
    {CUDA_ERROR_UNKNOWN, 2, BACKEND_CUDA, true}, {CUDA_ERROR_INVALID_VALUE, 0, BACKEND_NCCL, true},
};

/* Beside another thread's call that may end the context the driver says whose memory is there; nobody waits. */
ISOLATED_ROWS(test_pool_at_beside_leaving, given_aways)
{
    const struct given_away *row = *state;
    struct context *context = ready();
    const uint64_t addr = block(context, 1000), start = now();

    fake.driver.cuPointerGetAttribute = owner_find;
    owner = row->owner ? fake_context(row->owner - 1) : NULL;
    owner_asked = row->asked;
    pool_kind_set(context->pool, row->kind, SIZE_MAX / 2, SIZE_MAX / 2);
    assert_null(context_pool_at(0x1000));
    assert_ptr_equal(context_pool_at(addr), context->pool);
    atomic_store(&contexts_closing, 1); /* another one's */
    assert_ptr_equal(context_pool_at(addr), context->pool);
    atomic_store(&context->leaving, 1);
    assert_int_equal(context_pool_at(addr) != NULL, row->is_ours);
    atomic_store(&context->undecided, true);
    assert_ptr_equal(context_pool_at(addr), context->pool);
    atomic_store(&context->undecided, false);
    context_back(row->kind == BACKEND_CUDA ? BACKEND_NCCL : BACKEND_CUDA); /* it has segments of both */
    context_back(row->kind);
    assert_int_equal(context_pool_at(addr) != NULL, row->is_ours || !row->owner);
    fake_lack(FN(cuPointerGetAttribute));
    assert_ptr_equal(context_pool_at(addr), context->pool);
    assert_int_equal(now(), start);
}

/* The pool of a context that has ended lingers: the driver's answers are the program's. */
READY_CASE(test_addresses_of_ended)
{
    const uint64_t addr = block(context, 3 * MIB), freed = block(context, 3 * MIB);
    const uint64_t first = block(context, 1000), second = block(context, 1000); /* of a segment */
    const void *const caller = (const void *)(uintptr_t)block;
    CUcontext handle = NULL;
    char ticket[64];
    uint64_t base;
    size_t size;

    assert_int_equal(serve_free(freed), SERVE_DONE);
    assert_true(serve_range(addr, caller, &base, &size) && size == 3 * MIB);
    assert_true(serve_is_freed(freed, caller));
    assert_true(vmm_served_refuses(addr));
    atomic_store(&contexts_closing, 1);
    atomic_store(&context->ending, true);
    assert_false(serve_range(addr, caller, &base, &size));
    assert_false(serve_is_freed(freed, caller));
    assert_false(vmm_served_refuses(addr));
    serve_context(addr, &handle);
    assert_null(handle);
    assert_int_equal(serve_ipc_get(first < second ? second : first, caller, ticket), SERVE_IPC_DRIVER);
    serve_ipc_refused(addr);
    serve_ipc_exported(addr, caller);
    assert_int_equal(serve_ipc_export(addr, ticket), -EINVAL);
    fake.traced[0] = '\0';
    policy_strict_memory(addr, "test"); /* the driver is asked for the device */
    assert_int_equal(fake_calls(FN(cuPointerGetAttribute)) > 0, true);
}

/* Nor are frees at its addresses the pool's: nobody waits for the stream, none fails for the context that was there. */
READY_CASE(test_frees_of_ended)
{
    const uint64_t addr = block(context, 3 * MIB), start = now();
    CUstream stream;

    pooled(1);
    stream = fake_stream(0, 1);
    fake.streams[0].launched = 1;
    atomic_store(&contexts_closing, 1);
    atomic_store(&context->ending, true);
    assert_int_equal(memory_free_async(addr, stream, /* to_driver: */ true), SERVE_FORWARD);
    atomic_store(&context->failed, true);
    assert_int_equal(serve_free_later(addr, stream), SERVE_FORWARD);
    capture_begun(capture_begin(stream), stream, true);
    fake.streams[0].captures = CU_STREAM_CAPTURE_STATUS_ACTIVE;
    assert_int_equal(memory_free_async(addr, stream, /* to_driver: */ true), SERVE_FORWARD);
    assert_int_equal(now(), start);
    assert_true(pool_is_live(addr));
}

/* Before the call that ends the context returns, the driver may have given them away: that is known at once. */
READY_CASE(test_frees_beside_leaving)
{
    const uint64_t addr = block(context, 3 * MIB), start = now();

    fake.driver.cuPointerGetAttribute = owner_find;
    owner = fake_context(1);
    atomic_store(&contexts_closing, 1);
    atomic_store(&context->leaving, 1);
    assert_int_equal(serve_free(addr), SERVE_FORWARD);
    assert_int_equal(serve_free_later(addr, CU_STREAM_LEGACY), SERVE_FORWARD);
    assert_int_equal(now(), start);
    assert_true(pool_is_live(addr));
    owner = fake_context(0);
    assert_int_equal(serve_free(addr), SERVE_DONE);
    assert_int_equal(now() - start, SECOND_NS);
}
