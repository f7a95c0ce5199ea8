/* SPDX-License-Identifier: Apache-2.0 */
/* driver_free.c - see driver_free.h. No locks. */
#include "context/driver_free.h"

#include "base/process.h"
#include "context/context_state.h"
#include "context/enter.h"
#include "context/free_gate.h"
#include "context/own_stream.h"
#include "context/pins.h"
#include "context/registry.h"
#include "real/real.h"

/* The driver, if there is a pooled context. */
static const struct real_driver *driver_get(void)
{
    return atomic_load(&contexts.count) && !process_is_passive() ? real_driver_get() : NULL;
}

/* By the library's own stream other threads give memory back meanwhile, and its creation would be held up. */
static void stream_make(struct context *context)
{
    struct visit visit;

    if (atomic_load(&context->stream) || !context_defers(context) || !context_pin(context))
        return;
    pin_sleep(context);
    if (!context_enter(context, &visit))
        (void)own_stream(context);
    context_leave(context, &visit);
    pin_wake();
    context_unpin(context);
}

static struct context *begin(struct context *context)
{
    if (!context)
        return NULL;
    stream_make(context);
    return free_gate_close(context) ? context : NULL;
}

struct context *driver_free_begin(CUdeviceptr addr)
{
    const struct real_driver *driver = addr ? driver_get() : NULL;
    CUcontext handle = NULL;

    /* Also while a stream captures: the capture may end before the free. */
    if (!driver || !driver->cuPointerGetAttribute ||
        driver->cuPointerGetAttribute(&handle, CU_POINTER_ATTRIBUTE_CONTEXT, addr))
        return NULL;
    return begin(context_find(handle));
}

struct context *driver_free_begin_current(void)
{
    const struct real_driver *driver = driver_get();
    CUcontext handle = NULL;

    return driver && !driver->cuCtxGetCurrent(&handle) ? begin(context_find(handle)) : NULL;
}

/* The context may have ended meanwhile, and its entry may be another one's: its questions were not asked for a while.
 */
void driver_free_end(struct context *context)
{
    if (context)
        free_gate_open(context);
}
