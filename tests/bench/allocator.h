/* SPDX-License-Identifier: Apache-2.0 */
/* allocator.h - what a library has to offer that tests/bench/bench.c can measure in cudaMalloc's place. All return 0 or
 * an error. Every thread opens before it takes; what it took it gives back itself. */
#ifndef CUPOOL_TESTS_BENCH_ALLOCATOR_H
#define CUPOOL_TESTS_BENCH_ALLOCATOR_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* stream: a cudaStream_t of the calling thread's own, on which it will use what it takes. */
int bench_open(int device, void *stream);
int bench_take(size_t size, void **ret_block);
int bench_give(size_t size, void *block);

#ifdef __cplusplus
}
#endif

#endif
