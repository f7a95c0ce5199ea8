/* SPDX-License-Identifier: Apache-2.0 */
/* test_pinned_free.c - frees of pinned memory whose context may end beside them, or has failed: what they wait for, and
 * which error they return. context/test_host_memory.c has when the memory goes back. */
#include "context/ready.h"
#include "context/strict.h"
#include "serve/pinned_requests.h"

#define PINNED "CUPOOL_HOST_POOL=1 CUPOOL_FREE=strict"

/* In place of glibc's: threads stay on a node. */
int getcpu(unsigned int *cpu, unsigned int *node)
{
    *cpu = *node = 0;
    return 0;
}

static CUresult host_alloc(void **ptr, size_t size, unsigned int flags)
{
    static uint64_t next = UINT64_C(0x7e0000000000);

    *ptr = (void *)(uintptr_t)next;
    next += (size + MIB - 1) / MIB * MIB;
    return flags ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

static CUresult alloc_host(void **ptr, size_t size)
{
    return host_alloc(ptr, size, 0);
}

static CUresult free_host(void *ptr)
{
    return ptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* A context that has failed answers every call so. */
static CUresult get_info(size_t *free, size_t *total)
{
    CUcontext handle = NULL;

    *free = *total = 0;
    fake.driver.cuCtxGetCurrent(&handle);
    return fake_context_of(handle)->error;
}

static void *more_memory(void)
{
    uint64_t addr = 0;

    assert_int_equal(serve_host_alloc(0, 3 * MIB, (const void *)(uintptr_t)more_memory, &addr), SERVE_DONE);
    return (void *)(uintptr_t)addr;
}

/* Memory of a context; afterwards context 0 is current. */
static void *memory_of(unsigned int context)
{
    void *memory;

    ready();
    pooled(context);
    fake.driver.cuMemAllocHost_v2 = alloc_host;
    fake.driver.cuMemHostAlloc = host_alloc;
    fake.driver.cuMemFreeHost = free_host;
    fake.next_of[REAL_cuMemGetInfo_v2] = (void *)get_info;
    fake_current(fake_context(context));
    memory = more_memory();
    fake_current(fake_context(0));
    return memory;
}

static void end_decided(void *arg)
{
    if (fake.relaxes > 3)
        atomic_store(&((struct context *)arg)->leaving, 0);
}

/* Another thread gives back a reference to the context, which stays. */
ISOLATED_CASE(test_free_beside_an_end, .environment = PINNED)
{
    void *memory = memory_of(0);
    struct context *context = pooled(0);

    fake.contexts[0].launched = 1;
    atomic_store(&context->leaving, 1);
    fake.relax = end_decided;
    fake.relax_arg = context;
    assert_int_equal(cuMemFreeHost(memory), CUDA_SUCCESS);
    assert_int_equal(fake.contexts[0].over, 1);
}

/* Once a thread has waited a second for such a call, other frees do not. */
ISOLATED_CASE(test_frees_beside_a_long_end, .environment = PINNED)
{
    void *memory = memory_of(0), *other = more_memory();
    struct context *context = pooled(0);
    const uint64_t start = atomic_load(&fake.ns);

    atomic_store(&context->leaving, 1);
    assert_int_equal(cuMemFreeHost(memory), CUDA_SUCCESS);
    assert_in_range(atomic_load(&fake.ns) - start, SECOND_NS, 2 * SECOND_NS - 1);
    assert_int_equal(cuMemFreeHost(other), CUDA_SUCCESS);
    assert_in_range(atomic_load(&fake.ns) - start, SECOND_NS, 2 * SECOND_NS - 1);
}

static void work_ends(void *arg)
{
    fake.contexts[0].over = fake.contexts[0].launched;
}

/* A free that has not waited is on record: the work before it is waited for, also where another thread gives back a
 * reference. */
ISOLATED_CASE(test_a_free_on_record_beside_an_end, .environment = "CUPOOL_HOST_POOL=1 CUPOOL_FREE=auto")
{
    void *memory = memory_of(0);
    struct context *context = pooled(0);

    assert_int_equal(cuMemFreeHost(memory), CUDA_SUCCESS); /* it waits for work that was there before the library */
    fake.contexts[0].launched += 3;
    assert_int_equal(cuMemFreeHost(more_memory()), CUDA_SUCCESS);
    assert_int_not_equal(fake.contexts[0].over, fake.contexts[0].launched);
    atomic_store(&context->leaving, 1);
    fake.relax = end_decided;
    fake.relax_arg = context;
    fake_before(FN(cuEventQuery), work_ends, NULL);
    policy_frees_wait(/* others: */ false);
    assert_int_equal(fake.contexts[0].over, fake.contexts[0].launched);
}

/* A free that has failed asks for its context's error, and the end of the context does not wait for that. */
ISOLATED_CASE(test_failed_free_beside_an_end, .environment = PINNED)
{
    const uint64_t addr = (uintptr_t)memory_of(1);
    struct context *context = pooled(1);
    struct serve_failed failed;

    serve_host_failed_begin(addr, &failed);
    assert_ptr_equal(failed.context, context);
    assert_true(failed.visit.pushed);
    context_gone(context_leaving(fake_context(1)), true);
    assert_int_equal(fake.relaxes, 0);
    assert_null(context->lingering);
    serve_host_failed_end(&failed);
    assert_true(fake_thread_is_clean(fake_context(0)));
}

/* Natively the error of the memory's context is told, whichever is current. */
ISOLATED_CASE(test_free_in_a_context_that_has_failed, .environment = PINNED)
{
    void *memory = memory_of(1);
    struct context *context = pooled(1);

    fake.contexts[1].error = CUDA_ERROR_ILLEGAL_ADDRESS;
    assert_int_equal(cuMemFreeHost(memory), CUDA_ERROR_ILLEGAL_ADDRESS); /* that of its wait */
    assert_true(context_failed(context));
    assert_int_equal(cuMemFreeHost(memory), CUDA_ERROR_ILLEGAL_ADDRESS);
    assert_true(fake_thread_is_clean(fake_context(0)));
    assert_false(busy(context, true));
}
