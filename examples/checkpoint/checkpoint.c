/* SPDX-License-Identifier: Apache-2.0 */
/*
 * checkpoint.c - a training loop that saves its state every few steps, and says how long that held it up.
 *
 * Usage: checkpoint --dir DIR [OPTION VALUE]...       or mpirun -n 4 checkpoint ..., a shard for each rank
 *        --size BYTES      of the state, of each rank (64 MiB)       --tensors N   that it consists of (16)
 *        --steps N (10)    --every N   steps between checkpoints (3)  --keep N     complete ones that stay (2)
 *        --mode sync|async|none                                       --writers N  threads that write (4)
 *        --buffers fresh|kept      taken for each checkpoint, or once (kept)
 *        --scratch fresh|kept      memory of the step's operations, likewise (kept)
 *        --work N          more copies of each tensor in a step (0)
 *        --resume yes      go on after the newest checkpoint that is complete and intact
 *        --verify yes      only look at the folder: verify all complete checkpoints
 *        --fault N:WHAT    the N-th operation on files fails (ENOSPC, EIO), or the process is killed before it (kill)
 *        --fault-rank R    on this rank (0)
 *
 * Build: mpicc -O2 -DHAVE_MPI *.c -o checkpoint -I/usr/local/cuda/include -L/usr/local/cuda/lib64 -lcudart -lpthread
 *        or without MPI: gcc -O2 with the same paths and libraries.
 *
 * Here: what asynchronous checkpointing needs (pinned buffers, streams, events, threads, files) and nothing else.
 * The last line has a digest of the state, equal in each right run with these options, resumed or not. Exit status: 1
 * if a checkpoint was not saved, or none is intact; 2 wrong options; 3 --verify found none intact.
 *
 * Not here: training; see state.c.
 *
 * Threads: this is the training thread.
 */
#include "checkpoint.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MODE_SYNC, MODE_ASYNC, MODE_NONE };

static struct {
    size_t size;
    int tensors, steps, every, keep, mode, writers, fresh_buffers, fresh_scratch, work, resume, verify, fault_rank;
    long fault;
    int fault_error;
    const char *dir;
} opt = {.size = 64 << 20, .tensors = 16, .steps = 10, .every = 3, .keep = 2, .mode = MODE_ASYNC, .writers = 4};

/* Seconds of steps: those that come after the start of a checkpoint, and the others. */
static struct {
    double seconds;
    int steps;
} after_start, others;

/* One word of a list, by number, or -1. */
static int word_of(const char *value, const char *const *words)
{
    for (int i = 0; words[i]; i++)
        if (strcmp(value, words[i]) == 0)
            return i;
    return -1;
}

static int fault_parse(const char *value)
{
    static const char *const words[] = {"kill", "ENOSPC", "EIO", NULL};
    static const int errors[] = {0, ENOSPC, EIO};
    char *end;
    int word;

    opt.fault = strtol(value, &end, 10);
    word = *end == ':' ? word_of(end + 1, words) : -1;
    if (word < 0 || opt.fault < 1)
        return -1;
    opt.fault_error = errors[word];
    return 0;
}

static int option_parse(const char *name, const char *value)
{
    static const char *const kinds[] = {"kept", "fresh", NULL}, *const modes[] = {"sync", "async", "none", NULL},
                             *const yes[] = {"no", "yes", NULL};
    const struct {
        const char *name;
        int *to, least;
        const char *const *words; /* NULL: a number */
    } known[] = {{"--tensors", &opt.tensors, 1, NULL},
                 {"--steps", &opt.steps, 1, NULL},
                 {"--every", &opt.every, 1, NULL},
                 {"--keep", &opt.keep, 1, NULL},
                 {"--writers", &opt.writers, 1, NULL},
                 {"--work", &opt.work, 0, NULL},
                 {"--fault-rank", &opt.fault_rank, 0, NULL},
                 {"--mode", &opt.mode, 0, modes},
                 {"--buffers", &opt.fresh_buffers, 0, kinds},
                 {"--scratch", &opt.fresh_scratch, 0, kinds},
                 {"--resume", &opt.resume, 0, yes},
                 {"--verify", &opt.verify, 0, yes}};

    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (strcmp(name, known[i].name) == 0) {
            *known[i].to = known[i].words ? word_of(value, known[i].words) : atoi(value);
            return *known[i].to < known[i].least ? -1 : 0;
        }
    if (strcmp(name, "--fault") == 0)
        return fault_parse(value);
    if (strcmp(name, "--dir") == 0)
        opt.dir = value;
    else if (strcmp(name, "--size") == 0)
        opt.size = strtoull(value, NULL, 0);
    else
        return -1;
    return 0;
}

static int options_parse(int argc, char **argv)
{
    for (int i = 1; i < argc; i += 2)
        if (i + 1 == argc || option_parse(argv[i], argv[i + 1]))
            return -1;
    return !opt.dir || opt.tensors > TENSORS_MAX || opt.size < 1 || opt.size > (size_t)1 << 42 ? -1 : 0;
}

/* Is each byte of it as it was saved? */
static int verify_one(int step, int of_ranks)
{
    uint64_t *sums = (uint64_t *)calloc((size_t)of_ranks, sizeof(*sums));
    struct trouble trouble;
    char folder[PATH_ROOM];
    int error = 0;

    if (!sums)
        ranks_fail(__FILE__, __LINE__, "calloc", "out of memory");
    manifest_folder(folder, opt.dir, step);
    for (int i = 0; !error && i < of_ranks; i++)
        error = shard_load(folder, i, of_ranks, NULL, &sums[i], &trouble);
    if (!error && !manifest_has(opt.dir, step, sums)) {
        error = EINVAL;
        (void)snprintf(trouble.why, sizeof(trouble.why), "a shard is another's");
    }
    if (error)
        printf("checkpoint: step %d is damaged: %s\n", step, trouble.why);
    else
        printf("checkpoint: step %d, %d shards, intact, %016" PRIx64 "\n", step, of_ranks,
               files_checksum(sums, (size_t)of_ranks * sizeof(*sums)));
    free(sums);
    return !error;
}

/* All that are complete, the newest first. */
static int verify(void)
{
    int intact = 0, of_ranks, step = 1 << 30;

    while ((step = manifest_newest(opt.dir, step, &of_ranks)) >= 0)
        intact += verify_one(step, of_ranks);
    if (!intact)
        printf("checkpoint: none\n");
    return intact ? 0 : 3;
}

/* This rank's shard to the device. True if all ranks have theirs, and the manifest means these. */
static int load(struct state *state, int step)
{
    uint64_t sum, *all = (uint64_t *)calloc((size_t)ranks, sizeof(*all));
    struct trouble trouble = {0};
    char folder[PATH_ROOM];
    int good;

    if (!all)
        ranks_fail(__FILE__, __LINE__, "calloc", "out of memory");
    manifest_folder(folder, opt.dir, step);
    if (shard_load(folder, rank, ranks, state, &sum, &trouble))
        (void)fprintf(stderr, "checkpoint: rank %d: step %d is damaged: %s\n", rank, step, trouble.why);
    ranks_gather(sum, all);
    good = !trouble.error && (rank != 0 || manifest_has(opt.dir, step, all));
    free(all);
    return (int)ranks_least(good);
}

/* Loads the newest checkpoint that is intact on all ranks, and returns its step; 0 if there is none at all. */
static int resume(struct state *state)
{
    int before = 1 << 30, seen = 0;

    for (;; seen++) {
        int of_ranks = 0, step = rank == 0 ? manifest_newest(opt.dir, before, &of_ranks) : 0;

        step = (int)ranks_first(step);
        of_ranks = (int)ranks_first(of_ranks);
        if (step < 0 && seen == 0)
            return 0;
        if (step < 0)
            ranks_fail(__FILE__, __LINE__, opt.dir, "no checkpoint is intact");
        if (of_ranks != ranks)
            ranks_fail(__FILE__, __LINE__, opt.dir, "its checkpoint is that of another number of ranks");
        if (load(state, step)) {
            if (rank == 0) {
                printf("checkpoint: goes on after step %d\n", step);
                manifest_prune(opt.dir, opt.keep);
            }
            return step;
        }
        before = step;
    }
}

/* The folder, without what a job left that was killed. */
static void folder_begin(void)
{
    struct trouble trouble;
    int of_ranks, newest;

    if (rank == 0) {
        if (files_folder_make(opt.dir, &trouble))
            ranks_fail(__FILE__, __LINE__, "checkpoints", trouble.why);
        newest = manifest_newest(opt.dir, 1 << 30, &of_ranks);
        if (newest >= 0 && !opt.resume)
            ranks_fail(__FILE__, __LINE__, opt.dir, "has checkpoints; --resume yes, or another folder");
        manifest_prune(opt.dir, 1 << 30);
    }
    (void)ranks_first(0);
}

/* The host waits for the step, as a program that reads the loss does. */
static void step_wait(struct state *state, double since, int after)
{
    CUDA(cudaStreamSynchronize(state->compute));
    if (after) {
        after_start.seconds += ranks_now() - since;
        after_start.steps++;
    } else {
        others.seconds += ranks_now() - since;
        others.steps++;
    }
}

/* Asynchronously a checkpoint is begun while the step is still under way. */
static void train(struct state *state, int first)
{
    int started = 0;

    for (int step = first; step <= opt.steps; step++) {
        int after = started, waited = opt.mode != MODE_ASYNC;
        double start = ranks_now(), held = 0;

        state_step(state, step, opt.work, opt.mode == MODE_NONE ? NULL : save_copied());
        if (waited)
            step_wait(state, start, after);
        held = save_times.blocked;
        started = opt.mode != MODE_NONE && step % opt.every == 0;
        if (opt.mode != MODE_NONE)
            save_look();
        if (started)
            save_start(step);
        if (!waited)
            step_wait(state, start + save_times.blocked - held, after);
    }
}

static void phases_print(const char *where, const double *phases, int checkpoints)
{
    static const char *const names[] = {"last one", "folder", "buffers",  "copies", "checksums",
                                        "writes",   "syncs",  "manifest", "returns"};

    printf("%s", where);
    for (int i = 0; i < PHASES; i++)
        if (phases[i] > 0)
            printf("  %s %.3f", names[i], phases[i] * 1e3 / checkpoints);
    printf("\n");
}

/* Milliseconds, of rank 0. */
static void times_print(const struct state *state, double seconds)
{
    int n = save_times.checkpoints;

    printf("%.1f MiB of state on each of %d ranks, %.3f s in all\n", (double)state->bytes / (1 << 20), ranks, seconds);
    printf("a step: %.3f ms", others.steps ? others.seconds * 1e3 / others.steps : 0.0);
    if (after_start.steps)
        printf("; the step after a checkpoint was begun: %.3f ms", after_start.seconds * 1e3 / after_start.steps);
    printf("\n");
    if (n == 0)
        return;
    printf("training blocked: %.3f ms by each of %d checkpoints, %.3f at most, %.2f %% of the time\n",
           save_times.blocked * 1e3 / n, n, save_times.largest * 1e3, 100 * save_times.blocked / seconds);
    if (n > 1)
        printf("  %.3f ms by each after the first one; buffers that are kept took %.3f ms before the first step\n",
               (save_times.blocked - save_times.first) * 1e3 / (n - 1), save_times.prepared * 1e3);
    phases_print("  training thread, ms:", save_times.training, n);
    phases_print("  writer threads, ms: ", save_times.background, n);
    printf("operations on files: %ld\n", files_count());
}

static void digest_print(const struct state *state)
{
    uint64_t *all = (uint64_t *)calloc((size_t)ranks, sizeof(*all));

    if (!all)
        ranks_fail(__FILE__, __LINE__, "calloc", "out of memory");
    ranks_gather(state_digest(state), all);
    if (rank == 0)
        printf("checkpoint: state after step %d: digest %016" PRIx64 "\n", opt.steps,
               files_checksum(all, (size_t)ranks * sizeof(*all)));
    free(all);
}

static int run(void)
{
    struct saving saving = {opt.mode == MODE_ASYNC ? SAVE_ASYNC : SAVE_SYNC, opt.fresh_buffers, opt.keep, opt.dir};
    struct state state;
    double start;
    int first = 1;

    ranks_device_choose();
    state_begin(&state, opt.size, opt.tensors, opt.fresh_scratch);
    if (rank == opt.fault_rank)
        files_fault(opt.fault, opt.fault_error);
    folder_begin();
    if (opt.resume)
        first = resume(&state) + 1;
    save_begin(&saving, &state);
    writers_begin(opt.mode == MODE_NONE ? 0 : opt.writers);
    start = ranks_now();
    train(&state, first);
    save_finish();
    start = ranks_now() - start;
    writers_end();
    digest_print(&state);
    if (rank == 0)
        times_print(&state, start);
    save_end();
    state_end(&state);
    return ranks_first(save_times.failed) != 0;
}

int main(int argc, char **argv)
{
    int status;

    (void)signal(SIGXFSZ, SIG_IGN); /* a limit on the size of files is an error, EFBIG, and no end */
    ranks_begin(&argc, &argv);
    if (options_parse(argc, argv)) {
        (void)fprintf(stderr, "usage: checkpoint --dir DIR [--size BYTES] [--tensors N] [--steps N] [--every N] "
                              "[--mode sync|async|none] [--buffers fresh|kept] ...\n");
        return 2;
    }
    status = opt.verify ? verify() : run();
    ranks_end();
    return status;
}
