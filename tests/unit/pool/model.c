/* SPDX-License-Identifier: Apache-2.0 */
/* model.c - see model.h. */
#include "model.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "model_blocks.h"
#include "rest.h"

/* As in the library: while segments may not move, nothing can be ordered either. */
static int order_rc(const struct fake *fake)
{
    return fake->frozen ? -EBUSY : fake->order_rc;
}

/* From here on, before it returns, the pool may hand kept blocks out or give their segments back. */
static int order_hook(struct fake *fake)
{
    if (order_rc(fake) == 0)
        model_kept_forget(fake->user);
    return order_rc(fake);
}

static struct pool *pool_new(const struct pool_config *config)
{
    struct pool *pool;

    if (pool_create(config, &pool))
        abort();
    return pool;
}

struct model *model_new(size_t limit, size_t break_max, size_t excess_min, bool prompt)
{
    struct model *model = calloc(1, sizeof(*model));

    if (!model)
        abort();
    model->fake = fake_new();
    model->fake->order_hook = order_hook;
    model->fake->user = model;
    model->config = fake_config(model->fake);
    model->config.limit = limit;
    model->config.break_max = model->exposed_max = break_max;
    model->config.excess_min = excess_min;
    model->fake->prompt = prompt;
    model->pool = pool_new(&model->config);
    return model;
}

static void lose(struct model *model)
{
    const unsigned int lost = model->fake->calls[FAKE_SEGMENT_LOST];
    const unsigned int frees = model->fake->calls[FAKE_FREE];
    const uint64_t segments = model->want.segments_alloc - model->want.segments_free;

    pool_destroy(model->pool);
    if (model->fake->calls[FAKE_SEGMENT_LOST] - lost != segments || model->fake->in_use)
        model_fault(model, "pool_destroy: not every segment was reported lost");
    if (model->fake->calls[FAKE_FREE] != frees)
        model_fault(model, "pool_destroy gave segments back");
    for (size_t i = 0; i < model->count; i++)
        if (pool_of(model->blocks[i].addr) || pool_live_size(model->blocks[i].addr) ||
            pool_free(model->blocks[i].addr) != -ENOENT)
            model_fault(model, "0x%" PRIx64 " outlives its pool", model->blocks[i].addr);
    model->fake->idle = model->fake->idle_withdrawn = 0;
    model->clock = 0;
    model->count = model->live_count = 0;
    model->kept = 0;
    model->exposed = 0;
    model->exposed_max = model->config.break_max;
    model->want = (struct pool_stats){0};
    model->fake->peak = 0;
}

void model_restart(struct model *model)
{
    lose(model);
    model->pool = pool_new(&model->config);
}

void model_delete(struct model *model)
{
    lose(model);
    fake_delete(model->fake);
    free(model->blocks);
    free(model);
}

/* The requests to the driver so far. */
struct before {
    unsigned int allocs, frees, born, refused, failed, orders, orders_ok, waits, whole, collects;
};

static struct before before(const struct fake *fake)
{
    return (struct before){
        .allocs = fake->calls[FAKE_ALLOC],
        .frees = fake->calls[FAKE_FREE],
        .born = fake->born,
        .refused = fake->refused,
        .failed = fake->failed,
        .orders = fake->calls[FAKE_ORDER],
        .orders_ok = fake->orders_ok,
        .waits = fake->waits,
        .whole = fake->whole,
        .collects = fake->calls[FAKE_COLLECT],
    };
}

/* The changes to the counters that every call may make. */
static void count(struct model *model, const struct before *was)
{
    const struct fake *fake = model->fake;

    model->want.segments_alloc += fake->born - was->born;
    model->want.segments_free += fake->calls[FAKE_FREE] - was->frees;
    model->want.order += fake->orders_ok - was->orders_ok;
}

static void check_new_block(struct model *model, uint64_t addr, size_t size, bool refused)
{
    struct fake_segment *segment = fake_segment_of(model->fake, addr);
    uint64_t base, start;
    size_t found;

    if (addr % POOL_GRANULE) {
        model_fault(model, "0x%" PRIx64 " is not aligned", addr);
        return;
    }
    if (!segment || addr + size > segment->addr + segment->size) {
        model_fault(model, "0x%" PRIx64 " is not the driver's", addr);
        return;
    }
    if (!segment->announced || segment->farewell)
        model_fault(model, "a block of a segment that the observer does not know");
    if (pool_live_size(addr) != size || pool_of(addr) != model->pool || pool_of(addr + size - 1) != model->pool)
        model_fault(model, "0x%" PRIx64 ": wrong pool_live_size or pool_of", addr);
    if (pool_block_find(addr + size - 1, &base, &found, &start) || base != addr || found != size ||
        start != segment->addr)
        model_fault(model, "0x%" PRIx64 ": wrong pool_block_find", addr);
    model_block_add(model, addr, size, segment, refused);
}

static void check_refusal(struct model *model, const struct before *was, size_t size, int rc)
{
    const struct fake *fake = model->fake;
    const size_t least = size_round_up(size, POOL_SEGMENT_UNIT);

    if (rc == -ENOMEM) {
        model->want.oom++;
        if (fake->refused == was->refused)
            model_fault(model, "-ENOMEM, but the driver has not refused");
        if (fake->idle)
            model_fault(model, "-ENOMEM with idle segments");
        if (fake->order_rc == 0 && model->count != model->live_count)
            model_fault(model, "-ENOMEM with blocks that an order() would have freed");
    } else if (rc == -EAGAIN) {
        if (!fake->frozen && fake->failed == was->failed &&
            (!model->config.limit || fake->in_use + least <= model->config.limit))
            model_fault(model, "-EAGAIN without a reason");
    } else {
        model_fault(model, "pool_alloc returned %d", rc);
    }
}

/* May the pool hand segments back before it grows for a request, by what it held? */
static bool has_excess(const struct model *model, size_t held, size_t size)
{
    /* a segment for two, at the most */
    const size_t more = size < POOL_SEGMENT_UNIT ? POOL_SEGMENT_UNIT : 2 * size_round_up(size, POOL_SEGMENT_UNIT);
    size_t live = model->want.live + size_round_up(size, POOL_SEGMENT_UNIT), peak, excess;

    for (size_t i = 0; i < model->count; i++)
        live -= model->blocks[i].kept ? model->blocks[i].size : 0; /* they may be published first */
    peak = live > model->want.peak_live ? live : model->want.peak_live;
    excess = peak / 20 > model->config.excess_min ? peak / 20 : model->config.excess_min;
    return held + more > peak + excess;
}

int model_alloc(struct model *model, size_t size, uint64_t *ret_addr)
{
    struct fake *fake = model->fake;
    const struct before was = before(fake);
    const bool excess = has_excess(model, fake->in_use, size);
    uint64_t addr = 0;
    int rc;

    fake_events_clear(fake);
    rc = pool_alloc(model->pool, size, &addr);
    count(model, &was);
    if (fake->calls[FAKE_FREE] != was.frees && fake->refused == was.refused && !model->config.limit &&
        (!excess || fake->calls[FAKE_ALLOC] == was.allocs))
        model_fault(model, "segments were given back without need");
    if (fake->waits != was.waits && fake->refused == was.refused && !model->config.limit)
        model_fault(model, "pool_alloc may wait, but the driver has not refused");
    if (fake->frozen && fake->calls[FAKE_ALLOC] != was.allocs)
        model_fault(model, "the driver was asked while frozen");
    if (fake->failed > was.failed + 1)
        model_fault(model, "the driver was asked again after it had said 'not now'");
    if (rc) {
        if (addr)
            model_fault(model, "an error, but the out-parameter was written");
        model->want.failed++;
        check_refusal(model, &was, size, rc);
        return rc;
    }
    model->want.allocs++;
    if (fake->born == was.born)
        model->want.hits++;
    else
        model->want.misses++;
    check_new_block(model, addr, size, fake->refused != was.refused);
    *ret_addr = addr;
    return 0;
}

int model_free_nth(struct model *model, size_t n)
{
    struct fake *fake = model->fake;
    const struct before was = before(fake);
    const int want = order_rc(fake) == -EBUSY ? 0 : order_rc(fake);
    uint64_t addr;
    int rc;

    if (!model->live_count)
        return 0;
    for (n %= model->count; model->blocks[n].kept; n = (n + 1) % model->count)
        ;
    addr = model->blocks[n].addr;
    model->blocks[n].kept = true; /* for no longer than it takes, if order() succeeds */
    model->kept += model->blocks[n].size;
    model->live_count--;
    rc = pool_free(addr);
    if (rc != want)
        model_fault(model, "pool_free returned %d, not %d", rc, want);
    if (fake->calls[FAKE_ORDER] == was.orders)
        model_fault(model, "pool_free without order");
    if (pool_live_size(addr))
        model_fault(model, "0x%" PRIx64 " is still live after pool_free", addr);
    if (!fake->scarce && fake->whole != was.whole)
        model_fault(model, "pool_free gave a segment back without need");
    if (!fake->frozen && fake->idle_withdrawn)
        model_fault(model, "pool_free left a withdrawn segment");
    if (!fake->frozen && fake->scarce && fake->idle)
        model_fault(model, "pool_free left an idle segment, though memory is scarce");
    if (fake->calls[FAKE_COLLECT] != was.collects)
        model_fault(model, "pool_free waited for what it gave back");
    model->want.frees++;
    model->want.kept += order_rc(fake) != 0;
    count(model, &was);
    return rc;
}

void model_free_bad(struct model *model, uint64_t addr)
{
    const struct before was = before(model->fake);
    const int want = fake_segment_of(model->fake, addr) ? -EINVAL : -ENOENT;
    const size_t at = model_block_after(model, addr);
    int rc;

    if (at < model->count && model->blocks[at].addr == addr && !model->blocks[at].kept)
        return;
    rc = pool_free(addr);
    if (rc != want)
        model_fault(model, "pool_free(0x%" PRIx64 ") returned %d, not %d", addr, rc, want);
    if (model->fake->calls[FAKE_ORDER] != was.orders)
        model_fault(model, "order() for an address that was refused");
    if (pool_live_size(addr))
        model_fault(model, "0x%" PRIx64 " is live", addr);
}

size_t model_trim(struct model *model)
{
    const struct before was = before(model->fake);
    const size_t held = model->fake->in_use;
    const size_t released = pool_trim(model->pool, "test"); /* what is idle, then what is after an order */
    unsigned int collects;

    if (released != held - model->fake->in_use || (released && model->fake->frozen))
        model_fault(model, "pool_trim says that it gave %zu bytes back", released);
    if (!model->fake->frozen && model->fake->idle)
        model_fault(model, "pool_trim left %zu bytes", model->fake->idle);
    collects = model->fake->calls[FAKE_COLLECT] - was.collects;
    if (released ? collects < 1 || collects > 2 : collects)
        model_fault(model, "pool_trim called collect %u times", collects);
    count(model, &was);
    return released;
}

/* Bytes in segments that a decay is to give back. */
static size_t decayed(const struct model *model, unsigned int age)
{
    size_t bytes = 0;

    for (size_t i = 0; i < FAKE_UNITS && !model->fake->frozen; i++) {
        const struct fake_segment *segment = &model->fake->segments[i];

        if (segment->size && !segment->blocks &&
            (segment->withdrawn || model->fake->scarce || model->clock - segment->idle_since >= age))
            bytes += segment->size;
    }
    return bytes;
}

size_t model_decay(struct model *model, unsigned int age)
{
    struct fake *fake = model->fake;
    const struct before was = before(fake);
    const size_t held = fake->in_use;
    size_t want, released;

    model->clock++;
    want = decayed(model, age);
    released = pool_decay(model->pool, age);
    if (released != want || released != held - fake->in_use)
        model_fault(model, "pool_decay says that it gave %zu bytes back, not %zu", released, want);
    if (fake->calls[FAKE_COLLECT] != was.collects || fake->calls[FAKE_ORDER] != was.orders)
        model_fault(model, "pool_decay has waited");
    if (decayed(model, age))
        model_fault(model, "pool_decay left an old segment");
    count(model, &was);
    return released;
}

void model_withdraw_nth(struct model *model, size_t n)
{
    const struct before was = before(model->fake);
    struct fake_segment *segment;
    uint64_t base;
    size_t size;

    if (!model->count)
        return;
    segment = fake_segment_of(model->fake, model->blocks[n % model->count].addr);
    if (!model->blocks[n % model->count].kept &&
        (pool_segment_find(model->blocks[n % model->count].addr, &base, &size) || base != segment->addr ||
         size != segment->size))
        model_fault(model, "wrong pool_segment_find");
    if (pool_withdraw(model->blocks[n % model->count].addr))
        model_fault(model, "pool_withdraw failed");
    if (model->fake->calls[FAKE_FREE] != was.frees || model->fake->calls[FAKE_ORDER] != was.orders)
        model_fault(model, "pool_withdraw did more than that");
    segment->withdrawn = true;
    model->exposed -= segment->exposed;
    segment->exposed = 0;
    segment->broken = false;
}

void model_check(struct model *model, bool deep)
{
    struct pool_stats *want = &model->want;
    struct pool_stats got;
    char text[128] = "";

    pool_stats_get(model->pool, &got);
    want->held = model->fake->in_use;
    want->peak_held = model->fake->peak;
    want->idle = model->fake->idle;
#define SAME(field)                                                                                                    \
    do {                                                                                                               \
        if (got.field != want->field)                                                                                  \
            model_fault(model, "stats." #field " is %" PRIu64 ", not %" PRIu64, got.field, want->field);               \
    } while (0)
    SAME(allocs);
    SAME(hits);
    SAME(misses);
    SAME(frees);
    SAME(failed);
    SAME(live);
    SAME(held);
    SAME(peak_live);
    SAME(peak_held);
    SAME(idle);
    SAME(segments_alloc);
    SAME(segments_free);
    SAME(oom);
    SAME(order);
    SAME(kept);
#undef SAME
    if (model->config.limit && got.held > model->config.limit)
        model_fault(model, "over the limit");
    if (model->fake->fault)
        model_fault(model, "%s", model->fake->fault);
    if (deep && rest_fault(model->pool))
        model_fault(model, "at rest: %s", rest_fault(model->pool));
    if (deep && pool_check(model->pool, text, sizeof(text)))
        model_fault(model, "pool_check: %s", text);
}

void model_drain(struct model *model)
{
    model->fake->frozen = false;
    model->fake->order_rc = 0;
    if (!model->live_count && model->count) {
        uint64_t addr; /* an order() is due for the kept ones, and only a free brings it */

        model->fake->refuse = false;
        model->fake->fail_at = 0;
        model->fake->capacity = FAKE_CAPACITY;
        if (model_alloc(model, 1, &addr))
            return; /* the limit is in the way */
    }
    while (model->live_count)
        model_free_nth(model, 0);
    model_trim(model);
    model_check(model, true);
    if (model->fake->in_use || model->want.live)
        model_fault(model, "%zu bytes are held after everything was freed and trimmed", model->fake->in_use);
}
