/* SPDX-License-Identifier: Apache-2.0 */
/*
 * get_proc_address.c - the exported cuGetProcAddress, in both versions: a program or a cudart that asks it for a
 * function of the driver that is hooked gets our function. Pointers are compared, and not names, so that versions and
 * forms for per-thread default streams stay right.
 *
 * Locking: none.
 */
#include "exports/export.h"
#include "real/real.h"

/* Our functions. */
static void *const hooks[REAL_COUNT] = {
#define RUNTIME(symbol, parameters) (void *)(symbol),
#define DRIVER(symbol, parameters)  (void *)(symbol),
#include "hooks.def"
};

static void *route(void *function)
{
    const enum real_symbol symbol = real_symbol_of(function);

    return symbol == REAL_COUNT ? function : hooks[symbol];
}

EXPORT CUresult cuGetProcAddress(const char *symbol, void **function, int version, cuuint64_t flags)
{
    const CUresult result = real_next(cuGetProcAddress)(symbol, function, version, flags);

    if (!result && function && process_hooks_driver())
        *function = route(*function);
    return result;
}

EXPORT CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version, cuuint64_t flags,
                                    CUdriverProcAddressQueryResult *status)
{
    const CUresult result = real_next(cuGetProcAddress_v2)(symbol, function, version, flags, status);

    if (!result && function && process_hooks_driver())
        *function = route(*function);
    return result;
}
