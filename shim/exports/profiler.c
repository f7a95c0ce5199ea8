/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profiler.c - cuProfilerStart and cuProfilerStop, which cudaProfilerStart and cudaProfilerStop call: marks in the
 * trace, because with them programs name the part of their run that matters.
 *
 * It profiles nothing, and changes no call. Ranges of NVTX pass no function of the driver; nvtx.c has them.
 *
 * Threads: any thread. No locks but the trace's.
 */
#include "exports/export.h"
#include "real/real.h"
#include "trace/trace.h"

/* Before the first pooled request there is no trace, as for cupool_mark. */
static CUresult marked(CUresult result, const char *text)
{
    if (!result && process_serves() && process_has_begun())
        trace_event("mark", "\"text\":\"%s\"", text);
    return result;
}

EXPORT CUresult cuProfilerStart(void)
{
    return marked(real_next(cuProfilerStart)(), "cudaProfilerStart");
}

EXPORT CUresult cuProfilerStop(void)
{
    return marked(real_next(cuProfilerStop)(), "cudaProfilerStop");
}
