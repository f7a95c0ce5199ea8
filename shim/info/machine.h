/* SPDX-License-Identifier: Apache-2.0 */
/*
 * machine.h - cupool-info's report on this machine: the driver and its GPUs, cudart and NCCL as the loader finds them,
 * which of the functions that cupool intercepts they have, and limits.
 *
 * It loads these libraries into cupool-info, makes no context and allocates nothing on a GPU. It is no promise: a
 * program may bring a cudart or an NCCL of its own.
 *
 * Threads: one thread only; no locks.
 */
#ifndef CUPOOL_SHIM_INFO_MACHINE_H
#define CUPOOL_SHIM_INFO_MACHINE_H

/* Print the report. */
void machine_print(void);

#endif
