/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nccl_abi.h - what we know of NCCL's interface: the types of its functions' parameters, as they have been since 2.0.
 *
 * What it is not: nccl.h, which is not needed to build. What programs hand over is passed on as it is; only the values
 * below are looked at.
 */
#ifndef CUPOOL_SHIM_NCCL_ABI_H
#define CUPOOL_SHIM_NCCL_ABI_H

#include <stddef.h>

typedef struct ncclComm *ncclComm_t;
typedef struct ncclConfig ncclConfig_t;
typedef struct ncclSimInfo ncclSimInfo_t;
/* By value, and thus on the stack. */
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

/* Bytes of one element; 0: a type that we have not heard of. */
static inline size_t nccl_type_size(ncclDataType_t type)
{
    /* int8 uint8 int32 uint32 int64 uint64 half float double bfloat16 float8e4m3 float8e5m2 */
    static const unsigned char sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};

    return (unsigned int)type < sizeof(sizes) ? sizes[type] : 0;
}

/* ncclCommShrink: the parent's operations are ended first. */
#define NCCL_SHRINK_ABORT 1
/*
 * From the one to before the other a registration must not be used by send and receive first and by a collective then;
 * before the first nothing of the kind is mapped by peers.
 */
#define NCCL_VERSION_MAPS  22300
#define NCCL_VERSION_KINDS 22902
/* From here on peers map cudaMalloc's memory only if NCCL_LEGACY_CUDA_REGISTER asks for it. */
#define NCCL_VERSION_NO_LEGACY 22400

#endif
