/* SPDX-License-Identifier: Apache-2.0 */
/*
 * selftest.h - shared by the files of the NCCL stand-in's own test.
 *
 * It has CHECK macros that count and print failures, buffers with a pattern, and the parts of the test.
 *
 * Locking: the counters are atomic.
 */
#ifndef SIMNCCL_SELFTEST_H
#define SIMNCCL_SELFTEST_H

#include <cuda_runtime_api.h>
#include <nccl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define RANKS 4

extern atomic_int failures;

#define CHECK(cond)                                                                                                    \
    do {                                                                                                               \
        if (!(cond)) {                                                                                                 \
            failures++;                                                                                                \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #cond);                                                 \
        }                                                                                                              \
    } while (0)
#define CHECK_EQ(call, want)                                                                                           \
    do {                                                                                                               \
        long got_ = (long)(call), want_ = (long)(want);                                                                \
        if (got_ != want_) {                                                                                           \
            failures++;                                                                                                \
            fprintf(stderr, "%s:%d: %s: %ld instead of %ld\n", __FILE__, __LINE__, #call, got_, want_);                \
        }                                                                                                              \
    } while (0)
#define OK(call) CHECK_EQ(call, 0)

struct gate { /* a host function that holds a stream */
    atomic_int open;
};
void gate_hold(void *arg);
void nap(void);

/* This program's own functions in front of the stand-in, as a preload has them: they count calls, and hold or misuse
 * them when told so. */
struct hooks {
    atomic_int broadcasts, mem_allocs, registers;
    atomic_bool nest, hold, held;
};
extern struct hooks hooks;

/* selftest_data.c: the data of every operation, for one rank of RANKS whose device is current. */
void data_rank(ncclComm_t comm);
/* Copies to the device, and waits. */
void upload(void *to, const void *from, size_t size);

/* selftest_groups.c: several ranks in one thread. */
void data_groups(void);

/* selftest_contract.c */
int contract_case(const char *name); /* run one, in a process of its own; the exit status */
void contracts(const char *self);    /* all, each as such a process */

/* selftest.c: run argv with variables set; returns the exit status, 128 + signal, and what it wrote to stderr. */
int spawn(const char *const argv[], const char *const env[], char *text, size_t size);

#endif
