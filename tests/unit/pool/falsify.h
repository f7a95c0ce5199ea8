/* SPDX-License-Identifier: Apache-2.0 */
/*
 * falsify.h - a check of books is shown books with one wrong number, or a few, and rows (record.h) say what it finds:
 * its words about each, or "sound". After each row the books are what they were.
 *
 * It changes memory, and knows neither the books nor whether a verdict is right. A row of falsify_each lists the
 * verdicts about all places with one wrong value in one member.
 *
 * Threads: one.
 */
#ifndef CUPOOL_TESTS_FALSIFY_H
#define CUPOOL_TESTS_FALSIFY_H

#include <stdarg.h>
#include <stddef.h>

/* Places of one type. */
struct falsify_places {
    size_t count;
    struct {
        char name[16];
        void *at;
    } at[256];
};
__attribute__((format(printf, 3, 4))) void falsify_place(struct falsify_places *places, void *at, const char *name,
                                                         ...);

/* wrong: values with blanks between, each a number, or one that is added ("+1", "-1"), or "~": the member's value in
 * the next place. A place that has the value already gets no verdict. WRONG has the places of a type in of_TYPE. */
struct falsify_member {
    const struct falsify_places *places;
    const char *name;
    size_t offset, size;
    const char *wrong;
};
/* Some are pointers. */
#define BYTES_OF(lvalue) sizeof(lvalue) /* NOLINT(bugprone-sizeof-expression) */
#define WRONG(type, member, wrong)                                                                                     \
    {                                                                                                                  \
        &of_##type, #type "." #member, offsetof(struct type, member), BYTES_OF(((struct type *)0)->member), wrong      \
    }

/* The check from here on: its words, or NULL. The books are sound. restored: what is to be done when numbers that were
 * wrong are right again. */
void falsify_begin(const char *(*check)(void), void (*restored)(void));
#define FALSIFY_EACH(members) falsify_each(members, sizeof(members) / sizeof((members)[0]))
void falsify_each(const struct falsify_member *members, size_t count);

/* This many bytes are about to get a wrong value, until the next row. */
void falsify_save(void *at, size_t size);
#define FALSIFY(lvalue, wrong) (falsify_save(&(lvalue), BYTES_OF(lvalue)), (void)((lvalue) = (wrong)))
/* A row with this name for what FALSIFY has done. */
__attribute__((format(printf, 1, 2))) void falsify_row(const char *name, ...);

#endif
