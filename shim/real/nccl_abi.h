/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nccl_abi.h - NCCL's interface as far as the library uses it: the parameter types of its functions, which have not
 * changed since 2.0.
 *
 * It is not nccl.h, and building needs no nccl.h. Arguments of programs are passed on unchanged; only the values below
 * are interpreted. No state.
 */
#ifndef CUPOOL_SHIM_REAL_NCCL_ABI_H
#define CUPOOL_SHIM_REAL_NCCL_ABI_H

#include <stddef.h>

typedef struct ncclComm *ncclComm_t;
typedef struct ncclConfig ncclConfig_t;
typedef struct ncclSimInfo ncclSimInfo_t;
/* Passed by value, and thus on the stack. */
typedef struct {
    char internal[128];
} ncclUniqueId;

typedef enum {
    ncclSuccess = 0,
    ncclUnhandledCudaError = 1,
    ncclInvalidArgument = 4,
    ncclInvalidUsage = 5,
    ncclInProgress = 7,
} ncclResult_t;

typedef int ncclDataType_t;
typedef int ncclRedOp_t;
typedef int ncclScalarResidence_t;
typedef struct ncclWindow *ncclWindow_t;

/* The bytes of one element; 0: an unknown type. */
static inline size_t nccl_type_size(ncclDataType_t type)
{
    /* int8 uint8 int32 uint32 int64 uint64 half float double bfloat16 float8e4m3 float8e5m2 */
    static const unsigned char sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};

    return (unsigned int)type < sizeof(sizes) ? sizes[type] : 0;
}

/* ncclCommShrink: first abort the parent's operations. */
#define NCCL_SHRINK_ABORT 1
/*
 * From MAPS up to, but not including, KINDS: a collective must not use a registration that send or receive has used
 * first. Before MAPS peers map no registered memory of this kind.
 */
#define NCCL_VERSION_MAPS  22300
#define NCCL_VERSION_KINDS 22902
/* From this version on peers map cudaMalloc's memory only if NCCL_LEGACY_CUDA_REGISTER is set. */
#define NCCL_VERSION_NO_LEGACY 22400

#endif
