/* SPDX-License-Identifier: Apache-2.0 */
/* test_sweep_virtual.c - scenes (sweep_scenes.h) of virtual memory: segments, access by other devices, pauses, and the
 * program's own that is kept. */
#include "context/vmm_kept.h"
#include "scenes.h"
#include "vmm_driver.h"

#define VMM ORDERED QUIET " CUPOOL_BACKEND=vmm"

static char *pinned; /* host memory of a pause, of which the address is not said */
static unsigned int buffers;

static CUresult host_alloc(void **ptr, size_t size, unsigned int flags)
{
    SCRIPTED(cuMemHostAlloc, "host_alloc:%zu,%u", size, flags);
    free(pinned);
    pinned = malloc(size);
    *ptr = pinned;
    buffers++;
    return CUDA_SUCCESS;
}

static CUresult host_free(void *ptr)
{
    SCRIPTED(cuMemFreeHost, "host_free");
    buffers--;
    return CUDA_SUCCESS;
}

static CUresult to_host(void *to, CUdeviceptr from, size_t size, CUstream stream)
{
    SCRIPTED(cuMemcpyDtoHAsync_v2, "out:%td,%#llx,%zu,s%d", (char *)to - pinned, from, size,
             fake_stream_number(stream));
    return CUDA_SUCCESS;
}

static CUresult to_device(CUdeviceptr to, const void *from, size_t size, CUstream stream)
{
    SCRIPTED(cuMemcpyHtoDAsync_v2, "in:%td,%#llx,%zu,s%d", (const char *)from - pinned, to, size,
             fake_stream_number(stream));
    return CUDA_SUCCESS;
}

static void work_moves(void *arg)
{
    vmm.over++;
}

static struct context *begin(void)
{
    driver_ready();
    fake.driver.cuMemHostAlloc = host_alloc;
    fake.driver.cuMemFreeHost = host_free;
    fake.driver.cuMemcpyDtoHAsync_v2 = to_host;
    fake.driver.cuMemcpyHtoDAsync_v2 = to_device;
    fake.relax = work_moves;
    return known(0);
}

/* As tell_driver. */
static void tell_mapped(void)
{
    uint64_t access = 0;

    for (unsigned int i = 0; i < SLOTS_M; i++)
        access += mappings[i].mapped ? mappings[i].access * (i + 1) : 0;
    sweep_say("mapped=%u,%u made=%u,%u access=%llu buffers=%u", mappings_count(true), mappings_count(false), vmm.made,
              vmm.released, (unsigned long long)access, buffers);
    tell_driver();
}

/* --- segments --- */

SCENE(vmm_comes_and_goes, VMM)
{
    struct context *context = begin();
    uint64_t one = get(3 * MIB), two = get(5 * MIB), three = get(KIB);
    size_t arriving = 0;

    holds_context = true;
    put(one);
    put(two);
    sweep_say("trim=%zu", pool_trim(context->pool, "test"));
    sweep_say("collected=%d", segment_ops.collected(context, &arriving));
    sweep_say("arriving=%zu outstanding=%zu", arriving, arrivals_outstanding(context));
    vmm.over = 1;
    context_decay_all(0);
    sweep_say("decay");
    vmm.over = 9;
    device_collect(0);
    sweep_say("collect");
    put(three);
    sweep_say("release=%llu", (unsigned long long)context_release(0, "test"));
    get(KIB);
    tell(0);
    tell_mapped();
}

SCENE(vmm_refused, VMM)
{
    struct context *context = begin();
    uint64_t one = get(3 * MIB), two = get(5 * MIB);

    holds_context = true;
    put(one);
    put(two);
    fake_fail(FN(cuMemCreate), CUDA_ERROR_OUT_OF_MEMORY, 1);
    get(7 * MIB);
    vmm.refused_types = 9;
    get(9 * MIB);
    segment_ops.reclaim(context);
    sweep_say("reclaim");
    tell(0);
    tell_mapped();
}

SCENE(vmm_begins, VMM)
{
    driver_ready();
    vmm.device_without = 1;
    get(MIB);
    in(1);
    get(MIB);
    in(0);
    tell(0);
    tell(1);
    tell_mapped();
}

SCENE(vmm_reached, VMM)
{
    begin();
    get(MIB);
    in(1);
    get(3 * MIB);
    in(0);
    vmm_reach(&fake.driver, 0, 2);
    vmm.no_way = 4;
    vmm_reach_anew(&fake.driver, 1, 2);
    sweep_say("reaches=%d,%d,%d", vmm_reaches(0, 1), vmm_reaches(0, 2), vmm_reaches(1, 2));
    get(5 * MIB);
    tell(0);
    tell(1);
    tell_mapped();
}

SCENE(vmm_ends, VMM)
{
    const uint64_t one = (begin(), get(3 * MIB)), two = get(5 * MIB);

    put(one);
    sweep_say("release=%llu", (unsigned long long)context_release(0, "test"));
    put(two);
    context_gone(context_leaving(fake_context(0)), true);
    sweep_say("gone");
    fake.contexts[0].id = 66;
    get(MIB);
    tell(0);
    tell_mapped();
}

/* --- pauses --- */

static void pauses(bool keep)
{
    uint64_t one = get(3 * MIB), two = get(5 * MIB), three, bytes = 0;

    get(40 * KIB);
    three = get(120 * KIB);
    get(40 * KIB);
    put(one);
    put(three);
    fake.contexts[0].launched = fake.contexts[0].over = 2;
    sweep_say("check=%d", pause_check(0, keep));
    sweep_say("pause=%d", pause_device(0, keep, now() + SECOND_NS, &bytes));
    sweep_say("bytes=%llu why=%.20s paused=%d", (unsigned long long)bytes, *pause_reason() ? "said" : "",
              device_is_paused(0));
    get(MIB);
    put(two);
    sweep_say("pause=%d", pause_device(0, keep, PAUSE_NO_LIMIT, &bytes));
    sweep_say("resume=%d", resume_device(0, &bytes));
    sweep_say("bytes=%llu paused=%d", (unsigned long long)bytes, device_is_paused(0));
    sweep_say("resume=%d", resume_device(0, &bytes));
    get(5 * MIB);
    tell(0);
    tell_mapped();
}

SCENE(pauses_and_keeps, VMM)
{
    begin();
    pauses(true);
}

SCENE(pauses_and_drops, VMM)
{
    begin();
    pauses(false);
}

SCENE(ends_paused, VMM)
{
    uint64_t bytes = 0;

    begin();
    get(3 * MIB);
    sweep_say("pause=%d", pause_device(0, true, PAUSE_NO_LIMIT, &bytes));
    context_gone(context_leaving(fake_context(0)), true);
    sweep_say("gone paused=%d", device_is_paused(0));
    sweep_say("resume=%d", resume_device(0, &bytes));
    tell(0);
    tell_mapped();
}

/* --- the program's own --- */

static CUresult next_reserve(CUdeviceptr *ptr, size_t size, size_t alignment, CUdeviceptr addr,
                             unsigned long long flags)
{
    return reserve(ptr, size, 2 * MIB, addr, flags);
}

static void program_begins(void)
{
    begin();

    fake.next_of[REAL_cuMemAddressReserve] = (void *)next_reserve;
    fake.next_of[REAL_cuMemAddressFree] = (void *)address_free;
    fake.next_of[REAL_cuMemCreate] = (void *)create;
    fake.next_of[REAL_cuMemMap] = (void *)map;
    fake.next_of[REAL_cuMemUnmap] = (void *)unmap;
    fake.next_of[REAL_cuMemRelease] = (void *)release;
    fake.next_of[REAL_cuMemSetAccess] = (void *)set_access;
}

static const CUmemAllocationProp usual = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                          .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
static const CUmemAccessDesc own = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
                                    .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};

static CUresult buffer_get(CUdeviceptr *ret, CUmemGenericAllocationHandle *ret_handle, size_t size)
{
    CUresult results[4];

    *ret = *ret_handle = 0;
    results[0] = cuMemAddressReserve(ret, size, 0, 0, 0);
    results[1] = cuMemCreate(ret_handle, size, &usual, 0);
    results[2] = *ret && *ret_handle ? cuMemMap(*ret, size, 0, *ret_handle, 0) : CUDA_ERROR_NOT_READY;
    results[3] = results[2] ? CUDA_ERROR_NOT_READY : cuMemSetAccess(*ret, size, &own, 1);
    sweep_say("buffer=%d,%d,%d,%d,%#llx,%llu", (int)results[0], (int)results[1], (int)results[2], (int)results[3], *ret,
              *ret_handle);
    return results[2];
}

static void buffer_put(CUdeviceptr ptr, CUmemGenericAllocationHandle handle, size_t size)
{
    sweep_say("unmap=%d", (int)cuMemUnmap(ptr, size));
    sweep_say("release=%d", (int)cuMemRelease(handle));
    sweep_say("unreserve=%d", (int)cuMemAddressFree(ptr, size));
}

SCENE(vmm_kept_again, ORDERED QUIET " CUPOOL_VMM=1")
{
    CUmemGenericAllocationHandle handle;
    CUdeviceptr ptr;

    program_begins();
    for (unsigned int i = 0; i < 2; i++)
        if (!buffer_get(&ptr, &handle, (4 + 2 * i) * MIB))
            buffer_put(ptr, handle, (4 + 2 * i) * MIB);
    if (!buffer_get(&ptr, &handle, 4 * MIB))
        sweep_say("unmap=%d", (int)cuMemUnmap(ptr, 4 * MIB));
    sweep_say("kept=%llu", (unsigned long long)vmm_kept_bytes(0));
    vmm_kept_tick(now() + SECOND_NS / 2);
    sweep_say("tick, due in %llu", (unsigned long long)(vmm_kept_due(0) - now()) / 1000);
    vmm_kept_tick(now() + 20 * SECOND_NS);
    sweep_say("tick");
    sweep_say("trim=%llu", (unsigned long long)vmm_kept_trim(0));
    tell_mapped();
}

SCENE(vmm_kept_ends, ORDERED QUIET " CUPOOL_VMM=1")
{
    CUmemGenericAllocationHandle handle;
    CUdeviceptr ptr;

    program_begins();
    if (!buffer_get(&ptr, &handle, 4 * MIB))
        buffer_put(ptr, handle, 4 * MIB);
    atomic_store(&capture_count, 1);
    if (!buffer_get(&ptr, &handle, 4 * MIB))
        buffer_put(ptr, handle, 4 * MIB);
    atomic_store(&capture_count, 0);
    vmm_kept_context_ends();
    sweep_say("ends");
    if (!buffer_get(&ptr, &handle, 4 * MIB))
        buffer_put(ptr, handle, 4 * MIB);
    sweep_say("yield=%llu", (unsigned long long)device_yield(0, now() + MS));
    tell_mapped();
}
