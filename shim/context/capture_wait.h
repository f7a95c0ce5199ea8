/* SPDX-License-Identifier: Apache-2.0 */
/*
 * capture_wait.h - a wait for the device that disturbs no capture.
 */
#ifndef CUPOOL_SHIM_CAPTURE_WAIT_H
#define CUPOOL_SHIM_CAPTURE_WAIT_H

#include "context/context_state.h"

/* The least that the driver takes for a byte. */
#define CAPTURE_KEPT_SIZE ((size_t)2 << 20)

/*
 * Wait on the host for the device's work, as a cudaFree does. The context is pinned, and the driver has
 * cuThreadExchangeStreamCaptureMode. From the context's first such call that succeeds one byte of its memory stays in
 * use, until the context ends or a request is refused. Any thread may call it, without a slot. The driver's error;
 * CUDA_ERROR_NOT_SUPPORTED if the thread's capture mode could not be changed.
 */
CUresult capture_wait(struct context *context);

#endif
