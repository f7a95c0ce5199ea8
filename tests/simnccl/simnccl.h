/* SPDX-License-Identifier: Apache-2.0 */
/*
 * simnccl.h - what the files of the NCCL stand-in share.
 *
 * It declares a communicator and what belongs to it, and the internal functions on them. Exported functions are in
 * api_*.c, comm.c and group.c (api.h), jobs in job.c; the memory that ranks share is in room.c, operations in op.c,
 * launch.c, exchange.c and values.c (run.h), registrations in record.c, settings, breaches and the report in
 * contract.c.
 *
 * It is no interface for tests; those use nccl.h.
 *
 * Locking: a communicator is used by one thread at a time, as NCCL demands; other uses are reported. Fields that the
 * threads of streams touch as well are atomic. The list of communicators and the table of ncclMemAlloc each have a
 * lock.
 */
#ifndef SIMNCCL_H
#define SIMNCCL_H

#include <cuda.h>
#include <errno.h>
#include <fcntl.h>
#include <nccl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define HIDDEN      __attribute__((visibility("hidden")))
#define RANKS_MAX   16
#define RING_BYTES  ((size_t)64 << 10)
#define PATH_LENGTH 256

/* ---- the driver, found with dlopen as the real one does; the names are macros of cuda.h where versions differ ---- */

#define DRIVER(X)                                                                                                      \
    X(cuInit)                                                                                                          \
    X(cuCtxGetCurrent)                                                                                                 \
    X(cuCtxSetCurrent)                                                                                                 \
    X(cuCtxGetDevice)                                                                                                  \
    X(cuDeviceGetCount)                                                                                                \
    X(cuDeviceGet)                                                                                                     \
    X(cuDevicePrimaryCtxRetain)                                                                                        \
    X(cuStreamIsCapturing)                                                                                             \
    X(cuStreamWaitEvent)                                                                                               \
    X(cuLaunchHostFunc)                                                                                                \
    X(cuEventCreate)                                                                                                   \
    X(cuEventQuery)                                                                                                    \
    X(cuEventRecord)                                                                                                   \
    X(cuEventDestroy)                                                                                                  \
    X(cuPointerGetAttribute)                                                                                           \
    X(cuMemGetAddressRange)                                                                                            \
    X(cuMemAlloc_v2)                                                                                                   \
    X(cuMemFree_v2)                                                                                                    \
    X(cuMemCreate)                                                                                                     \
    X(cuMemRelease)                                                                                                    \
    X(cuMemAddressReserve)                                                                                             \
    X(cuMemAddressFree)                                                                                                \
    X(cuMemMap)                                                                                                        \
    X(cuMemUnmap)                                                                                                      \
    X(cuMemSetAccess)

struct driver {
#define X(name) __typeof__(&name) name; /* NOLINT(bugprone-macro-parentheses): it declares that name */
    DRIVER(X)
#undef X
    void *(*simgpu_host)(unsigned long long addr, size_t n);
};
extern struct driver drv HIDDEN;
HIDDEN bool driver_find(void); /* false: no simulated GPU, and that was said */

/* ---- contract.c ---- */

struct settings {
    int version, slow, deregister_ms;
    bool local_register, graph_register, legacy_register, shareable;
};
extern struct settings settings HIDDEN;

/* One call of an exported function; on the stack of its thread. */
struct call {
    const char *name, *may; /* may: which function NCCL calls from here through its own symbol */
    struct call *outer;
    ncclComm_t comm; /* marked as in use by this call */
    ncclResult_t result;
};
extern __thread struct call *call_now HIDDEN;

/* First thing in every exported function. False: leave with call->result, an injected failure. */
HIDDEN bool call_enter(struct call *call);
HIDDEN void call_leave(struct call *call);
HIDDEN void breach(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* ncclCommDeregister leaves the communicator's device current, as NCCL does; who called it has to put it right. */
HIDDEN void device_leak(CUcontext ctx);

struct counts {
    atomic_ulong registrations, deregistrations, windows, mem_allocs, mem_frees, ops[3], offsets_differ, breaches;
};
extern struct counts counts HIDDEN;

/* ---- room.c: what the ranks of a communicator share, between threads and processes alike ---- */

struct ring { /* bytes from one rank to another; one writer, one reader */
    _Atomic uint64_t read, written;
    char data[RING_BYTES];
};

struct slot {
    int64_t v[4];
};

struct room { /* a file of zeroes is a new room */
    atomic_int nranks, opened, joined, stop;
    atomic_int pid[RANKS_MAX]; /* 0: not here yet, or gone */
    _Atomic uint64_t arrived;
    struct slot slots[2][RANKS_MAX];
    struct ring rings[RANKS_MAX][RANKS_MAX]; /* from, to */
};

struct xfer {
    bool out;
    int peer;
    char *at;
    size_t left;
    bool (*arrived)(ncclComm_t comm, struct xfer *x); /* once nothing is left; false ends the exchange */
    const void *arg;
};

HIDDEN ncclResult_t room_id(ncclUniqueId *id); /* a name that no other room has; removes what killed jobs have left */
HIDDEN bool room_join(ncclComm_t comm);        /* false: that was said */
HIDDEN bool room_full(ncclComm_t comm);        /* all ranks have joined */
HIDDEN void room_leave(ncclComm_t comm);
/* A value from every rank: put, then wait until all have. Rounds of one communicator do not overlap. */
HIDDEN void room_put(ncclComm_t comm, struct slot value);
HIDDEN const struct slot *room_values(ncclComm_t comm); /* of all ranks; NULL: not yet */
/* Send and receive all that, each direction of each peer in the order given. False: the communicator is broken. */
HIDDEN bool room_exchange(ncclComm_t comm, struct xfer *x, size_t n);
/* No operation of any rank will end well any more. Whether this rank is the first to say so. */
HIDDEN bool room_break(ncclComm_t comm, ncclResult_t error);
HIDDEN void nap(void);

/* ---- record.c: registrations; the communicator's context is current ---- */

struct record {
    const void *at;
    uintptr_t base, end; /* in whole pages */
    uint64_t buffer_id;  /* of the allocation, to see that it is still the same */
    int refs, flags;     /* flags: of a window */
    bool window, dead, captured;
    bool maps;  /* peers map it, which takes memory that can be shared */
    bool graph; /* NCCL's own, of an allocation that a captured operation uses; it stays as long as the communicator */
    bool used_p2p, used_collective;
    atomic_int busy; /* operations that are not finished */
    void *inner;     /* a window's own registration */
    struct record *next;
};

HIDDEN ncclResult_t record_add(ncclComm_t comm, void *at, size_t size, void **handle);
/* stay: NCCL does not put the caller's device back here. */
HIDDEN ncclResult_t record_drop(ncclComm_t comm, void *handle, bool window, bool *ret_stay);
HIDDEN struct record *record_window(ncclComm_t comm, void *at, size_t size, int flags, ncclResult_t *ret);
/* The record that holds all of it, windows first, then the one that begins first; NULL: none, or one of a graph alone.
 */
HIDDEN struct record *record_find(ncclComm_t comm, const void *at, size_t size);
/* The record for a captured operation, for which NCCL registers the whole allocation where it can. */
HIDDEN struct record *record_captured(ncclComm_t comm, const void *at, size_t size);
HIDDEN void records_check_end(ncclComm_t comm); /* nothing may be left */
HIDDEN void records_free(ncclComm_t comm);
HIDDEN ncclResult_t memory_alloc(void **ret, size_t size);
/* Take memory of the driver, as NCCL does for a communicator; here it is not needed, and goes back at once. */
HIDDEN void memory_touch(CUdevice dev);
HIDDEN ncclResult_t memory_free(void *at);

/* ---- op.c, launch.c, values.c: operations ---- */

enum kind {
    OP_SEND,
    OP_RECV,
    OP_ALL_REDUCE,
    OP_BROADCAST,
    OP_REDUCE,
    OP_ALL_GATHER,
    OP_REDUCE_SCATTER,
    OP_ALL_TO_ALL,
    OP_GATHER,
    OP_SCATTER
};

enum level { REGISTERED_NONE, REGISTERED_SOME, REGISTERED_ALL };

struct head { /* what ranks tell each other about an operation before its data */
    uint32_t kind, type, op, root;
    uint64_t count;
    uint32_t level, window;
    uint64_t offset; /* in the registered memory of the buffer that every rank has */
};

struct redop { /* what the program makes with ncclRedOpCreatePreMulSum */
    ncclDataType_t type;
    bool live;
    double scalar;
    const void *at; /* where the scalar is, on the device; NULL: here */
};

struct op {
    struct head head; /* its root is the peer of a send or receive */
    const void *send;
    void *recv;
    CUstream stream;
    ncclComm_t comm;
    struct record *used[2];
    struct redop redop; /* live if op is one */
    struct op *next;
};

HIDDEN ncclResult_t op_check(const struct op *op);
/* Start operations, all of one group and in its order, and free them. */
HIDDEN ncclResult_t ops_start(struct op *ops);
HIDDEN double value_load(ncclDataType_t type, const void *at); /* integers, too */
HIDDEN void ops_free(struct op *ops);
HIDDEN bool ops_idle(ncclComm_t comm);          /* nothing runs or will; the communicator's context is current */
HIDDEN void ops_captured_free(ncclComm_t comm); /* graphs with operations of it must not run any more */

/* ---- a communicator ---- */

enum state { COMM_DEAD, COMM_STARTING, COMM_READY, COMM_FINALIZED, COMM_REVOKED };

struct ncclComm {
    _Atomic enum state state; /* comm_new looks at those of others */
    int nranks, rank, dev;
    bool blocking;
    CUcontext ctx;
    char path[PATH_LENGTH];
    struct room *room;
    int room_fd; /* holds the lock until the room is full; -1: no more */
    uint64_t round;
    struct job *pending; /* nonblocking calls that polls will end, in order */
    struct record *records;
    void *scratch; /* what NCCL takes for itself at the first window */
    struct redop redops[8];
    atomic_int running, inside;    /* batches launched and not ended; in their host function */
    atomic_int abort, error, user; /* error: an ncclResult_t; user: thread that is in a call on it */
    pthread_mutex_t turn;          /* one batch of operations at a time; guards the rings' ends of this rank */
    CUstream last_stream;
    CUevent last_event;
    struct batch *captured; /* what graphs may still run */
    ncclComm_t next;
};
extern pthread_mutex_t comms_lock HIDDEN; /* guards the list, which holds dead ones too: they are used again */
extern ncclComm_t comms HIDDEN;
extern __thread int group_depth HIDDEN;
HIDDEN bool group_holds(ncclComm_t comm); /* operations of it that wait for this thread's ncclGroupEnd */

#endif
