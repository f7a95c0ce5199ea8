/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_pool.c - any bytes, read as a sequence of calls, must leave the pool sound and in step with its model.
 *
 * With libFuzzer: built with -fsanitize=fuzzer. Without: built with -DFUZZ_PLAIN as a program of its own.
 *
 *     fuzz_pool_plain FILE...             replay files, e.g. the findings of a fuzzer
 *     fuzz_pool_plain -r N [SEED]         run N random inputs; an input that fails is left in fuzz_pool.crash
 *     fuzz_pool_plain -w DIR N [SEED]     write N random inputs, to start a fuzzer with
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model.h"

struct input {
    const uint8_t *data;
    size_t left;
};

/* The next bytes as a number; zeros after the end. */
static uint32_t next(struct input *input, unsigned int bytes)
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
    const uint32_t op = next(input, 1);
    uint64_t addr;

    switch (op % 16) {
    case 8:
    case 9:
    case 10:
    case 11:
        model_free_nth(model, next(input, 1));
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
            model_free_bad(model, fake->base + (uint64_t)next(input, 2) * (op < 0xa0 ? 256 : 64 << 10));
        break;
    default:
        model_alloc(model, size_from(next(input, 2)), &addr);
    }
}

/* What went wrong, or an empty string; valid until the next call. */
static const char *run(const uint8_t *data, size_t size)
{
    static const size_t break_maxima[] = {SIZE_MAX / 2, 0, (size_t)16 << 20, (size_t)64 << 20};
    static char fault[sizeof(((struct model *)NULL)->fault)];
    struct input input = {.data = data, .left = size};
    const uint32_t flags = next(&input, 1);
    struct model *model = model_new(flags & 1 ? (size_t)64 << 20 : 0, break_maxima[flags >> 4 & 3], flags & 2, false);

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

#ifndef FUZZ_PLAIN

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *fault = run(data, size);

    if (fault[0]) {
        fprintf(stderr, "fuzz_pool: %s\n", fault);
        abort();
    }
    return 0;
}

#else

#define INPUT_MAX ((size_t)64 << 10)

static uint8_t buffer[INPUT_MAX];

static size_t random_input(uint64_t *rng)
{
    const size_t size = 1 + rng_below(rng, (size_t)16 << rng_below(rng, 8));

    for (size_t i = 0; i < size; i++)
        buffer[i] = (uint8_t)rng_next(rng);
    return size;
}

static int save(const char *path, size_t size)
{
    FILE *file = fopen(path, "wb");
    int bad = !file || fwrite(buffer, 1, size, file) != size;

    if (file)
        bad |= fclose(file) != 0;
    if (bad)
        perror(path);
    return bad;
}

static int replay(const char *path)
{
    FILE *file = fopen(path, "rb");
    const char *fault;
    size_t size;

    if (!file) {
        perror(path);
        return 1;
    }
    size = fread(buffer, 1, sizeof(buffer), file);
    fclose(file);
    fault = run(buffer, size);
    if (fault[0])
        fprintf(stderr, "%s: %s\n", path, fault);
    return fault[0] != '\0';
}

static int run_random(unsigned long count, uint64_t rng)
{
    for (unsigned long i = 0; i < count; i++) {
        const size_t size = random_input(&rng);
        const char *fault = run(buffer, size);

        if (fault[0]) {
            fprintf(stderr, "input %lu (fuzz_pool.crash): %s\n", i, fault);
            save("fuzz_pool.crash", size);
            return 1;
        }
    }
    return 0;
}

static int write_random(const char *dir, unsigned long count, uint64_t rng)
{
    char path[4096];

    for (unsigned long i = 0; i < count; i++) {
        snprintf(path, sizeof(path), "%s/random-%lu", dir, i);
        if (save(path, random_input(&rng)))
            return 1;
    }
    return 0;
}

int main(int argc, char **argv)
{
    int bad = 0;

    if (argc >= 3 && !strcmp(argv[1], "-r"))
        return run_random(strtoul(argv[2], NULL, 0), argc > 3 ? strtoull(argv[3], NULL, 0) : 1);
    if (argc >= 4 && !strcmp(argv[1], "-w"))
        return write_random(argv[2], strtoul(argv[3], NULL, 0), argc > 4 ? strtoull(argv[4], NULL, 0) : 1);
    if (argc < 2 || argv[1][0] == '-') {
        fprintf(stderr, "usage: %s FILE... | -r N [SEED] | -w DIR N [SEED]\n", argv[0]);
        return 2;
    }
    for (int i = 1; i < argc; i++)
        bad |= replay(argv[i]);
    return bad;
}

#endif
