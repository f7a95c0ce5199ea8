/* SPDX-License-Identifier: Apache-2.0 */
/*
 * differ.h - what the files of the differential fuzzer's program share: the objects that its calls use, and the log.
 *
 * The program makes a random sequence of CUDA calls and writes the answer of each, so that differ.py can compare a run
 * without cupool with runs under it. The log has no addresses and nothing that depends on time: bytes are read only
 * where CUDA defines them. Where docs/differences.md allows a difference, the answer stands in braces, with a rule's
 * name before it: malloc_in_capture{900}. The program needs no simulated GPU and does not know cupool.
 *
 * Locking: one thread runs at a time (differ.c hands over), so nothing here has a lock.
 */
#ifndef DIFFER_H
#define DIFFER_H

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)

enum {
    THREADS = 2,
    DEVICES = 2,
    LANES_MADE = 6, /* streams that the program makes */
    LANES = DEVICES + LANES_MADE,
    ORPHANS = LANES, /* from here on: one for each device, for work of streams that are gone */
    LANES_ALL = LANES + DEVICES,
    BLOCKS = 24,
    EVENTS = 6,
    HOSTS = 6,
    COUNTERS = 4,
    EXECS = 3,
    CAPTURES = 2,
    STEPS = 12,
    CONTEXTS = 2
};

/* Work number n of a lane; 0 is none. */
struct mark {
    int lane;
    uint64_t n;
};

/* A stream. The first ones are the devices' legacy streams. order: an event of the lane, to order other lanes by. */
struct lane {
    bool live;
    cudaStream_t stream;
    int dev, capture;             /* capture: which one it is part of, or -1 */
    uint64_t sent, synced, freed; /* the last work; what the host waited for; what a cudaFree natively waited for */
    uint64_t freed_by[THREADS];   /* the same, of one thread's */
    cudaEvent_t order;
    unsigned flags;
};

/* Something that work uses. */
struct object {
    bool live, defined;
    unsigned gen;
    int dev;
    struct mark mark;
};

enum block_kind { BLOCK_PLAIN, BLOCK_ASYNC, BLOCK_MANAGED };
struct block {
    struct object o;
    char *p;
    size_t size;
    enum block_kind kind;
};

enum host_kind { HOST_PINNED, HOST_MAPPED, HOST_REGISTERED, HOST_PAGEABLE };
struct host {
    struct object o;
    unsigned char *p;
    size_t size;
    enum host_kind kind;
};

/* The count of host functions that ran. */
struct counter {
    struct object o;
    uint32_t hash;
};

struct event {
    bool live, captured;
    cudaEvent_t e;
    int dev;
    struct mark mark;
};

enum step_kind { STEP_FILL, STEP_COPY, STEP_UP, STEP_DOWN, STEP_COUNT };
struct step {
    enum step_kind kind;
    bool whole; /* all of what is written to */
    struct object *to, *from;
    unsigned to_gen, from_gen;
};

struct capture {
    bool live;
    int lane, thread;
    enum cudaStreamCaptureMode mode;
    struct step steps[STEPS];
    int n;
};

struct exec {
    bool live;
    cudaGraphExec_t e;
    int dev;
    struct mark mark;
    struct step steps[STEPS];
    int n;
};

struct context {
    bool live;
    CUcontext ctx;
    CUdeviceptr p;
    size_t size;
};

extern struct lane lanes[LANES_ALL];
extern struct block blocks[BLOCKS];
extern struct host hosts[HOSTS];
extern struct counter counters[COUNTERS];
extern struct event events[EVENTS];
extern struct exec execs[EXECS];
extern struct capture captures[CAPTURES];
extern struct context contexts[CONTEXTS];
extern int self, devices; /* the thread that runs; how many devices are used */
extern bool sharing;      /* memory that device and host share at any time: cupool's frees wait from then on */
extern bool pressure;     /* devices get full */
extern bool hazards;      /* rely on cudaFree having waited */
extern uint64_t op_number;
extern bool abandon; /* end all captures after this operation: they need not be alike with and without cupool */

/* ---- differ.c ---- */
uint32_t pick(uint32_t n); /* a random number below n, of this operation */
bool chance(uint32_t n);   /* one in n */
__attribute__((format(printf, 1, 2))) void out(const char *format, ...);
/* Tell an answer; returns whether it was success. */
bool told(const char *name, int code);
#define TOLD(call, code) told(call, (int)(code))
uint32_t sum(const void *p, size_t n);
void use(int dev);         /* make the thread's device this one */
void devices_forget(void); /* no thread counts on its current device any more */
void free_later(void *p);  /* once the captures have been abandoned */
void errors_forget(void);  /* the thread's last error is not compared */

/* ---- differ_order.c, differ_work.c ---- */
enum state { DONE, FREED, BUSY };
enum state state_of(struct mark m);
bool order(int lane, struct mark m); /* work of the lane comes after m; false: cannot be had now */
bool settle(struct mark m);          /* the host has waited for m */
bool lane_capturing(int lane);
bool disturbs(int lane); /* would its use end captures? Now and then it is used all the same. */
struct mark sent(int lane);
void synced(int dev);
void freed(int dev);
bool captured_anywhere(void);
bool unsafe_here(void); /* do captures forbid this thread unsafe calls? */
void capture_check(int lane);
bool step_add(int lane, enum step_kind kind, struct object *to, struct object *from, bool whole);
void step_done(const struct step *s);
int lane_pick(int dev); /* a live one, of a device unless -1 */

/* ---- operations ---- */
typedef void op_fn(void);
op_fn op_after_free; /* a part of op_block */
op_fn op_block, op_errors, op_attributes, op_info, op_near_full, op_stale, op_host, op_host_errors;
op_fn op_fill, op_copy, op_transfer, op_read, op_host_look, op_count, op_stream, op_sync, op_query, op_event, op_record,
    op_elapsed, op_peer_copy;
op_fn op_capture, op_launch, op_exchange, op_fork;
op_fn op_rows;
op_fn op_context, op_context_use, op_primary, op_popped, op_reset, op_peer, op_ipc, op_device;
void capture_end(int index);
extern bool simulated; /* the GPUs are: rows that could harm a real one are drawn, too */
void rows_list(void);
void block_dead(struct block *b);
void lane_dead(int index);
void everything_dead(int dev);
void lane_start(int index, int dev, cudaStream_t stream);

#endif
