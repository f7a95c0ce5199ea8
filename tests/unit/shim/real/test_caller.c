/* SPDX-License-Identifier: Apache-2.0 */
/* test_caller.c - shim/real/caller.c with shim/exports/dlclose.c: how long a class is remembered. Which names have
 * which class: tests/e2e/test_callers.py. */
#include <dlfcn.h>

#include "cases.h"
#include "real/caller.h"
#include "real/dlsym_next.h"
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

static int (*real_close)(void *); /* NULL: the C library has no such function */

void *dlsym_real(void *handle, const char *name)
{
    assert_ptr_equal(handle, RTLD_NEXT);
    assert_string_equal(name, "dlclose");
    return (void *)(uintptr_t)real_close;
}

static int closes(void *handle)
{
    assert_true(caller_unloads());
    return handle == &path ? 7 : 0;
}

/* The exported dlclose does as the real one. Without one nothing is closed. */
UNIT_CASE(test_dlclose)
{
    assert_int_equal(dlclose(&path), -1);
    assert_false(caller_unloads());
    real_close = closes;
    assert_int_equal(dlclose(&path), 7);
    assert_int_equal(dlclose(&looks), 0);
    assert_false(caller_unloads());
}
