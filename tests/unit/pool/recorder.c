/* SPDX-License-Identifier: Apache-2.0 */
/* recorder.c - see recorder.h. */
#include "recorder.h"

#include <errno.h>

struct recorder recorder;

/* The fake's own tables. */
static struct {
    const struct pool_backend_ops *backend;
    const struct pool_order_ops *order;
    const struct pool_observer_ops *observer;
} fakes;

/* FNV-1a, over numbers. */
void recorder_add(uint64_t number)
{
    recorder.digest = (recorder.digest ^ number) * 0x100000001b3u;
    recorder.digest ^= recorder.digest >> 29;
}

void recorder_call(unsigned int function, uint64_t addr, size_t size, uint64_t more)
{
    recorder_add(function);
    recorder_add(addr ? addr - recorder.fake->base : 0);
    recorder_add(size);
    recorder_add(more);
}

static int tell_alloc(void *arg, unsigned int kind, size_t size, uint64_t *ret_addr)
{
    int rc;

    recorder.meanwhile();
    rc = fakes.backend->alloc(recorder.fake, kind, size, ret_addr);
    recorder_call(1, rc ? 0 : *ret_addr, size, (uint64_t)kind << 32 | (unsigned int)rc);
    return rc;
}

static void tell_free(void *arg, unsigned int kind, uint64_t addr, size_t size)
{
    recorder_call(2, addr, size, kind);
    fakes.backend->free(recorder.fake, kind, addr, size);
    recorder.meanwhile();
}

static void tell_collect(void *arg)
{
    recorder_add(3);
    fakes.backend->collect(recorder.fake);
    recorder.meanwhile();
}

static bool tell_collected(void *arg, size_t *ret_arriving)
{
    const bool all = fakes.backend->collected(recorder.fake, ret_arriving);

    recorder_call(4, 0, *ret_arriving, all);
    return all;
}

/* Half of what is on its way arrives. */
static void tell_reclaim(void *arg)
{
    recorder_add(5);
    recorder.fake->arriving /= 2;
    recorder.meanwhile();
}

static bool tell_gives_frozen(void *arg)
{
    recorder_add(6);
    return false;
}

/* Others on the device; they may have given something, or not. */
static bool tell_ask(void *arg, size_t size, struct pool_asking *asking)
{
    const bool first = !asking->over;

    recorder_call(15, 0, size, 0);
    recorder.meanwhile();
    asking->given = asking->over = true;
    return first && size / (2 * MIB) % 2;
}

static bool tell_scarce(void *arg)
{
    return fakes.backend->scarce(recorder.fake);
}

static int tell_order(void *arg, enum pool_order_how how)
{
    int rc;

    recorder.meanwhile();
    rc = recorder.fake->frozen ? -EBUSY : fakes.order->order(recorder.fake, how);
    recorder_call(7, 0, how, (unsigned int)rc);
    return rc;
}

static int tell_fill(void *arg, uint64_t addr, size_t size, bool shared, bool fresh)
{
    recorder_call(8, addr, size, shared + 2u * fresh);
    return fakes.order->fill(recorder.fake, addr, size, shared, fresh);
}

static int tell_filled(void *arg)
{
    recorder_add(9);
    return fakes.order->filled(recorder.fake);
}

static bool tell_frozen(void *arg)
{
    return recorder.fake->frozen;
}

static void see_alloc(void *arg, unsigned int kind, uint64_t addr, size_t size, uint64_t ns)
{
    recorder_call(10, addr, size, kind);
    fakes.observer->segment_alloc(recorder.fake, kind, addr, size, ns);
}

static void see_free(void *arg, unsigned int kind, uint64_t addr, size_t size)
{
    recorder_call(11, addr, size, kind);
    fakes.observer->segment_free(recorder.fake, kind, addr, size);
}

static void see_trim(void *arg, size_t released, uint64_t ns, const char *why)
{
    recorder_call(12, 0, released, (unsigned char)*why);
}

static void see_bound(void *arg, size_t held, size_t bound, uint64_t ns, uint64_t count)
{
    recorder_call(13, 0, held, bound);
    recorder_add(count);
}

static void see_lost(void *arg, unsigned int kind, uint64_t addr, size_t size)
{
    recorder_call(14, addr, size, kind);
    fakes.observer->segment_lost(recorder.fake, kind, addr, size);
}

static const struct pool_backend_ops backend = {.alloc = tell_alloc,
                                                .free = tell_free,
                                                .collect = tell_collect,
                                                .collected = tell_collected,
                                                .reclaim = tell_reclaim,
                                                .gives_frozen = tell_gives_frozen,
                                                .ask = tell_ask,
                                                .scarce = tell_scarce};
static const struct pool_backend_ops backend_sparse = {.alloc = tell_alloc, .free = tell_free};
static const struct pool_order_ops order = {.order = tell_order, .frozen = tell_frozen};
static const struct pool_order_ops order_fills = {tell_order, tell_fill, tell_filled, tell_frozen, NULL};
static const struct pool_observer_ops observer = {see_alloc, see_free, see_trim, see_bound, see_lost};
static const struct pool_observer_ops observer_sparse = {.segment_alloc = NULL};

struct pool_config recorder_config(bool fills, bool sparse)
{
    struct pool_config config = fills ? fake_config_filling(recorder.fake) : fake_config(recorder.fake);

    fakes.backend = config.backend;
    fakes.order = config.order;
    fakes.observer = config.observer;
    config.backend = sparse ? &backend_sparse : &backend;
    config.order = fills ? &order_fills : &order;
    config.observer = sparse ? &observer_sparse : &observer;
    return config;
}
