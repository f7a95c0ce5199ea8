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

/* wrong: values with blanks between, each a number, or one that is added ("+1", "-1"), or "~": the member's value in
 * the next place. A place that has the value already gets no verdict. */
struct falsify_member {
    const char *name;
    size_t offset, size;
    const char *wrong;
};
#define FALSIFY_MEMBER(type, member, wrong)                                                                            \
    {                                                                                                                  \
#type "." #member, offsetof(struct type, member), sizeof(((struct type *)0)->member), wrong                    \
    }
#define FALSIFY_COUNT(array) (sizeof(array) / sizeof((array)[0]))

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

/* The check from here on: its words, or NULL. The books are sound. restored: NULL, or what is to be done when numbers
 * that were wrong are right again. */
void falsify_begin(const char *(*check)(void), void (*restored)(void));
void falsify_each(const struct falsify_places *places, const struct falsify_member *members, size_t count);

/* This many bytes are about to get a wrong value, until the next row. */
void falsify_save(void *at, size_t size);
#define FALSIFY(lvalue, wrong) (falsify_save(&(lvalue), sizeof(lvalue)), (void)((lvalue) = (wrong)))
/* A row with this name for what FALSIFY has done. */
__attribute__((format(printf, 1, 2))) void falsify_row(const char *name, ...);

#endif
