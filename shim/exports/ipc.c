/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ipc.c - the exported functions of the driver for memory that processes share by CUDA IPC. serve/ipc_handles.h
 * decides; the runtime's cudaIpcGetMemHandle is in runtime.c, and its other two call these.
 *
 * Locking: none.
 */
#include "context/driver_free.h"
#include "context/lifetime.h"
#include "context/strict.h"
#include "exports/export.h"
#include "exports/memory.h"
#include "real/real.h"
#include "serve/ipc_handles.h"
#include "serve/serve.h"

EXPORT CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr ptr)
{
    CUresult result;

    if (!process_is_passive() && !memory_has_context())
        return real_next(cuIpcGetMemHandle)(handle, ptr);
    switch (handle ? serve_ipc_get(ptr, CALLER, handle) : SERVE_IPC_DRIVER) {
    case SERVE_IPC_TICKET:
        return CUDA_SUCCESS;
    case SERVE_IPC_REFUSED:
        return CUDA_ERROR_INVALID_VALUE;
    default:
        result = real_next(cuIpcGetMemHandle)(handle, ptr);
    }
    if (!result)
        serve_ipc_exported(ptr, CALLER);
    else
        serve_ipc_refused(ptr);
    return result;
}

/* Both forms of the call. */
static CUresult handle_open(CUresult (*real)(CUdeviceptr *, CUipcMemHandle, unsigned int), CUdeviceptr *ptr,
                            CUipcMemHandle handle, unsigned int flags, const void *caller)
{
    const bool watched = serve_watches(caller);
    CUresult result;

    if (watched)
        policy_strict(POLICY_ALL, "memory of another process");
    if (serve_ipc_open(&handle, flags, ptr, &result))
        return result;
    result = real(ptr, handle, flags);
    if (!result)
        serve_ipc_opened(*ptr);
    if (watched)
        context_saw(result);
    return result;
}

EXPORT CUresult cuIpcOpenMemHandle(CUdeviceptr *ptr, CUipcMemHandle handle, unsigned int flags)
{
    return handle_open(real_next(cuIpcOpenMemHandle), ptr, handle, flags, CALLER);
}

EXPORT CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *ptr, CUipcMemHandle handle, unsigned int flags)
{
    return handle_open(real_next(cuIpcOpenMemHandle_v2), ptr, handle, flags, CALLER);
}

EXPORT CUresult cuIpcCloseMemHandle(CUdeviceptr ptr)
{
    struct context *context;
    CUresult result;

    if (serve_ipc_close(ptr, &result))
        return result;
    context = driver_free_begin(ptr);
    result = real_next(cuIpcCloseMemHandle)(ptr);
    driver_free_end(context);
    if (!result)
        serve_ipc_closed(ptr);
    return result;
}
