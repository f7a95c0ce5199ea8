/* SPDX-License-Identifier: Apache-2.0 */
/*
 * segment_table.c - see segment_table.h.
 *
 * Locking: the registry's lock.
 */
#include "segment_table.h"

#include <errno.h>

#include "clock_and_arrays.h"
#include "sorted.h"

size_t reg_segment_after(const struct nccl_reg *reg, uint64_t addr)
{
    return sorted_after(reg->segments, reg->segment_count, sizeof(*reg->segments), addr);
}

size_t reg_segment_from(const struct nccl_reg *reg, uint64_t addr)
{
    const size_t i = reg_segment_after(reg, addr);

    return i - (i && end_of(reg->segments[i - 1].addr, reg->segments[i - 1].size) > addr);
}

struct segment *reg_segment_at(const struct nccl_reg *reg, uint64_t addr)
{
    const size_t i = reg_segment_after(reg, addr);

    return i && reg->segments[i - 1].addr == addr ? &reg->segments[i - 1] : NULL;
}

void reg_segment_delete(struct nccl_reg *reg, const struct segment *segment)
{
    sorted_delete(reg->segments, &reg->segment_count, sizeof(*segment), (size_t)(segment - reg->segments));
}

static bool overlaps(const struct nccl_reg *reg, uint64_t addr, size_t size)
{
    const size_t i = reg_segment_from(reg, addr);

    return i < reg->segment_count && reg->segments[i].addr < end_of(addr, size);
}

int nccl_reg_segment_add(struct nccl_reg *reg, const struct nccl_reg_segment_info *info)
{
    const struct segment segment = {.addr = info->addr,
                                    .size = info->size,
                                    .front = info->front,
                                    .device = info->device,
                                    .plain = info->plain,
                                    .own = info->own,
                                    .owner = info->owner};
    int rc;

    pthread_mutex_lock(&reg->lock);
    rc = overlaps(reg, info->addr, info->size) ? -EEXIST : 0;
    if (!rc)
        rc = reg_reserve((void **)&reg->segments, reg->segment_count, &reg->segment_room, sizeof(segment));
    if (!rc) {
        sorted_insert(reg->segments, &reg->segment_count, sizeof(segment), reg_segment_after(reg, info->addr),
                      &segment);
        atomic_fetch_add(&reg->changes, 1);
    }
    pthread_mutex_unlock(&reg->lock);
    return rc;
}

void reg_segment_quarantine(struct nccl_reg *reg, uint64_t addr)
{
    struct segment *segment;

    pthread_mutex_lock(&reg->lock);
    segment = reg_segment_at(reg, addr);
    if (segment && !segment->quarantined) {
        segment->quarantined = true;
        reg->parked -= segment->leaving ? segment->size : 0;
        reg->quarantined += segment->leaving ? segment->size : 0;
    }
    pthread_mutex_unlock(&reg->lock);
}
