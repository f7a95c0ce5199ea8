/* SPDX-License-Identifier: Apache-2.0 */
/*
 * policy.c - see policy.h.
 *
 * Locking: `seen` is atomic; each policy has a lock for its own members.
 */
#include "context/policy.h"

#include "base/conf.h"
#include "base/log.h"
#include "base/process.h"
#include "context/capture.h"
#include "context/context.h"
#include "pool.h"
#include "trace/trace.h"

#define DEVICES_MAX 64
/* CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN of CUDA 13.5: the lowest byte of the id is the device. */
#define LOCATION_TYPE_PART_OF_DEVICE 6
/* Host work on several streams, or on the per-thread stream, whose one handle means another stream on every thread. */
#define STREAM_MIXED ((CUstream)-1)

static struct {
    _Atomic(const char *) strict[DEVICES_MAX]; /* the reason why a device is strict; NULL: it is not */
    atomic_bool settled[DEVICES_MAX];          /* the work before frees ordered before that has completed */
    _Atomic(CUcontext) first[DEVICES_MAX];     /* the first context seen on each device */
    atomic_int devices;                        /* number of devices that the process can use; 0: not known yet */
    atomic_bool graphs_touch_host;             /* a graph has, or may have, a node that touches host memory */
} seen;

bool policy_driver_orders(const struct real_driver *driver)
{
    int version = 0;

    return driver->cuCtxRecordEvent && driver->cuCtxWaitEvent && driver->cuDriverGetVersion &&
           driver->cuDriverGetVersion(&version) == CUDA_SUCCESS && version >= 12050;
}

void policy_init(struct policy *policy, int device, bool orders, const char **ret_why)
{
    const uint64_t wanted = conf_get()->free.number;
    const char *why = wanted == FREE_AUTO ? atomic_load(&seen.strict[device % DEVICES_MAX]) : NULL;

    policy->device = device % DEVICES_MAX;
    policy->automatic = wanted == FREE_AUTO;
    /* The counter starts with one report, for work launched in the context before we knew it. */
    atomic_store(&policy->paid, atomic_fetch_add(&policy->debts, policy->automatic));
    policy->debtor = STREAM_MIXED;
    policy->strict = wanted == FREE_STRICT || !orders || (policy->automatic && !process_hooks_driver());
    if (wanted == FREE_STRICT)
        why = "CUPOOL_FREE";
    else if (!orders)
        why = "driver older than 12.5";
    else if (wanted == FREE_AUTO && !process_hooks_driver())
        why = "CUPOOL_HOOK=runtime sees too little";
    if (why && (wanted == FREE_ORDERED || wanted == FREE_RELAXED))
        log_once(LOG_WARN, "CUPOOL_FREE=%s needs driver 12.5 or later; using strict", conf_get()->free.text);
    else if (why && wanted == FREE_AUTO)
        log_write(LOG_INFO, "device %d: frees wait on the host: %s", device, why);
    *ret_why = why ? why : wanted == FREE_AUTO ? "default" : "CUPOOL_FREE";
}

bool policy_is_strict(const struct policy *policy)
{
    return policy->strict || (policy->automatic && atomic_load(&seen.strict[policy->device]) != NULL);
}

bool policy_waits(const struct policy *policy, uint64_t *ret_debts)
{
    *ret_debts = atomic_load(&policy->debts);
    return policy_is_strict(policy) || *ret_debts != atomic_load_explicit(&policy->paid, memory_order_relaxed);
}

void policy_pay(struct policy *policy, uint64_t debts)
{
    if (atomic_load_explicit(&policy->paid, memory_order_relaxed) >= debts)
        return;
    pthread_mutex_lock(&policy->lock);
    if (atomic_load(&policy->paid) < debts)
        atomic_store(&policy->paid, debts);
    pthread_mutex_unlock(&policy->lock);
}

/* --- host work --- */

/* The driver, with CUPOOL_FREE=auto; otherwise NULL, because reports have no effect. */
static const struct real_driver *auto_driver(void)
{
    return conf_get()->free.number == FREE_AUTO ? real_driver_get() : NULL;
}

/* The policy for work on a stream; NULL: none. */
static struct policy *of_stream(CUstream stream)
{
    const struct real_driver *driver = auto_driver();

    return driver ? context_policy(context_stream(driver, stream)) : NULL;
}

static void owe(struct policy *policy, const void *arg)
{
    CUstream stream = (CUstream)arg;

    if (policy_is_strict(policy))
        return;
    pthread_mutex_lock(&policy->lock);
    if (stream == CU_STREAM_PER_THREAD)
        stream = STREAM_MIXED;
    if (atomic_load(&policy->paid) == atomic_load(&policy->debts))
        policy->debtor = stream;
    else if (policy->debtor != stream)
        policy->debtor = STREAM_MIXED;
    atomic_fetch_add(&policy->debts, 1);
    pthread_mutex_unlock(&policy->lock);
}

void policy_host_work(CUstream stream)
{
    struct policy *policy;

    if (capture_active_on(stream)) {
        atomic_store(&seen.graphs_touch_host, true);
        return;
    }
    if (conf_get()->free.number != FREE_AUTO)
        return;
    policy = of_stream(stream);
    if (policy)
        owe(policy, stream);
    else /* for example a green context's stream, whose work every free on the device waits for */
        context_policy_each(owe, STREAM_MIXED);
}

/* True if addr is, or may be, host memory. */
static bool is_host(const struct real_driver *driver, CUdeviceptr addr)
{
    CUmemorytype type = CU_MEMORYTYPE_HOST;

    if (!addr || pool_of(addr))
        return false;
    return driver->cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, addr) || type == CU_MEMORYTYPE_HOST;
}

void policy_copy(CUdeviceptr to, CUdeviceptr from, CUstream stream)
{
    const struct real_driver *driver = auto_driver();

    if (driver && (!driver->cuPointerGetAttribute || is_host(driver, to) || is_host(driver, from)))
        policy_host_work(stream);
}

void policy_graph_node(void)
{
    atomic_store(&seen.graphs_touch_host, true);
}

void policy_graph_set(CUdeviceptr to)
{
    const struct real_driver *driver = auto_driver();

    if (driver && (!driver->cuPointerGetAttribute || is_host(driver, to)))
        policy_graph_node();
}

void policy_graph_launch(CUstream stream)
{
    if (atomic_load_explicit(&seen.graphs_touch_host, memory_order_relaxed))
        policy_host_work(stream);
}

static uint64_t debts_of(const struct policy *policy)
{
    return policy ? atomic_load(&policy->debts) : 0;
}

static struct policy *of_context(CUcontext handle)
{
    const struct real_driver *driver = auto_driver();

    if (driver && !handle)
        driver->cuCtxGetCurrent(&handle);
    return driver ? context_policy(handle) : NULL;
}

void policy_stream_wait_end(CUstream stream, uint64_t debts)
{
    struct policy *policy = debts ? of_context(NULL) : NULL;

    /* The driver can be asked about the handle, because the wait has succeeded. A stream of another context completes
     * nothing. */
    if (!policy || policy != of_stream(stream) || atomic_load_explicit(&policy->paid, memory_order_relaxed) >= debts)
        return;
    pthread_mutex_lock(&policy->lock);
    if (policy->debtor == stream && atomic_load(&policy->paid) < debts)
        atomic_store(&policy->paid, debts);
    pthread_mutex_unlock(&policy->lock);
}

uint64_t policy_context_wait_begin(CUcontext handle)
{
    return debts_of(of_context(handle));
}

void policy_context_wait_end(CUcontext handle, uint64_t debts)
{
    struct policy *policy = debts ? of_context(handle) : NULL;

    if (policy)
        policy_pay(policy, debts);
}

static void debtor_gone(struct policy *policy, const void *stream)
{
    pthread_mutex_lock(&policy->lock);
    if (policy->debtor == stream)
        policy->debtor = STREAM_MIXED;
    pthread_mutex_unlock(&policy->lock);
}

void policy_stream_gone(CUstream stream)
{
    if (conf_get()->free.number == FREE_AUTO)
        context_policy_each(debtor_gone, stream);
}

/* --- strict --- */

static void strict_one(int device, const char *why)
{
    const char *none = NULL;
    const bool first = atomic_compare_exchange_strong(&seen.strict[device], &none, why);
    bool known;

    if (!first && atomic_load(&seen.settled[device]))
        return;
    /* Frees before this were ordered on the device only. A thread that comes here meanwhile waits as well. */
    known = context_wait_frees(device, /* others: */ true);
    atomic_store(&seen.settled[device], true);
    if (first && known) {
        trace_event("policy", "\"d\":%d,\"free\":\"strict\",\"why\":\"%s\"", device, why);
        log_write(LOG_INFO, "device %d: frees wait on the host from now on: %s", device, why);
    }
}

void policy_strict(int device, const char *why)
{
    if (conf_get()->free.number != FREE_AUTO)
        return;
    if (device >= 0)
        strict_one(device % DEVICES_MAX, why);
    for (int i = 0; device < 0 && i < DEVICES_MAX; i++)
        strict_one(i, why);
}

/* The device of memory that is not pooled; -1: none. */
static int device_of(const struct real_driver *driver, CUdeviceptr addr)
{
    CUmemorytype type = CU_MEMORYTYPE_HOST;
    int device = -1;

    if (!addr || !driver->cuPointerGetAttribute ||
        driver->cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, addr) || type != CU_MEMORYTYPE_DEVICE ||
        driver->cuPointerGetAttribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, addr))
        return -1;
    return device;
}

void policy_strict_memory(CUdeviceptr addr, const char *why)
{
    const struct real_driver *driver = auto_driver();
    struct pool *pool = driver ? pool_of(addr) : NULL;
    int device = pool ? context_device(context_of(pool)) : driver ? device_of(driver, addr) : -1;

    if (device >= 0)
        policy_strict(device, why);
}

static bool is_settled(int device)
{
    return atomic_load_explicit(&seen.settled[device % DEVICES_MAX], memory_order_acquire);
}

static bool is_alone(const struct real_driver *driver)
{
    int count = atomic_load_explicit(&seen.devices, memory_order_relaxed);

    if (!count && driver->cuDeviceGetCount && driver->cuDeviceGetCount(&count) == CUDA_SUCCESS)
        atomic_store_explicit(&seen.devices, count, memory_order_relaxed);
    return count == 1;
}

/* The device of a context, pooled or not; -1: unknown. */
static int device_of_context(const struct real_driver *driver, CUcontext handle)
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
        driver->cuCtxPopCurrent_v2(&current);
    return known ? device : -1;
}

void policy_reach(CUdeviceptr addr, CUstream stream)
{
    static const char why[] = "copies between devices or contexts";
    const struct real_driver *driver = auto_driver();
    struct pool *pool;
    CUcontext handle;
    int device, from;

    /* With one device, the only other memory to reach is that of a second context, which has made the device strict. */
    if (!driver || is_alone(driver))
        return;
    pool = pool_of(addr);
    handle = context_stream(driver, stream);
    if (pool && context_handle(context_of(pool)) == handle)
        return;
    device = pool ? context_device(context_of(pool)) : device_of(driver, addr);
    from = device < 0 ? -1 : device_of_context(driver, handle);
    if (device < 0 || (!pool && from == device))
        return;
    if (!is_settled(device))
        policy_strict(device, why);
    if (from >= 0 && !is_settled(from))
        policy_strict(from, why);
}

void policy_reach_many(const CUdeviceptr *to, const CUdeviceptr *from, size_t count, CUstream stream)
{
    for (size_t i = 0; to && from && i < count; i++) {
        policy_reach(to[i], stream);
        policy_reach(from[i], stream);
    }
}

static void reach_operand(const CUmemcpy3DOperand *operand, CUstream stream)
{
    if (operand->type == CU_MEMCPY_OPERAND_TYPE_POINTER)
        policy_reach(operand->op.ptr.ptr, stream);
}

void policy_reach_batch(const CUDA_MEMCPY3D_BATCH_OP *operations, size_t count, CUstream stream)
{
    for (size_t i = 0; operations && i < count; i++) {
        reach_operand(&operations[i].dst, stream);
        reach_operand(&operations[i].src, stream);
    }
}

/* The processor's own memory. The kinds listed after these, INVISIBLE and a part of a device, are not. */
static bool is_host_location(CUmemLocationType type)
{
    return type == CU_MEM_LOCATION_TYPE_HOST || type == CU_MEM_LOCATION_TYPE_HOST_NUMA ||
           type == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
}

bool policy_is_host(const CUmemLocation *location, CUmemAllocationType type)
{
    return type == CU_MEM_ALLOCATION_TYPE_MANAGED || is_host_location(location->type);
}

int policy_location_device(const CUmemLocation *location)
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

void policy_access(CUdeviceptr addr, const CUmemAccessDesc *access, size_t count)
{
    const struct real_driver *driver = auto_driver();
    int own;

    if (!driver || !access)
        return;
    own = addr ? device_of(driver, addr) : -1;
    if (addr && own < 0 &&
        driver->cuCtxGetDevice(&own)) /* if the driver does not say, the current device is most likely */
        own = -1;
    for (size_t i = 0; i < count; i++) {
        if (access[i].flags == CU_MEM_ACCESS_FLAGS_PROT_NONE)
            continue;
        if (is_host_location(access[i].location.type))
            policy_strict(POLICY_ALL, "mapped host memory");
        else if (policy_location_device(&access[i].location) >= 0 &&
                 policy_location_device(&access[i].location) != own && !is_alone(driver))
            policy_strict(POLICY_ALL, "memory of other devices");
    }
}

void policy_context_seen(CUcontext handle, int device)
{
    CUcontext first = NULL;

    if (device < 0 || device >= DEVICES_MAX)
        return;
    if (!atomic_compare_exchange_strong(&seen.first[device], &first, handle) && first != handle)
        policy_strict(device, "a second context on the device");
}

void policy_context_gone(CUcontext handle)
{
    for (int i = 0; handle && i < DEVICES_MAX; i++) {
        CUcontext first = handle;

        atomic_compare_exchange_strong(&seen.first[i], &first, NULL);
    }
}
