/* SPDX-License-Identifier: Apache-2.0 */
/* cases.c - see cases.h. */
#include "cases.h"

#include <assert.h>

#define CASES_MAX 64

/* The section's ends, which the linker defines. */
extern const struct unit_case *const __start_unit_cases[];
extern const struct unit_case *const __stop_unit_cases[];

static int by_line(const void *a, const void *b)
{
    return (*(const struct unit_case *const *)a)->line - (*(const struct unit_case *const *)b)->line;
}

int cases_run(void)
{
    const struct unit_case *cases[CASES_MAX];
    struct CMUnitTest tests[CASES_MAX];
    const size_t n = ((uintptr_t)__stop_unit_cases - (uintptr_t)__start_unit_cases) / sizeof(void *);

    assert(n > 0 && n <= CASES_MAX);
    memcpy(cases, __start_unit_cases, n * sizeof(void *));
    qsort(cases, n, sizeof(void *), by_line);
    for (size_t i = 0; i < n; i++)
        tests[i] = cases[i]->test;
    return _cmocka_run_group_tests(program_invocation_short_name, tests, n, NULL, NULL);
}
