/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory.c - what is allocated where.
 *
 * What it is: each device's memory is one sparse memfd. It is mapped once for the engine; the addresses that the
 * program gets are a second range of the same size without any access, so that a host that touches device memory
 * crashes, as it natively does. From 2 MiB on, an allocation is whole 2 MiB pages, which are zero: a free punches them
 * out of the file. Smaller ones lie 512 bytes apart in shared pages and are dirty. What is exported to other processes
 * moves to a file of its own. Host-side memory (pinned, managed, registered) is a sorted table.
 *
 * What it is not: the exported functions (mem.c, host.c, ipc.c, vmm.c).
 *
 * Locking: everything under sim_lock().
 */
#include "sim.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define SLOTS        (SIM_PAGE / SIM_GRANULE)
#define DIRT         0xa5
#define DIRT_BYTES   16384
#define POISON       0xdb
#define POISON_BYTES 4096

struct small {
    struct small *next;
    size_t page;
    unsigned used, longest; /* granules in use; no free run is longer than this */
    unsigned dirty;         /* so many granules from the first on hold bytes: the others have never been handed out */
    struct sim_alloc *slot[SLOTS];
};

struct page {
    struct sim_alloc *big;
    struct small *small;
    int fd;     /* of the file that holds its bytes, one for all pages of an allocation; 0: the device's */
    size_t run; /* in the first and the last page of a run of free ones: how many they are */
};

static struct device {
    char *va, *host; /* what the program sees; what the engine uses */
    int fd;
    size_t total, used, pages, first; /* first: no page below it is free */
    struct page *page;
    struct small *smalls, *spare;
} devices[SIM_DEVICES_MAX];

static struct sim_alloc **ranges;
static size_t n_ranges, room_ranges;
static uint64_t ids;

/* A file out of the way of programs that count on low numbers. */
static int file_make(size_t size)
{
    int fd = memfd_create("simgpu", MFD_CLOEXEC);

    if (fd < 0 || ftruncate(fd, (off_t)size) < 0)
        abort();
    int high = fcntl(fd, F_DUPFD_CLOEXEC, 500);
    if (high < 0)
        return fd;
    close(fd);
    return high;
}

static struct device *device_get(int dev)
{
    struct device *d = &devices[dev];

    if (d->va)
        return d;
    size_t size = 4 * sim_settings.memory + ((size_t)256 << 20);
    char *va = mmap(NULL, size + SIM_PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (va == MAP_FAILED)
        abort();
    d->fd = file_make(size);
    d->host = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, d->fd, 0);
    if (d->host == MAP_FAILED)
        abort();
    madvise(d->host, size, MADV_DONTDUMP);
    d->va = (char *)(((uintptr_t)va + SIM_PAGE - 1) & ~(uintptr_t)(SIM_PAGE - 1));
    d->total = sim_settings.memory;
    d->pages = size / SIM_PAGE;
    d->page = calloc(d->pages, sizeof(*d->page));
    d->page[0].run = d->page[d->pages - 1].run = d->pages; /* all free */
    return d;
}

static struct device *device_of(uint64_t addr)
{
    for (int i = 0; i < sim_settings.devices; i++) {
        struct device *d = &devices[i];
        if (d->va && addr >= (uintptr_t)d->va && addr < (uintptr_t)d->va + d->pages * SIM_PAGE)
            return d;
    }
    return NULL;
}

bool sim_is_device_va(uint64_t addr)
{
    return device_of(addr) != NULL;
}

bool sim_memory_charge(int dev, size_t n)
{
    struct device *d = device_get(dev);

    if (n > d->total - d->used)
        return false;
    d->used += n;
    return true;
}

void sim_memory_discharge(int dev, size_t n)
{
    devices[dev].used -= n;
}

void sim_memory_info(int dev, size_t *ret_free, size_t *ret_total)
{
    struct device *d = device_get(dev);

    *ret_free = d->total - d->used;
    *ret_total = d->total;
}

int sim_memory_fd(int dev)
{
    return devices[dev].fd;
}

static bool page_free(const struct page *p)
{
    return !p->big && !p->small;
}

/* These n pages, with free neighbours, are a run. */
static void run_set(struct device *d, size_t at, size_t n)
{
    if (n)
        d->page[at].run = d->page[at + n - 1].run = n;
}

/* First fit: take n pages off the start of the first run that has them, and return their index, or d->pages. */
static size_t pages_take(struct device *d, size_t n)
{
    for (size_t i = d->first; i < d->pages;) {
        struct page *p = &d->page[i];
        if (page_free(p)) {
            if (p->run >= n) {
                run_set(d, i + n, p->run - n);
                return i;
            }
            i += p->run;
            continue;
        }
        size_t next = p->big ? (p->big->addr - (uintptr_t)d->va + p->big->span) / SIM_PAGE : i + 1;
        if (i == d->first)
            d->first = next;
        i = next;
    }
    return d->pages;
}

static void pages_release(struct device *d, size_t at, size_t n)
{
    for (size_t i = at; i < at + n; i++) {
        d->page[i].big = NULL;
        d->page[i].small = NULL;
    }
    if (at < d->first)
        d->first = at;
    if (at + n < d->pages && page_free(&d->page[at + n]))
        n += d->page[at + n].run;
    if (at && page_free(&d->page[at - 1])) {
        n += d->page[at - 1].run;
        at -= d->page[at - 1].run;
    }
    run_set(d, at, n);
}

/* Let the engine's view of n pages be of this file from now on. */
static void pages_view(struct device *d, size_t at, size_t n, int fd, size_t offset)
{
    char *host = d->host + at * SIM_PAGE;

    if (mmap(host, n * SIM_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED, fd, (off_t)offset) !=
        host)
        abort();
    madvise(host, n * SIM_PAGE, MADV_DONTDUMP);
}

static void pages_punch(struct device *d, size_t at, size_t n)
{
    if (d->page[at].fd) { /* others may have the file: leave them its bytes */
        pages_view(d, at, n, d->fd, at * SIM_PAGE);
        close(d->page[at].fd);
        for (size_t i = at; i < at + n; i++)
            d->page[i].fd = 0;
        return;
    }
    if (fallocate(d->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)(at * SIM_PAGE), (off_t)(n * SIM_PAGE)) < 0)
        memset(d->host + at * SIM_PAGE, 0, n * SIM_PAGE);
}

char *sim_memory_host(int dev, uint64_t addr)
{
    return devices[dev].host + (addr - (uintptr_t)devices[dev].va);
}

void sim_memory_punch(int dev, uint64_t addr, size_t n)
{
    pages_punch(&devices[dev], (addr - (uintptr_t)devices[dev].va) / SIM_PAGE, n / SIM_PAGE);
}

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

static struct small *small_new(int dev)
{
    struct device *d = &devices[dev];
    struct small *s = d->spare;

    if (!sim_memory_charge(dev, SIM_PAGE))
        return NULL;
    if (s) {
        d->spare = NULL;
    } else {
        size_t at = pages_take(d, 1);
        if (at == d->pages) {
            sim_memory_discharge(dev, SIM_PAGE);
            return NULL;
        }
        s = calloc(1, sizeof(*s));
        s->page = at;
        d->page[at].small = s;
    }
    s->longest = SLOTS;
    s->next = d->smalls;
    d->smalls = s;
    return s;
}

/*
 * Put dirt into the granules before this one that were never handed out; into many of them at both ends alone, because
 * the kernel takes its time for each page that is touched.
 */
static void small_dirty(struct small *s, struct device *d, unsigned end)
{
    char *from = d->host + s->page * SIM_PAGE + s->dirty * SIM_GRANULE;
    size_t n = end > s->dirty ? (end - s->dirty) * SIM_GRANULE : 0, part = n < DIRT_BYTES ? n : DIRT_BYTES;

    if (!n)
        return;
    memset(from, DIRT, part);
    memset(from + n - part, DIRT, part);
    s->dirty = end;
}

static bool small_fit(struct small *s, struct device *d, struct sim_alloc *a)
{
    unsigned n = (unsigned)(a->span / SIM_GRANULE), run = 0, longest = 0;

    if (n > s->longest)
        return false;
    for (unsigned i = 0; i < SLOTS; i++) {
        struct sim_alloc *at = s->slot[i];
        if (at) {
            i += (unsigned)(at->span / SIM_GRANULE) - 1;
            run = 0;
            continue;
        }
        if (++run > longest)
            longest = run;
        if (run < n)
            continue;
        unsigned first = i + 1 - n;
        for (unsigned k = first; k <= i; k++)
            s->slot[k] = a;
        s->used += n;
        small_dirty(s, d, i + 1);
        a->addr = (uintptr_t)d->va + s->page * SIM_PAGE + first * SIM_GRANULE;
        a->host = d->host + s->page * SIM_PAGE + first * SIM_GRANULE;
        return true;
    }
    s->longest = longest;
    return false;
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
        a->span = (size + SIM_GRANULE - 1) & ~(SIM_GRANULE - 1);
        for (struct small *s = d->smalls; s && !ok; s = s->next)
            ok = small_fit(s, d, a);
        struct small *s = ok ? NULL : small_new(ctx->dev);
        ok = ok || (s && small_fit(s, d, a));
    }
    if (!ok) {
        alloc_forget(a);
        free(a);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *ret = a;
    return CUDA_SUCCESS;
}

static void small_release(struct device *d, struct sim_alloc *a)
{
    size_t off = a->addr - (uintptr_t)d->va;
    struct small *s = d->page[off / SIM_PAGE].small;
    unsigned n = (unsigned)(a->span / SIM_GRANULE), first = (unsigned)(off % SIM_PAGE / SIM_GRANULE);

    for (unsigned i = first; i < first + n; i++)
        s->slot[i] = NULL;
    s->used -= n;
    s->longest = SLOTS;
    memset(a->host, POISON, a->span < POISON_BYTES ? a->span : POISON_BYTES);
    if (s->used)
        return;
    struct small **at = &d->smalls;
    while (*at != s)
        at = &(*at)->next;
    *at = s->next;
    sim_memory_discharge((int)(d - devices), SIM_PAGE);
    if (!d->spare) {
        d->spare = s;
        return;
    }
    pages_release(d, s->page, 1);
    pages_punch(d, s->page, 1);
    free(s);
}

/* Where in the table of host-side memory addr is or would be: the last entry that starts at or below it, plus one. */
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
        } else if (a->physical) { /* dies with its context */
            sim_vmm_unmap(a);
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

/* Is an operation running on any of these pages? */
static bool pages_pinned(const struct device *d, size_t at, size_t n)
{
    const struct small *s = d->page[at].small;

    for (size_t i = 0; s && i < SLOTS; i++) {
        if (s->slot[i] && s->slot[i]->pins)
            return true;
    }
    return !s && n && d->page[at].big->pins;
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
        sim_unlock();
        nanosleep(&nap, NULL);
        sim_lock();
    }
}

int simgpu_poke(unsigned long long addr, const void *from, size_t n)
{
    sim_lock();
    struct sim_alloc *a = sim_alloc_range(addr, n);
    if (a)
        memcpy(a->host + (addr - a->addr), from, n);
    sim_unlock();
    return a ? 0 : -1;
}

void *simgpu_host(unsigned long long addr, size_t n)
{
    sim_lock();
    struct sim_alloc *a = sim_alloc_range(addr, n);
    char *at = a ? a->host + (addr - a->addr) : NULL;
    sim_unlock();
    return at;
}
