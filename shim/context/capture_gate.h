/* SPDX-License-Identifier: Apache-2.0 */
/*
 * capture_gate.h - the capture gate: which streams capture right now. It does not wait for calls in flight;
 * free_order.c does, and order_free there says what a free does during a capture.
 *
 * Threads: every function may be called from any thread. One lock, private to capture_gate.c, is never held over a CUDA
 * call.
 */
#ifndef CUPOOL_SHIM_CONTEXT_CAPTURE_GATE_H
#define CUPOOL_SHIM_CONTEXT_CAPTURE_GATE_H

#include <stdatomic.h>
#include <stdbool.h>

#include "real/hooks.h"

/*
 * While any stream captures, cupool records, synchronises and gives back nothing, because that would invalidate the
 * capture. capture_close, before the real call, closes the gate; capture_begin does that and waits for calls in
 * flight. Both return the context for capture_begun, which says whether the real call succeeded. capture_check opens
 * the gate if stream does not capture any more. destroyed: the stream is gone, so the driver must not be asked. before:
 * capture_total before the call that may have ended the capture. A default stream is named by its handle,
 * CU_STREAM_LEGACY or CU_STREAM_PER_THREAD.
 */
CUcontext capture_close(CUstream stream);
void capture_begun(CUcontext own, CUstream stream, bool success);
void capture_check(CUstream stream, bool destroyed, unsigned int before);
/* The number of captures under way or about to begin. Only capture_gate.c writes it. */
extern atomic_uint capture_count;
/* The number of captures begun so far, on any stream. */
extern atomic_uint capture_total;
/* True while any stream captures. */
static inline bool capture_active(void)
{
    return atomic_load(&capture_count) != 0;
}
/* As capture_active, after dropping captures whose thread has ended and, at most every 10 ms, captures that the driver
 * does not know any more. Too slow for the hit path. */
bool capture_active_now(void);
/*
 * Around a call that may destroy streams: a stream's, or the end of a context. Meanwhile capture_active_now does not
 * ask the driver, which crashes when it is asked about a stream that another thread destroys. The pause waits for the
 * queries in flight, and for nothing on the device.
 */
void capture_asks_pause(void);
void capture_asks_resume(void);
/* A context has ended, and its captures with it; NULL: none. before: capture_total before it ended. */
void capture_forget(CUcontext handle, unsigned int before);
/* True if this stream captures, or if its state cannot be read while another one captures. */
bool capture_active_on(CUstream stream);

#endif
