/* SPDX-License-Identifier: Apache-2.0 */
/*
 * guard.c - see guard.h.
 *
 * Locking: guard.lock guards the table; a leaf, never held over a CUDA call.
 */
#include "report/guard.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/conf.h"
#include "base/log.h"
#include "base/process.h"
#include "clock.h"
#include "context/own_stream.h"
#include "hash.h"
#include "lock.h"
#include "real/caller.h"
#include "real/real.h"

/* The least number of guard bytes behind a block; they also fill the rest of its rounded size. */
#define GUARD_MIN  256u
#define GUARD_BYTE 0xfd
#define UNIT       512u
/* The longest waits of the report at exit, in nanoseconds: for the device in all, and for the lock. */
#define EXIT_WAIT_NS 2000000000u
#define EXIT_LOCK_NS 200000000u
/* The number of callers that the report at exit lists; the rest is summed up. */
#define CALLERS_MAX 64

struct entry {
    uint64_t addr; /* 0: not in use */
    size_t size;
    const void *caller;
    struct context *context; /* NULL: its guard bytes cannot be checked */
};

atomic_int guard_mode;

static struct {
    struct lock lock;    /* guards the members below */
    struct entry *table; /* open addressing */
    size_t slots, used;
    bool full; /* no host memory for a larger table: the report is incomplete */
} guard;

bool guard_own(void)
{
    return atomic_load_explicit(&guard_mode, memory_order_relaxed) == DEBUG_OWN;
}

/* --- the table; the caller holds the lock --- */

static size_t home(uint64_t addr)
{
    return (size_t)(hash_of(addr >> 8) >> 20) & (guard.slots - 1);
}

static struct entry *find(uint64_t addr)
{
    for (size_t i = guard.slots ? home(addr) : 0; guard.slots && guard.table[i].addr; i = (i + 1) & (guard.slots - 1))
        if (guard.table[i].addr == addr)
            return &guard.table[i];
    return NULL;
}

static void put(const struct entry *entry)
{
    size_t i = home(entry->addr);

    while (guard.table[i].addr && guard.table[i].addr != entry->addr)
        i = (i + 1) & (guard.slots - 1);
    guard.used += guard.table[i].addr == 0;
    guard.table[i] = *entry;
}

/* Make room for one more entry. */
static bool grow(void)
{
    struct entry *old = guard.table;
    const size_t slots = guard.slots;

    if ((guard.used + 1) * 2 <= slots)
        return true;
    guard.table = calloc(slots ? slots * 2 : 1024, sizeof(*old));
    if (!guard.table) {
        guard.table = old;
        guard.full = true;
        return false;
    }
    guard.slots = slots ? slots * 2 : 1024;
    guard.used = 0;
    for (size_t i = 0; i < slots; i++)
        if (old[i].addr)
            put(&old[i]);
    free(old);
    return true;
}

/* Move later entries of the probe sequence up into the hole. */
static void take(struct entry *entry)
{
    size_t hole = (size_t)(entry - guard.table);

    for (size_t i = (hole + 1) & (guard.slots - 1); guard.table[i].addr; i = (i + 1) & (guard.slots - 1)) {
        const size_t at = home(guard.table[i].addr);

        if (((i - at) & (guard.slots - 1)) < ((i - hole) & (guard.slots - 1)))
            continue;
        guard.table[hole] = guard.table[i];
        hole = i;
    }
    guard.table[hole].addr = 0;
    guard.used--;
}

/* --- guard bytes --- */

/* The guard bytes behind a block; they end where the block ends. */
static size_t guard_size(size_t size)
{
    return guard_padded(size) - size;
}

/* Check the guard bytes. limit: see context_read. False: they could not be read. */
static bool guard_check(const struct entry *entry, uint64_t limit, const char *when)
{
    unsigned char bytes[GUARD_MIN + UNIT];
    const size_t size = guard_size(entry->size);
    char caller[256];

    if (!entry->context)
        return true;
    if (context_read(entry->context, entry->addr + entry->size, bytes, size, limit))
        return false;
    for (size_t i = 0; i < size; i++) {
        if (bytes[i] == GUARD_BYTE)
            continue;
        caller_name(entry->caller, caller, sizeof(caller));
        log_write(LOG_ERROR,
                  "overrun: byte %zu of a block of %zu bytes at %#" PRIx64 ", from %s, was written (seen %s)",
                  entry->size + i, entry->size, entry->addr, caller, when);
        break;
    }
    return true;
}

size_t guard_padded(size_t size)
{
    if (atomic_load_explicit(&guard_mode, memory_order_relaxed) != DEBUG_GUARD || size > SIZE_MAX / 2)
        return size;
    return (size + GUARD_MIN + UNIT - 1) / UNIT * UNIT;
}

void guard_alloc(struct context *context, uint64_t addr, size_t size, const void *caller)
{
    struct entry entry = {.addr = addr, .size = size, .caller = caller};
    const int mode = atomic_load_explicit(&guard_mode, memory_order_relaxed);

    if (mode == DEBUG_GUARD && context && context_write(context, addr + size, GUARD_BYTE, guard_size(size)) == 0)
        entry.context = context;
    lock_take(&guard.lock);
    if (grow())
        put(&entry);
    lock_give(&guard.lock);
}

void guard_block_size(uint64_t addr, size_t *size)
{
    const struct entry *found;

    lock_take(&guard.lock);
    found = find(addr);
    if (found)
        *size = found->size;
    lock_give(&guard.lock);
}

void guard_free(uint64_t addr, bool may_wait)
{
    struct entry entry = {0}, *found;

    if (!addr)
        return;
    lock_take(&guard.lock);
    found = find(addr);
    if (found) {
        entry = *found;
        take(found);
    }
    lock_give(&guard.lock);
    if (entry.addr)
        guard_check(&entry, may_wait ? 0 : now_ns(), "at its free");
}

void guard_context_gone(const struct context *context)
{
    lock_take(&guard.lock);
    for (size_t slot = 0; slot < guard.slots; slot++)
        if (guard.table[slot].context == context)
            guard.table[slot].context = NULL;
    lock_give(&guard.lock);
}

/* --- at exit --- */

struct leak {
    const void *caller;
    size_t count, bytes;
};

static unsigned int leaks_sum(struct leak *leaks, struct leak *ret_rest)
{
    unsigned int count = 0, i;

    lock_take(&guard.lock);
    for (size_t slot = 0; slot < guard.slots; slot++) {
        const struct entry *entry = &guard.table[slot];
        struct leak *leak = ret_rest;

        if (!entry->addr)
            continue;
        for (i = 0; i < count && leaks[i].caller != entry->caller; i++)
            ;
        if (i < CALLERS_MAX) {
            leak = &leaks[i];
            count += i == count;
            leak->caller = entry->caller;
        }
        leak->count++;
        leak->bytes += entry->size;
    }
    lock_give(&guard.lock);
    return count;
}

/* Move the leak of most bytes to the front. */
static void most_first(struct leak *leaks, unsigned int count)
{
    for (unsigned int i = 1; i < count; i++) {
        const struct leak leak = leaks[i];

        if (leak.bytes > leaks[0].bytes) {
            leaks[i] = leaks[0];
            leaks[0] = leak;
        }
    }
}

/* Check all live blocks, in a copy of the table, because other threads may still run. Nothing at exit calls malloc, in
 * whose middle exit() in a signal handler may have come: hence the mapping, and no qsort. */
static void guards_check(void)
{
    const uint64_t limit = now_ns() + EXIT_WAIT_NS;
    const struct context *context;
    struct entry *copy = MAP_FAILED;
    bool unread = false;
    size_t slots;

    lock_take(&guard.lock);
    slots = guard.slots;
    if (slots)
        copy = mmap(NULL, slots * sizeof(*copy), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (copy != MAP_FAILED)
        memcpy(copy, guard.table, slots * sizeof(*copy));
    lock_give(&guard.lock);
    if (copy == MAP_FAILED)
        return;
    process_bypass_begin();
    for (size_t slot = 0; slot < slots; slot++) {
        context = copy[slot].context;
        if (!copy[slot].addr || guard_check(&copy[slot], limit, "at exit"))
            continue;
        /* The work of this context may never end, while another context's has ended. */
        for (size_t i = slot; i < slots; i++)
            if (copy[i].context == context)
                copy[i].context = NULL;
        unread = true;
    }
    process_bypass_end();
    if (unread)
        log_write(LOG_WARN, "some blocks were not looked at: the device is still at work, or they could not be read");
    munmap(copy, slots * sizeof(*copy));
}

/* The report at exit. Its exit handler is registered after the driver's own, so the driver still works. */
static void report(void)
{
    struct leak leaks[CALLERS_MAX] = {{0}}, rest = {0};
    unsigned int count;
    char caller[256];

    if (process_is_passive() || process_is_foreign())
        return;
    /* exit() in a signal handler may have interrupted the holder of the lock. */
    if (!lock_take_within(&guard.lock, EXIT_LOCK_NS)) {
        log_write(LOG_WARN, "no report of what was not freed: the process ends in the middle of a call");
        return;
    }
    lock_give(&guard.lock);
    guards_check();
    count = leaks_sum(leaks, &rest);
    for (unsigned int i = 0; i < count; i++) {
        most_first(leaks + i, count - i);
        caller_name(leaks[i].caller, caller, sizeof(caller));
        log_write(LOG_WARN, "not freed: %zu bytes in %zu blocks, from %s", leaks[i].bytes, leaks[i].count, caller);
    }
    if (rest.count)
        log_write(LOG_WARN, "not freed: %zu bytes in %zu blocks, from elsewhere", rest.bytes, rest.count);
    if (guard.full)
        log_write(LOG_WARN, "this is not all: there was no memory to keep account");
}

void guard_start(void)
{
    static const char *const tools[] = {"libsanitizer-collection.so", "libcudadebugger.so"};
    int mode = (int)conf_get()->debug.number;

    for (unsigned int i = 0; mode == DEBUG_OFF && i < sizeof(tools) / sizeof(tools[0]); i++) {
        if (!real_is_loaded(tools[i]))
            continue;
        log_write(LOG_INFO, "%s is loaded: every request is a driver allocation of its own", tools[i]);
        mode = DEBUG_OWN;
    }
    atomic_store(&guard_mode, mode);
    if (conf_get()->debug.number != DEBUG_OFF)
        atexit(report);
}
