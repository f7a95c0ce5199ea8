/* SPDX-License-Identifier: Apache-2.0 */
/* ids.c - see ids.h. */
#include "ids.h"

#include <errno.h>
#include <stdlib.h>

#include "hash.h"

/* Addresses differ in their middle bits; the hash spreads these over the upper ones. */
static size_t home(const struct ids *ids, uint64_t id)
{
    return (size_t)(hash_of(id) >> 32) & (ids->size - 1);
}

struct request *ids_find(const struct ids *ids, uint64_t id)
{
    size_t at;

    if (!ids->size)
        return NULL;
    for (at = home(ids, id); ids->slots[at].used; at = (at + 1) & (ids->size - 1))
        if (ids->slots[at].id == id)
            return &ids->slots[at];
    return NULL;
}

static void put(struct ids *ids, const struct request *request)
{
    size_t at = home(ids, request->id);

    while (ids->slots[at].used)
        at = (at + 1) & (ids->size - 1);
    ids->slots[at] = *request;
    ids->slots[at].used = true;
}

int ids_add(struct ids *ids, const struct request *request)
{
    if (2 * ids->count >= ids->size) {
        struct ids more = {.size = ids->size ? 2 * ids->size : 1024, .count = ids->count};

        more.slots = calloc(more.size, sizeof(*more.slots));
        if (!more.slots)
            return -ENOMEM;
        for (size_t i = 0; i < ids->size; i++)
            if (ids->slots[i].used)
                put(&more, &ids->slots[i]);
        free(ids->slots);
        *ids = more;
    }
    put(ids, request);
    ids->count++;
    return 0;
}

void ids_remove(struct ids *ids, struct request *request)
{
    const size_t mask = ids->size - 1;
    size_t hole = (size_t)(request - ids->slots);

    /* An entry that is further from its home than the hole moves into the hole. */
    for (size_t at = (hole + 1) & mask; ids->slots[at].used; at = (at + 1) & mask) {
        if (((at - home(ids, ids->slots[at].id)) & mask) < ((at - hole) & mask))
            continue;
        ids->slots[hole] = ids->slots[at];
        hole = at;
    }
    ids->slots[hole].used = false;
    ids->count--;
}

void ids_fini(struct ids *ids)
{
    free(ids->slots);
}
