/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vmm.c - the exported functions of the driver's virtual memory management: physical memory and its mappings.
 * NCCL and PyTorch's expandable segments take memory this way, past any pool; this file writes it to the trace
 * (docs/trace.md).
 *
 * It is not a pool. Every call is passed on unchanged; only if the driver refuses physical memory or a mapping, idle
 * memory is given back and the call repeated, as in RETRY. This file keeps no state: readers of the trace, and direct.c
 * (CUPOOL_REGISTER=use), follow the mappings.
 *
 * With CUPOOL_VMM=1 the cache of context/vmm_kept.h is asked first. It serves calls without the driver, which then have
 * no event; when it makes one of these later, that has its event (vmm_kept.c).
 *
 * Locking: none. The event of a call that takes something has the time after the call, and the event of a call that
 * gives it up the time before, so the next owner of a handle or address comes later in the trace as well.
 */
#include <string.h>

#include "base/conf.h"
#include "base/process.h"
#include "clock.h"
#include "context/device_free.h"
#include "context/nccl_memory.h"
#include "context/vmm_kept.h"
#include "exports/export.h"
#include "exports/hazards.h"
#include "exports/retry.h"
#include "exports/vmm_served.h"
#include "nccl/direct.h"
#include "real/caller.h"
#include "real/real.h"
#include "report/unpooled.h"
#include "serve/serve.h"
#include "trace/json.h"
#include "trace/trace.h"

typedef unsigned long long ull;

/* A call with an event in the trace. */
struct call {
    uint64_t start; /* 0: it has no event */
    uint64_t ns;    /* its duration */
    uint64_t t;     /* the time of its event */
};

/* The caller, for an event. */
struct origin {
    const char *by;
    char at[160];
};

static struct call pin_begin(void)
{
    return (struct call){.start = trace_expected() && process_traces() ? now_ns() : 0};
}

/* True: write the event. taken: if the call succeeded, it has got something. */
static bool call_ended(struct call *call, bool taken, CUresult result)
{
    uint64_t now;

    if (!call->start)
        return false;
    now = now_ns();
    call->ns = now - call->start;
    call->t = taken ? now : call->start;
    if (taken && !result) /* a program that pools nothing is traced from here on */
        serve_begin();
    return true;
}

#define gave_up(call, result) call_ended(call, /* taken: */ false, result)
#define took(call, result)    call_ended(call, /* taken: */ true, result)

static struct origin origin_of(const void *caller)
{
    struct origin origin;
    enum caller kind;

    caller_name(caller, origin.at, sizeof(origin.at));
    json_clean(origin.at);
    kind = caller_of(caller);
    if (process_is_inside())
        origin.by = "cupool";
    else if (strncmp(origin.at, "libnccl", 7) == 0)
        origin.by = "nccl";
    else
        origin.by = kind == CALLER_INSIDE || kind == CALLER_TRANSFER ? "library" : "program";
    return origin;
}

/* Write the event of a call whose result is in `result`; all events end with duration and result. */
#define TELL(call, event, format, ...)                                                                                 \
    trace_frequent_at((call)->t, event, format ",\"us\":%llu.%llu,\"result\":%d", __VA_ARGS__, TRACE_US((call)->ns),   \
                      (int)result)
/* As TELL, with the caller. */
#define TELL_FROM(call, event, format, ...)                                                                            \
    do {                                                                                                               \
        const struct origin origin_ = origin_of(CALLER);                                                               \
        TELL(call, event, format ",\"by\":\"%s\",\"at\":\"%s\"", __VA_ARGS__, origin_.by, origin_.at);                 \
    } while (0)

/* The value that the driver wrote, if the call succeeded. */
#define GOT(pointer) (result ? 0 : (ull) * (pointer))

/* The cache, for what the caller takes; NULL: it is not kept. */
static struct vmm_cache *cache_for(const void *caller)
{
    return conf_get()->vmm.number && !caller_is_outside(caller_of(caller)) ? vmm_kept_cache() : NULL;
}

/* The bytes of a device that memory of this size takes. */
static size_t device_bytes(size_t size, const CUmemAllocationProp *properties)
{
    return properties && hazard_location_device(&properties->location) >= 0 ? size : 0;
}

/* True: make the call again, since the device that lacks memory has some now. It need not be the current one. */
static bool create_again(struct retry *retry, CUresult result, const CUmemAllocationProp *properties)
{
    const int device =
        result == CUDA_ERROR_OUT_OF_MEMORY && properties ? hazard_location_device(&properties->location) : -1;

    return device >= 0 ? retry_again_on_device(retry, result, device) : retry_again_outside(retry, result);
}

EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *properties,
                            unsigned long long flags)
{
    struct vmm_cache *cache = cache_for(CALLER);
    struct retry retry = retry_begin();
    struct vmm_key key;
    struct call call;
    CUresult result;
    uint64_t kept;

    if (cache && !vmm_kept_key(handle, properties, flags, &key))
        cache = NULL;
    if (cache && vmm_kept_serves() && vmm_cache_create(cache, vmm_kept_thread(), size, &key, &kept)) {
        *handle = kept;
        return CUDA_SUCCESS;
    }
    if (cache)
        vmm_cache_make_room(cache, key.id, size);
    retry.wanted = device_bytes(size, properties);
    call = pin_begin();
    do
        result = real_next(cuMemCreate)(handle, size, properties, flags);
    while (create_again(&retry, result, properties));
    if (!result && properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE)
        device_free_taken(size);
    if (!result && cache)
        vmm_cache_created(cache, *handle, size, &key);
    if (!result && serve_watches(CALLER) && properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE) {
        direct_created(*handle, size);
        unpooled_took(UNPOOLED_CREATE, size);
    } else if (!result && caller_of(CALLER) == CALLER_INSIDE) {
        nccl_works();
    }
    if (!took(&call, result))
        return result;
    if (properties && hazard_location_device(&properties->location) >= 0)
        TELL_FROM(&call, "mem_create", "\"d\":%d,\"h\":\"0x%llx\",\"n\":%zu",
                  hazard_location_device(&properties->location), GOT(handle), size);
    else /* host memory */
        TELL_FROM(&call, "mem_create", "\"h\":\"0x%llx\",\"n\":%zu", GOT(handle), size);
    return result;
}

EXPORT CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shared,
                                               CUmemAllocationHandleType type)
{
    struct call call = pin_begin();
    const CUresult result = real_next(cuMemImportFromShareableHandle)(handle, shared, type);

    if (!result && serve_watches(CALLER))
        policy_strict(POLICY_ALL, "memory of another process");
    if (took(&call, result))
        TELL_FROM(&call, "mem_import", "\"h\":\"0x%llx\"", GOT(handle));
    return result;
}

EXPORT CUresult cuMulticastCreate(CUmemGenericAllocationHandle *handle, const CUmulticastObjectProp *properties)
{
    struct call call = pin_begin();
    const CUresult result = real_next(cuMulticastCreate)(handle, properties);

    if (took(&call, result))
        TELL_FROM(&call, "multicast_create", "\"h\":\"0x%llx\",\"n\":%zu", GOT(handle),
                  properties ? properties->size : 0);
    return result;
}

EXPORT CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *ptr)
{
    struct vmm_cache *cache = vmm_kept_existing();
    struct call call;
    CUresult result;

    vmm_served_asked((uintptr_t)ptr);
    call = pin_begin();
    result = real_next(cuMemRetainAllocationHandle)(handle, ptr);
    if (!result && cache && caller_is_outside(caller_of(CALLER)))
        vmm_cache_forget_range(cache, (uintptr_t)ptr, 1); /* to export it, or for a multicast object */
    else if (!result && cache)
        vmm_cache_retained(cache, (uintptr_t)ptr, *handle);
    if (took(&call, result))
        TELL(&call, "mem_retain", "\"h\":\"0x%llx\",\"p\":\"0x%llx\"", GOT(handle), (ull)(uintptr_t)ptr);
    return result;
}

EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    struct vmm_cache *cache = vmm_kept_existing();
    struct call call;
    CUresult result;

    if (cache && vmm_cache_release(cache, vmm_kept_thread(), handle, vmm_kept_serves(), now_ns()))
        return CUDA_SUCCESS;
    call = pin_begin();
    direct_releases(handle);
    result = real_next(cuMemRelease)(handle);
    if (result && cache)
        vmm_cache_forget_handle(cache, handle);

    if (gave_up(&call, result))
        TELL(&call, "mem_release", "\"h\":\"0x%llx\"", (ull)handle);
    return result;
}

EXPORT CUresult cuMemAddressReserve(CUdeviceptr *ptr, size_t size, size_t alignment, CUdeviceptr addr,
                                    unsigned long long flags)
{
    struct vmm_cache *cache = cache_for(CALLER);
    struct call call;
    CUresult result;
    uint64_t kept;

    if (cache && addr) /* natively addresses that were freed can be reserved again */
        vmm_cache_settle_range(cache, addr, size);
    if (cache && !vmm_kept_range(ptr, size, addr, flags))
        cache = NULL;
    if (cache && vmm_kept_serves() && vmm_cache_reserve(cache, vmm_kept_thread(), size, alignment, &kept)) {
        *ptr = kept;
        return CUDA_SUCCESS;
    }
    call = pin_begin();
    result = real_next(cuMemAddressReserve)(ptr, size, alignment, addr, flags);
    if (!result && cache)
        vmm_cache_reserved(cache, *ptr, size, alignment);
    if (took(&call, result))
        TELL_FROM(&call, "address_reserve", "\"p\":\"0x%llx\",\"n\":%zu", GOT(ptr), size);
    return result;
}

EXPORT CUresult cuMemAddressFree(CUdeviceptr ptr, size_t size)
{
    struct vmm_cache *cache = vmm_kept_existing();
    struct call call;
    CUresult result;

    if (vmm_served_refuses(ptr))
        return CUDA_ERROR_INVALID_VALUE;
    if (cache && vmm_cache_unreserve(cache, vmm_kept_thread(), ptr, size, vmm_kept_serves(), now_ns()))
        return CUDA_SUCCESS;
    call = pin_begin();
    result = real_next(cuMemAddressFree)(ptr, size);
    if (gave_up(&call, result))
        TELL(&call, "address_free", "\"p\":\"0x%llx\",\"n\":%zu", (ull)ptr, size);
    return result;
}

EXPORT CUresult cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                         unsigned long long flags)
{
    struct vmm_cache *cache = vmm_kept_existing();
    struct retry retry = retry_begin_elsewhere();
    const bool whole = !offset && !flags;
    struct call call;
    CUresult result;

    if (cache && vmm_cache_map(cache, vmm_kept_thread(), ptr, size, handle, whole && vmm_kept_serves()))
        return CUDA_SUCCESS;
    call = pin_begin();
    do
        result = real_next(cuMemMap)(ptr, size, offset, handle, flags);
    while (retry_again_outside(&retry, result));
    if (!result && cache)
        vmm_cache_mapped(cache, ptr, size, handle, whole);
    if (!result)
        direct_mapped(ptr, size, handle);
    if (took(&call, result))
        TELL(&call, "mem_map", "\"p\":\"0x%llx\",\"n\":%zu,\"h\":\"0x%llx\",\"offset\":%zu", (ull)ptr, size,
             (ull)handle, offset);
    return result;
}

EXPORT CUresult cuMemUnmap(CUdeviceptr ptr, size_t size)
{
    struct vmm_cache *cache = vmm_kept_existing();
    struct call call;
    CUresult result;

    if (vmm_served_refuses(ptr))
        return CUDA_ERROR_INVALID_VALUE;
    /* Also if the call is deferred: the driver's comes at any time. */
    hazard_memory_goes(CALLER);
    if (cache && vmm_cache_unmap(cache, vmm_kept_thread(), ptr, size, vmm_kept_serves(), now_ns()))
        return CUDA_SUCCESS;
    direct_unmaps(ptr, size);
    call = pin_begin();
    result = real_next(cuMemUnmap)(ptr, size);
    direct_unmapped(ptr, size, /* done: */ !result);
    if (!result && cache)
        vmm_cache_unmapped(cache, ptr, size);

    if (gave_up(&call, result))
        TELL(&call, "mem_unmap", "\"p\":\"0x%llx\",\"n\":%zu", (ull)ptr, size);
    return result;
}
