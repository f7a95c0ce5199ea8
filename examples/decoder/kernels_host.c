/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels_host.c - the decoder's kernels, compiled for the host.
 *
 * Here: kernels.cu in a C compiler's hands, for machines without nvcc and for simulated GPUs.
 *
 * Not here: for real GPUs, see target.h.
 *
 * Threads: see kernels.h.
 */
#include "kernels.cu"
