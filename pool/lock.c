/* SPDX-License-Identifier: Apache-2.0 */
/* lock.c - waiting; see lock.h. */
#include "lock.h"

#include <sched.h>

#include "clock.h"

/* How often a waiter spins, and up to which count it yields, before it sleeps. */
#define LOOKS  100u
#define YIELDS 1000u

void lock_relax(unsigned int times)
{
    if (times < LOOKS) {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#elif defined(__aarch64__)
        __asm__ volatile("yield");
#endif
    } else if (times < YIELDS) {
        sched_yield();
    } else {
        nap_ns(50000);
    }
}

bool lock_take_within(struct lock *lock, uint64_t ns)
{
    const uint64_t limit = now_ns() + ns;

    for (unsigned int i = 0; !lock_try(lock); i++) {
        if (now_ns() >= limit)
            return false;
        lock_relax(i);
    }
    return true;
}
