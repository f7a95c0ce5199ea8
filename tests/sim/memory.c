/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory.c - the allocations: which one an address belongs to, how they begin and end.
 *
 * Device memory of 2 MiB and more is whole pages (pages.c), less is in small.c. Host-side memory (pinned, managed,
 * registered) is a sorted table. The exported functions are in mem.c, host.c, ipc.c and vmm.c.
 *
 * Locking: everything under sim_lock().
 */
#include "pages.h"

#include <sys/mman.h>

static struct sim_alloc **ranges;
static size_t n_ranges, room_ranges;
static uint64_t ids;

void sim_alloc_renew(struct sim_alloc *a)
{
    a->id = ++ids;
}

static struct sim_alloc *alloc_new(CUcontext ctx, size_t size, enum sim_mem kind)
{
    struct sim_alloc *a = calloc(1, sizeof(*a));

    a->ctx = ctx;
    a->dev = ctx->dev;
    a->size = size;
    a->kind = kind;
    a->refs = 1;
    sim_alloc_renew(a);
    a->next = ctx->allocs;
    if (a->next)
        a->next->prev = a;
    ctx->allocs = a;
    return a;
}

/* Pages for a; with addresses only if !backed. */
static bool big_take(struct device *d, struct sim_alloc *a, bool backed)
{
    size_t n = a->span / SIM_PAGE, at = pages_take(d, n);

    if (at == d->pages)
        return false;
    for (size_t i = at; i < at + n; i++)
        d->page[i].big = a;
    a->addr = (uintptr_t)d->va + at * SIM_PAGE;
    if (backed)
        a->host = d->host + at * SIM_PAGE;
    return true;
}

static void alloc_forget(struct sim_alloc *a)
{
    if (a->prev)
        a->prev->next = a->next;
    else
        a->ctx->allocs = a->next;
    if (a->next)
        a->next->prev = a->prev;
    a->next = a->prev = NULL;
}

CUresult sim_device_alloc(CUcontext ctx, size_t size, enum sim_mem kind, struct sim_alloc **ret)
{
    struct device *d = device_get(ctx->dev);
    bool backed = kind == SIM_MEM_DEVICE || kind == SIM_MEM_ASYNC, ok = false;

    if (backed ? size > d->total : size > d->pages * SIM_PAGE)
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct sim_alloc *a = alloc_new(ctx, size, kind);
    if (size >= SIM_PAGE || !backed) {
        a->span = (size + SIM_PAGE - 1) & ~(SIM_PAGE - 1);
        if (!backed) {
            ok = big_take(d, a, false);
        } else if (sim_memory_charge(ctx->dev, a->span)) {
            ok = big_take(d, a, true);
            if (!ok)
                sim_memory_discharge(ctx->dev, a->span);
        }
    } else {
        ok = small_take(d, a);
    }
    if (!ok) {
        alloc_forget(a);
        free(a);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *ret = a;
    return CUDA_SUCCESS;
}

/* The index of addr in the table of host-side memory: the last entry that starts at or below it, plus one. */
static size_t range_index(uint64_t addr)
{
    size_t lo = 0, hi = n_ranges;

    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (ranges[mid]->addr <= addr)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

CUresult sim_host_alloc(CUcontext ctx, uint64_t addr, char *host, size_t size, enum sim_mem kind,
                        struct sim_alloc **ret)
{
    size_t span = (size + 4095) & ~(size_t)4095;

    if (span < size || span > (size_t)1 << 46)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (n_ranges == room_ranges) {
        size_t room = room_ranges ? 2 * room_ranges : 64;
        struct sim_alloc **more = realloc(ranges, room * sizeof(struct sim_alloc *));
        if (!more)
            return CUDA_ERROR_OUT_OF_MEMORY;
        ranges = more;
        room_ranges = room;
    }
    if (!host) {
        host = mmap(NULL, span, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (host == MAP_FAILED)
            return CUDA_ERROR_OUT_OF_MEMORY;
        addr = (uintptr_t)host;
    }
    struct sim_alloc *a = alloc_new(ctx, size, kind);
    a->addr = addr;
    a->host = host;
    a->span = span;
    size_t at = range_index(addr);
    memmove(&ranges[at + 1], &ranges[at], (n_ranges - at) * sizeof(struct sim_alloc *));
    ranges[at] = a;
    n_ranges++;
    *ret = a;
    return CUDA_SUCCESS;
}

struct sim_alloc *sim_alloc_find(uint64_t addr)
{
    struct device *d = device_of(addr);
    struct sim_alloc *a = NULL;

    if (d) {
        size_t off = addr - (uintptr_t)d->va;
        struct page *p = &d->page[off / SIM_PAGE];
        a = p->big ? p->big : p->small ? p->small->slot[off % SIM_PAGE / SIM_GRANULE] : NULL;
    } else {
        size_t at = range_index(addr);
        a = at ? ranges[at - 1] : NULL;
    }
    return a && !a->dead && addr - a->addr < a->size ? a : NULL;
}

void sim_freed_again(const struct sim_alloc *a, uint64_t addr)
{
    if (!a || a->addr != addr || !a->returning)
        return;
    fprintf(stderr, "simgpu: memory at %#llx is freed again while it is on its way back\n", (unsigned long long)addr);
    abort();
}

struct sim_alloc *sim_alloc_range(uint64_t addr, size_t n)
{
    struct sim_alloc *a = sim_alloc_find(addr);

    return a && a->host && n <= a->size - (addr - a->addr) ? a : NULL;
}

static void alloc_release(struct sim_alloc *a)
{
    struct device *d = device_of(a->addr);

    if (!d) {
        size_t at = range_index(a->addr);
        while (ranges[--at] != a) /* several dead ones may share an address */
            ;
        memmove(&ranges[at], &ranges[at + 1], (n_ranges - at - 1) * sizeof(struct sim_alloc *));
        n_ranges--;
        if (a->kind == SIM_MEM_HOST || a->kind == SIM_MEM_MANAGED)
            munmap(a->host, a->span);
    } else if (d->page[(a->addr - (uintptr_t)d->va) / SIM_PAGE].small) {
        small_release(d, a);
    } else {
        size_t at = (a->addr - (uintptr_t)d->va) / SIM_PAGE;
        pages_release(d, at, a->span / SIM_PAGE);
        if (a->kind == SIM_MEM_DEVICE || a->kind == SIM_MEM_ASYNC) {
            pages_punch(d, at, a->span / SIM_PAGE);
            sim_memory_discharge((int)(d - devices), a->span);
        } else if (a->kind == SIM_MEM_IPC && a->host) {
            size_t skip = (uintptr_t)a->host % 4096;
            munmap(a->host - skip, skip + a->size);
        }
    }
    free(a);
}

void sim_alloc_free(struct sim_alloc *a)
{
    alloc_forget(a);
    a->dead = true;
    if (!a->pins)
        alloc_release(a);
}

void sim_alloc_unpin(struct sim_alloc *a)
{
    if (--a->pins == 0 && a->dead)
        alloc_release(a);
}

/* These pages are the allocation's. */
static void pages_own(struct sim_alloc *a)
{
    struct device *d = &devices[a->dev];
    const size_t at = (a->addr - (uintptr_t)d->va) / SIM_PAGE;

    for (size_t i = at; i < at + a->span / SIM_PAGE; i++)
        d->page[i].big = a;
}

struct sim_alloc *sim_alloc_split(struct sim_alloc *a, size_t at)
{
    struct sim_alloc *part = alloc_new(a->ctx, a->size - at, a->kind);

    part->addr = a->addr + at;
    part->span = part->size;
    part->range = a->range;
    part->range_size = a->range_size;
    a->size = a->span = at;
    pages_own(part);
    return part;
}

void sim_alloc_join(struct sim_alloc *a, struct sim_alloc *next)
{
    a->size = a->span = a->size + next->size;
    pages_own(a);
    alloc_forget(next);
    free(next);
}

int sim_memory_export(struct sim_alloc *a, uint64_t *ret_offset)
{
    const struct timespec nap = {.tv_nsec = 20000};
    struct device *d = &devices[a->dev];
    size_t off = a->addr - (uintptr_t)d->va, at = off / SIM_PAGE;
    uint64_t addr = a->addr, id = a->id;

    for (;;) {
        if (sim_alloc_find(addr) != a || a->id != id)
            return -1; /* freed meanwhile */
        size_t n = d->page[at].small ? 1 : a->span / SIM_PAGE;
        *ret_offset = off - at * SIM_PAGE;
        if (d->page[at].fd)
            return d->page[at].fd;
        if (!pages_pinned(d, at, n)) {
            int fd = file_make(n * SIM_PAGE);
            for (size_t i = 0; i < n; i++) {
                if (pwrite(fd, d->host + (at + i) * SIM_PAGE, SIM_PAGE, (off_t)(i * SIM_PAGE)) == (ssize_t)SIM_PAGE)
                    continue;
                close(fd);
                return -1;
            }
            pages_punch(d, at, n);
            pages_view(d, at, n, fd, 0);
            for (size_t i = at; i < at + n; i++)
                d->page[i].fd = fd;
            return fd;
        }
        sim_sleep(&nap);
    }
}

void sim_memory_view(const struct sim_alloc *a, int fd)
{
    struct device *d = &devices[a->dev];
    size_t at = (a->addr - (uintptr_t)d->va) / SIM_PAGE, n = a->span / SIM_PAGE;
    int own = fcntl(fd, F_DUPFD_CLOEXEC, 500);

    if (own < 0)
        abort();
    pages_view(d, at, n, own, 0);
    for (size_t i = at; i < at + n; i++)
        d->page[i].fd = own;
}

int simgpu_poke(unsigned long long addr, const void *from, size_t n)
{
    SIM_LOCKED();
    struct sim_alloc *a = sim_alloc_range(addr, n);
    if (a)
        memcpy(a->host + (addr - a->addr), from, n);
    return a ? 0 : -1;
}

void *simgpu_host(unsigned long long addr, size_t n)
{
    SIM_LOCKED();
    struct sim_alloc *a = sim_alloc_range(addr, n);
    char *at = a ? a->host + (addr - a->addr) : NULL;
    return at;
}
