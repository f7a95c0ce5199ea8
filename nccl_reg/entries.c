/* SPDX-License-Identifier: Apache-2.0 */
/*
 * entries.c - see entries.h.
 *
 * Locking: each function's is in entries.h.
 */
#include "entries.h"

#include <stdlib.h>
#include <string.h>

#include "comm_records.h"

void reg_counters_add(struct counters *sum, const struct counters *more)
{
    uint64_t *to = (uint64_t *)sum;
    const uint64_t *from = (const uint64_t *)more;

    for (unsigned int i = 0; i < sizeof(*sum) / sizeof(*to); i++)
        to[i] += from[i];
}

/* With the communicator's lock: clear the entry if its communicator is gone. The registry's lock makes the check
 * reliable, because the entry may be about to be used for another communicator. */
static void comm_entry_clear(struct nccl_reg *reg, struct nccl_reg_comm *comm)
{
    pthread_mutex_lock(&reg->lock);
    if (!atomic_load(&comm->key) && atomic_load(&comm->known)) {
        reg_counters_add(&reg->past, &comm->counters);
        memset(&comm->counters, 0, sizeof(comm->counters));
        while (comm->record_count)
            reg_record_delete(comm, &comm->records[comm->record_count - 1]);
        comm->user_count = 0;
        atomic_store(&comm->known, false);
        reg->comm_count--;
    }
    pthread_mutex_unlock(&reg->lock);
}

/*
 * Unlock a communicator. A thread that ends a communicator does not wait for its lock; its holder then clears the entry
 * here. If the end comes after the holder's check, the ending thread finds the communicator's lock free.
 */
void reg_comm_give(struct nccl_reg *reg, struct nccl_reg_comm *comm)
{
    pthread_mutex_unlock(&comm->lock);
    while (!atomic_load(&comm->key) && atomic_load(&comm->known) && !pthread_mutex_trylock(&comm->lock)) {
        comm_entry_clear(reg, comm);
        pthread_mutex_unlock(&comm->lock);
    }
}

struct nccl_reg_comm *reg_comm_take(struct nccl_reg *reg, void *comm)
{
    struct nccl_reg_comm *found = comm_find(reg, comm);

    if (!found)
        return NULL;
    pthread_mutex_lock(&found->lock);
    if (atomic_load_explicit(&found->key, memory_order_relaxed) == comm)
        return found;
    reg_comm_give(reg, found);
    return NULL;
}

struct nccl_reg_comm *reg_comm_new(struct nccl_reg *reg, unsigned int bucket)
{
    struct nccl_reg_comm *comm;

    for (comm = atomic_load(&reg->buckets[bucket]); comm; comm = comm->next)
        if (!atomic_load(&comm->known) && !atomic_load(&comm->users))
            return comm;
    comm = calloc(1, sizeof(*comm));
    if (!comm)
        return NULL;
    pthread_mutex_init(&comm->lock, NULL);
    comm->next = atomic_load(&reg->buckets[bucket]);
    comm->next_all = atomic_load(&reg->all);
    atomic_store(&reg->buckets[bucket], comm);
    atomic_store(&reg->all, comm);
    return comm;
}
