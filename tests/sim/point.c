/* SPDX-License-Identifier: Apache-2.0 */
/*
 * point.c - points in time that work waits for: of an event's record, of a context's numbers, and barriers of these.
 *
 * It says whether a point has come and keeps what the point needs. It does not wait, and does not order: engine.c.
 *
 * Locking: everything under sim_lock().
 */
#include "sim.h"

bool sim_done_all(CUcontext ctx, uint64_t seq)
{
    return !ctx->all.head || ctx->all.head->seq > seq;
}

bool sim_done_blk(CUcontext ctx, uint64_t seq)
{
    return !ctx->blk.head || ctx->blk.head->seq > seq;
}

bool sim_point_done(const struct sim_point *p)
{
    return (!p->rec || p->rec->done) && (!p->ctx || sim_done_all(p->ctx, p->seq));
}

void sim_point_take(struct sim_point *p)
{
    if (p->rec)
        p->rec->refs++;
}

void sim_point_drop(struct sim_point *p)
{
    if (p->rec && --p->rec->refs == 0)
        free(p->rec);
    memset(p, 0, sizeof(*p));
}

void sim_barrier_drop(struct sim_barrier *b)
{
    while (b && --b->refs == 0) {
        struct sim_barrier *prev = b->prev;
        sim_point_drop(&b->point);
        free(b);
        b = prev;
    }
}

bool sim_barrier_done(struct sim_barrier *b)
{
    for (; b; b = b->prev) {
        if (!sim_point_done(&b->point))
            return false;
    }
    return true;
}

void sim_ctx_fence(CUcontext ctx, const struct sim_point *p)
{
    if (sim_point_done(p))
        return;
    if (!p->rec && p->ctx == ctx) { /* the usual case: numbers of our own */
        if (p->seq > ctx->fence)
            ctx->fence = p->seq;
        return;
    }
    struct sim_barrier *b = calloc(1, sizeof(*b));
    b->refs = 1;
    b->point = *p;
    sim_point_take(&b->point);
    if (ctx->barrier && sim_barrier_done(ctx->barrier)) {
        sim_barrier_drop(ctx->barrier);
        ctx->barrier = NULL;
    }
    b->prev = ctx->barrier;
    ctx->barrier = b;
}
