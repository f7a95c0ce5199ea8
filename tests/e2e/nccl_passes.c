/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nccl_passes.c - each row of hooks/nccl.def, called by its name: the tables for nccl_lives.c, and the mode passes.
 *
 * --list prints each row with the modes that test it. The mode passes checks that arguments and results are those of a
 * program without the library. The tables are made from the list, so that a row for which there is no function here
 * does not compile. Arguments are small numbers of no meaning. See nccl_rows.h.
 */
#include "nccl_rows.h"

#include <dlfcn.h>
#include <string.h>

/* Our hook, or (direct) NCCL's own function behind it. */
static bool direct;
static void *behind(const char *name);
#define CALL(symbol) (direct ? (__typeof__(&(symbol)))behind(#symbol) : (symbol))

/* --- each row, called: with c as the communicator, or as the one that its child is made of --- */

ncclComm_t made[3];
static void *handle;

#define MAKE(symbol, ...)                                                                                              \
    static ncclResult_t make_##symbol(void)                                                                            \
    {                                                                                                                  \
        static ncclUniqueId id = {"an id"};                                                                            \
                                                                                                                       \
        (void)id;                                                                                                      \
        return CALL(symbol)(__VA_ARGS__);                                                                              \
    }
MAKE(ncclCommInitRank, &made[0], 3, id, 1)
MAKE(ncclCommInitRankConfig, &made[0], 3, id, 1, pointer(48))
MAKE(ncclCommInitRankScalable, &made[0], 3, 1, 1, &id, pointer(48))
MAKE(ncclCommInitAll, made, 3, (const int[]){0, 0, 0})

#define USE(symbol, ...)                                                                                               \
    static ncclResult_t use_##symbol(ncclComm_t c)                                                                     \
    {                                                                                                                  \
        return CALL(symbol)(__VA_ARGS__);                                                                              \
    }
USE(ncclCommSplit, c, 5, 6, &made[0], pointer(48))
USE(ncclCommGrow, c, 5, pointer(32), 6, &made[0], pointer(48))
USE(ncclCommShrink, c, pointer(32), 5, &made[0], pointer(48), 2)
USE(ncclCommWindowRegister, c, pointer(32), 5, pointer(48), 6)
USE(ncclCommWindowDeregister, c, pointer(48))
USE(ncclRedOpCreatePreMulSum, pointer(32), pointer(48), 5, 6, c)
USE(ncclRedOpDestroy, 5, c)
USE(ncclDevCommCreate, c, pointer(32), pointer(48))
USE(ncclDevCommDestroy, c, pointer(48))
USE(ncclPutSignal, pointer(32), 5, 6, 7, pointer(48), 8, 9, 10, 11, c, pointer(64))
USE(ncclSignal, 5, 6, 7, 8, c, pointer(64))
USE(ncclWaitSignal, 5, pointer(32), c, pointer(64))
USE(ncclCommSuspend, c, 5)
USE(ncclCommResume, c)
USE(ncclCommRegister, c, pointer(4096), 512, &handle)
USE(ncclCommDeregister, c, pointer(4096))

#define END(symbol, ...)                                                                                               \
    static ncclResult_t end_##symbol(ncclComm_t c)                                                                     \
    {                                                                                                                  \
        return CALL(symbol)(__VA_ARGS__);                                                                              \
    }
END(ncclCommFinalize, c)
END(ncclCommDestroy, c)
END(ncclCommAbort, c)
END(ncclCommRevoke, c, 0)
static ncclResult_t shrink_aborting(ncclComm_t c)
{
    return CALL(ncclCommShrink)(c, pointer(32), 5, &made[0], pointer(48), NCCL_SHRINK_ABORT | 2);
}

/* --- the tables --- */

const struct make makes[] = {
#define NCCL_MAKE(symbol, parameters, arguments, comms, count) {#symbol, make_##symbol},
#include "hooks.def"
};

const size_t make_count = COUNT_OF(makes);

const struct use uses[] = {
#define NCCL_USE(symbol, parameters, arguments, of, made) {#symbol, use_##symbol},
#include "hooks.def"
    {"ncclCommShrink", use_ncclCommShrink},
    {"ncclCommRegister", use_ncclCommRegister},
    {"ncclCommDeregister", use_ncclCommDeregister},
};
const size_t use_count = COUNT_OF(uses);
const struct use ends[] = {
#define NCCL_END(symbol, parameters, arguments, how) {#symbol, end_##symbol},
#include "hooks.def"
    {"ncclCommShrink", shrink_aborting},
};
const size_t end_count = COUNT_OF(ends);

/* --- arguments and results --- */

static void *behind(const char *name)
{
    static void *library;

    library = library ? library : dlopen("libnccl_double.so", RTLD_NOW | RTLD_NOLOAD);
    if (!library || !dlsym(library, name))
        FAIL("%s is not in the double", name);
    return dlsym(library, name);
}

#define NCCL_OP(symbol, parameters, arguments, kind, from_, from_count, to_, to_count)                                 \
    static ncclResult_t op_##symbol(ncclComm_t comm)                                                                   \
    {                                                                                                                  \
        const int root = 1, peer = 6; /* the root is the caller */                                                     \
        const ncclDataType_t type = 7;                                                                                 \
        const ncclRedOp_t op = 3;                                                                                      \
        const cudaStream_t stream = pointer(64);                                                                       \
        const size_t count = 9;                                                                                        \
        const void *from = pointer(32);                                                                                \
        void *to = pointer(48);                                                                                        \
                                                                                                                       \
        (void)root, (void)peer, (void)op, (void)from, (void)to;                                                        \
        return CALL(symbol) arguments; /* NOLINT(bugprone-macro-parentheses): a list */                                \
    }
#include "hooks.def"
static const struct use operations[] = {
#define NCCL_OP(symbol, parameters, arguments, kind, from, from_count, to, to_count) {#symbol, op_##symbol},
#include "hooks.def"
};

static ncclResult_t start_group(ncclComm_t comm)
{
    return CALL(ncclGroupStart)();
}

static ncclResult_t end_group(ncclComm_t comm)
{
    return CALL(ncclGroupEnd)();
}

static ncclResult_t end_simulated(ncclComm_t comm)
{
    return CALL(ncclGroupSimulateEnd)(pointer(48));
}

static ncclResult_t alloc_memory(ncclComm_t comm)
{
    return CALL(ncclMemAlloc)(&handle, 512);
}

static ncclResult_t free_no_memory(ncclComm_t comm)
{
    return CALL(ncclMemFree)(pointer(48));
}

static ncclResult_t poll_state(ncclComm_t comm)
{
    static ncclResult_t state;

    return CALL(ncclCommGetAsyncError)(comm, &state);
}

static const struct use others[] = {
    {"ncclGroupStart", start_group}, {"ncclGroupEnd", end_group},     {"ncclGroupSimulateEnd", end_simulated},
    {"ncclMemAlloc", alloc_memory},  {"ncclMemFree", free_no_memory}, {"ncclCommGetAsyncError", poll_state},
};

/* The row that makes communicators, and uses none. */
static const struct make *making;

static ncclResult_t make_one(ncclComm_t comm)
{
    return making->call();
}

/* The call of this name in the log, which is the only one. */
static struct double_call only(const char *name)
{
    EXPECT(calls_of(name, NULL) == 1, name, "not called once");
    return double_get()->log[when(name)];
}

/* NCCL gets the arguments through our hook that it gets without it, and the program the results. */
static void passes(const char *name, ncclResult_t (*call)(ncclComm_t))
{
    static const ncclResult_t results[] = {ncclSuccess, REFUSED, ncclInProgress, ncclInvalidArgument};
    struct double_call seen[2];
    ncclResult_t result;

    for (int i = 0; i < 4; i++) {
        const ncclComm_t comm = i < 3 ? stranger() : NULL;

        /* The library registers memory here, not in the row's call. */
        prepare(NULL, ncclSuccess, NULL);
        NC(ncclAllReduce(pointer(32), pointer(48), 1, 0, 0, comm, NULL));
        for (int without = 0; without < 2; without++) {
            prepare(name, results[i], NULL);
            memset(made, 0, sizeof(made));
            direct = without;
            result = call(comm);
            direct = false;
            EXPECT(result == results[i], name, "another result");
            seen[without] = only(name);
        }
        EXPECT(seen[0].used == seen[1].used && memcmp(seen[0].bytes, seen[1].bytes, seen[0].used) == 0, name,
               "other arguments");
        if (strcmp(name, "ncclGroupStart") == 0 && !result)
            ncclGroupEnd();
    }
    printf("row %s\n", name);
}

static bool has(const struct use *table, size_t count, const char *name)
{
    while (count && strcmp(table[count - 1].name, name) != 0)
        count--;
    return count != 0;
}

void rows_list(void)
{
    static const char *const names[] = {
#define NCCL(symbol, parameters) #symbol,
#include "hooks.def"
    };

    for (size_t i = 0; i < COUNT_OF(names); i++) {
        bool is_made = false;

        for (size_t j = 0; j < make_count; j++)
            is_made |= strcmp(makes[j].name, names[i]) == 0;
        printf("%s: passes%s%s%s%s%s\n", names[i],
               has(operations, COUNT_OF(operations), names[i]) ? "; extents; kinds" : "", is_made ? "; made" : "",
               has(uses, use_count, names[i]) ? "; used" : "", has(ends, end_count, names[i]) ? "; ends" : "",
               strcmp(names[i], "ncclCommGetAsyncError") == 0 ? "; polls"
               : has(others, COUNT_OF(others), names[i])      ? "; rest"
                                                              : "");
    }
}

/* NCCL gets this as the memory that a broadcast sends, of a rank that sends nothing. */
static const void *sent(ncclComm_t comm, const void *from, void *to, size_t count)
{
    struct double_call seen;
    const void *got;

    prepare("ncclBroadcast", ncclSuccess, NULL);
    NC(ncclBroadcast(from, to, count, 1, 0, comm, NULL));
    seen = only("ncclBroadcast");
    memcpy(&got, seen.bytes, sizeof(got));
    return got;
}

/* It is what the program gives if all of that is there: NCCL may know it. */
void rows_look_up(void)
{
    const size_t size = (size_t)4 << 20;
    const ncclComm_t comm = comm_made(1, 3);
    void *from, *to;
    char *at;

    EXPECT(!cudaMalloc(&from, size) && !cudaMalloc(&to, 2 * size), "ncclBroadcast", "no memory");
    at = from;
    EXPECT(sent(comm, at, to, size) == at, "ncclBroadcast", "it gets other memory");
    EXPECT(sent(comm, at + 1, to, size - 1) == at + 1, "ncclBroadcast", "it gets other memory than the end");
    EXPECT(sent(comm, at + 1, to, size) == to, "ncclBroadcast", "it gets memory that is too short");
    EXPECT(sent(comm, at + 1, to, SIZE_MAX) == to, "ncclBroadcast", "it gets memory that wraps around");
    EXPECT(sent(comm, NULL, to, size) == to, "ncclBroadcast", "it gets no memory");
    EXPECT(sent(comm, pointer(32), to, 1) == to, "ncclBroadcast", "it gets memory that is not there");
    EXPECT(sent(NULL, pointer(32), to, 1) == pointer(32), "ncclBroadcast", "an argument changes");
}

void rows_pass(void)
{
    for (size_t i = 0; i < COUNT_OF(operations); i++)
        passes(operations[i].name, operations[i].call);
    for (making = makes; making < makes + make_count; making++)
        passes(making->name, make_one);
    for (size_t i = 0; i < use_count; i++)
        passes(uses[i].name, uses[i].call);
    for (size_t i = 0; i < end_count; i++)
        passes(ends[i].name, ends[i].call);
    for (size_t i = 0; i < COUNT_OF(others); i++)
        passes(others[i].name, others[i].call);
}
