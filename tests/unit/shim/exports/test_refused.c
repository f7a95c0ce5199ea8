/* SPDX-License-Identifier: Apache-2.0 */
/* test_refused.c - shim/exports/ and shim/serve/ipc_handles.c: calls that lack an argument, for the driver to refuse or
 * to take, and calls whose error ends the context. test_exports.c has what is done around calls that succeed. */
#include "base/ipc_message.h"
#include "base/process.h"
#include "context/arrivals.h"
#include "context/capture_gate.h"
#include "context/ipc_table.h"
#include "context/neighbours.h"
#include "context/ready.h"
#include "cupool.h"
#include "exports/memory.h"
#include "exports/retry.h"
#include "nccl/comms.h"
#include "nccl/register_calls.h"
#include "serve/ipc_handles.h"
#include "serve/serve.h"

static int result; /* what the real function returns */

static int next_ok(void)
{
    return result;
}

ISOLATED_CASE(test_none, .environment = ORDERED)
{
    CUpointer_attribute attribute = CU_POINTER_ATTRIBUTE_RANGE_SIZE;
    struct context *context;
    uint64_t addr = 0;
    size_t size;

    context = context_current(&fake.driver);
    assert_int_equal(pool_alloc(context->pool, MIB, &addr), 0);
    fake.next_of[REAL_cuPointerGetAttributes] = (void *)next_ok;
    assert_int_equal(cuPointerGetAttributes(1, NULL, (void *[]){&size}, addr), 0);
    assert_int_equal(cuPointerGetAttributes(1, &attribute, NULL, addr), 0);
}

/* A context that has ended is none; another error does not say that there is none. */
ISOLATED_CASE(test_without_context, .environment = ORDERED)
{
    assert_true(memory_has_context());
    fake_fail(FN(cuCtxGetDevice), CUDA_ERROR_INVALID_CONTEXT, 1);
    assert_false(memory_has_context());
    fake_fail(FN(cuCtxGetDevice), CUDA_ERROR_CONTEXT_IS_DESTROYED, 1);
    assert_false(memory_has_context());
    fake_fail(FN(cuCtxGetDevice), CUDA_ERROR_UNKNOWN, 1);
    assert_true(memory_has_context());
}

/* An error that ends a context is its own, whichever call has told it; with CUPOOL_ENABLE=0 nobody looks. */
static CUresult peer(void)
{
    return cuCtxEnablePeerAccess(fake_context(1), 0);
}

static CUresult opens(void)
{
    CUdeviceptr ptr;

    return cuIpcOpenMemHandle_v2(&ptr, (CUipcMemHandle){{0}}, 0);
}

static CUresult waits(void)
{
    return cuStreamSynchronize(NULL);
}

ISOLATED_CASE(test_error_seen, .environment = ORDERED)
{
    static CUresult (*const functions[])(void) = {peer, opens, waits};
    static const enum real_symbol symbols[] = {REAL_cuCtxEnablePeerAccess, REAL_cuIpcOpenMemHandle_v2,
                                               REAL_cuStreamSynchronize};

    for (unsigned int i = 0; i < COUNT(functions); i++) {
        fake_start();
        fake_current(fake_context(i));
        if (!*state)
            assert_non_null(context_current(&fake.driver));
        result = fake.contexts[i].error = CUDA_ERROR_ILLEGAL_ADDRESS;
        fake.next_of[symbols[i]] = (void *)next_ok;
        assert_int_equal(functions[i](), result);
        assert_int_equal(atomic_load(&contexts.count), *state ? 0 : i + 1);
        if (!*state)
            assert_true(atomic_load(&context_entry_find(fake_context(i))->failed));
    }
}
ISOLATED_AGAIN(test_error_seen, off, .environment = "CUPOOL_ENABLE=0", .row = "off")

static int next_info(size_t *free, size_t *total)
{
    return (int)fake.driver.cuMemGetInfo_v2(free, total);
}

static int free_async(uint64_t addr)
{
    return (int)cuMemFreeAsync(addr, fake_stream(0, 0));
}

static int free_async_by_runtime(uint64_t addr)
{
    return (int)cudaFreeAsync((void *)(uintptr_t)addr, (cudaStream_t)fake_stream(0, 0));
}

/* A free that fails frees nothing. If the error does not last, the program is told success, and the memory is free. */
READY_CASE(test_free_after_an_error, .environment = ORDERED)
{
    static int (*const frees[])(uint64_t addr) = {free_async, free_async_by_runtime};
    struct pool *pool;
    size_t size;

    fake.next_of[REAL_cuMemGetInfo_v2] = fake.next_of[REAL_cudaMemGetInfo] = (void *)next_info;
    for (size_t i = 0; i < COUNT(frees); i++) {
        const uint64_t addr = block(context, 3 * MIB);

        atomic_store(&context->failed, true);
        fake.contexts[0].error = CUDA_ERROR_ILLEGAL_ADDRESS;
        assert_int_equal(frees[i](addr), CUDA_ERROR_ILLEGAL_ADDRESS);
        assert_int_equal(pool_live(addr, &pool, &size), 3 * MIB);
        fake.contexts[0].error = CUDA_SUCCESS;
        assert_int_equal(frees[i](addr), CUDA_SUCCESS);
        assert_int_equal(pool_live(addr, &pool, &size), 0);
    }
}

/* While the driver is asked for the error, another thread's free makes the block free, and a request gets it. */
static uint64_t other, again;
static struct context *owner;

static int next_serves(size_t *free, size_t *total)
{
    fake_fail(FN(cuCtxRecordEvent), CUDA_SUCCESS, 0);
    fake_fail(FN(cuCtxSynchronize), CUDA_SUCCESS, 0);
    assert_int_equal(pool_free(other), 0);
    again = block(owner, 3 * MIB);
    return next_info(free, total);
}

static int free_now(uint64_t addr)
{
    return (int)cuMemFree_v2(addr);
}

static int free_now_by_runtime(uint64_t addr)
{
    return (int)cudaFree((void *)(uintptr_t)addr);
}

/* A block that could be neither ordered nor waited for is freed only once. */
READY_CASE(test_free_without_order, .environment = ORDERED)
{
    static int (*const frees[])(uint64_t addr) = {free_now, free_now_by_runtime};
    struct pool *pool;
    size_t size;

    owner = context;
    fake.next_of[REAL_cuMemGetInfo_v2] = fake.next_of[REAL_cudaMemGetInfo] = (void *)next_serves;
    for (size_t i = 0; i < COUNT(frees); i++) {
        const uint64_t addr = block(context, 3 * MIB);

        other = block(context, 5 * MIB);
        fake_fail(FN(cuCtxRecordEvent), CUDA_ERROR_UNKNOWN, 9);
        fake_fail(FN(cuCtxSynchronize), CUDA_ERROR_UNKNOWN, 9);
        assert_int_equal(frees[i](addr), CUDA_SUCCESS);
        assert_int_equal(again, addr);
        assert_int_equal(pool_live(addr, &pool, &size), 3 * MIB);
        assert_int_equal(pool_free(addr), 0);
    }
}

/* Another thread frees the block while the driver answers: the answer is about memory of the pool. */
static uint64_t freed;

static int next_frees(void)
{
    assert_int_equal(pool_free(freed), 0);
    return 0;
}

ISOLATED_CASE(test_freed_meanwhile, .environment = ORDERED)
{
    struct context *context;
    CUdeviceptr base;
    size_t size;

    fake_start();
    context = context_current(&fake.driver);
    fake.next_of[REAL_cuMemGetAddressRange_v2] = fake.next_of[REAL_cuPointerGetAttribute] = (void *)next_frees;
    assert_int_equal(pool_alloc(context->pool, MIB, &freed), 0);
    assert_int_equal(cuMemGetAddressRange_v2(&base, &size, freed), CUDA_ERROR_NOT_FOUND);
    assert_int_equal(pool_alloc(context->pool, MIB, &freed), 0);
    assert_int_equal(cuPointerGetAttribute(&size, CU_POINTER_ATTRIBUTE_RANGE_SIZE, freed), CUDA_ERROR_INVALID_VALUE);
}

/* There is no ticket for such a block: the next one at its address would be taken for it. */
ISOLATED_CASE(test_exported_while_freed, .environment = ORDERED " CUPOOL_REGISTER=0")
{
    struct context *context;
    CUipcMemHandle handle;
    uint64_t first;

    fake_start();
    context = context_current(&fake.driver);
    fake.background = true;
    fake.next_of[REAL_cuIpcGetMemHandle] = (void *)next_frees;
    assert_int_equal(pool_alloc(context->pool, 100000, &first), 0);
    assert_int_equal(pool_alloc(context->pool, 100000, &freed), 0);
    assert_int_equal(serve_ipc_get(freed, NULL, &handle), SERVE_IPC_REFUSED);
    assert_false(ipc_table_any());
    assert_int_equal(pool_alloc(context->pool, 100000, &freed), 0); /* it was freed once */
    assert_int_equal(pool_free(freed), 0);
}

/* A destruction that had no effect leaves the pool; after an error of earlier work the context has gone. */
static const struct destruction {
    CUresult result;
    bool stays;
} destructions[] = {
    {CUDA_SUCCESS, false},
    {CUDA_ERROR_LAUNCH_FAILED, false},
    {CUDA_ERROR_INVALID_CONTEXT, true},
    {CUDA_ERROR_INVALID_DEVICE, true},
    {CUDA_ERROR_INVALID_VALUE, true},
    {CUDA_ERROR_NOT_INITIALIZED, true},
    {CUDA_ERROR_NOT_PERMITTED, true},
    {CUDA_ERROR_DEINITIALIZED, true},
};

ISOLATED_ROWS(test_destruction, destructions, .environment = ORDERED)
{
    const struct destruction *row = *state;

    fake_start();
    assert_non_null(context_current(&fake.driver));
    result = (int)row->result;
    fake.next_of[REAL_cuCtxDestroy_v2] = (void *)next_ok;
    assert_int_equal(cuCtxDestroy_v2(fake_context(0)), row->result);
    assert_int_equal(context_find(fake_context(0)) != NULL, row->stays);
}

/* A free of the pool's, which natively makes a context current; the runtime's call for that would destroy a capture. */
ISOLATED_CASE(test_lacks_context, .environment = ORDERED)
{
    fake_start();
    fake_current(NULL);
    assert_true(serve_lacks_context());
    atomic_store(&capture_count, 1);
    assert_false(serve_lacks_context());
    atomic_store(&capture_count, 0);
    fake_current(fake_context(0));
    assert_false(serve_lacks_context());
}

static uint64_t handed(struct context *context)
{
    uint64_t addr = 0;

    assert_int_equal(pool_alloc(context->pool, MIB, &addr), 0);
    return addr;
}

static unsigned int nulls; /* frees of NULL that came to the runtime */

static int next_null_free(void *ptr)
{
    assert_null(ptr);
    nulls++;
    return result;
}

/* Where the runtime does not know a primary context, a free of the pool's tells it; once for each context, not beside a
 * capture, and again after an error. */
ISOLATED_CASE(test_first_free_of_runtime, .environment = ORDERED)
{
    struct context *all[2];
    uint64_t addr;

    fake_start();
    fake.next_of[REAL_cudaFree] = (void *)next_null_free;
    for (unsigned int i = 0; i < 2; i++) {
        fake_current(fake_context(i));
        all[i] = context_current(&fake.driver);
        atomic_store(&all[i]->runtime_came, false);
    }
    atomic_store(&context_unmet, true);
    for (unsigned int i = 2; i-- > 0;) {
        fake_current(fake_context(i));
        addr = handed(all[i]);
        atomic_store(&capture_count, 1);
        assert_int_equal(cudaFree((void *)addr), 0);
        atomic_store(&capture_count, 0);
        assert_int_equal(nulls, 3 * (1 - i));
        result = cudaErrorUnknown;
        assert_int_equal(cudaFree((void *)handed(all[i])), 0);
        result = 0;
        for (unsigned int k = 0; k < 3; k++)
            assert_int_equal(cudaFree((void *)handed(all[i])), 0);
        assert_int_equal(nulls, 3 * (1 - i) + 2);
        assert_int_equal(atomic_load(&context_unmet), i);
        nulls += i;
    }
    assert_true(serve_had_context);
}

/* In a context that has ended the driver refuses frees. Beside a capture it cannot be asked whether this one has: it is
 * asked by the next free after the capture. */
ISOLATED_CASE(test_context_is_over, .environment = ORDERED)
{
    struct context *context;
    uint64_t addr[2];

    fake_start();
    context = context_current(&fake.driver);
    for (unsigned int i = 0; i < 2; i++)
        assert_int_equal(pool_alloc(context->pool, MIB, &addr[i]), 0);
    serve_context_ended();
    fake.contexts[5].error = CUDA_ERROR_CONTEXT_IS_DESTROYED;
    fake_current(fake_context(5));
    atomic_store(&capture_count, 1);
    assert_int_equal(serve_free(addr[0]), SERVE_DONE);
    atomic_store(&capture_count, 0);
    assert_int_equal(serve_free(addr[1]), SERVE_OVER);
    fake_current(fake_context(0));
    assert_int_equal(serve_free(addr[1]), SERVE_DONE);
}

/* Whether other processes were asked for the pool's request: not where the limit has refused it. */
ISOLATED_CASE(test_has_asked, .environment = ORDERED " CUPOOL_LIMIT=4M")
{
    uint64_t addr;

    fake_start();
    assert_int_equal(serve_alloc(16 * MIB, &freed, /* by_runtime: */ false, &addr), SERVE_BYPASS);
    assert_false(serve_has_asked());
    fake.free = 0;
    assert_int_equal(serve_alloc(2 * MIB, &freed, /* by_runtime: */ false, &addr), SERVE_BYPASS);
    assert_true(serve_has_asked());
    assert_false(serve_has_asked());
}

/* Where a ticket's block is to be opened is not said; and in a call of the library's own tickets are none. */
ISOLATED_CASE(test_ticket, .environment = ORDERED)
{
    const unsigned int flags = CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS;
    const struct ipc_name name = {{7}};
    struct ipc_ticket ticket;
    CUdeviceptr ptr;
    CUresult opened;

    ipc_ticket_make(&ticket, 1, &name, &name);
    assert_false(serve_ipc_open(&ticket, flags, NULL, &opened));
    assert_true(serve_ipc_open(&ticket, flags, &ptr, &opened));
    assert_int_equal(opened, CUDA_ERROR_MAP_FAILED); /* there is no such exporter */
    process_bypass_begin();
    assert_false(serve_ipc_open(&ticket, flags, &ptr, &opened));
    process_bypass_end();
}

/* An abort ends a communicator whatever it returns: no registration is made with it any more. */
ISOLATED_CASE(test_abort)
{
    const struct nccl_reg_comm_info info = {.device = 0};
    static const struct nccl_reg_ops ops;
    struct nccl_reg_comm_info got;
    struct nccl_reg *reg;
    char comm[64];

    assert_int_equal(nccl_reg_create(&ops, &reg), 0);
    atomic_store(&nccl_registry_private, reg);
    assert_int_equal(nccl_reg_comm_add(nccl_registry(), comm, &info), 0);
    nccl_comm_ends((ncclComm_t)(void *)comm, NCCL_END_SILENT);
    nccl_comm_ended((ncclComm_t)(void *)comm, NCCL_END_SILENT, ncclInvalidArgument);
    assert_int_equal(nccl_reg_comm_get(nccl_registry(), comm, &got), -ENOENT);
}

/* --- the functions of cupool.h --- */

/* A device that cannot be is an error of the caller's, before anything else is looked at. */
ISOLATED_CASE(test_no_such_device, .environment = ORDERED)
{
    for (unsigned int i = 0; i < 2; i++) {
        const int device = i ? DEVICES_MAX : -1;

        assert_int_equal(cupool_lib_pause(device, CUPOOL_KEEP), -EINVAL);
        assert_int_equal(cupool_lib_resume(device), -EINVAL);
    }
    assert_int_equal(cupool_lib_resume(DEVICES_MAX - 1), -EAGAIN);
}

/* The counters of a context that cannot be made to stay are not read: it may be about to end. */
ISOLATED_CASE(test_counters_of_a_context_that_may_end, .environment = ORDERED)
{
    struct cupool_stats stats = {.size = sizeof(stats)};
    struct context *context;
    uint64_t addr;

    fake_start();
    context = context_current(&fake.driver);
    assert_int_equal(pool_alloc(context->pool, MIB, &addr), 0);
    for (unsigned int i = 1; i < PINS_MAX; i++)
        assert_true(context_pin(context));
    assert_int_equal(cupool_lib_stats_get(0, &stats), 0);
    assert_int_equal(stats.allocs, 0);
    context_unpin(context);
    assert_int_equal(cupool_lib_stats_get(0, &stats), 0);
    assert_int_equal(stats.allocs, 1);
}

/* --- memory that has no handle --- */

ISOLATED_CASE(test_no_handle, .environment = ORDERED " CUPOOL_REGISTER=0")
{
    struct context *context;
    CUipcMemHandle handle;
    uint64_t addr;

    fake_start();
    context = context_current(&fake.driver);
    result = CUDA_ERROR_INVALID_VALUE;
    fake.next_of[REAL_cuIpcGetMemHandle] = (void *)next_ok;
    assert_int_equal(pool_alloc(context->pool, 3 * MIB, &addr), 0);
    assert_int_equal(cuIpcGetMemHandle(&handle, addr), result);
    assert_null(strstr(fake.said, "has none"));
    pool_kind_set(context->pool, BACKEND_NCCL, 0, 0);
    assert_int_equal(cuIpcGetMemHandle(&handle, addr), result);
    assert_non_null(strstr(fake.said, ": memory of CUPOOL_BACKEND=nccl has none"));
}

/* Other processes can ask for a device's memory from its first segment on: a socket for each device. */
ISOLATED_CASE(test_one_station_for_each_device)
{
    struct pollfd fds[4];

    assert_true(neighbours_begin(0));
    assert_false(neighbours_begin(0));
    assert_true(neighbours_begin(1));
    assert_int_equal(neighbours_listen(fds, 4), 2);
    neighbours_end();
}

ISOLATED_CASE(test_no_station, .environment = "CUPOOL_NEIGHBOURS=0")
{
    struct pollfd fds[4];

    assert_false(neighbours_begin(0));
    assert_int_equal(neighbours_listen(fds, 4), 0);
}

/* In a call of the library's own a free on a stream is the driver's, which is asked nothing before. */
ISOLATED_CASE(test_later_inside, .environment = ORDERED)
{
    struct context *context;
    uint64_t addr;

    fake_start();
    context = context_current(&fake.driver);
    assert_int_equal(pool_alloc(context->pool, MIB, &addr), 0);
    fake_fail(FN(cuStreamGetCtx), CUDA_ERROR_INVALID_HANDLE, 2);
    process_bypass_begin();
    assert_int_equal(serve_free_later(addr, fake_stream(0, 0)), SERVE_FORWARD);
    process_bypass_end();
    assert_int_equal(serve_free_later(addr, fake_stream(0, 0)), SERVE_NOWHERE);
}
