/* SPDX-License-Identifier: Apache-2.0 */
/*
 * enter.h - makes a context current on the calling thread for calls of our own, and restores the caller's; with some of
 * these calls. Each is made again if the driver fails once.
 *
 * It does not keep the context alive; the caller has pinned it or is in a call on it.
 *
 * Threads: every function may be called from any thread. No locks. Errors: those of the driver.
 */
#ifndef CUPOOL_SHIM_CONTEXT_ENTER_H
#define CUPOOL_SHIM_CONTEXT_ENTER_H

#include <stdbool.h>

#include "real/hooks.h"

struct context;
struct real_driver;

/* The state that context_leave restores. */
struct visit {
    bool pushed, relaxed;
    CUstreamCaptureMode mode;
};

/* Make context current on this thread and switch the thread to relaxed capture mode. context_leave must follow, also
 * after an error; it restores the caller's context and mode. */
CUresult context_enter(const struct context *context, struct visit *visit);
void context_leave(const struct context *context, struct visit *visit);

/* Is the work before an event over? CUDA_ERROR_NOT_READY: no. */
CUresult context_event_ask(const struct context *context, CUevent event);

/* The device of the context with this handle, which need not be pooled; -1: the driver does not say. */
int context_device_of(const struct real_driver *driver, CUcontext handle);

/* Undo a push: bring the program's own context back. */
void context_pop(const struct real_driver *driver);

/* Switch the thread to relaxed capture mode, in which its calls disturb no capture of another thread. False: the mode
 * is as it was. capture_mode_restore must follow, with this answer and *ret_mode. */
bool capture_mode_relax(const struct real_driver *driver, CUstreamCaptureMode *ret_mode);
void capture_mode_restore(const struct real_driver *driver, bool relaxed, CUstreamCaptureMode mode);

#endif
