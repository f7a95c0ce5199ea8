/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cases.h - the includes of unit tests, cmocka's and the usual ones of the system, and unit tests that register
 * themselves: no list can forget one.
 *
 * A program's main is in cases_main.c, unless the program has one of its own.
 *
 * Threads: cases_run is called by main alone, before there is another thread.
 */
#ifndef CUPOOL_TESTS_CASES_H
#define CUPOOL_TESTS_CASES_H

/* cmocka 1.1 wants these first. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct unit_case {
    int line; /* cases run in the order of their lines: compilers do not keep that of the section */
    struct CMUnitTest test;
};

/* The head of a test function, which is called with state. NULL: no setup, no teardown. */
#define CASE_WITH(name, setup, teardown)                                                                               \
    static void name(void **state);                                                                                    \
    static const struct unit_case name##_case = {__LINE__, cmocka_unit_test_setup_teardown(name, setup, teardown)};    \
    static const struct unit_case *const name##_place __attribute__((used, section("unit_cases"))) = &name##_case;     \
    static void name(void **state)
#define UNIT_CASE(name) CASE_WITH(name, NULL, NULL)

static inline void join_all(const pthread_t *threads, size_t count)
{
    for (size_t i = 0; i < count; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
}

/* Runs the program's cases; returns how many have failed. */
int cases_run(void);

#endif
