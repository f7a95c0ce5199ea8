/* SPDX-License-Identifier: Apache-2.0 */
/* model_blocks.c - see model_blocks.h. */
#include "model_blocks.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

size_t size_round_up(size_t size, size_t unit)
{
    return (size + unit - 1) / unit * unit;
}

void model_fault(struct model *model, const char *format, ...)
{
    va_list args;

    if (model->fault[0])
        return;
    va_start(args, format);
    vsnprintf(model->fault, sizeof(model->fault), format, args);
    va_end(args);
}

size_t model_block_after(const struct model *model, uint64_t addr)
{
    size_t low = 0, high = model->count;

    while (low < high) {
        const size_t mid = (low + high) / 2;

        if (model->blocks[mid].addr + model->blocks[mid].size <= addr)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

/* The peak is that of what is in the program's hands alone. */
static void live_set(struct model *model, uint64_t live)
{
    model->want.live = live;
    if (live - model->kept > model->want.peak_live)
        model->want.peak_live = live - model->kept;
}

/* A block is the request rounded up to the granule, or a sixteenth larger where requests are small. */
static bool size_is_close(size_t size, size_t requested)
{
    const size_t least = size_round_up(requested, POOL_GRANULE);

    return size == least || (requested <= 256 * KIB && size > least && size <= least + least / 16);
}

/* Reckon how much the smallest block of a broken segment could keep from going back. While a small one has been in it
 * the pool does not look for the smallest again. */
static void expose(struct model *model, struct fake_segment *segment)
{
    const size_t was = segment->exposed;
    size_t least = segment->size;

    for (size_t i = model_block_after(model, segment->addr);
         i < model->count && model->blocks[i].addr < segment->addr + segment->size; i++) {
        const size_t size = model->blocks[i].size;
        const size_t native = size < POOL_SEGMENT_UNIT ? size : size_round_up(size, POOL_SEGMENT_UNIT);

        least = size && native < least ? native : least; /* 0: it is being forgotten */
    }
    segment->exposed = segment->broken ? segment->size - least : 0;
    if (segment->broken && was > segment->size - POOL_SEGMENT_UNIT && was > segment->exposed)
        segment->exposed = was;
    model->exposed += segment->exposed - was;
}

void model_block_add(struct model *model, uint64_t addr, size_t requested, struct fake_segment *segment, bool refused)
{
    const size_t at = model_block_after(model, addr);
    struct pool *pool;
    size_t size = 0;

    if (pool_live(addr, &pool, &size) != requested || !size_is_close(size, requested))
        model_fault(model, "0x%" PRIx64 ": a block of %zu bytes for a request of %zu", addr, size, requested);
    if (at < model->count && model->blocks[at].addr < addr + size) {
        model_fault(model, "0x%" PRIx64 " overlaps a block that is %s", addr, model->blocks[at].kept ? "kept" : "live");
        return;
    }
    if (model->count == model->room) {
        model->room = model->room ? model->room * 2 : 256;
        model->blocks = realloc(model->blocks, model->room * sizeof(*model->blocks));
        if (!model->blocks)
            abort();
    }
    memmove(&model->blocks[at + 1], &model->blocks[at], (model->count - at) * sizeof(*model->blocks));
    model->blocks[at] = (struct model_block){.addr = addr, .requested = requested, .size = size};
    model->count++;
    model->live_count++;
    if (segment->withdrawn)
        model_fault(model, "0x%" PRIx64 " is of a withdrawn segment", addr);
    if (segment->blocks && !segment->broken && segment->size > POOL_SEGMENT_UNIT)
        model_fault(model, "a block in what a large one has left of its last 2 MiB");
    if (!segment->blocks++)
        model->fake->idle -= segment->size;
    segment->broken |= segment->size - size >= POOL_SEGMENT_UNIT;
    expose(model, segment);
    if (refused && model->exposed > model->exposed_max)
        model->exposed_max = model->exposed; /* and so much again, by what was freed and is handed out again */
    if (model->exposed > model->exposed_max)
        model_fault(model, "%zu bytes are exposed, but the driver has not refused", model->exposed);
    live_set(model, model->want.live + size);
}

/* Nothing remains of a block. */
static void block_forget(struct model *model, const struct model_block *block)
{
    struct fake_segment *segment = fake_segment_of(model->fake, block->addr);

    if (!--segment->blocks) {
        model->fake->idle += segment->size;
        model->fake->idle_withdrawn += segment->withdrawn ? segment->size : 0;
        segment->idle_since = model->clock;
        segment->broken = false; /* it is whole again */
    }
    model->kept -= block->kept ? block->size : 0;
    live_set(model, model->want.live - block->size);
}

void model_kept_forget(struct model *model)
{
    size_t to = 0;

    for (size_t i = 0; i < model->count; i++) {
        if (model->blocks[i].kept) {
            block_forget(model, &model->blocks[i]);
            model->blocks[i].size = 0;
        }
    }
    for (size_t i = 0; i < model->count; i++)
        if (!model->blocks[i].size)
            expose(model, fake_segment_of(model->fake, model->blocks[i].addr));
    for (size_t i = 0; i < model->count; i++)
        if (model->blocks[i].size)
            model->blocks[to++] = model->blocks[i];
    model->count = to;
}
