/* SPDX-License-Identifier: Apache-2.0 */
/* device.c - see device.h. */
#include "device.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "heap.h"
#include "pool.h"
#include "space.h"

/* Every device has addresses of its own, of which space_span() takes four times its capacity. */
#define SPAN ((uint64_t)1 << 41)

/* Memory on its way back: it arrives when the device has come to this request or free. */
struct leaving {
    uint64_t addr, at;
    size_t size;
};

struct device {
    struct settings settings;
    struct space space;
    struct pool *pool;        /* NULL for models */
    struct heap *heap;        /* the model; for the pool, the driver that serves what it refuses */
    struct pool_stats before; /* of pools that are gone */
    struct pool_config config;
    uint64_t now, done, last_free; /* requests and frees: so far; that the device has come to; the last free */
    struct leaving *leaving;       /* in the order in which they arrive */
    size_t leaving_count, leaving_room, arriving;
};

size_t device_capacity_max(void)
{
    return SPAN / 4 - ((size_t)1 << 30);
}

/* --- the pool's tables --- */

static int backend_alloc(void *arg, unsigned int kind, size_t size, uint64_t *ret_addr)
{
    (void)kind;
    return space_take(&((struct device *)arg)->space, size, ret_addr);
}

/* The device has come to `done`. */
static void arrive(struct device *device, uint64_t done)
{
    size_t count = 0;

    device->done = done > device->done ? done : device->done;
    for (; count < device->leaving_count && device->leaving[count].at <= device->done; count++) {
        space_give(&device->space, device->leaving[count].addr, device->leaving[count].size);
        device->arriving -= device->leaving[count].size;
    }
    device->leaving_count -= count;
    if (count)
        memmove(device->leaving, device->leaving + count, device->leaving_count * sizeof(*device->leaving));
}

/* The program makes a request or a free. */
static void go_on(struct device *device)
{
    device->now++;
    if (device->now > device->settings.lag)
        arrive(device, device->now - device->settings.lag);
}

static bool leaving_reserve(struct device *device)
{
    const size_t room = 2 * device->leaving_room + 64;
    struct leaving *more;

    if (device->leaving_count < device->leaving_room)
        return true;
    more = realloc(device->leaving, room * sizeof(*more));
    if (!more)
        return false;
    device->leaving = more;
    device->leaving_room = room;
    return true;
}

static void backend_free(void *arg, unsigned int kind, uint64_t addr, size_t size)
{
    struct device *device = arg;

    (void)kind;
    if (device->last_free <= device->done || !leaving_reserve(device)) {
        space_give(&device->space, addr, size);
        return;
    }
    device->leaving[device->leaving_count++] = (struct leaving){.addr = addr, .at = device->last_free, .size = size};
    device->arriving += size;
}

static bool backend_collected(void *arg, size_t *ret_arriving)
{
    const struct device *device = arg;

    *ret_arriving = device->arriving;
    return !device->arriving;
}

static void backend_reclaim(void *arg)
{
    struct device *device = arg;

    arrive(device, device->last_free);
}

static bool backend_scarce(void *arg)
{
    const struct device *device = arg;

    return device->settings.decay == 0 ||
           device->space.capacity - device->space.in_use < device->space.capacity / RESERVE_PART;
}

static int order_order(void *arg, enum pool_order_how how)
{
    (void)arg;
    return how == POOL_ORDER_ASK ? -EBUSY : 0;
}

static bool order_frozen(void *arg)
{
    (void)arg;
    return false;
}

static void observe_segment_lost(void *arg, unsigned int kind, uint64_t addr, size_t size)
{
    (void)kind;
    space_give(&((struct device *)arg)->space, addr, size);
}

static const struct pool_backend_ops backend = {.alloc = backend_alloc,
                                                .free = backend_free,
                                                .collected = backend_collected,
                                                .reclaim = backend_reclaim,
                                                .scarce = backend_scarce};
static const struct pool_order_ops order = {.order = order_order, .frozen = order_frozen};
static const struct pool_observer_ops observer = {.segment_lost = observe_segment_lost};

/* --- what a device does --- */

struct device *device_new(unsigned int number, const struct settings *settings)
{
    struct device *device = calloc(1, sizeof(*device));
    const size_t capacity = settings->capacity / SPACE_PAGE * SPACE_PAGE;

    if (!device || space_init(&device->space, SPAN * (number + 1), capacity)) {
        free(device);
        return NULL;
    }
    device->settings = *settings;
    device->heap = heap_new(settings->allocator == ALLOCATOR_PYTORCH ? HEAP_PYTORCH : HEAP_DRIVER, &device->space);
    device->config = (struct pool_config){
        .backend = &backend,
        .order = &order,
        .observer = &observer,
        .arg = device,
        .limit = settings->limit,
        .break_max = settings->break_max == SIZE_MAX ? settings->capacity / SHARED_PART : settings->break_max,
        .capacity = settings->capacity,
        .excess_min = EXCESS_MIN,
        .bound_min = BOUND_MIN,
    };
    if (settings->slack != SLACK_OFF) {
        device->config.deferred_min = DEFERRED_MIN;
        device->config.deferred_percent = (unsigned int)settings->slack;
    }
    if (!device->heap || (settings->allocator == ALLOCATOR_CUPOOL && pool_create(&device->config, &device->pool))) {
        device_delete(device);
        return NULL;
    }
    return device;
}

void device_delete(struct device *device)
{
    if (device->pool)
        pool_destroy(device->pool);
    if (device->heap)
        heap_delete(device->heap);
    space_fini(&device->space);
    free(device->leaving);
    free(device);
}

enum place device_alloc(struct device *device, size_t size, uint64_t *ret_block)
{
    go_on(device);
    if (device->pool && pool_alloc(device->pool, size, ret_block) == 0)
        return PLACE_ALLOCATOR;
    if (heap_alloc(device->heap, size, ret_block))
        return PLACE_NOWHERE;
    return device->pool ? PLACE_DIRECT : PLACE_ALLOCATOR;
}

void device_free(struct device *device, enum place place, uint64_t block)
{
    go_on(device);
    device->last_free = device->now;
    if (device->pool && place == PLACE_ALLOCATOR)
        pool_free(block);
    else if (place != PLACE_NOWHERE)
        heap_free(device->heap, block);
}

void device_tick(struct device *device)
{
    if (device->pool && device->settings.decay != DECAY_OFF)
        pool_decay(device->pool, DECAY_TICKS - 1);
}

void device_reset(struct device *device)
{
    struct pool_stats stats;
    uint64_t peak_live, peak_held;

    heap_reset(device->heap);
    arrive(device, device->now);
    if (!device->pool)
        return;
    pool_stats_get(device->pool, &stats);
    peak_live = stats.peak_live > device->before.peak_live ? stats.peak_live : device->before.peak_live;
    peak_held = stats.peak_held > device->before.peak_held ? stats.peak_held : device->before.peak_held;
    device->before.hits += stats.hits;
    device->before.misses += stats.misses;
    device->before.failed += stats.failed;
    device->before.oom += stats.oom;
    device->before.bound += stats.bound;
    device->before.segments_alloc += stats.segments_alloc;
    device->before.segments_free = device->before.segments_alloc;
    device->before.peak_live = peak_live;
    device->before.peak_held = peak_held;
    pool_destroy(device->pool);
    if (pool_create(&device->config, &device->pool))
        abort();
}

struct device_result device_result_get(struct device *device)
{
    const struct heap_stats *heap = heap_stats_get(device->heap);
    const struct pool_stats *before = &device->before;
    struct pool_stats pool;

    if (!device->pool)
        return (struct device_result){
            .hits = heap->hits,
            .misses = heap->misses,
            .oom = heap->oom,
            .segments_alloc = heap->segments_alloc,
            .segments_free = heap->segments_free,
            .live = heap->live,
            .peak_live = heap->peak_live,
            .held = heap->held,
            .peak_held = heap->peak_held,
            .peak_used = device->space.peak,
        };
    pool_stats_get(device->pool, &pool);
    return (struct device_result){
        .hits = before->hits + pool.hits,
        .misses = before->misses + pool.misses,
        .bypassed = before->failed + pool.failed,
        .oom = before->oom + pool.oom,
        .bound = before->bound + pool.bound,
        .segments_alloc = before->segments_alloc + pool.segments_alloc,
        .segments_free = before->segments_free + pool.segments_free,
        .live = pool.live,
        .peak_live = pool.peak_live > before->peak_live ? pool.peak_live : before->peak_live,
        .held = pool.held,
        .peak_held = pool.peak_held > before->peak_held ? pool.peak_held : before->peak_held,
        .peak_used = device->space.peak,
    };
}

bool device_check(struct device *device)
{
    char why[256];

    if (!device->pool || pool_check(device->pool, why, sizeof(why)) == 0)
        return true;
    fprintf(stderr, "cupool-replay: the pool is broken: %s\n", why);
    return false;
}
