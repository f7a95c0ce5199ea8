/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comms.c - see comms.h.
 *
 * Locking: none of its own; the state of a group is its thread's.
 */
#include "nccl/comms.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/process.h"
#include "context/capture_gate.h"
#include "context/nccl_memory.h"
#include "nccl/direct.h"
#include "nccl/register_calls.h"
#include "real/real.h"
#include "trace/trace.h"

/* This thread has made a communicator in its open group; the communicator is not ready before the group has ended. */
static __thread bool made_in_group __attribute__((tls_model("initial-exec")));
/* Communicators that the end of this thread's group destroys. Until then NCCL has them and their registrations. */
struct ending {
    struct ending *next;
    ncclComm_t comm;
};
static __thread struct ending *ending __attribute__((tls_model("initial-exec")));

/* Read the device, rank and size of a communicator that is ready. */
static bool comm_describe(const struct real_nccl *nccl, ncclComm_t comm, struct nccl_reg_comm_info *info)
{
    struct nccl_visit visit;
    bool known;

    nccl_visit_begin(&visit);
    known = !nccl->ncclCommCuDevice(comm, &info->device) && !nccl->ncclCommUserRank(comm, &info->rank) &&
            !nccl->ncclCommCount(comm, &info->ranks);
    nccl_visit_end(&visit);
    return known;
}

/*
 * Add a communicator to the registry. However it was made, it is ready when the program uses it, or that use fails.
 * Only inside the group that made it, it looks ready too early.
 */
static bool comm_add(ncclComm_t comm, const void *caller)
{
    const struct real_nccl *nccl = real_nccl_get(caller);
    /* NCCL copies the settings of its own files into the environment, too. */
    const char *legacy = getenv("NCCL_LEGACY_CUDA_REGISTER");
    struct nccl_reg_comm_info info = {.arg = (void *)nccl};
    int version;

    if (!nccl || !nccl->ncclCommRegister || !nccl->ncclCommDeregister || !nccl->ncclCommGetAsyncError ||
        !nccl->ncclCommCuDevice || !nccl->ncclCommUserRank || !nccl->ncclCommCount) {
        log_once(LOG_WARN, "this NCCL cannot register memory (it takes 2.19 or later)");
        return false;
    }
    if ((made_in_group && nccl_reg_group_depth()) || nccl_comm_state(nccl, comm) || !comm_describe(nccl, comm, &info))
        return false;
    version = nccl_version_of(nccl);
    info.careful = nccl_kinds_matter(nccl);
    info.maps_plain = version < NCCL_VERSION_NO_LEGACY || (legacy && strcmp(legacy, "0") != 0);
    if (nccl_reg_comm_add(nccl_registry(), comm, &info))
        return false;
    process_start();
    trace_open();
    trace_event("comm_init", "\"d\":%d,\"comm\":\"%p\",\"rank\":%d,\"ranks\":%d,\"nccl\":%d", info.device, (void *)comm,
                info.rank, info.ranks, version);
    return true;
}

bool nccl_comm_get(ncclComm_t comm, const void *caller, struct nccl_reg_comm_info *ret_info)
{
    if (!comm)
        return false;
    return nccl_reg_comm_get(nccl_registry(), comm, ret_info) == 0 ||
           (comm_add(comm, caller) && nccl_reg_comm_get(nccl_registry(), comm, ret_info) == 0);
}

bool nccl_comm_is_open(ncclComm_t comm)
{
    return nccl_reg_comm_is_open(nccl_registry(), comm);
}

int nccl_comm_ask(ncclComm_t comm)
{
    return nccl_reg_comm_ask(nccl_registry(), comm);
}

unsigned int nccl_poll_begin(ncclComm_t comm)
{
    return nccl_reg_poll_begin(nccl_registry(), comm);
}

void nccl_poll_end(ncclComm_t comm, unsigned int begun, ncclResult_t state)
{
    nccl_reg_poll_end(nccl_registry(), comm, begun, state ? -EINPROGRESS : 0);
}

void nccl_comm_made(const ncclComm_t *comm, ncclResult_t result, const void *caller)
{
    if (!comm || !*comm || (result && result != ncclInProgress))
        return;
    /* An earlier communicator at this address has gone without a call of our hooks. */
    nccl_reg_comm_remove(nccl_registry(), *comm, /* talk: */ false);
    if (nccl_reg_group_depth())
        made_in_group = true;
    else if (!result)
        comm_add(*comm, caller);
}

void nccl_comm_ends(ncclComm_t comm, enum nccl_end how)
{
    struct nccl_reg_comm_info info;

    if (!comm || nccl_reg_comm_get(nccl_registry(), comm, &info))
        return;
    if (how == NCCL_END_SILENT || how == NCCL_END_CLOSE)
        nccl_reg_comm_close(nccl_registry(), comm);
    else if (!(how == NCCL_END_FINALIZE ? nccl_reg_comm_finalize(nccl_registry(), comm)
                                        : nccl_reg_comm_remove(nccl_registry(), comm, /* talk: */ true)))
        trace_event("comm_destroy", "\"d\":%d,\"comm\":\"%p\",\"ok\":1", info.device, (void *)comm);
}

/* Registrations left with the communicator belonged to NCCL until now. */
static void comm_gone(ncclComm_t comm)
{
    struct nccl_reg_comm_info info;

    if (!nccl_reg_comm_get(nccl_registry(), comm, &info) && !nccl_reg_comm_gone(nccl_registry(), comm))
        trace_event("comm_destroy", "\"d\":%d,\"comm\":\"%p\",\"ok\":0", info.device, (void *)comm);
}

void nccl_comm_ended(ncclComm_t comm, enum nccl_end how, ncclResult_t result)
{
    if (!comm)
        return;
    /* ncclInvalidArgument: the call was refused, as while an earlier one on a communicator that does not block is under
     * way, and the communicator goes on. After any other error NCCL has already given up the communicator's work. */
    if (how != NCCL_END_SILENT && result == ncclInvalidArgument) {
        nccl_reg_comm_reopen(nccl_registry(), comm);
        return;
    }
    if (how == NCCL_END_SILENT || how == NCCL_END_TALK) {
        struct ending *one = nccl_reg_group_depth() ? malloc(sizeof(*one)) : NULL;

        if (one) {
            *one = (struct ending){.next = ending, .comm = comm};
            ending = one;
        } else {
            comm_gone(comm);
        }
    }
    /* After an abort no call is made on other communicators: their peers may hang, too. */
    if (how == NCCL_END_TALK || how == NCCL_END_FINALIZE)
        nccl_retry_parked(-1);
}

struct nccl_reg_comm *nccl_use_begin(ncclComm_t comm, const void *caller)
{
    struct nccl_reg_comm_info info;
    struct nccl_reg_comm *used = NULL;

    if (nccl_comm_get(comm, caller, &info))
        nccl_reg_before_call(nccl_registry(), comm, &used);
    return used;
}

const void *nccl_looked_up(const void *from, const void *to, size_t size)
{
    const struct real_driver *driver = real_driver_get();
    const CUdeviceptr addr = (uintptr_t)from;
    CUdeviceptr start = 0;
    size_t whole = 0;

    return driver && driver->cuPointerGetAttribute &&
                   !driver->cuPointerGetAttribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, addr) &&
                   !driver->cuPointerGetAttribute(&whole, CU_POINTER_ATTRIBUTE_RANGE_SIZE, addr) &&
                   addr - start <= whole && size <= whole - (addr - start)
               ? from
               : to;
}

struct nccl_reg_comm *nccl_before(ncclComm_t comm, const struct nccl_reg_comm_info *info, struct nccl_reg_op *op,
                                  cudaStream_t stream)
{
    struct nccl_reg_comm *used;
    int found;

    op->captured = capture_active_on(stream);
    direct_prepare(op, info->device);
    found = nccl_reg_before_op(nccl_registry(), comm, op, &used);
    if (found < 0)
        return NULL;
    if (found & NCCL_REG_MIXED)
        log_once(LOG_WARN,
                 "an NCCL operation has one buffer in registered memory and one outside; if that is not so on "
                 "all ranks, the job may hang (CUPOOL_REGISTER=0 registers nothing)");
    if (found & NCCL_REG_UNSAFE)
        log_once(LOG_ERROR,
                 "a collective uses memory that send or receive has used first, and the device is at work (or "
                 "cannot be asked, before CUDA 12.5), or a graph or the program itself holds its registration; NCCL "
                 "before 2.29.2 may end the job (CUPOOL_REGISTER=0 registers nothing)");
    return used;
}

void nccl_after(ncclComm_t comm, struct nccl_reg_comm *used, ncclResult_t result)
{
    if (result == ncclInProgress)
        nccl_reg_comm_nonblocking(nccl_registry(), comm);
    nccl_reg_after_op(used);
}

void nccl_group_started(void)
{
    nccl_reg_group_start();
}

void nccl_group_ended(ncclResult_t result)
{
    nccl_reg_group_end(result == ncclInProgress);
    made_in_group = made_in_group && nccl_reg_group_depth();
    while (ending && !nccl_reg_group_depth()) {
        struct ending *one = ending;

        ending = one->next;
        comm_gone(one->comm);
        free(one);
    }
}

int nccl_user_registered(ncclComm_t comm, void *handle, uint64_t addr, size_t size)
{
    return nccl_reg_user_add(nccl_registry(), comm, handle, addr, size);
}

bool nccl_user_known(ncclComm_t comm, void *handle)
{
    return nccl_reg_user_known(nccl_registry(), comm, handle);
}

int nccl_user_deregistered(ncclComm_t comm, void *handle)
{
    return nccl_reg_user_remove(nccl_registry(), comm, handle);
}
