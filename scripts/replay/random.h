/* SPDX-License-Identifier: Apache-2.0 */
/*
 * random.h - a random mix of requests: RMM's, with a choice of sizes.
 *
 * Here: 73 of 100 steps allocate, as long as that keeps the live bytes under a cap; the others free one of the
 * live blocks, each as likely. The same seed gives the same mix everywhere. Not here: like any program.
 *
 * Threads: one.
 */
#ifndef CUPOOL_REPLAY_RANDOM_H
#define CUPOOL_REPLAY_RANDOM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct mix {
    uint64_t requests, seed;
    size_t size_min, size_max, live_max;
    bool uniform; /* sizes; else their logarithms are */
};

/* Whom to tell. An error ends the mix. */
struct mix_ops {
    /* 1: served, 0: refused, or an error. */
    int (*alloc)(void *arg, uint64_t id, size_t size);
    int (*free)(void *arg, uint64_t id);
};

/* 0, or the first error. */
int mix_run(const struct mix *mix, const struct mix_ops *ops, void *arg);

#endif
