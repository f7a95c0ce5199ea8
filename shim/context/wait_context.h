/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wait_context.h - waits on the host, by polling, for work of a context: all of it, or the work before frees that were
 * ordered on the device.
 *
 * It orders nothing, and disturbs no capture.
 *
 * Threads: every function may be called from any thread that has pinned the context or is in a call on it; the caller
 * holds no lock. Errors: false, as each function says.
 */
#ifndef CUPOOL_SHIM_CONTEXT_WAIT_CONTEXT_H
#define CUPOOL_SHIM_CONTEXT_WAIT_CONTEXT_H

#include <stdbool.h>
#include <stdint.h>

struct context;

/* Poll until all work launched in the context so far has ended. limit: in nanoseconds of the monotonic clock; polls for
 * ASK_NS at least. False: the work has not ended, a stream captures for a second or until limit, or the driver lacks
 * the calls. */
bool order_wait_until(struct context *context, uint64_t limit);
/* True: all work before the frees that have been ordered so far is over. Asks the driver, in a context that has been
 * entered, by the events of those frees alone: it records none. */
bool order_is_over(const struct context *context);
/* True: no other thread has ordered a free since this thread's last one. */
bool order_is_own(const struct context *context);
/* Wait on the host for the work before this thread's last free, as that free natively would have. True: order_is_own,
 * so all work that our own stream waits for has ended, too. */
bool order_wait_own(struct context *context);

/*
 * Wait on the host for the work before those frees in a device's contexts that did not wait themselves. For this
 * thread's own frees without limit, because natively they would have waited; a second at most where another thread
 * ordered them and has ordered more since. For frees of other threads only if `others`, and a second at most: natively
 * such a thread might still be waiting for work that this thread has yet to launch. A context that another thread's
 * call may be about to end is waited for only if there are such frees in it, a second at most, and once for each such
 * call. False: the device has no context.
 */
bool context_wait_frees(int device, bool others);
/* For other threads' frees until this moment, in nanoseconds of the monotonic clock, where several devices have one
 * limit. A device that comes after it is asked once. *ret_late: some of that work had not ended by then. */
bool context_wait_frees_until(int device, uint64_t others_limit, bool *ret_late);

#endif
