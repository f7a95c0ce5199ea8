/* SPDX-License-Identifier: Apache-2.0 */
/* machine.c - see machine.h. The driver's types are plain here, since this program includes no CUDA header. */
#include "info/machine.h"

#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/conf.h"
#include "info/check_internal.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
/* The missing functions that are named. */
#define MISSING_SHOWN 6

/* CUdevice_attribute. */
enum {
    ATTRIBUTE_INTEGRATED = 18,
    ATTRIBUTE_MODE = 20,
    ATTRIBUTE_MAJOR = 75,
    ATTRIBUTE_MINOR = 76,
    ATTRIBUTE_VIRTUAL = 102
};
/* CU_COMPUTEMODE_PROHIBITED and CU_COMPUTEMODE_EXCLUSIVE_PROCESS. */
enum { MODE_PROHIBITED = 2, MODE_EXCLUSIVE = 3 };
/* From this driver on a context can wait for an event without a stream, which ordering frees needs. */
#define ORDERS_SINCE 12050
/* Registration is safe from this NCCL on; see docs/nccl.md. */
#define NCCL_SAFE_SINCE 22902

static const char *const runtime_hooks[] = {
#define RUNTIME(symbol, parameters) #symbol,
#include "hooks.def"
};
static const char *const driver_hooks[] = {
#define DRIVER(symbol, parameters) #symbol,
#include "hooks.def"
};
static const char *const nccl_hooks[] = {
#define NCCL(symbol, parameters) #symbol,
#include "hooks.def"
};

/* A library as the loader finds it. */
struct library {
    void *handle; /* NULL: it is not found */
    const char *path;
    int version; /* 0: unknown */
};

static struct {
    struct library driver, runtime, nccl;
    int devices;      /* of the driver */
    bool has_virtual; /* a device has virtual memory management */
} machine;

/* The address of a function, as what it is used as. */
#define FUNCTION(library, symbol, result, ...) ((result(*)(__VA_ARGS__))dlsym((library)->handle, symbol))

static bool has(const struct library *library, const char *symbol)
{
    return library->handle && dlsym(library->handle, symbol);
}

static void load(struct library *library, const char *const *names, const char *version)
{
    struct link_map *map;
    int (*get)(int *);

    while (*names && !library->handle)
        library->handle = dlopen(*names++, RTLD_LAZY);
    if (!library->handle)
        return;
    library->path = dlinfo(library->handle, RTLD_DI_LINKMAP, &map) == 0 ? map->l_name : "?";
    get = FUNCTION(library, version, int, int *);
    if (get && get(&library->version))
        library->version = 0;
}

/* --- the driver and its devices --- */

static void print_size(uint64_t bytes)
{
    printf("%llu.%llu GiB", (unsigned long long)(bytes >> 30),
           (unsigned long long)((bytes & ((1u << 30) - 1)) * 10 >> 30));
}

static int attribute(const struct library *driver, int which, int device)
{
    int (*get)(int *, int, int) = FUNCTION(driver, "cuDeviceGetAttribute", int, int *, int, int);
    int value = 0;

    return get && get(&value, which, device) == 0 ? value : 0;
}

static void print_device(const struct library *driver, int ordinal)
{
    int (*get)(int *, int) = FUNCTION(driver, "cuDeviceGet", int, int *, int);
    int (*get_name)(char *, int, int) = FUNCTION(driver, "cuDeviceGetName", int, char *, int, int);
    int (*get_total)(size_t *, int) = FUNCTION(driver, "cuDeviceTotalMem_v2", int, size_t *, int);
    char name[256] = "?";
    size_t total = 0;
    int device, mode;

    if (!get || get(&device, ordinal))
        return;
    if (get_name && get_name(name, (int)sizeof(name), device))
        strcpy(name, "?");
    if (get_total && get_total(&total, device))
        total = 0;
    mode = attribute(driver, ATTRIBUTE_MODE, device);
    printf("%-10s %d: %s, ", "GPU", ordinal, name);
    print_size(total);
    printf(", compute capability %d.%d%s%s%s\n", attribute(driver, ATTRIBUTE_MAJOR, device),
           attribute(driver, ATTRIBUTE_MINOR, device),
           attribute(driver, ATTRIBUTE_VIRTUAL, device) ? "" : ", no virtual memory management",
           attribute(driver, ATTRIBUTE_INTEGRATED, device) ? ", its memory is the host's" : "",
           mode == MODE_PROHIBITED  ? ", no process may use it (compute mode prohibited)"
           : mode == MODE_EXCLUSIVE ? ", one process at a time (compute mode exclusive)"
                                    : "");
    machine.has_virtual |= attribute(driver, ATTRIBUTE_VIRTUAL, device) != 0;
}

static void print_driver(struct library *driver)
{
    static const char *const names[] = {"libcuda.so.1", NULL};
    int (*init)(unsigned int), (*count)(int *), error;

    load(driver, names, "cuDriverGetVersion");
    if (!driver->handle) {
        check_say("driver", "libcuda.so.1 is not found: no program has a GPU to use here");
        return;
    }
    check_say("driver", "%s, for CUDA %d.%d", driver->path, driver->version / 1000, driver->version % 1000 / 10);
    init = FUNCTION(driver, "cuInit", int, unsigned int);
    count = FUNCTION(driver, "cuDeviceGetCount", int, int *);
    error = init ? init(0) : -1;
    if (!error)
        error = count ? count(&machine.devices) : -1;
    if (error || !machine.devices)
        check_say("GPU", error == -1 ? "none: this libcuda is a stub, to link with" : "none: cuInit returns %d", error);
    for (int i = 0; i < machine.devices; i++)
        print_device(driver, i);
}

/* --- cudart and NCCL --- */

static void print_runtime(struct library *runtime)
{
    static const char *const names[] = {"libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0", "libcudart.so",
                                        NULL};

    load(runtime, names, "cudaRuntimeGetVersion");
    if (runtime->handle)
        check_say("cudart", "%s, %d.%d", runtime->path, runtime->version / 1000, runtime->version % 1000 / 10);
    else
        check_say("cudart", "none is found by the loader; a program may bring its own, or have a static one");
}

static void print_nccl(struct library *nccl)
{
    static const char *const names[] = {"libnccl.so.2", NULL};

    load(nccl, names, "ncclGetVersion");
    if (nccl->handle)
        check_say("NCCL", "%s, %d.%d.%d", nccl->path, nccl->version / 10000, nccl->version % 10000 / 100,
                  nccl->version % 100);
    else
        check_say("NCCL", "none is found by the loader; a program may bring its own");
}

/* --- what would work --- */

static void print_hooks(const char *of, const struct library *library, const char *const *names, size_t count)
{
    char list[400] = "";
    size_t there = 0, missing = 0, used = 0;

    if (!library->handle)
        return;
    for (size_t i = 0; i < count; i++) {
        if (has(library, names[i]))
            there++;
        else if (missing++ < MISSING_SHOWN && used < sizeof(list))
            used += (size_t)snprintf(list + used, sizeof(list) - used, "%s%s", used ? ", " : "", names[i]);
    }
    if (!missing)
        check_say("hooks", "%s: all %zu functions that cupool intercepts are there", of, there);
    else if (missing <= MISSING_SHOWN)
        check_say("hooks", "%s: %zu of %zu functions that cupool intercepts are there; not %s", of, there, count, list);
    else
        check_say("hooks", "%s: %zu of %zu functions that cupool intercepts are there; not %s and %zu more", of, there,
                  count, list, missing - MISSING_SHOWN);
}

/* The values of a setting, from conf.def. */
static void choices_of(const char *setting, char *buf, size_t len)
{
    size_t used = 0;

    for (unsigned int i = 0; i < conf_count; i++) {
        if (strcmp(conf_rows[i].name, setting) != 0)
            continue;
        for (const char *c = conf_rows[i].choices; *c && used + 3 < len; c++) {
            if (*c == '|')
                buf[used++] = ',';
            buf[used++] = *c == '|' ? ' ' : *c;
        }
    }
    buf[used] = '\0';
}

static void print_policies(const struct library *driver)
{
    char policies[128];

    if (!driver->handle)
        return;
    choices_of("CUPOOL_FREE", policies, sizeof(policies));
    if (driver->version >= ORDERS_SINCE)
        check_say("policies", "%s", policies);
    else
        check_say("policies", "strict alone: the others need a driver for CUDA 12.5 or later");
}

static void print_backends(const struct library *nccl)
{
    const bool gives = has(nccl, "ncclMemAlloc") && has(nccl, "ncclMemFree");
    const char *vmm = machine.has_virtual ? ", vmm" : "";

    if (!nccl->handle)
        check_say("backends", "cuda%s", vmm);
    else if (!gives || (machine.devices && !machine.has_virtual))
        check_say("backends", "cuda%s; not nccl: %s", vmm,
                  gives ? "no GPU has virtual memory management"
                        : "this NCCL has no ncclMemAlloc (2.19 and later have)");
    else
        check_say("backends", "cuda, nccl%s", vmm);
    if (!nccl->handle)
        return;
    if (!has(nccl, "ncclCommRegister"))
        check_say("register", "not possible: this NCCL has no ncclCommRegister (2.19 and later have)");
    else
        check_say("register", "possible%s%s", has(nccl, "ncclCommWindowRegister") ? ", symmetric windows too" : "",
                  nccl->version < NCCL_SAFE_SINCE ? "; NCCL before 2.29.2 has a bug, see docs/nccl.md" : "");
}

/* --- limits --- */

static void print_limit(const char *name, int resource)
{
    struct rlimit limit;

    if (getrlimit(resource, &limit) != 0)
        return;
    if (limit.rlim_cur == RLIM_INFINITY)
        check_say("limit", "%s: unlimited", name);
    else
        check_say("limit", "%s: %llu", name, (unsigned long long)limit.rlim_cur);
}

/* The first word of a small file; false: there is none. */
static bool first_word(const char *path, char *word, size_t len)
{
    FILE *file = fopen(path, "re");
    bool found;

    if (!file)
        return false;
    found = fgets(word, (int)len, file) != NULL;
    fclose(file);
    word[found ? strcspn(word, " \n") : 0] = '\0';
    return found && *word;
}

static void print_limits(void)
{
    char word[80];
    cpu_set_t set;

    print_limit("address space, bytes (ulimit -v)", RLIMIT_AS);
    print_limit("size of a file, bytes (ulimit -f); a trace ends there", RLIMIT_FSIZE);
    print_limit("open files (ulimit -n)", RLIMIT_NOFILE);
    print_limit("locked memory, bytes (ulimit -l); for RDMA", RLIMIT_MEMLOCK);
    if (first_word("/sys/fs/cgroup/memory.max", word, sizeof(word)))
        check_say("limit", "the host's memory for this control group, bytes: %s", word);
    if (sched_getaffinity(0, sizeof(set), &set) == 0)
        check_say("limit", "processors for this process: %d", CPU_COUNT(&set));
    if (first_word("/sys/devices/system/clocksource/clocksource0/current_clocksource", word, sizeof(word)))
        check_say("clock", "%s%s", word,
                  strcmp(word, "tsc") == 0 || strcmp(word, "arch_sys_counter") == 0
                      ? ""
                      : ": times of allocation events are read by the kernel, which is slower");
}

void machine_print(void)
{
    print_driver(&machine.driver);
    print_runtime(&machine.runtime);
    print_nccl(&machine.nccl);
    print_hooks("driver", &machine.driver, driver_hooks, COUNT(driver_hooks));
    print_hooks("cudart", &machine.runtime, runtime_hooks, COUNT(runtime_hooks));
    print_hooks("NCCL", &machine.nccl, nccl_hooks, COUNT(nccl_hooks));
    print_policies(&machine.driver);
    print_backends(&machine.nccl);
    print_limits();
}
