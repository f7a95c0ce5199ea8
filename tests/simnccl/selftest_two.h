/* SPDX-License-Identifier: Apache-2.0 */
/*
 * selftest_two.h - two ranks in one thread, each with memory and a stream: what the cases of selftest_contract.c use.
 *
 * Locking: none.
 */
#ifndef SIMNCCL_SELFTEST_TWO_H
#define SIMNCCL_SELFTEST_TWO_H

#include "selftest.h"

#define BYTES ((size_t)2 << 20)
#define N     ((size_t)1000)

struct two {
    ncclComm_t comm[2];
    int *at[2];
    void *handle[2];
    cudaStream_t s[2];
};
extern struct two two;

void both(void);
void both_registered(void);
void wait_both(void);
void deregister_both(void);
void destroy_both(void);
void sum_both(size_t n0, size_t n1);
void send_begin(size_t n0, size_t n1);
void send_both(size_t n0, size_t n1);

/* selftest_record.c: the cases about registrations and the operations that use them */
void left_registered(void);
void twice_deregistered(void);
void handle_mixed(void);
void freed_registered(void);
void freed_captured(void);
void deregister_busy(void);
void deregister_in_group(void);
void one_registered(void);
void half_registered(void);
void receiver_registered(void);
void p2p_first(void);
void p2p_then_in_place(void);
void p2p_after_in_place(void);
void p2p_second(void);
void p2p_in_a_group(void);
void window_offsets(void);
void device_left(void);
void wrong_device(void);
void two_allocations(void);
void host_memory(void);

#endif
