/* SPDX-License-Identifier: Apache-2.0 */
/*
 * own_thread.h - starts the threads that the library has for itself.
 *
 * It neither ends nor joins them.
 *
 * Threads: any thread may call it. No locks, no state.
 */
#ifndef CUPOOL_SHIM_BASE_OWN_THREAD_H
#define CUPOOL_SHIM_BASE_OWN_THREAD_H

#include <pthread.h>
#include <signal.h>

/*
 * Start a thread of this name (of 15 characters at most) in which every signal is blocked: the program's have to be
 * delivered to its own threads. *ret_signals, unless NULL: those blocked in the calling thread. 0, or the errno value
 * of pthread_create.
 */
int own_thread_start(const char *name, void *(*run)(void *arg), pthread_t *ret_thread, sigset_t *ret_signals);

#endif
