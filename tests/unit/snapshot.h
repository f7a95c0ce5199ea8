/* SPDX-License-Identifier: Apache-2.0 */
/*
 * snapshot.h - digests of what random programs make the code under test do, compared with those recorded, or written
 * to the file that CUPOOL_TEST_RECORD names. Before it is included: STEPS, and EVERY, the steps for each digest.
 *
 * It knows nothing of the programs; the test's own function plays each setting.
 *
 * Threads: one.
 */
#ifndef CUPOOL_TESTS_SNAPSHOT_H
#define CUPOOL_TESTS_SNAPSHOT_H

#include "cases.h"

#define DIGESTS (STEPS / EVERY)

static inline void digest_add(uint64_t *digest, uint64_t number)
{
    *digest = (*digest ^ number) * 0x100000001b3u;
    *digest ^= *digest >> 29;
}

/* A test's settings, and the function that plays one. */
struct snapshot {
    size_t settings;
    const char *(*name)(size_t setting);
    void (*play)(size_t setting, uint64_t ret_digests[DIGESTS]);
    const uint64_t (*recorded)[DIGESTS];
};

static inline void snapshot_record(const struct snapshot *snapshot, const char *path)
{
    FILE *file = fopen(path, "w");

    assert_non_null(file);
    fprintf(file, "/* SPDX-License-Identifier: Apache-2.0 */\n/* Digests written by the test that includes this. */\n"
                  "/* clang-format off */\n");
    for (size_t n = 0; n < snapshot->settings; n++) {
        uint64_t digests[DIGESTS];

        snapshot->play(n, digests);
        for (size_t i = 0; i < DIGESTS; i++)
            fprintf(file, "%s0x%016llx", i == 0 ? "{" : i % 4 == 0 ? ",\n" : ", ", (unsigned long long)digests[i]);
        fprintf(file, "}, /* %s */\n", snapshot->name(n));
    }
    fprintf(file, "/* clang-format on */\n");
    assert_int_equal(fclose(file), 0);
}

static inline void snapshot_test(const struct snapshot *snapshot)
{
    const char *path = getenv("CUPOOL_TEST_RECORD");

    if (path)
        snapshot_record(snapshot, path);
    for (size_t n = 0; n < snapshot->settings && !path; n++) {
        uint64_t digests[DIGESTS];

        snapshot->play(n, digests);
        for (size_t i = 0; i < DIGESTS; i++)
            if (digests[i] != snapshot->recorded[n][i])
                fail_msg("%s: something is decided otherwise between steps %zu and %zu", snapshot->name(n),
                         i * (size_t)EVERY, (i + 1) * (size_t)EVERY);
    }
}

#endif
