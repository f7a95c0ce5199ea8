/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine.c - operations, their order, and the threads that run them.
 *
 * The file has the simulated hardware queues. Every operation of a context gets the context's next number. "Everything
 * up to now is done" is then a comparison with the number of the oldest unfinished operation, so recording an event
 * over a whole context and making all later work wait for it cost two stores, however many streams there are. Worker
 * threads run the streams whose first operation may run, one thread per running stream; streams whose first operation
 * must wait hold no thread. work.c knows what an operation does.
 *
 * Locking: this file owns the lock behind sim_lock(). Waiting (for operations, for queue space) drops it.
 */
#include "adversary.h"

#include <signal.h>
#include <sys/prctl.h>

#define DEPTH_MAX 4096 /* operations in a stream before a launch blocks, as launches natively do at some depth */

struct sim_waiter {
    struct sim_waiter *next;
    CUcontext ctx; /* all operations up to all and all blocking streams' up to blk */
    uint64_t all, blk;
    CUstream stream; /* and this stream up to seq */
    uint64_t seq;
    const struct sim_point *point; /* and this */
    pthread_cond_t cond;
    bool met;
};

struct sim_worker { /* a thread without a stream; the one that went idle last is woken first */
    struct sim_worker *next;
    pthread_cond_t cond;
    bool woken;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t space_cond =
    PTHREAD_COND_INITIALIZER; /* launches that wait for a full queue or a stalled context */
static int space_waiters;
static struct sim_worker *idle;
static CUstream ready_head, ready_tail, blocked;
static struct sim_waiter *waiters;
static struct sim_op *spare_ops;
__thread bool sim_in_hostfn;

static __thread int cancel_before; /* a thread that is cancelled must not take the lock with it */

void sim_lock(void)
{
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_before);
    pthread_mutex_lock(&lock);
}

void sim_unlock(void)
{
    pthread_mutex_unlock(&lock);
    pthread_setcancelstate(cancel_before, NULL);
}

void sim_sleep(const struct timespec *time)
{
    int cancel;

    sim_unlock();
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
    nanosleep(time, NULL);
    pthread_setcancelstate(cancel, NULL);
    sim_lock();
}

uint64_t sim_now(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* ---- conditions ---- */

/* Has everything come that work of this context waits for? */
static bool op_clear(const struct sim_op *op, CUcontext ctx)
{
    return (!op->fence || sim_done_all(ctx, op->fence)) && (!op->barrier || sim_barrier_done(op->barrier));
}

static bool op_runnable(const struct sim_op *op)
{
    CUstream s = op->stream;
    CUcontext ctx = s->ctx;

    if (ctx->error)
        return true; /* a dead context drains */
    if (!op_clear(op, ctx) || (op->twin && !op_clear(op->twin, op->work.copy.also)))
        return false;
    if (s->blocking && ctx->legacy.done < op->legacy)
        return false;
    if (s->legacy && !sim_done_blk(ctx, op->seq - 1))
        return false;
    return op->work.kind != SIM_WAIT || sim_point_done(&op->work.wait);
}

/* ---- workers ---- */

static void op_drop(struct sim_op *op)
{
    if (--op->refs == 0) {
        op->next = spare_ops;
        spare_ops = op;
    }
}

static void *worker_main(void *arg);

/* A stream's first operation may run: get a thread for it. */
static void stream_ready(CUstream s)
{
    s->state = SIM_READY;
    s->next_ready = NULL;
    if (ready_head && adversary_chance(2)) {
        s->next_ready = ready_head;
        ready_head = s;
    } else {
        if (ready_tail)
            ready_tail->next_ready = s;
        else
            ready_head = s;
        ready_tail = s;
    }
    if (idle) {
        struct sim_worker *w = idle;
        idle = w->next;
        w->woken = true;
        pthread_cond_signal(&w->cond);
        return;
    }
    pthread_attr_t attr;
    pthread_t thread;
    sigset_t all, old;
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attr, (size_t)1 << 20);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    pthread_create(&thread, &attr, worker_main, NULL); /* on failure a running worker gets to it */
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_attr_destroy(&attr);
}

static bool waiter_met(const struct sim_waiter *w)
{
    return (!w->ctx || (sim_done_all(w->ctx, w->all) && sim_done_blk(w->ctx, w->blk))) &&
           (!w->stream || w->stream->done >= w->seq) && (!w->point || sim_point_done(w->point));
}

/* Something has completed: see whom that sets free. */
static void progress(void)
{
    for (CUstream *at = &blocked; *at;) {
        CUstream s = *at;
        if (op_runnable(s->head)) {
            *at = s->next_blocked;
            stream_ready(s);
        } else {
            at = &s->next_blocked;
        }
    }
    for (struct sim_waiter **at = &waiters; *at;) {
        struct sim_waiter *w = *at;
        if (waiter_met(w)) {
            *at = w->next;
            w->met = true;
            pthread_cond_signal(&w->cond);
        } else {
            at = &w->next;
        }
    }
}

static void fifo_advance(struct sim_fifo *fifo, bool blk)
{
    while (fifo->head && fifo->head->done) {
        struct sim_op *op = fifo->head;
        fifo->head = blk ? op->next_blk : op->next_all;
        if (!fifo->head)
            fifo->tail = NULL;
        op_drop(op);
    }
}

static void twin_complete(struct sim_op *twin, CUcontext ctx)
{
    twin->done = true;
    sim_barrier_drop(twin->barrier);
    twin->barrier = NULL;
    fifo_advance(&ctx->all, false);
    op_drop(twin);
}

static void op_complete(struct sim_op *op)
{
    CUstream s = op->stream;

    s->head = op->next;
    if (!s->head) {
        s->tail = NULL;
        if (!adversary_on())
            sim_stream_left(s);
    }
    s->number = adversary_number();
    s->depth--;
    s->done = op->seq;
    op->done = true;
    sim_barrier_drop(op->barrier);
    op->barrier = NULL;
    if (op->twin)
        twin_complete(op->twin, op->work.copy.also);
    sim_work_drop(&op->work);
    fifo_advance(&s->ctx->all, false);
    if (s->blocking)
        fifo_advance(&s->ctx->blk, true);
    if (space_waiters)
        pthread_cond_broadcast(&space_cond);
    progress();
}

static uint64_t rng_next(CUstream s)
{
    s->rng ^= s->rng << 13;
    s->rng ^= s->rng >> 7;
    s->rng ^= s->rng << 17;
    return s->rng;
}

/* Every other operation starts late, so that streams drift apart. */
static void op_delay(CUstream s)
{
    uint64_t max = sim_settings.delay_us;
    uint64_t us = max ? rng_next(s) % (2 * max + 1) : 0;

    if (us == 0 || us > max)
        return;
    struct timespec ts = {.tv_sec = (time_t)(us / 1000000), .tv_nsec = (long)(us % 1000000) * 1000};
    sim_sleep(&ts);
}

/* Run the stream's operations up to number last, as far as they may run. */
static void stream_run(CUstream s, uint64_t last)
{
    struct sim_op *op;

    s->state = SIM_RUNNING;
    while ((op = s->head)) {
        if (op->seq > last) {
            stream_ready(s);
            return;
        }
        if (!op_runnable(op)) {
            s->state = SIM_BLOCKED;
            s->next_blocked = blocked;
            blocked = s;
            return;
        }
        if (op->work.kind != SIM_WAIT) {
            op_delay(s);
            adversary_nap();
        }
        sim_work_run(s, &op->work);
        if (op->work.kind != SIM_RECORD)
            adversary_nap();
        op_complete(op);
    }
    s->state = SIM_IDLE;
    if (s->destroyed)
        sim_stream_retire(s);
}

static void *worker_main(void *arg)
{
    struct sim_worker self = {.cond = PTHREAD_COND_INITIALIZER};

    prctl(PR_SET_TIMERSLACK, 1);
    prctl(PR_SET_NAME, "simgpu");
    sim_lock();
    for (;;) {
        while (!ready_head) {
            self.woken = false;
            self.next = idle;
            idle = &self;
            while (!self.woken)
                pthread_cond_wait(&self.cond, &lock);
        }
        CUstream s = ready_head;
        ready_head = s->next_ready;
        if (!ready_head)
            ready_tail = NULL;
        stream_run(s, UINT64_MAX);
    }
    return arg;
}

/* ---- waiting ---- */

static void wait_for(struct sim_waiter *w, CUcontext ctx)
{
    if (!waiter_met(w)) {
        pthread_cond_init(&w->cond, NULL);
        w->met = false;
        w->next = waiters;
        waiters = w;
        while (!w->met)
            pthread_cond_wait(&w->cond, &lock);
        pthread_cond_destroy(&w->cond);
    }
    adversary_waited(ctx, w->stream, w->ctx != NULL);
}

void sim_ctx_wait(CUcontext ctx)
{
    wait_for(&(struct sim_waiter){.ctx = ctx, .all = ctx->last_seq}, ctx);
}

void sim_ctx_stall(CUcontext ctx)
{
    ctx->stall++;
    sim_ctx_wait(ctx);
    if (--ctx->stall == 0 && space_waiters)
        pthread_cond_broadcast(&space_cond);
}

void sim_stream_wait(CUstream s)
{
    struct sim_waiter w = {.stream = s, .seq = s->last};

    if (s->legacy) { /* implies the blocking streams */
        w.ctx = s->ctx;
        w.blk = s->ctx->last_seq;
    }
    wait_for(&w, s->ctx);
}

void sim_point_wait(const struct sim_point *p, CUcontext ctx)
{
    struct sim_point own = *p; /* the event may be recorded again meanwhile */

    sim_point_take(&own);
    wait_for(&(struct sim_waiter){.point = &own}, ctx);
    sim_point_drop(&own);
}

bool sim_ctx_idle(CUcontext ctx)
{
    return !ctx->all.head;
}

bool sim_stream_idle(CUstream s)
{
    return s->done >= s->last && (!s->legacy || !s->ctx->blk.head);
}

/* ---- submission ---- */

/* Wait for what holds launches up: a call that waits for the whole context, and a full queue. */
static void space_wait(void)
{
    space_waiters++;
    pthread_cond_wait(&space_cond, &lock);
    space_waiters--;
}

CUresult sim_ctx_stalled(CUcontext ctx)
{
    while (ctx->stall)
        space_wait();
    return sim_ctx_check(ctx);
}

/* The next operation of the context, behind everything that it waits for. */
static struct sim_op *op_new(CUcontext ctx)
{
    struct sim_op *op = spare_ops;

    if (op)
        spare_ops = op->next;
    else
        op = malloc(sizeof(*op));
    *op = (struct sim_op){.seq = ctx->last_seq + 1, .fence = ctx->fence, .refs = 1};
    if (ctx->barrier && sim_barrier_done(ctx->barrier)) {
        sim_barrier_drop(ctx->barrier);
        ctx->barrier = NULL;
    }
    if ((op->barrier = ctx->barrier))
        op->barrier->refs++;
    return op;
}

static void op_number(struct sim_op *op, CUcontext ctx)
{
    ctx->last_seq = op->seq;
    if (ctx->all.tail)
        ctx->all.tail->next_all = op;
    else
        ctx->all.head = op;
    ctx->all.tail = op;
}

/* A record or wait that would complete at once needs no operation. */
static bool op_shortcut(CUstream s, struct sim_op *op)
{
    if (s->head || (op->work.kind != SIM_RECORD && op->work.kind != SIM_WAIT) || !op_runnable(op))
        return false;
    sim_work_run(s, &op->work);
    sim_work_drop(&op->work);
    return true;
}

CUresult sim_submit(CUstream s, struct sim_work *w, bool sync)
{
    CUcontext ctx = s->ctx;

    if (s->cap)
        return sim_capture_add(s, w);
    if (s->legacy) {
        CUresult r = sim_capture_implicit(ctx);
        if (r != CUDA_SUCCESS) {
            sim_work_drop(w);
            return r;
        }
    }
    while ((ctx->stall && w->kind != SIM_FREE) || s->depth >= DEPTH_MAX)
        space_wait();
    if (s->magic != SIM_MAGIC_STREAM || ctx->error) {
        sim_work_drop(w);
        return ctx->error ? ctx->error : CUDA_ERROR_INVALID_HANDLE;
    }
    struct sim_op *op = op_new(ctx);
    op->work = *w;
    op->stream = s;
    op->legacy = s->blocking ? ctx->legacy.last : 0;
    if (op_shortcut(s, op)) {
        sim_barrier_drop(op->barrier);
        op_drop(op);
        return CUDA_SUCCESS;
    }
    s->last = op->seq;
    op_number(op, ctx);
    if (op->work.kind == SIM_COPY && op->work.copy.also) {
        op->twin = op_new(op->work.copy.also);
        op->twin->refs = 2;
        op_number(op->twin, op->work.copy.also);
    }
    if (s->blocking) {
        op->refs++;
        if (ctx->blk.tail)
            ctx->blk.tail->next_blk = op;
        else
            ctx->blk.head = op;
        ctx->blk.tail = op;
    }
    if (s->tail)
        s->tail->next = op;
    else
        s->head = op;
    s->tail = op;
    s->depth++;
    if (s->state == SIM_IDLE) {
        if (op_runnable(op) && sync) {
            /* The caller would wait for a worker that runs it; running it here spares two switches of threads. */
            stream_run(s, op->seq);
            adversary_waited(ctx, s, false);
            return ctx->error;
        } else if (op_runnable(op)) {
            stream_ready(s);
        } else {
            s->state = SIM_BLOCKED;
            s->next_blocked = blocked;
            blocked = s;
        }
    }
    if (sync)
        wait_for(&(struct sim_waiter){.stream = s, .seq = op->seq}, ctx);
    /* NOLINTNEXTLINE(clang-analyzer-core.StackAddressEscape): a thread that wakes a waiter takes it off the list. */
    return sync ? ctx->error : CUDA_SUCCESS;
}
