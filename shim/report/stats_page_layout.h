/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stats_page_layout.h - the layout of a statistics page, which docs/live.md describes, for its writer (stats_file.c)
 * and its reader in the library (job.c). Data, and a checksum; no state, no locks.
 */
#ifndef CUPOOL_SHIM_REPORT_STATS_PAGE_LAYOUT_H
#define CUPOOL_SHIM_REPORT_STATS_PAGE_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

#include "pool.h"

#define STATS_PAGE_MAGIC   "CUPOOLST"
#define STATS_PAGE_VERSION 1
#define STATS_PAGE_SLOTS   64
/* Offsets in the file: the header, then the halves, on pages of their own. */
#define STATS_PAGE_HEADER_SIZE 4096
#define STATS_PAGE_HALF_SIZE   16384

/* The device of the slot that has the counters of pinned memory, which is the process's and no device's. */
#define STATS_PAGE_HOST UINT64_MAX

/* The counters of one device, or of pinned memory, in the order of the header's names. `bypassed` is the context's. */
struct stats_page_slot {
    uint64_t device;
    struct pool_stats stats;
    uint64_t bypassed;
    struct {
#define HOST_COUNTER(name)
#define HOST_OWN(name) uint64_t name;
#include "host_counters.def"
#undef HOST_COUNTER
#undef HOST_OWN
    } host; /* of the slot of pinned memory; 0 elsewhere */
};

struct stats_page_header {
    char magic[8];
    uint32_t version, header_size, half_size, slot_size, slots, counters;
    int32_t pid, rank, local_rank, reserved;
    uint64_t start_unix_ns;
    char library[32], host[256], exe[256], names[512];
};

struct stats_page_half {
    uint32_t crc; /* stats_page_crc */
    uint32_t count;
    uint64_t seq, unix_ns, uptime_ns;
    uint32_t ended, reserved;
    struct stats_page_slot slots[STATS_PAGE_SLOTS];
};

_Static_assert(offsetof(struct stats_page_half, slots) == 40, "as docs/live.md says");
_Static_assert(sizeof(struct stats_page_header) <= STATS_PAGE_HEADER_SIZE, "it fits");
_Static_assert(sizeof(struct stats_page_half) <= STATS_PAGE_HALF_SIZE, "it fits");

/* The CRC-32 of zlib and gzip, of all members of a half but the first, up to the last slot in use; count is not beyond
 * STATS_PAGE_SLOTS. A few hundred bytes a second need no table. */
static inline uint32_t stats_page_crc(const struct stats_page_half *half)
{
    const unsigned char *byte = (const unsigned char *)&half->count;
    size_t len = offsetof(struct stats_page_half, slots) - offsetof(struct stats_page_half, count) +
                 half->count * sizeof(half->slots[0]);
    uint32_t crc = ~0u;

    for (; len--; byte++) {
        crc ^= *byte;
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? crc >> 1 ^ 0xedb88320u : crc >> 1;
    }
    return ~crc;
}

#endif
