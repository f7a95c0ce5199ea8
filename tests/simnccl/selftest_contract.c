/* SPDX-License-Identifier: Apache-2.0 */
/*
 * selftest_contract.c - does the NCCL stand-in report each call that breaks a contract, and no other?
 *
 * Each case runs in a process of its own with SIMNCCL_STRICT=1. Two ranks in one thread, unless a case says otherwise.
 * The cases about registrations are in selftest_record.c, the data in selftest_data.c.
 *
 * Locking: none.
 */
#include "selftest_two.h"

struct two two;

void both(void)
{
    OK(ncclCommInitAll(two.comm, 2, NULL));
    for (int i = 0; i < 2; i++) {
        OK(cudaSetDevice(i));
        OK(ncclMemAlloc((void **)&two.at[i], BYTES));
        OK(cudaStreamCreate(&two.s[i]));
    }
    OK(cudaSetDevice(0));
}

void both_registered(void)
{
    both();
    for (int i = 0; i < 2; i++)
        OK(ncclCommRegister(two.comm[i], two.at[i], BYTES, &two.handle[i]));
}

void wait_both(void)
{
    OK(cudaStreamSynchronize(two.s[0]));
    OK(cudaStreamSynchronize(two.s[1]));
}

void deregister_both(void)
{
    for (int i = 0; i < 2; i++)
        OK(ncclCommDeregister(two.comm[i], two.handle[i]));
}

void destroy_both(void)
{
    OK(ncclGroupStart());
    OK(ncclCommDestroy(two.comm[0]));
    OK(ncclCommDestroy(two.comm[1]));
    OK(ncclGroupEnd());
}

void sum_both(size_t n0, size_t n1)
{
    OK(ncclGroupStart());
    OK(ncclAllReduce(two.at[0], two.at[0], n0, ncclInt32, ncclSum, two.comm[0], two.s[0]));
    OK(ncclAllReduce(two.at[1], two.at[1], n1, ncclInt32, ncclSum, two.comm[1], two.s[1]));
    OK(ncclGroupEnd());
    wait_both();
}

void send_begin(size_t n0, size_t n1)
{
    OK(ncclSend(two.at[0], n0, ncclInt32, 1, two.comm[0], two.s[0]));
    OK(ncclRecv(two.at[1], n1, ncclInt32, 0, two.comm[1], two.s[1]));
}

void send_both(size_t n0, size_t n1)
{
    OK(ncclGroupStart());
    send_begin(n0, n1);
    OK(ncclGroupEnd());
    wait_both();
}

/* ---- cases ---- */

CONTRACT(clean, .text = "\"registrations\": 2, \"deregistrations\": 2, \"windows\": 0, \"mem_allocs\": 2")
{
    OK(ncclGroupStart()); /* before there is anything */
    OK(ncclGroupEnd());
    both_registered();
    sum_both(N, N);
    send_both(N, N);
    deregister_both();
    sum_both(N, N);
    destroy_both();
    OK(ncclMemFree(two.at[0]));
    OK(ncclMemFree(two.at[1]));
}
CONTRACT_ADD(clean_counts, clean, .text = "\"operations\": {\"all\": 4, \"some\": 0, \"none\": 2}")

CONTRACT(register_shell, .breaches = 1, .text = "ncclCommRegister on a communicator that is not ready")
{
    ncclUniqueId id;

    both();
    OK(ncclGetUniqueId(&id));
    OK(ncclGroupStart());
    OK(ncclCommInitRank(&two.comm[0], 1, id, 0));
    CHECK_EQ(ncclCommRegister(two.comm[0], two.at[0], BYTES, &two.handle[0]), ncclInvalidArgument);
    ncclGroupEnd();
}

CONTRACT(use_pending, .breaches = 2, .text = "ncclAllReduce on a communicator that is not ready",
         .env = "SIMNCCL_SLOW=5")
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclResult_t state = ncclInProgress;
    ncclUniqueId id;
    ncclComm_t comm;

    both();
    config.blocking = 0;
    OK(ncclGetUniqueId(&id));
    CHECK_EQ(ncclCommInitRankConfig(&comm, 1, id, 0, &config), ncclInProgress);
    CHECK_EQ(ncclAllReduce(two.at[0], two.at[0], N, ncclInt32, ncclSum, comm, NULL), ncclInvalidArgument);
    CHECK_EQ(ncclCommRegister(comm, two.at[0], BYTES, &two.handle[0]), ncclInvalidArgument);
    int polls = 0;
    for (; state == ncclInProgress; polls++)
        OK(ncclCommGetAsyncError(comm, &state));
    OK(state);
    CHECK(polls > 5);
    OK(ncclAllReduce(two.at[0], two.at[0], N, ncclInt32, ncclSum, comm, NULL));
    OK(ncclCommDestroy(comm));
}

CONTRACT(after_finalize, .breaches = 1, .text = "ncclCommRegister on a communicator that is finalized")
{
    both_registered();
    deregister_both();
    OK(ncclCommFinalize(two.comm[0]));
    CHECK_EQ(ncclCommRegister(two.comm[0], two.at[0], BYTES, &two.handle[0]), ncclInvalidArgument);
    destroy_both();
}

CONTRACT(after_destroy, .breaches = 1, .text = "ncclCommCount on a communicator that is destroyed")
{
    int n;

    both();
    destroy_both();
    CHECK_EQ(ncclCommCount(two.comm[0], &n), ncclInvalidArgument);
}

CONTRACT(after_revoke, .breaches = 1, .text = "ncclCommDeregister on a communicator that is revoked")
{
    both_registered();
    OK(ncclCommRevoke(two.comm[0], NCCL_REVOKE_DEFAULT));
    CHECK_EQ(ncclCommDeregister(two.comm[0], two.handle[0]), ncclInvalidArgument);
    OK(ncclCommDestroy(two.comm[0])); /* with the rest: no other call is allowed */
    OK(ncclCommAbort(two.comm[1]));
}

CONTRACT(counts_differ, .breaches = 1, .text = "ncclAllReduce (8 elements)")
{
    ncclResult_t error;

    both();
    sum_both(16, 8);
    OK(ncclCommGetAsyncError(two.comm[0], &error));
    CHECK(error != ncclSuccess);
}

CONTRACT(send_counts_differ, .breaches = 1, .text = "rank 1 does ncclRecv (8 elements), rank 0 ncclRecv (16")
{
    both();
    send_both(16, 8);
}

CONTRACT(nested, .breaches = 2, .text = "ncclGetVersion called from inside ncclBcast")
{
    both();
    hooks.nest = true;
    OK(ncclGroupStart());
    for (int i = 0; i < 2; i++)
        OK(ncclBcast(two.at[i], N, ncclInt32, 0, two.comm[i], two.s[i]));
    OK(ncclGroupEnd());
    wait_both();
}

CONTRACT(host_buffer, .breaches = 1, .text = "are no live memory")
{
    both();
    two.at[0] = calloc(N, sizeof(int));
    sum_both(N, N);
    free(two.at[0]);
}

/* A fault ends everything in the context: what hangs behind it must not hold the communicator. */
CONTRACT(faulted)
{
    cudaStream_t s;
    void *p;

    both();
    OK(cudaStreamCreate(&s));
    OK(cudaMalloc(&p, BYTES));
    struct gate g = {0};
    OK(cudaLaunchHostFunc(s, gate_hold, &g));
    OK(cudaMemsetAsync(p, 0, BYTES, s));
    OK(ncclAllReduce(two.at[0], two.at[0], N, ncclInt32, ncclSum, two.comm[0], s));
    OK(cudaFreeAsync(p, two.s[0]));
    OK(cudaStreamSynchronize(two.s[0]));
    g.open = 1;
    CHECK_EQ(cudaStreamSynchronize(s), cudaErrorIllegalAddress);
    OK(ncclCommDestroy(two.comm[0]));
    OK(ncclCommDestroy(two.comm[1]));
}

CONTRACT(foreign_free, .breaches = 1, .text = "is not from ncclMemAlloc")
{
    void *p;

    both();
    OK(cudaMalloc(&p, BYTES));
    CHECK_EQ(ncclMemFree(p), ncclUnhandledCudaError);
    OK(cudaFree(p));
}

CONTRACT(group_end_alone, .breaches = 1, .text = "ncclGroupEnd without ncclGroupStart")
{
    CHECK_EQ(ncclGroupEnd(), ncclInvalidUsage);
}

static void *window_alone(void *arg)
{
    ncclWindow_t w;

    OK(ncclCommWindowRegister(arg, two.at[0], BYTES, &w, 0)); /* is held in ncclMemAlloc */
    OK(ncclCommWindowDeregister(arg, w));
    return NULL;
}

CONTRACT(two_threads, .breaches = 2, .text = "ncclCommRegister on a communicator that another thread is using")
{
    ncclUniqueId id;
    ncclComm_t comm;
    pthread_t thread;

    both();
    OK(ncclGetUniqueId(&id));
    OK(ncclCommInitRank(&comm, 1, id, 0));
    hooks.hold = true;
    pthread_create(&thread, NULL, window_alone, comm);
    while (!hooks.held)
        nap();
    OK(ncclCommRegister(comm, two.at[0], BYTES, &two.handle[0]));
    OK(ncclCommDeregister(comm, two.handle[0]));
    hooks.hold = false;
    pthread_join(thread, NULL);
    OK(ncclCommDestroy(comm));
}

CONTRACT(failures_injected,
         .env = "SIMNCCL_FAIL=ncclCommRegister:2:2,ncclCommRegister:4:0,ncclMemAlloc:3+,ncclGroupEnd:1")
{
    void *h[4];

    both();
    OK(ncclCommRegister(two.comm[0], two.at[0], BYTES, &h[0]));
    CHECK_EQ(ncclCommRegister(two.comm[0], two.at[0], BYTES, &h[1]), ncclSystemError);
    OK(ncclCommRegister(two.comm[0], two.at[0], BYTES, &h[1]));
    h[2] = &h;
    OK(ncclCommRegister(two.comm[0], two.at[0], BYTES, &h[2])); /* success that has not happened */
    CHECK(h[2] == &h);
    OK(ncclCommRegister(two.comm[0], two.at[0], BYTES, &h[3]));
    for (int i = 0; i < 4; i++) {
        if (i != 2)
            OK(ncclCommDeregister(two.comm[0], h[i]));
    }
    CHECK_EQ(ncclMemAlloc(&h[0], 1), ncclUnhandledCudaError);
    CHECK_EQ(ncclMemAlloc(&h[0], 1), ncclUnhandledCudaError);
    OK(ncclGroupStart());
    OK(ncclSend(two.at[0], N, ncclInt32, 1, two.comm[0], two.s[0]));
    CHECK_EQ(ncclGroupEnd(), ncclUnhandledCudaError); /* and the group is over */
    send_both(N, N);
}

CONTRACT(not_local, .env = "NCCL_LOCAL_REGISTER=0")
{
    both();
    two.handle[0] = &two;
    OK(ncclCommRegister(two.comm[0], two.at[0], BYTES, &two.handle[0]));
    CHECK(two.handle[0] == NULL);
    OK(ncclCommDeregister(two.comm[0], NULL));
}

extern const struct contract *const __start_contract_cases[];
extern const struct contract *const __stop_contract_cases[];

static size_t contract_count(void)
{
    return ((uintptr_t)__stop_contract_cases - (uintptr_t)__start_contract_cases) / sizeof(void *);
}

int contract_case(const char *name)
{
    for (size_t i = 0; i < contract_count(); i++) {
        const struct contract *const one = __start_contract_cases[i];

        if (strcmp(one->name, name) == 0) {
            one->run();
            return failures != 0;
        }
    }
    return 2;
}

void contracts(const char *self)
{
    static char text[16384];

    for (size_t i = 0; i < contract_count(); i++) {
        const struct contract *of = __start_contract_cases[i];
        const char *argv[] = {self, "case", of->name, NULL};
        const char *env[] = {"SIMNCCL_STRICT=1", "SIMNCCL_REPORT=/dev/stderr", of->env, NULL};
        int status = spawn(argv, env, text, sizeof(text)), breaches = 0;
        for (const char *at = text; (at = strstr(at, "simnccl: CONTRACT: ")); at++)
            breaches++;
        if (status == (of->breaches ? 86 : 0) && breaches == of->breaches && (!of->text || strstr(text, of->text)))
            continue;
        failures++;
        fprintf(stderr, "case %s: status %d, %d breaches; not as expected:\n%s", of->name, status, breaches, text);
    }
}
