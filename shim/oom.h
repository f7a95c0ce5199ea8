/* SPDX-License-Identifier: Apache-2.0 */
/*
 * oom.h - what is said when the program gets the out-of-memory error: where the device's memory is, and which setting
 * would help. In the trace each time, on stderr the 1st, 1024th, 1048576th ... time on a device.
 *
 * What it is not: it neither makes nor changes an error, and gives nothing back.
 *
 * Threads: from any thread. No locks but the pools' own, while their segments are counted.
 */
#ifndef CUPOOL_SHIM_OOM_H
#define CUPOOL_SHIM_OOM_H

#include <stddef.h>

/* A request of the program, in the context that is current, is about to return the driver's out-of-memory error. */
void oom_report(size_t size);

#endif
