/* SPDX-License-Identifier: Apache-2.0 */
/*
 * groups.h - the calling thread's group of operations, and the communicators that it has used. Private to nccl_reg; the
 * functions that the library's callers use are in nccl_reg.h. It begins no operation.
 *
 * Ownership: a group counts as a user of each of its communicators until it ends; it owns none.
 *
 * Locking: none, the group is the thread's own. No errors.
 */
#ifndef CUPOOL_NCCL_REG_GROUPS_H
#define CUPOOL_NCCL_REG_GROUPS_H
#include <stdbool.h>
#include <stdint.h>

#include "nccl_reg_state.h"

/* A unique number of the calling thread's outermost group; 0: it is in none. */
uint64_t reg_group(void);
/* True if this thread's open group uses the communicator. */
bool reg_group_uses(const struct nccl_reg_comm *comm);
/* In a group: comm is in use until this thread's group ends. */
void reg_group_use(struct nccl_reg_comm *comm);

#endif
