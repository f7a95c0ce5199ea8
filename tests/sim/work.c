/* SPDX-License-Identifier: Apache-2.0 */
/*
 * work.c - what an operation does when its turn comes.
 *
 * Operations are fills, copies, fetches by texture objects, host functions, flag writes and waits, stream-ordered
 * frees, and graphs of these. Every operation looks its addresses up again when it runs: memory that was freed
 * meanwhile is an illegal address (700), which kills the context as on a GPU. engine.c has the order.
 *
 * Locking: called with sim_lock(); the lock is dropped while memory is touched or a host function runs. Allocations are
 * pinned meanwhile, so that memory of another context that is freed under a running copy stays mapped.
 */
#include "adversary.h"

static size_t area_bytes(size_t pitch, size_t width, size_t height)
{
    return height ? pitch * (height - 1) + width : 0;
}

/* The bytes that one side of a copy spans. */
static size_t copy_bytes(const struct sim_work *w, size_t pitch, size_t slice)
{
    return slice * (w->copy.depth - 1) + area_bytes(pitch, w->copy.width, w->copy.height);
}

/* Where the engine finds [addr, addr + n): pinned device memory, or plain memory of the host. NULL: nowhere. */
static char *host_pin(uint64_t addr, size_t n, struct sim_alloc **ret)
{
    struct sim_alloc *a = sim_alloc_range(addr, n);

    *ret = a;
    if (a) {
        a->pins++;
        return a->host + (addr - a->addr);
    }
    return sim_is_device_va(addr) ? NULL : (char *)(uintptr_t)addr;
}

static void fault(CUstream s, const char *what, uint64_t addr)
{
    if (getenv("SIMGPU_LOG"))
        fprintf(stderr, "simgpu: device %d: %s of address %#llx, which is not allocated\n", s->ctx->dev, what,
                (unsigned long long)addr);
    s->ctx->error = CUDA_ERROR_ILLEGAL_ADDRESS;
}

/* The operation on it is over. Memory that was unmapped meanwhile was not there for all of it. */
static void host_unpin(CUstream s, struct sim_alloc *a, const char *what, uint64_t addr)
{
    if (a && a->kind == SIM_MEM_VMM && !a->host)
        fault(s, what, addr);
    if (a)
        sim_alloc_unpin(a);
}

static bool range_ok(uint64_t addr, size_t n, int dev)
{
    const struct sim_alloc *a = sim_alloc_range(addr, n);

    return a && (dev < 0 || sim_vmm_reaches(a, dev));
}

static bool addr_ok(uint64_t addr, size_t n, int dev)
{
    return range_ok(addr, n, dev) || !sim_is_device_va(addr);
}

CUresult sim_work_check(const struct sim_work *w, int dev)
{
    bool ok = true;

    if (w->kind == SIM_SET) {
        ok = range_ok(w->set.dst, area_bytes(w->set.pitch, w->set.width, w->set.height), dev);
    } else if (w->kind == SIM_COPY) {
        ok = addr_ok(w->copy.dst, copy_bytes(w, w->copy.dpitch, w->copy.dslice), dev) &&
             addr_ok(w->copy.src, copy_bytes(w, w->copy.spitch, w->copy.sslice), dev);
    } else if (w->kind == SIM_WRITE_VALUE || w->kind == SIM_WAIT_VALUE) {
        ok = range_ok(w->value.addr, w->value.bytes, dev) && w->value.addr % w->value.bytes == 0;
    } else if (w->kind == SIM_FETCH) {
        ok = range_ok(w->fetch.dst, w->fetch.n, dev);
    }
    return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static void fill(char *at, size_t bytes, uint32_t value, unsigned elem)
{
    if (elem == 1) {
        memset(at, (int)(value & 0xff), bytes);
        return;
    }
    for (size_t i = 0; i + elem <= bytes; i += elem)
        memcpy(at + i, &value, elem);
}

static void set_run(CUstream s, const struct sim_work *w)
{
    struct sim_alloc *a;
    char *at = host_pin(w->set.dst, area_bytes(w->set.pitch, w->set.width, w->set.height), &a);

    if (!at || !a) {
        fault(s, "fill", w->set.dst);
        return;
    }
    sim_unlock();
    for (size_t y = 0; y < w->set.height; y++)
        fill(at + y * w->set.pitch, w->set.width, w->set.value, w->set.elem);
    sim_lock();
    host_unpin(s, a, "fill", w->set.dst);
}

static void copy_run(CUstream s, const struct sim_work *w)
{
    struct sim_alloc *da = NULL, *sa = NULL;
    char *dst = host_pin(w->copy.dst, copy_bytes(w, w->copy.dpitch, w->copy.dslice), &da), *src = w->copy.staged;

    if (!src)
        src = host_pin(w->copy.src, copy_bytes(w, w->copy.spitch, w->copy.sslice), &sa);
    if (!dst || !src) {
        fault(s, dst ? "read" : "write", dst ? w->copy.src : w->copy.dst);
    } else {
        size_t spitch = w->copy.staged ? w->copy.width : w->copy.spitch;
        size_t sslice = w->copy.staged ? w->copy.width * w->copy.height : w->copy.sslice;
        sim_unlock();
        for (size_t z = 0; z < w->copy.depth; z++) {
            for (size_t y = 0; y < w->copy.height; y++)
                memmove(dst + z * w->copy.dslice + y * w->copy.dpitch, src + z * sslice + y * spitch, w->copy.width);
        }
        sim_lock();
    }
    host_unpin(s, da, "write", w->copy.dst);
    host_unpin(s, sa, "read", w->copy.src);
}

static bool value_met(uint64_t have, const struct sim_work *w)
{
    uint64_t want = w->value.value;

    switch (w->value.flags & 3) {
    case CU_STREAM_WAIT_VALUE_GEQ:
        return w->value.bytes == 4 ? (int32_t)(have - want) >= 0 : (int64_t)(have - want) >= 0;
    case CU_STREAM_WAIT_VALUE_EQ:
        return have == want;
    case CU_STREAM_WAIT_VALUE_AND:
        return (have & want) != 0;
    default:
        return ~(have | want) != 0;
    }
}

/* Not looked at by the thread sanitizer: a flag may be set by a copy, too. The lock orders the work after it. */
__attribute__((no_sanitize("thread"))) static uint64_t value_load(const char *at, unsigned bytes)
{
    return bytes == 4 ? *(const volatile uint32_t *)at : *(const volatile uint64_t *)at;
}

/* Sleep between two looks at a value whose change nobody reports; the longer the wait so far, the longer, because looks
 * cost processor time. */
static void nap(uint64_t begin)
{
    uint64_t ns = (sim_now() - begin) / 16;

    ns = ns < 20000 ? 20000 : ns > 1000000 ? 1000000 : ns;
    nanosleep(&(struct timespec){.tv_nsec = (long)ns}, NULL);
}

static void value_run(CUstream s, const struct sim_work *w)
{
    const uint64_t begin = sim_now();

    for (;;) {
        struct sim_alloc *a;
        char *at = host_pin(w->value.addr, w->value.bytes, &a);
        if (!at || !a) {
            fault(s, "flag", w->value.addr);
            return;
        }
        sim_unlock();
        bool met = true;
        if (w->kind == SIM_WAIT_VALUE) {
            met = value_met(value_load(at, w->value.bytes), w);
        } else if (w->value.bytes == 4) {
            __atomic_store_n((uint32_t *)at, (uint32_t)w->value.value, __ATOMIC_RELEASE);
        } else {
            __atomic_store_n((uint64_t *)at, w->value.value, __ATOMIC_RELEASE);
        }
        sim_lock();
        host_unpin(s, a, "flag", w->value.addr);
        if (met || s->ctx->error)
            return;
        sim_unlock(); /* with the memory not pinned: others may want to move it */
        nap(begin);
        sim_lock();
    }
}

static void kernel_run(CUstream s, const struct sim_work *w)
{
    const uint64_t begin = sim_now(), end = begin + w->kernel.max_ns;

    while (!s->ctx->error && sim_now() < end &&
           !(w->kernel.until && __atomic_load_n(w->kernel.until, __ATOMIC_ACQUIRE))) {
        sim_unlock();
        nap(begin);
        sim_lock();
    }
}

/* A copy from what the object means by now. */
static void fetch_run(CUstream s, const struct sim_work *w)
{
    const uint64_t from = sim_texture_addr(s->ctx, w->fetch.texture, w->fetch.n);
    struct sim_work copy = {.kind = SIM_COPY};

    if (!from) {
        fault(s, "fetch", w->fetch.texture);
        return;
    }
    copy.copy.dst = w->fetch.dst;
    copy.copy.src = from;
    copy.copy.width = w->fetch.n;
    copy.copy.height = copy.copy.depth = 1;
    copy_run(s, &copy);
}

static void host_run(CUstream s, const struct sim_work *w)
{
    sim_unlock();
    sim_in_hostfn = true;
    if (w->kind == SIM_CALLBACK)
        w->host.cb(s->legacy ? NULL : s, CUDA_SUCCESS, w->host.arg);
    else
        w->host.fn(w->host.arg);
    sim_in_hostfn = false;
    sim_lock();
}

void sim_work_run(CUstream s, struct sim_work *w)
{
    if (w->kind == SIM_RECORD) {
        w->rec->time = sim_now();
        w->rec->done = true;
        w->rec->number = adversary_number();
        return;
    }
    if (s->ctx->error)
        return;
    switch (w->kind) {
    case SIM_SET:
        set_run(s, w);
        break;
    case SIM_COPY:
        copy_run(s, w);
        break;
    case SIM_HOST:
    case SIM_CALLBACK:
        host_run(s, w);
        break;
    case SIM_WRITE_VALUE:
    case SIM_WAIT_VALUE:
        value_run(s, w);
        break;
    case SIM_KERNEL:
        kernel_run(s, w);
        break;
    case SIM_FETCH:
        fetch_run(s, w);
        break;
    case SIM_FREE: {
        struct sim_alloc *a = sim_alloc_find(w->addr);
        if (a && a->kind == SIM_MEM_DEVICE) {
            a->leaving = s->leaving;
            s->leaving = a;
        } else if (a) {
            sim_alloc_free(a);
        }
        break;
    }
    case SIM_GRAPH:
        for (size_t i = 0; i < w->exec->n; i++)
            sim_work_run(s, &w->exec->works[i]);
        break;
    default:
        break;
    }
}

void sim_work_drop(struct sim_work *w)
{
    if (w->kind == SIM_COPY) {
        free(w->copy.staged);
    } else if (w->kind == SIM_WAIT) {
        sim_point_drop(&w->wait);
    } else if (w->kind == SIM_RECORD) {
        struct sim_point p = {.rec = w->rec};
        sim_point_drop(&p);
    } else if (w->kind == SIM_GRAPH) {
        sim_exec_drop(w->exec);
    }
    w->kind = SIM_NOP;
}

/* For graphs, whose nodes own nothing: staged sources are not captured, waits and records become edges. */
void sim_work_copy(struct sim_work *dst, const struct sim_work *src)
{
    *dst = *src;
    if (dst->kind == SIM_COPY)
        dst->copy.staged = NULL;
    if (dst->kind == SIM_GRAPH)
        dst->exec->refs++;
}
