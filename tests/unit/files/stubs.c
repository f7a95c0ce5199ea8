/* SPDX-License-Identifier: Apache-2.0 */
/* stubs.c - what the trace and the statistics file need of rooms that are not tested here. */
#include <stdarg.h>
#include <stdio.h>

#include "base/log.h"
#include "base/process.h"
#include "context/counters.h"
#include "context/host_memory.h"
#include "report/job.h"
#include "stubs.h"

bool stub_elsewhere, stub_foreign, stub_host;
unsigned int stub_devices = 1;

void log_write(enum conf_log_level level, const char *format, ...)
{
    va_list args;

    printf("log %d: ", (int)level);
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    putchar('\n');
}

bool job_is_elsewhere(const char *pattern)
{
    (void)pattern;
    return stub_elsewhere;
}

bool process_is_foreign(void)
{
    return stub_foreign;
}

void context_stats_each(bool ending,
                        void (*each)(void *arg, int device, const struct pool_stats *stats, uint64_t bypassed),
                        void *arg)
{
    for (unsigned int i = 0; i < stub_devices; i++) {
        const struct pool_stats stats = {.allocs = 100 + i, .hits = 50 + ending, .peak_live = 1000};

        each(arg, (int)i, &stats, 7 + i);
    }
}

bool host_memory_stats(struct host_stats *ret_stats)
{
    *ret_stats = (struct host_stats){.allocs = 12};
    return stub_host;
}
