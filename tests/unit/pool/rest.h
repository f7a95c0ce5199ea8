/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rest.h - what is true of a pool while no call is under way: nothing is held, nothing is on its way, and every list,
 * count and sum that pool_check does not look at agrees with the blocks.
 *
 * model.h tests the promises of the pool. Tests call rest_fault after their own steps.
 *
 * Threads: no other one may be inside a call on the pool.
 */
#ifndef CUPOOL_TESTS_REST_H
#define CUPOOL_TESTS_REST_H

struct pool;

/* The first thing that is wrong, or NULL. */
const char *rest_fault(struct pool *pool);

#endif
