/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attributes.h - the driver's answers about one address, as texts for facts.
 *
 * Not here: which addresses are asked about, and with which memory.
 *
 * Locking: none; the case's main thread calls them.
 */
#ifndef PROBE_ATTRIBUTES_H
#define PROBE_ATTRIBUTES_H

#include "probe.h"

/* All of them; the last one, P2P_TOKENS, sets SYNC_MEMOPS when it is asked for. */
#define ATTRIBUTES          19u
#define ATTRIBUTES_HARMLESS (ATTRIBUTES - 1)

/* The allocation that the addresses are near to. */
struct allocation {
    CUcontext primary;
    CUdeviceptr base;
    unsigned long long id; /* its BUFFER_ID */
};

const char *attribute_name(size_t attribute);
/* Offsets are from the allocation's base. */
void attribute_text(char *text, size_t n, size_t attribute, const struct allocation *of, CUdeviceptr at);
/* The answer of cuMemGetAddressRange: offset and size. */
void address_range_text(char *text, size_t n, const struct allocation *of, CUdeviceptr at);

#endif
