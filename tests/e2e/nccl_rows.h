/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nccl_rows.h - what the two halves of the program nccl_rows share: nccl_rows.c looks at operations, nccl_lives.c at
 * communicators, memory and registrations.
 *
 * Other programs do not include it. The library's counters come by its table of statistics, so the program has to be
 * started with CUPOOL_STATS=signal:USR2 and a pipe on stderr; see test_nccl_rows.py.
 *
 * Threads: the main thread alone, but for said().
 */
#ifndef NCCL_ROWS_H
#define NCCL_ROWS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "nccl_double.h"

/* On stdout: stderr is the library's. */
#define FAIL(...) (printf(__VA_ARGS__), putchar('\n'), fflush(stdout), _exit(1))
#define NC(call)                                                                                                       \
    do {                                                                                                               \
        const ncclResult_t result_ = (call);                                                                           \
        if (result_)                                                                                                   \
            FAIL("%s:%d: %s: %d", __FILE__, __LINE__, #call, (int)result_);                                            \
    } while (0)

#define EXPECT(condition, name, what)                                                                                  \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            FAIL("%s: line %d: %s", name, __LINE__, what);                                                             \
    } while (0)
#define REFUSED         ((ncclResult_t)3) /* by NCCL, for whatever reason */
#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

struct counters {
    unsigned long long ops, registered, undone, renewed, failed, mixed, outside, unsafe;
};

/* As the library has them now. */
struct counters counters_get(void);
/* A communicator that the library has seen being made. */
ncclComm_t comm_made(int rank, int ranks);
/* One that it has not. */
ncclComm_t stranger(void);
/* size bytes of ncclMemAlloc, which are registered with a communicator by its next operation. */
uintptr_t memory_made(size_t size);
void *pointer(uintptr_t addr);

/* Work that went on after a call has ended, and the program has seen it. */
void work_ends(ncclComm_t comm);

/* --- what has reached NCCL --- */

/* From here on: the log begins anew, and calls of this row do that. */
void prepare(const char *name, ncclResult_t result, void (*inside)(void));
/* How many calls of this name the log has, about this; NULL: whatever. */
unsigned int calls_of(const char *name, const void *subject);
/* The index of the first such call; behind all if there is none. */
unsigned int when(const char *name);

/* --- each row, called: with c as the communicator, or as the one that another is made of --- */

struct make {
    const char *name;
    ncclResult_t (*call)(void);
};
struct use {
    const char *name;
    ncclResult_t (*call)(ncclComm_t c);
};
extern const struct make makes[];
extern const struct use uses[], ends[];
extern const size_t make_count, use_count, end_count;
/* The communicators that rows have written. */
extern ncclComm_t made[3];

/* Each a mode of the program. */
void lives_made(void);
void lives_used(void);
void lives_ends(void);
void lives_rest(void);
void lives_nested(void);
void lives_incapable(void);
void lives_polls(void);
void rows_pass(void);
void rows_look_up(void);
/* Prints each row, and the modes that test it. */
void rows_list(void);

/* Of which a new communicator comes. */
static inline bool makes_one(const char *name)
{
    return strcmp(name, "ncclCommSplit") == 0 || strcmp(name, "ncclCommGrow") == 0 ||
           strcmp(name, "ncclCommShrink") == 0;
}

/* Asked what it is: that makes a communicator known. */
static inline bool was_met(ncclComm_t comm)
{
    return calls_of("ncclCommCount", comm) == 1;
}

#endif
