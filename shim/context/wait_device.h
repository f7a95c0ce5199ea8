/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wait_device.h - waits on the host for the work of a device, or for a stream of another context.
 *
 * Threads: every function may be called from any thread; the caller holds no lock. Errors: false or the driver's, as
 * each function says.
 */
#ifndef CUPOOL_SHIM_CONTEXT_WAIT_DEVICE_H
#define CUPOOL_SHIM_CONTEXT_WAIT_DEVICE_H

#include <stdbool.h>
#include <stdint.h>

#include "real/hooks.h"

struct context;

/*
 * Wait on the host for all work of a device's contexts, or of the current context if none of them is pooled. False: a
 * context has failed, or a stream captures and the driver cannot wait beside a capture.
 */
bool context_wait_device(int device);
/* Wait on the host for the work of the context with this handle, or of the current one if there is no such context. */
CUresult context_wait_handle(CUcontext handle);
/* As context_wait_device, for ms milliseconds at most, because that work may itself wait for this thread. False also if
 * the work has not ended, if a stream captures for more than a second of that time, or if the driver cannot be asked
 * (before 12.5). */
bool context_wait_device_for(int device, unsigned int ms);

/* No limit for context_wait_all. */
#define WAIT_NO_LIMIT UINT64_MAX
/*
 * Wait on the host for the work of all contexts that are known, of every device, until limit (nanoseconds of the
 * monotonic clock). *ret_late: the limit has passed. CUDA_ERROR_NOT_READY: a stream captures, beside which the driver
 * cannot wait, or not with a limit; another error: the driver cannot wait. The caller has pinned no context.
 */
CUresult context_wait_all(uint64_t limit, bool *ret_late);

/* Wait on the host for the work of the devices' primary contexts that context_wait_all does not know, because nothing
 * was ever pooled there. CUDA_ERROR_NOT_READY: a stream captures; another error: the driver's. */
CUresult context_wait_primaries(void);

/* If the stream belongs to another context, wait for it on the host, for a second at most. CUDA_ERROR_INVALID_HANDLE:
 * it is no stream; another error: its work has not ended. CUDA_SUCCESS: memory can be freed on it; *ret_freed: the
 * number of the free for pool_free_async, 0: no event is recorded behind it. */
CUresult context_wait_foreign(struct context *context, CUstream stream, uint64_t *ret_freed);

#endif
