/* SPDX-License-Identifier: Apache-2.0 */
/*
 * births.h - how many captures there had been when NCCL gave a segment.
 *
 * For what a captured operation uses NCCL registers the whole allocation by itself, and does not look again as long as
 * the graph may run; without CUPOOL_REGISTER nobody tells the library what that was, so a segment that was there during
 * a capture stays. It gives nothing back and asks nobody. Called by nccl.c alone.
 *
 * Threads: every function, from any thread. One lock, private to births.c.
 */
#ifndef CUPOOL_SHIM_BIRTHS_H
#define CUPOOL_SHIM_BIRTHS_H

#include <stdbool.h>
#include <stdint.h>

/* The time to remember with a segment that is asked for now: a capture that is under way may come to use it. */
unsigned int births_now(void);
/* NCCL has given a segment at addr, which was asked for at that time. Without host memory it counts as one that was
 * there from the start. */
void births_add(uint64_t addr, unsigned int time);
/* The segment at addr is to go, and is forgotten: has there been a capture since it was asked for? */
bool births_captured(uint64_t addr);

#endif
