/* SPDX-License-Identifier: Apache-2.0 */
/* test_stats.c - the signal of CUPOOL_STATS wakes the background thread, which would find it a second later by itself.
 * The thread then writes a table: tests/e2e/test_stats.py has that, under the preload. And what was not pooled as text,
 * where there is room for all of it or not. And the statistics page where a write is interrupted. */
#include <fcntl.h>
#include <signal.h>

#include "clock.h"
#include "isolated.h"
#include "report/stats.h"
#include "report/stats_file.h"
#include "report/stats_page_layout.h"
#include "report/unpooled.h"
#include "serve/serve.h"

ISOLATED_CASE(test_signal, .environment = "CUPOOL_STATS=signal:USR2")
{
    serve_begin();
    assert_int_equal(fake.futexes, 0);
    raise(SIGUSR2);
    assert_int_equal(fake.futexes, 1);
}

/* A table that comes late makes the next ones no later; those that were missed are left out. */
ISOLATED_CASE(test_timer, .environment = "CUPOOL_STATS=timer:1s")
{
    uint64_t first;

    serve_begin();
    first = stats_due(SECOND_NS);
    stats_tick(first + SECOND_NS / 2);
    assert_int_equal(stats_due(0), first + SECOND_NS);
    stats_tick(first + 3 * SECOND_NS);
    assert_int_equal(stats_due(0), first + 4 * SECOND_NS);
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

/* Signals that interrupt the write of a half: all of it is written. */
ISOLATED_CASE(test_page_interrupted)
{
    char folder[] = "/tmp/cupool-test-XXXXXX", path[64];
    struct stats_page_half half;
    int fd;

    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/p", folder);
    setenv("CUPOOL_STATS_FILE", path, 1);
    serve_begin();
    stats_page_open();
    fake.writes_interrupted = 3;
    stats_page_tick(now_ns());
    assert_int_equal(fake.writes_interrupted, 0);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &half, sizeof(half), STATS_PAGE_HEADER_SIZE + STATS_PAGE_HALF_SIZE), sizeof(half));
    close(fd);
    assert_int_equal(half.seq, 3);
    assert_int_equal(half.crc, stats_page_crc(&half));
    assert_int_equal(unlink(path) | rmdir(folder), 0);
}
