/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nccl_reg.c - the life of a registry, and its statistics; see nccl_reg.h.
 *
 * Locking: see nccl_reg_state.h.
 */
#include "nccl_reg.h"

#include <errno.h>
#include <stdlib.h>

#include "clock_and_arrays.h"
#include "comm_records.h"
#include "entries.h"
#include "lookup.h"

/* The longest time, in nanoseconds, that a reader of statistics waits for the registry's lock, whose holder a signal
 * handler may have interrupted. */
#define STATS_WAIT_NS 200000000

int nccl_reg_create(const struct nccl_reg_ops *ops, struct nccl_reg **ret_reg)
{
    struct nccl_reg *reg = calloc(1, sizeof(*reg));

    if (!reg)
        return -ENOMEM;
    reg->ops = ops;
    atomic_store(&reg->changes, 1); /* a new communicator has seen 0 */
    pthread_mutex_init(&reg->lock, NULL);
    *ret_reg = reg;
    return 0;
}

void nccl_reg_destroy(struct nccl_reg *reg)
{
    struct nccl_reg_comm *comm, *next;

    for (comm = atomic_load(&reg->all); comm; comm = next) {
        next = comm->next_all;
        while (comm->record_count)
            reg_record_delete(comm, &comm->records[comm->record_count - 1]);
        pthread_mutex_destroy(&comm->lock);
        free(comm->records);
        lookup_free(&comm->lookup);
        free(comm->users_own);
        free(comm);
    }
    pthread_mutex_destroy(&reg->lock);
    free(reg->segments);
    free(reg);
}

void nccl_reg_stats_get(struct nccl_reg *reg, struct nccl_reg_stats *ret_stats)
{
    const uint64_t limit = reg_now_ns() + STATS_WAIT_NS;
    struct counters sum;
    bool locked;

    /* pthread_mutex_timedlock goes by a clock that may be set back meanwhile, and has no other one before glibc 2.30.
     */
    while (!(locked = pthread_mutex_trylock(&reg->lock) == 0) && reg_now_ns() < limit)
        reg_nap();
    sum = reg->past;
    *ret_stats = (struct nccl_reg_stats){.comms = reg->comm_count,
                                         .segments = reg->segment_count,
                                         .parked = reg->parked,
                                         .quarantined = reg->quarantined};
    if (locked)
        pthread_mutex_unlock(&reg->lock);
    for (struct nccl_reg_comm *comm = atomic_load(&reg->all); comm; comm = comm->next_all) {
        sum.ops += atomic_load(&comm->ops); /* of all communicators that have used this entry */
        if (pthread_mutex_trylock(&comm->lock))
            continue;
        reg_counters_add(&sum, &comm->counters);
        /* Clearing takes the registry's lock. */
        if (locked)
            reg_comm_give(reg, comm);
        else
            pthread_mutex_unlock(&comm->lock);
    }
    ret_stats->ops = sum.ops;
    ret_stats->mixed = sum.mixed;
    ret_stats->outside = sum.outside;
    ret_stats->unsafe = sum.unsafe;
    ret_stats->attached = sum.attached;
    ret_stats->detached = sum.detached;
    ret_stats->renewed = sum.renewed;
    ret_stats->failed = sum.failed;
}
