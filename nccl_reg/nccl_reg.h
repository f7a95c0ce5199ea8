/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nccl_reg.h - which memory is registered with which communicator, and when that may change.
 *
 * What it is: a table of segments (memory that may be registered as a whole, one physical allocation each), a table of
 * communicators, and for each communicator its registrations. Adding a segment makes no call; a communicator's next
 * operation registers what it lacks, on the thread of the operation. Before a segment goes it is deregistered from
 * every communicator, and before a communicator goes everything from it.
 *
 * What it is not: it knows nothing of NCCL, CUDA, environment variables or traces; those are behind the table below. It
 * decides for this process alone: that all ranks of a communicator decide alike is the caller's business, which is why
 * nothing here depends on time, addresses or sizes.
 *
 * Errors: 0 or a negative errno value. Out-parameters are last and written on success only.
 *
 * Threads: every function may be called from any thread. What NCCL asks for, that one thread at a time uses a
 * communicator, is kept between operations and what is done here on its account: each communicator has a turn, which is
 * held over the calls of the table on that communicator and nothing else, and for which only operations of the same
 * communicator wait. The registry's lock is never held over a call. The functions of the table may not call back.
 */
#ifndef CUPOOL_NCCL_REG_H
#define CUPOOL_NCCL_REG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct nccl_reg;
struct nccl_reg_comm;

struct nccl_reg_comm_info {
    void *arg;       /* the caller's */
    int device;      /* registers segments of this one */
    int rank, ranks; /* the caller's, too */
    bool nonblocking;
    /*
     * A registration that point-to-point has used must not serve a collective (NCCL before 2.29.2 ends the process
     * then, unless a collective that it has mapped the memory for came first, which nobody outside can tell): a
     * collective gets another one first.
     */
    bool careful;
    bool maps_plain; /* its peers map plain memory as well */
};

struct nccl_reg_segment_info {
    uint64_t addr;
    size_t size;
    int device;
    /*
     * So many bytes in front of it belong to the same allocation and to nobody. A registration that begins there is the
     * one that NCCL finds from then on, whatever else there is that begins later: the other one for collectives, which
     * takes no waiting. 1 MiB or more: it is used in 16 parts of whole pages.
     */
    size_t front;
    bool plain;  /* most communicators' peers do not map it, so that kinds of operations do not matter */
    bool own;    /* it goes when the program says so, and no graph that uses it runs after that */
    void *owner; /* what it may be lost with, and has to be there while it goes; NULL: nothing */
};

/* What is done with a communicator that was added as info. */
struct nccl_reg_ops {
    /* Register size bytes at addr. *ret_handle names the registration; NULL with 0: accepted, but of no effect. An
     * error is not tried again. */
    int (*attach)(const struct nccl_reg_comm_info *info, void *comm, uint64_t addr, size_t size, void **ret_handle);
    /* Undo one. An error: the memory may still be in use by others, for ever. */
    int (*detach)(const struct nccl_reg_comm_info *info, void *comm, uint64_t addr, size_t size, void *handle);
    /* Of a communicator that does not block: what has become of what was begun with it? 0: it is over; -EINPROGRESS: it
     * is not; -EIO: an error. */
    int (*ask)(const struct nccl_reg_comm_info *info, void *comm);
    /* Is all work over that was handed to the communicator's device? Waits for it, so many milliseconds at most: it may
     * wait for what the caller does next. -EBUSY: it is not over, or cannot be waited for. */
    int (*wait)(const struct nccl_reg_comm_info *info, unsigned int ms);
    /* See that the owner of a segment stays until drop. False: it is about to go, and what it owns will be lost. Under
     * the registry's lock: takes none. NULL, both: owners stay. */
    bool (*hold)(void *owner);
    void (*drop)(void *owner);
};

/* What an operation is, as far as NCCL treats its buffers alike. */
enum nccl_reg_kind {
    NCCL_REG_COLLECTIVE,
    NCCL_REG_POINT_TO_POINT, /* and what is made of it: all-to-all, gather, scatter */
};

#define NCCL_REG_BUFFERS 2

struct nccl_reg_op {
    enum nccl_reg_kind kind;
    bool captured; /* becomes part of a graph, and may happen again at any time */
    struct {
        uint64_t addr;
        size_t size; /* 0: there is no such buffer */
    } buffers[NCCL_REG_BUFFERS];
};

struct nccl_reg_stats {
    uint64_t ops;                         /* operations that have a buffer */
    uint64_t mixed;                       /* of these, with buffers partly in registered memory and partly not */
    uint64_t outside;                     /* with no buffer in registered memory */
    uint64_t unsafe;                      /* that a careful communicator could not make safe, see NCCL_REG_UNSAFE */
    uint64_t attached, detached, renewed; /* registrations made, undone, made once more for the kind of an operation */
    uint64_t failed;                      /* registrations and their undoing that returned an error */
    uint64_t comms, segments;             /* now */
    uint64_t parked;                      /* bytes of segments that are to go and cannot yet */
    uint64_t quarantined;                 /* bytes of segments that never can */
};

/* -ENOMEM. ops must outlive it. */
int nccl_reg_create(const struct nccl_reg_ops *ops, struct nccl_reg **ret_reg);
/* Forget everything, without a call. No other thread may be inside a call, and no group open. */
void nccl_reg_destroy(struct nccl_reg *reg);

/*
 * Memory that is there from now on. Makes no call: each communicator of the device registers it before its next
 * operation. Segments do not overlap. -ENOMEM: it will not be registered. -EEXIST: it overlaps one that is there.
 */
int nccl_reg_segment_add(struct nccl_reg *reg, const struct nccl_reg_segment_info *info);

/*
 * The segment at addr is to go, and no work uses it any more. It is deregistered everywhere; then release is called: at
 * once, on this thread, or by a later call of nccl_reg_settle. It waits (parked) while this thread is in a group, while
 * an operation or a group with a communicator of its device is under way, or as long as a graph (unless it is the
 * program's own) or the program itself holds a registration of it. Where it could not be deregistered it is never
 * released. -ENOENT: no segment starts there; -EALREADY: it is to go already; release is not called.
 */
int nccl_reg_segment_remove(struct nccl_reg *reg, uint64_t addr, void (*release)(void *arg, uint64_t addr, size_t size),
                            void *arg);
/* The segment of this owner that starts at addr has gone already: forget it, without a call. */
void nccl_reg_segment_lost(struct nccl_reg *reg, uint64_t addr, const void *owner);
/* The same for all segments of an owner, which is not NULL. */
void nccl_reg_owner_lost(struct nccl_reg *reg, const void *owner);
/* There is new memory in this range: whatever an owner had there is lost. */
void nccl_reg_range_lost(struct nccl_reg *reg, uint64_t addr, size_t size);
/* Try again to let parked segments of a device go, or of all (-1): that may wait for the work of their devices. The
 * bytes that were released. */
size_t nccl_reg_settle(struct nccl_reg *reg, int device);

/* A communicator that may be used. 0 also if it is known. -ENOMEM. */
int nccl_reg_comm_add(struct nccl_reg *reg, void *comm, const struct nccl_reg_comm_info *info);
/* What was said when it was added. -ENOENT: not known. Not while it is removed. */
int nccl_reg_comm_get(const struct nccl_reg *reg, void *comm, struct nccl_reg_comm_info *ret_info);
/* It has turned out to be one that does not block. */
void nccl_reg_comm_nonblocking(struct nccl_reg *reg, void *comm);
/*
 * A communicator is about to go. talk: its registrations are undone, if the work that uses them is over, or, where the
 * communicator blocks, is soon; else, where peers may hang, they are forgotten: another thread may be about calls on
 * it, and begins none after this. One that is under way is waited for, but not for long: it may be stuck, and what
 * comes next its end. -ENOENT: not known. -EPIPE: there was no talking to it, because it is closed, not ready, at work
 * or to be used at the end of this thread's group: closed it stays, and what is registered with it too, until
 * nccl_reg_comm_gone.
 */
int nccl_reg_comm_remove(struct nccl_reg *reg, void *comm, bool talk);
/* The same with talk, of one that stays: 0: closed it stays until nccl_reg_comm_gone. */
int nccl_reg_comm_finalize(struct nccl_reg *reg, void *comm);
/*
 * The same with one that stays for now (it is about to be aborted, or has been revoked): no call is begun on it, and
 * memory that is registered with it stays until it is removed, or gone: what has another one's address by then is left
 * alone. gone: -ENOENT: not known, or not closed. -EALREADY: it was, and had been finalized.
 */
void nccl_reg_comm_close(struct nccl_reg *reg, void *comm);
/* What it was closed for was refused before anything came of it. */
void nccl_reg_comm_reopen(struct nccl_reg *reg, void *comm);
/* Is it known, and not closed? */
bool nccl_reg_comm_is_open(const struct nccl_reg *reg, void *comm);
int nccl_reg_comm_gone(struct nccl_reg *reg, void *comm);
/* The table's ask, and what that returns. Who closes it waits for the answer. -EPIPE: it is closed or gone. */
int nccl_reg_comm_ask(struct nccl_reg *reg, void *comm);

/* What before found out about an operation. */
#define NCCL_REG_MIXED 1 /* some of its buffers are registered and some are not: ranks may disagree, and hang */
/* A collective meets a registration that point-to-point has used, a careful communicator can make no other one, and
 * the device is at work, or a graph or the program holds it. */
#define NCCL_REG_UNSAFE 2
/*
 * Around an operation: before registers what is missing, and in steady state looks its buffers up. Returns a sum of the
 * above, or -ENOENT where the communicator is not known. after gets what before has put in *ret_used, which may be
 * NULL.
 */
int nccl_reg_before_op(struct nccl_reg *reg, void *comm, const struct nccl_reg_op *op, struct nccl_reg_comm **ret_used);
void nccl_reg_after_op(struct nccl_reg_comm *used);
/* The same before any other call of the program that uses the communicator by itself. */
void nccl_reg_before_call(struct nccl_reg *reg, void *comm, struct nccl_reg_comm **ret_used);

/* This thread's groups: what is begun in one happens at its end, so nothing of its communicators changes before. end is
 * called after the real one; goes_on: what was begun in it is not over then, but on its way behind the program's back.
 */
void nccl_reg_group_start(void);
void nccl_reg_group_end(bool goes_on);
/* In how many groups, within each other, is this thread? */
unsigned int nccl_reg_group_depth(void);

/*
 * The program has registered memory itself, or is about to undo that. Until then segments that it lies in do not go.
 * -ENOMEM, -ENOENT: not known.
 */
int nccl_reg_user_add(struct nccl_reg *reg, void *comm, void *handle, uint64_t addr, size_t size);
int nccl_reg_user_remove(struct nccl_reg *reg, void *comm, void *handle);

/*
 * For reports: waits for nothing for long, at exit a signal handler may have interrupted whoever holds a lock. What a
 * communicator counts that is in use, or goes just then, may be missing.
 */
void nccl_reg_stats_get(struct nccl_reg *reg, struct nccl_reg_stats *ret_stats);

#endif
