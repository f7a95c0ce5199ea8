/* SPDX-License-Identifier: Apache-2.0 */
/* host_fake.c - see host_fake.h. */
#include "host_fake.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "give_way.h"
#include "host_internal.h"
#include "wrapped.h"

/* The work that a token stands for. */
struct work {
    unsigned long launched;
    atomic_uint users;
};

/* In each granule of a block. */
struct mark {
    uint64_t launched; /* when it was freed last */
    uint32_t id;       /* of its owner while it is live, else 0 */
};

/* The driver's memory, in units of HOST_SLAB. It stays mapped when it goes back, because a fresh page costs more than
 * all that these tests do with it. program_alloc looks whether what it gets has gone back. */
#define CARD_UNITS 8192u
#define TAKEN      UINT32_MAX

static struct card {
    pthread_mutex_t lock; /* of the members below, but see card_has */
    uint64_t base;
    uint64_t used;                      /* units from here on were never given */
    _Atomic uint32_t units[CARD_UNITS]; /* where memory begins: how many; within it: TAKEN; 0: free */
} card = {.lock = PTHREAD_MUTEX_INITIALIZER};

void host_fake_fault(struct host_fake *fake, const char *what)
{
    const char *none = NULL;

    atomic_compare_exchange_strong(&fake->fault, &none, what);
}

static unsigned long raise_to(atomic_ulong *number, unsigned long to)
{
    unsigned long was = atomic_load(number);

    while (was < to && !atomic_compare_exchange_weak(number, &was, to))
        ;
    return to;
}

void host_fake_launch(struct host_fake *fake)
{
    atomic_fetch_add(&fake->launched, 1);
}

void host_fake_complete(struct host_fake *fake)
{
    raise_to(&fake->completed, atomic_load(&fake->launched));
}

void host_fake_step(struct host_fake *fake)
{
    if (atomic_load(&fake->completed) < atomic_load(&fake->launched))
        raise_to(&fake->completed, atomic_load(&fake->completed) + 1);
}

/* The first step of every call; not 0: the result with which it is to fail. */
static int enter(struct host_fake *fake, enum host_call call)
{
    const unsigned long n = atomic_fetch_add(&fake->calls[call], 1) + 1;

    if (fake->alone && atomic_load(&fake->pool->lock.taken))
        host_fake_fault(fake, "a call under the pool's lock");
    return fake->fail_at == n && fake->fail_call == call ? fake->fail_rc : 0;
}

bool host_fake_no_pages;

/* The linker's --wrap sends mmap64, which is mmap's name in glibc, here. */
WRAPPED(void *, mmap64, (void *addr, size_t size, int prot, int flags, int fd, off_t offset))
{
    return host_fake_no_pages ? MAP_FAILED : __real_mmap64(addr, size, prot, flags, fd, offset);
}

static void card_map(void)
{
    const size_t room = (CARD_UNITS + 1) * HOST_SLAB;
    char *p = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (p == MAP_FAILED)
        abort();
    card.base = ((uint64_t)(uintptr_t)p + HOST_SLAB - 1) / HOST_SLAB * HOST_SLAB;
}

/* New memory has no marks. */
static void wipe(uint64_t addr, size_t size)
{
    static const unsigned char none[sizeof(struct mark)];

    for (uint64_t at = addr; at < addr + size; at += HOST_GRANULE)
        if (memcmp((const void *)(uintptr_t)at, &none, sizeof(none)) != 0)
            memset((void *)(uintptr_t)at, 0, sizeof(none));
}

/* The first place with as many free units in a row. */
static uint64_t card_take(size_t size, size_t offset)
{
    const uint32_t units = (uint32_t)((size + offset + HOST_SLAB - 1) / HOST_SLAB) + 1; /* nothing borders on it */
    uint32_t free = 0, at = 0;
    uint64_t addr;

    pthread_mutex_lock(&card.lock);
    if (!card.base)
        card_map();
    for (; at < CARD_UNITS && free < units; at++)
        free = card.units[at] ? 0 : free + 1;
    if (free < units)
        abort();
    at -= units;
    for (uint32_t i = 0; i < units; i++)
        card.units[at + i] = i ? TAKEN : units;
    addr = card.base + at * HOST_SLAB + offset;
    if (at < card.used)
        wipe(addr, size);
    card.used = at + units > card.used ? at + units : card.used;
    pthread_mutex_unlock(&card.lock);
    return addr;
}

/* False: it is not what was taken. */
static bool card_give(uint64_t addr, size_t size)
{
    const uint64_t at = (addr - card.base) / HOST_SLAB;
    const uint64_t units = (addr - card.base + size + HOST_SLAB - 1) / HOST_SLAB - at + 1;
    bool taken;

    pthread_mutex_lock(&card.lock);
    taken = at < CARD_UNITS && card.units[at] == units;
    for (uint64_t i = 0; taken && i < units; i++)
        card.units[at + i] = 0;
    pthread_mutex_unlock(&card.lock);
    return taken;
}

/* Without the lock, which would order what the pool has to order. */
static bool card_has(uint64_t addr, size_t size)
{
    for (uint64_t at = (addr - card.base) / HOST_SLAB; at <= (addr - card.base + size - 1) / HOST_SLAB; at++)
        if (at >= CARD_UNITS || !atomic_load_explicit(&card.units[at], memory_order_relaxed))
            return false;
    return true;
}

static int fake_alloc(void *arg, const struct host_key *key, size_t size, uint64_t *ret_addr)
{
    struct host_fake *fake = arg;
    const int rc = enter(fake, HOST_CALL_ALLOC);
    void (*meanwhile)(void) = fake->meanwhile;

    if (rc)
        return rc;
    if (meanwhile) {
        fake->meanwhile = NULL;
        meanwhile();
    }
    if (fake->capacity && atomic_load(&fake->held) + size > fake->capacity)
        return -ENOMEM;
    if (fake->again) {
        atomic_fetch_add(&fake->held, size);
        atomic_fetch_add(&fake->unreported, size);
        *ret_addr = fake->again;
        return 0;
    }
    *ret_addr = card_take(size, fake->offset);
    atomic_fetch_add(&fake->held, size);
    atomic_fetch_add(&fake->unreported, size);
    return 0;
}

static void unmap(struct host_fake *fake, uint64_t addr, size_t size)
{
    if (!card_give(addr, size))
        host_fake_fault(fake, "memory went back that the driver has not given");
    atomic_fetch_sub(&fake->held, size);
}

static const struct mark *mark_at(uint64_t addr)
{
    return (const struct mark *)(uintptr_t)addr;
}

static int fake_free(void *arg, const struct host_key *key, uint64_t addr, size_t size, bool may_wait)
{
    struct host_fake *fake = arg;
    const int rc = enter(fake, HOST_CALL_FREE);
    void (*meanwhile)(void) = fake->freed_meanwhile;

    if (meanwhile) {
        fake->freed_meanwhile = NULL;
        meanwhile();
    }
    if (rc == -EBUSY || fake->frozen || (fake->busy && key->owner == fake->busy))
        return -EBUSY;
    if (!may_wait && atomic_load(&fake->completed) < atomic_load(&fake->launched))
        return -EBUSY;
    for (uint64_t at = addr; at < addr + size; at += HOST_GRANULE)
        if (mark_at(at)->id)
            host_fake_fault(fake, "live memory went back to the driver");
    if (may_wait && fake->blocked && atomic_load(&fake->completed) < atomic_load(&fake->launched))
        host_fake_fault(fake, "a free that waits for work which waits for the host");
    if (may_wait)
        host_fake_complete(fake); /* the driver's free waits for all work */
    unmap(fake, addr, size);
    return rc;
}

static int fake_record(void *arg, uint64_t *token)
{
    struct host_fake *fake = arg;
    const int rc = enter(fake, HOST_CALL_RECORD);
    struct work *work;

    if (rc || fake->frozen)
        return rc ? rc : -EBUSY;
    work = *token ? (struct work *)(uintptr_t)*token : calloc(1, sizeof(*work));
    if (!work)
        abort();
    if (!*token)
        atomic_fetch_add(&fake->tokens, 1);
    if (atomic_load(&work->users))
        host_fake_fault(fake, "a token was recorded while a thread asks about it");
    work->launched = atomic_load(&fake->launched);
    while (atomic_load(&fake->hold))
        give_way();
    *token = (uintptr_t)work;
    return 0;
}

static int fake_query(void *arg, uint64_t token)
{
    static atomic_uint queries;
    struct host_fake *fake = arg;
    struct work *work = (struct work *)(uintptr_t)token;
    void (*meanwhile)(void) = fake->asked_meanwhile;
    int rc = enter(fake, HOST_CALL_QUERY);

    if (rc || fake->frozen)
        return rc ? rc : -EBUSY;
    if (fake->late) {
        fake->late--;
        return 0;
    }
    atomic_fetch_add(&work->users, 1);
    if (meanwhile) {
        fake->asked_meanwhile = NULL;
        meanwhile();
    }
    if (fake->slow)
        give_way_at_times();
    else if (atomic_fetch_add(&queries, 1) % 128 == 0)
        sched_yield();
    rc = atomic_load(&fake->completed) >= work->launched;
    atomic_fetch_sub(&work->users, 1);
    return rc;
}

static int fake_wait(void *arg, uint64_t token, uint64_t owner)
{
    struct host_fake *fake = arg;
    const struct work *work = (const struct work *)(uintptr_t)token;
    const int rc = enter(fake, HOST_CALL_WAIT);

    if (rc)
        return rc;
    if (atomic_load(&fake->blocked) && atomic_load(&fake->completed) < work->launched)
        host_fake_fault(fake, "a wait that natively is none");
    atomic_store(&fake->waited_for, owner);
    if (!fake->elsewhere)
        raise_to(&fake->completed, work->launched);
    return 0;
}

static void fake_drop(void *arg, uint64_t token)
{
    struct host_fake *fake = arg;

    struct work *work = (struct work *)(uintptr_t)token;

    if (atomic_load(&work->users))
        host_fake_fault(fake, "a token was dropped while a thread asks about it");
    free(work);
    if (atomic_fetch_sub(&fake->tokens, 1) == 0)
        host_fake_fault(fake, "a token was dropped twice");
}

/* The driver's memory is reported once, when nothing of the pool overlaps it any more. */
static void fake_got(void *arg, const struct host_key *key, uint64_t addr, size_t size, uint64_t ns)
{
    struct host_fake *fake = arg;

    lock_take(&fake->pool->lock);
    if (host_table_find(fake->pool, addr))
        host_fake_fault(fake, "memory was reported while the pool has older memory there");
    lock_give(&fake->pool->lock);
    if (ns > 3600000000000u)
        host_fake_fault(fake, "a call that took an hour");
    atomic_fetch_sub(&fake->unreported, size);
}

static void fake_lost(void *arg, const struct host_key *key, uint64_t addr, size_t size)
{
    struct host_fake *fake = arg;

    fake->lost += size;
    if (addr != fake->again) {
        unmap(fake, addr, size);
        return;
    }
    fake->again = 0; /* it is mapped, and the driver has given it twice */
    atomic_fetch_sub(&fake->held, size);
}

static const struct host_ops fake_ops = {fake_alloc, fake_free, fake_record, fake_query,
                                         fake_wait,  fake_drop, fake_got,    fake_lost};

bool host_fake_sharded;

void host_fake_init(struct host_fake *fake, size_t limit, size_t bound_min)
{
    const struct host_config config = {
        .ops = &fake_ops, .arg = fake, .limit = limit, .bound_min = bound_min, .sharded = host_fake_sharded};

    memset(fake, 0, sizeof(*fake));
    fake->alone = true;
    if (host_pool_create(&config, &fake->pool))
        abort();
}

void host_fake_done(struct host_fake *fake)
{
    host_pool_destroy(fake->pool);
    if (atomic_load(&fake->tokens))
        host_fake_fault(fake, "a token was not dropped");
    if (atomic_load(&fake->unreported))
        host_fake_fault(fake, "memory from the driver was not reported");
    if (atomic_load(&fake->held))
        host_fake_fault(fake, "memory was neither given back nor lost");
}

int program_alloc(struct host_fake *fake, const struct host_key *key, size_t size, uint32_t id, uint64_t *ret_addr)
{
    const int rc = host_pool_alloc(fake->pool, key, size, ret_addr);

    if (rc)
        return rc;
    if (!card_has(*ret_addr, size))
        host_fake_fault(fake, "memory was handed out that the driver has");
    for (uint64_t at = *ret_addr; at < *ret_addr + size; at += HOST_GRANULE) {
        struct mark *mark = (struct mark *)(uintptr_t)at;

        if (mark->id)
            host_fake_fault(fake, "memory was handed out twice");
        if (mark->launched > atomic_load(&fake->completed))
            host_fake_fault(fake, "memory was handed out before its work was over");
        mark->id = id;
    }
    return 0;
}

int program_free(struct host_fake *fake, uint64_t addr, size_t size, uint32_t id)
{
    const unsigned long launched = atomic_load(&fake->launched);

    for (uint64_t at = addr; at < addr + size; at += HOST_GRANULE) {
        struct mark *mark = (struct mark *)(uintptr_t)at;

        if (mark->id != id)
            host_fake_fault(fake, "memory of a live block changed");
        mark->launched = launched;
        mark->id = 0;
    }
    return host_pool_free(fake->pool, addr);
}
