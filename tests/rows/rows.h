/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rows.h - what the programs that test the rows of shim/hooks/ share: the rows, the arguments that they are called
 * with, and the answers that librows_next.so gives in the place of the driver.
 *
 * Not here: expectations (expected.txt) and effects (effects.c, driver.c, runtime.c).
 *
 * Threads: none but the test's own.
 */
#ifndef ROWS_H
#define ROWS_H

#include <dlfcn.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "real/hooks.h"

/* Arguments of the calls; rows.py says which parameter gets which. Set by given_reset and by settings of an effect. */
struct given {
    CUdeviceptr to, from, ptr;
    CUdeviceptr got; /* results are written here */
    size_t got_size;
    uint64_t data;
    void *data_list[1];
    size_t size, offset, count;
    unsigned int flags;
    CUstream stream;
    CUcontext context, made;
    CUgreenCtx green;
    CUgraph graph, graph_made;
    CUpointer_attribute attribute;
    CUmemGenericAllocationHandle handle;
    CUipcMemHandle ipc;
    CUmemLocation location;
    CUmemAllocationType memory_type;
    CUmemAccessDesc access[2];
    CUmemPoolProps pool;
    CUmemAllocationProp memory;
    CUmulticastObjectProp multicast;
    CUctxCreateParams context_parameters;
    /* Copies and nodes that given_fill makes of to and from. */
    CUDA_MEMCPY2D copy_2d;
    CUDA_MEMCPY3D copy_3d;
    CUDA_MEMCPY3D_PEER copy_peer;
    /* of one, or the second of two; the first one is no different from what given_reset sets */
    CUDA_MEMCPY3D_BATCH_OP copy_batch[2];
    CUdeviceptr to_batch[2], from_batch[2];
    CUDA_MEMSET_NODE_PARAMS set;
    CUgraphNodeParams node;
    int node_type;
    CUmemorytype to_type, from_type;
    uint64_t room[16]; /* for whatever else is pointed to */
};
extern struct given given;

/* The bytes of a call's arguments, one after the other. */
struct rows_arguments {
    size_t size;
    unsigned char bytes[512];
};

/* One call of a row sends these. */
extern struct rows_arguments rows_sent;

/* librows_next.so stands behind the library in the loader's order. For calls of symbol it gives the answers, one after
 * the other, in the place of the driver; behind the last one, and for ANSWER_REAL, it makes the call. */
#define ANSWER_REAL (-1)
struct rows_next {
    const char *symbol;
    int answers[2];
    unsigned int answers_count;
    unsigned int calls; /* of the symbol, since it was set */
    bool differ;        /* their arguments did */
    struct rows_arguments got;
};

struct row {
    const char *symbol;
    void *function;              /* the hook, as the loader gives it to the program */
    int (*call)(void *function); /* with given as arguments; returns what the function does */
    const char *expected;        /* effects, separated by semicolons; NULL: the row is expected, but there is none */
    bool runtime;
};

/* One effect of a row, taken apart: WORD SETTINGS "WHY". */
struct expectation {
    const struct row *row;
    char word[32], settings[64], why[96];
};

struct effect {
    const char *word;
    int (*test)(const struct expectation *e); /* 0, or 1 and fail() has said why */
    bool spoils;                              /* the process is of no use for another test */
    /* Looks at what the process of the test left on stderr. */
    int (*after)(const struct expectation *e, const char *stderr_text);
};
extern const struct effect effects[]; /* ends with a word that is NULL */

/* Makes the test fail; for return. */
int fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            return fail("%s:%d: %s", __func__, __LINE__, #condition);                                                  \
    } while (0)
#define IS(got, want)                                                                                                  \
    do {                                                                                                               \
        const long got_ = (long)(got), want_ = (long)(want);                                                           \
        if (got_ != want_)                                                                                             \
            return fail("%s:%d: %s: %ld, not %ld", __func__, __LINE__, #got, got_, want_);                             \
    } while (0)
#define OK(call) IS(call, 0)
#define TRY(test)                                                                                                      \
    do {                                                                                                               \
        if (test)                                                                                                      \
            return 1;                                                                                                  \
    } while (0)

/* --- rows.c --- */
/* Can librows_next.so answer for the row? Not where a static cudart is called. */
bool row_is_answered(const struct row *row);
/* Call a row. answered: with this answer in the place of the driver. */
int row_call(const struct row *row);
int row_call_answered(const struct row *row, int answer);
/* As above, for another symbol of the driver, whose row is to be found. */
const struct row *row_find(const char *symbol);
/* Is there an event in this process's trace whose line holds all three texts? */
bool trace_has(const char *event, const char *one, const char *other);
extern struct rows_next *rows_next; /* NULL: librows_next.so is not preloaded */

/* --- effects.c, driver.c, runtime.c --- */
/* The driver is there, a context is current, and known to the library. */
int world_start(void);
void given_reset(void);
/* Looked for in every row. */
int ways(const struct expectation *e);
int arguments(const struct expectation *e);

#endif
