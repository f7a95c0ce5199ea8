/* SPDX-License-Identifier: Apache-2.0 */
/*
 * operations.c - operations, and other calls by which the program uses a communicator: those that need no registration
 * take no lock. See nccl_reg.h. It registers nothing; registrations.h does.
 *
 * Locking: a communicator's users; see op_begin.
 */
#include <errno.h>

#include "entries.h"
#include "groups.h"
#include "lookup.h"
#include "registrations.h"

/*
 * Mark the communicator as in use. Returns the argument for nccl_reg_after_op. A thread that releases a segment first
 * increments `detaching`, then takes the locks, and gives up if there is a user. So an operation that first counts
 * itself as a user and then reads `detaching` as 0 needs no lock.
 */
static struct nccl_reg_comm *op_begin(struct nccl_reg_comm *comm)
{
    if (nccl_reg_group_depth()) {
        reg_group_use(comm);
        return NULL;
    }
    atomic_fetch_add(&comm->users, 1);
    return comm;
}

/* In use: true if the operation needs nothing. */
static bool op_is_prepared(const struct nccl_reg *reg, const struct nccl_reg_comm *comm, const struct nccl_reg_op *op)
{
    if (op->captured || atomic_load_explicit(&comm->seen, memory_order_relaxed) !=
                            atomic_load_explicit(&reg->changes, memory_order_acquire))
        return false;
    for (unsigned int i = 0; i < NCCL_REG_BUFFERS; i++) {
        const uint64_t addr = op->buffers[i].addr;
        const size_t size = op->buffers[i].size;

        if (size && !is_prepared(lookup_get(&comm->lookup, addr), op->kind, addr, size))
            return false;
    }
    return op->buffers[0].size || op->buffers[1].size;
}

int nccl_reg_before_op(struct nccl_reg *reg, void *comm, const struct nccl_reg_op *op, struct nccl_reg_comm **ret_used)
{
    struct nccl_reg_comm *found = comm_find(reg, comm);
    int rc = -ENOENT;

    *ret_used = NULL;
    if (!found)
        return rc;
    *ret_used = op_begin(found);
    if (!atomic_load(&reg->detaching) && atomic_load_explicit(&found->key, memory_order_acquire) == comm &&
        op_is_prepared(reg, found, op)) {
        atomic_store_explicit(&found->ops, atomic_load_explicit(&found->ops, memory_order_relaxed) + 1,
                              memory_order_relaxed);
        return 0;
    }
    pthread_mutex_lock(&found->lock);
    if (atomic_load_explicit(&found->key, memory_order_relaxed) == comm)
        rc = reg_prepare(reg, found, comm, op);
    reg_comm_give(reg, found);
    if (rc < 0) {
        nccl_reg_after_op(*ret_used);
        *ret_used = NULL;
    }
    return rc;
}

void nccl_reg_before_call(struct nccl_reg *reg, void *comm, struct nccl_reg_comm **ret_used)
{
    struct nccl_reg_comm *found = reg_comm_take(reg, comm);

    *ret_used = NULL;
    if (!found)
        return;
    *ret_used = op_begin(found);
    reg_comm_give(reg, found);
}

void nccl_reg_after_op(struct nccl_reg_comm *used)
{
    if (used)
        atomic_fetch_sub_explicit(&used->users, 1, memory_order_release);
}
