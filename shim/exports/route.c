/* SPDX-License-Identifier: Apache-2.0 */
/*
 * route.c - the exported cuGetProcAddress, in both versions: programs and cudarts that ask it for a function of the
 * driver get ours.
 *
 * Locking: none.
 */
#include "exports/export.h"
#include "real/real.h"

EXPORT CUresult cuGetProcAddress(const char *symbol, void **function, int version, cuuint64_t flags)
{
    const CUresult result = real_next(cuGetProcAddress)(symbol, function, version, flags);

    if (!result && function && process_hooks_driver())
        *function = real_route(*function);
    return result;
}

EXPORT CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version, cuuint64_t flags,
                                    CUdriverProcAddressQueryResult *status)
{
    const CUresult result = real_next(cuGetProcAddress_v2)(symbol, function, version, flags, status);

    if (!result && function && process_hooks_driver())
        *function = real_route(*function);
    return result;
}
