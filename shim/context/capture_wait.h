/* SPDX-License-Identifier: Apache-2.0 */
/*
 * capture_wait.h - a wait for the device that disturbs no capture.
 */
#ifndef CUPOOL_SHIM_CAPTURE_WAIT_H
#define CUPOOL_SHIM_CAPTURE_WAIT_H

#include "context/context_state.h"

/*
 * Wait on the host for the device's work, as a cudaFree does. The context is pinned, and the driver has
 * cuThreadExchangeStreamCaptureMode. From the context's first such call that succeeds one byte of its memory, a piece
 * of 2 MiB of the driver's, stays in use until the context ends. Any thread may call it, without a slot. The driver's
 * error; CUDA_ERROR_NOT_SUPPORTED if the thread's capture mode could not be changed.
 */
CUresult capture_wait(struct context *context);

#endif
