/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_pool.c - any bytes, read as a sequence of calls, must leave the pool sound and in step with its model. How to
 * run it: fuzz.h. */

#include "fuzz.h"
#include "model.h"

struct input {
    const uint8_t *data;
    size_t left;
};

/* The next bytes as a number; zeros after the end. */
static uint32_t taken(struct input *input, unsigned int bytes)
{
    uint32_t value = 0;

    while (bytes--) {
        value <<= 8;
        if (input->left) {
            value |= *input->data++;
            input->left--;
        }
    }
    return value;
}

/* Sizes that matter: tiny ones, the edges of powers of two, around the segment unit, large ones. */
static size_t size_from(uint32_t value)
{
    const size_t detail = value & 0xfff, kind = value >> 12;

    if (kind < 4)
        return 1 + detail;
    if (kind < 8)
        return (1 + detail) * POOL_GRANULE;
    if (kind < 12)
        return ((size_t)1 << (9 + detail % 18)) + detail / 18 - 100;
    if (kind < 14)
        return POOL_SEGMENT_UNIT - 2048 + detail;
    return (1 + detail % 64) * POOL_SEGMENT_UNIT;
}

static void step(struct model *model, struct input *input)
{
    static const int order_rcs[] = {0, 0, -EBUSY, -EIO};
    static const int fail_rcs[] = {-ENOMEM, -EBUSY};
    struct fake *fake = model->fake;
    const uint32_t op = taken(input, 1);
    uint64_t addr;

    switch (op % 16) {
    case 8:
    case 9:
    case 10:
    case 11:
        model_free_nth(model, taken(input, 1));
        break;
    case 12:
        fake->order_rc = order_rcs[op / 16 % 4];
        fake->frozen = op >= 0xe0;
        break;
    case 13:
        fake->capacity = op < 0x80 ? FAKE_CAPACITY : fake->in_use + op / 16 % 8 * POOL_SEGMENT_UNIT;
        break;
    case 14:
        fake->fail_at = fake->calls[FAKE_ALLOC] + 1;
        fake->fail_rc = fail_rcs[op / 16 % 2];
        break;
    case 15:
        if (op < 0x40)
            model_trim(model);
        else if (op < 0x50)
            model_restart(model);
        else
            model_free_bad(model, fake->base + (uint64_t)taken(input, 2) * (op < 0xa0 ? 256 : 64 << 10));
        break;
    default:
        model_alloc(model, size_from(taken(input, 2)), &addr);
    }
}

static const char *fuzz_run(const uint8_t *data, size_t size)
{
    static const size_t break_maxima[] = {SIZE_MAX / 2, 0, (size_t)16 << 20, (size_t)64 << 20};
    static const size_t excesses[] = {SIZE_MAX / 2, 0, 0, (size_t)8 << 20};
    static char fault[sizeof(((struct model *)NULL)->fault)];
    struct input input = {.data = data, .left = size};
    const uint32_t flags = taken(&input, 1);
    struct model *model =
        model_new(flags & 1 ? (size_t)64 << 20 : 0, break_maxima[flags >> 4 & 3], excesses[flags >> 6], flags & 2);

    /* Always the same: the map never gives the memory of its tables back. */
    model->fake->base = (uint64_t)1 << 44;
    model->fake->addresses = flags & 4 ? FAKE_DOWN : flags & 8 ? FAKE_SHUFFLED : FAKE_UP;
    while (input.left && !model->fault[0]) {
        step(model, &input);
        model_check(model, true);
    }
    if (!model->fault[0])
        model_drain(model);
    memcpy(fault, model->fault, sizeof(fault));
    model_delete(model);
    return fault;
}

/* Any bytes will do. */
static size_t fuzz_random(uint64_t *rng, uint8_t *buffer)
{
    const size_t size = 1 + rng_below(rng, (size_t)16 << rng_below(rng, 8));

    for (size_t i = 0; i < size; i++)
        buffer[i] = (uint8_t)rng_next(rng);
    return size;
}
