/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_ipc_table.c - the books of exported blocks when they are full. shim/context/ipc_table.c alone; what importers do
 * with the books is tested end to end.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "context/ipc_table.h"

#define SEGMENT UINT64_C(0x7f0000000000)
#define BLOCK   UINT64_C(512)

static int add(uint64_t block, size_t described)
{
    const struct ipc_segment segment = {.addr = SEGMENT, .size = described, .how = IPC_NATIVE, .fd = -1};
    struct ipc_name name;

    return ipc_table_add(NULL, SEGMENT + block * BLOCK, BLOCK, &segment, &name);
}

/* -EAGAIN would have the caller describe the segment and try again, for ever. */
static void test_the_books_are_full(void **state)
{
    assert_int_equal(add(0, 0), -EAGAIN); /* a segment that is not in the books, and is not described */
    for (uint64_t i = 0; i < IPC_BLOCKS_MAX; i++)
        assert_int_equal(add(i, i ? 0 : IPC_BLOCKS_MAX * BLOCK), 0);
    assert_int_equal(add(IPC_BLOCKS_MAX, 0), -ENOMEM);
    assert_int_equal(add(IPC_BLOCKS_MAX, IPC_BLOCKS_MAX * BLOCK), -ENOMEM);
    assert_int_equal(add(7, 0), 0); /* it is there */
    assert_int_equal(ipc_table_free(SEGMENT), IPC_FREE_NOW);
    assert_int_equal(add(IPC_BLOCKS_MAX, 0), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_the_books_are_full)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
