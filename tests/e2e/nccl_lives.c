/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nccl_lives.c - the rows of hooks/nccl.def that are no operations: how communicators are made, used and ended, memory
 * and registrations of the program's own. See nccl_rows.h.
 *
 * The order of the calls that reach NCCL (nccl_double.c) shows how the library treats a row. nccl_passes.c calls the
 * rows.
 */
#include "nccl_rows.h"

#include <pthread.h>
#include <stdbool.h>
#include <string.h>

#define MEMORY ((size_t)4096)

static bool is_known(ncclComm_t comm)
{
    const unsigned int before = calls_of("ncclCommCount", comm);

    NC(ncclRedOpDestroy(0, comm));
    return calls_of("ncclCommCount", comm) == before;
}

static uintptr_t memory; /* registered with the communicator that registered() has made */

static void operation(ncclComm_t comm)
{
    NC(ncclAllReduce(pointer(memory), pointer(memory), 8, 7, 0, comm, NULL));
}

static ncclComm_t registered(void)
{
    ncclComm_t comm;

    prepare(NULL, ncclSuccess, NULL);
    comm = comm_made(1, 3);
    memory = memory_made(MEMORY);
    operation(comm);
    EXPECT(calls_of("ncclCommRegister", pointer(memory)) == 1, "ncclMemAlloc", "it is not registered");
    return comm;
}

static void *free_memory(void *arg)
{
    NC(ncclMemFree(pointer(memory)));
    return NULL;
}

/* By another thread: who is in a group, or in a call, cannot. */
static void free_elsewhere(void)
{
    pthread_t thread;

    pthread_create(&thread, NULL, free_memory, NULL);
    pthread_join(thread, NULL);
}

static bool is_freed(void)
{
    return calls_of("ncclMemFree", pointer(memory)) == 1;
}

/* Registrations that could not go before go now, if they can. */
static void settle(void)
{
    NC(ncclCommDestroy(comm_made(0, 2)));
}

/* --- modes --- */

/* Another one at the same address: nothing of the first is left, and that is not talked to. */
static void made_anew(const struct make *row, ncclResult_t result)
{
    struct ncclComm *const next = double_get()->next;

    made[0] = registered();
    double_get()->next = made[0];
    prepare(row->name, result, NULL);
    EXPECT(row->call() == result, row->name, "another result");
    EXPECT(calls_of("ncclCommDeregister", NULL) == 0, row->name, "the one before is talked to");
    double_get()->next = next + COUNT_OF(made);
    operation(made[0]);
    EXPECT(calls_of("ncclCommRegister", pointer(memory)) == 1, row->name, "it is taken for the one before");
}

static void made_by(const struct make *row)
{
    const unsigned int count = strcmp(row->name, "ncclCommInitAll") == 0 ? 3 : 1;

    for (int in_group = 0; in_group < 2; in_group++) {
        prepare(row->name, ncclSuccess, NULL);
        if (in_group)
            NC(ncclGroupStart());
        NC(row->call());
        for (unsigned int i = 0; i < count; i++)
            EXPECT(was_met(made[i]) == !in_group, row->name, "known at once, or in a group later");
        if (in_group)
            NC(ncclGroupEnd());
        for (unsigned int i = 0; i < count; i++)
            EXPECT(is_known(made[i]) == !in_group, row->name, "a communicator is not known");
    }
    made_anew(row, ncclSuccess);
    made_anew(row, ncclInProgress);
    /* Not there, or not there yet; and what the variable names has nothing to do with it. */
    for (int i = 0; i < 2; i++) {
        made[0] = stranger();
        prepare(row->name, i ? ncclInProgress : REFUSED, NULL);
        EXPECT(row->call() == double_get()->result, row->name, "another result");
        EXPECT(!was_met(made[0]), row->name, "asked before it is there");
    }
    made[0] = registered();
    prepare(row->name, REFUSED, NULL);
    EXPECT(row->call() == REFUSED, row->name, "another result");
    EXPECT(is_known(made[0]), row->name, "what was refused has ended another one");
}

/* One that nobody saw being made is met by its first use, once it is ready; a group may hold such as only look so. */
static void met_when_ready(void)
{
    const ncclResult_t states[] = {ncclInProgress, REFUSED};
    ncclComm_t comm;

    for (int i = 0; i < 2; i++) {
        comm = stranger();
        comm->state = states[i];
        prepare(NULL, ncclSuccess, NULL);
        operation(comm);
        EXPECT(calls_of("ncclCommCount", comm) == 0 && calls_of("ncclCommRegister", NULL) == 0, "ncclAllReduce",
               "one that is not ready is met");
    }
    prepare(NULL, ncclSuccess, NULL);
    NC(ncclGroupStart());
    operation(comm = stranger());
    EXPECT(was_met(comm), "ncclGroupStart", "nobody is met in a group");
    NC(ncclGroupStart());
    comm_made(0, 2);
    NC(ncclGroupEnd()); /* an inner one: it is not ready before the outer one's end */
    operation(comm = stranger());
    EXPECT(calls_of("ncclCommCount", comm) == 0, "ncclCommInitRank", "its group meets others");
    NC(ncclGroupEnd());
    operation(comm);
    EXPECT(was_met(comm), "ncclGroupEnd", "nobody is met after a group");
    NC(ncclGroupStart());
    operation(comm = stranger());
    EXPECT(was_met(comm), "ncclGroupEnd", "the next group makes none, and meets nobody");
    NC(ncclGroupEnd());
}

void lives_made(void)
{
    memory = memory_made(MEMORY);
    met_when_ready();
    double_get()->rank = 1;
    double_get()->ranks = 3;
    for (size_t i = 0; i < make_count; i++)
        made_by(&makes[i]);
}

static void child_of(const struct use *row, ncclComm_t comm)
{
    prepare(row->name, ncclSuccess, NULL);
    NC(row->call(comm));
    EXPECT(was_met(made[0]), row->name, "what it makes is not known");
    made[0] = stranger();
    prepare(row->name, REFUSED, NULL);
    EXPECT(row->call(comm) == REFUSED, row->name, "another result");
    EXPECT(!was_met(made[0]), row->name, "asked before it is there");
}

static void used_by(const struct use *row)
{
    ncclComm_t comm = registered();

    /* As long as the call lasts nobody else makes one on it; afterwards it is free. */
    prepare(row->name, ncclSuccess, free_elsewhere);
    NC(row->call(comm));
    EXPECT(!is_freed(), row->name, "memory goes while the call uses the communicator");
    settle();
    EXPECT(is_freed(), row->name, "the communicator stays in use");
    /* Or until its group ends. */
    comm = registered();
    prepare(NULL, ncclSuccess, NULL);
    NC(ncclGroupStart());
    NC(row->call(comm));
    free_elsewhere();
    EXPECT(!is_freed(), row->name, "memory goes while a group uses the communicator");
    NC(ncclGroupEnd());
    settle();
    EXPECT(is_freed(), row->name, "the communicator stays in use after its group");
    comm = stranger();
    prepare(row->name, ncclInProgress, NULL);
    EXPECT(row->call(comm) == ncclInProgress, row->name, "another result");
    EXPECT(was_met(comm), row->name, "its use does not make it known");
    /* The library polls a nonblocking communicator before it uses it. */
    comm->state = ncclInProgress;
    memory = memory_made(MEMORY);
    operation(comm);
    EXPECT(calls_of("ncclCommRegister", pointer(memory)) == 0, row->name, "it is taken for one that blocks");
    work_ends(comm);
    if (makes_one(row->name))
        child_of(row, comm_made(1, 3));
}

void lives_used(void)
{
    for (size_t i = 0; i < use_count; i++)
        used_by(&uses[i]);
}

/* Its peers are there: its registrations are undone first. stays: as a communicator that nothing more is done with. */
static void ends_talking(const struct use *row, bool stays)
{
    const ncclComm_t comm = registered(), other = comm_made(0, 2);
    const uintptr_t last = memory;

    prepare(row->name, ncclSuccess, NULL);
    NC(row->call(comm));
    EXPECT(calls_of("ncclCommDeregister", NULL) >= 1 && when("ncclCommDeregister") < when(row->name), row->name,
           "registrations are not undone first");
    EXPECT(is_known(comm) == stays, row->name, stays ? "it has gone" : "it has not gone");
    if (stays) {
        prepare(NULL, ncclSuccess, NULL);
        operation(comm);
        EXPECT(calls_of("ncclCommRegister", NULL) == 0, row->name, "it goes on registering");
        NC(ncclCommDestroy(comm));
        EXPECT(calls_of("ncclCommDeregister", NULL) == 0, row->name, "undone twice");
        EXPECT(!is_known(comm), row->name, "it has not gone");
    }
    /* And what waits for others goes. */
    memory = last;
    operation(other);
    NC(ncclGroupStart());
    NC(ncclMemFree(pointer(memory)));
    NC(ncclGroupEnd());
    prepare(NULL, ncclSuccess, NULL);
    NC(row->call(comm_made(0, 2)));
    EXPECT(is_freed(), row->name, "what waited does not go");
}

/* Its peers may hang: no call is made, and its registrations stay until it has gone. */
static void ends_silent(const struct use *row, bool stays)
{
    const ncclComm_t comm = registered();

    prepare(row->name, ncclSuccess, free_elsewhere);
    NC(row->call(comm));
    EXPECT(calls_of("ncclCommDeregister", NULL) == 0, row->name, "NCCL is called for it");
    EXPECT(!is_freed(), row->name, "memory goes before it");
    prepare(NULL, ncclSuccess, NULL);
    if (stays) {
        settle();
        EXPECT(!is_freed(), row->name, "memory goes before it");
        EXPECT(is_known(comm), row->name, "it has gone");
        NC(ncclCommDestroy(comm));
    } else {
        EXPECT(!is_known(comm), row->name, "it has not gone");
        settle();
    }
    EXPECT(calls_of("ncclCommDeregister", NULL) == 0, row->name, "NCCL is called for it");
    EXPECT(is_freed(), row->name, "memory does not go after it");
}

/* A call that NCCL has refused has changed nothing; another error comes too late for that. */
static void end_refused(const struct use *row, bool closes)
{
    static const ncclResult_t errors[] = {ncclInvalidArgument, REFUSED};

    for (int i = 0; i < 2; i++) {
        const ncclComm_t comm = registered();

        prepare(row->name, errors[i], NULL);
        EXPECT(row->call(comm) == errors[i], row->name, "another result");
        memory = memory_made(MEMORY);
        prepare(NULL, ncclSuccess, NULL);
        operation(comm);
        EXPECT((calls_of("ncclCommRegister", pointer(memory)) == 1) == (closes && i == 0), row->name,
               "after an error it goes on, or does not");
    }
}

/* Refused, as while an operation is under way: it goes on, and memory that is still registered stays. */
static void end_too_early(const struct use *row)
{
    for (int early = 0; early < 2; early++) {
        const ncclComm_t comm = registered();

        prepare("ncclAllReduce", ncclInProgress, NULL);
        (void)ncclAllReduce(pointer(memory), pointer(memory), 8, 7, 0, comm, NULL);
        comm->state = early ? ncclInProgress : ncclSuccess;
        prepare(row->name, ncclInvalidArgument, NULL);
        EXPECT(row->call(comm) == ncclInvalidArgument, row->name, "another result");
        free_elsewhere();
        EXPECT(is_freed() == !early, row->name, "memory goes while registered, or stays");
        comm->state = ncclSuccess;
        memory = memory_made(MEMORY);
        operation(comm);
        EXPECT(calls_of("ncclCommRegister", pointer(memory)) == 1, row->name, "it does not go on");
        NC(ncclCommAbort(comm));
    }
}

/* In a group they end with that, not with one inside it. */
static void end_in_group(const struct use *row)
{
    const ncclComm_t comm = registered();

    NC(ncclGroupStart());
    operation(comm);
    NC(row->call(comm));
    NC(ncclGroupStart());
    NC(ncclGroupEnd());
    free_elsewhere();
    EXPECT(!is_freed(), row->name, "memory goes before the group has ended");
    NC(ncclGroupEnd());
    EXPECT(!is_known(comm), row->name, "it has not gone");
    settle();
    EXPECT(is_freed(), row->name, "memory does not go after it");
}

void lives_ends(void)
{
    for (size_t i = 0; i < end_count; i++) {
        const struct use *row = &ends[i];

        if (strcmp(row->name, "ncclCommFinalize") == 0)
            ends_talking(row, /* stays: */ true), end_too_early(row);
        else if (strcmp(row->name, "ncclCommDestroy") == 0)
            ends_talking(row, /* stays: */ false), end_in_group(row), end_too_early(row);
        else if (strcmp(row->name, "ncclCommAbort") == 0)
            ends_silent(row, /* stays: */ false), end_in_group(row);
        else if (strcmp(row->name, "ncclCommRevoke") == 0)
            ends_silent(row, /* stays: */ true), end_refused(row, /* closes: */ true);
        else if (strcmp(row->name, "ncclCommShrink") == 0)
            ends_silent(row, /* stays: */ true), end_refused(row, /* closes: */ false);
        else
            FAIL("no test for %s", row->name);
    }
}

/* --- the rest --- */

/* Groups: what a simulation ends is a group, too. */
static void groups(void)
{
    for (int simulated = 0; simulated < 2; simulated++) {
        const ncclComm_t comm = registered();

        prepare(NULL, ncclSuccess, NULL);
        NC(ncclGroupStart());
        operation(comm);
        free_elsewhere();
        EXPECT(!is_freed(), "ncclGroupStart", "memory goes while a group uses it");
        NC(simulated ? ncclGroupSimulateEnd(NULL) : ncclGroupEnd());
        settle();
        EXPECT(is_freed(), simulated ? "ncclGroupSimulateEnd" : "ncclGroupEnd", "the group goes on");
    }
    /* One that could not be begun is none. */
    prepare("ncclGroupStart", REFUSED, NULL);
    EXPECT(ncclGroupStart() == REFUSED, "ncclGroupStart", "another result");
    memory = memory_made(MEMORY);
    NC(ncclMemFree(pointer(memory)));
    EXPECT(is_freed(), "ncclGroupStart", "a group that was refused is open");
}

/* A group whose end returns ncclInProgress makes its communicators nonblocking ones. */
static void groups_in_progress(void)
{
    static const char *const names[] = {"ncclGroupEnd", "ncclGroupSimulateEnd"};

    for (int i = 0; i < 2; i++) {
        const ncclComm_t comm = registered();

        prepare(names[i], ncclInProgress, NULL);
        NC(ncclGroupStart());
        operation(comm);
        EXPECT((i ? ncclGroupSimulateEnd(NULL) : ncclGroupEnd()) == ncclInProgress, names[i], "another result");
        comm->state = ncclInProgress;
        memory = memory_made(MEMORY);
        operation(comm);
        EXPECT(calls_of("ncclCommRegister", pointer(memory)) == 0, names[i], "it is taken for one that blocks");
        work_ends(comm);
    }
}

/* As NCCL does with NCCL_LOCAL_REGISTER=0. */
static void *no_registration;

static void registers_nothing(void)
{
    no_registration = NULL;
}

/* Memory that the program has registered itself stays until that is undone. */
static void own_registrations(void)
{
    const ncclComm_t comm = registered();
    void *one, *other = pointer(16);

    NC(ncclCommRegister(comm, pointer(memory + 512), 512, &one));
    prepare("ncclCommRegister", REFUSED, NULL);
    EXPECT(ncclCommRegister(comm, pointer(memory), 512, &other) == REFUSED, "ncclCommRegister", "another result");
    prepare("ncclCommRegister", ncclSuccess, registers_nothing);
    NC(ncclCommRegister(comm, pointer(memory), 512, &no_registration));
    prepare("ncclCommDeregister", REFUSED, NULL);
    EXPECT(ncclCommDeregister(comm, one) == REFUSED, "ncclCommDeregister", "another result");
    prepare("ncclCommDeregister", ncclSuccess, NULL);
    free_elsewhere();
    EXPECT(!is_freed(), "ncclCommRegister", "memory goes although the program has it registered");
    NC(ncclCommDeregister(comm, one));
    settle();
    EXPECT(is_freed(), "ncclCommDeregister", "memory does not go");
}

/* Memory is registered as it is, undone before it goes, and unknown memory is passed on. */
static void memory_of_nccl(void)
{
    const ncclComm_t comm = registered();
    void *none = pointer(16);

    prepare("ncclMemFree", ncclSuccess, NULL);
    NC(ncclMemFree(pointer(memory)));
    EXPECT(is_freed() && when("ncclCommDeregister") < when("ncclMemFree"), "ncclMemFree",
           "it goes before it is deregistered");
    /* Memory that waits to go belongs to no allocation any more. */
    memory = memory_made(MEMORY);
    operation(comm);
    NC(ncclGroupStart());
    NC(ncclMemFree(pointer(memory)));
    EXPECT(ncclMemFree(pointer(memory)) == ncclUnhandledCudaError, "ncclMemFree", "it can be freed twice");
    NC(ncclGroupEnd());
    prepare("ncclMemFree", REFUSED, NULL);
    EXPECT(ncclMemFree(pointer(32)) == REFUSED && ncclMemFree(NULL) == REFUSED, "ncclMemFree", "another result");
    memory = memory_made(MEMORY);
    EXPECT(ncclMemFree(pointer(memory)) == REFUSED, "ncclMemFree", "another result");
    prepare(NULL, ncclSuccess, NULL);
    memory = memory_made(MEMORY);
    NC(ncclGroupStart());
    NC(ncclMemFree(pointer(memory))); /* later: that the one before was refused is no matter */
    NC(ncclGroupEnd());
    prepare("ncclMemAlloc", REFUSED, NULL);
    EXPECT(ncclMemAlloc(&none, MEMORY) == REFUSED && none == pointer(16), "ncclMemAlloc", "another result");
    operation(comm);
    EXPECT(calls_of("ncclCommRegister", NULL) == 0, "ncclMemAlloc", "memory that is not there is registered");
}

void lives_rest(void)
{
    groups();
    groups_in_progress();
    own_registrations();
    memory_of_nccl();
}

/* Calls that NCCL makes through its own symbols count as NCCL's: they are no operation, no group and no memory of the
 * program. */
void lives_nested(void)
{
    const struct double_nested *nested = double_nested_get();
    const ncclComm_t comm = registered();
    const struct counters before = counters_get();
    void *ptr;

    NC(nested->op(comm));
    EXPECT(counters_get().ops == before.ops, "ncclAllReduce", "an operation of NCCL's own counts");
    NC(nested->group_start());
    NC(ncclMemFree(pointer(memory)));
    EXPECT(is_freed(), "ncclGroupStart", "a group of NCCL's own is the program's");
    for (int simulated = 0; simulated < 2; simulated++) {
        memory = memory_made(MEMORY);
        NC(ncclGroupStart());
        operation(comm);
        NC(simulated ? nested->group_simulate_end() : nested->group_end());
        free_elsewhere();
        EXPECT(!is_freed(), "ncclGroupEnd", "the end of NCCL's own group is the program's");
        NC(ncclGroupEnd());
    }
    NC(nested->memory_alloc(&ptr, MEMORY));
    prepare(NULL, ncclSuccess, NULL);
    operation(comm);
    EXPECT(calls_of("ncclCommRegister", NULL) == 0, "ncclMemAlloc", "memory of NCCL's own is registered");
}

/* A NCCL that lacks a function: nothing is registered, and all goes on. */
void lives_incapable(void)
{
    const ncclComm_t comm = comm_made(1, 3);

    memory = memory_made(MEMORY);
    prepare(NULL, ncclSuccess, NULL);
    for (int i = 0; i < 3; i++)
        operation(comm);
    EXPECT(calls_of("ncclAllReduce", comm) == 3, "ncclAllReduce", "it does not reach NCCL");
    EXPECT(calls_of("ncclCommRegister", NULL) == 0, "ncclCommRegister", "it is called");
    NC(ncclMemFree(pointer(memory)));
    NC(ncclCommDestroy(comm));
    EXPECT(is_freed(), "ncclMemFree", "it does not reach NCCL");
    counters_get();
}
