/* SPDX-License-Identifier: Apache-2.0 */
/*
 * entries.h - the entries of communicators: found, locked, reused. Private to nccl_reg. It makes no call on a
 * communicator, and knows no rule about when one may go; comm_lifetime.c does.
 *
 * Ownership: entries belong to the registry and are never freed while it exists.
 *
 * Locking: each function says which lock its caller holds.
 */
#ifndef CUPOOL_NCCL_REG_ENTRIES_H
#define CUPOOL_NCCL_REG_ENTRIES_H
#include "nccl_reg_state.h"

static inline unsigned int bucket_of(const void *comm)
{
    return (unsigned int)(reg_hash((uintptr_t)comm) >> 56) % BUCKETS;
}

/* The entry of a communicator; NULL: not known. Without the communicator's lock it may end at any time. */
static inline struct nccl_reg_comm *comm_find(const struct nccl_reg *reg, void *comm)
{
    struct nccl_reg_comm *found = atomic_load_explicit(&reg->buckets[bucket_of(comm)], memory_order_acquire);

    while (found && atomic_load_explicit(&found->key, memory_order_acquire) != comm)
        found = found->next;
    return found;
}

/*
 * take: the communicator with its lock; NULL: not known any more. give: unlock. A thread that ends a
 * communicator does not wait for its lock; then the holder clears the entry when it unlocks.
 */
struct nccl_reg_comm *reg_comm_take(struct nccl_reg *reg, void *comm);
void reg_comm_give(struct nccl_reg *reg, struct nccl_reg_comm *comm);
/* An unused entry of this bucket, or a new one; with the registry's lock. NULL: no host memory. */
struct nccl_reg_comm *reg_comm_new(struct nccl_reg *reg, unsigned int bucket);
/* sum += more; with what guards each of both. */
void reg_counters_add(struct counters *sum, const struct counters *more);

#endif
