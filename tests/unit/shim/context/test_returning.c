/* SPDX-License-Identifier: Apache-2.0 */
/* test_returning.c - shim/context/returning.c: addresses that are on their way back to the driver, where the driver now
 * and then cannot number them. */
#include "cases.h"

#include "context/returning.h"
#include "real/real.h"

#define ADDR UINT64_C(0x7f0000200000)

static unsigned long long number; /* of the memory at the address; 0: there is none */
static int failing;               /* so many calls fail */

static CUresult attribute(void *ret, CUpointer_attribute what, CUdeviceptr addr)
{
    if (failing && failing--)
        return CUDA_ERROR_OUT_OF_MEMORY;
    assert_int_equal(what, CU_POINTER_ATTRIBUTE_BUFFER_ID);
    if (!number)
        return CUDA_ERROR_INVALID_VALUE;
    *(unsigned long long *)ret = number;
    return CUDA_SUCCESS;
}

static const struct real_driver driver = {.cuPointerGetAttribute = attribute}, without = {0};

UNIT_CASE(test_known)
{
    number = 7;
    assert_true(returning_add(&driver, ADDR));
    assert_true(returning_is(&driver, ADDR));
    assert_false(returning_is(&driver, ADDR + 1));
    number = 8; /* later memory */
    assert_false(returning_is(&driver, ADDR));
    number = 0;
    assert_false(returning_is(&driver, ADDR));
}

UNIT_CASE(test_fails_once)
{
    number = 9;
    failing = 1;
    assert_true(returning_add(&driver, ADDR));
    assert_true(returning_is(&driver, ADDR));
    failing = 1;
    assert_true(returning_is(&driver, ADDR));
}

UNIT_CASE(test_cannot_be_numbered)
{
    number = 10;
    failing = 2;
    assert_false(returning_add(&driver, ADDR));
    assert_false(returning_is(&driver, ADDR));
    assert_true(returning_add(&without, ADDR)); /* a driver that cannot be asked at all */
}
