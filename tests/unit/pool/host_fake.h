/* SPDX-License-Identifier: Apache-2.0 */
/*
 * host_fake.h - a driver of pinned memory without a GPU, and a program that notices when the host pool breaks its
 * contract.
 *
 * Work is two numbers, how much was launched and how much has completed. The program writes into each granule of a
 * block: its owner while it is live, and when it is freed how much had been launched. So memory that is handed out
 * twice or too early is seen by looking at it.
 *
 * Threads: the operations and program_* may run in any thread. Knobs are set while no other thread runs.
 */
#ifndef CUPOOL_TESTS_UNIT_HOST_FAKE_H
#define CUPOOL_TESTS_UNIT_HOST_FAKE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "host_pool.h"

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)

enum host_call { HOST_CALL_ALLOC, HOST_CALL_FREE, HOST_CALL_RECORD, HOST_CALL_QUERY, HOST_CALL_WAIT, HOST_CALLS };

struct host_fake {
    struct host_pool *pool;
    atomic_ulong launched, completed;
    atomic_ulong calls[HOST_CALLS];
    atomic_ulong tokens;   /* made and not dropped */
    _Atomic(size_t) held;  /* bytes that the driver has given */
    size_t capacity;       /* -ENOMEM beyond this; 0: none */
    unsigned long fail_at; /* the call of fail_call that fails, counted from 1; 0: none */
    enum host_call fail_call;
    int fail_rc;
    bool frozen;                   /* a capture: record, query and free say -EBUSY */
    uint64_t busy;                 /* free says -EBUSY for this owner's memory */
    bool slow;                     /* questions may take longer than others wait: threads meet in them */
    bool alone;                    /* one thread: the pool's lock must be free in every call */
    atomic_bool hold;              /* record does not return meanwhile */
    atomic_bool blocked;           /* wait would never return: it fails, and the fault says so */
    atomic_ulong waited_for;       /* the owner in the last wait that has succeeded */
    bool elsewhere;                /* work is of other contexts than the one that is waited for */
    uint64_t again;                /* the next allocation gets this address, whose memory another call has freed */
    unsigned int late;             /* so many queries say that work is not over which is */
    void (*meanwhile)(void);       /* NULL, or what another thread does during the next allocation */
    void (*asked_meanwhile)(void); /* as meanwhile, during the next query */
    void (*freed_meanwhile)(void); /* as meanwhile, during the next free */
    size_t offset;                 /* of the next allocation from a multiple of 2 MiB */
    size_t lost;                   /* bytes reported as lost */
    _Atomic(size_t) unreported;    /* bytes that the driver has given and the pool has not reported */
    _Atomic(const char *) fault;   /* the first breach of the contract, or NULL */
};

/* The pools that are made from now on have shards at once. */
extern bool host_fake_sharded;
/* The pool gets no host memory for its own use meanwhile. */
extern bool host_fake_no_pages;
void host_fake_init(struct host_fake *fake, size_t limit, size_t bound_min);
/* Ends the pool. Everything must have been freed and trimmed before, or forgotten. */
void host_fake_done(struct host_fake *fake);

void host_fake_launch(struct host_fake *fake);
/* Let everything that was launched complete, or one more piece of work. */
void host_fake_complete(struct host_fake *fake);
void host_fake_step(struct host_fake *fake);
void host_fake_fault(struct host_fake *fake, const char *what);

/* A program's request and free, with the checks. id: of the owner, not 0. */
int program_alloc(struct host_fake *fake, const struct host_key *key, size_t size, uint32_t id, uint64_t *ret_addr);
int program_free(struct host_fake *fake, uint64_t addr, size_t size, uint32_t id);

#endif
