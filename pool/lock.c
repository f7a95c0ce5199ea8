/* SPDX-License-Identifier: Apache-2.0 */
/* lock.c - waiting; see lock.h. */
#include "lock.h"

#include <sched.h>

#include "clock.h"

/* How often a waiter spins, and up to which count it yields, before it sleeps. */
#define LOOKS  100u
#define YIELDS 1000u
/* The pauses without sleep; the first one spins so often, some 40 ns each. */
#define PAUSES      7u
#define PAUSE_SPINS 8u
#define NAP_NS      50000u

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

void lock_pause(unsigned int times, uint32_t max_ns)
{
    uint32_t nap = NAP_NS;

    if (times < PAUSES) {
        for (unsigned int i = 0; i < PAUSE_SPINS << times; i++)
            lock_relax(0);
        return;
    }
    for (times -= PAUSES; times && nap < max_ns; times--)
        nap *= 2;
    nap_ns(nap < max_ns ? nap : max_ns);
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
