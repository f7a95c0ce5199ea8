/* SPDX-License-Identifier: Apache-2.0 */
/* nccl.h - the headers of the room that other rooms use. It declares nothing itself. */
#ifndef CUPOOL_SHIM_NCCL_H
#define CUPOOL_SHIM_NCCL_H

#include "nccl/comms.h"
#include "nccl/direct.h"
#include "nccl/pool_segments.h"
#include "nccl/registry.h"

#endif
