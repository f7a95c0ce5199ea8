/* SPDX-License-Identifier: Apache-2.0 */
/*
 * operations.c - groups, and operations: those that need no registration take no turn. See nccl_reg_internal.h.
 *
 * Locking: a communicator's users; see op_begin.
 */
#include "nccl_reg_internal.h"

#include <errno.h>
#include <stdlib.h>

/* The number of a group's communicators that need no memory from the heap. */
#define GROUP_FIRST 4u

/* The calling thread's groups, and the communicators that they have used: the group counts as a user of each until its
 * end. */
static __thread struct {
    uint64_t number; /* a unique number of the outermost group */
    unsigned int depth, count, room;
    struct nccl_reg_comm *first[GROUP_FIRST];
    struct nccl_reg_comm **more;
} group __attribute__((tls_model("initial-exec")));

static _Atomic(uint64_t) groups; /* the number of groups so far, of all threads */

uint64_t reg_group(void)
{
    return group.depth ? group.number : 0;
}

/* The element for the group's communicator of index i. */
static struct nccl_reg_comm **group_at(unsigned int i)
{
    return i < GROUP_FIRST ? &group.first[i] : &group.more[i - GROUP_FIRST];
}

bool reg_group_uses(const struct nccl_reg_comm *comm)
{
    for (unsigned int i = 0; i < group.count; i++)
        if (*group_at(i) == comm)
            return true;
    return false;
}

/* comm is in use until this thread's group ends. */
static void group_use(struct nccl_reg_comm *comm)
{
    size_t room = group.room;

    if (reg_group_uses(comm))
        return;
    atomic_fetch_add(&comm->users, 1);
    /* Without memory for the entry, the communicator stays in use, and its segments never go. */
    if (group.count >= GROUP_FIRST &&
        reg_reserve((void **)&group.more, group.count - GROUP_FIRST, &room, sizeof(void *)))
        return;
    group.room = (unsigned int)room;
    *group_at(group.count++) = comm;
}

/*
 * Mark the communicator as in use. Returns the argument for nccl_reg_after_op. A thread that releases a segment first
 * increments `detaching`, then takes the turns, and gives up if there is a user. So an operation that first counts
 * itself as a user and then reads `detaching` as 0 needs no turn.
 */
static struct nccl_reg_comm *op_begin(struct nccl_reg_comm *comm)
{
    if (group.depth) {
        group_use(comm);
        return NULL;
    }
    atomic_fetch_add(&comm->users, 1);
    return comm;
}

/* In use: true if the operation needs nothing. */
static bool op_settled(const struct nccl_reg *reg, const struct nccl_reg_comm *comm, const struct nccl_reg_op *op)
{
    if (op->captured || atomic_load_explicit(&comm->seen, memory_order_relaxed) !=
                            atomic_load_explicit(&reg->changes, memory_order_acquire))
        return false;
    for (unsigned int i = 0; i < NCCL_REG_BUFFERS; i++) {
        const uint64_t addr = op->buffers[i].addr;
        const size_t size = op->buffers[i].size;

        if (size && !is_settled(near_get(&comm->near, addr), op->kind, addr, size))
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
        op_settled(reg, found, op)) {
        atomic_store_explicit(&found->ops, atomic_load_explicit(&found->ops, memory_order_relaxed) + 1,
                              memory_order_relaxed);
        return 0;
    }
    pthread_mutex_lock(&found->turn);
    if (atomic_load_explicit(&found->key, memory_order_relaxed) == comm)
        rc = reg_prepare(reg, found, comm, op);
    reg_turn_give(reg, found);
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
    reg_turn_give(reg, found);
}

void nccl_reg_after_op(struct nccl_reg_comm *used)
{
    if (used)
        atomic_fetch_sub_explicit(&used->users, 1, memory_order_release);
}

void nccl_reg_group_start(void)
{
    if (!group.depth++)
        group.number = atomic_fetch_add_explicit(&groups, 1, memory_order_relaxed) + 1;
}

void nccl_reg_group_end(bool goes_on)
{
    if (!group.depth || --group.depth)
        return;
    for (unsigned int i = 0; i < group.count; i++) {
        struct nccl_reg_comm *comm = *group_at(i);

        if (goes_on)
            atomic_store(&comm->nonblocking, true);
        atomic_fetch_sub_explicit(&comm->users, 1, memory_order_release);
    }
    free(group.more);
    group.more = NULL;
    group.count = group.room = 0;
}

unsigned int nccl_reg_group_depth(void)
{
    return group.depth;
}
