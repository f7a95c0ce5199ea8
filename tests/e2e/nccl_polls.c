/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nccl_polls.c - the mode polls: communicators that do not block, whose state the program asks for. See nccl_rows.h.
 *
 * NCCL ends work in its answer, and two threads must not ask at a time. So the library asks only on threads that use
 * the communicator, and memory goes once the program has seen the end of the work.
 */
#include "nccl_rows.h"

#include <pthread.h>

static uintptr_t memory;
static ncclComm_t comm;

static ncclResult_t operation(void)
{
    return ncclAllReduce(pointer(memory), pointer(memory), 8, 7, 0, comm, NULL);
}

void work_ends(ncclComm_t with)
{
    ncclResult_t state;

    with->state = ncclSuccess;
    NC(ncclCommGetAsyncError(with, &state));
}

/* Work that goes on after the call. */
static void work_begins(void)
{
    prepare("ncclAllReduce", ncclInProgress, NULL);
    EXPECT(operation() == ncclInProgress, "ncclAllReduce", "another result");
}

static void work_begins_in_group(void)
{
    prepare("ncclGroupEnd", ncclInProgress, NULL);
    NC(ncclGroupStart());
    NC(operation());
    EXPECT(ncclGroupEnd() == ncclInProgress, "ncclGroupEnd", "another result");
}

static void *free_memory(void *arg)
{
    NC(ncclMemFree(pointer(memory)));
    return arg;
}

/* Registered memory, which another thread has freed while work went on. */
static void work(void (*begin)(void))
{
    pthread_t thread;

    prepare(NULL, ncclSuccess, NULL);
    comm = comm_made(1, 3);
    memory = memory_made(4096);
    NC(operation());
    begin();
    comm->state = ncclInProgress;
    prepare(NULL, ncclSuccess, NULL);
    pthread_create(&thread, NULL, free_memory, NULL);
    pthread_join(thread, NULL);
}

static ncclResult_t poll_state(void)
{
    ncclResult_t state = ncclSuccess;
    const ncclResult_t result = ncclCommGetAsyncError(comm, &state);

    return result ? result : state;
}

/* Memory that could not go before goes now, if it can. True: it has gone, and nobody but the program has asked. */
static bool goes(unsigned int polls)
{
    NC(ncclCommDestroy(comm_made(0, 2)));
    EXPECT(calls_of("ncclCommGetAsyncError", comm) == polls, "ncclCommGetAsyncError", "the library asks, too");
    return calls_of("ncclMemFree", pointer(memory)) == 1;
}

void lives_polls(void)
{
    static void (*const begins[])(void) = {work_begins, work_begins_in_group};

    for (size_t i = 0; i < COUNT_OF(begins); i++) {
        work(begins[i]);
        EXPECT(!goes(0), "ncclCommGetAsyncError", "memory goes while work goes on");
        EXPECT(poll_state() == ncclInProgress && !goes(1), "ncclCommGetAsyncError",
               "memory goes in spite of the answer");
        comm->state = ncclSuccess;
        EXPECT(!goes(1), "ncclCommGetAsyncError", "memory goes without an answer");
        EXPECT(poll_state() == ncclSuccess && goes(2), "ncclCommGetAsyncError", "memory does not go");
    }
    /* Work that begins after NCCL has answered, and before the program has the answer. */
    work(work_begins);
    comm->state = ncclSuccess;
    prepare("ncclCommGetAsyncError", ncclSuccess, work_begins);
    EXPECT(poll_state() == ncclSuccess && !goes(0), "ncclCommGetAsyncError", "an old answer counts");
    EXPECT(poll_state() == ncclSuccess && goes(1), "ncclCommGetAsyncError", "memory does not go");
    /* No answer, and an error. */
    work(work_begins);
    comm->state = ncclSuccess;
    prepare("ncclCommGetAsyncError", REFUSED, NULL);
    EXPECT(poll_state() == REFUSED && !goes(1), "ncclCommGetAsyncError", "memory goes although NCCL has refused");
    prepare(NULL, ncclSuccess, NULL);
    comm->state = ncclUnhandledCudaError;
    EXPECT(poll_state() == ncclUnhandledCudaError && !goes(1), "ncclCommGetAsyncError", "memory goes after an error");
    comm->state = ncclSuccess;
    EXPECT(poll_state() == ncclSuccess && goes(2), "ncclCommGetAsyncError", "memory does not go");
}
