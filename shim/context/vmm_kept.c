/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vmm_kept.c - see vmm_kept.h.
 *
 * The calls here are those that the program has made before and the cache has deferred, so they have no result for the
 * program any more: what the driver refuses twice is lost, with a line in the log.
 *
 * Locking: none of its own; the cache is made once.
 */
#include "context/vmm_kept.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "base/conf.h"
#include "base/log.h"
#include "base/process.h"
#include "clock.h"
#include "context/arrivals.h"
#include "context/capture_gate.h"
#include "context/enter.h"
#include "context/events.h"
#include "context/limits.h"
#include "real/real.h"
#include "trace/trace.h"

typedef unsigned long long ull;

/* The age in nanoseconds at which a buffer that was given up in part is settled by the background thread. */
#define PARTIAL_NS 200000000u

static struct {
    _Atomic(struct vmm_cache *) cache;
    pthread_once_t once;
    _Atomic(uint64_t) tick_at; /* 0: nothing has been given up yet */
} kept = {.once = PTHREAD_ONCE_INIT};

/* NOLINTNEXTLINE(misc-redundant-expression): so they are meant to be */
_Static_assert(VMM_DEVICES == DEVICES_MAX && VMM_ALL_DEVICES == CONTEXT_ALL, "devices have the same numbers");

/* Make a call of the driver, twice if need be, in relaxed capture mode, and write its event. A library that has patched
 * the driver's function (UCX) may ask about the address in it, on this thread, so our hooks are passed through. */
#define CALL(call, event, format, ...)                                                                                 \
    __extension__({                                                                                                    \
        const struct real_driver *driver = real_driver_get();                                                          \
        CUstreamCaptureMode mode;                                                                                      \
        const uint64_t start = now_ns();                                                                               \
        bool relaxed;                                                                                                  \
        uint64_t ns;                                                                                                   \
        CUresult result;                                                                                               \
                                                                                                                       \
        process_bypass_begin();                                                                                        \
        relaxed = capture_mode_relax(driver, &mode);                                                                   \
        result = driver->call;                                                                                         \
        if (result) /* tried again, because the memory would be lost */                                                \
            result = driver->call;                                                                                     \
        capture_mode_restore(driver, relaxed, mode);                                                                   \
        process_bypass_end();                                                                                          \
        ns = now_ns() - start;                                                                                         \
        if (process_traces())                                                                                          \
            trace_frequent_at(start, event, format ",\"us\":%llu.%llu,\"result\":%d", __VA_ARGS__, TRACE_US(ns),       \
                              (int)result);                                                                            \
        result;                                                                                                        \
    })

static int report(CUresult result, const char *what, size_t size, uint64_t at)
{
    if (result && result != CUDA_ERROR_DEINITIALIZED)
        log_once(LOG_WARN, "kept virtual memory: the driver refuses to %s (error %d; %zu bytes, %#llx)", what,
                 (int)result, size, (ull)at);
    return (int)result;
}

static int unmap(void *arg, uint64_t addr, size_t size)
{
    (void)arg;
    return report(CALL(cuMemUnmap(addr, size), "mem_unmap", "\"p\":\"0x%llx\",\"n\":%zu", (ull)addr, size), "unmap it",
                  size, addr);
}

static int release(void *arg, uint64_t handle)
{
    (void)arg;
    return report(CALL(cuMemRelease(handle), "mem_release", "\"h\":\"0x%llx\"", (ull)handle), "take its handle back", 0,
                  handle);
}

static int unreserve(void *arg, uint64_t addr, size_t size)
{
    (void)arg;
    return report(CALL(cuMemAddressFree(addr, size), "address_free", "\"p\":\"0x%llx\",\"n\":%zu", (ull)addr, size),
                  "free its addresses", size, addr);
}

static int take_access(void *arg, uint64_t addr, size_t size, const struct vmm_access *access)
{
    const struct real_driver *driver = real_driver_get();
    const CUmemAccessDesc none = {.location = {.type = (CUmemLocationType)access->location, .id = (int)access->id},
                                  .flags = CU_MEM_ACCESS_FLAGS_PROT_NONE};

    (void)arg;
    return report(driver->cuMemSetAccess ? driver->cuMemSetAccess(addr, size, &none, 1) : CUDA_ERROR_NOT_SUPPORTED,
                  "take access back", size, addr);
}

static void begins(void *arg, unsigned int device)
{
    (void)arg;
    if (!atomic_load(&kept.tick_at))
        atomic_store(&kept.tick_at, now_ns() + PARTIAL_NS);
    context_events.kept((int)device);
}

static void returned(void *arg, unsigned int device, uint64_t addr, size_t size)
{
    (void)arg;
    (void)device;
    (void)addr;
    (void)size;
    context_arrived();
}

static const struct vmm_ops ops = {.unmap = unmap,
                                   .release = release,
                                   .unreserve = unreserve,
                                   .revoke = take_access,
                                   .begins = begins,
                                   .returned = returned};

static bool is_on(void)
{
    const struct conf *conf = conf_get();

    return conf->vmm.number && process_hooks_driver();
}

/* Why CUPOOL_VMM=1 has no effect; NULL: it has. */
static const char *hindrance(void)
{
    const struct conf *conf = conf_get();
    const struct real_driver *driver = real_driver_get();

    if (conf->fill.number != FILL_OFF)
        return "CUPOOL_FILL sets the contents of memory";
    if (conf->debug.number != DEBUG_OFF)
        return "CUPOOL_DEBUG is to find accesses to memory that is gone";
    if (conf->registration.number == REGISTER_USE)
        return "CUPOOL_REGISTER=use follows the program's mappings";
    if (!conf->decay.number)
        return "CUPOOL_DECAY=0 keeps nothing";
    return driver->cuMemUnmap && driver->cuMemRelease && driver->cuMemAddressFree ? NULL : "the driver lacks the calls";
}

static void make(void)
{
    const char *why = hindrance();
    struct vmm_cache *cache = NULL;

    if (why)
        log_write(LOG_WARN, "CUPOOL_VMM=1 has no effect: %s", why);
    else if (!vmm_cache_new(&ops, NULL, BOUND_MIN, &cache))
        atomic_store_explicit(&kept.cache, cache, memory_order_release);
}

/* Inside a host function the driver refuses every call: the program's, and those that the cache would make for it. */
static bool is_answered(void)
{
    CUcontext ignored;

    return real_driver_get()->cuCtxGetCurrent(&ignored) != CUDA_ERROR_NOT_PERMITTED;
}

struct vmm_cache *vmm_kept_existing(void)
{
    struct vmm_cache *cache = process_is_passive() ? NULL : atomic_load_explicit(&kept.cache, memory_order_acquire);

    return cache && is_answered() ? cache : NULL;
}

struct vmm_cache *vmm_kept_cache(void)
{
    if (!is_on() || process_is_passive() || !real_driver_get())
        return NULL;
    if (process_state_get() == PROCESS_NEW)
        process_start();
    pthread_once(&kept.once, make);
    return vmm_kept_existing();
}

bool vmm_kept_serves(void)
{
    CUcontext ignored;

    return process_serves() && !capture_active() && real_driver_get()->cuCtxGetCurrent(&ignored) == CUDA_SUCCESS;
}

const void *vmm_kept_thread(void)
{
    static __thread char here __attribute__((tls_model("initial-exec")));

    return &here;
}

bool vmm_kept_range(const CUdeviceptr *to, size_t size, CUdeviceptr at, unsigned long long flags)
{
    return to && size && !at && !flags;
}

bool vmm_kept_key(const CUmemGenericAllocationHandle *to, const CUmemAllocationProp *properties,
                  unsigned long long flags, struct vmm_key *ret_key)
{
    static const CUmemAllocationProp none;

    if (!to || !properties || flags || properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
        properties->win32HandleMetaData ||
        memcmp(properties->allocFlags.reserved, none.allocFlags.reserved, sizeof(none.allocFlags.reserved)) != 0)
        return false;
    *ret_key = (struct vmm_key){.type = properties->type,
                                .handle_types = properties->requestedHandleTypes,
                                .location = properties->location.type,
                                .id = (uint32_t)properties->location.id,
                                .flags = properties->allocFlags.compressionType |
                                         (uint32_t)properties->allocFlags.gpuDirectRDMACapable << 8 |
                                         (uint32_t)properties->allocFlags.usage << 16};
    return true;
}

bool vmm_kept_access(const CUmemAccessDesc *access, size_t count, struct vmm_access ret_access[VMM_ACCESS_MAX])
{
    for (size_t i = 0; access && i < count && i < VMM_ACCESS_MAX; i++)
        ret_access[i] = (struct vmm_access){
            .location = access[i].location.type, .id = (uint32_t)access[i].location.id, .flags = access[i].flags};
    return access && count <= VMM_ACCESS_MAX;
}

uint64_t vmm_kept_trim(int device)
{
    struct vmm_cache *cache = atomic_load_explicit(&kept.cache, memory_order_acquire);
    uint64_t bytes;

    if (!cache || !process_serves())
        return 0;
    bytes = vmm_cache_trim(cache, device, UINT64_MAX);
    vmm_cache_wait(cache);
    return bytes;
}

void vmm_kept_context_ends(void)
{
    struct vmm_cache *cache = vmm_kept_existing();

    if (cache && process_serves())
        vmm_cache_forget_all(cache);
}

uint64_t vmm_kept_bytes(int device)
{
    struct vmm_cache *cache = atomic_load_explicit(&kept.cache, memory_order_acquire);

    return cache ? vmm_cache_kept(cache, device) : 0;
}

void vmm_kept_wait(void)
{
    struct vmm_cache *cache = vmm_kept_existing();

    if (cache)
        vmm_cache_wait(cache);
}

bool vmm_kept_stats(struct vmm_stats *ret_stats)
{
    struct vmm_cache *cache = atomic_load_explicit(&kept.cache, memory_order_acquire);

    if (cache)
        vmm_cache_stats_get(cache, ret_stats);
    return cache;
}

uint64_t vmm_kept_due(uint64_t now)
{
    const uint64_t at = atomic_load(&kept.tick_at);

    (void)now;
    return at ? at : UINT64_MAX;
}

void vmm_kept_tick(uint64_t now)
{
    const uint64_t seconds = conf_get()->decay.number;
    struct vmm_cache *cache = atomic_load_explicit(&kept.cache, memory_order_acquire);

    if (now < vmm_kept_due(now))
        return;
    if (!capture_active_now()) {
        vmm_cache_settle_partial(cache, now - PARTIAL_NS);
        if (seconds != UINT64_MAX && now > seconds * 1000000000u)
            vmm_cache_trim(cache, CONTEXT_ALL, now - seconds * 1000000000u);
    }
    atomic_store(&kept.tick_at, now + PARTIAL_NS);
}
