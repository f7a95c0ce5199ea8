/* SPDX-License-Identifier: Apache-2.0 */
/*
 * save.c - saving the state, synchronously or in the background.
 *
 * Here: synchronous: wait for the device, copy to pageable memory, wait for the writer threads. Asynchronous: an event
 * on the compute stream, for which a copy stream waits; copies into pinned buffers; for each tensor an event, for which
 * a writer thread waits before it writes, and the compute stream before it changes that tensor. One checkpoint is under
 * way at a time. It is complete when each rank's shard is, and rank 0's manifest after that.
 *
 * Not here: fatal when a disk fails. The checkpoint is given up, all ranks hear of it, and training goes on.
 *
 * Threads: `lock` guards what writers and the training thread share: left, finished, committing, trouble, times.
 */
#include "checkpoint.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct save_times save_times;

static struct {
    struct saving how;
    struct state *state;
    cudaStream_t copy;
    cudaEvent_t ready, copied[TENSORS_MAX];
    void *buffer[TENSORS_MAX];
    int number[TENSORS_MAX]; /* each its own: jobs get the address of one */
    struct shard shard;
    uint64_t *checksums;      /* rank 0's: of all shards */
    int step, active, copies; /* copies: have any been enqueued? */
    double start, held;       /* the training thread: to start this one, and in all for it */
    pthread_t training;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int left;       /* tensors that are not written */
    int finished;   /* this rank's shard is there, or given up */
    int committing; /* rank 0 writes the manifest */
    struct trouble trouble;
    int newest; /* rank 0's: the last complete step, or -1 */
} save = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER, .newest = -1};

void save_add(enum phase phase, double since)
{
    double took = ranks_now() - since;

    (void)pthread_mutex_lock(&save.lock);
    if (pthread_equal(pthread_self(), save.training))
        save_times.training[phase] += took;
    else
        save_times.background[phase] += took;
    (void)pthread_mutex_unlock(&save.lock);
}

static void buffer_take(int i)
{
    size_t size = save.state->tensor[i].size;

    if (save.buffer[i])
        return;
    if (save.how.kind == SAVE_ASYNC)
        CUDA(cudaHostAlloc(&save.buffer[i], size, cudaHostAllocDefault));
    else
        save.buffer[i] = malloc(size);
    if (!save.buffer[i])
        ranks_fail(__FILE__, __LINE__, "malloc", "out of memory");
}

/* Buffers that are kept are there before training begins. */
static void buffers_prepare(void)
{
    double start = ranks_now();

    for (int i = 0; i < save.state->tensors; i++)
        buffer_take(i);
    save_times.prepared = ranks_now() - start;
}

static void buffer_return(int i)
{
    double start = ranks_now();

    if (save.how.kind == SAVE_ASYNC)
        CUDA(cudaFreeHost(save.buffer[i]));
    else
        free(save.buffer[i]);
    save.buffer[i] = NULL;
    save_add(RETURNS, start);
}

void save_begin(const struct saving *saving, struct state *state)
{
    int of_ranks;

    save.how = *saving;
    save.state = state;
    save.training = pthread_self();
    save.checksums = (uint64_t *)calloc((size_t)ranks, sizeof(*save.checksums));
    if (!save.checksums)
        ranks_fail(__FILE__, __LINE__, "calloc", "out of memory");
    save.newest = manifest_newest(saving->dir, 1 << 30, &of_ranks);
    CUDA(cudaStreamCreateWithFlags(&save.copy, cudaStreamNonBlocking));
    CUDA(cudaEventCreateWithFlags(&save.ready, cudaEventDisableTiming));
    for (int i = 0; i < state->tensors; i++) {
        save.number[i] = i;
        CUDA(cudaEventCreateWithFlags(&save.copied[i], cudaEventDisableTiming | cudaEventBlockingSync));
    }
    if (!saving->fresh)
        buffers_prepare();
}

static int has_trouble(void)
{
    int error;

    (void)pthread_mutex_lock(&save.lock);
    error = save.trouble.error;
    (void)pthread_mutex_unlock(&save.lock);
    return error;
}

/* The first error counts. */
static void trouble_keep(const struct trouble *trouble)
{
    (void)pthread_mutex_lock(&save.lock);
    if (!save.trouble.error)
        save.trouble = *trouble;
    (void)pthread_mutex_unlock(&save.lock);
}

/* The last tensor is written: the shard becomes complete, or goes. */
static void shard_end(void)
{
    struct trouble trouble;

    if (!has_trouble() && shard_finish(&save.shard, &trouble))
        trouble_keep(&trouble);
    if (has_trouble())
        shard_abandon(&save.shard);
    (void)pthread_mutex_lock(&save.lock);
    save.finished = 1;
    (void)pthread_cond_broadcast(&save.changed);
    (void)pthread_mutex_unlock(&save.lock);
}

/* A job, of tensor *arg: its bytes are in the buffer once copied[i] has happened. */
static void tensor_save(void *arg)
{
    struct trouble trouble;
    int i = *(const int *)arg, left;
    double start = ranks_now();

    if (save.how.kind == SAVE_ASYNC) {
        CUDA(cudaEventSynchronize(save.copied[i]));
        save_add(COPIES, start);
    }
    if (!has_trouble() && shard_write(&save.shard, i, save.buffer[i], &trouble))
        trouble_keep(&trouble);
    if (save.how.fresh)
        buffer_return(i);
    (void)pthread_mutex_lock(&save.lock);
    left = --save.left;
    (void)pthread_mutex_unlock(&save.lock);
    if (left == 0)
        shard_end();
}

static void copies_enqueue(void)
{
    double start = ranks_now();

    CUDA(cudaEventRecord(save.ready, save.state->compute));
    CUDA(cudaStreamWaitEvent(save.copy, save.ready, 0));
    for (int i = 0; i < save.state->tensors; i++) {
        const struct tensor *t = &save.state->tensor[i];

        CUDA(cudaMemcpyAsync(save.buffer[i], t->device, t->size, cudaMemcpyDeviceToHost, save.copy));
        CUDA(cudaEventRecord(save.copied[i], save.copy));
        writers_put(tensor_save, &save.number[i]);
    }
    save.copies = 1;
    save_add(COPIES, start);
}

static void copies_make(void)
{
    double start = ranks_now();

    CUDA(cudaDeviceSynchronize());
    for (int i = 0; i < save.state->tensors; i++)
        CUDA(cudaMemcpy(save.buffer[i], save.state->tensor[i].device, save.state->tensor[i].size,
                        cudaMemcpyDeviceToHost));
    save_add(COPIES, start);
    for (int i = 0; i < save.state->tensors; i++)
        writers_put(tensor_save, &save.number[i]);
}

/* Rank 0 makes the folder. No rank goes on before it is there. */
static int folder_make(const char *folder, struct trouble *trouble)
{
    double start = ranks_now();
    int error = rank == 0 ? files_folder_make(folder, trouble) : 0;

    error = (int)ranks_first(error);
    save_add(FOLDER, start);
    return error;
}

static void given_up(const struct trouble *trouble)
{
    (void)fprintf(stderr, "checkpoint: rank %d: step %d is not saved: %s\n", rank, save.step, trouble->why);
}

static void newest_say(void)
{
    if (save.newest < 0)
        (void)fprintf(stderr, "checkpoint: there is no complete one\n");
    else
        (void)fprintf(stderr, "checkpoint: the last complete one is step %d\n", save.newest);
}

/* The training thread was held up since then. */
static void blocked_add(double since)
{
    double took = ranks_now() - since;

    save_times.blocked += took;
    save.held += took;
    if (save.held > save_times.largest)
        save_times.largest = save.held;
    if (save_times.checkpoints == 1)
        save_times.first = save.held;
}

static void start(int step)
{
    struct trouble trouble = {0};
    char folder[PATH_ROOM];
    double since;

    save.step = step;
    save_times.checkpoints++;
    manifest_folder(folder, save.how.dir, step);
    if (folder_make(folder, &trouble)) {
        save_times.failed++;
        if (rank == 0) {
            given_up(&trouble);
            newest_say();
        }
        return;
    }
    save.left = save.state->tensors;
    save.finished = 0;
    save.trouble.error = 0;
    if (shard_begin(&save.shard, folder, save.state, step, &trouble))
        trouble_keep(&trouble);
    since = ranks_now();
    for (int i = 0; i < save.state->tensors; i++)
        buffer_take(i);
    save_add(BUFFERS, since);
    save.active = 1;
    if (save.how.kind == SAVE_ASYNC)
        copies_enqueue();
    else
        copies_make();
}

void save_start(int step)
{
    double since = ranks_now();

    save_finish();
    save.held = 0;
    save_add(LAST_ONE, since);
    start(step);
    save.start = ranks_now() - since;
    blocked_add(since);
    if (save.how.kind == SAVE_SYNC)
        save_finish();
}

const cudaEvent_t *save_copied(void)
{
    return save.copies ? save.copied : NULL;
}

/* Rank 0's: all shards are there. A job. */
static void commit(void *arg)
{
    double start = ranks_now();
    struct trouble trouble;
    int error = manifest_write(save.how.dir, save.step, save.checksums, &trouble);

    if (error) {
        given_up(&trouble);
        manifest_remove(save.how.dir, save.step);
        newest_say();
    } else {
        save.newest = save.step;
        printf("checkpoint: step %d saved; slowest start %.3f ms\n", save.step, save_times.slowest * 1e3);
        manifest_prune(save.how.dir, save.how.keep);
    }
    save_add(MANIFEST, start);
    (void)pthread_mutex_lock(&save.lock);
    save_times.failed += error != 0;
    save.committing = 0;
    (void)pthread_cond_broadcast(&save.changed);
    (void)pthread_mutex_unlock(&save.lock);
    (void)arg;
}

/* All ranks' shards are there, or given up. */
static void complete(void)
{
    int good = (int)ranks_least(!has_trouble());

    save.active = 0;
    save_times.slowest = ranks_largest(save.start);
    ranks_gather(save.shard.header.checksum, save.checksums);
    if (has_trouble())
        given_up(&save.trouble);
    if (!good) {
        save_times.failed++;
        if (rank == 0) {
            manifest_remove(save.how.dir, save.step);
            newest_say();
        }
    } else if (rank == 0) {
        save.committing = 1;
        if (save.how.kind == SAVE_ASYNC)
            writers_put(commit, NULL);
        else
            commit(NULL);
    }
}

static void look(void)
{
    int finished;

    (void)pthread_mutex_lock(&save.lock);
    finished = save.finished;
    (void)pthread_mutex_unlock(&save.lock);
    if (ranks_least(finished))
        complete();
}

void save_look(void)
{
    double since = ranks_now();

    if (!save.active)
        return;
    look();
    blocked_add(since);
}

void save_finish(void)
{
    double since = ranks_now();

    if (save.active) {
        (void)pthread_mutex_lock(&save.lock);
        while (!save.finished)
            (void)pthread_cond_wait(&save.changed, &save.lock);
        (void)pthread_mutex_unlock(&save.lock);
        look();
    }
    (void)pthread_mutex_lock(&save.lock);
    while (save.committing)
        (void)pthread_cond_wait(&save.changed, &save.lock);
    (void)pthread_mutex_unlock(&save.lock);
    if (save.how.kind == SAVE_SYNC)
        blocked_add(since);
}

void save_end(void)
{
    for (int i = 0; i < save.state->tensors; i++) {
        if (save.buffer[i])
            buffer_return(i);
        CUDA(cudaEventDestroy(save.copied[i]));
    }
    CUDA(cudaEventDestroy(save.ready));
    CUDA(cudaStreamDestroy(save.copy));
    free(save.checksums);
}
