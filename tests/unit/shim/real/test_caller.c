/* SPDX-License-Identifier: Apache-2.0 */
/* test_caller.c - shim/real/caller.c alone: how long a class is remembered. Which names have which class:
 * tests/e2e/test_callers.py. */
#include "cases.h"
#include "real/caller.h"
#include "real/object.h"

static const char *path; /* of the object at every address */
static unsigned int looks;

bool object_of(const void *address, struct object *ret_object)
{
    *ret_object = (struct object){.path = path};
    looks++;
    return true;
}

/* While a library goes, another one may come to its place. Two threads unload one each. */
UNIT_CASE(test_unloading)
{
    const void *at = &path;

    path = "/lib/libnccl.so.2";
    assert_int_equal(caller_of(at), CALLER_INSIDE);
    assert_int_equal(caller_of(at), CALLER_INSIDE);
    assert_int_equal(looks, 1);
    caller_unload_begin();
    caller_unload_begin();
    for (int left = 2; left >= 0; left--) {
        assert_int_equal(caller_of(at), CALLER_INSIDE);
        path = "/lib/libapp.so";
        assert_int_equal(caller_of(at), left ? CALLER_PROGRAM : CALLER_INSIDE);
        path = "/lib/libnccl.so.2";
        if (left)
            caller_unload_end();
    }
}
