/* SPDX-License-Identifier: Apache-2.0 */
/*
 * capture_drain.h - before a capture begins, calls of the library that would disturb it come to their end.
 *
 * It does not keep the captures: capture_gate.h does.
 *
 * Threads: any; the caller holds no lock and no slot. Errors: none. Source: cupool.
 */
#ifndef CUPOOL_SHIM_CONTEXT_CAPTURE_DRAIN_H
#define CUPOOL_SHIM_CONTEXT_CAPTURE_DRAIN_H

#include "real/hooks.h"

/* Before a capture begins on stream: close the gate (capture_close), and wait for calls in flight. Returns the context
 * for capture_begun, which must follow. */
CUcontext capture_begin(CUstream stream);

#endif
