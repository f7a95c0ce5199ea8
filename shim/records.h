/* SPDX-License-Identifier: Apache-2.0 */
/*
 * records.h - allocation events on their way from the threads that cause them to the trace file. Private to trace.c.
 *
 * What it is: a ring of records of one cache line each, which any thread adds to without a lock and without a system
 * call, and one thread at a time takes from as lines of JSON; and the clock that such events are stamped with, which
 * costs a third of clock_gettime() where the processor's counter can be trusted.
 *
 * What it is not: it knows no file. What does not fit is the caller's business.
 *
 * Threads: records_reserve, records_publish and records_clock from any thread at any time, also in a signal handler.
 * records_start, records_begin, records_take and records_time by one thread at a time: they are guarded by the lock of
 * trace.c.
 */
#ifndef CUPOOL_SHIM_RECORDS_H
#define CUPOOL_SHIM_RECORDS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "trace.h"

/* What the lines of one record need, and more. */
#define RECORDS_ROOM 1024

/* One line of the cache. */
struct record {
    _Atomic(uint32_t) turn; /* its number and one, once it is complete: the ring's */
    int32_t tid;
    uint64_t clock;
    uint64_t addr;
    uint64_t size;  /* that was asked for */
    uint32_t block; /* that was handed out, in POOL_GRANULE; 0: not to be said */
    uint16_t device;
    uint8_t event; /* enum trace_block_event */
    uint8_t frames_count;
    uint16_t frames[TRACE_FRAMES];
} __attribute__((aligned(64)));

/* Before the first record; t0: what times in the file are counted from, by CLOCK_MONOTONIC. */
void records_start(uint64_t t0);

/* In units of its own. */
uint64_t records_clock(void);

/* A record to be filled in, all but its turn, and published at once. NULL: there is no room until somebody takes some.
 */
struct record *records_reserve(uint32_t *ret_turn);
void records_publish(struct record *record, uint32_t turn);

/*
 * Take what has been added until now: after records_begin, records_take gives it as text, a piece at a time; 0: that
 * was all. What a thread has reserved and not published holds up what comes after it. wait: that is waited for, a
 * second at most, and in vain only once. room: RECORDS_ROOM at least.
 */
void records_begin(void);
size_t records_take(char *text, size_t room, bool wait);

/* A line of this thread has the time t: the later of that and its last line's, because lines of a thread do not go
 * back, and the two clocks differ by some nanoseconds. */
uint64_t records_time(int tid, uint64_t t);

/* How full the ring is, about: RECORDS_PART is all of it; 0: it is empty. */
#define RECORDS_PART 1024u
unsigned int records_fill(void);

#endif
