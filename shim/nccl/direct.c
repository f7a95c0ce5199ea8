/* SPDX-License-Identifier: Apache-2.0 */
/*
 * direct.c - see direct.h.
 *
 * Locking: direct.lock guards the tables; it is never held over a CUDA or NCCL call.
 */
#include "nccl/direct.h"

#include <pthread.h>
#include <stdatomic.h>

#include "base/conf.h"
#include "base/log.h"
#include "base/process.h"
#include "clock.h"
#include "context/arrivals.h"
#include "context/capture_gate.h"
#include "context/cuda_memory.h"
#include "context/enter.h"
#include "context/lifetime.h"
#include "context/registry.h"
#include "context/wait_device.h"
#include "nccl/direct_table.h"
#include "nccl/register_calls.h"
#include "real/real.h"
#include "trace/trace.h"

typedef unsigned long long ull;

/* The least size in bytes: smaller allocations share pages, and NCCL registers whole pages. */
#define SIZE_MIN ((size_t)2 << 20)

/* The longest wait for the device, in milliseconds, of an unmapping, which natively does not wait. */
#define UNMAP_WAIT_MS 1000u
/* How often an unmapping asks again while it waits for other threads' calls; 20 ms in all. */
#define UNMAP_TRIES 200u

static struct {
    pthread_mutex_t lock; /* guards everything below */
    struct table memory;
    struct table physical;
    struct table leaving;  /* memory that threads are about to unmap; the driver may refuse */
    struct table unmapped; /* memory that has been unmapped and is still registered */
} direct = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* The driver's result for this thread's free; CUDA_SUCCESS if the free is deferred. frees: the program is making it,
 * and it natively waits for the device. */
static __thread CUresult freed __attribute__((tls_model("initial-exec")));
static __thread bool frees __attribute__((tls_model("initial-exec")));

static bool is_on(void)
{
    if (conf_get()->registration.number != REGISTER_USE || process_is_passive() || !nccl_registers())
        return false;
    if (!process_hooks_driver())
        log_once(LOG_WARN, "CUPOOL_REGISTER=use is as 1 with CUPOOL_HOOK=runtime, which does not see all memory go");
    return process_hooks_driver();
}

/* Takes the lock. False: there was no such entry in this state. */
static bool entry_forget(struct table *table, uint64_t addr, enum state state)
{
    const struct entry *entry;
    bool found;

    pthread_mutex_lock(&direct.lock);
    entry = direct_at(table, addr);
    found = entry && entry->state == state;
    if (found)
        direct_delete(table, entry);
    pthread_mutex_unlock(&direct.lock);
    return found;
}

/* --- allocations come --- */

static void memory_add(const struct entry *entry)
{
    pthread_mutex_lock(&direct.lock);
    direct_add(&direct.memory, entry);
    pthread_mutex_unlock(&direct.lock);
}

void direct_allocated(uint64_t addr, size_t size)
{
    const struct real_driver *driver = is_on() ? real_driver_get() : NULL;
    struct context *context;

    if (!driver)
        return;
    direct_range_ends(addr, size);
    /* This also registers the context, so that we learn of its end. */
    context = size >= SIZE_MIN ? context_current(driver) : NULL;
    if (context)
        memory_add(&(struct entry){.addr = addr, .size = size, .context = context});
}

void direct_created(CUmemGenericAllocationHandle handle, size_t size)
{
    if (!is_on())
        return;
    entry_forget(&direct.physical, handle, STATE_UNUSED);
    pthread_mutex_lock(&direct.lock);
    direct_add(&direct.physical, &(struct entry){.addr = handle, .size = size});
    pthread_mutex_unlock(&direct.lock);
}

void direct_releases(CUmemGenericAllocationHandle handle)
{
    /* The value may be reused for other memory. If the program has retained the handle, it is not known any more, which
     * does no harm: the mapping is then not registered. */
    if (is_on())
        entry_forget(&direct.physical, handle, STATE_UNUSED);
}

void direct_mapped(uint64_t addr, size_t size, CUmemGenericAllocationHandle handle)
{
    const struct entry *physical;
    bool whole;

    if (!is_on())
        return;
    pthread_mutex_lock(&direct.lock);
    physical = direct_at(&direct.physical, handle);
    whole = physical && physical->size == size;
    pthread_mutex_unlock(&direct.lock);
    direct_range_ends(addr, size);
    if (whole)
        memory_add(&(struct entry){.addr = addr, .size = size});
}

/* --- an operation uses them --- */

/*
 * May the memory be registered with communicators of this device? That it is device memory, and neither managed nor of
 * a stream-ordered pool, follows from the call that made it. The driver must report the same allocation, because NCCL
 * asks the driver as well, and mapped memory must be exportable to other processes, or NCCL's call may fail.
 */
static bool is_usable(const struct entry *entry, int device)
{
    const struct real_driver *driver = real_driver_get();
    unsigned long long handle_types = 0;
    CUdeviceptr start = 0;
    size_t size = 0;
    int where = -1;

    return driver && driver->cuPointerGetAttribute &&
           !driver->cuPointerGetAttribute(&where, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, entry->addr) &&
           where == device &&
           !driver->cuPointerGetAttribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, entry->addr) &&
           start == entry->addr &&
           !driver->cuPointerGetAttribute(&size, CU_POINTER_ATTRIBUTE_RANGE_SIZE, entry->addr) &&
           (entry->context ? size >= entry->size : size == entry->size) &&
           (entry->context ||
            (!driver->cuPointerGetAttribute(&handle_types, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, entry->addr) &&
             handle_types));
}

/* The allocation that holds all of a buffer, if it is not used yet. */
static bool buffer_find(uint64_t addr, size_t size, struct entry *ret_entry)
{
    const struct entry *entry;
    bool found;

    pthread_mutex_lock(&direct.lock);
    entry = direct_before(&direct.memory, addr);
    found = entry && entry->state == STATE_UNUSED && addr - entry->addr < entry->size &&
            size <= entry->size - (addr - entry->addr);
    if (found)
        *ret_entry = *entry;
    pthread_mutex_unlock(&direct.lock);
    return found;
}

void direct_prepare(const struct nccl_reg_op *op, int device)
{
    struct entry copy, *entry;
    bool added;

    if (!is_on())
        return;
    for (unsigned int i = 0; i < NCCL_REG_BUFFERS; i++) {
        if (!op->buffers[i].size || !buffer_find(op->buffers[i].addr, op->buffers[i].size, &copy) ||
            !is_usable(&copy, device))
            continue;
        /* Release memory that was unmapped here and could not be deregistered then. */
        nccl_retry_parked(device);
        pthread_mutex_lock(&direct.lock);
        entry = direct_at(&direct.memory, copy.addr); /* NULL if it was freed meanwhile */
        added = entry && entry->state == STATE_UNUSED && entry->size == copy.size &&
                !nccl_segment_use(copy.context, device, copy.addr, copy.size);
        if (added) {
            direct_set(&direct.memory, entry, STATE_USED);
            entry->device = device;
        }
        pthread_mutex_unlock(&direct.lock);
        if (added)
            trace_event("use", "\"d\":%d,\"p\":\"0x%llx\",\"n\":%zu", device, (ull)copy.addr, copy.size);
    }
}

/* --- allocations go --- */

/* Change the state of the entry at addr from one state to another. False: it was not in that state. */
static bool entry_becomes(uint64_t addr, enum state from, enum state to)
{
    struct entry *entry;
    bool found;

    pthread_mutex_lock(&direct.lock);
    entry = direct_at(&direct.memory, addr);
    found = entry && entry->state == from;
    if (found)
        direct_set(&direct.memory, entry, to);
    pthread_mutex_unlock(&direct.lock);
    return found;
}

/* Later, or on a thread that need not wait, cuMemFree would wait for work that may wait for this thread. */
static void release_later(struct context *context, uint64_t addr, size_t size)
{
    /* A call of another thread may end the context, and with it the memory. */
    if (!context_pin(context)) {
        entry_becomes(addr, STATE_GOING, STATE_DEFERRED);
        return;
    }
    if (entry_forget(&direct.memory, addr, STATE_GOING) && cuda_source.put(context, addr, size))
        context_arrived();
    context_unpin(context);
}

/* Nothing is registered there any more: make the program's free. The entry goes first, because the driver may give the
 * address to another thread at once. There may be another one if the memory has gone unseen. */
static void release(void *arg, uint64_t addr, size_t size)
{
    const struct real_driver *driver = real_driver_get();
    CUstreamCaptureMode mode;
    bool relaxed;

    if (!frees) {
        release_later(arg, addr, size);
        return;
    }
    if (!entry_forget(&direct.memory, addr, STATE_GOING))
        return;
    relaxed = capture_mode_relax(driver, &mode);
    freed = driver->cuMemFree_v2(addr);
    capture_mode_restore(driver, relaxed, mode);
    context_arrived();
}

/*
 * Release this thread's entry in STATE_GOING once all work has ended, as natively before a free: peers write into
 * registered memory. wait: it does natively. False: the work cannot be waited for, and the entry is kept.
 */
static bool entry_let_go(const struct entry *entry, bool wait)
{
    if (!(wait ? context_wait_device(entry->device) : context_wait_device_for(entry->device, 0))) {
        entry_becomes(entry->addr, STATE_GOING, STATE_DEFERRED);
        return false;
    }
    frees = wait;
    if (nccl_segment_remove(entry->addr, release, entry->context))
        release(entry->context, entry->addr, entry->size);
    frees = false;
    return true;
}

/* A thread is about to give up the entry's memory, which the driver may refuse. The entry goes first, because another
 * thread may get other memory there at once. The caller holds the lock. */
static void entry_leaves(const struct entry *entry)
{
    const struct entry leaving = {.addr = entry->addr, .size = entry->size, .context = entry->context};

    direct_delete(&direct.memory, entry);
    direct_add(&direct.leaving, &leaving);
}

bool direct_free(uint64_t addr, bool waits, CUresult *ret_result)
{
    struct entry *entry, copy = {0};
    bool lost = false;

    if (!addr || !is_on())
        return false;
    pthread_mutex_lock(&direct.lock);
    entry = direct_at(&direct.memory, addr);
    if (entry && !entry->context) /* mapped memory: the driver does not free it by cuMemFree */
        entry = NULL;
    if (entry) {
        copy = *entry;
        /* In STATE_GOING no other thread releases the entry. */
        if (copy.state == STATE_USED)
            direct_set(&direct.memory, entry, STATE_GOING);
        else if (copy.state == STATE_UNUSED)
            entry_leaves(entry);
    }
    pthread_mutex_unlock(&direct.lock);
    if (!entry || copy.state == STATE_UNUSED)
        return false;
    *ret_result = CUDA_ERROR_INVALID_VALUE;
    if (copy.state != STATE_USED)
        return true;
    /* Memory that cannot go now is freed later; the program has no more to do with it. */
    freed = CUDA_SUCCESS;
    if (!entry_let_go(&copy, waits) && waits && context_failed(copy.context)) {
        /* The context has failed, and the communicators with it. */
        pthread_mutex_lock(&direct.lock);
        entry = direct_at(&direct.memory, addr);
        lost = entry && entry->state == STATE_DEFERRED;
        if (lost)
            direct_delete(&direct.memory, entry);
        pthread_mutex_unlock(&direct.lock);
    }
    if (lost)
        nccl_segment_lost(copy.context, addr);
    *ret_result = freed;
    return !lost;
}

/* Mapped memory is deregistered everywhere. */
static void unmapped_gone(void *arg, uint64_t addr, size_t size)
{
    (void)arg;
    (void)size;
    entry_forget(&direct.unmapped, addr, STATE_UNUSED);
}

static bool is_unmapped(uint64_t addr)
{
    bool found;

    pthread_mutex_lock(&direct.lock);
    found = direct_at(&direct.unmapped, addr) != NULL;
    pthread_mutex_unlock(&direct.lock);
    return found;
}

/* True: all work has ended. Beside a capture, which may be this thread's own, the wait is in vain: once for each. */
static bool wait_to_unmap(int device, unsigned int ms)
{
    static atomic_uint waited; /* capture_total when a thread last waited in vain */
    const unsigned int total = atomic_load(&capture_total);
    const bool again = capture_active_now() && atomic_load(&waited) == total;
    const bool done = context_wait_device_for(device, again ? 0 : ms);

    if (!done)
        atomic_store(&waited, total);
    return done;
}

/*
 * Used memory is about to be unmapped, or has gone already. The program goes on to release its memory and its
 * addresses, so only the deregistration can be deferred. Where it cannot be done now, the segment stays parked and is
 * not forgotten, because NCCL would find it for the next memory mapped here. That memory is registered only after the
 * deregistration, which direct_prepare tries again first. *ms: the longest wait for the device; 0 after one in vain.
 */
static void segment_ends(const struct entry *entry, unsigned int *ms)
{
    if (entry->state == STATE_GOING) {
        nccl_segment_lost(entry->context, entry->addr);
        return;
    }
    /* The program itself answers for its memory being out of use when it unmaps it. */
    if (!wait_to_unmap(entry->device, *ms))
        *ms = 0;
    pthread_mutex_lock(&direct.lock);
    direct_add(&direct.unmapped, &(struct entry){.addr = entry->addr, .size = entry->size});
    pthread_mutex_unlock(&direct.lock);
    if (nccl_segment_remove(entry->addr, unmapped_gone, NULL))
        unmapped_gone(NULL, entry->addr, 0);
    /* A call of another thread with a communicator ends soon, and the memory that a rank registers must not depend on
     * its timing. */
    for (unsigned int i = 0; is_unmapped(entry->addr) && i < UNMAP_TRIES && !nccl_reg_group_depth(); i++) {
        nap_ns(100000);
        nccl_retry_parked(entry->device);
    }
    if (is_unmapped(entry->addr))
        log_once(
            LOG_WARN,
            "%zu bytes at %#llx go although NCCL has them registered (a group is open, or a communicator at work); "
            "that is undone later, and what NCCL does with these addresses until then may go wrong",
            entry->size, (ull)entry->addr);
}

/* leaves: the driver may refuse, and then memory that the program has not freed stays. */
static void range_ends(uint64_t addr, size_t size, bool leaves)
{
    struct entry *entry, copy;
    unsigned int ms = UNMAP_WAIT_MS;

    if (!is_on())
        return;
    do {
        pthread_mutex_lock(&direct.lock);
        entry = direct_overlapping(&direct.memory, addr, size);
        if (entry) {
            copy = *entry;
            if (leaves && (copy.state == STATE_UNUSED || copy.state == STATE_USED))
                entry_leaves(entry);
            else
                direct_delete(&direct.memory, entry);
        }
        pthread_mutex_unlock(&direct.lock);
        if (entry && copy.state != STATE_UNUSED)
            segment_ends(&copy, &ms);
    } while (entry);
}

void direct_range_ends(uint64_t addr, size_t size)
{
    range_ends(addr, size, /* leaves: */ false);
}

void direct_unmaps(uint64_t addr, size_t size)
{
    range_ends(addr, size, /* leaves: */ true);
}

void direct_unmapped(uint64_t addr, size_t size, bool done)
{
    struct entry *entry, copy;

    if (!is_on())
        return;
    pthread_mutex_lock(&direct.lock);
    while ((entry = direct_overlapping(&direct.leaving, addr, size))) {
        copy = *entry;
        direct_delete(&direct.leaving, entry);
        if (!done && !direct_overlapping(&direct.memory, copy.addr, copy.size))
            direct_add(&direct.memory, &copy);
    }
    pthread_mutex_unlock(&direct.lock);
}

void direct_context_gone(const struct context *context)
{
    if (!is_on())
        return;
    pthread_mutex_lock(&direct.lock);
    direct_delete_of(&direct.memory, context);
    direct_delete_of(&direct.leaving, context);
    pthread_mutex_unlock(&direct.lock);
}

/* --- again, what could not go --- */

/* The longest time, in milliseconds, that a refused request or a trim waits for other threads that release memory. */
#define RETRY_WAIT_MS 1000u

/* Threads that are inside nccl_retry_parked; `retries`: this thread is one of them, perhaps in a call of NCCL. */
static atomic_uint retrying;
static __thread bool retries __attribute__((tls_model("initial-exec")));

static void freed_retry(int device)
{
    struct entry copy = {0};
    bool more;

    if (!is_on())
        return;
    do {
        more = false;
        pthread_mutex_lock(&direct.lock);
        for (size_t i = direct.memory.deferred ? direct_after(&direct.memory, copy.addr) : direct.memory.count;
             i < direct.memory.count && !more; i++) {
            copy = direct.memory.entries[i];
            more = copy.state == STATE_DEFERRED && (device < 0 || device == copy.device);
        }
        pthread_mutex_unlock(&direct.lock);
        if (more && entry_becomes(copy.addr, STATE_DEFERRED, STATE_GOING))
            entry_let_go(&copy, /* wait: */ false);
    } while (more);
}

size_t nccl_retry_parked(int device)
{
    size_t released;

    if (retries || !nccl_registers())
        return 0;
    retries = true;
    atomic_fetch_add(&retrying, 1);
    freed_retry(device);
    released = nccl_reg_retry_parked(nccl_registry(), device);
    atomic_fetch_sub(&retrying, 1);
    retries = false;
    return released;
}

size_t nccl_retry_parked_wait(int device)
{
    const size_t released = nccl_retry_parked(device);

    for (unsigned int i = 0; atomic_load(&retrying) && !retries && i < RETRY_WAIT_MS; i++)
        nap_ns(1000000);
    return released;
}
