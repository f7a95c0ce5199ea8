/* SPDX-License-Identifier: Apache-2.0 */
/*
 * selftest_record.c - does the NCCL stand-in report misuse of registrations? These are the cases of selftest_contract.c
 * that register, deregister and free memory, or use registered memory.
 *
 * Locking: none.
 */
#include "selftest_two.h"

void left_registered(void)
{
    both_registered();
    OK(ncclCommDeregister(two.comm[0], two.handle[0]));
    destroy_both();
}

void twice_deregistered(void)
{
    both_registered();
    deregister_both();
    CHECK_EQ(ncclCommDeregister(two.comm[0], two.handle[0]), ncclInvalidUsage);
}

void handle_mixed(void)
{
    ncclWindow_t w[2];

    both();
    OK(ncclGroupStart());
    for (int i = 0; i < 2; i++)
        OK(ncclCommWindowRegister(two.comm[i], two.at[i], BYTES, &w[i], NCCL_WIN_COLL_SYMMETRIC));
    OK(ncclGroupEnd());
    CHECK_EQ(ncclCommDeregister(two.comm[0], w[0]), ncclInvalidUsage);
    for (int i = 0; i < 2; i++)
        OK(ncclCommWindowDeregister(two.comm[i], w[i]));
}

void freed_registered(void)
{
    both_registered();
    OK(ncclMemFree(two.at[0]));
    OK(ncclMemAlloc((void **)&two.at[0], BYTES)); /* likely the same address */
    deregister_both();
}

void freed_captured(void)
{
    cudaGraph_t graph;

    both_registered();
    OK(cudaStreamBeginCapture(two.s[0], cudaStreamCaptureModeThreadLocal));
    OK(ncclAllReduce(two.at[0], two.at[0], N, ncclInt32, ncclSum, two.comm[0], two.s[0]));
    OK(cudaStreamEndCapture(two.s[0], &graph));
    deregister_both();
    OK(ncclMemFree(two.at[0]));
    destroy_both();
    OK(cudaGraphDestroy(graph));
}

void deregister_busy(void)
{
    struct gate g = {0};

    both_registered();
    OK(cudaLaunchHostFunc(two.s[0], gate_hold, &g));
    OK(ncclAllReduce(two.at[0], two.at[0], N, ncclInt32, ncclSum, two.comm[0], two.s[0]));
    OK(ncclCommDeregister(two.comm[0], two.handle[0]));
    g.open = 1;
    OK(cudaSetDevice(1));
    OK(ncclAllReduce(two.at[1], two.at[1], N, ncclInt32, ncclSum, two.comm[1], two.s[1]));
    wait_both();
    OK(ncclCommDeregister(two.comm[1], two.handle[1]));
}

void deregister_in_group(void)
{
    both_registered();
    OK(ncclGroupStart());
    OK(ncclSend(two.at[0], N, ncclInt32, 1, two.comm[0], two.s[0]));
    OK(ncclRecv(two.at[1], N, ncclInt32, 0, two.comm[1], two.s[1]));
    deregister_both();
    OK(ncclGroupEnd());
    wait_both();
}

void one_registered(void)
{
    both();
    OK(ncclCommRegister(two.comm[1], two.at[1], BYTES, &two.handle[1]));
    sum_both(N, N);
    OK(ncclCommDeregister(two.comm[1], two.handle[1]));
}

void half_registered(void)
{
    both();
    for (int i = 0; i < 2; i++)
        OK(ncclCommRegister(two.comm[i], two.at[i], BYTES / 2, &two.handle[i]));
    OK(ncclGroupStart());
    for (int i = 0; i < 2; i++)
        OK(ncclAllReduce((char *)two.at[i] + BYTES / 2, two.at[i] + (size_t)i * 100, N, ncclInt32, ncclSum, two.comm[i],
                         two.s[i]));
    OK(ncclGroupEnd());
    wait_both();
    deregister_both();
}

void receiver_registered(void)
{
    both();
    OK(ncclCommRegister(two.comm[1], two.at[1], BYTES, &two.handle[1]));
    send_both(N, N);
    OK(ncclCommDeregister(two.comm[1], two.handle[1]));
}

static void broadcast_both(void)
{
    OK(ncclGroupStart());
    for (int i = 0; i < 2; i++)
        OK(ncclBroadcast(two.at[i], two.at[i], N, ncclInt32, 0, two.comm[i], two.s[i]));
    OK(ncclGroupEnd());
    wait_both();
}

void p2p_first(void)
{
    both_registered();
    send_both(N, N);
    broadcast_both();
    deregister_both();
}

void p2p_then_in_place(void)
{
    both_registered();
    send_both(N, N);
    sum_both(N, N);
    deregister_both();
}

void p2p_after_in_place(void)
{
    both_registered();
    sum_both(N, N);
    send_both(N, N);
    broadcast_both();
    deregister_both();
}

void p2p_second(void)
{
    both_registered();
    broadcast_both();
    send_both(N, N);
    broadcast_both();
    deregister_both();
}

void p2p_in_a_group(void)
{
    both_registered();
    OK(ncclGroupStart());
    send_begin(N, N);
    for (int i = 0; i < 2; i++)
        OK(ncclBroadcast(two.at[i], two.at[i], N, ncclInt32, 0, two.comm[i], two.s[i]));
    OK(ncclGroupEnd());
    wait_both();
    deregister_both();
}

void window_offsets(void)
{
    ncclWindow_t w[2];

    both();
    OK(ncclGroupStart());
    for (int i = 0; i < 2; i++)
        OK(ncclCommWindowRegister(two.comm[i], two.at[i], BYTES, &w[i], NCCL_WIN_COLL_SYMMETRIC));
    OK(ncclGroupEnd());
    sum_both(N, N);
    two.at[1] += 64;
    sum_both(N, N);
    for (int i = 0; i < 2; i++)
        OK(ncclCommWindowDeregister(two.comm[i], w[i]));
}

void device_left(void)
{
    void *again;
    int dev, version;

    both_registered();
    OK(ncclCommRegister(two.comm[1], two.at[1], BYTES, &again));
    OK(ncclCommDeregister(two.comm[1], again));
    OK(cudaGetDevice(&dev));
    CHECK_EQ(dev, 1); /* NCCL leaves it like this */
    OK(ncclGetVersion(&version));
    OK(cudaSetDevice(0));
    OK(ncclCommRegister(two.comm[1], two.at[1], BYTES, &again));
    OK(ncclCommDeregister(two.comm[1], again));
    OK(cudaSetDevice(0)); /* put right: nothing to report */
    deregister_both();
    OK(cudaGetDevice(&dev));
    CHECK_EQ(dev, 0);
}

void wrong_device(void)
{
    both();
    OK(ncclCommRegister(two.comm[0], two.at[1], BYTES, &two.handle[0]));
    OK(ncclCommDeregister(two.comm[0], two.handle[0]));
}

void two_allocations(void)
{
    both();
    OK(ncclCommRegister(two.comm[0], two.at[0], 2 * BYTES, &two.handle[0]));
    OK(ncclCommDeregister(two.comm[0], two.handle[0]));
}

void host_memory(void)
{
    both();
    CHECK_EQ(ncclCommRegister(two.comm[0], &two, sizeof(two), &two.handle[0]), ncclInvalidArgument);
}
