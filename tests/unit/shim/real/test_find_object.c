/* SPDX-License-Identifier: Apache-2.0 */
/* test_find_object.c - shim/real/find_object.c with the function that this glibc has, and compiled once more without it
 * (OLD_GLIBC), as the library finds itself where glibc is older than 2.35. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "real/find_object.h"

extern const char __ehdr_start[];
static struct found_object found;

/* Exported, so that it has a name. */
void a_function_of_the_program(void **state);
void a_function_of_the_program(void **state)
{
    assert_true(find_object((const void *)a_function_of_the_program, &found));
    assert_string_equal(found.map->l_name, "");
    assert_ptr_equal(found.start, __ehdr_start);
#ifdef OLD_GLIBC
    assert_string_equal(found.symbol, "a_function_of_the_program");
#endif
}

static void test_library(void **state)
{
    assert_true(find_object((const void *)stdout, &found));
    assert_non_null(strstr(found.map->l_name, "/libc.so"));
    assert_memory_equal(found.start, "\177ELF", 4);
    assert_true((uintptr_t)found.start < (uintptr_t)stdout);
}

static void test_none(void **state)
{
    struct found_object same = {.start = &found};

    assert_false(find_object(NULL, &same));
    assert_false(find_object(&same, &same)); /* the stack */
    assert_ptr_equal(same.start, &found);
    assert_null(same.map);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_function_of_the_program),
        cmocka_unit_test(test_library),
        cmocka_unit_test(test_none),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
