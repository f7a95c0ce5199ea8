/* SPDX-License-Identifier: Apache-2.0 */
/*
 * capture_race.h - between the sources of capture_race: options, counters, the fate of a capture, the two kinds of
 * threads.
 *
 * Locking: the counters are atomic; a captor, a racer and all that belongs to them are one thread's.
 */
#ifndef BEHAVIOUR_CAPTURE_RACE_H
#define BEHAVIOUR_CAPTURE_RACE_H

#define BT_OWN_MAIN
#include "behaviour.h"

#include <stdatomic.h>

#define N            ((size_t)16 << 10)
#define STREAMS      3
#define THREADS_MAX  16
#define MESSAGES_MAX 20
#define MODES        3

struct options {
    uint64_t captures, captors, racers, max_bytes, verify, seconds, seed;
};

struct counters {
    atomic_ullong next_capture, ended, lost, wrong, replayed, foreign, looked, allocs, messages;
    atomic_int stop, captors_left, broken;
};

extern struct options opt;
extern struct counters count;

/* Print a message, unless there were too many already. */
#define SAY(...)                                                                                                       \
    do {                                                                                                               \
        if (atomic_fetch_add(&count.messages, 1) < MESSAGES_MAX)                                                       \
            fprintf(stderr, "capture_race: " __VA_ARGS__);                                                             \
    } while (0)

/* A call that succeeds whatever other threads do. */
#define MUST(call)                                                                                                     \
    do {                                                                                                               \
        int rc_ = (int)(call);                                                                                         \
        if (rc_) {                                                                                                     \
            SAY("line %d: %s: %d\n", __LINE__, #call, rc_);                                                            \
            atomic_store(&count.broken, 1);                                                                            \
            atomic_store(&count.stop, 1);                                                                              \
            return BROKEN;                                                                                             \
        }                                                                                                              \
    } while (0)

/* A call that succeeds unless another thread has destroyed the capture. */
#define ALIVE(call)                                                                                                    \
    do {                                                                                                               \
        int rc_ = (int)(call);                                                                                         \
        if (rc_) {                                                                                                     \
            SAY("line %d: %s: %d\n", __LINE__, #call, rc_);                                                            \
            return LOST;                                                                                               \
        }                                                                                                              \
    } while (0)

/* A call that fails, with this error. */
#define FAILS(call, want)                                                                                              \
    do {                                                                                                               \
        int rc_ = (int)(call);                                                                                         \
        (void)cudaGetLastError();                                                                                      \
        if (rc_ != (int)(want)) {                                                                                      \
            SAY("line %d: %s: %d, expected %d\n", __LINE__, #call, rc_, (int)(want));                                  \
            return WRONG;                                                                                              \
        }                                                                                                              \
    } while (0)

/* The fate of a capture. WRONG: an error that is not the native one. */
enum fate { FINE, LOST, WRONG, BROKEN };

#define PASS(call)                                                                                                     \
    do {                                                                                                               \
        enum fate fate_ = (call);                                                                                      \
        if (fate_ != FINE)                                                                                             \
            return fate_;                                                                                              \
    } while (0)

struct captor {
    pthread_t thread;
    cudaStream_t s[STREAMS];
    cudaEvent_t e[4];
    char *buffer[3], *pinned; /* N bytes each */
    uint64_t seed;
    atomic_int at; /* the ending that is under way, for the watchdog */
};

typedef enum fate ending_fn(struct captor *c, enum cudaStreamCaptureMode mode, cudaGraph_t *graph);

/* The modes in which an ending works, by bit. */
#define GLOBAL  (1u << cudaStreamCaptureModeGlobal)
#define LOCAL   (1u << cudaStreamCaptureModeThreadLocal)
#define RELAXED (1u << cudaStreamCaptureModeRelaxed)
#define ALL     (GLOBAL | LOCAL | RELAXED)

struct ending {
    const char *name;
    ending_fn *fn;
    unsigned int modes;
    bool survives; /* there is a graph in the end */
};

#define ENDINGS 15
extern const struct ending endings[ENDINGS];

cudaError_t thread_mode(enum cudaStreamCaptureMode mode);
enum fate streams_open(struct captor *c);
/* With or without a capture on them. */
enum fate streams_renew(struct captor *c);

/* Starts a racer in a thread of its own, which ends when the captors have ended. */
int racer_start(unsigned int id, int mode, uint64_t seed);
int racer_join(unsigned int id);

#endif
