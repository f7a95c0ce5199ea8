/* SPDX-License-Identifier: Apache-2.0 */
/*
 * decay.h - the clock that gives idle memory back, and sees to it that what was given back arrives: one thread, from
 * the first segment on until the process ends.
 *
 * Threads: every function, from any thread.
 */
#ifndef CUPOOL_SHIM_DECAY_H
#define CUPOOL_SHIM_DECAY_H

/* Start the clock, unless it runs. */
void decay_start(void);

/* In a forked child: there is no such thread. */
void decay_forget(void);

#endif
