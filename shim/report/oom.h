/* SPDX-License-Identifier: Apache-2.0 */
/*
 * oom.h - the report when the program gets the out-of-memory error: where the device's memory is, and which setting
 * would help. In the trace each time, on stderr the 1st, 1024th, 1048576th ... time on a device.
 *
 * It neither makes nor changes an error, and gives no memory back.
 *
 * Threads: any thread. No locks but the pools' own, while their segments are counted.
 */
#ifndef CUPOOL_SHIM_REPORT_OOM_H
#define CUPOOL_SHIM_REPORT_OOM_H

#include <stddef.h>

/* A request of size bytes in the current context is about to return the driver's out-of-memory error. */
void oom_report(size_t size);

/* A request of size bytes of pinned memory is about to return that error. Reported only once pinned memory is pooled.
 */
void oom_report_host(size_t size);

/* So many requests on the device have got that error: oom_report was called so often. */
unsigned int oom_count(int device);

#endif
