/* SPDX-License-Identifier: Apache-2.0 */
/*
 * contract.c - settings, injected failures, breaches of contract, the report at exit.
 *
 * Every call passes here first, and every breach ends up here. Each contract is checked where it can be seen; the
 * README has the list.
 *
 * Locking: counters are atomic, settings are written before main.
 */
#include "simnccl.h"

#include <dlfcn.h>
#include <stdarg.h>

#define FAILURES_MAX 8

struct settings settings;
struct counts counts;
struct driver drv;
__thread struct call *call_now;

/* SIMNCCL_FAIL, one entry. */
static struct failure {
    char name[40];
    unsigned long first, last;
    int code;
    atomic_ulong calls;
} failures[FAILURES_MAX];

static const char *report;
static bool strict;
static pid_t pid; /* a child of fork has nothing to report */
static __thread CUcontext leaked_from, leaked_to;

static long number(const char *name, long otherwise)
{
    const char *s = getenv(name);

    return s && *s ? strtol(s, NULL, 10) : otherwise;
}

static void failures_read(char *list)
{
    char *save = NULL;
    struct failure *f = failures;

    for (char *s = strtok_r(list, ",", &save); s && f < failures + FAILURES_MAX; s = strtok_r(NULL, ",", &save), f++) {
        size_t n = strcspn(s, ":");
        if (n >= sizeof(f->name))
            n = sizeof(f->name) - 1;
        memcpy(f->name, s, n);
        s += strcspn(s, ":");
        f->first = *s ? strtoul(s + 1, &s, 10) : 1;
        f->last = *s == '+' ? (s++, ~0ul) : f->first;
        f->code = *s == ':' ? (int)strtol(s + 1, NULL, 10) : ncclUnhandledCudaError;
    }
}

__attribute__((constructor)) static void start(void)
{
    char *fail = getenv("SIMNCCL_FAIL");

    pid = getpid();
    settings.version = (int)number("SIMNCCL_VERSION", NCCL_VERSION_CODE);
    settings.slow = (int)number("SIMNCCL_SLOW", 3);
    settings.deregister_ms = (int)number("SIMNCCL_DEREGISTER_MS", 0);
    settings.local_register = number("NCCL_LOCAL_REGISTER", 1) != 0;
    settings.graph_register = number("NCCL_GRAPH_REGISTER", 1) != 0;
    settings.legacy_register = settings.version < 22400 || number("NCCL_LEGACY_CUDA_REGISTER", 0) != 0;
    settings.shareable = number("NCCL_CUMEM_ENABLE", 1) != 0;
    strict = number("SIMNCCL_STRICT", 0) != 0;
    report = getenv("SIMNCCL_REPORT");
    if (fail && (fail = strdup(fail))) {
        failures_read(fail);
        free(fail);
    }
}

__attribute__((destructor)) static void end(void)
{
    char line[512];

    if (getpid() != pid)
        return;
    if (report && *report) {
        int n = snprintf(line, sizeof(line),
                         "{\"pid\": %d, \"registrations\": %lu, \"deregistrations\": %lu, \"windows\": %lu, "
                         "\"mem_allocs\": %lu, \"mem_frees\": %lu, \"operations\": {\"all\": %lu, \"some\": %lu, "
                         "\"none\": %lu}, \"offsets_differ\": %lu, \"breaches\": %lu}\n",
                         (int)pid, counts.registrations, counts.deregistrations, counts.windows, counts.mem_allocs,
                         counts.mem_frees, counts.ops[REGISTERED_ALL], counts.ops[REGISTERED_SOME],
                         counts.ops[REGISTERED_NONE], counts.offsets_differ, counts.breaches);
        int fd = open(report, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
        if (fd < 0 || write(fd, line, (size_t)n) != n)
            fprintf(stderr, "simnccl: cannot write %s\n", report);
        if (fd >= 0)
            close(fd);
    }
    if (strict && counts.breaches) {
        fflush(NULL);
        _exit(86);
    }
}

void breach(const char *format, ...)
{
    char line[512];
    va_list ap;

    va_start(ap, format);
    vsnprintf(line, sizeof(line), format, ap);
    va_end(ap);
    counts.breaches++;
    fprintf(stderr, "simnccl: CONTRACT: %s\n", line); /* one write: ranks share the stream */
}

bool driver_find(void)
{
    static pthread_mutex_t once = PTHREAD_MUTEX_INITIALIZER; /* guards drv until it is complete */
    static bool found, tried;

    pthread_mutex_lock(&once);
    if (!tried) {
        void *lib = dlopen("libcuda.so.1", RTLD_NOW);
        tried = true;
        found = lib;
#define SYMBOL(name) #name
#define X(name)      found = found && (drv.name = (__typeof__(drv.name))dlsym(lib, SYMBOL(name)));
        DRIVER(X)
#undef X
        drv.simgpu_host = lib ? (void *(*)(unsigned long long, size_t))dlsym(lib, "simgpu_host") : NULL;
        found = found && drv.simgpu_host && drv.cuInit(0) == CUDA_SUCCESS;
        if (!found)
            fprintf(stderr, "simnccl: no simulated GPU here: this stand-in runs on nothing else\n");
    }
    bool ret = found;
    pthread_mutex_unlock(&once);
    return ret;
}

void device_leak(CUcontext ctx)
{
    CUcontext before = NULL;

    drv.cuCtxGetCurrent(&before);
    if (before == ctx)
        return;
    drv.cuCtxSetCurrent(ctx);
    leaked_from = before;
    leaked_to = ctx;
}

static void device_check(const struct call *call)
{
    CUcontext now = NULL;

    if (!leaked_to)
        return;
    drv.cuCtxGetCurrent(&now);
    if (now == leaked_to && now != leaked_from)
        breach("%s: the current device is still the one that ncclCommDeregister left behind", call->name);
    leaked_to = NULL;
}

bool call_enter(struct call *call)
{
    call->outer = call_now;
    call_now = call;
    if (!call->outer)
        device_check(call);
    else if (!call->outer->may || strcmp(call->outer->may, call->name) != 0)
        breach("%s called from inside %s", call->name, call->outer->name);
    bool go = true;
    for (struct failure *f = failures; f < failures + FAILURES_MAX && *f->name; f++) {
        if (strcmp(f->name, call->name) != 0)
            continue;
        unsigned long n = ++f->calls;
        if (n >= f->first && n <= f->last) {
            call->result = (ncclResult_t)f->code;
            go = false;
        }
    }
    return go;
}

void call_leave(struct call *call)
{
    if (call->comm)
        call->comm->user = 0;
    call_now = call->outer;
}
