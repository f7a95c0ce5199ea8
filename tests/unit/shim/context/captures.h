/* SPDX-License-Identifier: Apache-2.0 */
/*
 * captures.h - what the unit tests of captures start from: a pooled context with two streams, a stream of another
 * context, and captures that begin and end on them.
 *
 * Only tests/unit/shim/context includes it. Threads: a test's own.
 */
#ifndef CUPOOL_TESTS_SHIM_CAPTURES_H
#define CUPOOL_TESTS_SHIM_CAPTURES_H

#include "isolated.h"
#include "room.h"

static CUstream s0, s1, other; /* two of the pooled context, one of another */

static inline struct context *ready(void)
{
    struct context *context;

    fake_start();
    fake.devices = 2;
    context = context_current(&fake.driver);
    assert_non_null(context);
    s0 = fake_stream(0, 0);
    s1 = fake_stream(1, 0);
    other = fake_stream(2, 1);
    fake_log();
    return context;
}

static inline struct fake_stream *of(CUstream stream)
{
    return (struct fake_stream *)stream;
}

/* A capture that the driver knows. */
static inline void begin(CUstream stream)
{
    const CUcontext own = capture_begin(stream);

    if ((uintptr_t)stream > 16)
        of(stream)->captures = CU_STREAM_CAPTURE_STATUS_ACTIVE;
    capture_begun(own, stream, true);
}

static inline void end(CUstream stream)
{
    of(stream)->captures = CU_STREAM_CAPTURE_STATUS_NONE;
    capture_check(stream, false, atomic_load(&capture_total));
}

static inline unsigned int closed(void)
{
    return atomic_load(&capture_count);
}

#endif
