/* SPDX-License-Identifier: Apache-2.0 */
/* stubs.c - see stubs.h and system.h. */
#include "system.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>

#include "stubs.h"

#include "base/launch.h"
#include "base/log.h"
#include "base/process.h"
#include "context/capture_gate.h"
#include "context/counters.h"
#include "context/device.h"
#include "context/host_memory.h"
#include "context/lifetime.h"
#include "context/pins.h"
#include "context/registry.h"
#include "real/real.h"
#include "report/background_thread.h"
#include "report/guard.h"
#include "trace/trace.h"

struct stub stub;
struct pins stub_pins;
uint64_t system_ns;
void (*system_handler)(int number);
const char *system_library = "/usr/lib/libother.so";
atomic_uint capture_count;
atomic_int guard_mode, process_state = PROCESS_NEW;
__thread unsigned int process_depth __attribute__((tls_model("initial-exec")));

int system_sigaction(int number, const struct sigaction *action, struct sigaction *old)
{
    if (action && system_handler) {
        signal(number, system_handler);
        system_handler = NULL;
    }
    return (sigaction)(number, action, old);
}

int system_clock_gettime(clockid_t clock, struct timespec *to)
{
    (void)clock;
    to->tv_sec = (time_t)(system_ns / 1000000000);
    to->tv_nsec = (long)(system_ns % 1000000000);
    return 0;
}

int system_iterate(int (*each)(struct dl_phdr_info *info, size_t size, void *arg), void *arg)
{
    struct dl_phdr_info info = {.dlpi_name = system_library};

    return each(&info, sizeof(info), arg);
}

const char *system_getenv(const char *name)
{
    return strcmp(name, "_CUPOOL_RUN") == 0 ? "4242" : (getenv)(name);
}

static void say(const char *what, const char *format, va_list args)
{
    printf("%s ", what);
    vprintf(format, args);
    putchar('\n');
}

#define SAY(what)                                                                                                      \
    do {                                                                                                               \
        va_list args_;                                                                                                 \
                                                                                                                       \
        va_start(args_, format);                                                                                       \
        say(what, format, args_);                                                                                      \
        va_end(args_);                                                                                                 \
    } while (0)

void log_write(enum conf_log_level level, const char *format, ...)
{
    (void)level;
    SAY("log");
}

void log_lines(enum conf_log_level level, const char *format, ...)
{
    (void)level;
    SAY("log");
}

void log_put(const char *text, size_t len)
{
    printf("-- %zu bytes\n%.*s", len, (int)len, text);
}

bool log_is_open(void)
{
    return !stub.closed;
}

void trace_event(const char *event, const char *format, ...)
{
    if (!stub.quiet)
        SAY(event);
}

const char *trace_path(void)
{
    return stub.path;
}

bool process_may_start(void)
{
    return !stub.passive;
}

bool process_has_begun(void)
{
    return stub.begun;
}

void background_wake(void)
{
    printf("woken\n");
}

bool guard_own(void)
{
    return stub.guard_own;
}

void launch_detect(struct launch *ret_launch)
{
    *ret_launch = (struct launch){.rank = stub.rank};
}

static CUresult device_get(CUdevice *to)
{
    *to = stub.device;
    return stub.no_device ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
}

static CUresult info_get(size_t *free, size_t *total)
{
    *free = stub.free;
    *total = stub.total;
    return stub.no_info ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
}

const struct real_driver *real_driver_get(void)
{
    static struct real_driver driver;

    driver.cuCtxGetDevice = device_get;
    driver.cuMemGetInfo_v2 = info_get;
    return stub.no_driver ? NULL : &driver;
}

struct context *context_begin(const struct real_driver *driver, bool by_runtime, struct pins **ret_own)
{
    atomic_store(&stub_pins.on[0], 1);
    *ret_own = &stub_pins;
    return driver && !by_runtime && !stub.no_context ? (struct context *)&stub : NULL;
}

struct pool *context_pool(const struct context *context)
{
    return (struct pool *)(uintptr_t)context;
}

void pool_stats_get(struct pool *pool, struct pool_stats *ret_stats)
{
    *ret_stats = pool ? stub.stats : (struct pool_stats){0};
}

void context_survey(int device, bool whole, struct pool_survey *ret_sum)
{
    if (!stub.quiet)
        printf("survey of %d%s\n", device, whole ? ", whole" : "");
    *ret_sum = stub.survey;
}

void context_stats_each(bool ending,
                        void (*each)(void *arg, int device, const struct pool_stats *stats, uint64_t bypassed),
                        void *arg)
{
    for (int i = 0; i < stub.devices; i++) {
        struct pool_stats stats = stub.stats;

        stats.hits += ending;
        stats.allocs += (uint64_t)i;
        each(arg, i, &stats, stub.bypassed);
    }
}

bool host_memory_stats(struct host_stats *ret_stats)
{
    *ret_stats = stub.host;
    return stub.has_host;
}

bool nccl_stats_get(struct nccl_reg_stats *ret_stats)
{
    *ret_stats = stub.nccl;
    return stub.has_nccl;
}

bool vmm_kept_stats(struct vmm_stats *ret_stats)
{
    *ret_stats = stub.vmm;
    return stub.has_vmm;
}

void advice_facts_get(struct advice_facts *ret_facts)
{
    *ret_facts = stub.facts;
}

bool job_take(struct job_row **ret_rows, size_t *ret_count)
{
    if (!stub.job)
        return false;
    *ret_rows = malloc(stub.job_count * sizeof(**ret_rows));
    memcpy(*ret_rows, stub.job, stub.job_count * sizeof(**ret_rows));
    *ret_count = stub.job_count;
    return true;
}
