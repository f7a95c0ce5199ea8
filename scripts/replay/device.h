/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device.h - one device, its memory, and who hands it out: the pool library or a model of something else.
 *
 * It does to one device as a process would. The pool is configured as shim/context/lifetime.c does; what it
 * refuses goes to the driver, as in shim/serve/serve.c. Not here: several contexts, captures, other processes,
 * time that driver calls or the program's own work take: with CUPOOL_FREE=relaxed what was launched is never over when
 * a request asks. Where the device lags, memory that the pool gives back arrives when the device has come to the last
 * free before that.
 *
 * Threads: one; the pool's locks are taken all the same.
 */
#ifndef CUPOOL_REPLAY_DEVICE_H
#define CUPOOL_REPLAY_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "context/limits.h"

enum allocator {
    ALLOCATOR_CUPOOL,
    ALLOCATOR_PYTORCH,
    ALLOCATOR_DRIVER,
};

#define DECAY_OFF UINT64_MAX
#define SLACK_OFF UINT64_MAX
#define SLACK_MAX 1000u

struct settings {
    enum allocator allocator;
    size_t capacity;
    size_t limit;     /* CUPOOL_LIMIT */
    size_t break_max; /* SIZE_MAX: the library's part of the capacity */
    uint64_t decay;   /* CUPOOL_DECAY, seconds, or DECAY_OFF */
    uint64_t slack;   /* CUPOOL_SLACK, percent, with CUPOOL_FREE=relaxed; SLACK_OFF: with another policy */
    uint64_t lag;     /* the device is so many requests and frees behind the program */
};

/* Where a block is: DIRECT are those that the pool refused and the driver served. */
enum place { PLACE_ALLOCATOR, PLACE_DIRECT, PLACE_NOWHERE };

struct device_result {
    uint64_t hits, misses, bypassed, oom, bound, segments_alloc, segments_free;
    /* Bytes: of blocks, of segments, of everything that was taken from the device. */
    uint64_t live, peak_live, held, peak_held, peak_used;
};

struct device;

/* The most bytes that a device may have. */
size_t device_capacity_max(void);

/* NULL: no host memory. */
struct device *device_new(unsigned int number, const struct settings *settings);
void device_delete(struct device *device);

/* PLACE_NOWHERE: refused. The block is a name for device_free. */
enum place device_alloc(struct device *device, size_t size, uint64_t *ret_block);
void device_free(struct device *device, enum place place, uint64_t block);

/* A tick of the clock that gives idle memory back (shim/report/background_thread.c). */
void device_tick(struct device *device);
/* Its context is gone, with everything in it. */
void device_reset(struct device *device);

struct device_result device_result_get(struct device *device);
/* Is every invariant of the pool kept? If not, says so on stderr. */
bool device_check(struct device *device);

#endif
