/* SPDX-License-Identifier: Apache-2.0 */
/* test_order.c - shim/context/free_order.c: which calls of the driver a free makes, by the policy, by what the driver
 * lacks and refuses, beside a capture, and beside other threads' frees. test_waits.c has what waits for frees
 * afterwards; tests/unit/shim/context/test_combiner.c runs many threads. */

#include "exports/hazards.h"
#include "host_work.h"
#include "isolated.h"
#include "room.h"

#define ORDERED "CUPOOL_FREE=ordered"
#define STRICT  "CUPOOL_FREE=strict"

/* Host memory, of which the fake driver has none. */
static CUresult alloc_host(void **ptr, size_t size)
{
    fake_log_add("alloc_host:%zu", size);
    SCRIPTED(cuMemAllocHost_v2, NULL);
    *ptr = (void *)0x5555;
    return CUDA_SUCCESS;
}

static CUresult free_host(void *ptr)
{
    fake_log_add("free_host:%p", ptr);
    SCRIPTED(cuMemFreeHost, NULL);
    return CUDA_SUCCESS;
}

/* Nothing of the context has been ordered yet; its first debt is paid. */
static struct context *ready(void)
{
    struct context *context;

    fake_start();
    fake.driver.cuMemAllocHost_v2 = alloc_host;
    fake.driver.cuMemFreeHost = free_host;
    context = context_current(&fake.driver);
    assert_non_null(context);
    policy_synced(&context->policy, atomic_load(&context->policy.host_work_seq));
    fake_log();
    fake.said[0] = '\0';
    return context;
}

static void capture_starts(void *arg)
{
    atomic_store(&capture_count, 1);
}

/* --- one order, as a table --- */

#define LACK(function)         .fails = FN(function), .lacks = true
#define FAIL(function, result) .fails = FN(function), .error = result
#define FIRST                  "event:c0,2 record:c0,e0"
#define MEMORY                 "alloc:c0,1 alloc:c0,1 free:0x7f0000200000"
#define PINNED                 "alloc:c0,1 alloc_host:1 free_host:0x5555"

static const struct order {
    const char *environment;
    enum pool_order_how how;
    bool works, captures, away; /* the device is at work; a stream captures; another context is current */
    bool full;                  /* the device has no byte left */
    size_t fails;               /* this call of the driver fails, or it lacks it */
    CUresult error;
    bool lacks;
    unsigned int times; /* so often; 0: once */
    int rc;
    const char *log; /* without what is done on the way to another context */
} orders[] = {
    {ORDERED, POOL_ORDER_FREE, .log = FIRST " wait:c0,e0"},
    {ORDERED, POOL_ORDER_FREE, .works = true, .log = FIRST " wait:c0,e0"},
    {ORDERED, POOL_ORDER_FREE, .away = true, .log = "push:c0 event:c0,2 pop record:c0,e0 wait:c0,e0"},
    {ORDERED, POOL_ORDER_FREE, .captures = true, .log = MEMORY},
    {ORDERED, POOL_ORDER_FREE, .captures = true, LACK(cuThreadExchangeStreamCaptureMode), .rc = -EBUSY, .log = ""},
    {ORDERED, POOL_ORDER_FREE, FAIL(cuEventCreate, CUDA_ERROR_OUT_OF_MEMORY), .log = "event:c0,2 sync:c0"},
    {ORDERED, POOL_ORDER_FREE, FAIL(cuCtxRecordEvent, CUDA_ERROR_OUT_OF_MEMORY), .log = FIRST " sync:c0"},
    {ORDERED, POOL_ORDER_FREE, FAIL(cuCtxWaitEvent, CUDA_ERROR_INVALID_VALUE), .log = FIRST " wait:c0,e0 sync:c0"},
    {ORDERED, POOL_ORDER_FREE, FAIL(cuCtxRecordEvent, CUDA_ERROR_ILLEGAL_ADDRESS), .rc = -ENOTRECOVERABLE,
     .log = FIRST},
    {ORDERED, POOL_ORDER_FREE, FAIL(cuCtxWaitEvent, CUDA_ERROR_LAUNCH_FAILED), .rc = -ENOTRECOVERABLE,
     .log = FIRST " wait:c0,e0"},
    {ORDERED, POOL_ORDER_FREE, FAIL(cuCtxRecordEvent, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED), .rc = -EBUSY,
     .log = FIRST},
    {ORDERED, POOL_ORDER_FREE, FAIL(cuCtxRecordEvent, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD), .rc = -EBUSY,
     .log = FIRST},
    {ORDERED, POOL_ORDER_FREE, FAIL(cuCtxRecordEvent, CUDA_ERROR_SYSTEM_DRIVER_MISMATCH), .log = FIRST " sync:c0"},
    {ORDERED, POOL_ORDER_FREE, FAIL(cuCtxRecordEvent, CUDA_ERROR_TIMEOUT), .log = FIRST " sync:c0"},
    {STRICT, POOL_ORDER_FREE, .log = "sync:c0"},
    {STRICT, POOL_ORDER_FREE, .works = true, .away = true, .log = "push:c0 sync:c0 pop"},
    {STRICT, POOL_ORDER_FREE, FAIL(cuCtxSynchronize, CUDA_ERROR_OUT_OF_MEMORY), .log = "sync:c0 sync:c0"},
    {STRICT, POOL_ORDER_FREE, FAIL(cuCtxSynchronize, CUDA_ERROR_OUT_OF_MEMORY), .times = 2, .rc = -EIO,
     .log = "sync:c0 sync:c0"},
    {STRICT, POOL_ORDER_FREE, FAIL(cuCtxSynchronize, CUDA_ERROR_ASSERT), .times = 2, .rc = -ENOTRECOVERABLE,
     .log = "sync:c0 sync:c0"},
    {STRICT, POOL_ORDER_FREE, FAIL(cuCtxSynchronize, CUDA_ERROR_NOT_PERMITTED), .times = 2, .rc = -EIO,
     .log = "sync:c0 sync:c0"},
    {STRICT, POOL_ORDER_FREE, FAIL(cuCtxSynchronize, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT), .times = 2, .rc = -EBUSY,
     .log = "sync:c0 sync:c0"},
    {STRICT, POOL_ORDER_FREE, FAIL(cuCtxGetCurrent, CUDA_ERROR_NOT_PERMITTED), .times = 9, .rc = -ENOTRECOVERABLE,
     .log = ""},
    {STRICT, POOL_ORDER_FREE, .away = true, FAIL(cuCtxPushCurrent_v2, CUDA_ERROR_INVALID_CONTEXT), .times = 2,
     .rc = -EIO, .log = "push:c0 push:c0"},
    {STRICT, POOL_ORDER_FREE, .away = true, FAIL(cuCtxPushCurrent_v2, CUDA_ERROR_INVALID_CONTEXT),
     .log = "push:c0 push:c0 sync:c0 pop"},
    {STRICT, POOL_ORDER_FREE, .away = true, FAIL(cuCtxGetCurrent, CUDA_ERROR_UNKNOWN), .log = "push:c0 sync:c0 pop"},
    {STRICT, POOL_ORDER_FREE, .captures = true, .log = MEMORY},
    {STRICT, POOL_ORDER_FREE, .captures = true, .away = true, .log = "push:c0 " MEMORY " pop"},
    {STRICT, POOL_ORDER_FREE, .captures = true, LACK(cuThreadExchangeStreamCaptureMode), .rc = -EBUSY, .log = ""},
    {STRICT, POOL_ORDER_FREE, .captures = true, FAIL(cuThreadExchangeStreamCaptureMode, CUDA_ERROR_UNKNOWN), .rc = -EIO,
     .log = MEMORY},
    {STRICT, POOL_ORDER_FREE, .captures = true, FAIL(cuMemAlloc_v2, CUDA_ERROR_UNKNOWN), .rc = -EIO,
     .log = "alloc:c0,1"},
    {STRICT, POOL_ORDER_FREE, .captures = true, .full = true, .log = PINNED},
    {STRICT, POOL_ORDER_FREE, .captures = true, .full = true, .away = true, .log = "push:c0 " PINNED " pop"},
    {STRICT, POOL_ORDER_FREE, .captures = true, .full = true, FAIL(cuMemAllocHost_v2, CUDA_ERROR_OUT_OF_MEMORY),
     .rc = -EIO, .log = "alloc:c0,1 alloc_host:1"},
    {STRICT, POOL_ORDER_FREE, .captures = true, .full = true, FAIL(cuMemFreeHost, CUDA_ERROR_UNKNOWN), .rc = -EIO,
     .log = PINNED " free_host:0x5555"},
    {STRICT, POOL_ORDER_FREE, .captures = true, .full = true, FAIL(cuMemFreeHost, CUDA_ERROR_LAUNCH_FAILED),
     .rc = -ENOTRECOVERABLE, .log = PINNED " free_host:0x5555"},
    {STRICT, POOL_ORDER_FREE, .captures = true, .full = true, LACK(cuMemAllocHost_v2), .rc = -EIO, .log = "alloc:c0,1"},
    {STRICT, POOL_ORDER_FREE, .captures = true, .full = true, LACK(cuMemFreeHost), .rc = -EIO, .log = "alloc:c0,1"},
    {STRICT, POOL_ORDER_FREE, .captures = true, FAIL(cuMemFree_v2, CUDA_ERROR_UNKNOWN), .rc = -EIO,
     .log = MEMORY " free:0x7f0000200000"}, /* not to be lost */
    {STRICT, POOL_ORDER_FREE, .captures = true, FAIL(cuMemFree_v2, CUDA_ERROR_LAUNCH_FAILED), .rc = -ENOTRECOVERABLE,
     .log = MEMORY " free:0x7f0000200000"},
    {ORDERED, POOL_ORDER_ASK, .log = FIRST},
    {ORDERED, POOL_ORDER_ASK, .works = true, .rc = -EBUSY, .log = FIRST},
    {STRICT, POOL_ORDER_ASK, .log = FIRST},
    {ORDERED, POOL_ORDER_ASK, .captures = true, .rc = -EBUSY, .log = ""},
    {ORDERED, POOL_ORDER_ASK, LACK(cuCtxRecordEvent), .rc = -EBUSY, .log = ""},
    {ORDERED, POOL_ORDER_ASK, LACK(cuEventQuery), .rc = -EBUSY, .log = ""},
    {ORDERED, POOL_ORDER_ASK, FAIL(cuCtxRecordEvent, CUDA_ERROR_OUT_OF_MEMORY), .rc = -EIO, .log = FIRST},
    {ORDERED, POOL_ORDER_ASK, FAIL(cuEventQuery, CUDA_ERROR_LAUNCH_FAILED), .rc = -ENOTRECOVERABLE, .log = FIRST},
    {ORDERED, POOL_ORDER_DEVICE, .works = true, .log = FIRST " wait:c0,e0"},
    {ORDERED, POOL_ORDER_DEVICE, .captures = true, .rc = -EBUSY, .log = ""},
    {STRICT, POOL_ORDER_DEVICE, .log = FIRST},
    {STRICT, POOL_ORDER_DEVICE, .works = true, .rc = -EBUSY, .log = FIRST},
    {ORDERED, POOL_ORDER_DEVICE, LACK(cuCtxRecordEvent), .rc = -EBUSY, .log = ""},
    {ORDERED, POOL_ORDER_DEVICE, LACK(cuCtxWaitEvent), .rc = -EBUSY, .log = ""},
    {ORDERED, POOL_ORDER_DEVICE, LACK(cuEventQuery), .rc = -EBUSY, .log = ""},
    {STRICT, POOL_ORDER_DEVICE, FAIL(cuCtxRecordEvent, CUDA_ERROR_NOT_SUPPORTED), .rc = -EIO, .log = FIRST},
    {ORDERED, POOL_ORDER_OWN, .works = true, .log = FIRST " wait:c0,e0"},
    {STRICT, POOL_ORDER_OWN, .works = true, .rc = -EBUSY, .log = FIRST},
    {STRICT, POOL_ORDER_OWN, LACK(cuCtxRecordEvent), .works = true, .log = "sync:c0"},
    {STRICT, POOL_ORDER_OWN, LACK(cuCtxWaitEvent), .captures = true, .log = MEMORY},
    {STRICT, POOL_ORDER_OWN, FAIL(cuCtxRecordEvent, CUDA_ERROR_NOT_SUPPORTED), .works = true, .log = FIRST " sync:c0"},
    {ORDERED, POOL_ORDER_DEVICE, FAIL(cuCtxWaitEvent, CUDA_ERROR_UNKNOWN), .rc = -EIO, .log = FIRST " wait:c0,e0"},
};

ISOLATED_OWN(test_order, orders)
{
    const struct order *row = *state;
    struct context *context = ready();
    uint64_t debts;

    fake.contexts[0].launched = row->works;
    atomic_store(&capture_count, row->captures);
    if (row->full)
        fake.free = 0;
    if (row->away)
        fake_current(fake_context(1));
    if (row->lacks)
        fake_lack(row->fails);
    else if (row->error)
        fake_fail(row->fails, row->error, row->times ? row->times : 1);
    assert_int_equal(order_ops.order(context, row->how), row->rc);
    assert_string_equal(fake_log(), row->log);
    assert_int_equal(context->failed, row->rc == -ENOTRECOVERABLE && row->error != CUDA_ERROR_NOT_PERMITTED);
    assert_int_equal(policy_waits(&context->policy, &debts), strcmp(row->environment, STRICT) == 0);
    assert_int_equal(fake.defer_never, context->failed);
    assert_int_equal(policy_waited(0),
                     row->how == POOL_ORDER_FREE && !row->rc &&
                         (strstr(row->log, "sync:") || strstr(row->log, MEMORY) || strstr(row->log, PINNED)));
    assert_true(fake_thread_is_clean(fake_context(row->away)));
    for (unsigned int i = 0; i < SLOTS_ALL; i++) { /* no slot is left taken; what failed orders nothing */
        assert_false(slot_is_busy(&context->slots[i]) || context->slots[i].waits);
        if (row->rc)
            assert_int_equal(context->slots[i].done, 0);
    }
    if (row->rc == -EIO || row->rc == -ENOTRECOVERABLE)
        assert_non_null(strstr(fake.said, "3:a free could not be ordered (error "));
    else
        assert_int_equal(row->rc == -EBUSY && row->error ? 1 : 0, strstr(fake.said, "2:a stream capture") != NULL);
}

/* The first event serves all later orders of a thread. */
READY_CASE(test_event_is_kept, .environment = ORDERED)
{
    for (unsigned int i = 0; i < 3; i++)
        assert_int_equal(order_ops.order(context, POOL_ORDER_FREE), 0);
    assert_string_equal(fake_log(), FIRST " wait:c0,e0 record:c0,e0 wait:c0,e0 record:c0,e0 wait:c0,e0");
    for (unsigned int i = 0; i < 2; i++) /* nobody waits for what is asked with */
        assert_int_equal(order_ops.order(context, POOL_ORDER_ASK), 0);
    assert_string_equal(fake_log(), "event:c0,2 record:c0,e1 record:c0,e1");
}

/* A debt is paid by a wait that succeeds, once. */
READY_CASE(test_debt)
{
    host_launched(fake_stream(0, 0));
    assert_int_equal(order_ops.order(context, POOL_ORDER_DEVICE), 0); /* all is over: it need not wait */
    fake.contexts[0].launched = 1;
    assert_int_equal(order_ops.order(context, POOL_ORDER_DEVICE), -EBUSY);
    assert_int_equal(order_ops.order(context, POOL_ORDER_ASK), -EBUSY);
    fake_fail(FN(cuCtxSynchronize), CUDA_ERROR_OUT_OF_MEMORY, 2);
    assert_int_equal(order_ops.order(context, POOL_ORDER_FREE), -EIO);
    fake_log();
    assert_int_equal(order_ops.order(context, POOL_ORDER_FREE), 0);
    assert_int_equal(order_ops.order(context, POOL_ORDER_FREE), 0);
    assert_string_equal(fake_log(), "sync:c0 event:c0,2 record:c0,e2 wait:c0,e2");
}

/* A wait does not pay for work that began during it. */
static void more_work(void *arg)
{
    host_launched(arg);
}

READY_CASE(test_debt_meanwhile)
{
    host_launched(fake_stream(0, 0));
    fake_before(FN(cuCtxSynchronize), more_work, fake_stream(0, 0));
    assert_int_equal(order_ops.order(context, POOL_ORDER_FREE), 0);
    fake_before(FN(cuCtxSynchronize), NULL, NULL);
    assert_int_equal(order_ops.order(context, POOL_ORDER_FREE), 0);
    assert_string_equal(fake_log(), "sync:c0 sync:c0");
}

/* A wait on the device pays nothing, though a debt came before it was over. */
READY_CASE(test_debt_on_device)
{
    fake_before(FN(cuCtxRecordEvent), more_work, fake_stream(0, 0));
    assert_int_equal(order_ops.order(context, POOL_ORDER_FREE), 0);
    fake_before(FN(cuCtxRecordEvent), NULL, NULL);
    assert_int_equal(order_ops.order(context, POOL_ORDER_FREE), 0);
    assert_string_equal(fake_log(), FIRST " wait:c0,e0 sync:c0");
}

/* --- errors --- */

ISOLATED_CASE(test_sticky)
{
    static const CUresult sticky[] = {CUDA_ERROR_ECC_UNCORRECTABLE,
                                      CUDA_ERROR_NVLINK_UNCORRECTABLE,
                                      CUDA_ERROR_CONTAINED,
                                      CUDA_ERROR_ILLEGAL_ADDRESS,
                                      CUDA_ERROR_LAUNCH_TIMEOUT,
                                      CUDA_ERROR_ASSERT,
                                      CUDA_ERROR_HARDWARE_STACK_ERROR,
                                      CUDA_ERROR_ILLEGAL_INSTRUCTION,
                                      CUDA_ERROR_MISALIGNED_ADDRESS,
                                      CUDA_ERROR_INVALID_ADDRESS_SPACE,
                                      CUDA_ERROR_INVALID_PC,
                                      CUDA_ERROR_LAUNCH_FAILED,
                                      CUDA_ERROR_TENSOR_MEMORY_LEAK,
                                      CUDA_ERROR_MPS_CLIENT_TERMINATED,
                                      CUDA_ERROR_EXTERNAL_DEVICE};
    unsigned int found = 0;

    for (int error = 0; error < 1000; error++) {
        struct context *context = ready();
        bool is_sticky = false;

        for (size_t i = 0; i < COUNT(sticky); i++)
            is_sticky |= error == (int)sticky[i];
        context_saw((CUresult)error);
        assert_false(context_failed(context)); /* it is another context's: this one answers */
        fake.contexts[0].error = (CUresult)error;
        context_saw((CUresult)error);
        fake.contexts[0].error = CUDA_SUCCESS;
        assert_int_equal(context_failed(context), is_sticky);
        assert_ptr_equal(context_current(&fake.driver), is_sticky ? NULL : context); /* requests go to the driver */
        found += is_sticky;
        context_gone(context_leaving(context->handle), true);
    }
    assert_int_equal(found, COUNT(sticky));
    ready();
    fake.absent = true;
    context_saw(CUDA_ERROR_LAUNCH_FAILED);
    fake.absent = false;
    assert_non_null(context_current(&fake.driver));
}

/* --- beside a capture --- */

/* One begins between the first look and the wait. */
READY_CASE(test_capture_meanwhile, .environment = ORDERED)
{
    fake_before(FN(cuEventCreate), capture_starts, NULL);
    fake_fail(FN(cuEventCreate), CUDA_ERROR_OUT_OF_MEMORY, 1);
    assert_int_equal(order_ops.order(context, POOL_ORDER_FREE), 0);
    assert_string_equal(fake_log(), "event:c0,2 " MEMORY); /* without harm to it */
    assert_true(order_ops.frozen(context));
    atomic_store(&capture_count, 0);
    assert_false(order_ops.frozen(context));
}

/* The first wait keeps a byte, so that later ones are short. It is the earlier context's, and goes with it. */
READY_CASE(test_byte_stays, .environment = STRICT)
{
    atomic_store(&capture_count, 1);
    assert_int_equal(order_ops.order(context, POOL_ORDER_FREE), 0);
    assert_string_equal(fake_log(), MEMORY);
    assert_int_equal(order_ops.order(context, POOL_ORDER_FREE), 0);
    assert_string_equal(fake_log(), "alloc:c0,1 free:0x7f0000400000");
    assert_int_equal(atomic_load(&context->kept_byte), 0x7f0000000000);
    atomic_store(&capture_count, 0);
}

/* The byte that a wait beside a capture keeps counts as free, and goes where a request is refused. */
READY_CASE(test_trim_of_the_kept_byte, .environment = ORDERED)
{
    const struct context *const excepts[] = {NULL, context};
    uint64_t used;

    for (unsigned int i = 0; i < 3; i++) {
        atomic_store(&capture_count, 1);
        assert_int_equal(order_ops.order(context, POOL_ORDER_FREE), 0);
        atomic_store(&capture_count, 0);
        assert_int_equal(context_idle_bytes(0, &used), 2 * MIB);
        if (i < 2) {
            assert_true(device_trim(0, excepts[i]));
            assert_false(device_trim(0, excepts[i]));
        } else {
            assert_int_equal(context_release(0, "test"), 2 * MIB);
        }
        assert_int_equal(context_idle_bytes(0, &used), arrivals_outstanding(context));
        assert_false(atomic_load(&context->kept_byte));
    }
}

/* A thread that begins a capture waits for the slots, but not for threads that wait. */
static void slots_look(void *arg)
{
    const struct context *context = arg;
    unsigned int busy = 0, waits = 0;

    for (unsigned int i = 0; i < SLOTS_ALL; i++) {
        busy += slot_is_busy(&context->slots[i]);
        waits += atomic_load(&context->slots[i].waits);
    }
    fake.relaxes = busy * 10 + waits;
}

READY_CASE(test_slot_says_that_it_waits)
{
    fake_before(FN(cuCtxRecordEvent), slots_look, context);
    fake_before(FN(cuCtxSynchronize), slots_look, context);
    assert_int_equal(order_ops.order(context, POOL_ORDER_FREE), 0);
    assert_int_equal(fake.relaxes, 10);
    host_launched(fake_stream(0, 0));
    assert_int_equal(order_ops.order(context, POOL_ORDER_FREE), 0);
    assert_int_equal(fake.relaxes, 11);
    assert_int_equal(order_ops.order(context, POOL_ORDER_ASK), 0);
    assert_int_equal(fake.relaxes, 10);
}

/* While it waits in the driver, a context may go beside it. */
static unsigned int slept;

static void sleep_look(void *arg)
{
    slept += atomic_load(&pins_own->sleeps);
}

ISOLATED_CASE(test_sleeps, .environment = STRICT)
{
    static const size_t waits[] = {FN(cuCtxSynchronize), FN(cuMemFree_v2), FN(cuStreamSynchronize)};
    struct context *context = ready();
    struct pins *own = pin_begin((uintptr_t)context);

    atomic_store(&context->stream, fake_stream(0, 0));
    for (size_t i = 0; i < COUNT(waits); i++)
        fake_before(waits[i], sleep_look, NULL);
    assert_int_equal(order_ops.order(context, POOL_ORDER_FREE), 0);
    assert_int_equal(slept, 1);
    assert_false(own->sleeps);
    atomic_store(&capture_count, 1);
    assert_int_equal(order_ops.order(context, POOL_ORDER_FREE), 0);
    atomic_store(&capture_count, 0);
    assert_int_equal(slept, 2);
    assert_false(own->sleeps);
    assert_int_equal(order_filling_ops.filled(context), 0);
    assert_int_equal(slept, 3);
    assert_false(own->sleeps);
    pin_end(own);
}

/* --- beside other threads --- */

static struct {
    struct context *context;
    unsigned int after; /* looks */
    uint64_t turn, done;
} lead;

static void lead_moves(void *arg)
{
    struct slot *slot = &lead.context->slots[SLOT_COMBINER];

    if (fake.relaxes != lead.after)
        return;
    atomic_store(&slot->seq, lead.turn);
    atomic_store(&slot->done, lead.done);
}

#define LOOKS   100
#define FOLLOWS 200 /* microseconds */

static const struct follow {
    unsigned int after;
    uint64_t turn, done;
    unsigned int relaxes;
    const char *log;
} follows[] = {
    {1, 2, 1, 1, FIRST " wait:c0,e0"},                /* the turn that was under way may have begun before our work */
    {1, 4, 3, 1, ""},                                 /* the next one has not */
    {50, 9, 7, 50, ""},                               /* nor has a later one, whoever is at it now */
    {50, 5, 1, LOOKS + FOLLOWS, FIRST " wait:c0,e0"}, /* one that failed orders nothing */
    {1, 3, 1, LOOKS + FOLLOWS, FIRST " wait:c0,e0"},
    {LOOKS + FOLLOWS, 4, 3, LOOKS + FOLLOWS, ""},
    {LOOKS + FOLLOWS + 1, 4, 3, LOOKS + FOLLOWS, FIRST " wait:c0,e0"}, /* nobody depends on anybody's getting on */
    {99, 2, 1, 99, FIRST " wait:c0,e0"},
};

ISOLATED_ROWS(test_follow, follows, .environment = ORDERED)
{
    const struct follow *row = *state;
    struct context *context = ready();
    uint64_t turn, debts;

    fake.relax_step = 1000;
    lead.context = context;
    lead.after = row->after;
    lead.turn = row->turn;
    lead.done = row->done;
    atomic_store(&context->slots[SLOT_COMBINER].seq, 1);
    fake.relax = lead_moves;
    assert_int_equal(order_ops.order(context, POOL_ORDER_FREE), 0);
    assert_int_equal(fake.relaxes, row->relaxes);
    assert_string_equal(fake_log(), row->log);
    assert_false(policy_waits(&context->policy, &debts));
    turn = atomic_load(&context->slots[SLOT_COMBINER].seq);
    if (*row->log && row->turn == 2) { /* it led itself, and says so */
        assert_int_equal(turn, 4);
        assert_int_equal(context->slots[SLOT_COMBINER].done, 3);
    } else {
        assert_int_equal(context->slots[1].seq, *row->log ? 2 : 0);
        assert_int_equal(context->slots[1].done, *row->log ? 1 : 0);
    }
}

/* A slot that is free, from this thread's own on, round and round. */
static void slot_frees(void *arg)
{
    struct context *context = arg;

    if (fake.relaxes == LOOKS + FOLLOWS + 3)
        atomic_store(&context->slots[0].seq, 2);
}

READY_CASE(test_slot_found, .environment = ORDERED)
{
    fake.relax_step = 1000;
    for (unsigned int i = 0; i < SLOTS_ALL; i++)
        atomic_store(&context->slots[i].seq, i != 5);
    assert_int_equal(order_ops.order(context, POOL_ORDER_FREE), 0);
    assert_int_equal(context->slots[5].seq, 2);
    assert_int_equal(fake.relaxes, LOOKS + FOLLOWS + 1);
    atomic_store(&context->slots[5].seq, 1);
    fake.relaxes = 0;
    fake.relax = slot_frees;
    fake.relax_arg = context;
    assert_int_equal(order_ops.order(context, POOL_ORDER_FREE), 0);
    assert_int_equal(context->slots[0].seq, 4);
    assert_int_equal(fake.relaxes, LOOKS + FOLLOWS + 3);
    assert_int_equal(order_ops.order(context, POOL_ORDER_ASK), -EBUSY); /* taken: it does not wait for that */
}

/* A thread that waits on the host gives the lead away first. */
READY_CASE(test_waits_outside_the_lead, .environment = STRICT)
{
    assert_int_equal(order_ops.order(context, POOL_ORDER_FREE), 0);
    assert_int_equal(context->slots[SLOT_COMBINER].seq, 2);
    assert_int_equal(context->slots[SLOT_COMBINER].done, 0);
    assert_int_equal(context->slots[1].seq, 2);
    assert_int_equal(context->slots[1].done, 1);
}
