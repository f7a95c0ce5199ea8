/* SPDX-License-Identifier: Apache-2.0 */
/*
 * checkpoint.h - what the files of the checkpointing example share.
 *
 * Here: a checkpoint of step N is the folder step-N with a shard of each rank and a manifest, which rank 0 writes
 * when all shards are there. Without the manifest it is none. Lowest first: files.c (operations on files), ranks.c
 * (MPI), state.c (what is trained), shard.c, manifest.c, writers.c (threads), save.c (synchronous and asynchronous).
 *
 * Not here: a format for others. Nothing in it depends on time, so equal states make equal files.
 *
 * Threads: the training thread, unless a function says more.
 */
#ifndef CHECKPOINT_H
#define CHECKPOINT_H

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define TENSORS_MAX 64
#define PATH_ROOM   4096
#define WHY_ROOM    (PATH_ROOM + 128)

/* files.c: operations on files, each counted; any thread. They return 0, or an errno and say why. */
struct trouble {
    int error;
    char why[WHY_ROOM];
};

/* The n-th operation of this process: error: an errno to fail with, or 0: it kills the process. n 0: none does. */
void files_fault(long n, int error);
long files_count(void);
int files_open(int *fd, const char *path, struct trouble *trouble);
int files_write(int fd, const char *path, const void *bytes, size_t size, off_t at, struct trouble *trouble);
int files_sync(int fd, const char *path, struct trouble *trouble);
int files_rename(const char *from, const char *to, struct trouble *trouble);
int files_folder_make(const char *path, struct trouble *trouble);
int files_folder_sync(const char *path, struct trouble *trouble);
void files_remove(const char *path); /* a regular file or an empty folder: this program makes nothing else */
uint64_t files_checksum(const void *bytes, size_t size);
void files_path(char *path, const char *folder, const char *name); /* PATH_ROOM bytes; ends the program if too long */

/* ranks.c */
extern int rank, ranks, rank_device;
void ranks_begin(int *argc, char ***argv);
void ranks_device_choose(void); /* and sets rank_device */
void ranks_end(void);
double ranks_now(void);
__attribute__((noreturn)) void ranks_fail(const char *file, int line, const char *what,
                                          const char *why); /* any thread */
long ranks_least(long value);
double ranks_largest(double value);
long ranks_first(long value);                     /* rank 0's */
void ranks_gather(uint64_t value, uint64_t *all); /* to rank 0 */

#define CUDA(call)                                                                                                     \
    do {                                                                                                               \
        cudaError_t error_ = (call);                                                                                   \
        if (error_)                                                                                                    \
            ranks_fail(__FILE__, __LINE__, #call, cudaGetErrorString(error_));                                         \
    } while (0)

/* state.c */
struct tensor {
    char *device, *scratch; /* scratch: NULL if it is taken anew in each step */
    size_t size;
};

struct state {
    int tensors;
    size_t bytes;
    cudaStream_t compute;
    struct tensor tensor[TENSORS_MAX];
};

void state_begin(struct state *s, size_t bytes, int tensors, int fresh);
/* Enqueues a step. Tensor i changes after copied[i], if there is one. */
void state_step(struct state *s, int step, int work, const cudaEvent_t *copied);
uint64_t state_digest(const struct state *s); /* of this rank's */
void state_end(struct state *s);

/* shard.c: a header of one page, then tensors, each at a multiple of a page. */
struct shard_header {
    char magic[16];
    uint32_t step, rank, ranks, tensors;
    struct {
        uint64_t at, size, checksum;
    } tensor[TENSORS_MAX];
    uint64_t checksum; /* of all before it */
};

struct shard {
    struct shard_header header;
    char folder[PATH_ROOM], path[PATH_ROOM], made[PATH_ROOM]; /* made: its name until it is complete */
    int fd;
};

void shard_name(char *path, const char *folder, int of_rank);
int shard_begin(struct shard *s, const char *folder, const struct state *state, int step, struct trouble *trouble);
/* Any thread, one for each i. */
int shard_write(struct shard *s, int i, const void *bytes, struct trouble *trouble);
/* Any thread, once all are written. */
int shard_finish(struct shard *s, struct trouble *trouble);
void shard_abandon(struct shard *s); /* after trouble */
/* Reads and verifies all. load: to the device as well. */
int shard_load(const char *folder, int of_rank, int of_ranks, struct state *load, uint64_t *checksum,
               struct trouble *trouble);

/* manifest.c: rank 0's, unless a function says more; any thread. */
void manifest_folder(char *path, const char *dir, int step); /* every rank's */
int manifest_write(const char *dir, int step, const uint64_t *checksums, struct trouble *trouble);
/* The newest complete checkpoint before a step, or -1. */
int manifest_newest(const char *dir, int before, int *of_ranks);
/* Is there one, of shards with these checksums? There are as many as ranks then. */
int manifest_has(const char *dir, int step, const uint64_t *checksums);
void manifest_remove(const char *dir, int step);
/* Removes what is incomplete, or older than the `keep` newest ones. */
void manifest_prune(const char *dir, int keep);

/* writers.c: threads that run jobs in order, of both kinds of saving. */
void writers_begin(int threads);
void writers_put(void (*run)(void *arg), void *arg);
void writers_end(void); /* after all jobs */

/* save.c */
enum save_kind { SAVE_SYNC, SAVE_ASYNC };
enum phase { LAST_ONE, FOLDER, BUFFERS, COPIES, CHECKSUMS, WRITES, SYNCS, MANIFEST, RETURNS, PHASES };

struct saving {
    enum save_kind kind;
    int fresh, keep; /* buffers taken for each checkpoint; complete checkpoints that stay */
    const char *dir;
};

struct save_times {
    double training[PHASES], background[PHASES]; /* seconds, in all */
    double blocked, largest;                     /* training thread, all phases: in all, and of one checkpoint */
    double first;                                /* likewise, of the first one */
    double prepared;                             /* training thread: buffers that are kept, before the first step */
    double slowest;                              /* largest start of any rank, of the last one */
    int checkpoints, failed;
};

extern struct save_times save_times;

void save_begin(const struct saving *saving, struct state *state);
void save_start(int step);            /* all ranks */
const cudaEvent_t *save_copied(void); /* what a step has to wait for, or NULL */
void save_look(void);                 /* all ranks, after each step: completes a checkpoint whose shards are there */
void save_finish(void);               /* all ranks: waits for the one under way */
void save_end(void);
void save_add(enum phase phase, double since); /* any thread */

#endif
