/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nccl_fake.h - an NCCL made of nothing, for tests of nccl_reg: communicators that remember what is registered with
 * them and keep the first breach of NCCL's rules in fault.
 *
 * The rules: one call at a time on a communicator; none on one that is not ready, or has gone; what is registered is
 * not registered already; what is undone was registered; nothing is registered any more when a communicator is
 * destroyed, or memory released; before NCCL 2.29.2 a registration that point-to-point has used serves no collective;
 * a registration is undone only when work that uses it is over.
 *
 * Threads: the table's functions, operations and releases lock for themselves. Tests set the knobs while no call is
 * running, or where noted at any time.
 */
#ifndef CUPOOL_TESTS_NCCL_FAKE_H
#define CUPOOL_TESTS_NCCL_FAKE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "nccl_reg.h"

#define FAKE_COMMS   16u
#define FAKE_RECORDS 512u

struct fake_record {
    uint64_t addr;
    size_t size; /* 0: not in use */
    bool sent;   /* point-to-point has used it */
    bool busy;   /* work that uses it may not be over */
};

struct fake_comm {
    bool alive;
    int device;
    atomic_bool ready; /* may be set at any time */
    atomic_int inside; /* calls on it that are under way */
    unsigned int top;  /* none of the records from here on is in use */
    struct fake_record records[FAKE_RECORDS];
};

struct nccl_fake {
    pthread_mutex_t lock; /* guards the records, the counts and fault */
    struct fake_comm comms[FAKE_COMMS];
    char fault[160];
    bool old;              /* before 2.29.2 */
    size_t front;          /* of the segments that are added */
    void *owner;           /* of them */
    bool own;              /* they are the program's own memory */
    _Atomic(void *) going; /* an owner that is about to go */
    atomic_int held;       /* owners, or the same one several times */
    /* Knobs: what the nth call from now on answers. 0: never. */
    unsigned int attach_fails, detach_fails, attach_null;
    /* The next registration, or undoing, of this communicator stays inside until stuck is set back. NULL: none. */
    _Atomic(void *) stuck_in;
    atomic_bool stuck;
    atomic_int wait_rc;
    atomic_uint fail_per_mille; /* of all calls, whatever the other knobs say; may be set at any time */
    uint64_t rng;
    uint64_t made, undone, failed; /* registrations that are there, have gone, and errors, as the registry counts */
    unsigned int attaches, detaches, waits, releases;
    uint64_t released_bytes, waited_ms;
};

extern const struct nccl_reg_ops nccl_fake_ops;
/* The one that the table's functions work on. */
extern struct nccl_fake nccl_fake;

void nccl_fake_reset(void);
void nccl_fake_say(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* A communicator comes to life, is used, goes. comm is its number. */
void *nccl_fake_comm(unsigned int comm);
void nccl_fake_comm_make(unsigned int comm, int device, bool ready);
void nccl_fake_comm_destroy(unsigned int comm, bool aborted);
/* The fake's part of an operation, at the end of its group. registered: buffers that must be. */
void nccl_fake_op(unsigned int comm, const struct nccl_reg_op *op, unsigned int registered);
/* How many registrations a communicator has. */
unsigned int nccl_fake_records(unsigned int comm);
/* All work is over. */
void nccl_fake_finish(void);
/* Registrations of memory that has gone with its context. */
void nccl_fake_forget(uint64_t addr, size_t size);
/* With nccl_fake.front in front of it. */
int nccl_fake_segment_add(struct nccl_reg *reg, uint64_t addr, size_t size, int device);
/* For nccl_reg_segment_remove. */
void nccl_fake_release(void *arg, uint64_t addr, size_t size);

#endif
