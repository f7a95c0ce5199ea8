/* SPDX-License-Identifier: Apache-2.0 */
/*
 * recorder.h - tables for a pool that add up each call with its arguments to a digest, and pass it to fake.h's.
 *
 * It checks nothing; the fake does.
 *
 * Threads: one.
 */
#ifndef CUPOOL_TESTS_RECORDER_H
#define CUPOOL_TESTS_RECORDER_H

#include "fake.h"

extern struct recorder {
    struct fake *fake;
    uint64_t digest;
    void (*meanwhile)(void); /* called in functions during which other threads may go on */
} recorder;

void recorder_add(uint64_t number);
/* A call of function, or another event. addr: 0, or in the fake's range, so that the digest is of offsets. */
void recorder_call(unsigned int function, uint64_t addr, size_t size, uint64_t more);
/* The config for a pool over recorder.fake. fills: contents matter; sparse: without the functions that may be NULL. */
struct pool_config recorder_config(bool fills, bool sparse);

#endif
