/* SPDX-License-Identifier: Apache-2.0 */
/*
 * capture.h - the capture gate: which streams capture right now.
 *
 * Threads: every function, from any thread. One lock, private to capture.c, never held over a CUDA call.
 */
#ifndef CUPOOL_SHIM_CAPTURE_H
#define CUPOOL_SHIM_CAPTURE_H

#include <stdatomic.h>
#include <stdbool.h>

#include "hooks.h"

/*
 * While any stream captures, nothing is recorded, synchronised or given back: it would destroy the
 * capture. capture_begin, before the real call, closes the gate and waits for calls in flight; capture_begun says
 * whether the real call succeeded. capture_check opens the gate if stream does not capture any more; destroyed: the
 * stream is gone, do not ask; before: capture_total as it was before the call that may have ended it. A default stream
 * is named by its handle, CU_STREAM_LEGACY or CU_STREAM_PER_THREAD.
 */
CUcontext capture_begin(CUstream stream);
void capture_begun(CUcontext own, CUstream stream, bool success);
void capture_check(CUstream stream, bool destroyed, unsigned int before);
/* Captures under way or about to begin. Only capture.c writes it. */
extern atomic_uint capture_count;
/* Captures so far, of whatever stream. */
extern atomic_uint capture_total;
/* True while any stream captures. */
static inline bool capture_active(void)
{
    return atomic_load(&capture_count) != 0;
}
/* The same, after dropping captures whose thread is gone, and now and then those that the driver does not know any
 * more; not for the hit path. */
bool capture_active_now(void);
/* A context took its captures with it; before: capture_total as it was before it went. */
void capture_forget(CUcontext handle, unsigned int before);
/* A context that is not known may have gone, with its captures: those of contexts that are not pooled are not of
 * interest. */
void capture_forget_unpooled(void);
/* True if this stream captures. */
bool capture_active_on(CUstream stream);

#endif
