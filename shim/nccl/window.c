/* SPDX-License-Identifier: Apache-2.0 */
/*
 * window.c - see window.h.
 *
 * Locking: none of its own; a communicator's lock in nccl_reg.
 */
#include "nccl/window.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/process.h"
#include "clock.h"
#include "context/arrivals.h"
#include "context/capture_gate.h"
#include "context/device.h"
#include "context/nccl_memory.h"
#include "nccl/comms.h"
#include "nccl/register_calls.h"
#include "real/real.h"
#include "trace/trace.h"

/* The values of NCCL_WIN_COLL_SYMMETRIC and ncclUint8 in nccl.h. */
#define COLL_SYMMETRIC 1
#define TYPE_BYTES     1
/* The greatest errno value. */
#define PROBLEM_MAX 4095u

/* The message of a rank about its memory to the other ranks. */
struct offer {
    uint64_t problem; /* an errno value; 0: none */
    uint64_t start;   /* of the buffer, as an offset in its allocation */
    uint64_t size;    /* of the allocation */
};

struct range {
    uint64_t addr;
    size_t size;
};

/* The name of a window among the communicator's registrations; it differs from every registration's handle. */
static void *name_of(ncclWindow_t window)
{
    return (char *)window + 1;
}

static __typeof__(&(ncclAllGather)) gather_of(const struct real_nccl *nccl)
{
    return (__typeof__(&(ncclAllGather)))nccl->next[REAL_NCCL_ncclAllGather];
}

/* Wait until the call on a communicator that does not block has completed. */
static int finish(ncclComm_t comm, ncclResult_t result)
{
    int rc = result == ncclInProgress ? -EINPROGRESS : result ? -EIO : 0;

    while (rc == -EINPROGRESS) {
        nap_ns(50000);
        rc = nccl_comm_ask(comm); /* another thread may have closed the communicator */
    }
    return rc;
}

/* The allocation that holds the buffer: NCCL makes windows of whole allocations. */
static int allocation_of(uint64_t addr, size_t size, struct range *ret_whole)
{
    const struct real_driver *driver = real_driver_get();
    unsigned long long handles = 0;
    CUdeviceptr start = 0;
    size_t whole = 0;

    if (!driver->cuPointerGetAttribute ||
        driver->cuPointerGetAttribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, addr) ||
        driver->cuPointerGetAttribute(&whole, CU_POINTER_ATTRIBUTE_RANGE_SIZE, addr))
        return -EINVAL;
    *ret_whole = (struct range){.addr = start, .size = whole};
    if (!size || addr - start >= whole || size > whole - (addr - start))
        return -EINVAL;
    /* Peers can map only such memory; memory of cudaMalloc or of a stream-ordered pool is not. */
    return driver->cuPointerGetAttribute(&handles, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, addr) || !handles
               ? -ENOTSUP
               : 0;
}

/* Gather all ranks' offers, first in device memory. */
static CUresult gather(const struct real_nccl *nccl, ncclComm_t comm, CUdeviceptr at, CUstream stream, int ranks,
                       const struct offer *mine, struct offer *ret_all)
{
    const struct real_driver *driver = real_driver_get();
    const size_t all = (size_t)ranks * sizeof(*mine);
    CUresult result = CUDA_SUCCESS;

    /* A value that no rank sends, in case the operation is aborted. */
    result = driver->cuMemsetD8Async(at, 0xff, all, stream);
    /* A few bytes, once in a program's life: written by fills, which need no further function of the driver. */
    for (size_t i = 0; !result && i < sizeof(*mine); i++)
        result = driver->cuMemsetD8Async(at + all + i, ((const unsigned char *)mine)[i], 1, stream);
    if (!result && finish(comm, gather_of(nccl)((const void *)(uintptr_t)(at + all), (void *)(uintptr_t)at,
                                                sizeof(*mine), TYPE_BYTES, comm, (cudaStream_t)stream)))
        result = CUDA_ERROR_UNKNOWN;
    if (!result)
        result = driver->cuMemcpyDtoHAsync_v2(ret_all, at, all, stream);
    return result ? result : driver->cuStreamSynchronize(stream);
}

/* Exchange offers with the other ranks. Returns the first problem, the same one on all ranks. */
static int agree(const struct real_nccl *nccl, ncclComm_t comm, int rank, int ranks, const struct offer *mine)
{
    const struct real_driver *driver = real_driver_get();
    struct offer *all = calloc((size_t)ranks, sizeof(*all));
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    CUstream stream = NULL;
    CUdeviceptr at = 0;
    int rc = 0;

    if (all && driver->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS) {
        const unsigned int before = context_arrivals();

        result = driver->cuMemAlloc_v2(&at, (size_t)(ranks + 1) * sizeof(*all));
        if (result == CUDA_ERROR_OUT_OF_MEMORY && process_has_begun() && context_trim(before))
            result = driver->cuMemAlloc_v2(&at, (size_t)(ranks + 1) * sizeof(*all));
        if (!result)
            result = gather(nccl, comm, at, stream, ranks, mine, all);
        if (at)
            driver->cuMemFree_v2(at);
        driver->cuStreamDestroy_v2(stream);
    }
    if (result || memcmp(&all[rank], mine, sizeof(*mine)) != 0)
        rc = -EIO;
    for (int i = 0; !rc && i < ranks; i++)
        rc = all[i].problem > PROBLEM_MAX ? -EIO : -(int)all[i].problem;
    for (int i = 0; !rc && i < ranks; i++)
        rc = all[i].start == all[0].start && all[i].size == all[0].size ? 0 : -EXDEV;
    free(all);
    return rc;
}

/* Can windows be made with the loaded libraries, now and by this thread? 0 or a negative errno value. */
static int possible(ncclComm_t comm, struct nccl_reg_comm_info *ret_info)
{
    const struct real_driver *driver = real_driver_get();
    const struct real_nccl *nccl;
    CUdevice device;

    if (!driver || !nccl_registers())
        return -ENOTSUP;
    if (nccl_reg_group_depth())
        return -EBUSY;
    if (!nccl_comm_get(comm, NULL, ret_info))
        return -EINVAL;
    nccl = ret_info->arg;
    if (!nccl->next[REAL_NCCL_ncclCommWindowRegister] || !nccl->next[REAL_NCCL_ncclCommWindowDeregister] ||
        !gather_of(nccl) || !driver->cuStreamCreate || !driver->cuStreamDestroy_v2 || !driver->cuStreamSynchronize ||
        !driver->cuMemsetD8Async || !driver->cuMemcpyDtoHAsync_v2)
        return -ENOTSUP;
    return driver->cuCtxGetDevice(&device) || device != ret_info->device ? -EINVAL : 0;
}

int window_register(ncclComm_t comm, uint64_t addr, size_t size, ncclWindow_t *ret_window)
{
    const struct real_nccl *nccl;
    struct nccl_reg_comm_info info;
    struct nccl_reg_comm *used;
    ncclWindow_t window = NULL;
    struct nccl_visit visit;
    struct range whole = {0};
    struct offer mine;
    int rc = possible(comm, &info);

    *ret_window = NULL;
    if (rc)
        return rc;
    nccl = info.arg;
    /* A capture of another thread is a local matter; the other ranks learn of it by this rank's offer. */
    rc = capture_active_now() ? -EBUSY : allocation_of(addr, size, &whole);
    /* The memory must stay from before the exchange to the end: it has a name of our own until NCCL has named the
     * window. */
    if (!rc)
        rc = nccl_user_registered(comm, ret_window, whole.addr, whole.size);
    mine = (struct offer){.problem = (uint64_t)-rc, .start = addr - whole.addr, .size = whole.size};
    used = nccl_use_begin(comm, NULL);
    nccl_visit_begin(&visit);
    rc = agree(nccl, comm, info.rank, info.ranks, &mine);
    if (!rc && !nccl_comm_is_open(comm))
        rc = -EIO;
    if (!rc) {
        const __typeof__(&ncclCommWindowRegister) call = (__typeof__(call))nccl->next[REAL_NCCL_ncclCommWindowRegister];

        rc = finish(comm, call(comm, (void *)(uintptr_t)whole.addr, whole.size, &window, COLL_SYMMETRIC)) || !window
                 ? -EIO
                 : 0;
    }
    nccl_visit_end(&visit);
    nccl_user_deregistered(comm, ret_window);
    if (!rc) {
        nccl_user_registered(comm, name_of(window), whole.addr,
                             whole.size); /* it takes the place of the first name, so there is room */
        *ret_window = window;
    }
    nccl_after(comm, used, 0);
    trace_event("window", "\"d\":%d,\"p\":\"0x%llx\",\"n\":%zu,\"comm\":\"%p\",\"ok\":%d", info.device,
                (unsigned long long)whole.addr, whole.size, (void *)comm, !rc);
    return rc;
}

int window_deregister(ncclComm_t comm, ncclWindow_t window)
{
    const struct real_nccl *nccl;
    struct nccl_reg_comm_info info;
    struct nccl_reg_comm *used;
    struct nccl_visit visit;
    int rc = possible(comm, &info);

    if (rc)
        return rc;
    nccl = info.arg;
    used = nccl_use_begin(comm, NULL);
    rc = nccl_user_known(comm, name_of(window)) ? 0 : -EINVAL;
    if (!rc) {
        const __typeof__(&ncclCommWindowDeregister) call =
            (__typeof__(call))nccl->next[REAL_NCCL_ncclCommWindowDeregister];

        nccl_visit_begin(&visit);
        rc = finish(comm, call(comm, window)) ? -EIO : 0;
        nccl_visit_end(&visit);
    }
    if (!rc) /* if NCCL refuses, the window may still be there */
        nccl_user_deregistered(comm, name_of(window));
    nccl_after(comm, used, 0);
    return rc;
}
