/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pause_copies.h - a context's suspended segments, and the contents of their live blocks in pinned host memory, for
 * pause.c.
 *
 * It does not decide when memory goes or comes back. The host memory comes from the pinned pool if there is one
 * (CUPOOL_HOST_POOL=1), where it stays for the next time, and from the driver otherwise.
 *
 * Ownership: the copies belong to the context until pause_copies_drop, or its end.
 *
 * Threads: a function may be called by the thread that pauses or resumes the context's device, which has pinned the
 * context; pause_copies_ended by the thread that ends it. No locks. Errors: 0, -ENOMEM: no host memory, -EIO: the
 * driver.
 */
#ifndef CUPOOL_SHIM_CONTEXT_PAUSE_COPIES_H
#define CUPOOL_SHIM_CONTEXT_PAUSE_COPIES_H

#include <stddef.h>
#include <stdint.h>

struct context;

/* Find the suspended segments, and enter their addresses in context->paused. -ENOMEM. */
int pause_segments_find(struct context *context);
/* Copy all live blocks of the suspended segments, whose work is over, to the host; *ret_bytes. pause_copies_drop
 * must follow, after an error, too. */
int pause_copies_save(struct context *context, uint64_t *ret_bytes);
/* Copy them back to the segments of the last pause_segments_find. The copies stay. */
int pause_copies_restore(struct context *context, uint64_t *ret_bytes);
/* Give the host memory back, and forget the segments. */
void pause_copies_drop(struct context *context);

/* The context is gone, and its pinned memory with it. */
void pause_copies_ended(struct context *context);

#endif
