/* SPDX-License-Identifier: Apache-2.0 */
/*
 * standin.h - a stand-in for NCCL, which counts, logs and fails its calls as the fake driver does, and answers for the
 * other rank. For test_nccl_calls.c and test_nccl_direct.c.
 *
 * It registers nothing and moves no data, but for the few bytes that ranks exchange about windows.
 *
 * Threads: one.
 */
#ifndef CUPOOL_TESTS_SHIM_STANDIN_H
#define CUPOOL_TESTS_SHIM_STANDIN_H

#include "context/ready.h"
#include "nccl/comms.h"

/* --- functions, by number: the driver's, then NCCL's --- */

static const struct function {
    const char *name;
    bool needed; /* a driver without it is none */
} functions[] = {
#define DRIVER_CALL(symbol, parameters)   {#symbol, false},
#define DRIVER_NEEDED(symbol, parameters) {#symbol, true},
#include "real/calls.def"
#define NCCL_CALL(symbol, parameters) {#symbol, false},
#include "real/calls.def"
#define NCCL(symbol, parameters) {"next " #symbol, false},
#include "hooks.def"
};

#define NCCL_FN(member) (FNS + offsetof(struct real_nccl, member) / sizeof(void *))
#define NEXT_FN(symbol) (NCCL_FN(next) + REAL_NCCL_##symbol)

/* --- a stand-in for NCCL, and for the other rank --- */

static struct {
    struct real_nccl functions;
    ncclResult_t fault;
    unsigned int comms, handles, windows; /* made so far */
    int memory, streams;                  /* there now */
    unsigned int busy;                    /* so often a communicator says that its work goes on */
    bool fails_later;                     /* then it cannot say */
} nccl;

/* Does the call do what it is to do? What goes on in the background does. */
static bool does(size_t function, ncclResult_t *ret_result)
{
    *ret_result = fake_fails(function) ? nccl.fault : ncclSuccess;
    nccl.busy += *ret_result == ncclInProgress ? 2 : 0;
    return !*ret_result || *ret_result == ncclInProgress;
}

#define DOES(function, ...)                                                                                            \
    ncclResult_t result;                                                                                               \
    bool done;                                                                                                         \
                                                                                                                       \
    fake_log_add(__VA_ARGS__);                                                                                         \
    done = does(function, &result)

#define ANSWER(member, name, value)                                                                                    \
    static ncclResult_t name(ncclComm_t comm, int *ret)                                                                \
    {                                                                                                                  \
        DOES(NCCL_FN(member), #name ":%p", (void *)comm);                                                              \
        if (done)                                                                                                      \
            *ret = (value);                                                                                            \
        return result == ncclInProgress ? ncclSuccess : result;                                                        \
    }
ANSWER(ncclCommCuDevice, device, 0)
ANSWER(ncclCommUserRank, user_rank, 1)
ANSWER(ncclCommCount, ranks_of, 2)

static ncclResult_t error_of(ncclComm_t comm, ncclResult_t *ret)
{
    DOES(NCCL_FN(ncclCommGetAsyncError), "error_of:%p", (void *)comm);
    *ret = nccl.busy ? ncclInProgress : ncclSuccess;
    if (nccl.busy && --nccl.busy == 0 && nccl.fails_later)
        return ncclUnhandledCudaError;
    return done ? ncclSuccess : result;
}

static ncclResult_t version(int *ret)
{
    DOES(NCCL_FN(ncclGetVersion), "version");
    *ret = done ? 22800 : 0;
    return result;
}

static ncclResult_t memory_alloc(void **ret, size_t size)
{
    DOES(NEXT_FN(ncclMemAlloc), "nccl_alloc:%zu", size);
    if (!done)
        return result;
    fake_range_add(fake.next, size, CU_MEMORYTYPE_DEVICE, 0);
    fake_range_of(fake.next)->shareable = true;
    *ret = (void *)(uintptr_t)fake.next;
    fake.next += size;
    nccl.memory++;
    return ncclSuccess;
}

static ncclResult_t memory_free(void *ptr)
{
    DOES(NEXT_FN(ncclMemFree), "nccl_free:%p", ptr);
    if (done) {
        fake_range_of((uintptr_t)ptr)->size = 0;
        nccl.memory--;
    }
    return done ? ncclSuccess : result;
}

static ncclResult_t attach(ncclComm_t comm, void *ptr, size_t size, void **ret)
{
    DOES(NCCL_FN(ncclCommRegister), "attach:%p,%p,%zu", (void *)comm, ptr, size);
    if (done)
        *ret = (void *)(uintptr_t)(0x1000 + 16 * ++nccl.handles);
    return result == ncclInProgress ? ncclSuccess : result;
}

static ncclResult_t detach(ncclComm_t comm, void *handle)
{
    DOES(NCCL_FN(ncclCommDeregister), "detach:%p,%p", (void *)comm, handle);
    return done ? ncclSuccess : result;
}

static ncclResult_t comm_make(ncclComm_t *ret, int ranks, ncclUniqueId id, int rank)
{
    DOES(NEXT_FN(ncclCommInitRank), "make:%d,%d", ranks, rank);
    if (done)
        *ret = (ncclComm_t)(uintptr_t)(0x100 * ++nccl.comms);
    return result;
}

static ncclResult_t comm_split(ncclComm_t comm, int color, int key, ncclComm_t *ret, ncclConfig_t *config)
{
    DOES(NEXT_FN(ncclCommSplit), "split:%p,%d,%d", (void *)comm, color, key);
    if (done)
        *ret = (ncclComm_t)(uintptr_t)(0x100 * ++nccl.comms);
    return result;
}

static ncclResult_t comm_shrink(ncclComm_t comm, int *without, int count, ncclComm_t *ret, ncclConfig_t *config,
                                int flags)
{
    DOES(NEXT_FN(ncclCommShrink), "shrink:%p,%d,%d", (void *)comm, count, flags);
    if (done)
        *ret = (ncclComm_t)(uintptr_t)(0x100 * ++nccl.comms);
    return result;
}

#define ENDS(symbol, name)                                                                                             \
    static ncclResult_t name(ncclComm_t comm)                                                                          \
    {                                                                                                                  \
        DOES(NEXT_FN(symbol), #name ":%p", (void *)comm);                                                              \
        return done ? result : ncclInvalidArgument;                                                                    \
    }
ENDS(ncclCommFinalize, finalize)
ENDS(ncclCommDestroy, destroy)
ENDS(ncclCommAbort, comm_abort)

static ncclResult_t group_start(void)
{
    DOES(NEXT_FN(ncclGroupStart), "group");
    return done ? ncclSuccess : result;
}

static ncclResult_t group_end(void)
{
    DOES(NEXT_FN(ncclGroupEnd), "group_end");
    return done ? result : ncclUnhandledCudaError;
}

static ncclResult_t all_reduce(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream)
{
    DOES(NEXT_FN(ncclAllReduce), "reduce:%p,%p,%zu,%d,%p", from, to, count, type, (void *)comm);
    return done ? result : ncclUnhandledCudaError;
}

static ncclResult_t sends(const void *from, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                          cudaStream_t stream)
{
    DOES(NEXT_FN(ncclSend), "send:%p,%zu,%d,%p", from, count, type, (void *)comm);
    return done ? result : ncclUnhandledCudaError;
}

/* The other rank, rank 0, says of its memory as this one, unless a test has it otherwise. */
static struct {
    uint64_t problem;
    int64_t start, size; /* more than this rank's */
    bool lost;           /* the operation is aborted */
} peer;

static ncclResult_t all_gather(const void *from, void *to, size_t count, ncclDataType_t type, ncclComm_t comm,
                               cudaStream_t stream)
{
    unsigned char *bytes = fake.bytes;
    uint64_t offer[3];
    DOES(NEXT_FN(ncclAllGather), "gather:%p,%p,%zu,%d,%p", from, to, count, type, (void *)comm);

    assert_int_equal(count, sizeof(offer));
    if (!done || peer.lost)
        return result;
    memcpy(offer, bytes + ((uintptr_t)from - fake.bytes_at), count);
    memcpy(bytes + count, offer, count);
    offer[0] = peer.problem;
    offer[1] += (uint64_t)peer.start;
    offer[2] += (uint64_t)peer.size;
    memcpy(bytes, offer, count);
    return result;
}

static ncclResult_t window_make(ncclComm_t comm, void *ptr, size_t size, ncclWindow_t *ret, int flags)
{
    DOES(NEXT_FN(ncclCommWindowRegister), "window:%p,%p,%zu,%d", (void *)comm, ptr, size, flags);
    if (done)
        *ret = (ncclWindow_t)(uintptr_t)(0x9000 + 16 * ++nccl.windows);
    return result;
}

static ncclResult_t window_end(ncclComm_t comm, ncclWindow_t window)
{
    DOES(NEXT_FN(ncclCommWindowDeregister), "window_end:%p,%p", (void *)comm, (void *)window);
    return done ? result : ncclUnhandledCudaError;
}

static CUresult stream_destroy(CUstream stream)
{
    fake_log_add("stream_end");
    nccl.streams--;
    return fake_fails(FN(cuStreamDestroy_v2)) ? fake.fault : CUDA_SUCCESS;
}

static void nccl_start(void)
{
    struct real_nccl *its = &nccl.functions;

    *its = (struct real_nccl){.ncclGetVersion = version,
                              .ncclMemAlloc = memory_alloc,
                              .ncclMemFree = memory_free,
                              .ncclCommRegister = attach,
                              .ncclCommDeregister = detach,
                              .ncclCommGetAsyncError = error_of,
                              .ncclCommCuDevice = device,
                              .ncclCommUserRank = user_rank,
                              .ncclCommCount = ranks_of};
#define NEXT(symbol, function) its->next[REAL_NCCL_##symbol] = (void *)(function)
    NEXT(ncclMemAlloc, memory_alloc);
    NEXT(ncclMemFree, memory_free);
    NEXT(ncclCommRegister, attach);
    NEXT(ncclCommDeregister, detach);
    NEXT(ncclCommInitRank, comm_make);
    NEXT(ncclCommSplit, comm_split);
    NEXT(ncclCommShrink, comm_shrink);
    NEXT(ncclCommFinalize, finalize);
    NEXT(ncclCommDestroy, destroy);
    NEXT(ncclCommAbort, comm_abort);
    NEXT(ncclGroupStart, group_start);
    NEXT(ncclGroupEnd, group_end);
    NEXT(ncclAllReduce, all_reduce);
    NEXT(ncclSend, sends);
    NEXT(ncclAllGather, all_gather);
    NEXT(ncclCommWindowRegister, window_make);
    NEXT(ncclCommWindowDeregister, window_end);
    fake_start();
    fake.nccl = its;
    fake.comm_locked = true;
    fake.driver.cuStreamDestroy_v2 = stream_destroy;
    nccl.fault = ncclUnhandledCudaError;
    fake.fault = CUDA_ERROR_UNKNOWN;
}

/* The first context is known; counted are the calls from here on. */
static struct context *nccl_begin(void)
{
    struct context *context = pooled(0);

    fake.steps = 0;
    fake_log();
    return context;
}

#endif
