/* SPDX-License-Identifier: Apache-2.0 */
/* fake.c - see fake.h. */
#include "fake.h"

#include <errno.h>
#include <stdlib.h>

#define UNIT ((size_t)POOL_SEGMENT_UNIT)

uint64_t rng_next(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

size_t rng_below(uint64_t *state, size_t bound)
{
    return (size_t)(rng_next(state) % bound);
}

/* With the lock. */
static void fault(struct fake *fake, const char *what)
{
    if (!fake->fault)
        fake->fault = what;
}

/* With the lock: count, record, and wait if calls of this kind are to wait. */
static void enter(struct fake *fake, enum fake_kind kind, const struct fake_event *event)
{
    const unsigned int self = ++fake->calls[kind];

    if (fake->events_count < FAKE_EVENTS) {
        fake->events[fake->events_count] = *event;
        fake->events[fake->events_count++].kind = kind;
    }
    if (fake->stop[kind] != self)
        return;
    fake->waiting[kind]++;
    pthread_cond_broadcast(&fake->turn);
    while (fake->stop[kind] == self)
        pthread_cond_wait(&fake->turn, &fake->lock);
    fake->waiting[kind]--;
}

static bool is_vacant(const struct fake *fake, size_t first, size_t units)
{
    for (size_t i = 0; i < units; i++)
        if (fake->owner[first + i])
            return false;
    return true;
}

/* The first unit of a gap of so many units; FAKE_UNITS: none. */
static size_t place(struct fake *fake, size_t units)
{
    size_t places, start = 0, at;

    if (units > FAKE_UNITS)
        return FAKE_UNITS;
    places = FAKE_UNITS - units + 1;
    if (fake->addresses == FAKE_SHUFFLED)
        start = rng_below(&fake->seed, places);
    for (size_t i = 0; i < places; i++) {
        at = fake->addresses == FAKE_DOWN ? places - 1 - i : (start + i) % places;
        if (is_vacant(fake, at, units))
            return at;
    }
    return FAKE_UNITS;
}

static int backend_alloc(void *arg, unsigned int kind, size_t size, uint64_t *ret_addr)
{
    struct fake *fake = arg;
    size_t at;
    int rc = 0;

    pthread_mutex_lock(&fake->lock);
    if (!size || size % UNIT)
        fault(fake, "backend->alloc: size is not a multiple of the unit");
    if (fake->frozen)
        fault(fake, "backend->alloc while frozen");
    enter(fake, FAKE_ALLOC, &(struct fake_event){.size = size});
    at = place(fake, size / UNIT);
    if (fake->fail_at && fake->calls[FAKE_ALLOC] == fake->fail_at)
        rc = fake->fail_rc;
    else if (fake->refuse || size > fake->capacity || fake->in_use + fake->arriving > fake->capacity - size ||
             at == FAKE_UNITS)
        rc = -ENOMEM;
    if (rc) {
        fake->refused += rc == -ENOMEM;
        fake->failed += rc != -ENOMEM;
    } else {
        fake->segments[at] = (struct fake_segment){
            .addr = fake->base + at * UNIT,
            .size = size,
            .kind = kind,
            .index = fake->born++,
        };
        for (size_t i = 0; i < size / UNIT; i++)
            fake->owner[at + i] = (uint16_t)(at + 1);
        fake->in_use += size;
        fake->idle += size;
        if (fake->in_use > fake->peak)
            fake->peak = fake->in_use;
        *ret_addr = fake->base + at * UNIT;
    }
    pthread_mutex_unlock(&fake->lock);
    return rc;
}

/* With the lock: the segment that starts at addr and has this size and kind; a fault otherwise. */
static struct fake_segment *expect_segment(struct fake *fake, unsigned int kind, uint64_t addr, size_t size)
{
    struct fake_segment *segment = fake_segment_of(fake, addr);

    if (segment && segment->addr == addr && segment->size == size && segment->kind == kind)
        return segment;
    fault(fake, "not a segment that the backend gave");
    return NULL;
}

static void drop(struct fake *fake, struct fake_segment *segment)
{
    const size_t at = (size_t)(segment->addr - fake->base) / UNIT;

    for (size_t i = 0; i < segment->size / UNIT; i++)
        fake->owner[at + i] = 0;
    fake->in_use -= segment->size;
    if (!segment->blocks)
        fake->idle -= segment->size;
    if (!segment->blocks && segment->withdrawn)
        fake->idle_withdrawn -= segment->size;
    fake->whole += !segment->withdrawn;
    segment->size = 0;
}

static void backend_free(void *arg, unsigned int kind, uint64_t addr, size_t size)
{
    struct fake *fake = arg;
    struct fake_segment *segment;

    pthread_mutex_lock(&fake->lock);
    if (fake->frozen)
        fault(fake, "backend->free while frozen");
    enter(fake, FAKE_FREE, &(struct fake_event){.addr = addr, .size = size});
    segment = expect_segment(fake, kind, addr, size);
    if (segment) {
        if (fake->observed && !segment->farewell)
            fault(fake, "backend->free before the observer's segment_free");
        if (segment->blocks)
            fault(fake, "backend->free of a segment with blocks that are handed out or kept");
        fake->arriving += fake->late ? size : 0;
        drop(fake, segment);
    }
    pthread_mutex_unlock(&fake->lock);
}

static void backend_collect(void *arg)
{
    struct fake *fake = arg;

    pthread_mutex_lock(&fake->lock);
    enter(fake, FAKE_COLLECT, &(struct fake_event){.size = fake->arriving});
    fake->arriving = 0;
    pthread_mutex_unlock(&fake->lock);
}

static bool backend_collected(void *arg, size_t *ret_arriving)
{
    struct fake *fake = arg;
    bool all;

    pthread_mutex_lock(&fake->lock);
    *ret_arriving = fake->arriving;
    all = fake->arriving == 0;
    pthread_mutex_unlock(&fake->lock);
    return all;
}

static bool backend_scarce(void *arg)
{
    return ((struct fake *)arg)->scarce;
}

static int order_order(void *arg, enum pool_order_how how)
{
    const bool may_wait = how != POOL_ORDER_ASK;
    struct fake *fake = arg;
    int rc;

    pthread_mutex_lock(&fake->lock);
    if (!may_wait && !fake->prompt) {
        pthread_mutex_unlock(&fake->lock);
        return -EBUSY;
    }
    fake->waits += may_wait;
    fake->how = how;
    enter(fake, FAKE_ORDER, &(struct fake_event){.rc = fake->order_rc, .live = may_wait});
    rc = fake->order_rc;
    pthread_mutex_unlock(&fake->lock);
    if (fake->order_hook)
        rc = fake->order_hook(fake);
    pthread_mutex_lock(&fake->lock);
    fake->orders_ok += rc == 0;
    pthread_mutex_unlock(&fake->lock);
    return rc;
}

static int order_fill(void *arg, uint64_t addr, size_t size, bool shared, bool fresh)
{
    struct fake *fake = arg;
    int rc;

    pthread_mutex_lock(&fake->lock);
    if (!fresh && !fake->orders_ok)
        fault(fake, "fill of a used block before any order");
    enter(fake, FAKE_FILL, &(struct fake_event){.addr = addr, .size = size, .live = shared, .held = fresh});
    rc = fake->calls[FAKE_FILL] == fake->fill_fail_at ? -EIO : fake->fill_rc;
    pthread_mutex_unlock(&fake->lock);
    return rc;
}

static int order_filled(void *arg)
{
    struct fake *fake = arg;
    int rc;

    pthread_mutex_lock(&fake->lock);
    enter(fake, FAKE_FILLED, &(struct fake_event){.rc = fake->filled_rc});
    rc = fake->filled_rc;
    pthread_mutex_unlock(&fake->lock);
    return rc;
}

static bool order_frozen(void *arg)
{
    struct fake *fake = arg;
    void (*hook)(struct fake * fake);
    bool frozen;

    pthread_mutex_lock(&fake->lock);
    fake->frozen_calls++;
    frozen = fake->frozen;
    hook = fake->frozen_hook;
    fake->frozen_hook = NULL;
    pthread_mutex_unlock(&fake->lock);
    if (hook)
        hook(fake);
    return frozen;
}

static void observe_segment_alloc(void *arg, unsigned int kind, uint64_t addr, size_t size, uint64_t ns)
{
    struct fake *fake = arg;
    struct fake_segment *segment;

    pthread_mutex_lock(&fake->lock);
    segment = expect_segment(fake, kind, addr, size);
    if (segment) {
        if (segment->announced)
            fault(fake, "segment_alloc twice");
        segment->announced = true;
    }
    enter(fake, FAKE_SEGMENT_ALLOC, &(struct fake_event){.addr = addr, .size = size});
    pthread_mutex_unlock(&fake->lock);
}

static void observe_segment_free(void *arg, unsigned int kind, uint64_t addr, size_t size)
{
    struct fake *fake = arg;
    struct fake_segment *segment;

    pthread_mutex_lock(&fake->lock);
    segment = expect_segment(fake, kind, addr, size);
    if (segment) {
        if (!segment->announced || segment->farewell)
            fault(fake, "segment_free without segment_alloc, or twice");
        segment->farewell = true;
    }
    enter(fake, FAKE_SEGMENT_FREE, &(struct fake_event){.addr = addr, .size = size});
    pthread_mutex_unlock(&fake->lock);
}

static void observe_segment_lost(void *arg, unsigned int kind, uint64_t addr, size_t size)
{
    struct fake *fake = arg;
    struct fake_segment *segment;

    pthread_mutex_lock(&fake->lock);
    enter(fake, FAKE_SEGMENT_LOST, &(struct fake_event){.addr = addr, .size = size});
    segment = expect_segment(fake, kind, addr, size);
    if (segment) {
        if (!segment->announced || segment->farewell)
            fault(fake, "segment_lost without segment_alloc, or after segment_free");
        drop(fake, segment);
    }
    pthread_mutex_unlock(&fake->lock);
}

static void observe_trim(void *arg, size_t released, uint64_t ns, const char *why)
{
    struct fake *fake = arg;

    pthread_mutex_lock(&fake->lock);
    enter(fake, FAKE_TRIM, &(struct fake_event){.size = released, .why = why});
    pthread_mutex_unlock(&fake->lock);
}

static const struct pool_backend_ops backend = {.alloc = backend_alloc,
                                                .free = backend_free,
                                                .collect = backend_collect,
                                                .collected = backend_collected,
                                                .scarce = backend_scarce};
static const struct pool_order_ops order = {.order = order_order, .frozen = order_frozen};
static const struct pool_order_ops order_filling = {
    .order = order_order, .fill = order_fill, .filled = order_filled, .frozen = order_frozen};
static const struct pool_observer_ops observer = {
    .segment_alloc = observe_segment_alloc,
    .segment_free = observe_segment_free,
    .trim = observe_trim,
    .segment_lost = observe_segment_lost,
};

struct fake *fake_new(void)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static unsigned int count;
    struct fake *fake = calloc(1, sizeof(*fake));

    if (!fake)
        abort();
    pthread_mutex_init(&fake->lock, NULL);
    pthread_cond_init(&fake->turn, NULL);
    fake->capacity = FAKE_CAPACITY;
    fake->seed = 1;
    fake->observed = true;
    pthread_mutex_lock(&lock);
    /* Ranges come round again in the end: the map then sees other pools at old addresses. */
    fake->base = 0x100000000000u + (uint64_t)(count++ % 2048) * FAKE_UNITS * UNIT;
    pthread_mutex_unlock(&lock);
    return fake;
}

void fake_delete(struct fake *fake)
{
    pthread_mutex_destroy(&fake->lock);
    pthread_cond_destroy(&fake->turn);
    free(fake);
}

struct pool_config fake_config(struct fake *fake)
{
    return (struct pool_config){
        .backend = &backend,
        .order = &order,
        .observer = &observer,
        .arg = fake,
        .break_max = SIZE_MAX / 2,
        .excess_min = SIZE_MAX / 2,
        .bound_min = SIZE_MAX / 2,
    };
}

struct pool_config fake_config_filling(struct fake *fake)
{
    struct pool_config config = fake_config(fake);

    config.order = &order_filling;
    return config;
}

struct fake_segment *fake_segment_of(struct fake *fake, uint64_t addr)
{
    const uint64_t at = (addr - fake->base) / UNIT;

    if (addr < fake->base || at >= FAKE_UNITS || !fake->owner[at])
        return NULL;
    return &fake->segments[fake->owner[at] - 1];
}

void fake_stop(struct fake *fake, enum fake_kind kind)
{
    pthread_mutex_lock(&fake->lock);
    fake->stop[kind] = fake->calls[kind] + 1;
    pthread_mutex_unlock(&fake->lock);
}

void fake_go(struct fake *fake, enum fake_kind kind)
{
    pthread_mutex_lock(&fake->lock);
    fake->stop[kind] = 0;
    pthread_cond_broadcast(&fake->turn);
    pthread_mutex_unlock(&fake->lock);
}

void fake_wait(struct fake *fake, enum fake_kind kind)
{
    pthread_mutex_lock(&fake->lock);
    while (!fake->waiting[kind])
        pthread_cond_wait(&fake->turn, &fake->lock);
    pthread_mutex_unlock(&fake->lock);
}

bool fake_step(struct fake *fake, enum fake_kind kind)
{
    bool waits;

    pthread_mutex_lock(&fake->lock);
    waits = fake->waiting[kind] && fake->stop[kind] == fake->calls[kind];
    if (waits) {
        fake->stop[kind]++;
        pthread_cond_broadcast(&fake->turn);
    }
    pthread_mutex_unlock(&fake->lock);
    return waits;
}

bool fake_abandon(struct fake *fake)
{
    bool any = false;

    pthread_mutex_lock(&fake->lock);
    for (int kind = 0; kind < FAKE_KINDS; kind++) {
        any |= fake->waiting[kind] != 0;
        fake->stop[kind] = 0;
    }
    pthread_cond_broadcast(&fake->turn);
    pthread_mutex_unlock(&fake->lock);
    return any;
}

void fake_events_clear(struct fake *fake)
{
    fake->events_count = 0;
}

const struct fake_event *fake_event_of(const struct fake *fake, enum fake_kind kind, unsigned int n)
{
    for (unsigned int i = 0; i < fake->events_count; i++)
        if (fake->events[i].kind == kind && n-- == 0)
            return &fake->events[i];
    return NULL;
}
