/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hazards.c - see hazards.h.
 *
 * Locking: none of its own.
 */
#include "exports/hazards.h"

#include <stdatomic.h>

#include "base/conf.h"
#include "base/process.h"
#include "context/capture_gate.h"
#include "context/enter.h"
#include "context/free_policy.h"
#include "context/ipc_import.h"
#include "context/registry.h"
#include "context/strict.h"
#include "context/vmm_map.h"
#include "pool.h"
#include "real/real.h"
#include "serve/serve.h"

/* CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN of CUDA 13.5: the lowest byte of the id is the device. */
#define LOCATION_TYPE_PART_OF_DEVICE 6

/* The latest events of the program, in sets by their handles. */
#define EVENT_SETS   2048u
#define EVENT_WAYS   4u
#define EVENT_HANDLE (((uint64_t)1 << 56) - 1)
#define DEVICE_SHIFT 56 /* an entry is the handle, and over it the device that the event was made on, plus 1 */

static atomic_int devices;            /* number of devices that the process can use; 0: not known yet */
static atomic_bool graphs_touch_host; /* a graph touches host memory, or is of several devices; or it may */
static _Atomic(uint64_t) events[EVENT_SETS][EVENT_WAYS];
static atomic_uint events_forgotten;
/* Streams that had gone when this thread's last launch of host work began; see hazard_host_work_end. */
static __thread unsigned int streams_gone __attribute__((tls_model("initial-exec")));

/* Stands for all contexts' policies: for example of a green context's stream, whose work every free on the device waits
 * for. */
static struct policy every_policy;

/* The policy for work on a stream; NULL: none. */
static struct policy *of_stream(CUstream stream)
{
    const struct real_driver *driver = policy_auto_driver();

    return driver ? context_policy(context_stream(driver, stream)) : NULL;
}

/* True: work on this stream becomes part of a graph. If the driver does not say, it may, or run at once. */
static bool is_captured(CUstream stream)
{
    const struct real_driver *driver = capture_active() ? real_driver_get() : NULL;
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    bool unsure;

    if (!driver || !driver->cuStreamIsCapturing)
        return false;
    unsure = driver->cuStreamIsCapturing(stream, &status) != CUDA_SUCCESS;
    if (unsure || status != CU_STREAM_CAPTURE_STATUS_NONE)
        atomic_store(&graphs_touch_host, true);
    return !unsure && status != CU_STREAM_CAPTURE_STATUS_NONE;
}

struct policy *hazard_host_work_begin(CUstream stream)
{
    struct policy *policy;

    if (is_captured(stream) || conf_get()->free.number != FREE_AUTO)
        return NULL;
    policy = of_stream(stream);
    if (policy)
        streams_gone = policy_streams_gone(policy);
    return policy ? policy : &every_policy;
}

void hazard_host_work_end(struct policy *policy, CUstream stream)
{
    if (policy == &every_policy)
        context_policy_each(policy_host_work_add, &(struct policy_host_work){.stream = POLICY_STREAM_MIXED});
    else if (policy)
        policy_host_work_add(policy, &(struct policy_host_work){stream, streams_gone});
}

/* True if addr is, or may be, host memory. */
static bool is_host(const struct real_driver *driver, CUdeviceptr addr)
{
    CUmemorytype type = CU_MEMORYTYPE_HOST;

    if (!addr || context_pool_at(addr))
        return false;
    return driver->cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, addr) || type == CU_MEMORYTYPE_HOST;
}

struct policy *hazard_copy_begin(CUdeviceptr to, CUdeviceptr from, CUstream stream)
{
    const struct real_driver *driver = policy_auto_driver();

    if (driver && (!driver->cuPointerGetAttribute || is_host(driver, to) || is_host(driver, from)))
        return hazard_host_work_begin(stream);
    return NULL;
}

void hazard_graph_node(void)
{
    atomic_store(&graphs_touch_host, true);
}

void hazard_graph_set(CUdeviceptr to)
{
    const struct real_driver *driver = policy_auto_driver();

    if (driver && (!driver->cuPointerGetAttribute || is_host(driver, to)))
        hazard_graph_node();
}

struct policy *hazard_graph_launch_begin(CUstream stream)
{
    struct policy *policy =
        atomic_load_explicit(&graphs_touch_host, memory_order_relaxed) ? hazard_host_work_begin(stream) : NULL;

    /* Its nodes may be of other contexts than the stream. */
    return policy && context_several() ? &every_policy : policy;
}

static struct policy *of_context(CUcontext handle)
{
    const struct real_driver *driver = policy_auto_driver();

    if (driver && !handle)
        driver->cuCtxGetCurrent(&handle);
    return driver ? context_policy(handle) : NULL;
}

void hazard_stream_wait_end(CUstream stream, uint64_t seq)
{
    struct policy *policy = seq ? of_context(NULL) : NULL;

    /* The driver can be asked about the handle, because the wait has succeeded. A stream of another context completes
     * nothing. */
    if (policy && policy == of_stream(stream))
        policy_stream_synced(policy, stream, seq);
}

uint64_t hazard_context_wait_begin(CUcontext handle)
{
    return policy_host_work_seq(of_context(handle));
}

void hazard_context_wait_end(CUcontext handle, uint64_t seq)
{
    struct policy *policy = seq ? of_context(handle) : NULL;

    if (policy)
        policy_synced(policy, seq);
}

CUcontext hazard_freed_stream_begin(CUstream stream)
{
    const struct real_driver *driver = pool_later_any() ? real_driver_get() : NULL;

    return driver ? context_stream(driver, stream) : NULL;
}

CUcontext hazard_freed_context_begin(CUcontext handle)
{
    return handle ? handle : hazard_freed_stream_begin(CU_STREAM_LEGACY);
}

void hazard_freed_end(CUcontext handle)
{
    struct context *context = pool_later_any() ? context_find(handle) : NULL;

    if (!context || !context_pin(context))
        return;
    pool_flush_later(context_pool(context));
    context_unpin(context);
}

void hazard_stream_gone(CUstream stream)
{
    context_stream_gone(stream);
}

static void memory_goes(void)
{
    policy_strict(POLICY_ALL, "memory that goes without a wait");
}

void hazard_memory_goes(const void *caller)
{
    if (serve_watches(caller))
        memory_goes();
    else if (!process_is_passive())
        policy_frees_wait(/* others: */ false);
}

void hazard_free(CUdeviceptr addr, const void *caller)
{
    const struct real_driver *driver = serve_watches(caller) ? policy_auto_driver() : NULL;
    CUmemoryPool pool = NULL;

    if (!addr || !driver || !driver->cuPointerGetAttribute)
        return;
    if (!driver->cuPointerGetAttribute(&pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, addr) && pool)
        hazard_memory_goes(caller);
    else /* costs nothing where the driver waits itself: memory of graphs, which goes without a wait, has no pool */
        policy_frees_wait(/* others: */ false);
}

static bool is_alone(const struct real_driver *driver)
{
    int count = atomic_load_explicit(&devices, memory_order_relaxed);

    if (!count && driver->cuDeviceGetCount && driver->cuDeviceGetCount(&count) == CUDA_SUCCESS)
        atomic_store_explicit(&devices, count, memory_order_relaxed);
    return count == 1;
}

static uint64_t event_entry(CUevent event, int device)
{
    return (uintptr_t)event | (uint64_t)(device + 1) << DEVICE_SHIFT;
}

static _Atomic(uint64_t) *event_set(CUevent event)
{
    return events[((uintptr_t)event / sizeof(void *) * 0x9E3779B97F4A7C15ull >> 32) % EVENT_SETS];
}

/* Where the event is or can be; another one is forgotten for it if there are too many. Threads that come to a set at
 * the same time may lose an entry. */
static _Atomic(uint64_t) *event_place(CUevent event)
{
    _Atomic(uint64_t) *set = event_set(event), *empty = NULL;

    for (unsigned int i = 0; i < EVENT_WAYS; i++) {
        const uint64_t entry = atomic_load(&set[i]);

        if ((entry & EVENT_HANDLE) == (uintptr_t)event)
            return &set[i];
        empty = entry ? empty : &set[i];
    }
    return empty ? empty : &set[atomic_fetch_add(&events_forgotten, 1) % EVENT_WAYS];
}

static bool event_is_of(CUevent event, int device)
{
    const _Atomic(uint64_t) *set = event_set(event);
    bool is = false;

    for (unsigned int i = 0; i < EVENT_WAYS && !is; i++)
        is = atomic_load(&set[i]) == event_entry(event, device);
    return is;
}

void hazard_event_made(CUevent event)
{
    const struct real_driver *driver = policy_auto_driver();
    CUdevice device;

    if (driver && !is_alone(driver) && driver->cuCtxGetDevice(&device) == CUDA_SUCCESS)
        atomic_store(event_place(event), event_entry(event, device));
}

void hazard_event_gone(CUevent event)
{
    _Atomic(uint64_t) *set = event_set(event);

    for (unsigned int i = 0; i < EVENT_WAYS; i++) {
        uint64_t entry = atomic_load(&set[i]);

        if (entry && (entry & EVENT_HANDLE) == (uintptr_t)event)
            atomic_compare_exchange_strong(&set[i], &entry, 0);
    }
}

struct policy *hazard_event_wait_begin(CUevent event, CUstream stream)
{
    const struct real_driver *driver = policy_auto_driver();
    int device;

    if (!driver || is_alone(driver))
        return NULL;
    device = hazard_context_device(driver, context_stream(driver, stream));
    if (event_is_of(event, device))
        return NULL;
    /* The wait may draw the stream into a capture, whose graph is one of several devices then. */
    if (capture_active())
        hazard_graph_node();
    return hazard_host_work_begin(stream);
}

int hazard_context_device(const struct real_driver *driver, CUcontext handle)
{
    const struct context *context = context_find(handle);
    CUcontext current = NULL;
    CUdevice device;
    bool known;

    if (context)
        return context_device(context);
    driver->cuCtxGetCurrent(&current);
    if (!handle || (handle != current && driver->cuCtxPushCurrent_v2(handle)))
        return -1;
    known = driver->cuCtxGetDevice(&device) == CUDA_SUCCESS;
    if (handle != current)
        context_pop(driver);
    return known ? device : -1;
}

void hazard_foreign_access(CUdeviceptr addr, CUstream stream)
{
    static const char why[] = "copies between devices or contexts";
    const struct real_driver *driver = vmm_any() ? real_driver_get() : policy_auto_driver();
    struct pool *pool;
    CUcontext handle;
    int device, from;

    /* With one device, the only other memory to reach is that of a second context, which has made the device strict. */
    if (!driver || is_alone(driver))
        return;
    pool = context_pool_at(addr);
    handle = context_stream(driver, stream);
    if (pool && context_handle(context_of(pool)) == handle)
        return;
    device = pool ? context_device(context_of(pool)) : strict_device_of(driver, addr);
    from = device < 0 ? -1 : hazard_context_device(driver, handle);
    if (device < 0 || (!pool && from == device))
        return;
    if (pool || ipc_import_any()) /* natively a copy reaches it without access by peers */
        vmm_reach(driver, device, from);
    if (!policy_is_quiesced(device))
        policy_strict(device, why);
    if (from >= 0 && !policy_is_quiesced(from))
        policy_strict(from, why);
}

void hazard_foreign_accesses(const CUdeviceptr *to, const CUdeviceptr *from, size_t count, CUstream stream)
{
    for (size_t i = 0; to && from && i < count; i++) {
        hazard_foreign_access(to[i], stream);
        hazard_foreign_access(from[i], stream);
    }
}

static void foreign_operand(const CUmemcpy3DOperand *operand, CUstream stream)
{
    if (operand->type == CU_MEMCPY_OPERAND_TYPE_POINTER)
        hazard_foreign_access(operand->op.ptr.ptr, stream);
}

void hazard_foreign_accesses_3d(const CUDA_MEMCPY3D_BATCH_OP *operations, size_t count, CUstream stream)
{
    for (size_t i = 0; operations && i < count; i++) {
        foreign_operand(&operations[i].dst, stream);
        foreign_operand(&operations[i].src, stream);
    }
}

/* The processor's own memory. The kinds listed after these, INVISIBLE and a part of a device, are not. */
static bool is_host_location(CUmemLocationType type)
{
    return type == CU_MEM_LOCATION_TYPE_HOST || type == CU_MEM_LOCATION_TYPE_HOST_NUMA ||
           type == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
}

bool hazard_is_host(const CUmemLocation *location, CUmemAllocationType type)
{
    return type == CU_MEM_ALLOCATION_TYPE_MANAGED || is_host_location(location->type);
}

int hazard_location_device(const CUmemLocation *location)
{
    switch ((int)location->type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
        return location->id;
    case LOCATION_TYPE_PART_OF_DEVICE:
        return location->id & 0xff;
    default:
        return -1;
    }
}

void hazard_access(CUdeviceptr addr, const CUmemAccessDesc *access, size_t count)
{
    const struct real_driver *driver = policy_auto_driver();
    int own;

    if (!driver || !access)
        return;
    own = addr ? strict_device_of(driver, addr) : -1;
    if (addr && own < 0 &&
        driver->cuCtxGetDevice(&own)) /* if the driver does not say, the current device is most likely */
        own = -1;
    for (size_t i = 0; i < count; i++) {
        const int device = hazard_location_device(&access[i].location);
        const bool none = access[i].flags == CU_MEM_ACCESS_FLAGS_PROT_NONE;

        if (none && device >= 0)
            memory_goes();
        else if (!none && is_host_location(access[i].location.type))
            policy_strict(POLICY_ALL, "mapped host memory");
        else if (!none && device >= 0 && device != own && !is_alone(driver))
            policy_strict(POLICY_ALL, "memory of other devices");
    }
}
