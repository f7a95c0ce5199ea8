/* SPDX-License-Identifier: Apache-2.0 */
/*
 * effects.h - what the files of effects share, beside rows.h.
 *
 * Threads: none but the test's own.
 */
#ifndef ROWS_EFFECTS_H
#define ROWS_EFFECTS_H

#include "rows.h"
#include "simgpu.h"

/* Libraries that make calls for a test, beside the programs, of the names of one that moves data for others (UCX), and
 * of one that has work of its own on the device; see library.c. */
#define LIBRARY_TRANSFER "libuct_rows.so"
#define LIBRARY_MATH     "libcublas_rows.so"

/* 4 MiB of the pool on device 0, which are a driver allocation of their own, and a stream there. */
extern CUdeviceptr own;
extern CUstream stream;

/* Call a row; it succeeds, and the driver does nothing. */
int accepted(const struct row *row);
/* Call a row from a library, with this answer in the place of the driver. */
int library_call(const struct row *row, const char *file, int answer);
bool is_per_thread(const struct row *row);
const struct row *row_like(const struct row *like, const char *driver, const char *runtime);
/* Does expected.txt have the word for the row? */
bool expects(const struct expectation *e, const char *word);

/* The outcome of a free of a pooled block: the device waits, the host waits, neither. */
enum freed { ORDERED, WAITED, KEPT };
/* -1: the call failed. */
int freed(void);
/* Its outcome without an effect: ORDERED, but WAITED with CUPOOL_HOOK=runtime. */
extern int freed_usually;
/* Memory of the pool, by the API that is tested. */
CUdeviceptr memory_take(size_t size);
int memory_give(CUdeviceptr ptr);
/* Copies and nodes of given, made of the rest of it. */
void given_fill(void);

/* --- driver.c --- */
/* The primary contexts of devices 0 and 1, and what is on the latter from far_start() on: memory of the pool, a stream.
 */
extern CUcontext here, there;
extern CUdeviceptr far;
extern CUstream far_stream;
int far_start(void);

/* --- the effects of both APIs, effects.c --- */
int effect_pooled(const struct expectation *e);
int effect_frees(const struct expectation *e);
int effect_pinned(const struct expectation *e);
int effect_frees_pinned(const struct expectation *e);
int effect_frees_later(const struct expectation *e);
int effect_counts_idle(const struct expectation *e);
int effect_waits(const struct expectation *e);
int effect_ipc(const struct expectation *e);
int effect_transfer(const struct expectation *e);
int effect_closes(const struct expectation *e);
int effect_opens(const struct expectation *e);
int effect_ends_context(const struct expectation *e);

/* --- the effects that make frees wait, waits.c --- */
int effect_strict(const struct expectation *e);
int effect_strict_one(const struct expectation *e);
int effect_foreign(const struct expectation *e);
int effect_own(const struct expectation *e);
int effect_host_work(const struct expectation *e);
int effect_node(const struct expectation *e);
int effect_launch(const struct expectation *e);
int effect_syncs(const struct expectation *e);
int effect_frees_first(const struct expectation *e);
int effect_forgets_stream(const struct expectation *e);
int effect_saw(const struct expectation *e);

#endif
