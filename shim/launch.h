/* SPDX-License-Identifier: Apache-2.0 */
/*
 * launch.h - which rank of which job this process is, and file names made from it. Reads the environment and /proc
 * only.
 */
#ifndef CUPOOL_SHIM_LAUNCH_H
#define CUPOOL_SHIM_LAUNCH_H

#include <stddef.h>

struct launch {
    int rank, local_rank; /* -1: unknown */
    const char *from;     /* who says so: "setting", "torchrun", "pmix", "openmpi", "mpich", "slurm", or "none" */
    char host[256];
    char exe[256]; /* name of the executable, without folders */
};

/* Fill in what can be known. When one launcher runs inside another, the innermost counts. */
void launch_detect(struct launch *ret_launch);

/* Expand %h %r %l %p %e %% in pattern; unknown letters stay as they are. 0, or -ENAMETOOLONG. */
int launch_expand(const struct launch *launch, const char *pattern, char *buf, size_t len);

#endif
