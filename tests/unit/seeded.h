/* SPDX-License-Identifier: Apache-2.0 */
/*
 * seeded.h - what random tests share: numbers from a seed, and settings from the environment (CUPOOL_TEST_SEED and
 * CUPOOL_TEST_OPS).
 *
 * It knows nothing of the code under test.
 *
 * Threads: any, each with an rng of its own.
 */
#ifndef CUPOOL_TESTS_SEEDED_H
#define CUPOOL_TESTS_SEEDED_H

#include <stdint.h>
#include <stdlib.h>

static inline uint64_t env_number(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);

    return text ? strtoull(text, NULL, 0) : otherwise;
}

/* The next number of a sequence (xorshift64). rng must not be 0. */
static inline uint64_t next(uint64_t *rng)
{
    *rng ^= *rng << 13;
    *rng ^= *rng >> 7;
    *rng ^= *rng << 17;
    return *rng;
}

#endif
