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

/* A library of UCX's name, beside the programs. */
#define ROWS_LIBRARY "libuct_rows.so"

/* 4 MiB of the pool on device 0, which are a driver allocation of their own, and a stream there. */
extern CUdeviceptr own;
extern CUstream stream;

bool is_per_thread(const struct row *row);
const struct row *row_like(const struct row *like, const char *driver, const char *runtime);
/* Does expected.txt have the word for the row? */
bool expects(const struct expectation *e, const char *word);

#endif
