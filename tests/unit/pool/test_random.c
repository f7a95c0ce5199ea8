/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_random.c - long random sequences against the model, and the same sequence at other addresses.
 *
 * CUPOOL_TEST_SEED and CUPOOL_TEST_OPS in the environment choose other sequences and lengths.
 */
#include "unit.h"

#include "model.h"
#include "seeded.h"

#define ANY (SIZE_MAX / 2) /* break_max, excess_min: no limit */

static size_t random_size(uint64_t *rng)
{
    switch (rng_below(rng, 16)) {
    case 0:
        return 1 + rng_below(rng, 64 * MIB);
    case 1:
        return (1 + rng_below(rng, 3)) * 2 * MIB;
    case 2:
        return UNIT - 2048 + rng_below(rng, 4096);
    case 3:
    case 4:
        return 1 + rng_below(rng, MIB);
    case 5: /* the same few again and again, as a program does */
    case 6:
    case 7:
    case 8:
        return (size_t)2000 << rng_below(rng, 8);
    default:
        return 1 + rng_below(rng, 64 * KIB);
    }
}

/* One step of a program; what it does depends on rng alone. */
static void step(struct model *model, uint64_t *rng)
{
    struct fake *fake = model->fake;
    /* Phases of growth and of decline. */
    const size_t crowd = (size_t)8 << (model->want.allocs / 512 % 8);
    uint64_t addr;

    switch (rng_below(rng, 100)) {
    case 0:
        fake->order_rc = rng_below(rng, 4) ? 0 : rng_below(rng, 4) ? -EBUSY : -EIO;
        break;
    case 1:
        fake->frozen = rng_below(rng, 3) == 0;
        break;
    case 2:
        fake->capacity = (rng_below(rng, 3) ? 4096 : rng_below(rng, 512)) * MIB;
        break;
    case 3:
        fake->fail_at = fake->calls[FAKE_ALLOC] + 1;
        fake->fail_rc = rng_below(rng, 2) ? -ENOMEM : -EBUSY;
        break;
    case 4:
        if (rng_below(rng, 4) == 0)
            model_trim(model);
        break;
    case 5:
        model_free_bad(model, rng_next(rng) >> rng_below(rng, 64));
        break;
    case 6:
        if (model->count)
            model_free_bad(model, model->blocks[rng_below(rng, model->count)].addr + 256 * rng_below(rng, 100));
        break;
    case 7:
        model_decay(model, (unsigned int)rng_below(rng, 6));
        break;
    case 8:
        if (rng_below(rng, 4) == 0)
            model_withdraw_nth(model, rng_next(rng));
        break;
    case 9:
        fake->scarce = rng_below(rng, 8) == 0;
        break;
    default:
        if (rng_below(rng, 2 * crowd) < model->live_count)
            model_free_nth(model, rng_next(rng));
        else
            model_alloc(model, random_size(rng), &addr);
    }
}

static void run(size_t limit, size_t break_max, size_t excess_min, bool prompt, enum fake_addresses addresses)
{
    struct model *model = model_new(limit, break_max, excess_min, prompt);
    const uint64_t seed = env_number("CUPOOL_TEST_SEED", 1), ops = env_number("CUPOOL_TEST_OPS", 100000);
    uint64_t rng = seed;

    alarm(DEADLOCK_SECONDS * 5);
    model->fake->addresses = addresses;
    for (uint64_t i = 0; i < ops; i++) {
        step(model, &rng);
        model_check(model, i % 64 == 0);
        if (model->fault[0])
            fail_msg("seed %llu, step %llu: %s", (unsigned long long)seed, (unsigned long long)i, model->fault);
        if (i % 30000 == 29999)
            model_restart(model);
    }
    model_drain(model);
    if (model->fault[0])
        fail_msg("seed %llu: %s", (unsigned long long)seed, model->fault);
    model_delete(model);
    alarm(0);
}

UNIT_CASE(test_random_ops_match_model)
{
    run(0, ANY, ANY, false, FAKE_SHUFFLED);
}

UNIT_CASE(test_random_ops_prompt_match_model)
{
    run(0, ANY, ANY, true, FAKE_DOWN);
}

UNIT_CASE(test_random_ops_with_limit_match_model)
{
    run(256 * MIB, ANY, ANY, true, FAKE_UP);
}

UNIT_CASE(test_random_ops_without_breaking_match_model)
{
    run(0, 0, ANY, false, FAKE_UP);
}

UNIT_CASE(test_random_ops_with_break_max_match_model)
{
    run(0, 96 * MIB, ANY, false, FAKE_DOWN);
}

UNIT_CASE(test_random_ops_without_excess_match_model)
{
    run(0, 32 * MIB, 0, false, FAKE_UP);
}

UNIT_CASE(test_random_ops_with_little_excess_match_model)
{
    run(1024 * MIB, ANY, 16 * MIB, true, FAKE_SHUFFLED);
}

/* --- the ranks of a job ask for the same and must get the same places, wherever the driver puts their segments */

struct place {
    int rc;
    unsigned int index;
    size_t offset;
};

static struct place place_of(struct fake *fake, int rc, uint64_t addr)
{
    const struct fake_segment *segment = rc ? NULL : fake_segment_of(fake, addr);

    if (!segment)
        return (struct place){.rc = rc};
    return (struct place){.index = segment->index, .offset = (size_t)(addr - segment->addr)};
}

#define RANKS 4
#define LIVE  512

UNIT_CASE(test_random_ops_at_other_addresses_get_same_places)
{
    static const enum fake_addresses addresses[RANKS] = {FAKE_UP, FAKE_DOWN, FAKE_SHUFFLED, FAKE_SHUFFLED};
    static uint64_t live[RANKS][LIVE];
    struct env ranks[RANKS];
    struct place places[RANKS];
    uint64_t rng = env_number("CUPOOL_TEST_SEED", 1);
    size_t hits = 0;

    memset(live, 0, sizeof(live));
    for (size_t r = 0; r < RANKS; r++) {
        struct pool_config config;

        ranks[r].fake = fake_new();
        ranks[r].fake->addresses = addresses[r];
        ranks[r].fake->seed = r;
        ranks[r].fake->capacity = 1024 * MIB;
        config = fake_config(ranks[r].fake);
        config.break_max = 256 * MIB;
        config.excess_min = 0;
        ranks[r].pool = pool_new(&config);
    }
    for (int i = 0; i < 40000; i++) {
        const size_t at = rng_below(&rng, LIVE), size = random_size(&rng);
        const int order_rc = rng_below(&rng, 20) ? 0 : -EBUSY;
        const bool trim = rng_below(&rng, 5000) == 0;

        for (size_t r = 0; r < RANKS; r++) {
            uint64_t addr = 0;
            int rc;

            ranks[r].fake->order_rc = order_rc;
            if (trim)
                pool_trim(ranks[r].pool, "test");
            if (live[r][at]) {
                rc = pool_free(live[r][at]);
                live[r][at] = 0;
            } else {
                rc = pool_alloc(ranks[r].pool, size, &addr);
                live[r][at] = addr;
            }
            places[r] = place_of(ranks[r].fake, rc, addr);
            if (r && memcmp(&places[r], &places[0], sizeof(places[0])) != 0)
                fail_msg("step %d: rank %zu got %d, segment %u + %zu, rank 0 got %d, segment %u + %zu", i, r,
                         places[r].rc, places[r].index, places[r].offset, places[0].rc, places[0].index,
                         places[0].offset);
        }
    }
    hits = (size_t)stats_of(ranks[0].pool).hits;
    assert_true(hits > 5000);
    assert_true(stats_of(ranks[0].pool).segments_free > 50); /* the ladder was climbed */
    for (size_t r = 0; r < RANKS; r++) {
        assert_sound(ranks[r].pool, ranks[r].fake);
        pool_destroy(ranks[r].pool);
        fake_delete(ranks[r].fake);
    }
}
