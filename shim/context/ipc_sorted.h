/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ipc_sorted.h - segments of other processes that are mapped here, in the order of their addresses, for ipc_import.h.
 * It maps nothing, and owns no mapping.
 *
 * Threads: the caller guards the list.
 */
#ifndef CUPOOL_SHIM_CONTEXT_IPC_SORTED_H
#define CUPOOL_SHIM_CONTEXT_IPC_SORTED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/ipc_message.h"
#include "real/hooks.h"

struct import;

/* A segment that is mapped in a context. */
struct mapping {
    struct ipc_name segment;
    enum ipc_how how;
    CUcontext context; /* NULL: it has ended */
    uint64_t addr;
    size_t size;
    unsigned int uses;    /* open blocks */
    struct import *first; /* of these */
    struct mapping *next; /* in its bucket */
};

/* All zeros: an empty list. */
struct sorted_mappings {
    struct mapping **at;
    size_t count, room;
};

/* Make room for more than `count` in all. False: there is no host memory. */
bool sorted_reserve(struct sorted_mappings *sorted, size_t count);
/* How many begin at addr or before. */
size_t sorted_until(const struct sorted_mappings *sorted, uint64_t addr);
/* Add one, for which room has been reserved. */
void sorted_add(struct sorted_mappings *sorted, struct mapping *mapping);
/* Remove one, if it is there. */
void sorted_remove(struct sorted_mappings *sorted, const struct mapping *mapping);

#endif
