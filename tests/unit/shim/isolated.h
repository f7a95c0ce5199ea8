/* SPDX-License-Identifier: Apache-2.0 */
/*
 * isolated.h - runs each unit test of the library in a process of its own, because settings are read once and contexts
 * stay known; and the includes of these tests.
 *
 * Tests call the library's functions directly; programs under the preload are in tests/behaviour and tests/e2e.
 *
 * Threads: isolated_run is called by main alone, before there is another thread.
 */
#ifndef CUPOOL_TESTS_SHIM_ISOLATED_H
#define CUPOOL_TESTS_SHIM_ISOLATED_H

#include "cases.h"

#include "fake_driver.h"

struct isolated {
    const char *name;
    void (*test)(void **state);
    const char *environment; /* "NAME=value NAME=value"; NULL: none */
    const void *row;         /* *state of the test */
    /* count > 0: a test for each row of a table, to which *state points; without one, for each number from 0. */
    const void *rows;
    size_t count, size;
    bool own; /* each row has an environment of its own, there: */
    size_t environment_at;
    int line; /* tests run in this order */
};

/* The head of a test function, which finds the fake driver as fake_start makes it; the rest are members of struct
 * isolated. A test registers itself: no list can forget it, and isolated_main.c runs those of the program, unless the
 * program has a main of its own. */
#define ISOLATED_CASE(function, ...)                                                                                   \
    static void function(void **state);                                                                                \
    ISOLATED_ADD(function, function##_case, __VA_ARGS__)                                                               \
    static void function(void **state)
/* A case whose function is called with the context that a function of the file makes: make, here ready. */
#define CONTEXT_CASE(function, make, ...)                                                                              \
    static void function##_with(struct context *context);                                                              \
    ISOLATED_CASE(function, __VA_ARGS__)                                                                               \
    {                                                                                                                  \
        function##_with(make());                                                                                       \
    }                                                                                                                  \
    static void function##_with(struct context *context)
#define READY_CASE(function, ...) CONTEXT_CASE(function, ready, __VA_ARGS__)
/* For each row of a table; OWN: whose member environment is the test's. */
#define ISOLATED_TABLE(table)               .rows = (table), .count = COUNT(table), .size = sizeof((table)[0])
#define ISOLATED_ROWS(function, table, ...) ISOLATED_CASE(function, ISOLATED_TABLE(table), __VA_ARGS__)
#define ISOLATED_OWN(function, table)                                                                                  \
    ISOLATED_ROWS(function, table, .own = true, .environment_at = offsetof(__typeof__((table)[0]), environment))
/* The test once more, with other members. name: of this. */
#define ISOLATED_AGAIN(function, name, ...) ISOLATED_ADD(function, function##_##name, __VA_ARGS__)

#define ISOLATED_ADD(function, id, ...)                                                                                \
    static const struct isolated id = {.name = #function, .test = function, .line = __LINE__, __VA_ARGS__};            \
    static const struct isolated *const id##_place __attribute__((used, section("isolated_cases"))) = &id;

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* Run the tests whose name contains filter (NULL: all). Prints those that fail. 1: there are any; 0: none. */
int isolated_run(const struct isolated *tests, size_t count, const char *filter);
/* All that have registered themselves. */
int isolated_run_all(const char *filter);

/* The environment is these words, "NAME=value NAME=value", and nothing else. NULL: none. */
void isolated_environment_set(const char *words);

/* Run function in a thread of its own and wait for it. */
void elsewhere(void *(*function)(void *), void *arg);

#endif
