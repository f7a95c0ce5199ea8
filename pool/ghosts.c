/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ghosts.c - see ghosts.h.
 *
 * Locking: the pool's lock.
 */
#include "ghosts.h"

#include "hash.h"
#include "segment.h"

/* A request of a new size counts as NEW_WEIGHT requests of sizes on the ghost list; readmission credit is given from
 * STREAK_MAX on, and from STREAK_REPEATS on the program seems to repeat its steps. */
#define NEW_WEIGHT     2u
#define STREAK_MAX     64u
#define STREAK_REPEATS 16u

/* All small requests have one key: any of them may request a shared segment again. */
static size_t ghost_key(size_t got_for)
{
    return got_for < LARGE_MIN ? LARGE_MIN : got_for;
}

static unsigned int ghost_index(size_t key)
{
    return (unsigned int)(hash_of(key / POOL_GRANULE) >> 32) % GHOSTS;
}

/*
 * A program that requests the same sizes again and again must stop asking the driver at some time, however badly the
 * sizes of one phase fit into the memory of another. So when most growth has for long been for sizes on the ghost list,
 * each further time adds its size to the readmission credit, and the pool may hold more. A program whose sizes change
 * requests some of them again, too, but also new ones, which reduce the credit.
 */
void ghosts_update(struct ghosts *ghosts, size_t size, size_t got_for)
{
    const size_t key = ghost_key(got_for);
    const unsigned int i = ghost_index(key);

    if (ghosts->entries[i].got_for != key || ghosts->entries[i].bytes < size) {
        ghosts->streak -= ghosts->streak < NEW_WEIGHT ? ghosts->streak : NEW_WEIGHT;
        ghosts->credit -= ghosts->credit < size ? ghosts->credit : size;
        return;
    }
    ghosts->entries[i].bytes -= size;
    if (ghosts->streak < STREAK_MAX)
        ghosts->streak++;
    else
        ghosts->credit += size;
}

bool ghosts_repeat(const struct ghosts *ghosts)
{
    return ghosts->streak >= STREAK_REPEATS;
}

void ghosts_add(struct ghosts *ghosts, const struct segment *segment)
{
    const size_t key = ghost_key(segment->got_for);
    const unsigned int i = ghost_index(key);

    if (ghosts->entries[i].got_for != key)
        ghosts->entries[i].bytes = 0;
    ghosts->entries[i].got_for = key;
    ghosts->entries[i].bytes += segment->size;
    ghosts->entries[i].listed = segment->listed;
}

void ghosts_recall(const struct ghosts *ghosts, struct segment *segment)
{
    const size_t key = ghost_key(segment->got_for);
    const unsigned int i = ghost_index(key);

    if (ghosts->entries[i].got_for == key)
        segment->listed = ghosts->entries[i].listed;
}
