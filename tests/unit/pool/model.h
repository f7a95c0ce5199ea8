/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model.h - a pool over a fake driver next to a model of what pool.h promises: intervals that may not overlap, counters
 * to the byte. Each call goes to the pool, and whatever the contract rules out is noted in fault.
 *
 * The model never looks inside the pool, and takes no size class, fit or growth rule over from it.
 *
 * Threads: one at a time.
 */
#ifndef CUPOOL_TESTS_MODEL_H
#define CUPOOL_TESTS_MODEL_H

#include "fake.h"

struct model_block {
    uint64_t addr;
    size_t requested;
    size_t size; /* what the pool says that it takes */
    bool kept;   /* freed, its order has failed: occupied, but no longer live */
};

struct model {
    struct fake *fake;
    struct pool_config config;
    struct pool *pool;
    struct model_block *blocks; /* by address */
    size_t count, room, live_count;
    size_t kept;    /* bytes of kept blocks */
    size_t exposed; /* bytes of segments in use, not withdrawn, of which a block leaves 2 MiB or more: all but what the
                       driver would take for the smallest block */
    size_t exposed_max; /* the most it may be: break_max, or what it was after a refusal */
    unsigned int clock;
    struct pool_stats want;
    char fault[256]; /* empty: all is well */
};

/* Takes config, except for arg and tables, from the caller. abort() when that fails. */
struct model *model_new(size_t limit, size_t break_max, size_t excess_min, bool prompt);
/* Destroys the pool too. */
void model_delete(struct model *model);
/* Destroy the pool and begin another over the same driver. */
void model_restart(struct model *model);

/* Returns what pool_alloc returned. */
int model_alloc(struct model *model, size_t size, uint64_t *ret_addr);
/* Free the nth live block (modulo their number); nothing if there is none. Returns what pool_free returned. */
int model_free_nth(struct model *model, size_t n);
/* Free an address at which no live block starts. */
void model_free_bad(struct model *model, uint64_t addr);
size_t model_trim(struct model *model);
size_t model_decay(struct model *model, unsigned int age);
/* Withdraw the segment of the nth block (modulo their number), be it kept; nothing if there is none. */
void model_withdraw_nth(struct model *model, size_t n);
/* Compare counters; with deep, also let the pool check itself. */
void model_check(struct model *model, bool deep);
/* Free and trim everything, and see that nothing is left. */
void model_drain(struct model *model);

#endif
