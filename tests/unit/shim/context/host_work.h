/* SPDX-License-Identifier: Apache-2.0 */
/*
 * host_work.h - calls that launch work, as the exported functions report them, for unit tests.
 *
 * It launches nothing. Threads: a test's own.
 */
#ifndef CUPOOL_TESTS_SHIM_HOST_WORK_H
#define CUPOOL_TESTS_SHIM_HOST_WORK_H

#include "exports/hazards.h"

static inline void host_launched(CUstream stream)
{
    hazard_host_work_end(hazard_host_work_begin(stream), stream);
}

static inline void copied(CUdeviceptr to, CUdeviceptr from, CUstream stream)
{
    hazard_host_work_end(hazard_copy_begin(to, from, stream), stream);
}

static inline void graph_launched(CUstream stream)
{
    hazard_host_work_end(hazard_graph_launch_begin(stream), stream);
}

#endif
