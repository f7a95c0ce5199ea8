/* SPDX-License-Identifier: Apache-2.0 */
/* pause_copies.c - see pause_copies.h. No locks. */
#include "context/pause_copies.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/log.h"
#include "context/context_state.h"
#include "context/enter.h"
#include "context/events.h"
#include "context/host_memory.h"
#include "context/own_stream.h"
#include "context/pins.h"
#include "pool.h"

/* Host memory is taken in pieces of this many bytes. From 256 MiB on, pinned memory is mapped and touched in several
 * threads (CUPOOL_HOST_POPULATE). */
#define CHUNK ((size_t)256 << 20)
/* Free bytes between two live blocks that are copied with them: another copy would take longer than they do (64 KiB:
 * 1.3 us at 50 GB/s; a call of the driver takes 2 to 3). */
#define GAP_MAX ((size_t)64 << 10)

static void segment_pass(void *arg, uint64_t addr, size_t size)
{
    (void)arg;
    (void)addr;
    (void)size;
}

static void segment_seen(void *arg, uint64_t addr, size_t size)
{
    struct paused *paused = arg;
    uint64_t *grown = array_grown(paused->segments, paused->segment_count, &paused->segment_room, sizeof(*grown));

    (void)size;
    paused->failed |= !grown;
    if (!grown)
        return;
    paused->segments = grown;
    paused->segments[paused->segment_count++] = addr;
}

static void live_seen(void *arg, uint64_t segment, uint64_t addr, size_t size)
{
    struct paused *paused = arg;
    struct paused_range *last = paused->count ? &paused->ranges[paused->count - 1] : NULL, *grown;

    if (last && last->segment == segment && addr - (last->addr + last->size) <= GAP_MAX) {
        last->size = addr + size - last->addr;
        return;
    }
    grown = array_grown(paused->ranges, paused->count, &paused->room, sizeof(*grown));
    paused->failed |= !grown;
    if (!grown)
        return;
    paused->ranges = grown;
    paused->ranges[paused->count++] = (struct paused_range){.segment = segment, .addr = addr, .size = size};
}

static size_t total(const struct paused *paused)
{
    size_t bytes = 0;

    for (size_t i = 0; i < paused->count; i++)
        bytes += paused->ranges[i].size;
    return bytes;
}

/* The context has been entered. */
static int chunk_get(struct context *context, size_t size, uint64_t *ret_addr)
{
    void *p = NULL;
    CUresult result;

    if (context->paused.pooled)
        return host_memory_alloc(context, CU_MEMHOSTALLOC_PORTABLE, size, ret_addr) ? -ENOMEM : 0;
    result = context->driver->cuMemHostAlloc(&p, size, CU_MEMHOSTALLOC_PORTABLE);
    *ret_addr = (uintptr_t)p;
    return !result ? 0 : result == CUDA_ERROR_OUT_OF_MEMORY ? -ENOMEM : -EIO;
}

/* The context has been entered. */
static int chunks_get(struct context *context, size_t bytes)
{
    struct paused *paused = &context->paused;
    const size_t count = (bytes + CHUNK - 1) / CHUNK;
    int rc = 0;

    paused->chunks = calloc(count + 1, sizeof(*paused->chunks));
    if (!paused->chunks)
        return -ENOMEM;
    context_events.host_pool_wanted();
    paused->pooled = host_memory_pool() != NULL;
    while (!rc && paused->chunk_count < count) {
        rc = chunk_get(context, bytes < CHUNK ? bytes : CHUNK, &paused->chunks[paused->chunk_count]);
        paused->chunk_count += !rc;
        bytes -= bytes < CHUNK ? bytes : CHUNK;
    }
    return rc;
}

/* Hand the copies of a range to the stream; *at is its first byte's place among all bytes. */
static CUresult range_copy(struct context *context, CUstream stream, const struct paused_range *range, size_t at,
                           bool back)
{
    const struct real_driver *driver = context->driver;
    size_t done = 0, size;
    CUresult result = CUDA_SUCCESS;
    void *host;

    for (; !result && done < range->size; done += size, at += size) {
        size = CHUNK - at % CHUNK;
        size = size < range->size - done ? size : range->size - done;
        host = (void *)(uintptr_t)(context->paused.chunks[at / CHUNK] + at % CHUNK);
        result = back ? driver->cuMemcpyHtoDAsync_v2(range->addr + done, host, size, stream)
                      : driver->cuMemcpyDtoHAsync_v2(host, range->addr + done, size, stream);
    }
    return result;
}

static int address_compare(const void *a, const void *b)
{
    const uint64_t *x = a, *y = b;

    return (*x > *y) - (*x < *y);
}

static bool has_segment(const struct paused *paused, uint64_t addr)
{
    return bsearch(&addr, paused->segments, paused->segment_count, sizeof(addr), address_compare) != NULL;
}

/* In the context, which has been entered. */
static CUresult ranges_copy(struct context *context, bool back, uint64_t *ret_bytes)
{
    const struct paused *paused = &context->paused;
    const struct real_driver *driver = context->driver;
    CUstream stream = own_stream(context);
    CUresult result = stream ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED, ended = CUDA_SUCCESS;
    uint64_t bytes = 0;
    size_t at = 0;

    for (size_t i = 0; !result && i < paused->count; at += paused->ranges[i++].size) {
        if (!has_segment(paused, paused->ranges[i].segment)) /* it has been freed meanwhile */
            continue;
        result = range_copy(context, stream, &paused->ranges[i], at, back);
        bytes += paused->ranges[i].size;
    }
    /* After an error, too: the copies that were handed over use the host memory. */
    if (stream && driver->cuStreamSynchronize(stream))
        ended = driver->cuStreamSynchronize(stream);
    *ret_bytes = bytes;
    return result ? result : ended;
}

int pause_segments_find(struct context *context)
{
    static const struct pool_suspended_ops ops = {.segment = segment_seen};
    struct paused *paused = &context->paused;

    paused->segment_count = 0;
    paused->failed = false;
    pool_suspended_each(context->pool, &ops, paused);
    if (paused->segment_count)
        qsort(paused->segments, paused->segment_count, sizeof(*paused->segments), address_compare);
    return paused->failed ? -ENOMEM : 0;
}

int pause_copies_save(struct context *context, uint64_t *ret_bytes)
{
    static const struct pool_suspended_ops ops = {.segment = segment_pass, .live = live_seen};
    struct paused *paused = &context->paused;
    struct visit visit;
    int rc = 0;

    *ret_bytes = 0;
    pool_suspended_each(context->pool, &ops, paused);
    if (paused->failed)
        rc = -ENOMEM;
    else if (paused->count && context_enter(context, &visit))
        rc = -EIO;
    if (rc || !paused->count)
        return rc;
    rc = chunks_get(context, total(paused));
    if (!rc && ranges_copy(context, /* back: */ false, ret_bytes))
        rc = -EIO;
    context_leave(context, &visit);
    return rc;
}

int pause_copies_restore(struct context *context, uint64_t *ret_bytes)
{
    struct visit visit;
    int rc = 0;

    *ret_bytes = 0;
    if (!context->paused.count)
        return 0;
    if (context_enter(context, &visit) || ranges_copy(context, /* back: */ true, ret_bytes))
        rc = -EIO;
    context_leave(context, &visit);
    return rc;
}

void pause_copies_drop(struct context *context)
{
    struct paused *paused = &context->paused;
    CUresult result = CUDA_SUCCESS;
    struct visit visit;

    if (paused->chunk_count && !paused->pooled)
        result = context_enter(context, &visit);
    for (size_t i = 0; i < paused->chunk_count && !result; i++) {
        if (paused->pooled)
            host_pool_free(host_memory_pool(), paused->chunks[i]);
        else
            result = context->driver->cuMemFreeHost((void *)(uintptr_t)paused->chunks[i]);
    }
    if (paused->chunk_count && !paused->pooled)
        context_leave(context, &visit);
    if (result)
        log_once(LOG_WARN, "pinned memory of a pause could not be given back (error %d)", (int)result);
    pause_copies_ended(context);
}

void pause_copies_ended(struct context *context)
{
    free(context->paused.segments);
    free(context->paused.ranges);
    free(context->paused.chunks);
    memset(&context->paused, 0, sizeof(context->paused));
}
