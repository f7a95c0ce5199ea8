/* SPDX-License-Identifier: Apache-2.0 */
/*
 * job.h - the table of a job at the end of its launcher (cupool-run --stats -- mpirun ...): a row for each rank and
 * device, and their sum. The ranks leave their counters as statistics pages in a folder that cupool-run made
 * (_CUPOOL_JOB=PROCESS:FOLDER); the launcher's process reads them at its exit, when the ranks have ended, and removes
 * the folder.
 *
 * It talks to no rank, and knows none on hosts that do not see the folder.
 *
 * Threads: for exit, on one thread; no locks. Errors: a file that is no statistics page, or damaged, is left out.
 */
#ifndef CUPOOL_SHIM_REPORT_JOB_H
#define CUPOOL_SHIM_REPORT_JOB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct job_row {
    char host[64];
    int rank;   /* -1: unknown */
    int device; /* -1: all of them, in the sum */
    bool ended; /* false: the process was killed */
    uint64_t allocs, hits;
    uint64_t driver_ns;            /* in calls for memory, of all threads together */
    uint64_t peak_live, peak_held; /* bytes */
};

/* True if pages of this name would go into the job's folder, and that is not on this host: no page is to be written. */
bool job_is_elsewhere(const char *pattern);

/*
 * Read the job's pages and remove them and their folder. *ret_rows, which the caller frees: *ret_count rows by rank and
 * device, the sum last. False: this process was given no job, or none of its processes has pooled anything.
 */
bool job_take(struct job_row **ret_rows, size_t *ret_count);

#endif
