/* SPDX-License-Identifier: Apache-2.0 */
/*
 * selftest_record.c - does the NCCL stand-in report misuse of registrations? These are the cases of selftest_contract.c
 * that register, deregister and free memory, or use registered memory.
 *
 * Locking: none.
 */
#include "selftest_two.h"

CONTRACT(left_registered, .breaches = 1, .text = "ncclGroupEnd: 1 registrations are left")
{
    both_registered();
    OK(ncclCommDeregister(two.comm[0], two.handle[0]));
    destroy_both();
}

CONTRACT(twice_deregistered, .breaches = 1, .text = "not one of this communicator's registrations")
{
    both_registered();
    deregister_both();
    CHECK_EQ(ncclCommDeregister(two.comm[0], two.handle[0]), ncclInvalidUsage);
}

CONTRACT(handle_mixed, .breaches = 1, .text = "not one of this communicator's registrations")
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

CONTRACT(freed_registered, .breaches = 1, .text = "was freed while it was registered")
{
    both_registered();
    OK(ncclMemFree(two.at[0]));
    OK(ncclMemAlloc((void **)&two.at[0], BYTES)); /* likely the same address */
    deregister_both();
}

CONTRACT(freed_captured, .breaches = 1, .text = "was freed while a captured operation uses it")
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

CONTRACT(deregister_busy, .breaches = 1, .text = "is not finished")
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

CONTRACT(deregister_in_group, .breaches = 2, .text = "ncclCommDeregister in a group")
{
    both_registered();
    OK(ncclGroupStart());
    OK(ncclSend(two.at[0], N, ncclInt32, 1, two.comm[0], two.s[0]));
    OK(ncclRecv(two.at[1], N, ncclInt32, 0, two.comm[1], two.s[1]));
    deregister_both();
    OK(ncclGroupEnd());
    wait_both();
}

CONTRACT(one_registered, .breaches = 1, .text = "rank 1 are in registered memory, those of rank 0 outside")
{
    both();
    OK(ncclCommRegister(two.comm[1], two.at[1], BYTES, &two.handle[1]));
    sum_both(N, N);
    OK(ncclCommDeregister(two.comm[1], two.handle[1]));
}

CONTRACT(half_registered, .text = "\"all\": 0, \"some\": 2, \"none\": 0}, \"offsets_differ\": 1")
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

CONTRACT(receiver_registered, .breaches = 1, .text = "ncclRecv: the buffers of rank 1 are in registered memory")
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

/* Of what the root alone sends. */
static void broadcast_from_root(void)
{
    both_registered();
    OK(ncclGroupStart());
    for (int i = 0; i < 2; i++)
        OK(ncclBroadcast(i ? NULL : two.at[i], two.at[i], N, ncclInt32, 0, two.comm[i], two.s[i]));
    OK(ncclGroupEnd());
    wait_both();
    deregister_both();
}
CONTRACT_ADD(broadcast_from_root, broadcast_from_root, .breaches = 1,
             .text = "ncclBroadcast: the buffers of rank 1 are partly in registered memory, those of rank 0 in")
CONTRACT_ADD(broadcast_from_root_new, broadcast_from_root, .env = "SIMNCCL_VERSION=22902")

CONTRACT(p2p_first, .breaches = 2, .text = "ncclBroadcast on a record that point-to-point operations have used first")
{
    both_registered();
    send_both(N, N);
    broadcast_both();
    deregister_both();
}
CONTRACT_ADD(p2p_first_new, p2p_first, .env = "SIMNCCL_VERSION=22902")

CONTRACT(p2p_then_in_place)
{
    both_registered();
    send_both(N, N);
    sum_both(N, N);
    deregister_both();
}

CONTRACT(p2p_after_in_place, .breaches = 2, .text = "ncclBroadcast on a record that point-to-point")
{
    both_registered();
    sum_both(N, N);
    send_both(N, N);
    broadcast_both();
    deregister_both();
}

CONTRACT(p2p_second)
{
    both_registered();
    broadcast_both();
    send_both(N, N);
    broadcast_both();
    deregister_both();
}

CONTRACT(p2p_in_a_group)
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

CONTRACT(window_offsets, .breaches = 1, .text = "offset 0x100 in the symmetric window of rank 1, 0 in that of rank 0")
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

CONTRACT(device_left, .breaches = 1, .text = "ncclGetVersion: the current device is still the one")
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

CONTRACT(wrong_device, .breaches = 1, .text = "memory of device 1 with a communicator of device 0")
{
    both();
    OK(ncclCommRegister(two.comm[0], two.at[1], BYTES, &two.handle[0]));
    OK(ncclCommDeregister(two.comm[0], two.handle[0]));
}

CONTRACT(two_allocations, .breaches = 1, .text = "a record over several allocations")
{
    both();
    OK(ncclCommRegister(two.comm[0], two.at[0], 2 * BYTES, &two.handle[0]));
    OK(ncclCommDeregister(two.comm[0], two.handle[0]));
}
CONTRACT_ADD(two_allocations_new, two_allocations, .env = "SIMNCCL_VERSION=22902")

CONTRACT(host_memory, .breaches = 1, .text = "is no live memory of a device")
{
    both();
    CHECK_EQ(ncclCommRegister(two.comm[0], &two, sizeof(two), &two.handle[0]), ncclInvalidArgument);
}
