/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ipc_closes.h - threads of ipc_app.c that open or close one block at the same time: while work of the device does not
 * end, or while the exporter does not answer.
 *
 * Threads: the program's first alone.
 */
#ifndef CUPOOL_TESTS_IPC_CLOSES_H
#define CUPOOL_TESTS_IPC_CLOSES_H

#include <cuda_runtime_api.h>

/* Begin work that does not end, open this handle in a thread, and close p in two threads as soon as the open is likely
 * to be under way. 0, or an error. */
long closes_begin(void *p, const cudaIpcMemHandle_t *handle);
/* Let the work end, and wait for the threads: the sum of their errors. */
long closes_end(void);

#define OPENINGS_MAX 4

/* Open this handle in so many threads, and return as soon as they are likely to wait for the exporter. 0, or an error.
 */
long openings_begin(const cudaIpcMemHandle_t *handle, int count);
/* Wait for them: the sum of their errors, 1 if they have got different addresses; otherwise 0 and the address. */
long openings_end(void **ret_p);

#endif
