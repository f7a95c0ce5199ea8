/* SPDX-License-Identifier: Apache-2.0 */
/*
 * adversary.c - see adversary.h.
 *
 * It is a generator, and numbers for the knowledge of the host. Every completion has a number; when the host has waited
 * for anything, it knows all completions so far; when a query has answered that something is over, all before that.
 * About known completions a query tells the truth. The file does not know what work does.
 *
 * Locking: sim_lock() is held.
 */
#include "adversary.h"

static uint64_t rng, completed, known;

bool adversary_on(void)
{
    return sim_settings.adversary != 0;
}

static uint64_t next(void)
{
    if (!rng)
        rng = sim_settings.adversary * 0x9e3779b97f4a7c15u | 1;
    rng ^= rng << 13;
    rng ^= rng >> 7;
    rng ^= rng << 17;
    return rng * 0x2545f4914f6cdd1du >> 33;
}

bool adversary_chance(unsigned n)
{
    return adversary_on() && next() % n == 0;
}

void adversary_nap(void)
{
    if (!adversary_chance(16))
        return;
    struct timespec nap = {.tv_nsec = (long)(next() % 500000)};
    sim_unlock();
    nanosleep(&nap, NULL);
    sim_lock();
}

uint64_t adversary_number(void)
{
    return ++completed;
}

void adversary_waited(CUcontext ctx, CUstream s, bool all)
{
    if (!adversary_on())
        return;
    known = completed;
    ctx->known = ctx->all.head ? ctx->all.head->seq - 1 : ctx->last_seq;
    if (s && !s->head)
        sim_stream_left(s);
    for (s = all ? ctx->streams : NULL; s; s = s->next) {
        if (!s->head)
            sim_stream_left(s);
    }
    if (all && !ctx->legacy.head)
        sim_stream_left(&ctx->legacy);
}

static bool unknown(const struct CUstream_st *s)
{
    return s->number > known;
}

/* A query says that it is over, so the host knows that all is that completed before. */
static void learn(uint64_t number)
{
    if (number > known)
        known = number;
}

bool adversary_hides_stream(const struct CUstream_st *s)
{
    bool may = unknown(s);

    for (CUstream other = s->legacy ? s->ctx->streams : NULL; other; other = other->next)
        may = may || (other->blocking && unknown(other));
    if (may && adversary_chance(2))
        return true;
    learn(may && s->legacy ? completed : s->number);
    return false;
}

bool adversary_hides_point(const struct sim_point *p)
{
    const bool may = (p->rec && p->rec->number > known) || (p->ctx && p->seq > p->ctx->known);

    if (may && adversary_chance(2))
        return true;
    if (p->rec) {
        learn(p->rec->number);
        return false;
    }
    /* All of the context is over, also where nothing was left at the record, so that the point is empty. */
    if (p->ctx && p->seq > p->ctx->known)
        p->ctx->known = p->seq;
    learn(completed);
    return false;
}
