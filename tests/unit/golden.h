/* SPDX-License-Identifier: Apache-2.0 */
/*
 * golden.h - runs cases, each in a process of its own, and compares all that they print with a recorded file of whole
 * texts (record.h).
 *
 * Threads: one.
 */
#ifndef CUPOOL_TESTS_GOLDEN_H
#define CUPOOL_TESTS_GOLDEN_H

#include <stdbool.h>
#include <stddef.h>

/* One case. run prints on stdout and stderr, and returns the exit status. environment: "NAME=value NAME=value", where ~
 * is a blank, and ! no such variable; nothing else but PATH=bin is in the environment. */
struct golden {
    const char *name, *environment;
    int (*run)(const void *arg);
    const void *arg;
};

/* Run a case; its text follows the line "== NAME". */
void golden_run(const struct golden *golden);
/* Run each call of the system that the case makes once more so that it fails; of these texts only the lines are kept
 * that differ. */
void golden_sweep(const struct golden *golden);
/* For a function that stands for one of the system's: true if this call is the one that has to fail. what: its name. */
bool golden_call_fails(const char *what);
/* The function whose call failed; NULL: none did. */
extern const char *golden_failed;
/* Called after each case, to print what is left; NULL: none. Descriptors that are left are printed in any case. */
extern void (*golden_after)(void);
/* From now on this text is written as that one. */
void golden_replace(const char *text, const char *by);
/* The tests, from which main is made: in a temporary folder. The name is that of the file. */
extern const char golden_name[];
void golden_cases(void);

#endif
