/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_nccl_calls.c - shim/nccl/ and shim/exports/nccl.c, and the calls that they make: one program, in which each call
 * of the driver and of NCCL fails in turn, each of NCCL's goes on in the background, and each function is missing. The
 * outcomes stand in nccl_*.txt, a row for each (snapshot_rows.h).
 *
 * A row has the function, the answers that differ from those of the first row, what is left at the end, and a digest of
 * all calls with their arguments, of the lines logged and of the trace's events.
 */
#include "base/process.h"
#include "heap.h"
#include "nccl/comms.h"
#include "nccl/direct.h"
#include "nccl/pool_segments.h"
#include "nccl/register_calls.h"
#include "nccl/window.h"
#include "snapshot_rows.h"
#include "standin.h"

/* --- the program --- */

#define TYPE_INT8 0

/* Of work that goes on the program asks until it has ended. */
static ncclResult_t ended(ncclComm_t comm, ncclResult_t result)
{
    if (result == ncclInProgress) {
        nccl_poll_end(comm, nccl_poll_begin(comm), nccl.fails_later ? ncclUnhandledCudaError : ncclSuccess);
        nccl.busy = 0;
    }
    return result;
}

static ncclResult_t reduce(ncclComm_t comm, uint64_t addr, size_t size)
{
    return ended(comm,
                 ncclAllReduce((const void *)(uintptr_t)addr, (void *)(uintptr_t)addr, size, TYPE_INT8, 0, comm, NULL));
}

/* Memory of the pool, of the driver directly, and mapped. */
static void use_all(struct row *row, struct context *context, ncclComm_t comm)
{
    const CUdeviceptr mapped = 0x660000000000;
    CUresult result = CUDA_SUCCESS;
    CUdeviceptr direct = 0;
    uint64_t addr = 0;

    STEP(row, "pool", pool_alloc(context->pool, 3 * MIB, &addr));
    STEP(row, "reduce", reduce(comm, addr, MIB));
    STEP(row, "send", ended(comm, ncclSend((const void *)(uintptr_t)addr, MIB, TYPE_INT8, 0, comm, NULL)));
    STEP(row, "reduce", reduce(comm, addr, MIB));
    STEP(row, "free", addr ? pool_free(addr) : 0);
    STEP(row, "trim", pool_trim(context->pool, "test") / MIB);
    STEP(row, "direct", fake.driver.cuMemAlloc_v2(&direct, 4 * MIB));
    if (direct) {
        direct_allocated(direct, 4 * MIB);
        STEP(row, "reduce", reduce(comm, direct + 4096, MIB));
        STEP(row, "deferred", direct_free(direct, /* waits: */ true, &result));
        STEP(row, "result", result);
        STEP(row, "again", direct_free(direct, /* waits: */ true, &result));
    }
    direct_created(77, 2 * MIB);
    fake_range_add(mapped, 2 * MIB, CU_MEMORYTYPE_DEVICE, 0);
    fake_range_of(mapped)->shareable = true;
    direct_mapped(mapped, 2 * MIB, 77);
    direct_releases(77);
    STEP(row, "reduce", reduce(comm, mapped, MIB));
    direct_range_ends(mapped + MIB, 4096);
    direct_mapped(mapped, 2 * MIB, 77); /* released: of unknown size */
    STEP(row, "reduce", reduce(comm, mapped, MIB));
    /* Memory of the program's at an address that a segment has now: it has gone unseen. */
    direct_created(78, 2 * MIB);
    direct_mapped(mapped, 2 * MIB, 78);
    STEP(row, "reduce", reduce(comm, mapped, MIB));
    nccl_segment_add(context, 0, mapped, 2 * MIB);
    nccl_segment_add(context, 0, mapped + MIB, 2 * MIB); /* and that one, too */
    STEP(row, "mixed",
         ended(comm, ncclAllReduce((void *)mapped, (void *)(mapped + MIB), MIB, TYPE_INT8, 0, comm, NULL)));
    nccl_segment_lost(context, mapped + MIB);
}

static void windows(struct row *row, ncclComm_t comm)
{
    ncclWindow_t window = NULL;
    void *ptr = NULL, *handle = NULL;
    uint64_t addr;

    STEP(row, "nccl", ncclMemAlloc(&ptr, 2 * MIB));
    if (!ptr)
        return;
    addr = (uintptr_t)ptr;
    STEP(row, "window", window_register(comm, addr + 4096, 1000, &window));
    STEP(row, "made", window != NULL);
    STEP(row, "reduce", reduce(comm, addr, MIB));
    STEP(row, "end", window_deregister(comm, window));
    STEP(row, "again", window_deregister(comm, window));
    if (fake.nccl->next[REAL_NCCL_ncclCommWindowRegister] && fake.nccl->next[REAL_NCCL_ncclCommWindowDeregister]) {
        STEP(row, "own", ended(comm, ncclCommWindowRegister(comm, ptr, 2 * MIB, &window, 0)));
        STEP(row, "own_end", ended(comm, ncclCommWindowDeregister(comm, window)));
    }
    STEP(row, "register", ncclCommRegister(comm, ptr, 4096, &handle));
    STEP(row, "handle", handle != NULL);
    STEP(row, "deregister", ncclCommDeregister(comm, handle));
    STEP(row, "group", ncclGroupStart());
    STEP(row, "reduce", reduce(comm, addr, MIB));
    STEP(row, "inside", window_register(comm, addr, 1000, &window));
    STEP(row, "nccl_free", ncclMemFree(ptr)); /* parked until the group has ended */
    STEP(row, "parked", nccl_retry_parked(-1) / MIB);
    STEP(row, "group_end", ended(comm, ncclGroupEnd()));
    STEP(row, "retry", nccl_retry_parked(-1) / MIB);
}

static void program(struct row *row, struct context *context)
{
    ncclComm_t comm = NULL, second = NULL, third = NULL, last = NULL;
    const ncclUniqueId id = {{0}};

    STEP(row, "make", ncclCommInitRank(&comm, 2, id, 1));
    if (!comm)
        return;
    use_all(row, context, comm);
    windows(row, comm);
    STEP(row, "group", ncclGroupStart());
    STEP(row, "split", ncclCommSplit(comm, 0, 1, &second, NULL));
    STEP(row, "group_end", ncclGroupEnd());
    STEP(row, "group", ncclGroupStart());
    STEP(row, "destroy", second ? ncclCommDestroy(second) : 0);
    STEP(row, "group_end", ncclGroupEnd());
    STEP(row, "shrink", ncclCommShrink(comm, NULL, 0, &third, NULL, 0));
    STEP(row, "shrink_abort", third ? ncclCommShrink(third, NULL, 0, &last, NULL, NCCL_SHRINK_ABORT) : 0);
    STEP(row, "use", third ? reduce(third, 0x5000, 64) : 0);
    STEP(row, "abort", third ? ncclCommAbort(third) : 0);
    STEP(row, "finalize", ncclCommFinalize(comm));
    STEP(row, "destroy", ncclCommDestroy(comm));
    STEP(row, "destroy", last ? ncclCommDestroy(last) : 0);
}

/* Counts at the end, and digests. */
static void ends(struct row *row)
{
    struct nccl_reg_stats is = {0};

    nccl_stats_get(&is);
    snprintf(row->end, sizeof(row->end),
             "ops %d mixed %d outside %d attached %d detached %d renewed %d failed %d comms %d segments %d parked %d "
             "kept %d memory %d free %d streams %d",
             (int)is.ops, (int)is.mixed, (int)is.outside, (int)is.attached, (int)is.detached, (int)is.renewed,
             (int)is.failed, (int)is.comms, (int)is.segments, (int)(is.parked / MIB), (int)(is.quarantined / MIB),
             nccl.memory, (int)(fake.free / MIB), (int)fake.streams_made + nccl.streams);
    row_digest(row, fake.log);
    row_digest(row, fake.said);
    row_digest(row, fake.traced);
    assert_true(fake.logged < sizeof(fake.log) - 1 && strlen(fake.traced) < sizeof(fake.traced) - 1);
    assert_true(fake_thread_is_clean(fake_context(0)));
}

static void play(struct row *row, unsigned int fault_at, size_t fault_from, size_t lacks)
{
    struct context *context;

    nccl_start();
    if (lacks < FNS)
        fake_lack(lacks);
    else if (lacks < COUNT(functions))
        memset((char *)&nccl.functions + (lacks - FNS) * sizeof(void *), 0, sizeof(void *));
    context = nccl_begin();
    nccl.fault = fault_from ? ncclInProgress : ncclUnhandledCudaError;
    fake.fault_from = fault_from;
    fake.fault_at = fault_at;
    fake.faulted = lacks;
    program(row, context);
    ends(row);
    row->more = !fault_at || fake.steps >= fault_at;
    snprintf(row->name, sizeof(row->name), "%s",
             fake.faulted < COUNT(functions) ? functions[fake.faulted].name : "all");
}

/* Call n of NCCL goes on in the background, and fails there. */
static void play_fails_later(struct row *row, unsigned int n)
{
    nccl.fails_later = true;
    play(row, n, FNS, COUNT(functions));
}

/* Call n fails. */
static void play_fails(struct row *row, unsigned int n)
{
    play(row, n, 0, COUNT(functions));
}

/* Call n of NCCL goes on in the background. */
static void play_goes_on(struct row *row, unsigned int n)
{
    play(row, n, FNS, COUNT(functions));
}

/* Of the functions behind our hooks, programs find out by themselves which there are, but for those of windows. */
static bool is_optional(size_t function)
{
    return function < NCCL_FN(next) || function == NEXT_FN(ncclAllGather) ||
           function == NEXT_FN(ncclCommWindowRegister) || function == NEXT_FN(ncclCommWindowDeregister);
}

/* The nth function that may be missing is. */
static void play_lacks(struct row *row, unsigned int n)
{
    size_t lacks = COUNT(functions);

    nccl_start();
    for (size_t i = 0, found = 0; i < COUNT(functions) && n; i++) {
        void *const *place = i < FNS ? (void *const *)&fake.driver + i : (void *const *)&nccl.functions + (i - FNS);
        const bool may_lack = i < FNS ? !functions[i].needed : i > NCCL_FN(ncclGetVersion) && is_optional(i);

        if (*place && may_lack && ++found == n)
            lacks = i;
    }
    play(row, 0, 0, lacks);
    row->more = !n || lacks < COUNT(functions);
}

#define USED "CUPOOL_FREE=ordered CUPOOL_REGISTER=use"

ISOLATED_CASE(test_each_call_fails, .environment = USED)
{
    rows_test("shim/nccl/nccl_fails", play_fails);
}

ISOLATED_CASE(test_each_call_goes_on, .environment = USED)
{
    rows_test("shim/nccl/nccl_goes_on", play_goes_on);
}

ISOLATED_CASE(test_each_call_fails_later, .environment = USED)
{
    rows_test("shim/nccl/nccl_fails_later", play_fails_later);
}

ISOLATED_CASE(test_each_function_is_missing, .environment = USED)
{
    rows_test("shim/nccl/nccl_lacks", play_lacks);
}

/* A communicator that nobody saw being made is met at its first use; in a group that has made another one it may be
 * that one, which is not ready. */
ISOLATED_CASE(test_met_in_a_group, .environment = USED)
{
    const ncclComm_t comm = (ncclComm_t)0x900;
    const ncclUniqueId id = {{0}};
    struct nccl_reg_comm_info info;
    ncclComm_t made = NULL;

    nccl_start();
    nccl_begin();
    assert_int_equal(ncclGroupStart(), 0);
    assert_int_equal(ncclCommInitRank(&made, 2, id, 1), 0);
    assert_false(nccl_comm_get(comm, NULL, &info));
    assert_int_equal(ncclGroupEnd(), 0);
    assert_int_equal(ncclGroupStart(), 0);
    assert_int_equal(ncclGroupStart(), 0);
    assert_int_equal(ncclGroupEnd(), 0); /* the inner one */
    assert_true(nccl_comm_get(comm, NULL, &info));
    assert_int_equal(ncclGroupEnd(), 0);
}

/* --- nothing is registered --- */

/* NCCL gets the program's calls alone. */
ISOLATED_CASE(test_off, .environment = ORDERED)
{
    const char *ours[] = {"attach", "detach", "error_of", "device", "user_rank", "ranks_of", "version", "gather"};
    struct row row = {0};

    nccl_start();
    program(&row, nccl_begin());
    for (size_t i = 0; i < COUNT(ours); i++)
        for (const char *at = fake.log; (at = strstr(at, ours[i])); at++)
            if (strncmp(at, "attach:0x100,", 13) != 0 && strncmp(at, "detach:0x100,", 13) != 0)
                fail_msg("%s", at);
    assert_string_equal(fake.said, "");
    assert_null(nccl_registry());
}

/* --- windows --- */

/* Memory for the exchange is refused: the pool gives back what is idle, and it is asked for again. */
ISOLATED_CASE(test_window_after_a_refusal, .environment = USED)
{
    const ncclUniqueId id = {{0}};
    struct context *context;
    ncclWindow_t window = NULL;
    ncclComm_t comm = NULL;
    void *ptr = NULL;
    const char *log;

    nccl_start();
    context = nccl_begin();
    assert_int_equal(ncclCommInitRank(&comm, 2, id, 1), 0);
    assert_int_equal(ncclMemAlloc(&ptr, 2 * MIB), 0);
    assert_int_equal(pool_free(block(context, 3 * MIB)), 0);
    process_start();
    fake_fail(FN(cuMemAlloc_v2), CUDA_ERROR_OUT_OF_MEMORY, 1);
    fake_log();
    assert_int_equal(window_register(comm, (uintptr_t)ptr, 1000, &window), 0);
    log = strstr(fake_log(), "alloc:c0,72 ");
    assert_non_null(log);
    assert_non_null(strstr(log + 1, "alloc:c0,72 "));
}

static ncclResult_t window_refuses(ncclComm_t comm, ncclWindow_t window)
{
    return ncclInvalidArgument;
}

/* NCCL refuses to undo a window: it is there as before, its memory stays, and it can be undone later. */
ISOLATED_CASE(test_window_stays_where_nccl_refuses, .environment = USED)
{
    const ncclUniqueId id = {{0}};
    ncclWindow_t window = NULL;
    ncclComm_t comm = NULL;
    void *ptr = NULL;

    nccl_start();
    nccl_begin();
    assert_int_equal(ncclCommInitRank(&comm, 2, id, 1), 0);
    assert_int_equal(ncclMemAlloc(&ptr, 2 * MIB), 0);
    assert_int_equal(window_register(comm, (uintptr_t)ptr, 1000, &window), 0);
    nccl.functions.next[REAL_NCCL_ncclCommWindowDeregister] = (void *)window_refuses;
    assert_int_equal(window_deregister(comm, window), -EIO);
    assert_int_equal(ncclMemFree(ptr), 0);
    assert_int_equal(nccl.memory, 1);
    nccl.functions.next[REAL_NCCL_ncclCommWindowDeregister] = (void *)window_end;
    assert_int_equal(window_deregister(comm, (ncclWindow_t)((char *)window + 16)), -EINVAL);
    assert_int_equal(window_deregister(comm, window), 0);
    assert_int_equal(nccl_retry_parked(-1), 2 * MIB);
    assert_int_equal(nccl.memory, 0);
    assert_int_equal(window_deregister(comm, window), -EINVAL);
}

static void closes(void *comm)
{
    nccl_comm_ends(comm, NCCL_END_CLOSE);
}

/* Another thread aborts the communicator during the exchange: no call is made on it any more. */
ISOLATED_CASE(test_window_of_an_aborted_communicator, .environment = USED)
{
    const ncclUniqueId id = {{0}};
    ncclWindow_t window = NULL;
    ncclComm_t comm = NULL;
    void *ptr = NULL;

    nccl_start();
    nccl_begin();
    assert_int_equal(ncclCommInitRank(&comm, 2, id, 1), 0);
    assert_int_equal(ncclMemAlloc(&ptr, 2 * MIB), 0);
    fake_before(FN(cuStreamSynchronize), closes, comm);
    assert_int_equal(window_register(comm, (uintptr_t)ptr, 1000, &window), -EIO);
    assert_null(window);
}

ISOLATED_CASE(test_window_without_a_driver, .environment = USED)
{
    const ncclUniqueId id = {{0}};
    ncclWindow_t window = NULL;
    ncclComm_t comm = NULL;

    nccl_start();
    nccl_begin();
    assert_int_equal(ncclCommInitRank(&comm, 2, id, 1), 0);
    fake.absent = true;
    assert_int_equal(window_register(comm, 0x1000, 64, &window), -ENOTSUP);
    assert_int_equal(window_deregister(comm, (ncclWindow_t)(uintptr_t)0x9000), -ENOTSUP);
    fake.absent = false;
    assert_int_equal(window_register((ncclComm_t)(uintptr_t)0x7700, 0x1000, 64, &window), -EINVAL);
    fake_current(fake_context(1)); /* another device's */
    assert_int_equal(window_register(comm, 0x1000, 64, &window), -EINVAL);
}

/* The other rank's memory is not as this one's, or it has none, or nothing comes of it. */
static const struct offer_case {
    uint64_t problem;
    int64_t start, size;
    bool lost;
    int rc;
} offers[] = {
    {.rc = 0},
    {.problem = 1, .rc = -1},
    {.problem = 16, .start = 5, .rc = -16},
    {.problem = 4095, .rc = -4095},
    {.problem = 4096, .rc = -EIO},
    {.problem = UINT64_C(1) << 32, .rc = -EIO},
    {.problem = UINT64_MAX, .rc = -EIO},
    {.start = 1, .rc = -EXDEV},
    {.start = -1, .rc = -EXDEV},
    {.size = 1, .rc = -EXDEV},
    {.size = -1, .rc = -EXDEV},
    {.lost = true, .rc = -EIO},
};

ISOLATED_ROWS(test_offers, offers, .environment = USED)
{
    const struct offer_case *row = *state;
    const ncclUniqueId id = {{0}};
    ncclWindow_t window = NULL;
    ncclComm_t comm = NULL;
    void *ptr = NULL;

    nccl_start();
    nccl_begin();
    assert_int_equal(ncclCommInitRank(&comm, 2, id, 1), 0);
    assert_int_equal(ncclMemAlloc(&ptr, 2 * MIB), 0);
    peer.problem = row->problem;
    peer.start = row->start;
    peer.size = row->size;
    peer.lost = row->lost;
    assert_int_equal(window_register(comm, (uintptr_t)ptr + 64, 1000, &window), row->rc);
    assert_int_equal(nccl.windows, row->rc ? 0 : 1);
    assert_int_equal(window != NULL, row->rc == 0);
}

/* --- what goes on for long --- */

ISOLATED_CASE(test_nothing_is_left_behind, .environment = USED)
{
    const ncclUniqueId id = {{0}};
    size_t before = 0;

    nccl_start();
    nccl_begin();
    for (unsigned int i = 0; i < 200; i++) {
        ncclComm_t comm = NULL;
        struct row row = {0};

        before = i == 100 ? heap_bytes() : before;
        assert_int_equal(ncclCommInitRank(&comm, 2, id, 1), 0);
        windows(&row, comm);
        assert_int_equal(ncclGroupStart(), 0);
        assert_int_equal(ncclCommDestroy(comm), 0);
        assert_int_equal(ncclGroupEnd(), 0);
        fake_log();
        fake.said[0] = fake.traced[0] = '\0';
        nccl.comms = 0; /* the entry of a communicator at this address serves again */
        fake.streams_made = 1;
        fake.free = FAKE_CAPACITY;
        fake.next = 0x7f0000000000;
    }
    assert_true(heap_bytes() <= before + 50);
}
