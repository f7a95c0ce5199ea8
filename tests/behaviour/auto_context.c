/* SPDX-License-Identifier: Apache-2.0 */
/* auto_context.c - what other contexts of the device may count on after cudaFree: the races of auto.h with a second
 * context and a green one. */
#include "auto.h"

static struct {
    CUcontext own, other;
    CUdeviceptr buffer;
    CUstream stream;
} second;

static int second_enter(size_t n)
{
    if (second.other) {
        OK(cuCtxPushCurrent(second.other));
        return 0;
    }
    OK(cuCtxGetCurrent(&second.own));
    TRY(bt_context(&second.other));
    OK(cuMemAlloc(&second.buffer, n));
    OK(cuStreamCreate(&second.stream, CU_STREAM_NON_BLOCKING));
    return 0;
}

static int second_leave(void)
{
    CUcontext ignored;

    OK(cuStreamSynchronize(second.stream));
    OK(cuCtxPopCurrent(&ignored));
    return 0;
}

static int second_put(char *u, size_t n, int byte)
{
    TRY(second_enter(n));
    OK(cuMemsetD8Async(second.buffer, (unsigned char)byte, n, second.stream));
    OK(cuMemcpyPeerAsync(BT_ADDRESS(u), second.own, second.buffer, second.other, n, second.stream));
    return second_leave();
}

static int second_get(const char *w, size_t n, int byte)
{
    static unsigned char copy[4 * BT_MIB];
    size_t bad = 0;

    CHECK(n <= sizeof(copy));
    TRY(second_enter(n));
    OK(cuMemcpyPeerAsync(second.buffer, second.other, BT_ADDRESS(w), second.own, n, second.stream));
    OK(cuStreamSynchronize(second.stream));
    OK(cuMemcpyDtoH(copy, second.buffer, n));
    TRY(second_leave());
    for (size_t i = 0; i < n; i++)
        bad += copy[i] != (unsigned char)byte;
    return bad ? WRONG("%zu bytes were fetched before they were written", bad) : 0;
}

/* A green context's stream fills the primary one's memory. The primary one's event holds that back, too. */
static int green_put(char *u, size_t n, int byte)
{
    static CUcontext context;
    static CUstream stream;
    CUcontext ignored;

    if (!stream)
        TRY(auto_green(&context, &stream));
    OK(cuCtxPushCurrent(context));
    OK(cuMemsetD8Async(BT_ADDRESS(u), (unsigned char)byte, n, stream));
    OK(cuStreamSynchronize(stream));
    OK(cuCtxPopCurrent(&ignored));
    return 0;
}

RACE(context_put, second_put)
STALE(context_get, second_get)
AUTO_ADD(green, .fn = auto_race_row, .write = green_put)
