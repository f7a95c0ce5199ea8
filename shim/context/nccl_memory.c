/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nccl_memory.c - see nccl_memory.h.
 *
 * Locking: none; `state` is atomic.
 */
#include "context/nccl_memory.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/conf.h"
#include "base/log.h"
#include "base/process.h"
#include "context/capture_gate.h"
#include "context/capture_history.h"
#include "context/context_state.h"
#include "context/enter.h"
#include "context/events.h"
#include "context/free_order.h"
#include "context/nccl_given.h"
#include "real/real.h"

typedef unsigned long long ull;

/* The bytes of the ncclMemAlloc call that finds out whether NCCL can give memory. */
#define PROBE_BYTES ((size_t)2 << 20)
/* The bytes in front of a segment where NCCL needs one registration for each kind of operation. Segments are aligned to
 * as much. */
#define FRONT_BYTES ((size_t)2 << 20)

static struct {
    /* The copy of NCCL that the pool's memory comes from, if any; set once. */
    _Atomic(const struct real_nccl *) backing;
    atomic_bool works;   /* NCCL has taken memory of the driver, as it does for a communicator */
    atomic_size_t front; /* bytes in front of each of its segments; written before backing */
} state;

void nccl_visit_begin(struct nccl_visit *visit)
{
    process_bypass_begin();
    visit->driver = real_driver_get();
    visit->current = NULL;
    visit->mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    visit->relaxed = visit->driver && capture_mode_relax(visit->driver, &visit->mode);
    if (visit->driver && visit->driver->cuCtxGetCurrent(&visit->current))
        visit->driver = NULL;
}

void nccl_visit_end(struct nccl_visit *visit)
{
    CUcontext now = NULL;

    capture_mode_restore(real_driver_get(), visit->relaxed, visit->mode);
    if (visit->driver && visit->driver->cuCtxGetCurrent(&now) == CUDA_SUCCESS && now != visit->current) {
        if (now)
            context_pop(visit->driver);
        if (visit->current)
            visit->driver->cuCtxPushCurrent_v2(visit->current);
    }
    process_bypass_end();
}

bool nccl_ranks_agree(void)
{
    return conf_get()->backend.number == BACKEND_NCCL || atomic_load_explicit(&state.backing, memory_order_relaxed) ||
           (CUPOOL_NCCL_HOOKS && conf_get()->registration.number != REGISTER_OFF);
}

/* Where NCCL can do no better, ncclMemAlloc returns memory of cudaMalloc's kind, which cannot be registered between
 * GPUs. */
bool nccl_memory_is_shareable(uint64_t addr)
{
    const struct real_driver *driver = real_driver_get();
    unsigned int legacy = 0;

    return !driver || !driver->cuPointerGetAttribute ||
           driver->cuPointerGetAttribute(&legacy, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, addr) || !legacy;
}

/* An NCCL that does not say its version counts as the oldest version with known bugs. */
int nccl_version_of(const struct real_nccl *nccl)
{
    int version = 0;

    return nccl->ncclGetVersion(&version) || !version ? NCCL_VERSION_MAPS : version;
}

/* True if a collective must not use a registration that send or receive has used first. */
bool nccl_kinds_matter(const struct real_nccl *nccl)
{
    const int version = nccl_version_of(nccl);

    return conf_get()->registration.number != REGISTER_FORCE && version >= NCCL_VERSION_MAPS &&
           version < NCCL_VERSION_KINDS;
}

/* The reason why NCCL cannot back the pool, or NULL if it can; *ret_nccl is the copy found. */
static const char *backing_find(const struct real_nccl **ret_nccl)
{
    const struct real_nccl *nccl = real_nccl_get(NULL);
    const char *why = NULL;
    struct nccl_visit visit;
    void *ptr = NULL;

    if (!nccl)
        return "no NCCL is loaded in this process when it asks for its first memory";
    if (!nccl->ncclMemAlloc || !nccl->ncclMemFree)
        return "this NCCL has no ncclMemAlloc";
    nccl_visit_begin(&visit);
    if (nccl->ncclMemAlloc(&ptr, PROBE_BYTES) || !ptr)
        why = "ncclMemAlloc gives no memory";
    else if (!nccl_memory_is_shareable((uintptr_t)ptr))
        why = "ncclMemAlloc gives cudaMalloc's memory here";
    if (ptr)
        nccl->ncclMemFree(ptr);
    nccl_visit_end(&visit);
    *ret_nccl = nccl;
    return why;
}

size_t nccl_front_needed(void)
{
    const struct real_nccl *nccl = context_events.registers() ? real_nccl_get(NULL) : NULL;

    /* An NCCL that comes later may be of any version. */
    return context_events.registers() && (!nccl || nccl_kinds_matter(nccl)) ? FRONT_BYTES : 0;
}

/* Only the copy of NCCL that gave memory takes it back, so the first copy stays. */
static void backing_set(const struct real_nccl *nccl)
{
    const struct real_nccl *none = NULL;

    if (context_events.registers() && nccl_kinds_matter(nccl))
        atomic_store(&state.front, FRONT_BYTES);
    atomic_compare_exchange_strong(&state.backing, &none, nccl);
}

/* For the start: unlike backing_find it also keeps the copy of NCCL. */
static const char *lacks(void)
{
    const struct real_nccl *nccl = NULL;
    const char *why = backing_find(&nccl);

    if (!why)
        backing_set(nccl);
    return why;
}

static bool has_device(void)
{
    const struct real_driver *driver = real_driver_get();
    CUdevice device;

    return driver && driver->cuCtxGetDevice(&device) == CUDA_SUCCESS;
}

static int find(void)
{
    const struct real_nccl *nccl = NULL;
    const char *why;

    if (atomic_load(&state.backing))
        return 0;
    if (!has_device() || capture_active_now())
        return -EAGAIN;
    why = backing_find(&nccl);
    if (why) {
        log_write(LOG_WARN, "memory from NCCL is not possible: %s", why);
        return -ENOTSUP;
    }
    backing_set(nccl);
    return 0;
}

static bool graphs_register(void)
{
    /* NCCL copies the settings of its own files into the environment, too. */
    const char *text = getenv("NCCL_GRAPH_REGISTER");

    return !context_events.sees_operations() && !(text && strcmp(text, "0") == 0);
}

static void kept_say(void)
{
    log_once(LOG_WARN, "memory that was there when a graph was captured is not given back, because NCCL may have "
                       "registered it for the graph (NCCL_GRAPH_REGISTER=0 changes that)");
}

void nccl_works(void)
{
    atomic_store_explicit(&state.works, true, memory_order_relaxed);
}

bool nccl_graph_keeps(unsigned int time)
{
    /* With CUPOOL_HOOK=runtime NCCL's calls are not seen. */
    const bool works =
        atomic_load_explicit(&state.works, memory_order_relaxed) || conf_get()->hook.number == HOOK_RUNTIME;
    const bool keeps = works && capture_history_since(time) && graphs_register() && real_nccl_get(NULL);

    if (keeps)
        kept_say();
    return keeps;
}

static void give_back(uint64_t addr, size_t size)
{
    const struct real_nccl *nccl = atomic_load(&state.backing);
    struct nccl_visit visit;
    ncclResult_t result;

    nccl_given_remove(addr);
    nccl_visit_begin(&visit);
    result = nccl->ncclMemFree((void *)(uintptr_t)(addr - atomic_load(&state.front)));
    nccl_visit_end(&visit);
    if (result)
        log_once(LOG_WARN, "NCCL did not take back %zu bytes at %#llx (error %d)", size, (ull)addr, (int)result);
}

/* Whether NCCL refuses because of an error that the context has met: it gives no reason. */
static CUresult refusal(const struct context *context)
{
    size_t free, total;
    const CUresult result = context->driver->cuMemGetInfo_v2(&free, &total);

    return order_is_sticky(result) ? result : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult get(struct context *context, CUdeviceptr *ret_addr, size_t size)
{
    const struct real_nccl *nccl = atomic_load(&state.backing);
    const size_t front = atomic_load(&state.front);
    const unsigned int time = capture_history_now();
    const int device = context->device;
    struct nccl_visit visit;
    ncclResult_t result;
    void *ptr = NULL;
    uint64_t left;

    while ((left = nccl_given_left(device)))
        give_back(left, 0);
    nccl_visit_begin(&visit);
    result = nccl->ncclMemAlloc(&ptr, front + size);
    nccl_visit_end(&visit);
    if (result || !ptr)
        return refusal(context);
    capture_history_add((uintptr_t)ptr + front, time);
    nccl_given_add(context, device, (uintptr_t)ptr + front);
    *ret_addr = (uintptr_t)ptr + front;
    return CUDA_SUCCESS;
}

/* Keeps memory, as long as its context lives, that NCCL may have registered for a graph. */
static bool put(struct context *context, uint64_t addr, size_t size)
{
    (void)context;
    if (capture_history_saw(addr) && graphs_register())
        kept_say();
    else
        give_back(addr, size);
    return true;
}

/* The bytes that the source has put in front of addr; 0 if the memory does not come from there. */
size_t nccl_memory_front(uint64_t addr)
{
    const struct real_driver *driver = real_driver_get();
    const size_t front = atomic_load(&state.front);
    CUdeviceptr start = addr;

    return front && driver && driver->cuPointerGetAttribute &&
                   !driver->cuPointerGetAttribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, addr) &&
                   addr - start == front
               ? front
               : 0;
}

/* NCCL does not take memory back behind the work that uses it. */
const struct memory_source nccl_source = {.get = get, .put = put, .put_needs_wait = true, .lacks = lacks, .find = find};
