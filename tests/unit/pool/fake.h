/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fake.h - a driver made of nothing, for tests of the pool: addresses that are never touched, limited memory, faults on
 * demand, a record of every call.
 *
 * It also watches the pool's side of the contract in pool.h and keeps the first breach in fault.
 *
 * Threads: the tables lock for themselves. Tests set the knobs while no call is running, or where noted at any time.
 */
#ifndef CUPOOL_TESTS_FAKE_H
#define CUPOOL_TESTS_FAKE_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "pool.h"

#define KIB           ((size_t)1 << 10)
#define MIB           ((size_t)1 << 20)
#define FAKE_UNITS    8192u /* of POOL_SEGMENT_UNIT: the address space of one fake */
#define FAKE_CAPACITY ((size_t)8 << 30)
#define FAKE_EVENTS   4096u

enum fake_addresses {
    FAKE_UP,       /* lowest first: segments touch each other, addresses come back soon */
    FAKE_DOWN,     /* highest first */
    FAKE_SHUFFLED, /* anywhere */
};

enum fake_kind {
    FAKE_ALLOC, /* backend */
    FAKE_FREE,
    FAKE_COLLECT,
    FAKE_ORDER, /* order */
    FAKE_FILL,
    FAKE_FILLED,
    FAKE_SEGMENT_ALLOC, /* observer */
    FAKE_SEGMENT_FREE,
    FAKE_TRIM,
    FAKE_SEGMENT_LOST,
    FAKE_KINDS
};

/* One call; addr and why as far as the function has them. rc: what it returned. FAKE_ORDER has may_wait in live, for
 * FAKE_FILL see fake_config_filling. */
struct fake_event {
    enum fake_kind kind;
    int rc;
    uint64_t addr;
    size_t size, held, live;
    const char *why;
};

struct fake_segment {
    uint64_t addr;
    size_t size;              /* 0: no segment starts here */
    unsigned int kind;        /* as the pool said when it got it; so it has to say ever after */
    unsigned int index;       /* segments in the order of their births, from 0 */
    unsigned int blocks;      /* of the test's model; whoever changes it keeps idle up to date */
    bool broken, withdrawn;   /* of the test's model */
    size_t exposed;           /* of the test's model */
    unsigned int idle_since;  /* of the test's model */
    bool announced, farewell; /* segment_alloc, segment_free were called */
};

struct fake {
    pthread_mutex_t lock;
    pthread_cond_t turn;

    /* Knobs. */
    enum fake_addresses addresses;
    uint64_t seed;        /* of FAKE_SHUFFLED */
    size_t capacity;      /* more is refused */
    unsigned int fail_at; /* this call of alloc, counted from 1, fails with fail_rc; 0: none */
    int fail_rc;
    bool refuse; /* every alloc fails with -ENOMEM */
    bool late;   /* what is given back has arrived, for others to have, when collect() returns */
    bool scarce;
    int order_rc;
    int fill_rc;
    int filled_rc;
    unsigned int fill_fail_at; /* this call of fill, counted from 1, fails with -EIO; 0: none */
    bool prompt; /* order() never waits on the host; else it refuses, without counting as a call, where it may not */
    bool frozen;
    bool observed; /* the pool has an observer: watch its order */
    /* Called by order() without the lock; returns what order() returns. */
    int (*order_hook)(struct fake *fake);
    void (*frozen_hook)(struct fake *fake); /* called by the next frozen(), without the lock */
    void *user;
    unsigned int stop[FAKE_KINDS]; /* this call (from 1) of the kind waits; see fake_stop */

    /* The events. */
    unsigned int waiting[FAKE_KINDS];
    unsigned int calls[FAKE_KINDS];
    unsigned int refused; /* alloc calls that returned -ENOMEM */
    unsigned int failed;  /* alloc calls that returned another error */
    unsigned int born, orders_ok, frozen_calls;
    unsigned int waits;      /* order calls that were allowed to wait */
    enum pool_order_how how; /* of the last order call */
    unsigned int whole;      /* segments given back that the test's model has not withdrawn */
    size_t in_use, peak, idle, arriving;
    size_t idle_withdrawn; /* of idle, in withdrawn segments; of the test's model */
    struct fake_event events[FAKE_EVENTS];
    unsigned int events_count;
    const char *fault;

    uint64_t base;
    struct fake_segment segments[FAKE_UNITS]; /* by first unit */
    uint16_t owner[FAKE_UNITS];               /* first unit of the segment, plus one; 0: nobody's */
};

/* A fresh one with an address range of its own; abort() without memory. */
struct fake *fake_new(void);
void fake_delete(struct fake *fake);

/* The config for a pool over it; no limit, with an observer, any number of segments may be broken into, and what is
 * idle is kept. */
struct pool_config fake_config(struct fake *fake);
/* For a pool that fills its blocks; FAKE_FILL's events have shared in live and fresh in held. */
struct pool_config fake_config_filling(struct fake *fake);

/* The segment around addr, or NULL. Only valid until it is given back. */
struct fake_segment *fake_segment_of(struct fake *fake, uint64_t addr);

/* The next call of this kind is to wait for fake_go; later ones are not. At any time. */
void fake_stop(struct fake *fake, enum fake_kind kind);
void fake_go(struct fake *fake, enum fake_kind kind);
/* Wait until a call of this kind waits. */
void fake_wait(struct fake *fake, enum fake_kind kind);
/* The call that waits goes on, and the next one of this kind is to wait. False: none waits. */
bool fake_step(struct fake *fake, enum fake_kind kind);
/* A test failed while calls were waiting: let them go, and leave everything to them. True if there were any. */
bool fake_abandon(struct fake *fake);

void fake_events_clear(struct fake *fake);
/* The nth event (from 0) of a kind, or NULL. */
const struct fake_event *fake_event_of(const struct fake *fake, enum fake_kind kind, unsigned int n);

/* splitmix64 */
uint64_t rng_next(uint64_t *state);
/* 0 <= result < bound */
size_t rng_below(uint64_t *state, size_t bound);

#endif
