/* SPDX-License-Identifier: Apache-2.0 */
/*
 * selftest_groups.c - do groups of the NCCL stand-in work that make, use and end the communicators of several ranks in
 * one thread?
 *
 * Locking: none.
 */
#include "selftest.h"

void data_groups(void)
{
    ncclComm_t comms[RANKS], halves[RANKS];
    ncclUniqueId id;
    int *at[RANKS], v, dev;

    OK(ncclGetUniqueId(&id));
    for (int way = 0; way < 2; way++) {
        if (way == 0) {
            OK(ncclCommInitAll(comms, RANKS, NULL));
        } else {
            OK(ncclGroupStart());
            for (int i = 0; i < RANKS; i++) {
                OK(cudaSetDevice(i));
                OK(ncclCommInitRank(&comms[i], RANKS, id, i));
                CHECK(comms[i] != NULL); /* a shell */
            }
            OK(ncclGroupEnd());
        }
        OK(cudaSetDevice(0));
        OK(ncclGroupStart());
        for (int i = 0; i < RANKS; i++)
            OK(ncclCommSplit(comms[i], i % 2, i, &halves[i], NULL));
        OK(ncclGroupEnd());
        for (int i = 0; i < RANKS; i++) {
            v = i + 1;
            OK(cudaSetDevice(i));
            OK(cudaMalloc((void **)&at[i], sizeof(v)));
            upload(at[i], &v, sizeof(v));
        }
        OK(cudaSetDevice(0));
        OK(ncclGroupStart());
        OK(ncclGroupStart());
        for (int i = 0; i < RANKS; i++)
            OK(ncclAllReduce(at[i], at[i], 1, ncclInt32, ncclSum, halves[i], NULL));
        OK(ncclGroupEnd());
        for (int i = 0; i < RANKS; i++)
            OK(ncclAllReduce(at[i], at[i], 1, ncclInt32, ncclSum, comms[i], NULL));
        OK(ncclGroupEnd());
        OK(cudaGetDevice(&dev));
        CHECK_EQ(dev, 0);
        for (int i = 0; i < RANKS; i++) {
            OK(cudaSetDevice(i));
            OK(cudaMemcpy(&v, at[i], sizeof(v), cudaMemcpyDeviceToHost));
            CHECK_EQ(v, 20); /* 1+3 and 2+4, twice each */
            OK(cudaFree(at[i]));
        }
        OK(ncclGroupStart());
        for (int i = 0; i < RANKS; i++) {
            OK(ncclCommDestroy(halves[i]));
            OK(ncclCommDestroy(comms[i]));
        }
        OK(ncclGroupEnd());
    }
}
