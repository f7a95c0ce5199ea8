/* SPDX-License-Identifier: Apache-2.0 */
/*
 * segment_table.h - the table of segments, sorted by address. Private to nccl_reg. It decides nothing about when a
 * segment may go; segment_release.c does. nccl_reg_segment_add is in segment_table.c, too.
 *
 * Ownership: a segment belongs to the registry's array; a pointer to one is valid while the registry's lock is held and
 * none is added or deleted.
 *
 * Locking: every function needs the registry's lock, except reg_segment_quarantine, which takes it. No errors: NULL
 * means that there is none.
 */
#ifndef CUPOOL_NCCL_REG_SEGMENT_TABLE_H
#define CUPOOL_NCCL_REG_SEGMENT_TABLE_H
#include <stddef.h>
#include <stdint.h>

#include "nccl_reg_state.h"

/* The index of the first segment that starts behind addr; of the first one that ends behind it. */
size_t reg_segment_after(const struct nccl_reg *reg, uint64_t addr);
size_t reg_segment_from(const struct nccl_reg *reg, uint64_t addr);
/* The segment that starts at addr; NULL: none. */
struct segment *reg_segment_at(const struct nccl_reg *reg, uint64_t addr);
void reg_segment_delete(struct nccl_reg *reg, const struct segment *segment);
/* A deregistration of the segment has failed, so a peer may still use it. Takes the registry's lock. */
void reg_segment_quarantine(struct nccl_reg *reg, uint64_t addr);

#endif
