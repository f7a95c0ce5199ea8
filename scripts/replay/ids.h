/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ids.h - requests by the names that the input has for them.
 *
 * Here: a hash table, open addressing. Not here: ordered.
 *
 * Threads: one.
 */
#ifndef CUPOOL_REPLAY_IDS_H
#define CUPOOL_REPLAY_IDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct request {
    uint64_t id, block, size;
    unsigned char device, place; /* enum place */
    bool used;
};

struct ids {
    struct request *slots;
    size_t size, count; /* size: a power of two, or 0 */
};

/* NULL: not there. Good until the next call that adds or removes. */
struct request *ids_find(const struct ids *ids, uint64_t id);
/* id is not there yet. -ENOMEM. */
int ids_add(struct ids *ids, const struct request *request);
void ids_remove(struct ids *ids, struct request *request);
void ids_fini(struct ids *ids);

#endif
