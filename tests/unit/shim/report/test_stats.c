/* SPDX-License-Identifier: Apache-2.0 */
/* test_stats.c - the signal of CUPOOL_STATS wakes the background thread, which would find it a second later by itself.
 * The thread then writes a table: tests/e2e/test_stats.py has that, under the preload. And what was not pooled as text,
 * where there is room for all of it or not. */
#include <signal.h>

#include "isolated.h"
#include "report/unpooled.h"
#include "serve/serve.h"

ISOLATED_CASE(test_signal, .environment = "CUPOOL_STATS=signal:USR2")
{
    serve_begin();
    assert_int_equal(fake.futexes, 0);
    raise(SIGUSR2);
    assert_int_equal(fake.futexes, 1);
}

ISOLATED_CASE(test_unpooled_text)
{
    static const char whole[] =
        "6.6 MiB by cuMemCreate (2 calls), cudaMallocAsync (1 call), 0.0 MiB by cudaMallocArray (1 call)";
    char text[128];

    assert_false(unpooled_text(text, sizeof(text)));
    assert_string_equal(text, "");
    unpooled_took(UNPOOLED_CREATE, 6 << 20);
    unpooled_took(UNPOOLED_CREATE, 600 << 10);
    unpooled_took(UNPOOLED_ASYNC, 0);
    unpooled_took(UNPOOLED_ARRAY, 1);
    for (size_t len = 1; len <= sizeof(whole) + 1; len++) {
        memset(text, 'x', sizeof(text));
        assert_true(unpooled_text(text, len));
        assert_int_equal(strlen(text), len <= strlen(whole) ? len - 1 : strlen(whole));
        assert_memory_equal(text, whole, strlen(text));
        assert_int_equal(text[len], 'x'); /* nothing behind its room is touched */
    }
}
