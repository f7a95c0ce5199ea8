/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nccl_app.h - what the files of the program nccl_app share: operations whose data is checked, and how scenarios
 * are found.
 *
 * Other programs do not include it. An error ends the program, with a line that names it.
 *
 * Threads: each rank is one, and uses its own struct rank.
 */
#ifndef NCCL_APP_H
#define NCCL_APP_H

#include <cuda_runtime_api.h>
#include <nccl.h>

#include "../program.h"

/* With the names that no preload catches, for what the scenario graph_trim calls. */
#ifdef UNSEEN
#define ncclGetUniqueId  pncclGetUniqueId
#define ncclCommInitRank pncclCommInitRank
#define ncclCommDestroy  pncclCommDestroy
#define ncclAllGather    pncclAllGather
#endif

#define MIB ((size_t)1 << 20)
#ifndef COUNT
#define COUNT 20000 /* elements of one rank in one operation; 1 MiB at most */
#endif
#define BYTES     (COUNT * sizeof(float))
#define RANKS_MAX 8
#define CU(call)  OK(call)
#define NC(call)  OK(call)

extern int ranks;
extern ncclUniqueId ids[4];

struct rank {
    int rank;
    cudaStream_t stream;
    ncclComm_t comm;
};

struct scenario {
    const char *name;
    void (*run)(struct rank *r);
};
/* NOLINTBEGIN(bugprone-macro-parentheses): the argument is a name */
/* The head of a scenario's function, which main finds in a section of the program. */
#define SCENARIO(name_)                                                                                                \
    static void name_(struct rank *r);                                                                                 \
    static const struct scenario name_##_scenario = {#name_, name_};                                                   \
    static const struct scenario *const name_##_place __attribute__((used, section("scenarios"))) = &name_##_scenario; \
    static void name_(struct rank *r)
/* NOLINTEND(bugprone-macro-parentheses) */

/* Memory of cudaMalloc, on the current device. */
void *get(size_t size);
/* There is not so much now, and that is all that comes of it. */
void get_refused(size_t size);
/* So many elements of this rank's; and are COUNT of them there, once the stream has come so far? */
void fill(void *to, int rank, int count);
void expect(const struct rank *r, const void *at, int rank, const char *what);
/* Operations on COUNT elements of each rank, with a look at what came of them. */
void all_gather(const struct rank *r, void *from, char *to);
void ring(const struct rank *r, void *from, void *to);
void broadcast(const struct rank *r, void *at);
/* Of equal values, so that each rank's part is known. */
void others(const struct rank *r, char *from, char *to);
/* All ranks with the same id. The end waits for the stream. */
void comm_make(struct rank *r, int id);
void comm_end(struct rank *r);
/* For cudaLaunchHostFunc: until the atomic_int is not 0. */
void on_flag(void *flag);

#endif
