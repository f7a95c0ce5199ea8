/* SPDX-License-Identifier: Apache-2.0 */
/*
 * strict.h - devices of which every free waits on the host from some moment on (CUPOOL_FREE=auto), because the
 * context's queue does not order all work that touches their memory.
 *
 * It does not detect such work; hooks report it, see exports/hazards.h. With another value of CUPOOL_FREE no function
 * has an effect.
 *
 * Threads: every function may be called from any thread. No locks; policy_strict waits on the host, so its caller holds
 * none either.
 */
#ifndef CUPOOL_SHIM_CONTEXT_STRICT_H
#define CUPOOL_SHIM_CONTEXT_STRICT_H

#include <stdbool.h>

#include "real/hooks.h"
#include "real/real.h"

/* Make one device, or all of them (POLICY_ALL), strict from now on; waits once for the work before earlier frees: a
 * second at most for other threads', on all devices together. If that has not ended by then, other threads wait for it
 * as well, once each. why: a string literal. */
#define POLICY_ALL (-1)
void policy_strict(int device, const char *why);
/* Wait for the work before frees that did not wait, and make nothing strict: for this thread's own without limit (see
 * context_wait_frees), and with others a second at most for other threads' on the current device. For calls by which
 * something goes that this work may use, and which natively follow the waits of these frees. */
void policy_frees_wait(bool others);
/* As policy_strict, for the device that has the memory at addr, pooled or not; no effect if it is no device memory. */
void policy_strict_memory(CUdeviceptr addr, const char *why);

/* True if the device is strict, and the work before its earlier frees has ended. */
bool policy_is_quiesced(int device);

/* The driver, with CUPOOL_FREE=auto; otherwise NULL, because reports have no effect. */
const struct real_driver *policy_auto_driver(void);
/* The device of memory that is not pooled; -1: none. */
int strict_device_of(const struct real_driver *driver, CUdeviceptr addr);

/* A context exists that was not made from a green context. A second context on a device makes the device strict. */
void policy_context_seen(CUcontext handle, int device);
/* The context has ended: a later context on its device does not count as a second one. */
void policy_context_gone(CUcontext handle);

#endif
