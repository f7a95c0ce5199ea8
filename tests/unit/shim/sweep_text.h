/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sweep_text.h - for sweep_scenes.c: outcomes as texts, how two of them differ, and the file of a scene's outcomes.
 *
 * It knows nothing of drivers. Threads: one.
 */
#ifndef CUPOOL_TESTS_SHIM_SWEEP_TEXT_H
#define CUPOOL_TESTS_SHIM_SWEEP_TEXT_H

#include <stdbool.h>
#include <stddef.h>

struct sweep_text {
    size_t len;
    char text[1 << 18];
};

/* As far as there is room. */
__attribute__((format(printf, 2, 3))) void sweep_text_add(struct sweep_text *text, const char *format, ...);

/* The file FOLDER/SCENE.txt: compared with, or written (whole, if CUPOOL_TEST_RECORD is set). all: each of its rows
 * will be looked at. */
struct sweep_record;
struct sweep_record *sweep_record_begin(const char *folder, const char *scene, bool all);
/* The outcome where nothing fails. */
void sweep_base(struct sweep_record *record, const struct sweep_text *base);
/* A row: a call that fails, with an outcome for each way in which it does. The first one's name is the row's, and what
 * differs in it from the outcome where nothing fails is recorded in short, for readers. */
void sweep_row_begin(struct sweep_record *record, unsigned int at);
void sweep_outcome(struct sweep_record *record, const struct sweep_text *base, const struct sweep_text *text,
                   const char *way, const char *name);
void sweep_row_end(struct sweep_record *record);
/* False: something is otherwise than recorded; it has been printed. */
bool sweep_record_end(struct sweep_record *record);

#endif
