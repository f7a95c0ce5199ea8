/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stream.c - the exported stream functions, and what goes into a stream besides copies.
 *
 * They create and end streams, and the file has the default streams, synchronising, host functions, flag writes and
 * waits. The order is in engine.c, capture in capture.c.
 *
 * Locking: each function takes sim_lock() itself. A thread's per-thread streams are found through a thread-local table
 * and retired when the thread ends.
 */
#include "adversary.h"

#define OWN_MAX 16

struct own { /* per-thread default streams, one for each context used */
    CUcontext ctx;
    uint32_t gen;
    CUstream s;
};

static CUstream spare_streams;
static uint64_t stream_ids;
static __thread struct own own[OWN_MAX];
static pthread_key_t own_key;
static pthread_once_t own_once = PTHREAD_ONCE_INIT;

CUstream sim_stream_new(void)
{
    CUstream s = spare_streams;

    if (!s)
        return calloc(1, sizeof(*s));
    spare_streams = s->next;
    return s;
}

void sim_stream_init(CUstream s, CUcontext ctx, unsigned flags, int priority)
{
    memset(s, 0, sizeof(*s));
    s->magic = SIM_MAGIC_STREAM;
    s->ctx = ctx;
    s->flags = flags;
    s->priority = priority;
    s->id = ++stream_ids;
    s->blocking = !(flags & CU_STREAM_NON_BLOCKING);
    s->rng = (sim_settings.seed + s->id) * 0x9e3779b97f4a7c15u | 1;
}

void sim_stream_left(CUstream s)
{
    for (struct sim_alloc *a = s->leaving, *next; a; a = next) {
        next = a->leaving;
        sim_alloc_free(a);
    }
    s->leaving = NULL;
}

void sim_stream_retire(CUstream s)
{
    s->magic = 0;
    s->destroyed = true;
    if (s->head || s->state != SIM_IDLE)
        return; /* its worker comes back here */
    sim_stream_left(s);
    s->next = spare_streams;
    spare_streams = s;
}

static void link_in(CUstream s)
{
    s->next = s->ctx->streams;
    if (s->next)
        s->next->prev = s;
    s->ctx->streams = s;
}

static void link_out(CUstream s)
{
    if (s->prev)
        s->prev->next = s->next;
    else
        s->ctx->streams = s->next;
    if (s->next)
        s->next->prev = s->prev;
}

static void kill(CUstream s)
{
    if (s->cap) /* a capture does not survive one of its streams */
        sim_capture_end(s->cap);
    link_out(s);
    sim_stream_retire(s);
}

void sim_streams_kill(CUcontext ctx)
{
    while (ctx->streams)
        kill(ctx->streams);
}

static void own_end(void *arg)
{
    struct own *o = arg;

    SIM_LOCKED();
    for (int i = 0; i < OWN_MAX; i++) {
        if (o[i].ctx && o[i].gen == o[i].ctx->gen)
            kill(o[i].s);
        o[i].ctx = NULL;
    }
}

static void own_key_make(void)
{
    pthread_key_create(&own_key, own_end);
}

static CUresult own_stream(CUcontext ctx, CUstream *ret)
{
    struct own *o = NULL;

    for (int i = 0; i < OWN_MAX; i++) {
        if (own[i].ctx == ctx && own[i].gen == ctx->gen) {
            *ret = own[i].s;
            return CUDA_SUCCESS;
        }
        if (!o && (!own[i].ctx || own[i].gen != own[i].ctx->gen))
            o = &own[i];
    }
    if (!o)
        return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_once(&own_once, own_key_make);
    pthread_setspecific(own_key, own);
    *o = (struct own){ctx, ctx->gen, sim_stream_new()};
    sim_stream_init(o->s, ctx, 0, 0);
    o->s->per_thread = true;
    link_in(o->s);
    *ret = o->s;
    return CUDA_SUCCESS;
}

CUresult sim_stream_resolve(CUstream handle, bool pt, CUstream *ret)
{
    CUcontext ctx;

    if (handle > CU_STREAM_PER_THREAD) {
        if (handle->magic != SIM_MAGIC_STREAM)
            return CUDA_ERROR_INVALID_HANDLE;
        if (handle->dying) { /* the driver reads memory that it has given back */
            fprintf(stderr, "simgpu: a thread uses a stream that another one destroys\n");
            abort();
        }
        *ret = handle;
        return sim_ctx_check(handle->ctx);
    }
    SIM_TRY(sim_current(&ctx));
    if (handle == CU_STREAM_PER_THREAD || (!handle && pt))
        return own_stream(ctx, ret);
    *ret = &ctx->legacy;
    return CUDA_SUCCESS;
}

CUstream sim_stream_make(CUcontext ctx, unsigned flags, int priority)
{
    CUstream s = sim_stream_new();

    sim_stream_init(s, ctx, flags, priority < -5 ? -5 : priority > 0 ? 0 : priority);
    link_in(s);
    return s;
}

static CUresult create(CUstream *ret, unsigned flags, int priority)
{
    CUcontext ctx;

    if (!ret || flags > CU_STREAM_NON_BLOCKING)
        return CUDA_ERROR_INVALID_VALUE;
    SIM_LOCKED();
    SIM_TRY(sim_current(&ctx));
    SIM_TRY(sim_ctx_stalled(ctx));
    *ret = sim_stream_make(ctx, flags, priority);
    return CUDA_SUCCESS;
}

SIM_CALL(cuStreamCreate, (CUstream * ret, unsigned int flags), create(ret, flags, 0))
SIM_CALL(cuStreamCreateWithPriority, (CUstream * ret, unsigned int flags, int priority), create(ret, flags, priority))

/* Returns at once; queued work still runs. */
static CUresult destroy(CUstream handle)
{
    CUstream s;

    if (handle <= CU_STREAM_PER_THREAD)
        return CUDA_ERROR_INVALID_HANDLE;
    SIM_LOCKED();
    if (handle->magic == SIM_MAGIC_STREAM) {
        sim_ctx_stalled(handle->ctx);
        handle->dying = true;
        adversary_nap();
        handle->dying = false;
    }
    CUresult r = sim_stream_resolve(handle, false, &s);
    if (handle->magic == SIM_MAGIC_STREAM && !handle->per_thread)
        kill(handle);
    return r;
}

SIM_CALL(cuStreamDestroy, (CUstream s), destroy(s))
SIM_CALL(cuStreamDestroy_v2, (CUstream s), destroy(s))

/* Looking at a stream that is captured, or that a capture would have to wait for, ends the capture; and captures forbid
 * to look at any stream. */
static CUresult look_check(CUstream s)
{
    if (s->cap) {
        bool lost = s->cap->invalid;
        sim_capture_lose(s->cap);
        return lost ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    CUresult r = s->legacy ? sim_capture_implicit(s->ctx) : CUDA_SUCCESS;
    return r == CUDA_SUCCESS ? sim_capture_unsafe() : r;
}

static CUresult synchronize(CUstream handle, bool pt)
{
    CUstream s;

    SIM_LOCKED();
    SIM_TRY(sim_stream_resolve(handle, pt, &s));
    SIM_TRY(look_check(s));
    CUcontext ctx = s->ctx;
    sim_stream_wait(s);
    return ctx->error;
}

static CUresult query(CUstream handle, bool pt)
{
    CUstream s;

    SIM_LOCKED();
    SIM_TRY(sim_stream_resolve(handle, pt, &s));
    SIM_TRY(look_check(s));
    if (!sim_stream_idle(s) || adversary_hides_stream(s))
        return CUDA_ERROR_NOT_READY;
    return CUDA_SUCCESS;
}

static CUresult submit(CUstream handle, bool pt, struct sim_work w)
{
    CUstream s;

    SIM_LOCKED();
    SIM_TRY(sim_stream_resolve(handle, pt, &s));
    SIM_TRY(sim_work_check(&w, s->ctx->dev));
    return sim_submit(s, &w, false);
}

static CUresult host_func(CUstream s, bool pt, CUhostFn fn, CUstreamCallback cb, void *arg)
{
    struct sim_work w = {.kind = cb ? SIM_CALLBACK : SIM_HOST};

    if (!fn && !cb)
        return CUDA_ERROR_INVALID_VALUE;
    w.host.fn = fn;
    w.host.cb = cb;
    w.host.arg = arg;
    return submit(s, pt, w);
}

static CUresult value(CUstream s, bool pt, enum sim_kind kind, uint64_t addr, uint64_t v, unsigned bytes,
                      unsigned flags)
{
    struct sim_work w = {.kind = kind};

    w.value.addr = addr;
    w.value.value = v;
    w.value.bytes = bytes;
    w.value.flags = flags;
    return submit(s, pt, w);
}

/* Each in turn, behind the work that is in the stream already. */
static CUresult batch(CUstream s, bool pt, unsigned n, const CUstreamBatchMemOpParams *op, unsigned flags)
{
    CUresult r = n == 0 || n > 256 || !op || flags ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;

    for (unsigned i = 0; r == CUDA_SUCCESS && i < n; i++) {
        switch ((int)op[i].operation) {
        case CU_STREAM_MEM_OP_WAIT_VALUE_32:
        case CU_STREAM_MEM_OP_WAIT_VALUE_64: {
            bool wide = op[i].operation == CU_STREAM_MEM_OP_WAIT_VALUE_64;
            r = value(s, pt, SIM_WAIT_VALUE, op[i].waitValue.address,
                      wide ? op[i].waitValue.value64 : op[i].waitValue.value, wide ? 8 : 4, op[i].waitValue.flags);
            break;
        }
        case CU_STREAM_MEM_OP_WRITE_VALUE_32:
        case CU_STREAM_MEM_OP_WRITE_VALUE_64: {
            bool wide = op[i].operation == CU_STREAM_MEM_OP_WRITE_VALUE_64;
            r = value(s, pt, SIM_WRITE_VALUE, op[i].writeValue.address,
                      wide ? op[i].writeValue.value64 : op[i].writeValue.value, wide ? 8 : 4, op[i].writeValue.flags);
            break;
        }
        case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES:
        case CU_STREAM_MEM_OP_BARRIER:
            break; /* operations of a stream see each other's bytes anyway */
        default:
            r = CUDA_ERROR_INVALID_VALUE;
        }
    }
    return r;
}

int simgpu_kernel(void *stream, const int *until, unsigned int max_us)
{
    struct sim_work w = {.kind = SIM_KERNEL};

    w.kernel.until = until;
    w.kernel.max_ns = (uint64_t)max_us * 1000;
    return (int)submit(stream, false, w);
}

int simgpu_fetch(void *stream, unsigned long long texture, unsigned long long to, size_t n)
{
    struct sim_work w = {.kind = SIM_FETCH};

    w.fetch.texture = texture;
    w.fetch.dst = to;
    w.fetch.n = n;
    return (int)submit(stream, false, w);
}

enum ask { ASK_CTX, ASK_FLAGS, ASK_PRIORITY, ASK_ID, ASK_DEVICE };

static CUresult ask(CUstream handle, bool pt, enum ask what, void *ret)
{
    CUstream s;

    if (!ret)
        return CUDA_ERROR_INVALID_VALUE;
    SIM_LOCKED();
    SIM_TRY(sim_stream_resolve(handle, pt, &s));
    if (what == ASK_CTX)
        *(CUcontext *)ret = s->green ? s->green : s->ctx;
    else if (what == ASK_FLAGS)
        *(unsigned *)ret = s->flags;
    else if (what == ASK_PRIORITY)
        *(int *)ret = s->priority;
    else if (what == ASK_ID)
        *(unsigned long long *)ret = s->id;
    else
        *(CUdevice *)ret = s->ctx->dev;
    return CUDA_SUCCESS;
}

SIM_PAIR(cuStreamSynchronize, cuStreamSynchronize_ptsz, (CUstream s), synchronize(s, pt))
SIM_PAIR(cuStreamQuery, cuStreamQuery_ptsz, (CUstream s), query(s, pt))
SIM_PAIR(cuStreamGetCtx, cuStreamGetCtx_ptsz, (CUstream s, CUcontext *ret), ask(s, pt, ASK_CTX, ret))
SIM_PAIR(cuStreamGetFlags, cuStreamGetFlags_ptsz, (CUstream s, unsigned int *ret), ask(s, pt, ASK_FLAGS, ret))
SIM_PAIR(cuStreamGetPriority, cuStreamGetPriority_ptsz, (CUstream s, int *ret), ask(s, pt, ASK_PRIORITY, ret))
SIM_PAIR(cuStreamGetId, cuStreamGetId_ptsz, (CUstream s, unsigned long long *ret), ask(s, pt, ASK_ID, ret))
SIM_PAIR(cuStreamGetDevice, cuStreamGetDevice_ptsz, (CUstream s, CUdevice *ret), ask(s, pt, ASK_DEVICE, ret))
SIM_PAIR(cuLaunchHostFunc, cuLaunchHostFunc_ptsz, (CUstream s, CUhostFn fn, void *arg), host_func(s, pt, fn, NULL, arg))
SIM_PAIR(cuLaunchHostFunc_v2, cuLaunchHostFunc_v2_ptsz, (CUstream s, CUhostFn fn, void *arg, unsigned int mode),
         host_func(s, pt, fn, NULL, arg))
SIM_PAIR(cuStreamAddCallback, cuStreamAddCallback_ptsz,
         (CUstream s, CUstreamCallback cb, void *arg, unsigned int flags), host_func(s, pt, NULL, cb, arg))
SIM_PAIR(cuStreamWriteValue32_v2, cuStreamWriteValue32_v2_ptsz,
         (CUstream s, CUdeviceptr a, cuuint32_t v, unsigned int flags), value(s, pt, SIM_WRITE_VALUE, a, v, 4, flags))
SIM_PAIR(cuStreamWriteValue64_v2, cuStreamWriteValue64_v2_ptsz,
         (CUstream s, CUdeviceptr a, cuuint64_t v, unsigned int flags), value(s, pt, SIM_WRITE_VALUE, a, v, 8, flags))
SIM_PAIR(cuStreamWaitValue32_v2, cuStreamWaitValue32_v2_ptsz,
         (CUstream s, CUdeviceptr a, cuuint32_t v, unsigned int flags), value(s, pt, SIM_WAIT_VALUE, a, v, 4, flags))
SIM_PAIR(cuStreamWaitValue64_v2, cuStreamWaitValue64_v2_ptsz,
         (CUstream s, CUdeviceptr a, cuuint64_t v, unsigned int flags), value(s, pt, SIM_WAIT_VALUE, a, v, 8, flags))

SIM_PAIR(cuStreamBatchMemOp_v2, cuStreamBatchMemOp_v2_ptsz,
         (CUstream s, unsigned int n, CUstreamBatchMemOpParams *ops, unsigned int flags), batch(s, pt, n, ops, flags))

/* There is no code to run. Host functions stand for kernels. */
SIM_PAIR(cuLaunchKernel, cuLaunchKernel_ptsz,
         (CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by,
          unsigned int bz, unsigned int shared, CUstream s, void **params, void **extra),
         ((void)pt, CUDA_ERROR_NOT_SUPPORTED))
