/* SPDX-License-Identifier: Apache-2.0 */
/* test_sweep_exports.c - the exported functions of IPC handles, virtual memory and pinned memory, and the decisions in
 * shim/serve/ for them: each answer of what is below them differs once; the rows in sweep_exports.inc say what follows.
 * test_exports.c and test_refused.c say what is right. */
#include "sweep_exports_fake.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static void begin(void)
{
    conf.ipc.number = conf.vmm.number = conf.host_pool.number = 1;
    conf.decay.number = 10;
    driver.cuCtxGetCurrent = get_current;
    cache_serves = true;
}

/* --- virtual memory --- */

static void tell_calls(void)
{
    CUmemAllocationProp of_device = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 1}},
                        of_host = {.location = {.type = CU_MEM_LOCATION_TYPE_HOST, .id = -1}};
    CUmulticastObjectProp object_of = {.size = 4096};
    CUmemGenericAllocationHandle handle = 5;
    CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    CUmemLocation location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 1};
    CUarrayMapInfo arrays[2] = {{.memHandleType = CU_MEM_HANDLE_TYPE_GENERIC}};
    CUdeviceptr ptr = SEGMENT;
    unsigned long long flags = 9;

    sweep_say(" create %d", SWEPT(cuMemCreate(&handle, 4096, &of_device, 0)));
    sweep_say(" %llx", (ull)handle);
    sweep_say(" create %d", SWEPT(cuMemCreate(&handle, 4096, &of_host, 1)));
    sweep_say(" import %d", SWEPT(cuMemImportFromShareableHandle(&handle, NULL, 0)));
    sweep_say(" multicast %d", SWEPT(cuMulticastCreate(&handle, &object_of)));
    sweep_say(" %d", SWEPT(cuMulticastCreate(&handle, NULL)));
    sweep_say(" reserve %d", SWEPT(cuMemAddressReserve(&ptr, 8192, 512, 0, 0)));
    sweep_say(" %d", SWEPT(cuMemAddressReserve(&ptr, 8192, 512, SEGMENT, 0)));
    sweep_say(" %llx", (ull)ptr);
    sweep_say(" map %d", SWEPT(cuMemMap(SEGMENT, 4096, 0, handle, 0)));
    sweep_say(" %d", SWEPT(cuMemMap(SEGMENT, 4096, 512, handle, 0)));
    sweep_say(" %d", SWEPT(cuMemMap(SEGMENT, 4096, 0, handle, 1)));
    sweep_say(" access %d", SWEPT(vmm_served_cuMemSetAccess(SEGMENT, 4096, &access, 1)));
    sweep_say(" get %d", SWEPT(cuMemGetAccess(&flags, &location, SEGMENT)));
    sweep_say(" %llu", flags);
    sweep_say(" %d", SWEPT(cuMemGetAccess(NULL, &location, SEGMENT)));
    sweep_say(" %d", SWEPT(cuMemGetAccess(&flags, NULL, SEGMENT)));
    sweep_say(" properties %d", SWEPT(cuMemGetAllocationPropertiesFromHandle(&of_host, 5)));
    sweep_say(" retain %d", SWEPT(cuMemRetainAllocationHandle(&handle, (void *)SEGMENT)));
    sweep_say(" bind %d", SWEPT(cuMulticastBindMem(1, 0, 2, 0, 4096, 0)));
    sweep_say(" %d", SWEPT(cuMulticastBindMem_v2(1, 0, 0, 2, 0, 4096, 0)));
    sweep_say(" %d", SWEPT(cuMulticastBindAddr(1, 0, SEGMENT, 4096, 0)));
    sweep_say(" %d", SWEPT(cuMulticastBindAddr_v2(1, 0, 0, SEGMENT, 4096, 0)));
    arrays[0].memHandle.memHandle = 6;
    sweep_say(" arrays %d", SWEPT(cuMemMapArrayAsync(arrays, 2, NULL)));
    sweep_say(" %d", SWEPT(cuMemMapArrayAsync_ptsz(NULL, 2, NULL)));
    sweep_say(" unmap %d", SWEPT(cuMemUnmap(SEGMENT, 4096)));
    sweep_say(" free %d", SWEPT(cuMemAddressFree(SEGMENT, 8192)));
    sweep_say(" release %d", SWEPT(cuMemRelease(5)));
}

static void tell_kept(void)
{
    begin();
    tell_calls();
}

static void tell_not_kept(void)
{
    begin();
    cache_serves = false;
    object = "libnccl.so.2";
    tell_calls();
}

static void tell_without_cache(void)
{
    begin();
    conf.vmm.number = 0;
    cache_is_none = true;
    tell_calls();
}

static void tell_of_the_pool(void)
{
    begin();
    memory_is_pooled = true;
    atomic_store(&ipc_import_blocks, 1);
    tell_calls();
}

static void tell_inside(void)
{
    begin();
    cache_serves = false;
    process_depth = 1;
    tell_calls();
}

/* --- handles --- */

static void tell_handles(void)
{
    CUipcMemHandle handle = {{1}};
    CUdeviceptr ptr = 0;
    size_t size = 0;

    for (unsigned int i = 0; i < 3; i++) {
        sweep_say(" get %d", SWEPT(cuIpcGetMemHandle(&handle, SEGMENT + (i % 2) * 1024 + (i / 2) * 4)));
        sweep_say(" open %d", SWEPT(cuIpcOpenMemHandle(&ptr, handle, i)));
        sweep_say(" %d", SWEPT(cuIpcOpenMemHandle_v2(&ptr, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)));
        sweep_say(" %llx", (ull)ptr);
        sweep_say(" close %d", SWEPT(cuIpcCloseMemHandle(SEGMENT)));
        sweep_say(" export %d", SWEPT(serve_ipc_export(SEGMENT + i * 4, &handle)));
        sweep_say(" import %lld", (long long)SWEPT(serve_ipc_import(&handle, &size)));
    }
    sweep_say(" none %d", SWEPT(cuIpcGetMemHandle(NULL, SEGMENT)));
}

static void tell_tickets(void)
{
    begin();
    memory_is_pooled = tickets = handle_is_ticket = true;
    guard_mode = 1;
    tell_handles();
}

static void tell_drivers_handles(void)
{
    begin();
    memory_is_pooled = true;
    tell_handles();
}

static void tell_no_pool(void)
{
    begin();
    atomic_store(&ipc_import_blocks, 1);
    tell_handles();
}

static void tell_no_tickets(void)
{
    begin();
    conf.ipc.number = 0;
    memory_is_pooled = handle_is_ticket = true;
    process_state = PROCESS_NEW;
    tell_handles();
}

/* --- pinned memory --- */

static void tell_requests(void)
{
    static const uint64_t times[] = {0, 1, 5000000000};
    uint64_t base = 0;
    void *ptr = NULL;
    size_t size = 0;

    for (unsigned int flags = 0; flags < 9; flags++) {
        ptr = NULL;
        sweep_say(" alloc %d", SWEPT(cuMemHostAlloc(&ptr, 4096, flags)));
        sweep_say(" %p", ptr);
    }
    sweep_say(" %d", SWEPT(cuMemHostAlloc(NULL, 4096, 0)));
    sweep_say(" none %d", SWEPT(cuMemAllocHost_v2(&ptr, 0)));
    sweep_say(" plain %d", SWEPT(cuMemAllocHost_v2(&ptr, 64)));
    sweep_say(" %d", SWEPT(cuMemAllocHost_v2(NULL, 64)));
    sweep_say(" runtime %d", SWEPT(cudaMallocHost(&ptr, 64)));
    sweep_say(" %d", SWEPT(cudaHostAlloc(&ptr, 64, 0)));
    sweep_say(" free %d", SWEPT(cuMemFreeHost((void *)0x444)));
    sweep_say(" range %d", SWEPT(serve_host_range(0x444, &base, &size)));
    sweep_say(" %llx %zu", (ull)base, size);
    SWEPT_VOID(serve_host_wanted());
    for (unsigned int i = 0; i < COUNT(times); i++) {
        sweep_say(" due %llu", (ull)SWEPT(serve_host_due(times[i])));
        SWEPT_VOID(serve_host_tick(times[i]));
    }
    conf.decay.number = 0;
    SWEPT_VOID(serve_host_tick(UINT64_C(9000000000)));
    sweep_say(" due %llu", (ull)SWEPT(serve_host_due(0)));
    conf.decay.number = UINT64_MAX;
    sweep_say(" due %llu", (ull)SWEPT(serve_host_due(0)));
}

static void tell_pinned(void)
{
    begin();
    tell_requests();
}

static void tell_pinned_first(void)
{
    begin();
    process_state = PROCESS_NEW;
    host_is_none = true;
    conf.host_limit.number = 77;
    tell_requests();
}

static void tell_pinned_off(void)
{
    begin();
    conf.host_pool.number = 0;
    no_driver = host_is_none = true;
    tell_requests();
}

UNIT_CASE(test_sweep)
{
    static const struct sweep_story stories[] = {{"kept", tell_kept, SWEEP_CALLS},
                                                 {"not kept", tell_not_kept, SWEEP_CALLS},
                                                 {"without a cache", tell_without_cache, SWEEP_CALLS},
                                                 {"of the pool", tell_of_the_pool, SWEEP_CALLS},
                                                 {"inside", tell_inside, SWEEP_CALLS},
                                                 {"tickets", tell_tickets, SWEEP_CALLS},
                                                 {"the driver's handles", tell_drivers_handles, SWEEP_CALLS},
                                                 {"no pool", tell_no_pool, SWEEP_CALLS},
                                                 {"no tickets", tell_no_tickets, SWEEP_CALLS},
                                                 {"pinned", tell_pinned, SWEEP_CALLS},
                                                 {"pinned at first", tell_pinned_first, SWEEP_CALLS},
                                                 {"not pinned", tell_pinned_off, SWEEP_CALLS}};

    sweep_test("shim/exports/sweep_exports", stories, COUNT(stories));
}
