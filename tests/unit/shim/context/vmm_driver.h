/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vmm_driver.h - the virtual memory calls of a driver for test_vmm_memory.c, test_vmm_shared.c and test_pause.c, over
 * fake_driver.h: it keeps count of what is reserved, made and mapped, and refuses what the driver would. Events are
 * over by number.
 *
 * Only these include it. Threads: a test's own.
 */
#ifndef CUPOOL_TESTS_SHIM_VMM_DRIVER_H
#define CUPOOL_TESTS_SHIM_VMM_DRIVER_H

#include "ready.h"

#define SEGMENT (2 * MIB)
#define SLOTS_M 72

static struct mapping {
    uint64_t addr, access; /* access: a bit for each device */
    size_t size;
    bool mapped;
} mappings[SLOTS_M];

static struct {
    unsigned int types, rdma;    /* of the memory that was made last */
    unsigned int refused_types;  /* these are not permitted */
    unsigned int made, released; /* handles */
    unsigned int calls;          /* of cuMemSetAccess */
    uint64_t no_way;             /* devices that cannot reach others */
    uint64_t next;
    bool unmapped_under_work;
    unsigned int recorded, over; /* events: how many, and how many are over */
    CUresult query;
    unsigned int device_without;
    void (*before_unmap)(void), (*on_unmap)(void);
} vmm;

static uint64_t event_at[FAKE_EVENTS];

static struct mapping *mapping_at(uint64_t addr)
{
    for (unsigned int i = 0; i < SLOTS_M; i++)
        if (mappings[i].size && mappings[i].addr == addr)
            return &mappings[i];
    return NULL;
}

static unsigned int mappings_count(bool mapped)
{
    unsigned int n = 0;

    for (unsigned int i = 0; i < SLOTS_M; i++)
        n += mappings[i].size && (mappings[i].mapped || !mapped);
    return n;
}

/* A call needs this. In a sweep the program goes on after a failure: there the call is refused otherwise. */
#define NEEDS(condition)                                                                                               \
    do {                                                                                                               \
        const bool fits_ = (condition);                                                                                \
        if (!fake_each)                                                                                                \
            assert_true(fits_);                                                                                        \
        else if (!fits_)                                                                                               \
            return CUDA_ERROR_INVALID_VALUE;                                                                           \
    } while (0)

static CUresult reserve(CUdeviceptr *ret, size_t size, size_t align, CUdeviceptr addr, unsigned long long flags)
{
    SCRIPTED(cuMemAddressReserve, "reserve:%zu", size);
    assert_int_equal(align, SEGMENT);
    for (unsigned int i = 0; i < SLOTS_M; i++)
        if (!mappings[i].size) {
            mappings[i] = (struct mapping){.addr = vmm.next, .size = size};
            *ret = vmm.next;
            vmm.next += size;
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult address_free(CUdeviceptr addr, size_t size)
{
    struct mapping *at = mapping_at(addr);

    SCRIPTED(cuMemAddressFree, "unreserve:%#llx,%zu", addr, size);
    NEEDS(at && at->size == size && !at->mapped);
    at->size = 0;
    return CUDA_SUCCESS;
}

static CUresult create(CUmemGenericAllocationHandle *ret, size_t size, const CUmemAllocationProp *properties,
                       unsigned long long flags)
{
    SCRIPTED(cuMemCreate, "create:%zu", size);
    if (properties->requestedHandleTypes & vmm.refused_types)
        return CUDA_ERROR_NOT_PERMITTED;
    vmm.types = properties->requestedHandleTypes;
    vmm.rdma = properties->allocFlags.gpuDirectRDMACapable;
    *ret = ++vmm.made;
    return CUDA_SUCCESS;
}

static CUresult release(CUmemGenericAllocationHandle handle)
{
    SCRIPTED(cuMemRelease, "release:%llu", handle);
    vmm.released++;
    return CUDA_SUCCESS;
}

static CUresult map(CUdeviceptr addr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                    unsigned long long flags)
{
    struct mapping *at = mapping_at(addr);

    SCRIPTED(cuMemMap, "map:%#llx,%zu,%llu", addr, size, handle);
    NEEDS(at && at->size == size && !at->mapped && !offset && (handle == vmm.made || fake_each));
    at->mapped = true;
    return CUDA_SUCCESS;
}

static CUresult unmap(CUdeviceptr addr, size_t size)
{
    struct mapping *at = mapping_at(addr);

    if (vmm.before_unmap)
        vmm.before_unmap();
    SCRIPTED(cuMemUnmap, "unmap:%#llx,%zu", addr, size);
    NEEDS(at && at->size == size && at->mapped);
    at->mapped = false;
    at->access = 0;
    if (vmm.on_unmap)
        vmm.on_unmap();
    return CUDA_SUCCESS;
}

static CUresult set_access(CUdeviceptr addr, size_t size, const CUmemAccessDesc *access, size_t count)
{
    struct mapping *at = mapping_at(addr);

    vmm.calls++;
    SCRIPTED(cuMemSetAccess, "access:%#llx,%zu,%zu", addr, size, count);
    NEEDS(at && at->size == size && at->mapped);
    for (size_t i = 0; i < count; i++)
        if (vmm.no_way >> access[i].location.id & 1)
            return CUDA_ERROR_INVALID_DEVICE;
    for (size_t i = 0; i < count; i++)
        at->access |= UINT64_C(1) << access[i].location.id;
    return CUDA_SUCCESS;
}

static CUresult event_record(CUevent event, CUstream stream)
{
    SCRIPTED(cuEventRecord, "record:s%d", fake_stream_number(stream));
    event_at[(struct fake_event *)event - fake.events] = ++vmm.recorded;
    return CUDA_SUCCESS;
}

static CUresult event_query(CUevent event)
{
    SCRIPTED(cuEventQuery, "?cuEventQuery");
    return event_at[(struct fake_event *)event - fake.events] > vmm.over ? CUDA_ERROR_NOT_READY : vmm.query;
}

static CUresult attribute(int *value, CUdevice_attribute which, CUdevice device)
{
    *value =
        which != CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED || (unsigned int)device != vmm.device_without;
    return CUDA_SUCCESS;
}

static void driver_ready(void)
{
    fake_start();
    fake.devices = 3;
    vmm.next = 0x600000000000;
    vmm.device_without = 9;
    fake.driver.cuMemAddressReserve = reserve;
    fake.driver.cuMemAddressFree = address_free;
    fake.driver.cuMemCreate = create;
    fake.driver.cuMemRelease = release;
    fake.driver.cuMemMap = map;
    fake.driver.cuMemUnmap = unmap;
    fake.driver.cuMemSetAccess = set_access;
    fake.driver.cuEventRecord = event_record;
    fake.driver.cuEventQuery = event_query;
    fake.driver.cuDeviceGetAttribute = attribute;
}

static inline struct context *with_vmm(void)
{
    struct context *context;

    driver_ready();
    context = pooled(0);
    assert_int_equal(pool_kind_get(context->pool), BACKEND_VMM);
    fake_log();
    return context;
}

#define VMM_CASE(function) CONTEXT_CASE(function, with_vmm, .environment = VMM)

static inline uint64_t segment(struct context *context)
{
    uint64_t addr = 0;

    assert_int_equal(segment_ops.alloc(context, BACKEND_VMM, SEGMENT, &addr), 0);
    return addr;
}

static inline void go(struct context *context, uint64_t addr)
{
    segment_ops.free(context, BACKEND_VMM, addr, SEGMENT);
}

#endif
