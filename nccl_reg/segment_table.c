/* SPDX-License-Identifier: Apache-2.0 */
/*
 * segment_table.c - see segment_table.h.
 *
 * Locking: the registry's lock.
 */
#include "segment_table.h"

#include <errno.h>
#include <string.h>

#include "clock_and_arrays.h"

size_t reg_segment_after(const struct nccl_reg *reg, uint64_t addr)
{
    size_t low = 0, high = reg->segment_count;

    while (low < high) {
        const size_t middle = low + (high - low) / 2;

        if (reg->segments[middle].addr <= addr)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
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
    const size_t i = (size_t)(segment - reg->segments);

    reg->segment_count--;
    memmove(&reg->segments[i], &reg->segments[i + 1], (reg->segment_count - i) * sizeof(*segment));
}

static bool overlaps(const struct nccl_reg *reg, uint64_t addr, size_t size)
{
    const size_t i = reg_segment_from(reg, addr);

    return i < reg->segment_count && reg->segments[i].addr < end_of(addr, size);
}

int nccl_reg_segment_add(struct nccl_reg *reg, const struct nccl_reg_segment_info *info)
{
    struct segment *at;
    int rc;

    pthread_mutex_lock(&reg->lock);
    rc = overlaps(reg, info->addr, info->size) ? -EEXIST : 0;
    if (!rc)
        rc = reg_reserve((void **)&reg->segments, reg->segment_count, &reg->segment_room, sizeof(*at));
    if (!rc) {
        at = &reg->segments[reg_segment_after(reg, info->addr)];
        memmove(at + 1, at, (size_t)(reg->segments + reg->segment_count - at) * sizeof(*at));
        *at = (struct segment){.addr = info->addr,
                               .size = info->size,
                               .front = info->front,
                               .device = info->device,
                               .plain = info->plain,
                               .own = info->own,
                               .owner = info->owner};
        reg->segment_count++;
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
