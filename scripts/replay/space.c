/* SPDX-License-Identifier: Apache-2.0 */
/* space.c - see space.h. */
#include "space.h"

#include <errno.h>
#include <stdlib.h>

/* Addresses for each page of the device. */
#define SPREAD 4

size_t space_span(size_t capacity)
{
    return (capacity / SPACE_PAGE + 1) * SPACE_PAGE * SPREAD;
}

int space_init(struct space *space, uint64_t base, size_t capacity)
{
    *space = (struct space){.base = base, .capacity = capacity, .units = space_span(capacity) / SPACE_PAGE};
    space->taken = calloc(space->units / 64 + 1, sizeof(*space->taken));
    return space->taken ? 0 : -ENOMEM;
}

void space_fini(struct space *space)
{
    free(space->taken);
}

/* The first unit at or after at, and before end, whose bit differs from flip's bits; end if there is none. */
static size_t seek(const struct space *space, size_t at, size_t end, uint64_t flip)
{
    while (at < end) {
        const uint64_t bits = (space->taken[at / 64] ^ flip) >> (at % 64);

        if (bits) {
            at += (size_t)__builtin_ctzll(bits);
            return at < end ? at : end;
        }
        at = (at / 64 + 1) * 64;
    }
    return end;
}

static size_t next_vacant(const struct space *space, size_t at)
{
    return seek(space, at, space->units, ~0ull);
}

static void mark(struct space *space, size_t at, size_t units)
{
    for (; units; units--, at++)
        space->taken[at / 64] ^= 1ull << (at % 64);
}

int space_take(struct space *space, size_t size, uint64_t *ret_addr)
{
    const size_t units = size / SPACE_PAGE;
    size_t at = next_vacant(space, space->lowest), end = 0;

    if (size > space->capacity - space->in_use)
        return -ENOMEM;
    space->lowest = at;
    for (; at + units <= space->units; at = next_vacant(space, end)) {
        end = seek(space, at, at + units, 0);
        if (end == at + units)
            break;
    }
    if (at + units > space->units)
        return -ENOMEM;
    mark(space, at, units);
    space->in_use += size;
    if (space->in_use > space->peak)
        space->peak = space->in_use;
    *ret_addr = space->base + at * SPACE_PAGE;
    return 0;
}

void space_give(struct space *space, uint64_t addr, size_t size)
{
    const size_t at = (size_t)(addr - space->base) / SPACE_PAGE;

    mark(space, at, size / SPACE_PAGE);
    space->in_use -= size;
    if (at < space->lowest)
        space->lowest = at;
}
