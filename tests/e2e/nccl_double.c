/* SPDX-License-Identifier: Apache-2.0 */
/* nccl_double.c - see nccl_double.h. */
#include "nccl_double.h"

#include <pthread.h>
#include <stdint.h>
#include <string.h>

#define API __attribute__((visibility("default")))

static struct ncclComm all_comms[DOUBLE_COMMS];
static struct double_state state = {.version = 22902, .ranks = 2, .next = all_comms};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards the log and what memory is made of */
static uintptr_t memory_next = (uintptr_t)1 << 46, handle_next = 4096;

API struct double_state *double_get(void)
{
    return &state;
}

static struct double_call *note(const char *name, const void *subject)
{
    struct double_call *call;

    pthread_mutex_lock(&lock);
    call = &state.log[state.count < DOUBLE_CALLS ? state.count++ : DOUBLE_CALLS - 1];
    *call = (struct double_call){.name = name, .subject = subject};
    pthread_mutex_unlock(&lock);
    return call;
}

static void note_bytes(struct double_call *call, const void *bytes, size_t size)
{
    if (call->used + size > DOUBLE_BYTES)
        return;
    memcpy(call->bytes + call->used, bytes, size);
    call->used += size;
}

static ncclResult_t result_of(const char *name)
{
    return state.row && strcmp(state.row, name) == 0 ? state.result : ncclSuccess;
}

/* The test's function for the middle of a call, and the call's result. */
static ncclResult_t row_end(const char *name)
{
    void (*inside)(void) = state.inside;

    if (inside && state.row && strcmp(state.row, name) == 0) {
        state.inside = NULL;
        inside();
    }
    return result_of(name);
}

static void comm_write(const char *name, ncclComm_t *to)
{
    const ncclResult_t result = result_of(name);

    if (!to || (result && result != ncclInProgress))
        return;
    *to = state.next++;
    **to = (struct ncclComm){.rank = state.rank, .ranks = state.ranks};
}

/* Each argument of a list in parentheses. */
#define EACH_1(a)                                           note_bytes(call, &(a), sizeof(__typeof__(a)));
#define EACH_2(a, ...)                                      EACH_1(a) EACH_1(__VA_ARGS__)
#define EACH_3(a, ...)                                      EACH_1(a) EACH_2(__VA_ARGS__)
#define EACH_4(a, ...)                                      EACH_1(a) EACH_3(__VA_ARGS__)
#define EACH_5(a, ...)                                      EACH_1(a) EACH_4(__VA_ARGS__)
#define EACH_6(a, ...)                                      EACH_1(a) EACH_5(__VA_ARGS__)
#define EACH_7(a, ...)                                      EACH_1(a) EACH_6(__VA_ARGS__)
#define EACH_8(a, ...)                                      EACH_1(a) EACH_7(__VA_ARGS__)
#define EACH_9(a, ...)                                      EACH_1(a) EACH_8(__VA_ARGS__)
#define EACH_10(a, ...)                                     EACH_1(a) EACH_9(__VA_ARGS__)
#define EACH_11(a, ...)                                     EACH_1(a) EACH_10(__VA_ARGS__)
#define CHOOSE(a, b, c, d, e, f, g, h, i, j, k, which, ...) which
#define NOTE(...)                                                                                                      \
    CHOOSE(__VA_ARGS__, EACH_11, EACH_10, EACH_9, EACH_8, EACH_7, EACH_6, EACH_5, EACH_4, EACH_3, EACH_2, EACH_1, 0)   \
    (__VA_ARGS__)

#define ROW(symbol, parameters, arguments, subject, made)                                                              \
    API ncclResult_t symbol parameters                                                                                 \
    {                                                                                                                  \
        struct double_call *call = note(#symbol, subject);                                                             \
                                                                                                                       \
        NOTE arguments; /* NOLINT(bugprone-macro-parentheses): a list */                                               \
        made;                                                                                                          \
        return row_end(#symbol);                                                                                       \
    }
#define NCCL(symbol, parameters)
#define NCCL_OP(symbol, parameters, arguments, kind, from, from_count, to, to_count)                                   \
    ROW(symbol, parameters, arguments, comm, (void)0)
#define NCCL_MAKE(symbol, parameters, arguments, comms, count)                                                         \
    ROW(symbol, parameters, arguments, comms,                                                                          \
        for (int i_ = 0; (comms) && i_ < (count); i_++) comm_write(#symbol, &(comms)[i_]))
#define NCCL_USE(symbol, parameters, arguments, of, made)                                                              \
    ROW(symbol, parameters, arguments, of, comm_write(#symbol, made))
#define NCCL_END(symbol, parameters, arguments, how) ROW(symbol, parameters, arguments, comm, (void)0)
#include "hooks.def"

/* --- the rows that the library has functions of its own for --- */

ROW(ncclCommShrink,
    (ncclComm_t parent, int *without, int without_count, ncclComm_t *comm, ncclConfig_t *config, int flags),
    (parent, without, without_count, comm, config, flags), parent, comm_write("ncclCommShrink", comm))
ROW(ncclGroupSimulateEnd, (ncclSimInfo_t * info), (info), NULL, (void)0)
ROW(ncclCommDeregister, (ncclComm_t comm, void *handle), (comm, handle), handle, (void)0)
ROW(ncclMemFree, (void *ptr), (ptr), ptr, (void)0)

API ncclResult_t ncclGroupStart(void)
{
    note("ncclGroupStart", NULL);
    return row_end("ncclGroupStart");
}

API ncclResult_t ncclGroupEnd(void)
{
    note("ncclGroupEnd", NULL);
    return row_end("ncclGroupEnd");
}

/* A value that no other has; size apart, and with as much between two. */
static void *fresh(uintptr_t *next, size_t size)
{
    uintptr_t value;

    pthread_mutex_lock(&lock);
    value = *next;
    *next += 2 * size;
    pthread_mutex_unlock(&lock);
    return (void *)value; /* NOLINT(performance-no-int-to-ptr): never looked at */
}

API ncclResult_t ncclMemAlloc(void **ptr, size_t size)
{
    struct double_call *call = note("ncclMemAlloc", ptr);

    NOTE(ptr, size);
    if (ptr && !result_of("ncclMemAlloc"))
        *ptr = fresh(&memory_next, size);
    return row_end("ncclMemAlloc");
}

API ncclResult_t ncclCommRegister(ncclComm_t comm, void *ptr, size_t size, void **handle)
{
    struct double_call *call = note("ncclCommRegister", ptr);

    NOTE(comm, ptr, size, handle);
    if (handle && !result_of("ncclCommRegister"))
        *handle = fresh(&handle_next, 64);
    return row_end("ncclCommRegister");
}

API ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error)
{
    struct double_call *call = note("ncclCommGetAsyncError", comm);

    NOTE(comm, error);
    if (comm && error)
        *error = comm->state;
    return row_end("ncclCommGetAsyncError");
}

/* --- no rows: questions of the library --- */

ncclResult_t ncclGetVersion(int *version);
ncclResult_t ncclCommCuDevice(ncclComm_t comm, int *device);
ncclResult_t ncclCommUserRank(ncclComm_t comm, int *rank);
ncclResult_t ncclCommCount(ncclComm_t comm, int *count);

API ncclResult_t ncclGetVersion(int *version)
{
    *version = state.version;
    return ncclSuccess;
}

#define QUESTION(symbol, field)                                                                                        \
    API ncclResult_t symbol(ncclComm_t comm, int *answer)                                                              \
    {                                                                                                                  \
        note(#symbol, comm);                                                                                           \
        *answer = comm->field;                                                                                         \
        return ncclSuccess;                                                                                            \
    }
QUESTION(ncclCommCuDevice, device)
QUESTION(ncclCommUserRank, rank)
QUESTION(ncclCommCount, ranks)

/* --- what NCCL does by itself; the answer is looked at so that no call is a jump, which has another caller --- */

static volatile ncclResult_t last;

static ncclResult_t nested_op(ncclComm_t comm)
{
    return last = ncclAllReduce(comm, comm, 1, 0, 0, comm, NULL);
}

static ncclResult_t nested_group_start(void)
{
    return last = ncclGroupStart();
}

static ncclResult_t nested_group_end(void)
{
    return last = ncclGroupEnd();
}

static ncclResult_t nested_group_simulate_end(void)
{
    return last = ncclGroupSimulateEnd(NULL);
}

static ncclResult_t nested_memory_alloc(void **ptr, size_t size)
{
    return last = ncclMemAlloc(ptr, size);
}

API const struct double_nested *double_nested_get(void)
{
    static const struct double_nested calls = {nested_op, nested_group_start, nested_group_end,
                                               nested_group_simulate_end, nested_memory_alloc};

    return &calls;
}
