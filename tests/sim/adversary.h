/* SPDX-License-Identifier: Apache-2.0 */
/*
 * adversary.h - SIMGPU_ADVERSARY: the simulated GPU behaves as badly as CUDA allows, by seed.
 *
 * Work starts and completes late, streams that became ready later may run first, a query answers "not ready" for work
 * that is over until the host has waited for something that came after it, memory that was freed while the device
 * was at work stays taken until a thread waits, and the destruction of a stream takes its time, in which a use
 * by another thread aborts the program. None of this is an error: a program that is right by CUDA's rules does not
 * notice.
 *
 * Locking: sim_lock() is held. Without the setting each function says no, or does nothing.
 */
#ifndef SIM_ADVERSARY_H
#define SIM_ADVERSARY_H

#include "sim.h"

bool adversary_on(void);
bool adversary_chance(unsigned n); /* one time in n */
void adversary_nap(void);          /* now and then, for up to half a millisecond; drops the lock */
uint64_t adversary_number(void);   /* of the work that completes now */
/* The host has waited for work of this context, for all of the stream's if there is one, or the context's: finished
 * work is known to be finished, and freed memory comes back. */
void adversary_waited(CUcontext ctx, CUstream s, bool all);
/* Work is over; may a query say that it is not? */
bool adversary_hides_stream(const struct CUstream_st *s);
bool adversary_hides_point(const struct sim_point *p);

#endif
