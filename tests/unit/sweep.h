/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sweep.h - tests in which each call that the code under test makes of others fails once: a story, a function without
 * threads and without chance, is told in a process of its own with no failing call, then with the first one failing,
 * with the second one, and so on. A row (record.h) has the story's words about each, and a digest of all that the code
 * asked of others. The first row of a story is that of no failing call.
 *
 * With CUPOOL_TEST_TELL=STORY:N all that goes into the digest of row N is printed, to be compared with another run's.
 *
 * Functions in the place of those that the code calls ask sweep_error, and note their arguments. Calls outside SWEPT,
 * those of the test itself, neither count nor fail.
 *
 * Threads: one.
 */
#ifndef CUPOOL_TESTS_SWEEP_H
#define CUPOOL_TESTS_SWEEP_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

enum sweep_kind {
    SWEEP_CALLS,
    /* No call fails; instead the descriptors that are opened get the number 0 in turn: the program has closed its
     * standard input, and there are no numbers aside. */
    SWEEP_DESCRIPTORS,
    SWEEP_ONCE, /* no call fails */
};

struct sweep_story {
    const char *name;
    void (*tell)(void);
    enum sweep_kind kind;
};

/* The test, with the name of its file for record_begin. */
void sweep_test(const char *name, const struct sweep_story *stories, size_t count);

/* The code under test runs; calls count. */
extern bool sweep_on;
/* The code of the call, with calls that count, errno set, and a look at errno and the thread's cancellation after it;
 * the value of the call. */
void sweep_enter(void);
void sweep_leave(void);
#define SWEPT(call)                                                                                                    \
    __extension__({                                                                                                    \
        __typeof__(call) swept_value;                                                                                  \
        sweep_enter();                                                                                                 \
        swept_value = (call);                                                                                          \
        sweep_leave();                                                                                                 \
        swept_value;                                                                                                   \
    })
#define SWEPT_VOID(call) ((void)SWEPT(((call), 0)))

/* A call of this name is made, which can fail in each of these ways, numbers but 0 that end with a 0. The one in which
 * it fails now; 0: it does not. */
int sweep_error(const char *name, const int *ways);
#define SWEEP_ERROR(name, ...) sweep_error(name, (const int[]){__VA_ARGS__, 0})

/* In a story by descriptors: this descriptor, one that is opened, is to be number 0. */
bool sweep_is_zero(void);
/* Of the story that is told. */
extern enum sweep_kind sweep_kind;

/* Into the digest. */
__attribute__((format(printf, 1, 2))) void sweep_note(const char *format, ...);
/* Into the row. */
__attribute__((format(printf, 1, 2))) void sweep_say(const char *format, ...);
/* For notes: the words that a function was told, as log_write and trace_event are, at most 255 letters; until the next
 * call. */
__attribute__((format(printf, 1, 0))) const char *sweep_words(const char *format, va_list args);
/* A digest of bytes, for notes. */
unsigned int sweep_bytes(const void *data, size_t len);

#endif
