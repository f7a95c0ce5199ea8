/* SPDX-License-Identifier: Apache-2.0 */
/*
 * capture_drain.h - a capture is about to begin: no call of the library's own may disturb it.
 *
 * It closes the gate (capture_gate.h), but does not open it.
 *
 * Threads: from any thread that holds no lock and no slot. No errors.
 */
#ifndef CUPOOL_SHIM_CONTEXT_CAPTURE_DRAIN_H
#define CUPOOL_SHIM_CONTEXT_CAPTURE_DRAIN_H

#include "real/hooks.h"

/* Before a capture begins on stream: close the gate (capture_close), and wait for calls in flight. Returns what
 * capture_close does. */
CUcontext order_capture_begin(CUstream stream);

#endif
