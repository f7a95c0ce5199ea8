/* SPDX-License-Identifier: Apache-2.0 */
/* checked_lock.c - see checked_lock.h, which the compiler includes. */
#include <stdio.h>
#include <stdlib.h>

#include "checked_lock.h"

_Thread_local void (*lock_hook)(struct lock *lock);

void lock_not_held(void)
{
    fputs("a lock was released that nobody held\n", stderr);
    abort();
}
