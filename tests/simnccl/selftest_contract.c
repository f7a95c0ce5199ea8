/* SPDX-License-Identifier: Apache-2.0 */
/*
 * selftest_contract.c - does the NCCL stand-in report each call that breaks a contract, and no other?
 *
 * A table of cases, each run in a process of its own with SIMNCCL_STRICT=1: the calls, the text that has to be on
 * stderr, and the number of breaches. Two ranks in one thread, unless a case says otherwise. The cases about
 * registrations are in selftest_record.c, the data in selftest_data.c.
 *
 * Locking: none.
 */
#include "selftest_two.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

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

static void clean(void)
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

static void register_shell(void)
{
    ncclUniqueId id;

    both();
    OK(ncclGetUniqueId(&id));
    OK(ncclGroupStart());
    OK(ncclCommInitRank(&two.comm[0], 1, id, 0));
    CHECK_EQ(ncclCommRegister(two.comm[0], two.at[0], BYTES, &two.handle[0]), ncclInvalidArgument);
    ncclGroupEnd();
}

static void use_pending(void)
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

static void after_finalize(void)
{
    both_registered();
    deregister_both();
    OK(ncclCommFinalize(two.comm[0]));
    CHECK_EQ(ncclCommRegister(two.comm[0], two.at[0], BYTES, &two.handle[0]), ncclInvalidArgument);
    destroy_both();
}

static void after_destroy(void)
{
    int n;

    both();
    destroy_both();
    CHECK_EQ(ncclCommCount(two.comm[0], &n), ncclInvalidArgument);
}

static void after_revoke(void)
{
    both_registered();
    OK(ncclCommRevoke(two.comm[0], NCCL_REVOKE_DEFAULT));
    CHECK_EQ(ncclCommDeregister(two.comm[0], two.handle[0]), ncclInvalidArgument);
    OK(ncclCommDestroy(two.comm[0])); /* with the rest: no other call is allowed */
    OK(ncclCommAbort(two.comm[1]));
}

static void counts_differ(void)
{
    ncclResult_t error;

    both();
    sum_both(16, 8);
    OK(ncclCommGetAsyncError(two.comm[0], &error));
    CHECK(error != ncclSuccess);
}

static void send_counts_differ(void)
{
    both();
    send_both(16, 8);
}

/* The receive buffers alone, and at different offsets: not good, but the same on all ranks. */
/* A collective that maps nothing neither minds nor helps. */
/* A group's collectives come first. */
static void nested(void)
{
    both();
    hooks.nest = true;
    OK(ncclGroupStart());
    for (int i = 0; i < 2; i++)
        OK(ncclBcast(two.at[i], N, ncclInt32, 0, two.comm[i], two.s[i]));
    OK(ncclGroupEnd());
    wait_both();
}

static void host_buffer(void)
{
    both();
    two.at[0] = calloc(N, sizeof(int));
    sum_both(N, N);
    free(two.at[0]);
}

/* A fault ends everything in the context: what hangs behind it must not hold the communicator. */
static void faulted(void)
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

static void foreign_free(void)
{
    void *p;

    both();
    OK(cudaMalloc(&p, BYTES));
    CHECK_EQ(ncclMemFree(p), ncclUnhandledCudaError);
    OK(cudaFree(p));
}

static void group_end_alone(void)
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

static void two_threads(void)
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

static void failures_injected(void)
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

static void not_local(void)
{
    both();
    two.handle[0] = &two;
    OK(ncclCommRegister(two.comm[0], two.at[0], BYTES, &two.handle[0]));
    CHECK(two.handle[0] == NULL);
    OK(ncclCommDeregister(two.comm[0], NULL));
}

static const struct {
    const char *name;
    void (*run)(void);
    int breaches;
    const char *text, *env;
} cases[] = {
    {"clean", clean, 0, "\"registrations\": 2, \"deregistrations\": 2, \"windows\": 0, \"mem_allocs\": 2", NULL},
    {"clean_counts", clean, 0, "\"operations\": {\"all\": 4, \"some\": 0, \"none\": 2}", NULL},
    {"register_shell", register_shell, 1, "ncclCommRegister on a communicator that is not ready", NULL},
    {"use_pending", use_pending, 2, "ncclAllReduce on a communicator that is not ready", "SIMNCCL_SLOW=5"},
    {"left_registered", left_registered, 1, "ncclGroupEnd: 1 registrations are left", NULL},
    {"twice_deregistered", twice_deregistered, 1, "not one of this communicator's registrations", NULL},
    {"handle_mixed", handle_mixed, 1, "not one of this communicator's registrations", NULL},
    {"after_finalize", after_finalize, 1, "ncclCommRegister on a communicator that is finalized", NULL},
    {"after_destroy", after_destroy, 1, "ncclCommCount on a communicator that is destroyed", NULL},
    {"after_revoke", after_revoke, 1, "ncclCommDeregister on a communicator that is revoked", NULL},
    {"freed_registered", freed_registered, 1, "was freed while it was registered", NULL},
    {"freed_captured", freed_captured, 1, "was freed while a captured operation uses it", NULL},
    {"deregister_busy", deregister_busy, 1, "is not finished", NULL},
    {"deregister_in_group", deregister_in_group, 2, "ncclCommDeregister in a group", NULL},
    {"counts_differ", counts_differ, 1, "ncclAllReduce (8 elements)", NULL},
    {"send_counts_differ", send_counts_differ, 1, "rank 1 does ncclRecv (8 elements), rank 0 ncclRecv (16", NULL},
    {"one_registered", one_registered, 1, "rank 1 are in registered memory, those of rank 0 outside", NULL},
    {"half_registered", half_registered, 0, "\"all\": 0, \"some\": 2, \"none\": 0}, \"offsets_differ\": 1", NULL},
    {"receiver_registered", receiver_registered, 1, "ncclRecv: the buffers of rank 1 are in registered memory", NULL},
    {"p2p_first", p2p_first, 2, "ncclBroadcast on a record that point-to-point operations have used first", NULL},
    {"p2p_then_in_place", p2p_then_in_place, 0, NULL, NULL},
    {"p2p_after_in_place", p2p_after_in_place, 2, "ncclBroadcast on a record that point-to-point", NULL},
    {"p2p_second", p2p_second, 0, NULL, NULL},
    {"p2p_in_a_group", p2p_in_a_group, 0, NULL, NULL},
    {"p2p_first_new", p2p_first, 0, NULL, "SIMNCCL_VERSION=22902"},
    {"window_offsets", window_offsets, 1, "offset 0x100 in the symmetric window of rank 1, 0 in that of rank 0", NULL},
    {"nested", nested, 2, "ncclGetVersion called from inside ncclBcast", NULL},
    {"device_left", device_left, 1, "ncclGetVersion: the current device is still the one", NULL},
    {"wrong_device", wrong_device, 1, "memory of device 1 with a communicator of device 0", NULL},
    {"two_allocations", two_allocations, 1, "a record over several allocations", NULL},
    {"two_allocations_new", two_allocations, 0, NULL, "SIMNCCL_VERSION=22902"},
    {"host_memory", host_memory, 1, "is no live memory of a device", NULL},
    {"host_buffer", host_buffer, 1, "are no live memory", NULL},
    {"faulted", faulted, 0, NULL, NULL},
    {"foreign_free", foreign_free, 1, "is not from ncclMemAlloc", NULL},
    {"group_end_alone", group_end_alone, 1, "ncclGroupEnd without ncclGroupStart", NULL},
    {"two_threads", two_threads, 2, "ncclCommRegister on a communicator that another thread is using", NULL},
    {"failures_injected", failures_injected, 0, NULL,
     "SIMNCCL_FAIL=ncclCommRegister:2:2,ncclCommRegister:4:0,ncclMemAlloc:3+,ncclGroupEnd:1"},
    {"not_local", not_local, 0, NULL, "NCCL_LOCAL_REGISTER=0"},
};

int contract_case(const char *name)
{
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        if (strcmp(cases[i].name, name) == 0) {
            cases[i].run();
            return failures != 0;
        }
    }
    return 2;
}

void contracts(const char *self)
{
    static char text[16384];

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const char *argv[] = {self, "case", cases[i].name, NULL};
        const char *env[] = {"SIMNCCL_STRICT=1", "SIMNCCL_REPORT=/dev/stderr", cases[i].env, NULL};
        int status = spawn(argv, env, text, sizeof(text)), breaches = 0;
        for (const char *at = text; (at = strstr(at, "simnccl: CONTRACT: ")); at++)
            breaches++;
        if (status == (cases[i].breaches ? 86 : 0) && breaches == cases[i].breaches &&
            (!cases[i].text || strstr(text, cases[i].text)))
            continue;
        failures++;
        fprintf(stderr, "case %s: status %d, %d breaches; not as expected:\n%s", cases[i].name, status, breaches, text);
    }
}
