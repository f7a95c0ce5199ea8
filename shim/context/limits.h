/* SPDX-License-Identifier: Apache-2.0 */
/* limits.h - numbers that several modules share. It has no functions, and no state. */
#ifndef CUPOOL_SHIM_CONTEXT_LIMITS_H
#define CUPOOL_SHIM_CONTEXT_LIMITS_H

/* The number of contexts that are pooled at the same time. */
#define CONTEXTS_MAX 256
/* The number of devices that are told apart; a device's number modulo this is its index. */
#define DEVICES_MAX 64
/* All devices, where one is asked for. */
#define CONTEXT_ALL (-1)

/* Where segments come from: the kinds of segments of the pools. */
enum memory_kind { MEMORY_CUDA, MEMORY_NCCL };

#endif
