/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stamp.h - the state of stamp.c: its options, counters, buffers, streams and threads.
 *
 * Locking: the counters are atomic, a worker and its slots and streams are one thread's, the queue has its lock.
 */
#ifndef BEHAVIOUR_STAMP_H
#define BEHAVIOUR_STAMP_H

#define BT_OWN_MAIN
#include "behaviour.h"

#include <stdatomic.h>

#define THREADS_MAX 256
#define SLOTS_MAX   256
#define STREAMS_MAX 16
#define QUEUE_MAX   4096
#define ERRORS_MAX  10

static struct {
    uint64_t threads, devices, streams, live, delay_us, free_async;
    uint64_t ops, seed, min_bytes, max_bytes, total_bytes, seconds;
    bool expect_errors, host, peer;
} opt = {.threads = 8,
         .devices = 1,
         .streams = 6,
         .live = 48,
         .delay_us = 200,
         .free_async = 4,
         .ops = 1000000,
         .seed = 1,
         .min_bytes = 256,
         .max_bytes = 64 << 10,
         .total_bytes = UINT64_MAX};

static atomic_ullong ops_done, errors, refused, checked, live_bytes;
static atomic_int stop, broken;
static uint64_t started;

enum slot_state { EMPTY, LIVE, PENDING, SEEN };

/* One buffer. token, head and tail lie in pinned memory. */
struct slot {
    enum slot_state state;
    char *p;
    size_t n;
    int stream; /* of the stamp, an index that may be another stream by now: never used without the event; or FAR */
    uint64_t generation;
    uint64_t token;
    uint64_t *pinned; /* [0] the stamp, [1] head, [2] tail as read back, [3] the bytes that overwrite */
    cudaEvent_t event, far_event;
    cudaEvent_t stamped; /* the one of the two that follows the stamp */
    uint64_t *far;       /* two numbers on the next device */
};

#define FAR (-1)

struct stream {
    cudaStream_t s;
    uint64_t generation;
    bool own;
};

struct worker {
    pthread_t thread;
    int id, device, far_device; /* FAR: there is no next device */
    cudaStream_t far_stream;
    uint64_t *far;
    uint64_t seed, counter;
    struct stream stream[STREAMS_MAX];
    struct slot slot[SLOTS_MAX];
    int nslots, oldest; /* slots are used in turn: oldest is the next to be recycled */
    uint64_t *pinned;
};

/* Buffers that another thread shall free. */
static struct {
    pthread_mutex_t lock;
    void *p[QUEUE_MAX];
    size_t size[QUEUE_MAX];
    int n;
} queue = {.lock = PTHREAD_MUTEX_INITIALIZER};

#define MUST(call)                                                                                                     \
    do {                                                                                                               \
        int rc_ = (int)(call);                                                                                         \
        if (rc_) {                                                                                                     \
            fprintf(stderr, "stamp: line %d: %s: %d\n", __LINE__, #call, rc_);                                         \
            atomic_store(&broken, 1);                                                                                  \
            atomic_store(&stop, 1);                                                                                    \
            return -1;                                                                                                 \
        }                                                                                                              \
    } while (0)

#endif
