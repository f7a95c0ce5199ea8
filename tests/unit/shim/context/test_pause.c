/* SPDX-License-Identifier: Apache-2.0 */
/* test_pause.c - shim/context/pause.c and pause_copies.c: every live byte of a paused device is copied and comes back
 * to its place, and what fails half-way leaves the device as it was. The program's view: tests/e2e/test_pause.py. */
#include <sys/mman.h>

#include "context/capture_history.h"
#include "context/ipc_table.h"
#include "context/pause.h"
#include "pool_state.h"
#include "vmm_driver.h"

#define VMM    ORDERED " CUPOOL_BACKEND=vmm CUPOOL_TRACE_FILE=x"
#define KIB    ((size_t)1024)
#define CHUNK  (256 * MIB)
#define BLOCKS 400

/* The copies, in the order of the calls. */
static struct copy {
    uint64_t addr;
    const char *host;
    size_t size;
} copies[2][BLOCKS];
static unsigned int count[2];

static struct live {
    uint64_t addr;
    size_t size;
} lives[BLOCKS];
static unsigned int lived;

static struct {
    unsigned int buffers;      /* of pinned memory, that are there */
    unsigned int calls, fails; /* so many calls were made; number fails from then on, once, fails */
    CUresult result;
    size_t largest, bytes; /* of pinned memory: at a time; in all */
} host;

static struct copy pieces[8]; /* the last buffers */

/* Host memory that is read or written lies in one buffer. */
static void is_inside(const void *addr, size_t size)
{
    unsigned int i = 0;

    while (i < 8 && (uintptr_t)addr - (uintptr_t)pieces[i].host >= pieces[i].size)
        i++;
    assert_true(i < 8 && size <= pieces[i].size - ((uintptr_t)addr - (uintptr_t)pieces[i].host));
}

static CUresult next_result(void)
{
    return ++host.calls == host.fails ? host.result : CUDA_SUCCESS;
}

static CUresult host_alloc(void **ptr, size_t size, unsigned int flags)
{
    const CUresult result = next_result();

    assert_int_equal(flags, CU_MEMHOSTALLOC_PORTABLE);
    if (result)
        return result;
    *ptr = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    assert_ptr_not_equal(*ptr, MAP_FAILED);
    pieces[host.buffers++ % 8] = (struct copy){0, *ptr, size};
    host.bytes += size;
    host.largest = size > host.largest ? size : host.largest;
    return CUDA_SUCCESS;
}

static CUresult host_free(void *ptr)
{
    (void)ptr; /* its pages are the process's, which ends */
    host.buffers--;
    return CUDA_SUCCESS;
}

/* Both ends of what is copied have their own addresses as contents. */
static CUresult to_host(void *to, CUdeviceptr from, size_t size, CUstream stream)
{
    const CUresult result = next_result();
    const uint64_t first = from, last = from + size - 8;

    assert_non_null(stream);
    if (result)
        return result;
    is_inside(to, size);
    memcpy(to, &first, 8);
    memcpy((char *)to + size - 8, &last, 8);
    copies[0][count[0]++] = (struct copy){from, to, size};
    return CUDA_SUCCESS;
}

static CUresult to_device(CUdeviceptr to, const void *from, size_t size, CUstream stream)
{
    const CUresult result = next_result();
    uint64_t first, last;

    assert_non_null(stream);
    if (result)
        return result;
    is_inside(from, size);
    memcpy(&first, from, 8);
    memcpy(&last, (const char *)from + size - 8, 8);
    assert_true(first == to && last == to + size - 8);
    copies[1][count[1]++] = (struct copy){to, from, size};
    return CUDA_SUCCESS;
}

static struct context *start(void)
{
    struct context *context;

    driver_ready();
    fake.driver.cuMemHostAlloc = host_alloc;
    fake.driver.cuMemFreeHost = host_free;
    fake.driver.cuMemcpyDtoHAsync_v2 = to_host;
    fake.driver.cuMemcpyHtoDAsync_v2 = to_device;
    context = pooled(0);
    assert_int_equal(pool_kind_get(context->pool), BACKEND_VMM);
    return context;
}

#define PAUSE_CASE(function) CONTEXT_CASE(function, start, .environment = VMM)

static uint64_t get(struct context *context, size_t size)
{
    uint64_t addr = 0;

    assert_int_equal(pool_alloc(context->pool, size, &addr), 0);
    lives[lived++] = (struct live){addr, size};
    return addr;
}

static bool is_copied(const struct live *live)
{
    size_t done = 0;

    for (unsigned int i = 0; i < count[0] && done < live->size; i++) /* a large block in several pieces */
        if (live->addr + done >= copies[0][i].addr && live->addr + done - copies[0][i].addr < copies[0][i].size)
            done += copies[0][i].size - (live->addr + done - copies[0][i].addr);
    return done >= live->size;
}

static uint64_t copied(void)
{
    uint64_t bytes = 0;

    for (unsigned int i = 0; i < count[0]; i++)
        bytes += copies[0][i].size;
    return bytes;
}

static void pause_and_resume(void)
{
    uint64_t bytes = 0, back = 0;
    char told[64];

    count[0] = count[1] = 0;
    assert_int_equal(pause_device(0, /* keep: */ true, PAUSE_NO_LIMIT, &bytes), 0);
    assert_true(device_is_paused(0));
    assert_int_equal(mappings_count(true), 0);
    for (unsigned int i = 0; i < lived; i++)
        assert_true(is_copied(&lives[i]));
    snprintf(told, sizeof(told), "\"n\":%llu,\"copied\":%llu,", (unsigned long long)bytes,
             (unsigned long long)copied());
    assert_non_null(strstr(fake.traced, told));
    fake.traced[0] = '\0';
    assert_int_equal(resume_device(0, &back), 0);
    assert_non_null(strstr(fake.traced, told));
    assert_false(device_is_paused(0));
    assert_int_equal(back, bytes);
    assert_int_equal(count[1], count[0]);
    for (unsigned int i = 0; i < count[0]; i++)
        assert_memory_equal(&copies[1][i], &copies[0][i], sizeof(copies[0][i]));
    assert_int_equal(host.buffers, 0);
}

/* More segments and ranges than there is room for at first. */
PAUSE_CASE(test_many)
{
    for (unsigned int i = 0; i < 150; i++) {
        const uint64_t between = (get(context, 800 * KIB), get(context, 200 * KIB));

        if (mappings_count(true) == SLOTS_M - 1)
            break;
        assert_int_equal(pool_free(between), 0);
        lived--;
    }
    assert_true(mappings_count(true) > 64);
    pause_and_resume();
    assert_true(count[0] > 64);
    pause_and_resume(); /* nothing is left of the first time */
}

/* A block that takes more than one piece of host memory, behind one that shifts it. */
PAUSE_CASE(test_large)
{
    get(context, 1000);
    get(context, CHUNK + 3 * MIB);
    pause_and_resume();
    assert_int_equal(count[0], 3);
    assert_int_equal(copied(), CHUNK + 3 * MIB + 1024);
    assert_int_equal(host.largest, CHUNK);
    assert_int_equal(host.bytes, copied());
}

/* A context that fills its host memory to the last byte takes no more of it. */
PAUSE_CASE(test_exact)
{
    get(context, CHUNK);
    pause_and_resume();
    assert_int_equal(host.calls, 3); /* one piece, one copy, and back */
    assert_int_equal(host.bytes, CHUNK);
}

/* Where nothing is paused any more, because the contexts have ended, the device may be paused. */
PAUSE_CASE(test_context_ends_meanwhile)
{
    uint64_t bytes;

    get(context, 1000);
    assert_int_equal(pause_device(0, /* keep: */ false, PAUSE_NO_LIMIT, &bytes), 0);
    assert_int_equal(pause_check(0, /* keep: */ false), -EALREADY);
    context_gone(context_leaving(fake_context(0)), true);
    assert_int_equal(pause_check(0, /* keep: */ false), 0);
}

/* The next context in the entry has nothing of a pause that has ended with the one before. */
PAUSE_CASE(test_context_ends_with_contents)
{
    uint64_t bytes;

    get(context, 1000);
    assert_int_equal(pause_device(0, /* keep: */ true, PAUSE_NO_LIMIT, &bytes), 0);
    context_gone(context_leaving(fake_context(0)), true);
    lived = host.buffers = 0; /* its pinned memory has gone with it */
    assert_ptr_equal(pooled(0), context);
    get(context, 1000);
    pause_and_resume();
    assert_int_equal(count[0], 1);
}

/* A block that is freed while the device is paused comes back no more, nor does its segment. */
PAUSE_CASE(test_freed_meanwhile)
{
    const uint64_t stays = get(context, 8 * MIB);
    uint64_t goes, bytes, back;

    vmm.next = stays - 4 * MIB; /* side by side, they are copied each for itself */
    goes = get(context, 4 * MIB);
    assert_int_equal(pause_device(0, /* keep: */ true, PAUSE_NO_LIMIT, &bytes), 0);
    assert_int_equal(bytes, 12 * MIB);
    assert_int_equal(count[0], 2);
    assert_int_equal(pool_free(goes), 0);
    assert_int_equal(resume_device(0, &back), 0);
    assert_int_equal(back, 8 * MIB);
    assert_int_equal(count[1], 1);
    assert_int_equal(copies[1][0].addr, stays);
    assert_int_equal(host.buffers, 0);
}

/* Up to 64 KiB that nobody uses are copied with what is around them. */
static const struct gap {
    size_t size;
    size_t more; /* in a block of its own */
    unsigned int copies;
} gaps[] = {{1000, 0, 1},     {63 * KIB, 0, 1},     {64 * KIB, 0, 1},
            {64 * KIB, 1, 2}, {64 * KIB + 1, 0, 2}, {100 * KIB, 0, 2}};

ISOLATED_ROWS(test_gaps, gaps, .environment = VMM)
{
    const struct gap *row = *state;
    struct context *context = start();
    uint64_t before = get(context, 1000), between = get(context, row->size), more = 0;

    lived--;
    if (row->more) {
        more = get(context, row->more);
        assert_int_equal(more, between + row->size);
        lived--;
    }
    get(context, 1000);
    assert_int_equal(pool_free(between), 0);
    if (more)
        assert_int_equal(pool_free(more), 0);
    pause_and_resume();
    assert_int_equal(count[0], row->copies);
    assert_int_equal(copies[0][0].addr, before);
}

/* Each call that fails: the device runs, no pinned memory is left, and the next pause does all of it. */
ISOLATED_CASE(test_failures, .environment = VMM, .count = 6)
{
    static const CUresult results[] = {CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_UNKNOWN};
    const uintptr_t which = (uintptr_t)*state;
    struct context *context = start();
    uint64_t bytes;

    get(context, CHUNK + MIB);
    host.fails = 1 + (unsigned int)which / 2; /* two pieces of memory, and then two copies, of which one is tried */
    host.result = results[which % 2];
    assert_int_equal(pause_device(0, /* keep: */ true, PAUSE_NO_LIMIT, &bytes),
                     which < 4 && which % 2 == 0 ? -ENOMEM : -EIO);
    assert_true(host.calls >= host.fails);
    assert_false(device_is_paused(0));
    assert_int_equal(host.buffers, 0);
    assert_int_equal(mappings_count(true), 1);
    get(context, 1000);
    pause_and_resume();
}

PAUSE_CASE(test_no_host_memory)
{
    uint64_t bytes;

    get(context, 1000);
    for (int has_record = 0; has_record < 2; has_record++) { /* of what the thread pins */
        fake.no_memory = true;
        assert_int_equal(pause_check(0, /* keep: */ true), has_record ? 0 : -ENOMEM);
        assert_int_equal(pause_device(0, /* keep: */ true, PAUSE_NO_LIMIT, &bytes), -ENOMEM);
        assert_int_equal(mappings_count(true), 1);
        fake.no_memory = false;
        pause_and_resume();
    }
}

/* Memory stays that another thread still fills. */
PAUSE_CASE(test_fill_lasts)
{
    uint64_t bytes;

    get(context, 1000);
    atomic_fetch_add(&context->pool->shown.filling, 1);
    assert_int_equal(pause_device(0, /* keep: */ false, PAUSE_NO_LIMIT, &bytes), -EBUSY);
    assert_string_equal(pause_reason(), "a thread fills memory that it has freed (CUPOOL_FILL)");
    atomic_fetch_sub(&context->pool->shown.filling, 1);
    assert_int_equal(pause_device(0, /* keep: */ false, PAUSE_NO_LIMIT, &bytes), 0);
}

/* The wait for the copies is tried twice: they use the host memory. */
PAUSE_CASE(test_wait_fails)
{
    uint64_t bytes;

    get(context, 1000);
    fake_fail(FN(cuStreamSynchronize), CUDA_ERROR_UNKNOWN, 2);
    assert_int_equal(pause_device(0, /* keep: */ true, PAUSE_NO_LIMIT, &bytes), -EIO);
    fake_fail(FN(cuStreamSynchronize), CUDA_ERROR_UNKNOWN, 1);
    pause_and_resume();
}

/* Nothing is waited for: no stream, no copies. */
ISOLATED_CASE(test_no_stream, .environment = VMM)
{
    struct context *context = start();
    uint64_t bytes;

    get(context, 1000);
    fake_fail(FN(cuStreamCreate), CUDA_ERROR_UNKNOWN, 9);
    assert_int_equal(pause_device(0, /* keep: */ true, PAUSE_NO_LIMIT, &bytes), -EIO);
    assert_null(strstr(fake.log, "sync:s"));
    assert_false(device_is_paused(0));
}

/* A copy back that fails leaves the device paused, with its contents. */
PAUSE_CASE(test_copy_back_fails)
{
    uint64_t bytes;

    get(context, 1000);
    assert_int_equal(pause_device(0, /* keep: */ true, PAUSE_NO_LIMIT, &bytes), 0);
    host.fails = host.calls + 1;
    host.result = CUDA_ERROR_UNKNOWN;
    assert_int_equal(resume_device(0, &bytes), -EIO);
    assert_true(device_is_paused(0));
    assert_int_equal(host.buffers, 1);
    assert_int_equal(mappings_count(true), 0);
    assert_int_equal(resume_device(0, &bytes), 0);
    assert_int_equal(count[1], 1);
    assert_int_equal(host.buffers, 0);
    assert_int_equal(resume_device(0, &bytes), -EALREADY);
}

/* Memory that is away: nobody is given access to it, and when its addresses go the driver has had its memory before. */
ISOLATED_CASE(test_away, .environment = VMM)
{
    struct context *context = with_vmm();
    const uint64_t addr = segment(context), free = context->device_free;

    assert_int_equal(vmm_send_away(&fake.driver, vmm_find(addr)), CUDA_SUCCESS);
    vmm.calls = 0;
    vmm_reach(&fake.driver, 0, 2);
    assert_int_equal(vmm.calls, 0);
    segment_ops.free(context, BACKEND_VMM, addr, SEGMENT);
    assert_int_equal(mappings_count(false), 0);
    assert_int_equal(context->device_free, free);
}

static void device_comes(void)
{
    vmm_reach(&fake.driver, 0, 2);
}

/* A device comes while memory is about to be sent away, and the driver refuses that: the memory has stayed. */
ISOLATED_CASE(test_stays, .environment = VMM)
{
    struct context *context = with_vmm();
    const uint64_t addr = segment(context);

    vmm.before_unmap = device_comes;
    fake_fail(FN(cuMemUnmap), CUDA_ERROR_UNKNOWN, 1);
    assert_int_equal(vmm_send_away(&fake.driver, vmm_find(addr)), CUDA_ERROR_UNKNOWN);
    assert_true(mapping_at(addr)->access >> 2 & 1);
}

/* Memory that is exported stays where it is, since when does not matter. */
static void exported(void *arg)
{
    atomic_store((atomic_uint *)arg, 1);
}

ISOLATED_CASE(test_exported, .environment = VMM)
{
    struct context *context = start();
    uint64_t bytes;

    get(context, 1000);
    atomic_store(&ipc_table_blocks, 1);
    assert_int_equal(pause_check(0, /* keep: */ true), -EBUSY);
    assert_int_equal(pause_device(0, /* keep: */ true, PAUSE_NO_LIMIT, &bytes), -EBUSY);
    atomic_store(&ipc_table_blocks, 0);
    assert_int_equal(pause_check(0, /* keep: */ true), 0);
    assert_int_equal(pool_free(get(context, 4 * MIB)), 0); /* which goes first, on a stream that is made then */
    lived--;
    vmm.over = 9;
    fake_before(FN(cuStreamCreate), exported, &ipc_table_blocks);
    assert_int_equal(pause_device(0, /* keep: */ true, PAUSE_NO_LIMIT, &bytes), -EBUSY);
    assert_string_equal(pause_reason(), "memory is exported to another process or library");
    assert_int_equal(mappings_count(true), 1);
    atomic_store(&ipc_table_blocks, 0);
    fake_before(FN(cuStreamCreate), NULL, NULL);
    pause_and_resume();
}

/* NCCL may have registered the memory for a graph, of which it says nothing. */
ISOLATED_CASE(test_captured, .environment = VMM)
{
    static const struct real_nccl copy;
    struct context *context = start();
    const CUstream stream = fake_stream(0, 0);
    uint64_t bytes;

    get(context, 1000);
    fake.nccl = &copy;
    nccl_works();
    capture_begun(capture_begin(stream), stream, true);
    capture_check(stream, true, atomic_load(&capture_total));
    assert_int_equal(pause_device(0, /* keep: */ true, PAUSE_NO_LIMIT, &bytes), -EBUSY);
    assert_string_equal(pause_reason(), "NCCL may have registered memory for a graph");
    assert_int_equal(mappings_count(true), 1);
}

/* Idle memory that came while the device was paused makes room for what comes back. */
VMM_CASE(test_resume_needs_idle_memory)
{
    uint64_t bytes = 0;

    block(context, 1000);
    assert_int_equal(pause_device(0, /* keep: */ false, now() + SECOND_NS, &bytes), 0);
    assert_int_equal(pool_free(block(context, 3 * MIB)), 0);
    assert_int_equal(mappings_count(true), 1);
    fake_fail(FN(cuMemCreate), CUDA_ERROR_OUT_OF_MEMORY, 1);
    assert_int_equal(resume_device(0, &bytes), 0);
    assert_int_equal(bytes, SEGMENT);
}
