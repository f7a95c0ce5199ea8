/* SPDX-License-Identifier: Apache-2.0 */
/*
 * space.h - the memory of a device that does not exist: pages of 2 MiB, so many and no more.
 *
 * Here: addresses by first fit. There are several times as many addresses as pages: the driver maps pages from
 * anywhere side by side, so memory never runs out because of its order. Not here: memory.
 *
 * Threads: one.
 */
#ifndef CUPOOL_REPLAY_SPACE_H
#define CUPOOL_REPLAY_SPACE_H

#include <stddef.h>
#include <stdint.h>

#define SPACE_PAGE ((size_t)2 << 20)

struct space {
    uint64_t base;
    size_t capacity, in_use, peak; /* bytes */
    size_t units;                  /* addresses, in pages */
    size_t lowest;                 /* no unit below this is vacant */
    uint64_t *taken;               /* a bit for each unit */
};

/* How many bytes of addresses a device of this capacity has. */
size_t space_span(size_t capacity);

/* -ENOMEM: no host memory. */
int space_init(struct space *space, uint64_t base, size_t capacity);
void space_fini(struct space *space);

/* size: a multiple of SPACE_PAGE. -ENOMEM: not so much is left. */
int space_take(struct space *space, size_t size, uint64_t *ret_addr);
void space_give(struct space *space, uint64_t addr, size_t size);

#endif
