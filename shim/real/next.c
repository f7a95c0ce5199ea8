/* SPDX-License-Identifier: Apache-2.0 */
/*
 * next.c - see real.h.
 *
 * Locking: real.lock guards the search for the driver's functions; the rest is atomic or only grows.
 */
#include "real/real.h"

#include <dlfcn.h>
#include <link.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "lock.h"
#include "real/dlsym_next.h"

/* The longest time, in nanoseconds, that a thread waits for another one that searches the driver's functions. */
#define FILL_WAIT_NS 1000000000u

static const struct {
    const char *name;
    void *hook;
    bool driver;
} hooks[REAL_COUNT] = {
#define RUNTIME(symbol, parameters) {#symbol, (void *)(symbol), false},
#define DRIVER(symbol, parameters)  {#symbol, (void *)(symbol), true},
#include "hooks.def"
};

static struct {
    struct lock lock;  /* guards writes to driver and in_driver; a forked child may find it held for ever */
    atomic_bool tried; /* the search has ended, or a thread has waited for it too long */
    struct real_driver driver;
    void *in_driver[REAL_COUNT]; /* the driver's own function for each hook of the driver */
    _Atomic(const struct real_driver *) ready;
    _Atomic(void *) next[REAL_COUNT];
} real;

/* The names of the members of struct real_driver, in order. */
static const char *const driver_names[] = {"cuMemAlloc_v2",
                                           "cuMemFree_v2",
                                           "cuMemGetInfo_v2",
                                           "cuCtxGetCurrent",
                                           "cuCtxGetDevice",
                                           "cuCtxPushCurrent_v2",
                                           "cuCtxPopCurrent_v2",
                                           "cuCtxSynchronize",
                                           "cuCtxRecordEvent",
                                           "cuCtxWaitEvent",
                                           "cuEventCreate",
                                           "cuDevicePrimaryCtxRetain",
                                           "cuDevicePrimaryCtxRelease_v2",
                                           "cuDevicePrimaryCtxGetState",
                                           "cuStreamGetCtx",
                                           "cuStreamIsCapturing",
                                           "cuThreadExchangeStreamCaptureMode",
                                           "cuDriverGetVersion",
                                           "cuEventQuery",
                                           "cuPointerGetAttribute",
                                           "cuStreamCreate",
                                           "cuStreamQuery",
                                           "cuStreamSynchronize",
                                           "cuMemsetD8Async",
                                           "cuMemFreeAsync",
                                           "cuCtxGetId",
                                           "cuDeviceGetAttribute",
                                           "cuDeviceGetCount",
                                           "cuDeviceGetName",
                                           "cuDeviceGetUuid_v2",
                                           "cuMemcpyDtoHAsync_v2",
                                           "cuStreamDestroy_v2",
                                           "cuEventRecord"};
_Static_assert(sizeof(driver_names) / sizeof(driver_names[0]) == sizeof(struct real_driver) / sizeof(void *),
               "one name for each member");

/* A handle of a loaded library, which stays loaded from now on; NULL: it is not loaded. */
static void *loaded(const char *name)
{
    return dlopen(name, RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD | RTLD_NODELETE);
}

static void driver_fill(void *handle)
{
    void **member = (void **)&real.driver;

    for (unsigned int i = 0; i < sizeof(driver_names) / sizeof(driver_names[0]); i++)
        member[i] = dlsym_real(handle, driver_names[i]);
    for (unsigned int i = 0; i < REAL_COUNT; i++)
        real.in_driver[i] = hooks[i].driver ? dlsym_real(handle, hooks[i].name) : NULL;
}

static CUresult missing_driver(void)
{
    return CUDA_ERROR_NOT_FOUND;
}

static cudaError_t missing_runtime(void)
{
    return cudaErrorSharedObjectSymbolNotFound;
}

/* A search among the loaded objects: RTLD_NEXT does not find an object loaded with RTLD_LOCAL. */
struct search {
    const char *prefix; /* of the file name */
    const char *path;
};

static int search_one(struct dl_phdr_info *info, size_t size, void *arg)
{
    struct search *search = arg;
    const char *name = strrchr(info->dlpi_name ? info->dlpi_name : "", '/');

    (void)size;
    name = name ? name + 1 : info->dlpi_name;
    if (!name || strncmp(name, search->prefix, strlen(search->prefix)) != 0)
        return 0;
    search->path = info->dlpi_name;
    return 1;
}

/* The path of the first loaded object whose file name begins with prefix; NULL: none. */
static const char *loaded_path(const char *prefix)
{
    struct search search = {.prefix = prefix};

    dl_iterate_phdr(search_one, &search);
    return search.path;
}

bool real_is_loaded(const char *name)
{
    return loaded_path(name) != NULL;
}

/* Keep the object that holds a function loaded. */
static void keep(const void *function)
{
    Dl_info info;

    if (dladdr(function, &info) && info.dli_fname)
        loaded(info.dli_fname);
}

/* The next definition of a hook; NULL: none. */
static void *look_for(enum real_symbol symbol)
{
    void *function = dlsym_real(RTLD_NEXT, hooks[symbol].name), *handle = NULL;
    const char *path = NULL;

    if (!function && hooks[symbol].driver) {
        handle = loaded("libcuda.so.1");
    } else if (!function) {
        path = loaded_path("libcudart.so");
        /* Wheels rename it, for example to libcudart-d0da41ae.so.11.0. */
        path = path ? path : loaded_path("libcudart-");
        handle = path ? loaded(path) : NULL;
    }
    if (handle)
        function = dlsym_real(handle, hooks[symbol].name);
    if (!function || function == hooks[symbol].hook)
        return NULL;
    keep(function);
    atomic_store_explicit(&real.next[symbol], function, memory_order_release);
    return function;
}

/* Find all functions while CUDA initialises itself, which takes the loader's locks as well: a search in a later request
 * might wait for a constructor that waits for that request. */
static void next_fill(void)
{
    for (unsigned int i = 0; i < REAL_COUNT; i++)
        if (!atomic_load_explicit(&real.next[i], memory_order_relaxed))
            look_for(i);
}

const struct real_driver *real_driver_get(void)
{
    const struct real_driver *driver = atomic_load_explicit(&real.ready, memory_order_acquire);
    void *handle;

    if (driver)
        return driver;
    handle = loaded("libcuda.so.1");
    if (!handle)
        return NULL;
    if (atomic_load(&real.tried))
        return atomic_load_explicit(&real.ready, memory_order_acquire);
    /* The runtime asks once for the functions that its calls will go to, so the answer must wait for this search. */
    if (!lock_take_within(&real.lock, FILL_WAIT_NS)) {
        atomic_store(&real.tried, true);
        return NULL;
    }
    if (!atomic_load(&real.tried)) {
        driver_fill(handle);
        next_fill();
    }
    /* A library of this name without these functions is no driver (but, for example, a stub). */
    if (real.driver.cuMemAlloc_v2 && real.driver.cuMemFree_v2 && real.driver.cuCtxGetCurrent &&
        real.driver.cuCtxGetDevice && real.driver.cuEventCreate && real.driver.cuCtxSynchronize &&
        real.driver.cuCtxPushCurrent_v2 && real.driver.cuCtxPopCurrent_v2 && real.driver.cuMemGetInfo_v2)
        atomic_store_explicit(&real.ready, &real.driver, memory_order_release);
    atomic_store(&real.tried, true);
    lock_give(&real.lock);
    return atomic_load_explicit(&real.ready, memory_order_acquire);
}

void *real_find(enum real_symbol symbol)
{
    void *function = atomic_load_explicit(&real.next[symbol], memory_order_acquire);

    if (!function)
        function = look_for(symbol);
    if (function)
        return function;
    /* Not cached: the library may be loaded later. */
    log_write(LOG_ERROR, "%s was called, but nothing that is loaded defines it", hooks[symbol].name);
    return hooks[symbol].driver ? (void *)missing_driver : (void *)missing_runtime;
}

static bool is_cudart(const char *path)
{
    const char *name = strrchr(path, '/');

    name = name ? name + 1 : path;
    return strncmp(name, "libcudart.so", 12) == 0 || strncmp(name, "libcudart-", 10) == 0;
}

/* Counts the loaded libcudart; stops at two. */
static int count_cudart(struct dl_phdr_info *info, size_t size, void *arg)
{
    (void)size;
    *(int *)arg += info->dlpi_name && is_cudart(info->dlpi_name);
    return *(int *)arg > 1;
}

/* The number of objects loaded and unloaded so far. */
static int read_changes(struct dl_phdr_info *info, size_t size, void *arg)
{
    (void)size;
    *(uint64_t *)arg = info->dlpi_adds + info->dlpi_subs;
    return 1;
}

static bool several_cudarts(void)
{
    static _Atomic(uint64_t) seen;
    uint64_t now = 0, known = atomic_load_explicit(&seen, memory_order_relaxed);
    int count = 0;

    /* The lowest bit of `seen` is the last answer, valid while no object has been loaded or unloaded since. */
    dl_iterate_phdr(read_changes, &now);
    if (known >> 1 != now) {
        dl_iterate_phdr(count_cudart, &count);
        known = now << 1 | (count > 1);
        atomic_store_explicit(&seen, known, memory_order_relaxed);
    }
    return known & 1;
}

/* The name of the libcudart that the object around address was linked to; NULL: none. */
static const char *cudart_of(const void *address)
{
    const char *strings = NULL;
    struct link_map *map;
    Dl_info info;

    if (!dladdr1(address, &info, (void **)&map, RTLD_DL_LINKMAP))
        return NULL;
    for (const ElfW(Dyn) *d = map->l_ld; d->d_tag != DT_NULL; d++)
        if (d->d_tag == DT_STRTAB)
            strings = (const char *)d->d_un.d_ptr;
    for (const ElfW(Dyn) *d = map->l_ld; strings && d->d_tag != DT_NULL; d++)
        if (d->d_tag == DT_NEEDED && is_cudart(strings + d->d_un.d_val))
            return strings + d->d_un.d_val;
    return NULL;
}

void *real_find_for(enum real_symbol symbol, const void *caller)
{
    void *const first = real_find(symbol);
    void *handle, *function = NULL;
    const char *name;
    Dl_info info;

    /* If the next definition is not libcudart's, another preload stands between us and libcudart, and it decides. */
    if (!several_cudarts() || !dladdr(first, &info) || !info.dli_fname || !is_cudart(info.dli_fname))
        return first;
    name = cudart_of(caller);
    handle = name ? loaded(name) : NULL;
    if (handle)
        function = dlsym_real(handle, hooks[symbol].name);
    return function ? function : first;
}

/* --- NCCL --- */

static const char *const nccl_names[REAL_NCCL_COUNT] = {
#define NCCL(symbol, parameters) #symbol,
#include "hooks.def"
};

/* The names of the members of struct real_nccl, in order, up to next. */
static const char *const nccl_own_names[] = {"ncclGetVersion",   "ncclMemAlloc",       "ncclMemFree",
                                             "ncclCommRegister", "ncclCommDeregister", "ncclCommGetAsyncError",
                                             "ncclCommCuDevice", "ncclCommUserRank",   "ncclCommCount"};
_Static_assert(sizeof(nccl_own_names) == offsetof(struct real_nccl, next), "one name for each member");

/* Copies of NCCL, and the objects that call each of them; both lists only grow. */
struct nccl_copy {
    void *handle;
    struct real_nccl functions;
    struct nccl_copy *next;
};

struct nccl_caller {
    const void *object;
    const struct nccl_copy *copy;
    struct nccl_caller *next;
};

static struct {
    _Atomic(const struct nccl_copy *) first; /* the copy that the loader's order gives every caller */
    _Atomic(struct nccl_copy *) copies;
    _Atomic(struct nccl_caller *) callers;
} nccl;

/* A value that identifies the object that holds an address; NULL: unknown. */
static const void *object_of(const void *address)
{
#ifdef DLFO_STRUCT_HAS_EH_DBASE
    struct dl_find_object object;

    return _dl_find_object((void *)address, &object) ? NULL : object.dlfo_link_map;
#else
    struct link_map *map;
    Dl_info info;

    return dladdr1(address, &info, (void **)&map, RTLD_DL_LINKMAP) ? map : NULL;
#endif
}

/* The copy behind this handle; NULL: it has no NCCL. */
static const struct nccl_copy *copy_of(void *handle)
{
    struct nccl_copy *copy;
    void **own;

    /* This function is not one of our hooks, so an object that defines it is NCCL or stands in for it. */
    if (!handle || !dlsym_real(handle, nccl_own_names[0]))
        return NULL;
    for (copy = atomic_load(&nccl.copies); copy; copy = copy->next)
        if (copy->handle == handle)
            return copy;
    copy = calloc(1, sizeof(*copy));
    if (!copy)
        return NULL;
    copy->handle = handle;
    own = (void **)&copy->functions;
    for (unsigned int i = 0; i < sizeof(nccl_own_names) / sizeof(nccl_own_names[0]); i++)
        own[i] = dlsym_real(handle, nccl_own_names[i]);
    for (unsigned int i = 0; i < REAL_NCCL_COUNT; i++)
        copy->functions.next[i] = dlsym_real(handle, nccl_names[i]);
    keep((void *)copy->functions.ncclGetVersion);
    copy->next = atomic_load(&nccl.copies);
    while (!atomic_compare_exchange_weak(&nccl.copies, &copy->next, copy))
        ;
    return copy;
}

/*
 * An object that has loaded its own NCCL is kept loaded: its link map identifies it in the list of callers, and must
 * not come to identify another object. A wrapper that jumps to NCCL's function leaves its own caller's address; the
 * search then finds the same NCCL, or libnccl.so.2, unless the loader keeps several copies apart.
 */
static const struct nccl_copy *copy_look(const void *caller)
{
    const struct nccl_copy *copy = copy_of(RTLD_NEXT);
    Dl_info info;

    if (copy) {
        atomic_store(&nccl.first, copy);
        return copy;
    }
    if (caller && dladdr(caller, &info) && info.dli_fname)
        copy = copy_of(loaded(info.dli_fname));
    return copy ? copy : copy_of(loaded("libnccl.so.2"));
}

static __attribute__((noinline)) const struct real_nccl *nccl_of(const void *caller)
{
    const struct nccl_copy *copy = atomic_load_explicit(&nccl.first, memory_order_acquire);
    struct nccl_caller *known = atomic_load(&nccl.callers);
    const void *object = caller ? object_of(caller) : NULL;

    /* The list comes before `first`, which may have been loaded later and does not know this caller's communicators. */
    for (; object && known; known = known->next)
        if (known->object == object)
            return &known->copy->functions;
    copy = copy ? copy : copy_look(caller);
    known = object && copy && !atomic_load(&nccl.first) ? calloc(1, sizeof(*known)) : NULL;
    if (known) {
        *known = (struct nccl_caller){.object = object, .copy = copy, .next = atomic_load(&nccl.callers)};
        while (!atomic_compare_exchange_weak(&nccl.callers, &known->next, known))
            ;
    }
    return copy ? &copy->functions : NULL;
}

/* The common case of every operation: one copy, for all callers. */
const struct real_nccl *real_nccl_get(const void *caller)
{
    const struct nccl_copy *copy = atomic_load_explicit(&nccl.first, memory_order_acquire);

    return copy && !atomic_load(&nccl.callers) ? &copy->functions : nccl_of(caller);
}

static ncclResult_t missing_nccl(void)
{
    return ncclInvalidUsage;
}

void *real_nccl_find(enum real_nccl_symbol symbol, const void *caller)
{
    const struct real_nccl *found = real_nccl_get(caller);

    if (found && found->next[symbol])
        return found->next[symbol];
    log_write(LOG_ERROR, "%s was called, but nothing that is loaded defines it", nccl_names[symbol]);
    return (void *)missing_nccl;
}

void *real_route(void *function)
{
    if (!function || !real_driver_get())
        return function;
    for (unsigned int i = 0; i < REAL_COUNT; i++)
        if (real.in_driver[i] == function)
            return hooks[i].hook;
    return function;
}
