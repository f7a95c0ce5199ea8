/* SPDX-License-Identifier: Apache-2.0 */
/*
 * export.h - words that all exported functions are written with.
 *
 * It decides nothing. Only files of exports/ include it.
 *
 * Threads: any thread. No locks.
 */
#ifndef CUPOOL_SHIM_EXPORTS_EXPORT_H
#define CUPOOL_SHIM_EXPORTS_EXPORT_H

#include "base/process.h"
#include "real/hooks.h"

#define EXPORT __attribute__((visibility("default")))

/* The return address of the exported function, by which callers are told apart; see real/caller.h. */
#define CALLER __builtin_extract_return_addr(__builtin_return_address(0))

/* An address that belongs to no allocation. */
#define NOWHERE 1

/* The value of a call, made with our hooks further down switched off. */
#define BYPASS(call)                                                                                                   \
    __extension__({                                                                                                    \
        process_bypass_begin();                                                                                        \
        const __typeof__(call) result_ = (call);                                                                       \
        process_bypass_end();                                                                                          \
        result_;                                                                                                       \
    })

/* The handle of a stream, where 0 stands for the legacy default stream, or for the per-thread one. */
static inline CUstream or_legacy(CUstream stream)
{
    return stream ? stream : CU_STREAM_LEGACY;
}

static inline CUstream or_per_thread(CUstream stream)
{
    return stream ? stream : CU_STREAM_PER_THREAD;
}

#endif
