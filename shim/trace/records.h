/* SPDX-License-Identifier: Apache-2.0 */
/*
 * records.h - allocation events on their way from the threads that cause them to the trace file. Private to trace.c.
 *
 * It is a ring of records of one cache line each. Any thread adds to it without a lock and without a system call, and
 * one thread at a time takes records from it as lines of JSON. It also has the clock for these events, which costs a
 * third of clock_gettime() where the processor's counter can be trusted.
 *
 * It knows no file. If the ring is full, the caller has to make room.
 *
 * Threads: records_reserve, records_publish and records_clock may be called from any thread at any time, also in a
 * signal handler. records_start, records_begin, records_take and records_time need the lock of trace.c.
 */
#ifndef CUPOOL_SHIM_TRACE_RECORDS_H
#define CUPOOL_SHIM_TRACE_RECORDS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TRACE_FRAMES 8

/* The kinds of allocation events. */
enum trace_block_event { TRACE_BLOCK_ALLOC, TRACE_BLOCK_FREE_REQUESTED, TRACE_BLOCK_FREE_COMPLETED };

/* The contents of an allocation event. */
struct trace_block {
    int device;
    uint64_t addr;
    size_t size;               /* bytes requested */
    size_t block;              /* bytes handed out, a multiple of 512; 0: leave out of the event */
    const uint16_t *frames;    /* numbers of the stack frames of the call, see stacks.h */
    unsigned int frames_count; /* TRACE_FRAMES at most */
};

/* The room in bytes that the line of one record needs at most. */
#define RECORDS_ROOM 1024

/* A record, one cache line long. */
struct record {
    _Atomic(uint32_t) seq; /* the record's number plus one, once it is complete; written by records_publish */
    int32_t tid;
    uint64_t clock;
    uint64_t addr;
    uint64_t size;  /* bytes requested */
    uint32_t block; /* bytes handed out, in POOL_GRANULE; 0: leave out of the event */
    uint16_t device;
    uint8_t event; /* an enum trace_block_event */
    uint8_t frames_count;
    uint16_t frames[TRACE_FRAMES];
} __attribute__((aligned(64)));

/* Before the first record. t0: the zero of times in the file, in nanoseconds of CLOCK_MONOTONIC. */
void records_start(uint64_t t0);

/* The time of an event, in a unit of its own that records_take converts. */
uint64_t records_clock(void);

/* Reserve a record; the caller fills in all but its sequence number and publishes it at once. NULL: the ring is full
 * until records are taken. */
struct record *records_reserve(uint32_t *ret_seq);
void records_publish(struct record *record, uint32_t seq);

/*
 * Take the records added so far: after records_begin, each records_take returns a piece of text; 0: no more. A record
 * that is reserved and not published holds up the later ones. wait: wait for such a record, a second at most, and in
 * vain only once. room: RECORDS_ROOM at least.
 */
void records_begin(void);
size_t records_take(char *text, size_t room, bool wait);

/* The time to write for a line of this thread at time t: t, or the time of its last line if that is later, because
 * lines of a thread must not go back and the two clocks differ by some nanoseconds. */
uint64_t records_time(int tid, uint64_t t);

/* The fill level of the ring, approximately: RECORDS_PART: full; 0: empty. */
#define RECORDS_PART 1024u
unsigned int records_fill(void);

#endif
