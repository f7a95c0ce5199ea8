/* SPDX-License-Identifier: Apache-2.0 */
/* random.c - see random.h. */
#include "random.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

#define ALLOC_PERCENT 73

struct live {
    uint64_t id;
    size_t size;
};

static uint64_t random_next(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static size_t random_size(const struct mix *mix, uint64_t *state)
{
    const double part = (double)(random_next(state) >> 11) / (double)(1ull << 53);
    const double least = (double)mix->size_min, most = (double)mix->size_max;
    const double size = mix->uniform ? least + part * (most - least + 1) : least * pow((most + 1) / least, part);

    return size < least ? mix->size_min : size > most ? mix->size_max : (size_t)size;
}

int mix_run(const struct mix *mix, const struct mix_ops *ops, void *arg)
{
    struct live *live = malloc(mix->requests * sizeof(*live));
    uint64_t state = mix->seed, asked = 0, count = 0;
    size_t live_bytes = 0;
    int rc = live ? 0 : -ENOMEM;

    for (uint64_t step = 0; !rc && step < 2 * mix->requests; step++) {
        const size_t size = random_size(mix, &state);
        const bool chance = random_next(&state) % 100 < ALLOC_PERCENT;
        int served = 0;

        if (asked < mix->requests && (!count || (chance && live_bytes + size < mix->live_max))) {
            served = ops->alloc(arg, asked, size);
            if (served == 1) {
                live[count++] = (struct live){.id = asked, .size = size};
                live_bytes += size;
            }
            asked++;
        }
        if (served < 0) {
            rc = served;
        } else if (!served && count) { /* the step frees, or its request was refused: make room */
            const uint64_t i = random_next(&state) % count;

            rc = ops->free(arg, live[i].id);
            live_bytes -= live[i].size;
            live[i] = live[--count];
        }
    }
    free(live);
    return rc;
}
