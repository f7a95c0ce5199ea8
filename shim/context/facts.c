/* SPDX-License-Identifier: Apache-2.0 */
/* facts.c - see facts.h. No locks; `probing` is atomic. */
#include "context/facts.h"

#include <stdio.h>
#include <string.h>

#include "context/context_state.h"
#include "context/cuda_memory.h"
#include "context/free_policy.h"
#include "context/vmm_create.h"
#include "trace/trace.h"

bool facts_primary(const struct real_driver *driver, int device, CUcontext *ret_primary)
{
    unsigned int flags;
    bool known;
    int active = 0;

    *ret_primary = NULL;
    if (!driver->cuDevicePrimaryCtxGetState || !driver->cuDevicePrimaryCtxRetain ||
        !driver->cuDevicePrimaryCtxRelease_v2)
        return true;
    /* While we hold a reference, another thread's final release would not destroy the context, or a destroyed context
     * could come back; context_primary_gone therefore waits for `probing`. */
    atomic_fetch_add(&contexts.probing[device % DEVICES_MAX], 1);
    known = driver->cuDevicePrimaryCtxGetState(device, &flags, &active) == CUDA_SUCCESS;
    if (known && active) {
        known = driver->cuDevicePrimaryCtxRetain(ret_primary, device) == CUDA_SUCCESS;
        if (known)
            driver->cuDevicePrimaryCtxRelease_v2(device);
        else
            *ret_primary = NULL;
    }
    atomic_fetch_sub(&contexts.probing[device % DEVICES_MAX], 1);
    return known;
}

/* An ordinal says little where CUDA_VISIBLE_DEVICES or MIG are in use. */
void device_trace(const struct real_driver *driver, int device, size_t total)
{
    char name[128] = "", text[2 * sizeof(CUuuid) + 5] = "";
    size_t at = 0;
    CUuuid uuid;

    if (driver->cuDeviceGetName)
        driver->cuDeviceGetName(name, sizeof(name), device);
    name[strcspn(name, "\"\\")] = '\0';
    /* In the form that nvidia-smi prints. */
    if (driver->cuDeviceGetUuid_v2 && driver->cuDeviceGetUuid_v2(&uuid, device) == CUDA_SUCCESS)
        for (unsigned int i = 0; i < sizeof(uuid); i++)
            at +=
                (size_t)snprintf(text + at, sizeof(text) - at, i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x",
                                 (unsigned char)uuid.bytes[i]);
    trace_event("device", "\"d\":%d,\"name\":\"%s\",\"uuid\":\"%s\",\"total\":%zu", device, name, text, total);
}

unsigned long long context_id(const struct real_driver *driver, CUcontext handle)
{
    unsigned long long id = 0;
    CUresult result;

    if (!driver->cuCtxGetId)
        return 0;
    result = driver->cuCtxGetId(handle, &id);
    if (result) /* asked again: a context without a number cannot be told from a later one with its handle */
        result = driver->cuCtxGetId(handle, &id);
    return result ? 0 : id;
}

/* False: the context cannot be used now. */
bool facts_find(CUcontext handle, struct facts *as)
{
    const struct real_driver *driver = as->driver;
    CUcontext primary;
    size_t free;
    CUdevice device;

    /* A context that was reset stays current, but cannot be used until the runtime has initialised it again. */
    if (driver->cuCtxGetDevice(&device) || driver->cuMemGetInfo_v2(&free, &as->capacity))
        return false;
    as->device = device;
    as->defers = cuda_memory_defers(driver, device);
    as->maps = vmm_supported(driver, device);
    as->orders = policy_driver_orders(driver);
    /* It must not be pooled if the driver cannot say now: a primary context that we took for another kind would end
     * without our noticing. */
    if (!facts_primary(driver, device, &primary))
        return false;
    as->primary = primary == handle;
    as->id = context_id(driver, handle);
    return true;
}
