/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ghosts.c - see ghosts.h.
 *
 * Locking: the pool's lock.
 */
#include "ghosts.h"

#include <stdint.h>

#include "sizes.h"

/* A request of a new size counts as NEW_WEIGHT requests of sizes on the ghost list; readmission credit is given from
 * AGAIN_MAX on. */
#define NEW_WEIGHT 2u
#define AGAIN_MAX  128u

/* All small requests have one key: any of them may request a shared segment again. */
static size_t gone_key(size_t got_for)
{
    return got_for < LARGE_MIN ? LARGE_MIN : got_for;
}

static unsigned int gone_index(size_t key)
{
    return (unsigned int)((uint64_t)(key / POOL_GRANULE) * 0x9e3779b97f4a7c15u >> 32) % GONE;
}

/*
 * A program that requests the same sizes again and again must stop asking
 * the driver at some time, however badly the sizes of one phase fit into the memory of another. So when most growth has
 * for long been for sizes on the ghost list, each further time adds its size to the readmission credit, and the pool
 * may hold more. A program whose sizes change requests some of them again, too, but also new ones, which reduce the
 * credit.
 */
void regret_update(struct ghosts *ghosts, size_t size, size_t got_for)
{
    const size_t key = gone_key(got_for);
    const unsigned int i = gone_index(key);

    if (ghosts->gone[i].got_for != key || ghosts->gone[i].bytes < size) {
        ghosts->again -= ghosts->again < NEW_WEIGHT ? ghosts->again : NEW_WEIGHT;
        ghosts->regret -= ghosts->regret < size ? ghosts->regret : size;
        return;
    }
    ghosts->gone[i].bytes -= size;
    if (ghosts->again < AGAIN_MAX)
        ghosts->again++;
    else
        ghosts->regret += size;
}

void gone_add(struct ghosts *ghosts, size_t size, size_t got_for)
{
    const size_t key = gone_key(got_for);
    const unsigned int i = gone_index(key);

    if (ghosts->gone[i].got_for != key)
        ghosts->gone[i].bytes = 0;
    ghosts->gone[i].got_for = key;
    ghosts->gone[i].bytes += size;
}
