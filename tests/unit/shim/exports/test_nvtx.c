/* SPDX-License-Identifier: Apache-2.0 */
/* test_nvtx.c - shim/exports/nvtx.c: which of NVTX's functions the library stands in for, and only where NVTX has them.
 * tests/e2e/test_nvtx.py has the effects of these. */
#include "exports/nvtx_abi.h"
#include "isolated.h"

#define FUNCTIONS 20 /* of both modules */
#define NUMBERS   16

int InitializeInjectionNvtx2(nvtx_export_table *get_export_table);

static nvtx_pointer functions[2][NUMBERS], *tables[2][NUMBERS];
static unsigned int asked, size;

static int get_table(int module, nvtx_pointer ***ret_table, unsigned int *ret_size)
{
    asked++;
    assert_true(module == NVTX_MODULE_CORE || module == NVTX_MODULE_CORE2);
    *ret_table = tables[module == NVTX_MODULE_CORE2];
    *ret_size = size;
    return 1;
}

static const void *exported(uint32_t id)
{
    static const struct nvtx_callbacks callbacks = {sizeof(callbacks), get_table};

    assert_int_equal(id, NVTX_TABLE_CALLBACKS);
    return &callbacks;
}

static unsigned int replaced(void)
{
    unsigned int count = 0;

    for (unsigned int i = 0; i < 2 * NUMBERS; i++)
        count += functions[i / NUMBERS][i % NUMBERS] != NULL;
    return count;
}

static void fill(unsigned int numbers)
{
    size = numbers;
    asked = 0;
    for (unsigned int i = 0; i < 2 * NUMBERS; i++) {
        functions[i / NUMBERS][i % NUMBERS] = NULL;
        tables[i / NUMBERS][i % NUMBERS] = &functions[i / NUMBERS][i % NUMBERS];
    }
}

ISOLATED_CASE(test_functions)
{
    fake_start();
    fill(NUMBERS);
    assert_int_equal(InitializeInjectionNvtx2(exported), 1);
    assert_int_equal(asked, FUNCTIONS); /* nothing behind the list */
    assert_int_equal(replaced(), FUNCTIONS);
    for (unsigned int i = 0; i < 2; i++) /* numbers count from 1 */
        assert_null(functions[i][0]);
}

/* An older NVTX has fewer, and no pointer where it lacks one. */
ISOLATED_CASE(test_older)
{
    fake_start();
    fill(NVTX_MARK_W + 1);
    tables[0][NVTX_MARK_A] = NULL;
    assert_int_equal(InitializeInjectionNvtx2(exported), 1);
    assert_int_equal(replaced(), 2 * NVTX_MARK_W - 1);
}

ISOLATED_CASE(test_off, .environment = "CUPOOL_ENABLE=0")
{
    fake_start();
    fill(NUMBERS);
    assert_int_equal(InitializeInjectionNvtx2(exported), 0);
    assert_int_equal(InitializeInjectionNvtx2(NULL), 0);
    assert_int_equal(asked, 0);
}
