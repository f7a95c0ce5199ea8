/* SPDX-License-Identifier: Apache-2.0 */
/*
 * launch.h - the rank and job of this process, and file names made from them. It reads the environment and /proc, and
 * talks to no launcher.
 *
 * Threads: no state; conf_get is called.
 */
#ifndef CUPOOL_SHIM_BASE_LAUNCH_H
#define CUPOOL_SHIM_BASE_LAUNCH_H

#include <stddef.h>

/* The launcher's facts about this process. */
struct launch {
    int rank, local_rank; /* -1: unknown */
    const char *from;     /* the source: "setting", "torchrun", "pmix", "openmpi", "mpich", "slurm", or "none" */
    char host[256];
    char exe[256]; /* the executable's name, without folders */
};

/* Fill in the known values. If one launcher runs inside another, the innermost counts. */
void launch_detect(struct launch *ret_launch);

/* Expand %h %r %l %p %e %% in pattern; unknown letters stay as they are. 0, or -ENAMETOOLONG. */
int launch_expand(const struct launch *launch, const char *pattern, char *buf, size_t len);

#endif
