/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hash.h - a multiplicative hash of addresses and sizes, whose upper bits depend on all bits of the key.
 *
 * It has no table. nccl_reg, which includes nothing of pool/, has its own (lookup.h).
 *
 * Threads: no state, no locks. No errors.
 */
#ifndef CUPOOL_POOL_HASH_H
#define CUPOOL_POOL_HASH_H

#include <stdint.h>

/* The caller takes as many of the upper bits as it needs. */
static inline uint64_t hash_of(uint64_t key)
{
    return key * 0x9e3779b97f4a7c15u; /* 2^64 by the golden ratio */
}

#endif
