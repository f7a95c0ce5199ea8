/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nccl.c - see nccl.h. The implementation of nccl_reg's table with NCCL's functions, and ncclMemAlloc as the pool's
 * backend.
 *
 * Locking: none of its own; `state` is atomic or set once.
 */
#include "nccl/nccl.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/log.h"
#include "base/process.h"
#include "clock.h"
#include "context/births.h"
#include "context/capture.h"
#include "context/context.h"
#include "nccl/use.h"
#include "real/caller.h"
#include "real/real.h"
#include "trace/trace.h"

typedef unsigned long long ull;

/* The bytes of the ncclMemAlloc call that finds out whether NCCL can give memory. */
#define PROBE_BYTES ((size_t)2 << 20)
/* The bytes in front of a segment where NCCL needs one registration for each kind of operation. Segments are aligned to
 * as much. */
#define FRONT_BYTES ((size_t)2 << 20)
/* The longest time, in milliseconds, that a refused request waits for other threads that are releasing memory. */
#define SETTLE_MS 1000u

enum { UNDECIDED, BACKED_BY_CUDA, BACKED_BY_NCCL };

static struct {
    pthread_once_t once;
    _Atomic(struct nccl_reg *) reg; /* NULL: nothing is registered; set once */
    atomic_int backend;             /* one of the values above */
    /* The copy of NCCL that the pool's memory comes from, if any; set once. */
    _Atomic(const struct real_nccl *) backing;
    atomic_size_t front; /* bytes in front of each of its segments; written before backing */
} state = {.once = PTHREAD_ONCE_INIT};

/* Threads that are inside nccl_settle; `settles`: this thread is one of them, perhaps in a call of NCCL. */
static atomic_uint settling;
static __thread bool settles __attribute__((tls_model("initial-exec")));

/* This thread has made a communicator in its open group; the communicator is not ready before the group has ended. */
static __thread bool made_in_group __attribute__((tls_model("initial-exec")));
/* Communicators that the end of this thread's group destroys. Until then NCCL has them and their registrations. */
struct ending {
    struct ending *next;
    ncclComm_t comm;
};
static __thread struct ending *ending __attribute__((tls_model("initial-exec")));
/* The result of the real ncclMemFree, for nccl_user_memory_free. */
static __thread ncclResult_t freed __attribute__((tls_model("initial-exec")));

/* --- our own calls --- */

void nccl_visit_begin(struct nccl_visit *visit)
{
    process_bypass_begin();
    visit->driver = real_driver_get();
    visit->current = NULL;
    visit->mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    visit->relaxed = visit->driver && visit->driver->cuThreadExchangeStreamCaptureMode &&
                     visit->driver->cuThreadExchangeStreamCaptureMode(&visit->mode) == CUDA_SUCCESS;
    if (visit->driver && visit->driver->cuCtxGetCurrent(&visit->current))
        visit->driver = NULL;
}

void nccl_visit_end(struct nccl_visit *visit)
{
    CUcontext now = NULL, ignored;

    if (visit->relaxed)
        real_driver_get()->cuThreadExchangeStreamCaptureMode(&visit->mode);
    if (visit->driver && visit->driver->cuCtxGetCurrent(&now) == CUDA_SUCCESS && now != visit->current) {
        if (now)
            visit->driver->cuCtxPopCurrent_v2(&ignored);
        if (visit->current)
            visit->driver->cuCtxPushCurrent_v2(visit->current);
    }
    process_bypass_end();
}

static int current_device(void)
{
    const struct real_driver *driver = real_driver_get();
    CUdevice device;

    return driver && driver->cuCtxGetDevice(&device) == CUDA_SUCCESS ? device : -1;
}

/* --- the table for nccl_reg --- */

static void trace_call(const char *event, const struct nccl_reg_comm_info *info, void *comm, uint64_t addr, size_t size,
                       uint64_t ns, ncclResult_t result)
{
    trace_event(event, "\"d\":%d,\"p\":\"0x%llx\",\"n\":%zu,\"comm\":\"%p\",\"us\":%llu.%llu,\"ok\":%d", info->device,
                (ull)addr, size, comm, (ull)(ns / 1000), (ull)(ns / 100 % 10), !result);
}

static int comm_attach(const struct nccl_reg_comm_info *info, void *comm, uint64_t addr, size_t size, void **ret_handle)
{
    const struct real_nccl *nccl = info->arg;
    void *handle = NULL; /* NCCL does not always write it */
    struct nccl_visit visit;
    ncclResult_t result;
    uint64_t start;

    nccl_visit_begin(&visit);
    start = now_ns();
    result = nccl->ncclCommRegister(comm, (void *)(uintptr_t)addr, size, &handle);
    trace_call("register", info, comm, addr, size, now_ns() - start, result);
    nccl_visit_end(&visit);
    if (result)
        log_once(LOG_WARN, "NCCL did not register %zu bytes at %#llx (error %d); they are used without", size,
                 (ull)addr, (int)result);
    else if (!handle)
        log_once(LOG_WARN, "NCCL registers nothing (is NCCL_LOCAL_REGISTER=0 set?)");
    *ret_handle = handle;
    return result ? -EIO : 0;
}

static int comm_detach(const struct nccl_reg_comm_info *info, void *comm, uint64_t addr, size_t size, void *handle)
{
    const struct real_nccl *nccl = info->arg;
    struct nccl_visit visit;
    ncclResult_t result;
    uint64_t start;

    nccl_visit_begin(&visit);
    start = now_ns();
    result = nccl->ncclCommDeregister(comm, handle);
    trace_call("deregister", info, comm, addr, size, now_ns() - start, result);
    nccl_visit_end(&visit);
    if (result)
        log_once(LOG_WARN, "NCCL did not deregister %zu bytes at %#llx (error %d); they are not given back", size,
                 (ull)addr, (int)result);
    return result ? -EIO : 0;
}

static int comm_state(const struct real_nccl *nccl, void *comm)
{
    ncclResult_t now = ncclInProgress, result;
    struct nccl_visit visit;

    nccl_visit_begin(&visit);
    result = nccl->ncclCommGetAsyncError(comm, &now);
    nccl_visit_end(&visit);
    return !result && !now ? 0 : !result && now == ncclInProgress ? -EINPROGRESS : -EIO;
}

static int comm_ask(const struct nccl_reg_comm_info *info, void *comm)
{
    return comm_state(info->arg, comm);
}

static int comm_wait(const struct nccl_reg_comm_info *info, unsigned int ms)
{
    return context_wait_device_for(info->device, ms) ? 0 : -EBUSY;
}

static bool owner_hold(void *owner)
{
    return context_pin(owner);
}

static void owner_drop(void *owner)
{
    context_unpin(owner);
}

static const struct nccl_reg_ops ops = {.attach = comm_attach,
                                        .detach = comm_detach,
                                        .ask = comm_ask,
                                        .wait = comm_wait,
                                        .hold = owner_hold,
                                        .drop = owner_drop};

static void begin(void)
{
    struct nccl_reg *reg;

    if (nccl_reg_create(&ops, &reg) == 0)
        atomic_store(&state.reg, reg);
}

bool nccl_registers(void)
{
    if (conf_get()->registration.number == REGISTER_OFF)
        return false;
    if (!CUPOOL_NCCL_HOOKS) {
        log_once(LOG_WARN, "CUPOOL_REGISTER has no effect: it takes libcupool-nccl.so in place of libcupool.so "
                           "(cupool-run --register sees to that)");
        return false;
    }
    pthread_once(&state.once, begin);
    return state.reg != NULL;
}

bool nccl_ranks_agree(void)
{
    return conf_get()->backend.number == BACKEND_NCCL || atomic_load_explicit(&state.backing, memory_order_relaxed) ||
           (CUPOOL_NCCL_HOOKS && conf_get()->registration.number != REGISTER_OFF);
}

/* --- the pool's memory --- */

/* Where NCCL can do no better, ncclMemAlloc returns memory of cudaMalloc's kind, which cannot be registered between
 * GPUs. */
static bool is_shareable(uint64_t addr)
{
    const struct real_driver *driver = real_driver_get();
    unsigned int legacy = 0;

    return !driver || !driver->cuPointerGetAttribute ||
           driver->cuPointerGetAttribute(&legacy, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, addr) || !legacy;
}

/* An NCCL that does not say its version counts as the oldest version with known bugs. */
static int version_of(const struct real_nccl *nccl)
{
    int version = 0;

    return nccl->ncclGetVersion(&version) || !version ? NCCL_VERSION_MAPS : version;
}

/* True if a collective must not use a registration that send or receive has used first. */
static bool kinds_matter(const struct real_nccl *nccl)
{
    const int version = version_of(nccl);

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
    else if (!is_shareable((uintptr_t)ptr))
        why = "ncclMemAlloc gives cudaMalloc's memory here";
    if (ptr)
        nccl->ncclMemFree(ptr);
    nccl_visit_end(&visit);
    *ret_nccl = nccl;
    return why;
}

/* Only the copy of NCCL that gave memory takes it back, so the first copy stays. */
static void backing_set(const struct real_nccl *nccl)
{
    const struct real_nccl *none = NULL;

    if (nccl_registers() && kinds_matter(nccl))
        atomic_store(&state.front, FRONT_BYTES);
    atomic_compare_exchange_strong(&state.backing, &none, nccl);
}

bool nccl_backs(void)
{
    int decided = atomic_load_explicit(&state.backend, memory_order_acquire), undecided = UNDECIDED;
    const struct real_nccl *nccl = NULL;
    const char *why;

    if (decided != UNDECIDED || conf_get()->backend.number != BACKEND_NCCL)
        return decided == BACKED_BY_NCCL;
    /* Several threads may get here at once; they find the same answer, and the first one's is kept. */
    why = backing_find(&nccl);
    if (!why)
        backing_set(nccl);
    if (atomic_compare_exchange_strong(&state.backend, &undecided, why ? BACKED_BY_CUDA : BACKED_BY_NCCL) && why)
        log_write(LOG_WARN, "CUPOOL_BACKEND=nccl is not possible: %s; all memory comes from cudaMalloc", why);
    return atomic_load(&state.backend) == BACKED_BY_NCCL;
}

int nccl_backing_find(void)
{
    const struct real_nccl *nccl = NULL;
    const char *why;

    if (atomic_load(&state.backing))
        return 0;
    if (current_device() < 0 || capture_active_now())
        return -EAGAIN;
    why = backing_find(&nccl);
    if (why) {
        log_write(LOG_WARN, "memory from NCCL is not possible: %s", why);
        return -ENOTSUP;
    }
    backing_set(nccl);
    return 0;
}

void nccl_backing_set(bool nccl)
{
    atomic_store(&state.backend, nccl ? BACKED_BY_NCCL : BACKED_BY_CUDA);
}

static bool graphs_register(void)
{
    /* NCCL copies the settings of its own files into the environment, too. */
    const char *text = getenv("NCCL_GRAPH_REGISTER");

    return !nccl_registers() && !(text && strcmp(text, "0") == 0);
}

int nccl_memory_alloc(size_t size, uint64_t *ret_addr)
{
    const struct real_nccl *nccl = atomic_load(&state.backing);
    const size_t front = atomic_load(&state.front);
    const unsigned int time = births_now();
    struct nccl_visit visit;
    ncclResult_t result;
    void *ptr = NULL;

    nccl_visit_begin(&visit);
    result = nccl->ncclMemAlloc(&ptr, front + size);
    nccl_visit_end(&visit);
    if (result || !ptr)
        return -ENOMEM;
    births_add((uintptr_t)ptr + front, time);
    *ret_addr = (uintptr_t)ptr + front;
    return 0;
}

void nccl_memory_free(uint64_t addr, size_t size)
{
    const struct real_nccl *nccl = atomic_load(&state.backing);
    struct nccl_visit visit;
    ncclResult_t result;

    if (births_captured(addr) && graphs_register()) {
        log_once(LOG_WARN, "memory that was there when a graph was captured is not given back to NCCL, which may have "
                           "registered it for the graph (NCCL_GRAPH_REGISTER=0 changes that)");
        return;
    }
    nccl_visit_begin(&visit);
    result = nccl->ncclMemFree((void *)(uintptr_t)(addr - atomic_load(&state.front)));
    nccl_visit_end(&visit);
    if (result)
        log_once(LOG_WARN, "NCCL did not take back %zu bytes at %#llx (error %d)", size, (ull)addr, (int)result);
}

/* The bytes that nccl_memory_alloc has put in front of addr; 0 if the memory does not come from there. */
static size_t front_of(uint64_t addr)
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

void nccl_segment_add(struct context *owner, int device, uint64_t addr, size_t size)
{
    struct nccl_reg_segment_info info = {.addr = addr, .size = size, .device = device, .owner = owner};
    int rc;

    if (!nccl_registers())
        return;
    use_range_ends(addr, size);
    info.front = front_of(addr);
    info.plain = !is_shareable(addr);
    rc = nccl_reg_segment_add(state.reg, &info);
    if (rc == -EEXIST) {
        /* The earlier segment here went with its context, without a call of our hooks, or before one. */
        nccl_reg_range_lost(state.reg, addr, size);
        rc = nccl_reg_segment_add(state.reg, &info);
    }
    if (rc)
        log_once(LOG_WARN, "%zu bytes at %#llx will not be registered with NCCL", size, (ull)addr);
}

int nccl_segment_use(struct context *owner, int device, uint64_t addr, size_t size)
{
    /* Memory without an owner was mapped with cuMemMap. */
    const struct nccl_reg_segment_info info = {
        .addr = addr, .size = size, .device = device, .plain = owner != NULL, .own = true, .owner = owner};

    return nccl_reg_segment_add(state.reg, &info);
}

int nccl_segment_remove(uint64_t addr, void (*release)(void *arg, uint64_t addr, size_t size), void *arg)
{
    return nccl_registers() ? nccl_reg_segment_remove(state.reg, addr, release, arg) : -ENOENT;
}

void nccl_segment_lost(const struct context *owner, uint64_t addr)
{
    if (nccl_registers())
        nccl_reg_segment_lost(state.reg, addr, owner);
}

void nccl_owner_lost(const struct context *owner)
{
    if (nccl_registers())
        nccl_reg_owner_lost(state.reg, owner);
}

size_t nccl_settle(int device)
{
    size_t released;

    if (settles || !nccl_registers())
        return 0;
    settles = true;
    atomic_fetch_add(&settling, 1);
    use_settle(device);
    released = nccl_reg_retry_parked(state.reg, device);
    atomic_fetch_sub(&settling, 1);
    settles = false;
    return released;
}

size_t nccl_settle_refused(int device)
{
    const size_t released = nccl_settle(device);

    for (unsigned int i = 0; atomic_load(&settling) && !settles && i < SETTLE_MS; i++)
        nap_ns(1000000);
    return released;
}

/* --- for the hooks --- */

bool nccl_watches(const void *caller)
{
    /* This check is a large part of an operation's overhead, so the settings are read only until reg is set. */
    const bool there = atomic_load(&state.reg) != NULL;

    return (there || conf_get()->registration.number != REGISTER_OFF) && !process_is_passive() &&
           caller_of(caller) != CALLER_INSIDE && (there || nccl_registers());
}

/* Read the device, rank and size of a communicator that is ready. */
static bool comm_describe(const struct real_nccl *nccl, ncclComm_t comm, struct nccl_reg_comm_info *info)
{
    struct nccl_visit visit;
    bool known;

    nccl_visit_begin(&visit);
    known = !nccl->ncclCommCuDevice(comm, &info->device) && !nccl->ncclCommUserRank(comm, &info->rank) &&
            !nccl->ncclCommCount(comm, &info->ranks);
    nccl_visit_end(&visit);
    return known;
}

/*
 * Add a communicator to the registry. However it was made, it is ready when the program uses it, or that use fails.
 * Only inside the group that made it, it looks ready too early.
 */
static bool comm_meet(ncclComm_t comm, const void *caller)
{
    const struct real_nccl *nccl = real_nccl_get(caller);
    /* NCCL copies the settings of its own files into the environment, too. */
    const char *legacy = getenv("NCCL_LEGACY_CUDA_REGISTER");
    struct nccl_reg_comm_info info = {.arg = (void *)nccl};
    int version;

    if (!nccl || !nccl->ncclCommRegister || !nccl->ncclCommDeregister || !nccl->ncclCommGetAsyncError ||
        !nccl->ncclCommCuDevice || !nccl->ncclCommUserRank || !nccl->ncclCommCount) {
        log_once(LOG_WARN, "this NCCL cannot register memory (it takes 2.19 or later)");
        return false;
    }
    if ((made_in_group && nccl_reg_group_depth()) || comm_state(nccl, comm) || !comm_describe(nccl, comm, &info))
        return false;
    version = version_of(nccl);
    info.careful = kinds_matter(nccl);
    info.maps_plain = version < NCCL_VERSION_NO_LEGACY || (legacy && strcmp(legacy, "0") != 0);
    if (nccl_reg_comm_add(state.reg, comm, &info))
        return false;
    process_start();
    trace_open();
    trace_event("comm_init", "\"d\":%d,\"comm\":\"%p\",\"rank\":%d,\"ranks\":%d,\"nccl\":%d", info.device, (void *)comm,
                info.rank, info.ranks, version);
    return true;
}

bool nccl_comm_get(ncclComm_t comm, const void *caller, struct nccl_reg_comm_info *ret_info)
{
    if (!comm)
        return false;
    return nccl_reg_comm_get(state.reg, comm, ret_info) == 0 ||
           (comm_meet(comm, caller) && nccl_reg_comm_get(state.reg, comm, ret_info) == 0);
}

bool nccl_comm_is_open(ncclComm_t comm)
{
    return nccl_reg_comm_is_open(state.reg, comm);
}

int nccl_comm_ask(ncclComm_t comm)
{
    return nccl_reg_comm_ask(state.reg, comm);
}

void nccl_comm_made(const ncclComm_t *comm, ncclResult_t result, const void *caller)
{
    if (!comm || !*comm || (result && result != ncclInProgress))
        return;
    /* An earlier communicator at this address has gone without a call of our hooks. */
    nccl_reg_comm_remove(state.reg, *comm, /* talk: */ false);
    if (nccl_reg_group_depth())
        made_in_group = true;
    else if (!result)
        comm_meet(*comm, caller);
}

void nccl_comm_ends(ncclComm_t comm, enum nccl_end how)
{
    struct nccl_reg_comm_info info;

    if (!comm || nccl_reg_comm_get(state.reg, comm, &info))
        return;
    if (how == NCCL_END_SILENT || how == NCCL_END_CLOSE)
        nccl_reg_comm_close(state.reg, comm);
    else if (!(how == NCCL_END_FINALIZE ? nccl_reg_comm_finalize(state.reg, comm)
                                        : nccl_reg_comm_remove(state.reg, comm, /* talk: */ true)))
        trace_event("comm_destroy", "\"d\":%d,\"comm\":\"%p\",\"ok\":1", info.device, (void *)comm);
}

/* Registrations left with the communicator belonged to NCCL until now. */
static void comm_gone(ncclComm_t comm)
{
    struct nccl_reg_comm_info info;

    if (!nccl_reg_comm_get(state.reg, comm, &info) && !nccl_reg_comm_gone(state.reg, comm))
        trace_event("comm_destroy", "\"d\":%d,\"comm\":\"%p\",\"ok\":0", info.device, (void *)comm);
}

void nccl_comm_ended(ncclComm_t comm, enum nccl_end how, ncclResult_t result)
{
    if (!comm)
        return;
    /* ncclInvalidArgument: the revocation was refused, and the communicator goes on. After any other error NCCL has
     * already given up the communicator's work. */
    if (how == NCCL_END_CLOSE && result == ncclInvalidArgument)
        nccl_reg_comm_reopen(state.reg, comm);
    if (how == NCCL_END_SILENT || how == NCCL_END_TALK) {
        struct ending *one = nccl_reg_group_depth() ? malloc(sizeof(*one)) : NULL;

        if (one) {
            *one = (struct ending){.next = ending, .comm = comm};
            ending = one;
        } else {
            comm_gone(comm);
        }
    }
    /* After an abort no call is made on other communicators: their peers may hang, too. */
    if (how == NCCL_END_TALK || how == NCCL_END_FINALIZE)
        nccl_settle(-1);
}

struct nccl_reg_comm *nccl_use_begin(ncclComm_t comm, const void *caller)
{
    struct nccl_reg_comm_info info;
    struct nccl_reg_comm *used = NULL;

    if (nccl_comm_get(comm, caller, &info))
        nccl_reg_before_call(state.reg, comm, &used);
    return used;
}

struct nccl_reg_comm *nccl_before(ncclComm_t comm, const struct nccl_reg_comm_info *info, struct nccl_reg_op *op,
                                  cudaStream_t stream)
{
    struct nccl_reg_comm *used;
    int found;

    op->captured = capture_active_on(stream);
    use_prepare(op, info->device);
    found = nccl_reg_before_op(state.reg, comm, op, &used);
    if (found < 0)
        return NULL;
    if (found & NCCL_REG_MIXED)
        log_once(LOG_WARN,
                 "an NCCL operation has one buffer in registered memory and one outside; if that is not so on "
                 "all ranks, the job may hang (CUPOOL_REGISTER=0 registers nothing)");
    if (found & NCCL_REG_UNSAFE)
        log_once(LOG_ERROR,
                 "a collective uses memory that send or receive has used first, and the device is at work (or "
                 "cannot be asked, before CUDA 12.5), or a graph or the program itself holds its registration; NCCL "
                 "before 2.29.2 may end the job (CUPOOL_REGISTER=0 registers nothing)");
    return used;
}

void nccl_after(ncclComm_t comm, struct nccl_reg_comm *used, ncclResult_t result)
{
    if (result == ncclInProgress)
        nccl_reg_comm_nonblocking(state.reg, comm);
    nccl_reg_after_op(used);
}

void nccl_group_started(void)
{
    nccl_reg_group_start();
}

void nccl_group_ended(ncclResult_t result)
{
    nccl_reg_group_end(result == ncclInProgress);
    made_in_group = made_in_group && nccl_reg_group_depth();
    while (ending && !nccl_reg_group_depth()) {
        struct ending *one = ending;

        ending = one->next;
        comm_gone(one->comm);
        free(one);
    }
}

void nccl_user_memory(uint64_t addr, size_t size)
{
    const struct real_driver *driver = real_driver_get();
    const int device = current_device();

    if (device >= 0)
        nccl_segment_add(context_current(driver), device, addr, size);
}

static void user_release(void *arg, uint64_t addr, size_t size)
{
    ncclResult_t (*next)(void *) = (__typeof__(next))arg;
    struct nccl_visit visit;

    (void)size;
    nccl_visit_begin(&visit);
    freed = next((void *)(uintptr_t)addr);
    nccl_visit_end(&visit);
    context_arrived();
}

ncclResult_t nccl_user_memory_free(void *ptr, ncclResult_t (*next)(void *))
{
    /* Memory that cannot go now is released later; the program has no more to do with it. */
    int rc;

    freed = ncclSuccess;
    rc = nccl_segment_remove((uintptr_t)ptr, user_release, (void *)next);
    /* -EALREADY: the memory waits to be released and has no owner; natively the driver would not know the address. */
    return rc == -EALREADY ? ncclUnhandledCudaError : rc ? next(ptr) : freed;
}

int nccl_user_registered(ncclComm_t comm, void *handle, uint64_t addr, size_t size)
{
    return nccl_reg_user_add(state.reg, comm, handle, addr, size);
}

int nccl_user_deregistered(ncclComm_t comm, void *handle)
{
    return nccl_reg_user_remove(state.reg, comm, handle);
}

bool nccl_stats_get(struct nccl_reg_stats *ret_stats)
{
    if (!state.reg)
        return false;
    nccl_reg_stats_get(state.reg, ret_stats);
    return true;
}
