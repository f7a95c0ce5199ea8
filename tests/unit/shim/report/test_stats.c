/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_stats.c - the signal of CUPOOL_STATS wakes the background thread, which would find it a second later by itself.
 * The thread then writes a table: tests/e2e/test_stats.py has that, under the preload.
 */
#include <signal.h>

#include "fake_driver.h"
#include "isolated.h"
#include "serve/serve.h"

ISOLATED_CASE(test_signal, .environment = "CUPOOL_STATS=signal:USR2")
{
    fake_start();
    serve_begin();
    assert_int_equal(fake.futexes, 0);
    raise(SIGUSR2);
    assert_int_equal(fake.futexes, 1);
}
