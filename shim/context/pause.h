/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pause.h - takes the memory of a device's pools away and brings it back at the same addresses: cupool_pause and
 * cupool_resume of cupool.h, and the commands of cupool-ctl.
 *
 * It works for virtual memory (CUPOOL_BACKEND=vmm) alone. It does not stop the program: work that uses the memory of a
 * paused device meets an illegal address. Memory that the pools have not handed out, or that requests get meanwhile,
 * is not concerned.
 *
 * Threads: every function may be called from any thread, inside no call on a pool; one thread at a time pauses or
 * resumes a device, and the others get -EBUSY. No locks. Errors as each function says; pause_reason has the words.
 */
#ifndef CUPOOL_SHIM_CONTEXT_PAUSE_H
#define CUPOOL_SHIM_CONTEXT_PAUSE_H

#include <stdbool.h>
#include <stdint.h>

#include "context/wait_device.h"

/* No limit for the wait for work that is under way. */
#define PAUSE_NO_LIMIT WAIT_NO_LIMIT

/* Would pause_device refuse now? 0, or its error. Changes nothing. */
int pause_check(int device, bool keep);

/*
 * Give the idle segments of a device back, wait for all work of all contexts that are known, until limit (nanoseconds
 * of the monotonic clock; without one, for all primary contexts, too), keep the contents of live blocks in host memory
 * (keep) or drop them, and give the memory of all segments to the driver. *ret_bytes: the memory given back here, idle
 * segments not included.
 *
 * -EALREADY: the device is paused. -EBUSY: a stream captures; memory is exported, or registered with NCCL; work has not
 * ended until limit; another thread pauses or resumes the device. -EOPNOTSUPP: a pool's memory does not come from
 * virtual memory calls, or CUPOOL_DEBUG=guard looks at it. -ENOMEM: no host memory for the contents. -EIO: the driver.
 * After an error nothing has changed, except that with DISCARD contents may be lost.
 */
int pause_device(int device, bool keep, uint64_t limit, uint64_t *ret_bytes);

/*
 * Bring all memory back, or none. *ret_bytes: the memory brought back. -EALREADY: the device is not paused. -EBUSY: a
 * stream captures, or another thread pauses or resumes the device. -ENOMEM: the device has not so much memory left.
 * -EIO: the driver. After an error it is paused as before.
 */
int resume_device(int device, uint64_t *ret_bytes);

/* True if the device is paused, and has memory that is away. */
bool device_is_paused(int device);

/* Why the last call of this thread has failed, in words; "": it has not. Never freed. */
const char *pause_reason(void);

#endif
