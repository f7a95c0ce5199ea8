/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nccl_reg.h - which memory is registered with which communicator, and when that may change.
 *
 * The registry has a table of segments (memory that is registered as a whole, one physical allocation each), a table of
 * communicators, and for each communicator its registrations. Adding a segment makes no call; the communicator's next
 * operation registers the missing segments, on the thread of the operation. Before a segment goes it is deregistered
 * from every communicator, and before a communicator goes all its segments are deregistered.
 *
 * It knows nothing of NCCL, CUDA, environment variables or traces; those are behind the table below. It decides for
 * this process alone. The caller must make all ranks of a communicator decide alike, so nothing here depends on time,
 * addresses or sizes.
 *
 * Errors: 0 or a negative errno value. Out-parameters are last and written on success only.
 *
 * Ownership: the caller owns the memory, the communicators and the table of functions; the registry owns its own
 * entries. A struct nccl_reg_comm goes back with nccl_reg_after_op.
 *
 * Threads: every function may be called from any thread. NCCL requires that one thread at a time uses a communicator;
 * this holds between operations and the calls made here, too: each communicator has a lock, which is held
 * over the calls of the table on that communicator and nothing else, and for which only operations of the same
 * communicator wait. The registry's lock is never held over a call. The functions of the table may not call back.
 */
#ifndef CUPOOL_NCCL_REG_NCCL_REG_H
#define CUPOOL_NCCL_REG_NCCL_REG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct nccl_reg;
struct nccl_reg_comm;

/* The caller's facts about a communicator; copied when it is added. */
struct nccl_reg_comm_info {
    void *arg;       /* the caller's, unused here */
    int device;      /* the communicator registers segments of this device */
    int rank, ranks; /* the caller's, unused here */
    bool nonblocking;
    /*
     * A registration that point-to-point has used must not serve a collective: NCCL before 2.29.2 then ends the
     * process, unless a collective for which NCCL has mapped the memory came first, which only NCCL knows. So a
     * collective gets another registration first.
     */
    bool careful;
    bool maps_plain; /* its peers map plain memory as well */
};

/* The caller's facts about a segment; copied when it is added. Sizes are in bytes. */
struct nccl_reg_segment_info {
    uint64_t addr;
    size_t size;
    int device;
    /*
     * The number of bytes in front of the segment that belong to the same allocation and are never used. NCCL finds the
     * registration that begins first, so one that begins in the front replaces those that begin later, without a wait.
     * 1 MiB or more; it is used in 16 parts of whole pages.
     */
    size_t front;
    bool plain;  /* most communicators' peers do not map it, so the kinds of operations do not matter */
    bool own;    /* the program decides when it goes, and runs no graph that uses it after that */
    void *owner; /* the segment may be lost with its owner, who must exist while it goes; NULL: none */
};

/* The functions for a communicator that was added with info. */
struct nccl_reg_ops {
    /* Register size bytes at addr. *ret_handle names the registration; NULL with 0: accepted without effect. After an
     * error the registry does not try again. */
    int (*attach)(const struct nccl_reg_comm_info *info, void *comm, uint64_t addr, size_t size, void **ret_handle);
    /* Undo a registration. An error: the memory may stay in use by other ranks for ever. */
    int (*detach)(const struct nccl_reg_comm_info *info, void *comm, uint64_t addr, size_t size, void *handle);
    /* For a communicator that does not block: the state of the work begun with it. 0: it has ended; -EINPROGRESS; -EIO:
     * an error. */
    int (*ask)(const struct nccl_reg_comm_info *info, void *comm);
    /* Wait for all work handed to the communicator's device, for ms milliseconds at most, because that work may wait
     * for the caller's next work. 0; -EBUSY: it has not ended, or cannot be waited for. */
    int (*wait)(const struct nccl_reg_comm_info *info, unsigned int ms);
    /* Keep the owner of a segment from going until drop. False: it is about to go, and its segments will be lost.
     * Called under the registry's lock, so it must take no lock. Both NULL: owners stay. */
    bool (*hold)(void *owner);
    void (*drop)(void *owner);
};

/* Kinds of operations, as far as NCCL treats their buffers differently. */
enum nccl_reg_kind {
    NCCL_REG_COLLECTIVE,
    NCCL_REG_POINT_TO_POINT, /* and operations made of it: all-to-all, gather, scatter */
};

#define NCCL_REG_BUFFERS 2

/* An operation that is about to begin. */
struct nccl_reg_op {
    enum nccl_reg_kind kind;
    bool captured; /* it becomes part of a graph, and may run again at any time */
    struct {
        uint64_t addr;
        size_t size; /* in bytes; 0: no such buffer */
    } buffers[NCCL_REG_BUFFERS];
};

/* Counters since the registry was created; the last two rows are bytes at present. */
struct nccl_reg_stats {
    uint64_t ops;                         /* operations with a buffer */
    uint64_t mixed;                       /* of these, with some buffers in registered memory and some not */
    uint64_t outside;                     /* with no buffer in registered memory */
    uint64_t unsafe;                      /* that a careful communicator could not make safe, see NCCL_REG_UNSAFE */
    uint64_t attached, detached, renewed; /* registrations made, undone, and repeated because of the kind of an
                                             operation */
    uint64_t failed;                      /* registrations and deregistrations that returned an error */
    uint64_t comms, segments;             /* now */
    uint64_t parked;                      /* bytes of segments that have to go and cannot yet */
    uint64_t quarantined;                 /* bytes of segments that can never go */
};

/* Create a registry. -ENOMEM. ops must outlive it. */
int nccl_reg_create(const struct nccl_reg_ops *ops, struct nccl_reg **ret_reg);
/* Forget everything, without a call. No other thread may be inside a call, and no group may be open. */
void nccl_reg_destroy(struct nccl_reg *reg);

/*
 * Add memory, without a call: each communicator of its device registers it before its next operation. Segments must not
 * overlap. -ENOMEM: it will not be registered. -EEXIST: it overlaps a known segment.
 */
int nccl_reg_segment_add(struct nccl_reg *reg, const struct nccl_reg_segment_info *info);

/*
 * Remove the segment at addr, which no work uses any more. It is deregistered everywhere, and then release is called:
 * at once on this thread, or in a later nccl_reg_retry_parked. The segment stays parked while this thread is in a
 * group, while an operation or a group with a communicator of its device is under way, as long as a communicator lives
 * that has used it in a captured operation (unless the segment is `own`), or while the program itself holds a
 * registration of it. If a deregistration fails, it is never released.
 * -ENOENT: no segment starts there; -EALREADY: it has been removed before; in both cases release is not called.
 */
int nccl_reg_segment_remove(struct nccl_reg *reg, uint64_t addr, void (*release)(void *arg, uint64_t addr, size_t size),
                            void *arg);
/* The owner is about to end, by a call that may still be refused: deregister its segments, as far as their
 * communicators are at rest, since those that outlive it would keep registrations of memory that is gone. May wait for
 * the device, a second at most. Then nccl_reg_owner_lost, or nccl_reg_owner_stays. */
void nccl_reg_owner_ends(struct nccl_reg *reg, const void *owner);
void nccl_reg_owner_stays(struct nccl_reg *reg, const void *owner);
/* The segment of this owner that starts at addr has gone already: forget it, without a call. */
void nccl_reg_segment_lost(struct nccl_reg *reg, uint64_t addr, const void *owner);
/* As nccl_reg_segment_lost, for all segments of an owner that is not NULL. */
void nccl_reg_owner_lost(struct nccl_reg *reg, const void *owner);
/* This range holds new memory: forget all segments there that have an owner. */
void nccl_reg_range_lost(struct nccl_reg *reg, uint64_t addr, size_t size);
/* Try to release the parked segments of a device, or of all (-1). May wait for the work of their devices. Returns the
 * bytes released. */
size_t nccl_reg_retry_parked(struct nccl_reg *reg, int device);

/* Add a communicator that is ready. 0 also if it is known. -ENOMEM. */
int nccl_reg_comm_add(struct nccl_reg *reg, void *comm, const struct nccl_reg_comm_info *info);
/* The info with which the communicator was added. -ENOENT: not known. Must not run beside the communicator's
 * removal. */
int nccl_reg_comm_get(const struct nccl_reg *reg, void *comm, struct nccl_reg_comm_info *ret_info);
/* True if a communicator has ever been added. */
bool nccl_reg_comm_any(const struct nccl_reg *reg);
/* Work begun with the communicator goes on after the call: it does not block. Until the program, or nccl_reg_comm_ask,
 * has seen the end of that work, no memory of its device is released. */
void nccl_reg_comm_nonblocking(struct nccl_reg *reg, void *comm);
/* Around a question of the program's own for the state of a communicator. begun is what begin has returned, state the
 * answer as in nccl_reg_ops.ask. Neither takes a lock, because another thread may be stuck in a call that holds it. */
unsigned int nccl_reg_poll_begin(const struct nccl_reg *reg, void *comm);
void nccl_reg_poll_end(struct nccl_reg *reg, void *comm, unsigned int begun, int state);
/*
 * A communicator is about to go. may_call: undo its registrations, provided that the work that uses them has ended or,
 * if the communicator blocks, ends soon. Without may_call, because its peers may hang, forget them: a call of another
 * thread on the communicator is waited for, but for a second at most, because it may be stuck until the communicator
 * ends; no later call begins. -ENOENT: not known. -EPIPE: no call could be made on the communicator, because it is
 * closed, not ready, at work, or used in this thread's open group: it stays, closed, with its registrations, until
 * nccl_reg_comm_gone.
 */
int nccl_reg_comm_remove(struct nccl_reg *reg, void *comm, bool may_call);
/* As nccl_reg_comm_remove with may_call, for a communicator that stays. 0: it stays, closed, until nccl_reg_comm_gone.
 */
int nccl_reg_comm_finalize(struct nccl_reg *reg, void *comm);
/*
 * Close a communicator that stays for now (it is about to be aborted, or has been revoked): no call is begun on it, and
 * memory that is registered with it stays until it is removed or gone. nccl_reg_comm_gone forgets it once it has ended,
 * and leaves a communicator added at its address since alone. -ENOENT: not known, or not closed. -EALREADY: it is
 * forgotten, and had been finalized.
 */
void nccl_reg_comm_close(struct nccl_reg *reg, void *comm);
/* The call for which the communicator was closed or finalized was refused and had no effect. If its registrations have
 * been undone for that call, it is forgotten, and may be added again. */
void nccl_reg_comm_reopen(struct nccl_reg *reg, void *comm);
/* True if the communicator is known and not closed. */
bool nccl_reg_comm_is_open(const struct nccl_reg *reg, void *comm);
int nccl_reg_comm_gone(struct nccl_reg *reg, void *comm);
/* Calls the table's ask and returns its result. For a thread on which the program uses the communicator. A thread that
 * closes the communicator waits for that call. -EPIPE: it is closed or gone. */
int nccl_reg_comm_ask(struct nccl_reg *reg, void *comm);

/* The result of nccl_reg_before_op is a sum of these. */
#define NCCL_REG_MIXED 1 /* some of its buffers are registered and some are not: ranks may disagree, and hang */
/* UNSAFE: a collective uses a registration that point-to-point has used, and a careful communicator can make no other,
 * because the device is at work, or a graph or the program holds the registration. */
#define NCCL_REG_UNSAFE 2
/*
 * Around an operation. before registers missing segments; in the steady state it only looks the buffers up. Returns a
 * sum of NCCL_REG_..., or -ENOENT if the communicator is not known. Pass *ret_used, which may be NULL, to after.
 */
int nccl_reg_before_op(struct nccl_reg *reg, void *comm, const struct nccl_reg_op *op, struct nccl_reg_comm **ret_used);
void nccl_reg_after_op(struct nccl_reg_comm *used);
/* As nccl_reg_before_op, for any other call by which the program itself uses the communicator. */
void nccl_reg_before_call(struct nccl_reg *reg, void *comm, struct nccl_reg_comm **ret_used);

/* Groups of this thread: operations begun in a group run at its end, so nothing of its communicators changes before.
 * Call end after the real call. goes_on: the operations have not ended by then and go on in the background. */
void nccl_reg_group_start(void);
void nccl_reg_group_end(bool goes_on);
/* The number of nested groups that this thread is in. */
unsigned int nccl_reg_group_depth(void);

/*
 * The program has registered memory itself, or is about to undo that. Segments that overlap the memory stay until then.
 * -ENOMEM; -ENOENT: the communicator or handle is not known.
 */
int nccl_reg_user_add(struct nccl_reg *reg, void *comm, void *handle, uint64_t addr, size_t size);
int nccl_reg_user_remove(struct nccl_reg *reg, void *comm, void *handle);
/* True if the program's registration of this handle is known. */
bool nccl_reg_user_known(struct nccl_reg *reg, void *comm, void *handle);

/*
 * For reports: waits for a short time at most, because at exit a signal handler may have interrupted the holder of a
 * lock. The counts of a communicator that is in use, or just ending, may be missing.
 */
void nccl_reg_stats_get(struct nccl_reg *reg, struct nccl_reg_stats *ret_stats);

#endif
