/* SPDX-License-Identifier: Apache-2.0 */
/*
 * facts.h - what the driver says of a context and its device. It decides nothing, and keeps nothing.
 *
 * Threads: every function may be called from any thread; the caller holds no lock, because each function makes calls of
 * the driver.
 */
#ifndef CUPOOL_SHIM_CONTEXT_FACTS_H
#define CUPOOL_SHIM_CONTEXT_FACTS_H

#include <stdbool.h>
#include <stddef.h>

#include "real/hooks.h"
#include "real/real.h"

/* The driver's facts about a context, collected without the lock, for a new entry. */
struct facts {
    const struct real_driver *driver;
    int device;
    bool primary, defers, orders, maps;
    unsigned long long id;
    size_t capacity; /* of the device, in bytes */
};

/* Collect the facts about the context that is current and has this handle; as->driver is set. False: the context cannot
 * be used now. */
bool facts_find(CUcontext handle, struct facts *as);

/* The handle of a device's primary context; NULL: it is not active, or the driver cannot be asked. False: the driver
 * cannot say now. */
bool facts_primary(const struct real_driver *driver, int device, CUcontext *ret_primary);

/* The driver's unique number of a context; 0: the driver does not have one. */
unsigned long long context_id(const struct real_driver *driver, CUcontext handle);

/* Write the device's name, UUID and memory to the trace. */
void device_trace(const struct real_driver *driver, int device, size_t total);

#endif
