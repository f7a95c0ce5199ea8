/* SPDX-License-Identifier: Apache-2.0 */
/*
 * register_calls.c - see register_calls.h.
 *
 * Locking: none of its own.
 */
#include "nccl/register_calls.h"

#include <errno.h>
#include <pthread.h>

#include "base/conf.h"
#include "base/log.h"
#include "base/process.h"
#include "clock.h"
#include "context/nccl_memory.h"
#include "context/registry.h"
#include "context/wait_device.h"
#include "real/caller.h"
#include "real/real.h"
#include "trace/trace.h"

typedef unsigned long long ull;

_Atomic(struct nccl_reg *) nccl_registry_private;

static pthread_once_t once = PTHREAD_ONCE_INIT;

static void trace_call(const char *event, const struct nccl_reg_comm_info *info, void *comm, uint64_t addr, size_t size,
                       uint64_t ns, ncclResult_t result)
{
    trace_event(event, "\"d\":%d,\"p\":\"0x%llx\",\"n\":%zu,\"comm\":\"%p\",\"us\":%llu.%llu,\"ok\":%d", info->device,
                (ull)addr, size, comm, TRACE_US(ns), !result);
}

static int comm_attach(const struct nccl_reg_comm_info *info, void *comm, uint64_t addr, size_t size, void **ret_handle)
{
    const struct real_nccl *nccl = info->arg;
    void *handle = NULL; /* NCCL does not always write it */
    struct nccl_visit visit;
    ncclResult_t result;
    uint64_t start;

    nccl_visit_begin(&visit);
    start = now_ns();
    result = nccl->ncclCommRegister(comm, (void *)(uintptr_t)addr, size, &handle);
    trace_call("register", info, comm, addr, size, now_ns() - start, result);
    nccl_visit_end(&visit);
    if (result)
        log_once(LOG_WARN, "NCCL did not register %zu bytes at %#llx (error %d); they are used without", size,
                 (ull)addr, (int)result);
    else if (!handle)
        log_once(LOG_WARN, "NCCL registers nothing (is NCCL_LOCAL_REGISTER=0 set?)");
    *ret_handle = handle;
    return result ? -EIO : 0;
}

static int comm_detach(const struct nccl_reg_comm_info *info, void *comm, uint64_t addr, size_t size, void *handle)
{
    const struct real_nccl *nccl = info->arg;
    struct nccl_visit visit;
    ncclResult_t result;
    uint64_t start;

    nccl_visit_begin(&visit);
    start = now_ns();
    result = nccl->ncclCommDeregister(comm, handle);
    trace_call("deregister", info, comm, addr, size, now_ns() - start, result);
    nccl_visit_end(&visit);
    if (result)
        log_once(LOG_WARN, "NCCL did not deregister %zu bytes at %#llx (error %d); they are not given back", size,
                 (ull)addr, (int)result);
    return result ? -EIO : 0;
}

int nccl_comm_state(const struct real_nccl *nccl, void *comm)
{
    ncclResult_t now = ncclInProgress, result;
    struct nccl_visit visit;

    nccl_visit_begin(&visit);
    result = nccl->ncclCommGetAsyncError(comm, &now);
    nccl_visit_end(&visit);
    return !result && !now ? 0 : !result && now == ncclInProgress ? -EINPROGRESS : -EIO;
}

static int comm_ask(const struct nccl_reg_comm_info *info, void *comm)
{
    return nccl_comm_state(info->arg, comm);
}

static int comm_wait(const struct nccl_reg_comm_info *info, unsigned int ms)
{
    return context_wait_device_for(info->device, ms) ? 0 : -EBUSY;
}

static bool owner_hold(void *owner)
{
    return context_pin(owner);
}

static void owner_drop(void *owner)
{
    context_unpin(owner);
}

static const struct nccl_reg_ops ops = {.attach = comm_attach,
                                        .detach = comm_detach,
                                        .ask = comm_ask,
                                        .wait = comm_wait,
                                        .hold = owner_hold,
                                        .drop = owner_drop};

static void begin(void)
{
    struct nccl_reg *reg;

    if (nccl_reg_create(&ops, &reg) == 0)
        atomic_store(&nccl_registry_private, reg);
}

bool nccl_registers(void)
{
    if (conf_get()->registration.number == REGISTER_OFF)
        return false;
    if (!CUPOOL_NCCL_HOOKS) {
        log_once(LOG_WARN, "CUPOOL_REGISTER has no effect: it takes libcupool-nccl.so in place of libcupool.so "
                           "(cupool-run --register sees to that)");
        return false;
    }
    pthread_once(&once, begin);
    return nccl_registry_private != NULL;
}

bool nccl_sees_operations(void)
{
    return nccl_registry_private && nccl_reg_comm_any(nccl_registry_private);
}

int nccl_segment_use(struct context *owner, int device, uint64_t addr, size_t size)
{
    /* Memory without an owner was mapped with cuMemMap. */
    const struct nccl_reg_segment_info info = {
        .addr = addr, .size = size, .device = device, .plain = owner != NULL, .own = true, .owner = owner};

    return nccl_reg_segment_add(nccl_registry_private, &info);
}

int nccl_segment_remove(uint64_t addr, void (*release)(void *arg, uint64_t addr, size_t size), void *arg)
{
    return nccl_registers() ? nccl_reg_segment_remove(nccl_registry_private, addr, release, arg) : -ENOENT;
}

void nccl_segment_lost(const struct context *owner, uint64_t addr)
{
    if (nccl_registers())
        nccl_reg_segment_lost(nccl_registry_private, addr, owner);
}

void nccl_owner_ends(const struct context *owner)
{
    if (nccl_registers())
        nccl_reg_owner_ends(nccl_registry_private, owner);
}

void nccl_owner_stays(const struct context *owner)
{
    if (nccl_registers())
        nccl_reg_owner_stays(nccl_registry_private, owner);
}

void nccl_owner_lost(const struct context *owner)
{
    if (nccl_registers())
        nccl_reg_owner_lost(nccl_registry_private, owner);
}

bool nccl_watches(const void *caller)
{
    /* This check is a large part of an operation's overhead, so the settings are read only until reg is set. */
    const bool there = atomic_load(&nccl_registry_private) != NULL;

    return (there || conf_get()->registration.number != REGISTER_OFF) && !process_is_passive() &&
           caller_of(caller) != CALLER_INSIDE && (there || nccl_registers());
}

bool nccl_stats_get(struct nccl_reg_stats *ret_stats)
{
    if (!nccl_registry_private)
        return false;
    nccl_reg_stats_get(nccl_registry_private, ret_stats);
    return true;
}
