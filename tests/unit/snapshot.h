/* SPDX-License-Identifier: Apache-2.0 */
/*
 * snapshot.h - digests of what random programs make the code under test do: a row (record.h) for each setting. Before
 * it is included: STEPS, and EVERY, the steps for each digest.
 *
 * It knows nothing of the programs; the test's own function plays each setting.
 *
 * Threads: one.
 */
#ifndef CUPOOL_TESTS_SNAPSHOT_H
#define CUPOOL_TESTS_SNAPSHOT_H

#include "cases.h"
#include "record.h"

#define DIGESTS (STEPS / EVERY)

static inline void digest_add(uint64_t *digest, uint64_t number)
{
    *digest = (*digest ^ number) * 0x100000001b3u;
    *digest ^= *digest >> 29;
}

/* file: for record_begin. */
static inline void snapshot_test(const char *file, size_t settings, const char *(*name)(size_t setting),
                                 void (*play)(size_t setting, uint64_t ret_digests[DIGESTS]))
{
    record_begin(file);
    for (size_t n = 0; n < settings; n++) {
        uint64_t digests[DIGESTS];
        char words[DIGESTS * 20 + 1] = "";

        play(n, digests);
        for (size_t i = 0; i < DIGESTS; i++)
            snprintf(words + strlen(words), 20, " 0x%016llx", (unsigned long long)digests[i]);
        record_add("%s:%s\n", name(n), words);
    }
    assert_true(record_end());
}

#endif
