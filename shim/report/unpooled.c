/* SPDX-License-Identifier: Apache-2.0 */
/* unpooled.c - see unpooled.h. No locks; the counters are atomic. */
#include "report/unpooled.h"

#include <stdatomic.h>
#include <stdio.h>

#include "trace/digits.h"

typedef unsigned long long ull;

static const char *const names[UNPOOLED_KINDS] = {
    "cuMemCreate", "cudaMallocAsync", "cudaMallocManaged", "cudaMallocPitch", "cudaMallocArray",
};

static struct {
    atomic_ullong calls, bytes;
} taken[UNPOOLED_KINDS];

void unpooled_took(enum unpooled kind, uint64_t bytes)
{
    atomic_fetch_add_explicit(&taken[kind].bytes, bytes, memory_order_relaxed);
    atomic_fetch_add_explicit(&taken[kind].calls, 1, memory_order_relaxed);
}

bool unpooled_text(char *text, size_t len)
{
    size_t used = 0;

    text[0] = '\0';
    for (unsigned int i = 0; i < UNPOOLED_KINDS && used < len; i++) {
        const ull calls = atomic_load(&taken[i].calls), bytes = atomic_load(&taken[i].bytes);
        char size[40] = "";

        if (!calls)
            continue;
        if (bytes)
            snprintf(size, sizeof(size), "%llu.%llu MiB by ", (ull)digits_tenths(bytes, 1 << 20) / 10,
                     (ull)digits_tenths(bytes, 1 << 20) % 10);
        used += (size_t)snprintf(text + used, len - used, "%s%s%s (%llu call%s)", used ? ", " : "", size, names[i],
                                 calls, calls == 1 ? "" : "s");
    }
    return used;
}
