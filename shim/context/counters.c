/* SPDX-License-Identifier: Apache-2.0 */
/*
 * counters.c - see counters.h.
 *
 * Locking: contexts.lock guards the counters of contexts that are gone.
 */
#include "context/counters.h"

#include "context/context_state.h"
#include "context/pins.h"
#include "context/registry.h"
#include "pool.h"

/* The counters of an entry's pool, which may be about to be destroyed. False: it has none. ending: at exit, see
 * counters.h. */
static bool stats_get(struct context *context, int device, bool ending, struct pool_stats *ret_stats)
{
    const bool pinned = pins_add(context);
    struct pool *const pool = context->pool; /* read once, so that the pool checked is the pool read */
    const bool there = (pinned || ending) && atomic_load(&context->handle) && !atomic_load(&context->ending) && pool &&
                       context->device == device;

    if (there)
        pool_stats_get(pool, ret_stats);
    if (pinned)
        pins_remove(context);
    return there;
}

/* All members but the peaks add up over contexts; peaks add up over contexts that exist at the same time. */
static void stats_add(struct pool_stats *sum, const struct pool_stats *more)
{
    uint64_t *to = (uint64_t *)sum;
    const uint64_t *from = (const uint64_t *)more;

    _Static_assert(sizeof(*sum) % sizeof(*to) == 0, "counters only");
    for (unsigned int i = 0; i < sizeof(*sum) / sizeof(*to); i++)
        to[i] += from[i];
}

static void peak_raise(struct pool_stats *to, uint64_t peak_live, uint64_t peak_held)
{
    to->peak_live = peak_live > to->peak_live ? peak_live : to->peak_live;
    to->peak_held = peak_held > to->peak_held ? peak_held : to->peak_held;
}

/* Add the counters of an ending context to those of its device. */
void counters_keep(struct context *context, const struct pool_stats *stats)
{
    struct past *past = &contexts.past[context->device % DEVICES_MAX];
    struct pool_stats beside = *stats, other, gone = *stats;

    for (unsigned int i = 0; i < atomic_load(&contexts.count); i++)
        if (stats_get(atomic_load(&contexts.entries[i]), context->device, /* ending: */ false, &other))
            stats_add(&beside, &other);
    /* The memory that it still held went with it. */
    gone.segments_free = gone.segments_alloc;
    gone.held = gone.live = gone.idle = gone.paused = gone.peak_live = gone.peak_held = 0;
    pthread_mutex_lock(&contexts.lock);
    past->any = true;
    stats_add(&past->stats, &gone);
    peak_raise(&past->stats, beside.peak_live, beside.peak_held);
    past->bypassed += atomic_load(&context->bypassed);
    pthread_mutex_unlock(&contexts.lock);
}

/* The counters of a device's contexts that are gone. At exit the lock is not waited for. */
static struct past past_get(int device, bool ending)
{
    struct past past;

    if (!ending)
        pthread_mutex_lock(&contexts.lock);
    past = contexts.past[device];
    if (!ending)
        pthread_mutex_unlock(&contexts.lock);
    return past;
}

void context_stats_each(bool ending,
                        void (*each)(void *arg, int device, const struct pool_stats *stats, uint64_t bypassed),
                        void *arg)
{
    for (int device = 0; device < DEVICES_MAX; device++) {
        const struct past past = past_get(device, ending);
        struct pool_stats sum = past.stats, stats;
        uint64_t bypassed = past.bypassed;
        bool any = past.any;

        sum.peak_live = sum.peak_held = 0;
        for (unsigned int i = 0; i < atomic_load(&contexts.count); i++) {
            struct context *context = atomic_load(&contexts.entries[i]);

            if (!stats_get(context, device, ending, &stats))
                continue;
            stats_add(&sum, &stats);
            bypassed += atomic_load(&context->bypassed);
            any = true;
        }
        peak_raise(&sum, past.stats.peak_live, past.stats.peak_held);
        if (any)
            each(arg, device, &sum, bypassed);
    }
}
