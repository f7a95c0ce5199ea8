/* SPDX-License-Identifier: Apache-2.0 */
/* stubs.h - what the rest of the library says in the tests of the reports. One thread; no locks. */
#ifndef CUPOOL_TESTS_REPORT_STUBS_H
#define CUPOOL_TESTS_REPORT_STUBS_H

#include <stdbool.h>

#include "context/pins.h"
#include "context/vmm_kept.h"
#include "host_pool.h"
#include "nccl/register_calls.h"
#include "pool.h"
#include "report/advice.h"
#include "report/job.h"

struct stub {
    bool passive, foreign, begun, closed;  /* the process's state; its stderr */
    bool no_driver, no_device, no_context; /* there is none */
    bool no_info;                          /* cuMemGetInfo fails */
    bool guard, guard_own;
    int device, devices, rank;
    size_t free, total;
    struct pool_survey survey;
    struct pool_stats stats;
    uint64_t bypassed;
    struct host_stats host;
    bool has_host, has_nccl, has_vmm;
    struct nccl_reg_stats nccl;
    struct vmm_stats vmm;
    struct advice_facts facts;
    const struct job_row *job;
    size_t job_count;
    const char *path; /* of the trace */
    bool quiet;       /* events and surveys are not printed */
};

extern struct stub stub;
extern struct pins stub_pins; /* of this thread */

#endif
