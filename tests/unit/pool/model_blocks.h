/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model_blocks.h - the blocks of a model: intervals that may not overlap, and how much of the segments they expose. For
 * model.c alone.
 *
 * It makes no call that changes the pool.
 *
 * Threads: one at a time.
 */
#ifndef CUPOOL_TESTS_MODEL_BLOCKS_H
#define CUPOOL_TESTS_MODEL_BLOCKS_H

#include "model.h"

size_t size_round_up(size_t size, size_t unit);
/* The first fault is kept. */
void model_fault(struct model *model, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Index of the first block that ends after addr. */
size_t model_block_after(const struct model *model, uint64_t addr);
/* refused: the driver has refused memory on the way to this block. */
void model_block_add(struct model *model, uint64_t addr, size_t requested, struct fake_segment *segment, bool refused);
/* An order() has succeeded: kept blocks may be handed out. */
void model_kept_forget(struct model *model);

#endif
