/* SPDX-License-Identifier: Apache-2.0 */
/* own_thread.c - see own_thread.h. No locks and no state. */
#include "base/own_thread.h"

#include <stddef.h>

/* The least stack, in bytes. The driver's calls run on it, and the program may have made the default stack
 * (pthread_setattr_default_np, ulimit -s) as small as its own threads need. */
#define STACK_MIN ((size_t)1 << 20)

int own_thread_start(const char *name, void *(*run)(void *arg), pthread_t *ret_thread, sigset_t *ret_signals)
{
    size_t stack = 0;
    pthread_attr_t attr;
    sigset_t all, before;
    int rc = pthread_attr_init(&attr);

    if (rc)
        return rc;
    pthread_attr_getstacksize(&attr, &stack);
    if (stack < STACK_MIN)
        pthread_attr_setstacksize(&attr, STACK_MIN);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    if (ret_signals)
        *ret_signals = before; /* the new thread may read it */
    rc = pthread_create(ret_thread, &attr, run, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
    if (rc == 0)
        pthread_setname_np(*ret_thread, name);
    return rc;
}
