/* SPDX-License-Identifier: Apache-2.0 */
/* library.c - libuct_rows.so and libcublas_rows.so: call rows of shim/hooks/ for a test. cupool tells callers apart by
 * the names of their files. */

#include "rows.h"

struct given given; /* the library's own */

#define CALL(symbol, names, ...)                                                                                       \
    if (strcmp(wanted_, #symbol) == 0) {                                                                               \
        __VA_ARGS__                                                                                                    \
        volatile int result_ = (int)((__typeof__(&(symbol)))hook_)names;                                               \
                                                                                                                       \
        return result_;                                                                                                \
    }
#define RUNTIME_ROW(symbol, parameters, names, expected, words, ...) CALL(symbol, names, __VA_ARGS__)
#define DRIVER_ROW(symbol, parameters, names, expected, words, ...)  CALL(symbol, names, __VA_ARGS__)
#define MISSING_ROW(symbol)

__attribute__((visibility("default"))) int rows_library_call(const struct given *given_, const char *wanted_,
                                                             void *hook_);

int rows_library_call(const struct given *given_, const char *wanted_, void *hook_)
{
    given = *given_;
#include "list.h"
    return -1;
}
