/* SPDX-License-Identifier: Apache-2.0 */
/*
 * peer_access.c - the exported function of the driver by which a context gets access to another one's memory.
 *
 * Natively it gives access to the memory of cuMemAlloc alone. A block of CUPOOL_BACKEND=vmm is virtual memory, which
 * needs access of its own. It keeps that when the program ends the access (cuCtxDisablePeerAccess has no hook).
 *
 * Locking: none.
 */
#include "base/conf.h"
#include "base/process.h"
#include "context/lifetime.h"
#include "context/strict.h"
#include "context/vmm_map.h"
#include "exports/export.h"
#include "exports/hazards.h"
#include "real/real.h"
#include "serve/serve.h"

EXPORT CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned int flags)
{
    const struct real_driver *driver = process_is_passive() ? NULL : real_driver_get();
    CUresult result;
    CUdevice device;

    if (serve_watches(CALLER))
        policy_strict(POLICY_ALL, "peer access");
    result = real_next(cuCtxEnablePeerAccess)(peer, flags);
    if (result && serve_watches(CALLER))
        context_saw(result);
    /* Also for NCCL's own call: it may read the program's buffers from the other device. */
    if (!result && driver && (process_has_begun() || conf_get()->backend.number == BACKEND_VMM) &&
        driver->cuCtxGetDevice(&device) == CUDA_SUCCESS)
        vmm_reach_anew(driver, hazard_context_device(driver, peer), device);
    return result;
}
