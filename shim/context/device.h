/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device.h - the pools of all contexts of a device taken together: give idle memory back, and say what they hold.
 *
 * It takes no memory from the driver; segment_driver.h does.
 *
 * Threads: every function may be called from any thread; the caller holds no lock. No function fails.
 */
#ifndef CUPOOL_SHIM_CONTEXT_DEVICE_H
#define CUPOOL_SHIM_CONTEXT_DEVICE_H

#include <stdbool.h>
#include <stdint.h>

#include "pool.h"

struct context;

/* Give back the idle segments of a device's contexts, except one. True if any bytes went back. */
bool device_trim(int device, const struct context *except);

/* Give back the idle segments of the current device's pools. True if any bytes went back, or if memory has arrived
 * since context_arrivals() returned `before`. */
bool context_trim(unsigned int before);

/* As context_trim, of another device than the current one. */
bool context_trim_on(int device, unsigned int before);

/* As context_trim for a device (CONTEXT_ALL: all), at the program's request. Returns the bytes; 0 while a stream
 * captures. */
uint64_t context_release(int device, const char *why);

/* The bytes that the device has in all; SIZE_MAX if it has no pooled context. */
size_t device_capacity(int device);

/* False: the device has no memory of size bytes beside the blocks that its pools have handed out, so that no idle
 * memory given back would be enough. True also if the device has no pooled context. Walks every block. */
bool device_may_fit(int device, size_t size);
/* False: what the driver has free and what the device's pools hold for nobody is together less than size bytes. True
 * also if that is not known. Walks every block, and asks the driver. */
bool device_has(int device, size_t size);

/* True if the machine has a device of this number, or cannot be asked. */
bool device_exists(int device);

/* For another process on the device: give back the idle segments of its contexts, and wait until limit (nanoseconds of
 * the monotonic clock) for them to arrive. Returns the bytes that have arrived meanwhile. */
uint64_t device_yield(int device, uint64_t limit);

/* The bytes of the device's pools that are idle or on their way back to the driver. *ret_used: the bytes of their other
 * segments. */
uint64_t context_idle_bytes(int device, uint64_t *ret_used);

/*
 * The sum of the surveys of all pools of the device; `largest` is the maximum. Walks every block, unless whole is
 * false: then only held and live are set, and live includes deferred blocks.
 */
void context_survey(int device, bool whole, struct pool_survey *ret_sum);

/* Publish the deferred blocks of a device's pools, where no wait is needed. */
void device_publish(int device);
/* Before the driver is asked for its free memory: collect the released segments that have arrived, without a wait. */
void device_collect(int device);

/* For the background thread, which answers importers meanwhile: give back segments that were idle for age ticks (0:
 * none), and collect released segments that have arrived. */
void context_decay_all(unsigned int age);

#endif
