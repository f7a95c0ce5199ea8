/* SPDX-License-Identifier: Apache-2.0 */
/*
 * driver_calls.c - the driver's functions that the library itself calls; see real.h.
 *
 * Locking: real.lock guards the search for them; the rest is atomic.
 */
#include <stdatomic.h>

#include "lock.h"
#include "real/dlsym_next.h"
#include "real/loaded.h"
#include "real/real_internal.h"

/* The longest time, in nanoseconds, that a thread waits for another one that searches the driver's functions. */
#define FILL_WAIT_NS 1000000000u

static struct {
    struct lock lock;  /* guards writes to functions and hooked; a forked child may find it held for ever */
    atomic_bool tried; /* the search has ended, or a thread has waited for it too long */
    struct real_driver functions;
    void *hooked[REAL_COUNT]; /* the driver's own function for each hook of the driver */
    _Atomic(const struct real_driver *) ready;
} real;

/* The names of the members of struct real_driver, in order. */
static const char *const names[] = {
#define DRIVER_CALL(symbol, parameters) #symbol,
#include "real/calls.def"
};

static void driver_fill(void *handle)
{
    void **member = (void **)&real.functions;

    for (unsigned int i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        member[i] = dlsym_real(handle, names[i]);
    for (unsigned int i = 0; i < REAL_COUNT; i++)
        real.hooked[i] = real_hooks[i].driver ? dlsym_real(handle, real_hooks[i].name) : NULL;
}

/* False: a library of the driver's name that is none. */
static bool is_driver(void)
{
    return true
#define DRIVER_NEEDED(symbol, parameters) &&real.functions.symbol
#include "real/calls.def"
        ;
}

const struct real_driver *real_driver_get(void)
{
    const struct real_driver *driver = atomic_load_explicit(&real.ready, memory_order_acquire);
    void *handle;

    if (driver)
        return driver;
    handle = loaded_handle("libcuda.so.1");
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
    if (is_driver())
        atomic_store_explicit(&real.ready, &real.functions, memory_order_release);
    atomic_store(&real.tried, true);
    lock_give(&real.lock);
    return atomic_load_explicit(&real.ready, memory_order_acquire);
}

enum real_symbol real_symbol_of(const void *function)
{
    unsigned int i = 0;

    if (!function || !real_driver_get())
        return REAL_COUNT;
    while (i < REAL_COUNT && real.hooked[i] != function)
        i++;
    return i;
}
