/* SPDX-License-Identifier: Apache-2.0 */
/*
 * groups.c - see groups.h and nccl_reg.h.
 *
 * Locking: none; a communicator's users are atomic.
 */
#include "groups.h"

#include <stdlib.h>

#include "clock_and_arrays.h"

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

void reg_group_use(struct nccl_reg_comm *comm)
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

        if (goes_on) {
            atomic_store(&comm->nonblocking, true);
            work_goes_on(comm);
        }
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
