/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pins.c - see pins.h.
 *
 * Locking: none; the list of records only grows.
 */
#include "context/pins.h"

#include <errno.h>
#include <linux/membarrier.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "clock.h"
#include "pool.h"

/* The wait, in nanoseconds, if membarrier fails although the kernel announced it (a seccomp filter installed later): by
 * then every store of another processor is visible. */
#define STORE_NS 20000000

__thread struct pins *pins_own __attribute__((tls_model("initial-exec")));

static struct {
    _Atomic(struct pins *) first; /* records are never unmapped, because another thread may read one at any time */
    pthread_once_t once;
    pthread_key_t key; /* the key's destructor gives the record of an ending thread back */
    atomic_bool has_key;
    atomic_bool fences; /* there is no membarrier: threads find their record by the key, and marks have a fence */
    atomic_bool registered;
} calls = {.once = PTHREAD_ONCE_INIT};

/* This thread's record; NULL: it has none. */
static struct pins *own_record(void)
{
    return pins_own || !calls.fences ? pins_own : pthread_getspecific(calls.key);
}

static void record_give(void *arg)
{
    struct pins *record = arg;

    pins_own = NULL;
    for (unsigned int i = 0; i < PINS_MAX; i++)
        atomic_store(&record->on[i], 0);
    atomic_store(&record->sleeps, false);
    if (record->count)
        atomic_fetch_sub(record->count, 1);
    record->count = NULL;
    if (record->inside)
        atomic_fetch_sub(record->inside, 1);
    record->inside = NULL;
    record->hurry = 0;
    atomic_store(&record->taken, false);
}

static void pins_start(void)
{
    const int saved = errno;
    const long commands = syscall(SYS_membarrier, MEMBARRIER_CMD_QUERY, 0, 0);

    errno = saved; /* the system call may be forbidden */
    calls.has_key = pthread_key_create(&calls.key, record_give) == 0;
    calls.fences = calls.has_key && (commands < 0 || !(commands & MEMBARRIER_CMD_PRIVATE_EXPEDITED));
}

/* A record of a thread that has ended, or a new one; NULL: no host memory. */
static struct pins *record_take(void)
{
    struct pins *record;
    bool none = false;

    for (record = atomic_load(&calls.first); record; record = record->next, none = false)
        if (!atomic_load_explicit(&record->taken, memory_order_relaxed) &&
            atomic_compare_exchange_strong(&record->taken, &none, true))
            return record;
    record = aligned_alloc(_Alignof(struct pins), sizeof(*record));
    if (!record)
        return NULL;
    memset(record, 0, sizeof(*record));
    atomic_store(&record->taken, true);
    record->next = atomic_load(&calls.first);
    while (!atomic_compare_exchange_weak(&calls.first, &record->next, record))
        ;
    return record;
}

/* This thread's record, made if it is missing; NULL: no host memory. */
static struct pins *record_get(void)
{
    struct pins *record = own_record();

    if (record)
        return record;
    pthread_once(&calls.once, pins_start);
    record = record_take();
    if (record && calls.has_key)
        pthread_setspecific(calls.key, record);
    if (!calls.fences)
        pins_own = record;
    return record;
}

struct pins *pin_begin_slow(uintptr_t on)
{
    struct pins *own = record_get();

    if (own)
        atomic_store(&own->on[0], on);
    atomic_thread_fence(memory_order_seq_cst);
    return own;
}

void pin_resolve(const struct context *context)
{
    struct pins *own = own_record();

    if (own && (atomic_load_explicit(&own->on[0], memory_order_relaxed) & 1))
        atomic_store(&own->on[0], (uintptr_t)context);
}

bool pins_add(const struct context *context)
{
    struct pins *own = record_get();

    for (unsigned int i = 1; own && i < PINS_MAX; i++) {
        if (atomic_load_explicit(&own->on[i], memory_order_relaxed))
            continue;
        atomic_store(&own->on[i], (uintptr_t)context);
        atomic_thread_fence(memory_order_seq_cst);
        return true;
    }
    return false;
}

bool pins_possible(void)
{
    const struct pins *own = record_get();

    for (unsigned int i = 1; own && i < PINS_MAX; i++)
        if (!atomic_load_explicit(&own->on[i], memory_order_relaxed))
            return true;
    return false;
}

void pins_remove(const struct context *context)
{
    struct pins *own = own_record();

    for (unsigned int i = PINS_MAX - 1; own && i > 0; i--) {
        if (atomic_load_explicit(&own->on[i], memory_order_relaxed) != (uintptr_t)context)
            continue;
        atomic_store_explicit(&own->on[i], 0, memory_order_release);
        return;
    }
}

bool pins_has(const struct context *context)
{
    const struct pins *own = own_record();
    bool found = false;

    for (unsigned int i = 0; own && i < PINS_MAX; i++)
        found |= atomic_load_explicit(&own->on[i], memory_order_relaxed) == (uintptr_t)context;
    return found;
}

void pin_sleep(const struct context *context)
{
    struct pins *own = own_record();

    pin_resolve(context);
    if (own)
        atomic_store_explicit(&own->sleeps, true, memory_order_release);
}

void pin_wake(void)
{
    struct pins *own = own_record();

    if (own)
        atomic_store(&own->sleeps, false);
}

bool pin_count(atomic_uint *count)
{
    struct pins *own = record_get();

    if (own && own->count)
        return false;
    atomic_fetch_add(count, 1);
    if (own)
        own->count = count;
    return true;
}

void pin_uncount(atomic_uint *count)
{
    struct pins *own = own_record();

    atomic_fetch_sub(count, 1);
    if (own)
        own->count = NULL;
}

void pin_inside(atomic_uint *count)
{
    struct pins *own = own_record();

    if (own)
        own->inside = count;
}

void pin_hurry_begin(void)
{
    struct pins *own = record_get();

    if (own)
        own->hurry = 1;
}

bool pin_hurry_end(void)
{
    struct pins *own = own_record();
    const bool left_out = own && own->hurry == 2;

    if (own)
        own->hurry = 0;
    return left_out;
}

bool pin_hurries(void)
{
    const struct pins *own = own_record();

    return own && own->hurry;
}

void pin_left_out(void)
{
    struct pins *own = own_record();

    if (own && own->hurry)
        own->hurry = 2;
}

void pins_fence(void)
{
    const int saved = errno;

    pthread_once(&calls.once, pins_start);
    atomic_thread_fence(memory_order_seq_cst);
    if (calls.fences)
        return;
    /* Registered here and not at the start, because with several threads this takes the kernel some milliseconds. */
    if (!atomic_load(&calls.registered) &&
        syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0)
        atomic_store(&calls.registered, true);
    if (syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0))
        nap_ns(STORE_NS);
    errno = saved;
}

/* The mark of a free whose address is in no pool may belong to any context: the address is not known yet, or not any
 * more. */
static bool is_on(uintptr_t on, const struct context *context, const struct pool *pool)
{
    const struct pool *other = on & 1 ? pool_of(on - 1) : NULL;

    return on & 1 ? !other || other == pool : on == (uintptr_t)context;
}

bool pins_any(const struct context *context, const struct pool *pool, bool sleepers)
{
    const struct pins *const own = own_record();

    for (const struct pins *record = atomic_load(&calls.first); record; record = record->next) {
        if (!sleepers && (record == own || atomic_load(&record->sleeps)))
            continue;
        for (unsigned int i = 0; i < PINS_MAX; i++) {
            const uintptr_t on = atomic_load(&record->on[i]);

            if (on && is_on(on, context, pool))
                return true;
        }
    }
    return false;
}
