/* SPDX-License-Identifier: Apache-2.0 */
/* lock.c - waiting; see lock.h. */
#include "lock.h"

#include <errno.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "pool_internal.h"

/* How often to look again, and then how often to yield, before sleeping. */
#define LOOKS  100u
#define YIELDS 1000u

void lock_relax(unsigned int times)
{
    const struct timespec some = {0, 50000};
    const int saved = errno;

    if (times < LOOKS) {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#elif defined(__aarch64__)
        __asm__ volatile("yield");
#endif
    } else if (times < YIELDS) {
        sched_yield();
    } else {
        syscall(SYS_nanosleep, &some, NULL); /* nanosleep is a cancellation point */
        errno = saved;
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
