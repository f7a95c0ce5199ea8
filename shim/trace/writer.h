/* SPDX-License-Identifier: Apache-2.0 */
/*
 * writer.h - the thread that turns allocation records into lines of the trace.
 *
 * It makes no records; trace.h does. Without this thread the records are written when they are many.
 *
 * Threads: every function may be called from any thread. No locks but the file's.
 */
#ifndef CUPOOL_SHIM_TRACE_WRITER_H
#define CUPOOL_SHIM_TRACE_WRITER_H

#include <stdbool.h>

/* From now on a thread of our own writes the records, if there are allocation events. */
void trace_write_behind(void);
/* True if that thread runs. */
bool trace_writes_behind(void);
/* Tell that thread to end soon. */
void trace_write_end(void);

#endif
