/* SPDX-License-Identifier: Apache-2.0 */
/*
 * waits.c - the exported functions of all WAITS and RUNTIME_WAITS rows of hooks/: calls that wait in the driver, beside
 * which nothing is asked (context/driver_free.h).
 *
 * Not here: the frees of memory and of pinned memory, and the closing of another process's memory, where the pool may
 * have to do with them.
 *
 * Locking: none.
 */
#include "context/driver_free.h"
#include "exports/export.h"
#include "real/real.h"

/* The contexts whose work the rows wait for. */
static inline struct context *memory_at(const void *ptr)
{
    return driver_free_begin((uintptr_t)ptr);
}

static inline struct context *current(void)
{
    return driver_free_begin_current();
}

#define EXPORTED(type, next, symbol, parameters, arguments, of)                                                        \
    EXPORT type symbol parameters                                                                                      \
    {                                                                                                                  \
        struct context *const context = of;                                                                            \
        const type result = next arguments; /* NOLINT(bugprone-macro-parentheses): a list */                           \
                                                                                                                       \
        driver_free_end(context);                                                                                      \
        return result;                                                                                                 \
    }
/* With CUPOOL_HOOK=runtime the driver's function behind it passes no hook. */
#define RUNTIME_WAITS(symbol, parameters, arguments, of)                                                               \
    EXPORTED(cudaError_t, real_runtime(symbol, CALLER), symbol, parameters, arguments,                                 \
             process_hooks_driver() ? NULL : (of))
#define WAITS(symbol, parameters, arguments, of)                                                                       \
    EXPORTED(CUresult, real_next(symbol), symbol, parameters, arguments, of)
#include "hooks.def"
