/* SPDX-License-Identifier: Apache-2.0 */
/*
 * strict.c - see strict.h.
 *
 * Locking: none; the arrays are atomic.
 */
#include "context/strict.h"

#include "base/conf.h"
#include "base/log.h"
#include "clock.h"
#include "context/free_order.h"
#include "context/free_policy.h"
#include "context/registry.h"
#include "context/wait_context.h"
#include "pool.h"
#include "trace/trace.h"

static atomic_bool quiesced[DEVICES_MAX]; /* the work before frees ordered before that has completed */
/* A bit for each device whose work this thread has waited for in vain: from then on it asks and does not wait. */
static __thread uint64_t in_vain __attribute__((tls_model("initial-exec")));
static _Atomic(CUcontext) first_context[DEVICES_MAX]; /* the first context seen on each device */

const struct real_driver *policy_auto_driver(void)
{
    return conf_get()->free.number == FREE_AUTO ? real_driver_get() : NULL;
}

static bool is_in_vain(int device)
{
    return in_vain >> device % DEVICES_MAX & 1;
}

/* Wait for what was freed before the device became strict: such frees were ordered on the device only. A thread that
 * comes here meanwhile, or after one that has waited in vain, waits as well. */
static void strict_wait(int device, bool first, uint64_t limit, const char *why)
{
    bool late;
    const bool known = context_wait_frees_until(device, is_in_vain(device) ? now_ns() : limit, &late);

    if (late)
        in_vain |= 1ull << device;
    else
        atomic_store(&quiesced[device], true);
    if (first && known) {
        trace_event("policy", "\"d\":%d,\"free\":\"strict\",\"why\":\"%s\"", device, why);
        log_write(LOG_INFO, "device %d: frees wait on the host from now on: %s", device, why);
    }
}

void policy_strict(int device, const char *why)
{
    const int from = device < 0 ? 0 : device % DEVICES_MAX, behind = device < 0 ? DEVICES_MAX : from + 1;
    bool first[DEVICES_MAX];
    uint64_t limit = 0;

    if (conf_get()->free.number != FREE_AUTO)
        return;
    /* All are strict before the first wait: the time that one device takes is then the others' as well. */
    for (int i = from; i < behind; i++)
        first[i] = policy_strict_set(i, why);
    for (int i = from; i < behind; i++) {
        if (!first[i] && atomic_load(&quiesced[i]))
            continue;
        limit = limit ? limit : now_ns() + ORDER_OTHERS_WAIT_NS;
        strict_wait(i, first[i], limit, why);
    }
}

int strict_device_of(const struct real_driver *driver, CUdeviceptr addr)
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
    const struct real_driver *driver = policy_auto_driver();
    struct pool *pool = driver ? context_pool_at(addr) : NULL;
    int device = pool ? context_device(context_of(pool)) : driver ? strict_device_of(driver, addr) : -1;

    if (device >= 0)
        policy_strict(device, why);
}

bool policy_is_quiesced(int device)
{
    return atomic_load_explicit(&quiesced[device % DEVICES_MAX], memory_order_acquire);
}

void policy_context_seen(CUcontext handle, int device)
{
    CUcontext first = NULL;

    if (device < 0 || device >= DEVICES_MAX)
        return;
    if (!atomic_compare_exchange_strong(&first_context[device], &first, handle) && first != handle)
        policy_strict(device, "a second context on the device");
}

void policy_context_gone(CUcontext handle)
{
    for (int i = 0; handle && i < DEVICES_MAX; i++) {
        CUcontext first = handle;

        atomic_compare_exchange_strong(&first_context[i], &first, NULL);
    }
}

void policy_frees_wait(bool others)
{
    const struct real_driver *driver = policy_auto_driver();
    CUdevice device;

    if (!driver)
        return;
    /* This thread's own on any device: work there may have waited for work of this one. */
    (void)context_wait_frees(CONTEXT_ALL, /* others: */ false);
    if (others && !driver->cuCtxGetDevice(&device) && !policy_is_quiesced(device) && !is_in_vain(device))
        (void)context_wait_frees(device, /* others: */ true);
}
