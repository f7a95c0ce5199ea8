/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comm_records.c - see comm_records.h.
 *
 * Locking: the communicator's lock.
 */
#include "comm_records.h"

#include <stdlib.h>

#include "groups.h"
#include "sorted.h"

/* The index of the first record that starts behind addr. Used by each operation, so without branches that
 * mispredict. */
static size_t record_after(const struct nccl_reg_comm *comm, uint64_t addr)
{
    const struct record *low = comm->records;
    size_t count = comm->record_count, half;

    if (!count || low->addr > addr)
        return 0;
    for (; count > 1; count -= half) {
        half = count / 2;
        low = low[half].addr <= addr ? low + half : low;
    }
    return (size_t)(low - comm->records) + 1;
}

struct record *reg_record_of(const struct nccl_reg_comm *comm, uint64_t addr, size_t size)
{
    const size_t i = record_after(comm, addr);
    struct record *record = i ? &comm->records[i - 1] : NULL;

    return record && holds(record, addr, size) ? record : NULL;
}

struct record *reg_record_at(const struct nccl_reg_comm *comm, uint64_t addr)
{
    struct record *record = reg_record_of(comm, addr, 1);

    return record && record->addr == addr ? record : NULL;
}

void reg_record_insert(struct nccl_reg_comm *comm, const struct record *record)
{
    sorted_insert(comm->records, &comm->record_count, sizeof(*record), record_after(comm, record->addr), record);
}

void reg_record_delete(struct nccl_reg_comm *comm, const struct record *record)
{
    lookup_clear(&comm->lookup);
    free(record->wide);
    sorted_delete(comm->records, &comm->record_count, sizeof(*record), (size_t)(record - comm->records));
}

bool reg_user_holds(const struct nccl_reg_comm *comm, uint64_t addr, size_t size)
{
    for (size_t i = 0; i < comm->user_count; i++)
        if (comm->users_own[i].addr < end_of(addr, size) &&
            addr < end_of(comm->users_own[i].addr, comm->users_own[i].size))
            return true;
    return false;
}

bool reg_kinds_matter(const struct nccl_reg_comm *comm, const struct record *record)
{
    return comm->info.careful && (!record->plain || comm->info.maps_plain);
}

static bool is_sent(const struct record *record)
{
    return record->sent || record->group;
}

void reg_sent_mark(struct nccl_reg_comm *comm, struct record *record)
{
    if (!is_sent(record))
        lookup_clear(&comm->lookup); /* the cache says that collectives need nothing */
    if (record->group != reg_group() || !record->group) {
        record->sent |= record->group || !reg_group();
        record->group = reg_group();
    }
}

void reg_sent_clear(struct record *record)
{
    record->sent = false;
    if (record->group != reg_group())
        record->group = 0;
}

void reg_lookup_enter(struct nccl_reg_comm *comm, uint64_t addr, const struct record *record)
{
    unsigned int prepared = 0;

    /* Where kinds matter, the group of each send and receive has to be recorded. */
    if (holds(record, addr >> RANGE_SHIFT << RANGE_SHIFT, RANGE_SIZE))
        prepared = (unsigned int)!reg_kinds_matter(comm, record) << NCCL_REG_POINT_TO_POINT |
                   (unsigned int)(!reg_kinds_matter(comm, record) || !is_sent(record)) << NCCL_REG_COLLECTIVE;
    lookup_enter(&comm->lookup, addr, (size_t)(record - comm->records), prepared);
}
