/* SPDX-License-Identifier: Apache-2.0 */
/*
 * isolated.h - runs each unit test of the library in a process of its own, because settings are read once and contexts
 * stay known; and cmocka's includes.
 *
 * Tests call the library's functions directly; programs under the preload are in tests/behaviour and tests/e2e.
 *
 * Threads: isolated_run is called by main alone, before there is another thread.
 */
#ifndef CUPOOL_TESTS_SHIM_ISOLATED_H
#define CUPOOL_TESTS_SHIM_ISOLATED_H

/* cmocka 1.1 wants these first. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

struct isolated {
    const char *name;
    void (*test)(void **state);
    const char *environment; /* "NAME=value NAME=value"; NULL: none */
    const void *row;         /* *state of the test */
};

#define ISOLATED(function) .name = #function, .test = function
#define COUNT(array)       (sizeof(array) / sizeof((array)[0]))

/* Run the tests whose name contains filter (NULL: all). Prints those that fail. 1: there are any; 0: none. */
int isolated_run(const struct isolated *tests, size_t count, const char *filter);

/* Run function in a thread of its own and wait for it. */
void elsewhere(void *(*function)(void *), void *arg);

#endif
