/* SPDX-License-Identifier: Apache-2.0 */
/*
 * capture_calls.c - the exported functions of the runtime and the driver that begin a capture, may end one, or destroy
 * a stream. context/capture_gate.c keeps the captures; this file tells it of them.
 *
 * Locking: none.
 */
#include "context/capture_drain.h"
#include "context/capture_gate.h"
#include "context/free_order.h"
#include "exports/export.h"
#include "exports/hazards.h"
#include "real/real.h"
#include "serve/serve.h"

/* A call of one of these functions. Our hooks further down pass its own calls through. */
struct call {
    bool passive; /* nothing but the real function is called */
    CUstream stream;
    CUcontext own;      /* begin: what capture_begin returned */
    unsigned int total; /* end, destroy: capture_total before the call */
};

static struct call begin_before(CUstream stream)
{
    struct call call = {.passive = process_is_passive(), .stream = stream};

    if (!call.passive) {
        serve_publish();
        call.own = capture_begin(stream);
    }
    process_bypass_begin();
    return call;
}

static void begin_after(const struct call *call, bool success)
{
    process_bypass_end();
    if (!call->passive)
        capture_begun(call->own, call->stream, success);
}

static struct call ending(CUstream stream, bool passive)
{
    const struct call call = {.passive = passive, .stream = stream, .total = atomic_load(&capture_total)};

    process_bypass_begin();
    return call;
}

static struct call end_before(CUstream stream)
{
    return ending(stream, process_is_passive());
}

static void end_after(const struct call *call, bool success)
{
    (void)success; /* a call that failed may have ended the capture nevertheless */
    process_bypass_end();
    if (!call->passive)
        capture_check(call->stream, /* destroyed: */ false, call->total);
}

static struct call destroy_before(CUstream stream)
{
    const bool passive = process_is_passive();

    if (!passive) {
        hazard_stream_gone(stream);
        capture_asks_pause();
    }
    return ending(stream, passive);
}

static void destroy_after(const struct call *call, bool success)
{
    process_bypass_end();
    if (call->passive)
        return;
    capture_check(call->stream, /* destroyed: */ success, call->total);
    capture_asks_resume();
}

#define EXPORTED(type, next, symbol, parameters, arguments, stream, effect)                                            \
    EXPORT type symbol parameters                                                                                      \
    {                                                                                                                  \
        const struct call call = effect##_before(stream);                                                              \
        const type result = next arguments; /* NOLINT(bugprone-macro-parentheses): a list */                           \
                                                                                                                       \
        effect##_after(&call, result == 0);                                                                            \
        return result;                                                                                                 \
    }
#define RUNTIME_CAPTURE(symbol, parameters, arguments, stream, effect)                                                 \
    EXPORTED(cudaError_t, real_runtime(symbol, CALLER), symbol, parameters, arguments, stream, effect)
#define CAPTURE(symbol, parameters, arguments, stream, effect)                                                         \
    EXPORTED(CUresult, real_next(symbol), symbol, parameters, arguments, stream, effect)
#include "hooks.def"
