/* SPDX-License-Identifier: Apache-2.0 */
/*
 * clock_and_arrays.h - the clock, and arrays that grow. Private to nccl_reg. It knows nothing of segments or
 * communicators.
 *
 * Ownership: the array belongs to the caller, who frees it.
 *
 * Locking: that of the array. Errors: -ENOMEM, the array is unchanged.
 */
#ifndef CUPOOL_NCCL_REG_CLOCK_AND_ARRAYS_H
#define CUPOOL_NCCL_REG_CLOCK_AND_ARRAYS_H
#include <stddef.h>
#include <stdint.h>

/* The monotonic clock in nanoseconds. */
uint64_t reg_now_ns(void);
/* Sleep for 50 us between two looks at what is waited for. No cancellation point; keeps errno. */
void reg_nap(void);

/* Make room for one more element of an array. -ENOMEM. */
int reg_reserve(void **array, size_t count, size_t *room, size_t size);

#endif
