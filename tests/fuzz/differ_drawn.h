/* SPDX-License-Identifier: Apache-2.0 */
/*
 * differ_drawn.h - what the files share that call the rows of shim/hooks/ with drawn arguments: the arguments beside
 * those of given (rows.h), and the things that calls have made.
 *
 * tests/rows/rows.py says which parameter gets which of them. A sequence of calls begins with drawn_start, and
 * drawn_end gives back all things; nothing outlives it but what the library remembers.
 *
 * Locking: none, see differ.h.
 */
#ifndef DIFFER_DRAWN_H
#define DIFFER_DRAWN_H

#include "differ.h"
#include "rows.h"

#define DRAWN_NEVER 0x5a5a5a5a5a5a5a5au /* in results that nobody has written */

enum { ROOMS = 12 };

struct drawn {
    CUcontext from_context, to_context, peer;
    CUdevice device;
    CUdevResourceDesc resources;
    CUarray array, array_made;
    CUDA_ARRAY_DESCRIPTOR array_2d;
    CUDA_ARRAY3D_DESCRIPTOR array_3d;
    CUevent start, end, event_made;
    CUgraphExec exec, exec_made;
    CUgraphNode node, node_made, failed;
    CUDA_GRAPH_INSTANTIATE_PARAMS instantiate;
    CUDA_HOST_NODE_PARAMS host_node;
    CUDA_BATCH_MEM_OP_NODE_PARAMS writes_node;
    CUstreamBatchMemOpParams writes[2];
    CUmemcpyAttributes attributes[1];
    CUgreenCtx green_made;
    CUmemoryPool pool, pool_made;
    CUstream stream_made;
    CUstreamCaptureMode mode;
    CUmemAllocationHandleType handle_type;
    CUtexObject texture, texture_made;
    CUsurfObject surface, surface_made;
    CUDA_RESOURCE_DESC resource;
    CUDA_TEXTURE_DESC texture_how;
    CUlimit limit;
    const char *name;
    void *function, *host_from, *host_to;
    size_t width, height, pitch, amount, zero, failed_index, got_pitch, got_total, sizes[2];
    unsigned int element, value;
    unsigned long long long_flags;
    uint64_t room[ROOMS][32];
    int version, descriptor;
    float ms;
};
extern struct drawn drawn;
extern unsigned int drawn_called; /* host functions that ran */

/* A row of shim/hooks/. */
struct drawn_row {
    const char *symbol, *parameters, *expected; /* effects: a line of tests/rows/expected.txt */
    int (*call)(void *function);
};

enum kind {
    K_MEMORY, /* of cuMemAlloc and its kin */
    K_ASYNC,
    K_MANAGED,
    K_PINNED,
    K_REGISTERED,
    K_RANGE, /* reserved addresses; K_MAPPED once there is memory */
    K_MAPPED,
    K_HANDLE,
    K_STREAM,
    K_EVENT,
    K_GRAPH, /* with a node or two, and its executable form, or 0 */
    K_POOL,
    K_GREEN,
    K_CONTEXT,
    K_RETAINED, /* a reference to a primary context */
    K_TEXTURE,
    K_ARRAY,
    KINDS
};

/* value: the address or the handle. */
struct thing {
    enum kind kind;
    uint64_t value;
    size_t size;
    bool reach;       /* the device may use it; a handle: it has been mapped */
    CUgraphNode node; /* of a graph */
    int node_type;
    CUgraphExec exec;
    int dev;
};

bool row_is(const struct drawn_row *row, const char *begin); /* how its name begins */
bool row_takes(const struct drawn_row *row, const char *words);

CUDA_CB void drawn_host(void *arg);
CUDA_CB void drawn_callback(CUstream s, CUresult status, void *arg);

/* --- differ_drawn.c --- */
/* New arguments for the row. */
void draw(const struct drawn_row *row);
/* The stream that the row's work with these arguments is on; NULL: none. */
CUstream drawn_stream(const struct drawn_row *row);

/* --- differ_things.c --- */
extern struct thing things[];
extern int things_count;
extern CUcontext drawn_own; /* the context in which all is done */
extern CUstream drawn_main;
extern int drawn_dev;
extern CUdeviceptr drawn_freed; /* memory that has been freed, and not got again; 0: none */
extern CUevent drawn_events[2];
/* 0: all work so far has ended. */
extern CUstream drawn_busy;

bool drawn_start(void);
void drawn_end(void);
/* One of the kinds, a mask of 1 << kind; NULL: there is none. */
struct thing *thing_pick(unsigned kinds);
struct thing *thing_new(enum kind kind, uint64_t value, size_t size);
void thing_gone(struct thing *t);
/* Kinds that the row ends. */
unsigned row_ends(const struct drawn_row *row);
/* The kind that it makes, besides handles; -1: none. */
int row_makes(const struct drawn_row *row);
/* Gives it back to the driver. */
int thing_end(struct thing *t);
/* All work ends. */
void drawn_wait(void);
struct thing *thing_find(unsigned kinds, uint64_t value);
/* A row that uses a thing of this kind? */
bool kind_used(enum kind kind, const struct drawn_row *row);
/* Memory for work. There are two pieces of it once memory_ensure has been called and nothing has been freed since. */
bool memory_ensure(void);
struct thing *memory_pick(const struct thing *but);
unsigned char *drawn_pageable(int i); /* DRAWN_PAGEABLE bytes */
#define DRAWN_PAGEABLE ((size_t)65536)

/* --- differ_after.c --- */
/* The call has returned: tells what it has written, and remembers what it has made and ended. */
void things_after(const struct drawn_row *row, int code);

#endif
