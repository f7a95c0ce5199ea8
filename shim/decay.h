/* SPDX-License-Identifier: Apache-2.0 */
/*
 * decay.h - the clock: one thread, from the first segment on until the process ends, that gives idle memory back, sees
 * to it that what was given back arrives, and writes statistics when they are due (stats.h). It ends with the program's
 * last thread, which natively ends the process.
 *
 * Threads: every function, from any thread.
 */
#ifndef CUPOOL_SHIM_DECAY_H
#define CUPOOL_SHIM_DECAY_H

/* Start the clock, unless it runs. */
void decay_start(void);

/* Let the thread look at once whether there is something to be done. Safe in a signal handler. */
void decay_wake(void);

/* In a forked child: there is no such thread. */
void decay_forget(void);

#endif
