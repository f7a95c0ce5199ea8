/* SPDX-License-Identifier: Apache-2.0 */
/* pool_segments.c - see pool_segments.h. No locks. */
#include "nccl/pool_segments.h"

#include <errno.h>

#include "base/log.h"
#include "context/arrivals.h"
#include "context/lifetime.h"
#include "context/nccl_memory.h"
#include "context/vmm_map.h"
#include "nccl/direct.h"
#include "nccl/register_calls.h"
#include "real/real.h"

typedef unsigned long long ull;

/* The result of the real ncclMemFree, for nccl_user_memory_free. */
static __thread ncclResult_t freed __attribute__((tls_model("initial-exec")));

void nccl_segment_add(struct context *owner, int device, uint64_t addr, size_t size)
{
    struct nccl_reg_segment_info info = {.addr = addr, .size = size, .device = device, .owner = owner};
    int rc;

    if (!nccl_registers())
        return;
    direct_range_ends(addr, size);
    info.front = vmm_front(addr);
    if (!info.front)
        info.front = nccl_memory_front(addr);
    info.plain = !nccl_memory_is_shareable(addr);
    rc = nccl_reg_segment_add(nccl_registry(), &info);
    if (rc == -EEXIST) {
        /* The earlier segment here went with its context, without a call of our hooks, or before one. */
        nccl_reg_range_lost(nccl_registry(), addr, size);
        /* Or it was unmapped at a time when it could not be deregistered. After range_lost, which forgets what must not
         * be released any more: other memory is there. */
        nccl_retry_parked(device);
        rc = nccl_reg_segment_add(nccl_registry(), &info);
    }
    if (rc)
        log_once(LOG_WARN, "%zu bytes at %#llx will not be registered with NCCL", size, (ull)addr);
}

static int current_device(void)
{
    const struct real_driver *driver = real_driver_get();
    CUdevice device;

    return driver && driver->cuCtxGetDevice(&device) == CUDA_SUCCESS ? device : -1;
}

void nccl_user_memory(uint64_t addr, size_t size)
{
    const struct real_driver *driver = real_driver_get();
    const int device = current_device();

    if (device >= 0)
        nccl_segment_add(context_current(driver), device, addr, size);
}

static void user_release(void *arg, uint64_t addr, size_t size)
{
    ncclResult_t (*next)(void *) = (__typeof__(next))arg;
    struct nccl_visit visit;

    (void)size;
    nccl_visit_begin(&visit);
    freed = next((void *)(uintptr_t)addr);
    nccl_visit_end(&visit);
    context_arrived();
}

ncclResult_t nccl_user_memory_free(void *ptr, ncclResult_t (*next)(void *))
{
    /* Memory that cannot go now is released later; the program has no more to do with it. */
    int rc;

    freed = ncclSuccess;
    rc = nccl_segment_remove((uintptr_t)ptr, user_release, (void *)next);
    /* -EALREADY: the memory waits to be released and has no owner; natively the driver would not know the address. */
    return rc == -EALREADY ? ncclUnhandledCudaError : rc ? next(ptr) : freed;
}
