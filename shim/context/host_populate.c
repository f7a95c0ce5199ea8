/* SPDX-License-Identifier: Apache-2.0 */
/*
 * host_populate.c - see host_populate.h.
 *
 * Locking: populated.lock, a leaf lock, for the table; never held over a system call or one of CUDA.
 */
#include "context/host_populate.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>

#include "base/conf.h"
#include "base/memory_limit.h"
#include "context/numa_key.h"
#include "lock.h"

#define LEAST      ((size_t)256 << 20)
#define HUGE       ((size_t)2 << 20)
#define PAGE       ((size_t)4096) /* the least that systems have: more pages than there are may be touched */
#define THREADS    4u
#define RANGES_MAX 1024u

struct range {
    uint64_t addr, owner;
    size_t size; /* 0: the entry is unused */
};

static struct {
    struct lock lock; /* guards the member below */
    struct range ranges[RANGES_MAX];
} populated;

/* With the lock: the entry of the address; of 0, an unused one. NULL: there is none. */
static struct range *range_find(uint64_t addr)
{
    for (unsigned int i = 0; i < RANGES_MAX; i++)
        if (populated.ranges[i].addr == addr)
            return &populated.ranges[i];
    return NULL;
}

static bool range_add(uint64_t owner, uint64_t addr, size_t size)
{
    struct range *range;

    lock_take(&populated.lock);
    range = range_find(0);
    if (range)
        *range = (struct range){.addr = addr, .owner = owner, .size = size};
    lock_give(&populated.lock);
    return range;
}

/* The size of the range, which is no entry any more; 0: there is none. */
static size_t range_take(uint64_t addr)
{
    struct range *range;
    size_t size = 0;

    lock_take(&populated.lock);
    range = range_find(addr);
    if (range) {
        size = range->size;
        *range = (struct range){0};
    }
    lock_give(&populated.lock);
    return size;
}

/* Map size bytes on a boundary of huge pages. NULL: refused. */
static char *map(size_t size)
{
    const size_t room = size + HUGE;
    char *p = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0), *start;

    if (p == MAP_FAILED)
        return NULL;
    start = p + (-(uintptr_t)p & (HUGE - 1));
    if (start > p)
        munmap(p, (size_t)(start - p));
    munmap(start + size, (size_t)(p + room - (start + size)));
    (void)madvise(start, size, MADV_HUGEPAGE);
    numa_prefer(start, size);
    /* After a fork the pages that the device uses must stay the parent's. */
    if (madvise(start, size, MADV_DONTFORK)) {
        munmap(start, size);
        return NULL;
    }
    return start;
}

struct part {
    pthread_t thread;
    char *start;
    size_t size;
    bool is_started;
};

static void *touch(void *arg)
{
    const struct part *part = arg;

    for (size_t i = 0; i < part->size; i += PAGE)
        ((volatile char *)part->start)[i] = 0;
    return NULL;
}

/* In several threads, as the kernel zeroes pages at the speed of one processor each. The calling thread is not
 * cancelled while it waits for them. */
static void touch_all(char *start, size_t size)
{
    struct part parts[THREADS];
    const size_t each = (size / THREADS + HUGE - 1) / HUGE * HUGE;
    sigset_t all, before;
    int cancel;

    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
    /* The program's signals must be delivered to its own threads. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (unsigned int i = 0; i < THREADS; i++) {
        struct part *part = &parts[i];

        part->start = start + i * each;
        part->size = i + 1 < THREADS ? each : size - i * each;
        part->is_started = i + 1 < THREADS && pthread_create(&part->thread, NULL, touch, part) == 0;
        if (!part->is_started)
            touch(part);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    for (unsigned int i = 0; i < THREADS; i++)
        if (parts[i].is_started)
            pthread_join(parts[i].thread, NULL);
    pthread_setcancelstate(cancel, NULL);
}

static int populate(const struct real_driver *driver, uint64_t owner, unsigned int flags, size_t size,
                    uint64_t *ret_addr)
{
    const size_t mapped = (size + HUGE - 1) / HUGE * HUGE;
    char *p;

    /* Where memory is scarce, touching it could end the program; the driver reports an error. */
    if (machine_memory_free() / 2 < mapped)
        return -ENOMEM;
    p = map(mapped);
    if (!p)
        return -ENOMEM;
    touch_all(p, mapped);
    if (!range_add(owner, (uintptr_t)p, mapped) || driver->cuMemHostRegister_v2(p, mapped, flags)) {
        (void)range_take((uintptr_t)p);
        munmap(p, mapped);
        return -EIO;
    }
    *ret_addr = (uintptr_t)p;
    return 0;
}

int host_populate(const struct real_driver *driver, uint64_t owner, unsigned int flags, size_t size, uint64_t *ret_addr)
{
    const int saved = errno;
    int rc;

    if (size < LEAST || !conf_get()->host_populate.number || (flags & ~HOST_POPULATE_FLAGS) ||
        !driver->cuMemHostRegister_v2 || !driver->cuMemHostUnregister)
        return -EINVAL;
    rc = populate(driver, owner, flags, size, ret_addr);
    errno = saved;
    return rc;
}

bool host_populated(uint64_t addr)
{
    bool found;

    lock_take(&populated.lock);
    found = range_find(addr);
    lock_give(&populated.lock);
    return found;
}

CUresult host_populated_free(const struct real_driver *driver, uint64_t addr)
{
    const CUresult result = driver->cuMemHostUnregister((void *)(uintptr_t)addr);
    const size_t size = range_take(addr);

    /* After another error the driver may still use it, so the address must not serve for anything else. */
    if (size && (!result || result == CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED))
        munmap((void *)(uintptr_t)addr, size);
    return result;
}

void host_populated_owner_gone(uint64_t owner)
{
    for (unsigned int i = 0; i < RANGES_MAX; i++) {
        struct range range;

        lock_take(&populated.lock);
        range = populated.ranges[i];
        if (range.owner == owner)
            populated.ranges[i] = (struct range){0};
        lock_give(&populated.lock);
        if (range.owner == owner)
            munmap((void *)(uintptr_t)range.addr, range.size);
    }
}
