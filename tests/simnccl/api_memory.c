/* SPDX-License-Identifier: Apache-2.0 */
/*
 * api_memory.c - the exported functions that allocate memory and register it with a communicator.
 *
 * Locking: see simnccl.h.
 */
#include "api.h"

#include <unistd.h>

API(ncclResult_t, MemAlloc, (void **ret, size_t size))
{
    ENTER(ncclMemAlloc);
    if (!ret || size == 0)
        return failed(ncclInvalidArgument);
    *ret = NULL;
    if (!driver_find())
        return failed(ncclSystemError);
    ncclResult_t result = memory_alloc(ret, size);
    if (result == ncclSuccess && !call.outer)
        counts.mem_allocs++;
    return failed(result);
}

API(ncclResult_t, MemFree, (void *at))
{
    ENTER(ncclMemFree);
    ncclResult_t result = at ? memory_free(at) : ncclSuccess;

    if (result == ncclSuccess && at && !call.outer)
        counts.mem_frees++;
    return failed(result);
}

API(ncclResult_t, CommRegister, (const ncclComm_t comm, void *at, size_t size, void **handle))
{
    COMM_ENTER(ncclCommRegister, comm, NEED_READY);
    if (!handle)
        return failed(ncclInvalidArgument);
    *handle = NULL;
    if (!settings.local_register)
        return ncclSuccess;
    PLACE(comm);
    ncclResult_t result = record_add(comm, at, size, handle);
    if (result == ncclSuccess && !call.outer)
        counts.registrations++;
    return failed(result);
}

/* Back to the caller's device by hand: a real one forgets to in some cases. */
API(ncclResult_t, CommDeregister, (const ncclComm_t comm, void *handle))
{
    COMM_ENTER(ncclCommDeregister, comm, NEED_READY);
    bool stay = false;
    ncclResult_t result = ncclSuccess;

    if (handle) {
        PLACE(comm);
        if (settings.deregister_ms)
            usleep((useconds_t)settings.deregister_ms * 1000);
        result = record_drop(comm, handle, false, &stay);
    }
    if (stay)
        device_leak(comm->ctx);
    if (result == ncclSuccess && handle && !call.outer)
        counts.deregistrations++;
    return failed(result);
}

API(ncclResult_t, CommWindowRegister, (ncclComm_t comm, void *at, size_t size, ncclWindow_t *window, int flags))
{
    COMM_ENTER(ncclCommWindowRegister, comm, NEED_READY);
    if (!window)
        return failed(ncclInvalidArgument);
    *window = NULL;
    return job_start(
        (struct job){.kind = JOB_WINDOW, .comm = comm, .buffer = at, .size = size, .window = window, .flags = flags});
}

API(ncclResult_t, CommWindowDeregister, (ncclComm_t comm, ncclWindow_t window))
{
    COMM_ENTER(ncclCommWindowDeregister, comm, NEED_READY);
    bool stay;

    if (!window)
        return ncclSuccess;
    PLACE(comm);
    ncclResult_t result = record_drop(comm, window, true, &stay);
    if (result != ncclSuccess)
        return failed(result);
    call.may = "ncclCommDeregister";
    result = ncclCommDeregister(comm, ((struct record *)(void *)window)->inner);
    call.may = NULL;
    return failed(result);
}
