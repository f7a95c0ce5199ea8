/* SPDX-License-Identifier: Apache-2.0 */
/*
 * selftest.h - shared by the files of the stand-ins' own test.
 *
 * CHECK macros count and print failures; a gate is a host function that holds a stream until it is opened.
 *
 * Locking: single-threaded use, except the gate.
 */
#ifndef SELFTEST_H
#define SELFTEST_H

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

extern int failures, checks;

#define CHECK(cond)                                                                                                    \
    do {                                                                                                               \
        __atomic_add_fetch(&checks, 1, __ATOMIC_RELAXED);                                                              \
        if (!(cond)) {                                                                                                 \
            __atomic_add_fetch(&failures, 1, __ATOMIC_RELAXED);                                                        \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #cond);                                                 \
        }                                                                                                              \
    } while (0)
#define CHECK_EQ(call, want)                                                                                           \
    do {                                                                                                               \
        int got_ = (int)(call), want_ = (int)(want);                                                                   \
        __atomic_add_fetch(&checks, 1, __ATOMIC_RELAXED);                                                              \
        if (got_ != want_) {                                                                                           \
            __atomic_add_fetch(&failures, 1, __ATOMIC_RELAXED);                                                        \
            fprintf(stderr, "%s:%d: %s: %d instead of %d\n", __FILE__, __LINE__, #call, got_, want_);                  \
        }                                                                                                              \
    } while (0)
#define OK(call) CHECK_EQ(call, 0)

struct gate {
    int open;
};
void gate_hold(void *arg); /* a host function; arg: a struct gate */
void gate_open(struct gate *g);
void nap_ms(int ms);

struct driver {
    CUresult (*get_proc)(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *);
    CUresult (*ctx_record)(CUcontext, CUevent);
    CUresult (*ctx_wait)(CUcontext, CUevent);
    void *lib;
};
extern struct driver drv;

/* A driver function, which the program is not linked to. */
#define LOAD(name) __typeof__(&(name)) p_##name = (__typeof__(&(name)))dlsym(drv.lib, #name)

void test_env(void);
int selftest_part(const char *part);

#endif
