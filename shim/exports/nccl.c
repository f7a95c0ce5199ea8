/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nccl.c - the exported functions of NCCL, one for each row of hooks/nccl.def. The only file that returns
 * ncclResult_t to the program; nccl/ makes the decisions.
 *
 * With CUPOOL_REGISTER=0 each function only calls the function that the program would have called.
 *
 * Locking: none.
 */
#include "context/registry.h"
#include "context/strict.h"
#include "exports/export.h"
#include "exports/retry.h"
#include "nccl/comms.h"
#include "nccl/pool_segments.h"
#include "nccl/register_calls.h"
#include "pool.h"
#include "real/real.h"

/* The counts of elements that rows name. */
#define MINE        count
#define ALL         ((size_t)info.ranks * count)
#define ROOT(count) (info.rank == root ? (count) : 0)
/* NCCL looks this buffer up on every rank, and reads it at the root alone. */
#define SENT(from, to)                                                                                                 \
    ((from) = info.rank == root || (from) == (to) ? (from) : nccl_looked_up(from, to, nccl_type_size(type) * count))

#define NCCL(symbol, parameters)
#define NCCL_OP(symbol, parameters, arguments, op_kind, from, from_count, to, to_count)                                \
    EXPORT ncclResult_t symbol parameters                                                                              \
    {                                                                                                                  \
        const __typeof__(&(symbol)) next = real_nccl_next(symbol, CALLER);                                             \
        struct nccl_reg_comm_info info;                                                                                \
        const bool watched = nccl_watches(CALLER) && nccl_comm_get(comm, CALLER, &info);                               \
        struct nccl_reg_op op_ = {.kind = NCCL_REG_##op_kind};                                                         \
        struct nccl_reg_comm *used = NULL;                                                                             \
        ncclResult_t result;                                                                                           \
                                                                                                                       \
        if (watched) {                                                                                                 \
            op_.buffers[0].addr = (uintptr_t)(from);                                                                   \
            op_.buffers[0].size = nccl_type_size(type) * (from_count);                                                 \
            op_.buffers[1].addr = (uintptr_t)(to);                                                                     \
            op_.buffers[1].size = nccl_type_size(type) * (to_count);                                                   \
            used = nccl_before(comm, &info, &op_, stream);                                                             \
        }                                                                                                              \
        result = next arguments; /* NOLINT(bugprone-macro-parentheses): a list */                                      \
        if (watched)                                                                                                   \
            nccl_after(comm, used, result);                                                                            \
        return result;                                                                                                 \
    }
#define NCCL_MAKE(symbol, parameters, arguments, comms, count)                                                         \
    EXPORT ncclResult_t symbol parameters                                                                              \
    {                                                                                                                  \
        const __typeof__(&(symbol)) next = real_nccl_next(symbol, CALLER);                                             \
        const bool watched = nccl_watches(CALLER);                                                                     \
        const ncclResult_t result = next arguments; /* NOLINT(bugprone-macro-parentheses): a list */                   \
                                                                                                                       \
        for (int i_ = 0; watched && (comms) && i_ < (count); i_++)                                                     \
            nccl_comm_made(&(comms)[i_], result, CALLER);                                                              \
        return result;                                                                                                 \
    }
#define NCCL_USE(symbol, parameters, arguments, of, made)                                                              \
    EXPORT ncclResult_t symbol parameters                                                                              \
    {                                                                                                                  \
        const __typeof__(&(symbol)) next = real_nccl_next(symbol, CALLER);                                             \
        const bool watched = nccl_watches(CALLER);                                                                     \
        struct nccl_reg_comm *used = watched ? nccl_use_begin(of, CALLER) : NULL;                                      \
        const ncclResult_t result = next arguments; /* NOLINT(bugprone-macro-parentheses): a list */                   \
                                                                                                                       \
        if (watched) {                                                                                                 \
            nccl_comm_made(made, result, CALLER);                                                                      \
            nccl_after(of, used, result);                                                                              \
        }                                                                                                              \
        return result;                                                                                                 \
    }
#define NCCL_END(symbol, parameters, arguments, how)                                                                   \
    EXPORT ncclResult_t symbol parameters                                                                              \
    {                                                                                                                  \
        const __typeof__(&(symbol)) next = real_nccl_next(symbol, CALLER);                                             \
        const bool watched = nccl_watches(CALLER);                                                                     \
        ncclResult_t result;                                                                                           \
                                                                                                                       \
        if (watched)                                                                                                   \
            nccl_comm_ends(comm, NCCL_END_##how);                                                                      \
        result = next arguments; /* NOLINT(bugprone-macro-parentheses): a list */                                      \
        if (watched)                                                                                                   \
            nccl_comm_ended(comm, NCCL_END_##how, result);                                                             \
        return result;                                                                                                 \
    }
#include "hooks.def"

EXPORT ncclResult_t ncclCommShrink(ncclComm_t parent, int *without, int without_count, ncclComm_t *comm,
                                   ncclConfig_t *config, int flags)
{
    const __typeof__(&ncclCommShrink) next = real_nccl_next(ncclCommShrink, CALLER);
    struct nccl_reg_comm *used = NULL;
    ncclResult_t result;

    if (!nccl_watches(CALLER))
        return next(parent, without, without_count, comm, config, flags);
    /* NCCL aborts the parent's work before it checks anything else, so the parent is closed in any case. */
    if (flags & NCCL_SHRINK_ABORT)
        nccl_comm_ends(parent, NCCL_END_CLOSE);
    else
        used = nccl_use_begin(parent, CALLER);
    result = next(parent, without, without_count, comm, config, flags);
    nccl_comm_made(comm, result, CALLER);
    nccl_after(parent, used, result);
    return result;
}

EXPORT ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error)
{
    const __typeof__(&ncclCommGetAsyncError) next = real_nccl_next(ncclCommGetAsyncError, CALLER);
    ncclResult_t result;
    unsigned int begun;

    if (!nccl_watches(CALLER) || !comm || !error)
        return next(comm, error);
    begun = nccl_poll_begin(comm);
    result = next(comm, error);
    nccl_poll_end(comm, begun, result ? result : *error);
    return result;
}

EXPORT ncclResult_t ncclGroupStart(void)
{
    const __typeof__(&ncclGroupStart) next = real_nccl_next(ncclGroupStart, CALLER);
    ncclResult_t result;

    if (!nccl_watches(CALLER))
        return next();
    result = next();
    if (!result)
        nccl_group_started();
    return result;
}

EXPORT ncclResult_t ncclGroupEnd(void)
{
    const __typeof__(&ncclGroupEnd) next = real_nccl_next(ncclGroupEnd, CALLER);
    ncclResult_t result;

    if (!nccl_watches(CALLER))
        return next();
    result = next();
    nccl_group_ended(result);
    return result;
}

EXPORT ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t *info)
{
    const __typeof__(&ncclGroupSimulateEnd) next = real_nccl_next(ncclGroupSimulateEnd, CALLER);
    ncclResult_t result;

    if (!nccl_watches(CALLER))
        return next(info);
    result = next(info);
    nccl_group_ended(result);
    return result;
}

EXPORT ncclResult_t ncclMemAlloc(void **ptr, size_t size)
{
    const __typeof__(&ncclMemAlloc) next = real_nccl_next(ncclMemAlloc, CALLER);
    ncclResult_t result;
    struct retry retry;

    if (!nccl_watches(CALLER))
        return next(ptr, size);
    retry = retry_begin();
    do {
        retry_later = (struct retry_later){.on = true};
        result = next(ptr, size);
        retry_later.on = false;
    } while (result && retry_later.refused && retry_again(&retry, CUDA_ERROR_OUT_OF_MEMORY));
    if (!result && ptr && *ptr && size)
        nccl_user_memory((uintptr_t)*ptr, size);
    return result;
}

EXPORT ncclResult_t ncclMemFree(void *ptr)
{
    const __typeof__(&ncclMemFree) next = real_nccl_next(ncclMemFree, CALLER);

    if (!nccl_watches(CALLER) || !ptr)
        return next(ptr);
    policy_frees_wait(/* others: */ true); /* NCCL waits for no work */
    /* NCCL does not know the pool's memory as its own, and must not lose the registration of a segment. */
    return context_pool_at((uintptr_t)ptr) ? next(ptr) : nccl_user_memory_free(ptr, next);
}

EXPORT ncclResult_t ncclCommRegister(ncclComm_t comm, void *ptr, size_t size, void **handle)
{
    const __typeof__(&ncclCommRegister) next = real_nccl_next(ncclCommRegister, CALLER);
    struct nccl_reg_op nothing = {.kind = NCCL_REG_COLLECTIVE};
    struct nccl_reg_comm_info info;
    struct nccl_reg_comm *used;
    ncclResult_t result;

    if (!nccl_watches(CALLER) || !nccl_comm_get(comm, CALLER, &info))
        return next(comm, ptr, size, handle);
    used = nccl_before(comm, &info, &nothing, NULL);
    result = next(comm, ptr, size, handle);
    if (!result && handle && *handle)
        nccl_user_registered(comm, *handle, (uintptr_t)ptr, size);
    nccl_after(comm, used, result);
    return result;
}

EXPORT ncclResult_t ncclCommDeregister(ncclComm_t comm, void *handle)
{
    const __typeof__(&ncclCommDeregister) next = real_nccl_next(ncclCommDeregister, CALLER);
    struct nccl_reg_op nothing = {.kind = NCCL_REG_COLLECTIVE};
    struct nccl_reg_comm_info info;
    struct nccl_reg_comm *used;
    ncclResult_t result;

    if (!nccl_watches(CALLER) || !nccl_comm_get(comm, CALLER, &info))
        return next(comm, handle);
    used = nccl_before(comm, &info, &nothing, NULL);
    result = next(comm, handle);
    if (!result) /* if NCCL refuses, the memory may still be registered */
        nccl_user_deregistered(comm, handle);
    nccl_after(comm, used, result);
    return result;
}
