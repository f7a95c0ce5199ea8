/* SPDX-License-Identifier: Apache-2.0 */
/*
 * record.h - rows that a test makes of what the code under test does, compared with recorded ones. Rows are lines of
 * text. Recorded they stand in a file of tests/unit, which is written anew where CUPOOL_TEST_RECORD is in the
 * environment. Rows that differ are printed, with the words that they lack (-) and have in addition (+).
 *
 * Whether a row is right, the test does not know. After a change that is meant to do otherwise, and whose other tests
 * pass, record, and read the difference before it is kept.
 *
 * Threads: one.
 */
#ifndef CUPOOL_TESTS_RECORD_H
#define CUPOOL_TESTS_RECORD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The rows from here on are those of tests/unit/NAME.txt. One such file at a time. */
void record_begin(const char *name);
/* Whole lines: a row, or a text. False: recorded there is no such text behind that of the last call. */
__attribute__((format(printf, 1, 2))) bool record_add(const char *format, ...);
/* The recorded line that begins so; up to its end, without it. Empty: there is none. */
void record_find(const char *begin, char *ret_line, size_t size);
/* Some rows are not made: recorded ones may lack. Such rows cannot be recorded. */
void record_partial(void);
/* False: the rows are not those recorded, or cannot be read or written; it has been printed. */
bool record_end(void);

/* By which words two texts differ: those that the second one lacks, "-word", and those that it has in addition,
 * "+word", a blank before each. */
void record_difference(const char *one, const char *other, char *ret, size_t size);

/* For rows: a digest of all that has no place in them. */
#define RECORD_DIGEST UINT64_C(0xcbf29ce484222325) /* of nothing */
uint64_t record_digest(uint64_t digest, const char *text);

/* Run a function in a process of its own, which ends with its value; how that has ended, as waitpid tells. It is killed
 * after so many seconds. output: the process writes there, not where this one does; -1: as this one. */
int record_apart(int (*function)(void *arg), void *arg, int output, unsigned int seconds);
/* Zeros, which such processes share with this one. */
void *record_shared(size_t size);

#endif
