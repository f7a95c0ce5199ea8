/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pages.c - a device's memory: one sparse memfd, in pages of 2 MiB.
 *
 * The file is mapped once for the engine; the addresses that the program gets are a second range of the same size
 * without any access, so that a host that touches device memory crashes, as it natively does. Free pages are zero: a
 * free punches them out of the file. Allocations that are exported to other processes move to a file of their own.
 *
 * Locking: everything under sim_lock().
 */
#include "pages.h"

#include <sys/mman.h>

struct device devices[SIM_DEVICES_MAX];

int file_make(size_t size)
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

struct device *device_get(int dev)
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

struct device *device_of(uint64_t addr)
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

    if (n > d->total - d->used || !shared_charge(dev, n, d->total))
        return false;
    d->used += n;
    return true;
}

void sim_memory_discharge(int dev, size_t n)
{
    devices[dev].used -= n;
    shared_discharge(dev, n);
}

void sim_memory_info(int dev, size_t *ret_free, size_t *ret_total)
{
    struct device *d = device_get(dev);

    *ret_free = d->total - d->used - shared_others(dev);
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

size_t pages_take(struct device *d, size_t n)
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

void pages_release(struct device *d, size_t at, size_t n)
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

void pages_view(struct device *d, size_t at, size_t n, int fd, size_t offset)
{
    char *host = d->host + at * SIM_PAGE;

    if (mmap(host, n * SIM_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED, fd, (off_t)offset) !=
        host)
        abort();
    madvise(host, n * SIM_PAGE, MADV_DONTDUMP);
}

void pages_punch(struct device *d, size_t at, size_t n)
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

bool pages_pinned(const struct device *d, size_t at, size_t n)
{
    const struct small *s = d->page[at].small;

    for (size_t i = 0; s && i < SLOTS; i++) {
        if (s->slot[i] && s->slot[i]->pins)
            return true;
    }
    return !s && n && d->page[at].big->pins;
}
