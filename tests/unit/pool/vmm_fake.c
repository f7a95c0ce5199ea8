/* SPDX-License-Identifier: Apache-2.0 */
/* vmm_fake.c - see vmm_fake.h. */
#include "vmm_fake.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "clock.h"
#include "wrapped.h"

bool fake_no_memory, fake_no_growth;
static atomic_long allocated;

static void *counted(void *p)
{
    atomic_fetch_add(&allocated, p ? 1 : 0);
    return p;
}

WRAPPED(void *, malloc, (size_t size))
{
    return fake_no_memory ? NULL : counted(__real_malloc(size));
}

WRAPPED(void *, calloc, (size_t count, size_t size))
{
    return fake_no_memory ? NULL : counted(__real_calloc(count, size));
}

WRAPPED(void *, realloc, (void *old, size_t size))
{
    void *p = fake_no_memory || fake_no_growth ? NULL : __real_realloc(old, size);

    return old ? p : counted(p);
}

WRAPPED(void, free, (void *p))
{
    atomic_fetch_sub(&allocated, p ? 1 : 0);
    __real_free(p);
}

static bool refuses(struct fake *d, enum fake_call call)
{
    d->calls[call]++;
    if (!d->times || d->refuses != call)
        return false;
    d->times--;
    return true;
}

static unsigned int range_of(const struct fake *d, uint64_t addr)
{
    for (unsigned int i = d->range_count; i-- > 0;)
        if (d->ranges[i].size && addr >= d->ranges[i].addr && addr - d->ranges[i].addr < d->ranges[i].size)
            return i;
    return FAKE_MAX;
}

static bool is_valid(const struct fake *d, uint64_t handle)
{
    return handle && handle <= d->memory_count && d->memory[handle - 1].refs;
}

static void memory_drop(struct fake *d, unsigned int i)
{
    if (!d->memory[i].refs && !d->memory[i].maps)
        d->taken -= d->memory[i].size;
}

static int driver_reserve(struct fake *d, size_t size, uint64_t *ret_addr)
{
    if (refuses(d, RESERVE))
        return REFUSED;
    if (!size || size % UNIT || d->range_count == FAKE_MAX)
        return BAD;
    *ret_addr = ((uint64_t)1 << 40) + d->reserved; /* next to the one before */
    d->reserved += size;
    d->ranges[d->range_count].addr = *ret_addr;
    d->ranges[d->range_count++].size = size;
    return 0;
}

static int driver_create(struct fake *d, size_t size, uint64_t *ret_handle)
{
    if (refuses(d, CREATE))
        return REFUSED;
    if (!size || size % UNIT || d->memory_count == FAKE_MAX)
        return BAD;
    d->memory[d->memory_count].size = size;
    d->memory[d->memory_count].refs = 1;
    d->taken += size;
    *ret_handle = ++d->memory_count;
    return 0;
}

static int driver_map(struct fake *d, uint64_t addr, size_t size, size_t offset, uint64_t handle)
{
    const unsigned int r = range_of(d, addr);

    if (refuses(d, MAP))
        return REFUSED;
    if (r == FAKE_MAX || !is_valid(d, handle) || d->ranges[r].memory || d->ranges[r].addr != addr ||
        size > d->ranges[r].size || offset + size > d->memory[handle - 1].size)
        return BAD;
    d->ranges[r].memory = (unsigned int)handle;
    d->ranges[r].access = 0;
    d->memory[handle - 1].maps++;
    return 0;
}

static int driver_access(struct fake *d, uint64_t addr, size_t size, uint32_t location, uint32_t flags)
{
    const unsigned int r = range_of(d, addr);

    if (refuses(d, ACCESS))
        return REFUSED;
    if (r == FAKE_MAX || !d->ranges[r].memory || size != d->ranges[r].size)
        return BAD;
    d->ranges[r].access = flags ? d->ranges[r].access | 1u << location : d->ranges[r].access & ~(1u << location);
    return 0;
}

static int driver_unmap(struct fake *d, uint64_t addr, size_t size)
{
    const unsigned int r = range_of(d, addr);
    unsigned int m;

    if (refuses(d, UNMAP))
        return REFUSED;
    if (r == FAKE_MAX || !d->ranges[r].memory || d->ranges[r].addr != addr || size != d->ranges[r].size)
        return BAD;
    m = d->ranges[r].memory - 1;
    d->ranges[r].memory = 0;
    d->memory[m].maps--;
    memory_drop(d, m);
    return 0;
}

static int driver_release(struct fake *d, uint64_t handle)
{
    if (refuses(d, RELEASE))
        return REFUSED;
    if (!is_valid(d, handle))
        return BAD;
    d->memory[handle - 1].refs--;
    memory_drop(d, (unsigned int)handle - 1);
    return 0;
}

static int driver_unreserve(struct fake *d, uint64_t addr, size_t size)
{
    const unsigned int r = range_of(d, addr);

    if (refuses(d, UNRESERVE))
        return REFUSED;
    if (r == FAKE_MAX || d->ranges[r].memory || d->ranges[r].addr != addr || size != d->ranges[r].size)
        return BAD;
    d->ranges[r].size = 0;
    return 0;
}

static int driver_retain(struct fake *d, uint64_t addr, uint64_t *ret_handle)
{
    const unsigned int r = range_of(d, addr);

    if (refuses(d, RETAIN))
        return REFUSED;
    if (r == FAKE_MAX || !d->ranges[r].memory)
        return BAD;
    *ret_handle = d->ranges[r].memory;
    d->memory[d->ranges[r].memory - 1].refs++;
    return 0;
}

/* Make a call with the driver's lock. */
#define LOCKED(d, call)                                                                                                \
    __extension__({                                                                                                    \
        __typeof__(call) result_;                                                                                      \
        pthread_mutex_lock(&(d)->lock);                                                                                \
        result_ = (call);                                                                                              \
        pthread_mutex_unlock(&(d)->lock);                                                                              \
        result_;                                                                                                       \
    })

/* --- the cache's calls --- */

static int op_unmap(void *arg, uint64_t addr, size_t size)
{
    struct side *side = arg;

    if (side->slow)
        nap_ns(100000); /* others get into this call */
    return LOCKED(side->driver, driver_unmap(side->driver, addr, size));
}

static int op_release(void *arg, uint64_t handle)
{
    struct side *side = arg;

    return LOCKED(side->driver, driver_release(side->driver, handle));
}

static int op_unreserve(void *arg, uint64_t addr, size_t size)
{
    struct side *side = arg;
    const int rc = LOCKED(side->driver, driver_unreserve(side->driver, addr, size));

    if (rc == BAD) {
        fputs("the cache frees addresses that are not reserved\n", stderr);
        abort();
    }
    return rc;
}

static int op_revoke(void *arg, uint64_t addr, size_t size, const struct vmm_access *access)
{
    struct side *side = arg;

    return LOCKED(side->driver, driver_access(side->driver, addr, size, access->id, 0));
}

static void op_begins(void *arg, unsigned int device)
{
    struct side *side = arg;

    pthread_mutex_lock(&side->driver->lock);
    side->begun++;
    side->device_begun = device;
    pthread_mutex_unlock(&side->driver->lock);
}

static void op_returned(void *arg, unsigned int device, uint64_t addr, size_t size)
{
    struct side *side = arg;

    pthread_mutex_lock(&side->driver->lock);
    side->returned += size;
    side->device_returned = device;
    pthread_mutex_unlock(&side->driver->lock);
}

const struct vmm_ops fake_ops = {.unmap = op_unmap,
                                 .release = op_release,
                                 .unreserve = op_unreserve,
                                 .revoke = op_revoke,
                                 .begins = op_begins,
                                 .returned = op_returned};

struct side *side_new(bool cached, size_t least)
{
    const long before = atomic_load(&allocated);
    struct side *side = calloc(1, sizeof(*side));

    side->allocated = before;
    side->driver = calloc(1, sizeof(*side->driver));
    pthread_mutex_init(&side->driver->lock, NULL);
    if (cached && vmm_cache_new(&fake_ops, side, least, &side->cache))
        abort();
    return side;
}

bool side_free(struct side *side)
{
    const long before = side->allocated;

    if (side->cache)
        vmm_cache_destroy(side->cache);
    free(side->driver);
    free(side);
    return atomic_load(&allocated) == before;
}

/* --- the program's calls --- */

static const void *thread(const struct side *side)
{
    static __thread char here;

    return side->thread ? side->thread : &here;
}

int side_reserve(struct side *side, size_t size, size_t align, uint64_t *ret_addr)
{
    int rc;

    if (side->cache && !side->captures && vmm_cache_reserve(side->cache, thread(side), size, align, ret_addr))
        return 0;
    rc = LOCKED(side->driver, driver_reserve(side->driver, size, ret_addr));
    if (!rc && side->cache)
        vmm_cache_reserved(side->cache, *ret_addr, size, align);
    return rc;
}

int side_create(struct side *side, size_t size, uint32_t kind, uint64_t *ret_handle)
{
    const struct vmm_key key = {.type = 1, .location = 1, .id = side->device, .handle_types = kind};
    int rc;

    if (side->cache && !side->captures && vmm_cache_create(side->cache, thread(side), size, &key, ret_handle))
        return 0;
    if (side->cache)
        vmm_cache_make_room(side->cache, side->device, size);
    rc = LOCKED(side->driver, driver_create(side->driver, size, ret_handle));
    if (!rc && side->cache)
        vmm_cache_created(side->cache, *ret_handle, size, &key);
    return rc;
}

int side_map(struct side *side, uint64_t addr, size_t size, size_t offset, uint64_t handle)
{
    int rc;

    if (side->cache && vmm_cache_map(side->cache, thread(side), addr, size, handle, !offset && !side->captures))
        return 0;
    rc = LOCKED(side->driver, driver_map(side->driver, addr, size, offset, handle));
    if (!rc && side->cache)
        vmm_cache_mapped(side->cache, addr, size, handle, !offset);
    return rc;
}

int side_access(struct side *side, uint64_t addr, size_t size, uint32_t location, uint32_t flags)
{
    const struct vmm_access access = {.location = 1, .id = location, .flags = flags};
    int rc;

    if (side->cache && vmm_cache_set_access(side->cache, addr, size, &access, 1, !side->captures))
        return 0;
    rc = LOCKED(side->driver, driver_access(side->driver, addr, size, location, flags));
    if (side->cache)
        vmm_cache_access_set(side->cache, addr, size, &access, 1, !rc);
    return rc;
}

int side_unmap(struct side *side, uint64_t addr, size_t size)
{
    int rc;

    if (side->cache && vmm_cache_unmap(side->cache, thread(side), addr, size, !side->captures, side->now))
        return 0;
    rc = LOCKED(side->driver, driver_unmap(side->driver, addr, size));
    if (!rc && side->cache)
        vmm_cache_unmapped(side->cache, addr, size);
    return rc;
}

int side_release(struct side *side, uint64_t handle)
{
    int rc;

    if (side->cache && vmm_cache_release(side->cache, thread(side), handle, !side->captures, side->now))
        return 0;
    rc = LOCKED(side->driver, driver_release(side->driver, handle));
    if (rc && side->cache)
        vmm_cache_forget_handle(side->cache, handle);
    return rc;
}

int side_unreserve(struct side *side, uint64_t addr, size_t size)
{
    if (side->cache && vmm_cache_unreserve(side->cache, thread(side), addr, size, !side->captures, side->now))
        return 0;
    return LOCKED(side->driver, driver_unreserve(side->driver, addr, size));
}

int side_retain(struct side *side, uint64_t addr, uint64_t *ret_handle)
{
    int rc;

    if (side->cache)
        vmm_cache_settle_range(side->cache, addr, 1);
    rc = LOCKED(side->driver, driver_retain(side->driver, addr, ret_handle));
    if (!rc && side->cache)
        vmm_cache_retained(side->cache, addr, *ret_handle);
    return rc;
}

bool side_is_valid(struct side *side, uint64_t handle)
{
    if (side->cache)
        vmm_cache_settle_handle(side->cache, handle);
    return LOCKED(side->driver, is_valid(side->driver, handle));
}

static int access_at(const struct fake *d, uint64_t addr, uint32_t location)
{
    const unsigned int r = range_of(d, addr);

    return r == FAKE_MAX || !d->ranges[r].memory ? -1 : (int)(d->ranges[r].access >> location & 1);
}

int side_get_access(struct side *side, uint64_t addr, uint32_t location)
{
    if (side->cache)
        vmm_cache_settle_range(side->cache, addr, 1);
    if (side->cache && vmm_cache_hides_access(side->cache, addr, 1, location))
        return 0;
    return LOCKED(side->driver, access_at(side->driver, addr, location));
}

bool side_is_mapped(struct side *side, uint64_t addr)
{
    return side_get_access(side, addr, 0) >= 0;
}

static int *contents_at(struct fake *d, uint64_t addr)
{
    const unsigned int r = range_of(d, addr);

    return r == FAKE_MAX || !d->ranges[r].memory ? NULL : &d->memory[d->ranges[r].memory - 1].contents;
}

int side_write(struct side *side, uint64_t addr, int contents)
{
    int *at = LOCKED(side->driver, contents_at(side->driver, addr));

    if (at)
        *at = contents;
    return at ? 0 : BAD;
}

int side_read(struct side *side, uint64_t addr, int *ret_contents)
{
    const int *at = LOCKED(side->driver, contents_at(side->driver, addr));

    if (at)
        *ret_contents = *at;
    return at ? 0 : BAD;
}

uint64_t side_taken(struct side *side)
{
    const uint64_t kept = side->cache ? vmm_cache_kept(side->cache, VMM_ALL_DEVICES) : 0;

    return LOCKED(side->driver, side->driver->taken) - kept;
}
