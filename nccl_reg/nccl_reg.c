/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nccl_reg.c - see nccl_reg.h.
 *
 * Segments and registrations lie in arrays sorted by address. A communicator compares the number of changes that it has
 * seen with the registry's, and only where they differ compares the arrays.
 *
 * Locking: struct nccl_reg has the lock, struct nccl_reg_comm its turn; each says what it guards. A turn may be held
 * when the lock is taken, never the other way round, and of a second turn nobody waits while he has one.
 */
#include "nccl_reg.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define BUCKETS 256u
/* How long a reader of statistics waits for the lock: a signal handler may have interrupted its holder. */
#define STATS_WAIT_NS 200000000
/* How long the end of a communicator waits for a call of another thread: most take microseconds, one may be stuck. */
#define CALL_WAIT_NS 1000000000

/* Calls of the table on a communicator. */
#define CALL_INSIDE  1u /* one is under way; set with the turn */
#define CALLS_CLOSED 2u /* none begins any more; set by anybody */

/* What is remembered of the places that operations' buffers lie in: sets of as many as a line of the cache holds. A
 * place is as large as the smallest segment. */
#define NEAR_BITS   9
#define NEAR_SETS   (1u << NEAR_BITS)
#define NEAR_WAYS   8u
#define PLACE_SHIFT 21
#define PLACE_SIZE  ((uint64_t)1 << PLACE_SHIFT)

/* Communicators of a group that are remembered without memory from the heap. */
#define GROUP_FIRST 4u

struct segment {
    uint64_t addr;
    size_t size, front;
    int device;
    bool plain, own;
    void *owner;
    bool leaving;     /* is to go; nobody registers it any more */
    bool claimed;     /* by the thread that tries to let it go */
    bool quarantined; /* could not be deregistered somewhere */
    void (*release)(void *arg, uint64_t addr, size_t size);
    void *release_arg;
};

/* What has used a registration first. */
enum use { USE_NONE, USE_POINT_TO_POINT, USE_COLLECTIVE };

struct record {
    uint64_t addr;
    size_t size, front;
    void *handle;   /* NULL: was refused */
    void *wide;     /* the registration that has the front, too, and is found first; NULL: there is none */
    enum use use;   /* of the one that is found */
    uint64_t group; /* that use was in this group; 0: in none */
    bool plain;
    bool pinned; /* stays as long as the communicator lives: a graph uses it, or it could not be undone */
};

/*
 * What is known of a place: its number, the record that last held a buffer there (if no other has come before it
 * since), and the kinds of operation for which nothing is left to be done with a buffer that lies in this place alone.
 */
#define NEAR_PLACE(near)            ((near) >> 32)
#define NEAR_INDEX(near)            ((near) >> 2 & (((uint64_t)1 << 30) - 1))
#define NEAR_SETTLED(near, kind)    (((near) >> (kind)) & 1)
#define NEAR(place, index, settled) ((place) << 32 | (uint64_t)(index) << 2 | (settled))
typedef _Atomic(uint64_t) near_set[NEAR_WAYS];

/* A registration of the program's own. */
struct user {
    void *handle;
    uint64_t addr;
    size_t size;
};

struct counters {
    uint64_t ops, mixed, outside, unsafe, attached, detached, renewed, failed;
};

struct nccl_reg_comm {
    _Atomic(void *) key;        /* the communicator; NULL: gone */
    struct nccl_reg_comm *next; /* of its bucket, and all of them; neither changes once it is on the lists */
    struct nccl_reg_comm *next_all;
    atomic_uint users; /* threads in an operation, or in a group that has used it; see op_begin */
    atomic_uint calls; /* of CALL... and CALLS... */
    atomic_bool nonblocking;
    atomic_int device; /* of info, for who has not the turn */
    atomic_bool known; /* it has been added and not been cleared; written with the registry's lock */
    /* What operations in steady state look at without the turn. Written with it, but for ops, which is right as long as
     * one thread at a time is about operations with the communicator, as NCCL demands. */
    _Atomic(uint64_t) seen;          /* changes of the registry, up to the last comparison */
    _Atomic(near_set *) near;        /* NEAR_SETS; NULL: nothing has been remembered yet */
    _Atomic(uint64_t) ops;           /* that were over with what near says */
    struct nccl_reg_comm *next_held; /* of the turns that a thread holds which lets a segment go; his alone */
    /* Guards everything below; held over the table's calls on this communicator. */
    pthread_mutex_t turn;
    struct nccl_reg_comm_info info;
    struct record *records;
    size_t record_count, record_room;
    struct user *users_own;
    size_t user_count, user_room;
    unsigned int near_count; /* remembered since the last change of the records; of them the last ones are kept */
    struct counters counters;
};

struct nccl_reg {
    const struct nccl_reg_ops *ops;
    _Atomic(uint64_t) changes; /* of the segments; counted up with the lock */
    _Atomic(struct nccl_reg_comm *) buckets[BUCKETS];
    _Atomic(struct nccl_reg_comm *) all;
    atomic_uint detaching; /* threads that let a segment go, for which communicators rest */
    pthread_mutex_t lock;  /* guards everything below, and additions to the lists above */
    struct segment *segments;
    size_t segment_count, segment_room;
    size_t comm_count;
    uint64_t parked, quarantined;
    struct counters past; /* of communicators that are gone */
};

/* The calling thread's groups, and the communicators that they have used: each counts as a user until the end. */
static __thread struct {
    uint64_t number; /* of the outermost one, which no other has */
    unsigned int depth, count, room;
    struct nccl_reg_comm *first[GROUP_FIRST];
    struct nccl_reg_comm **more;
} group __attribute__((tls_model("initial-exec")));

static _Atomic(uint64_t) groups; /* so far, of all threads */

/* Room for one more element. */
static int reserve(void **array, size_t count, size_t *room, size_t size)
{
    const size_t wanted = *room ? 2 * *room : 16;
    void *grown;

    if (count < *room)
        return 0;
    grown = realloc(*array, wanted * size);
    if (!grown)
        return -ENOMEM;
    *array = grown;
    *room = wanted;
    return 0;
}

static uint64_t end_of(uint64_t addr, size_t size)
{
    return addr + size < addr ? UINT64_MAX : addr + size;
}

/* --- segments, all with the lock --- */

/* The index of the first segment that starts behind addr. */
static size_t segment_after(const struct nccl_reg *reg, uint64_t addr)
{
    size_t low = 0, high = reg->segment_count;

    while (low < high) {
        const size_t middle = low + (high - low) / 2;

        if (reg->segments[middle].addr <= addr)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The index of the first segment that ends behind addr. */
static size_t segment_from(const struct nccl_reg *reg, uint64_t addr)
{
    const size_t i = segment_after(reg, addr);

    return i - (i && end_of(reg->segments[i - 1].addr, reg->segments[i - 1].size) > addr);
}

/* The segment that starts at addr, or NULL. */
static struct segment *segment_at(const struct nccl_reg *reg, uint64_t addr)
{
    const size_t i = segment_after(reg, addr);

    return i && reg->segments[i - 1].addr == addr ? &reg->segments[i - 1] : NULL;
}

static void segment_delete(struct nccl_reg *reg, const struct segment *segment)
{
    const size_t i = (size_t)(segment - reg->segments);

    reg->segment_count--;
    memmove(&reg->segments[i], &reg->segments[i + 1], (reg->segment_count - i) * sizeof(*segment));
}

static bool overlaps(const struct nccl_reg *reg, uint64_t addr, size_t size)
{
    const size_t i = segment_from(reg, addr);

    return i < reg->segment_count && reg->segments[i].addr < end_of(addr, size);
}

int nccl_reg_segment_add(struct nccl_reg *reg, const struct nccl_reg_segment_info *info)
{
    struct segment *at;
    int rc;

    pthread_mutex_lock(&reg->lock);
    rc = overlaps(reg, info->addr, info->size) ? -EEXIST : 0;
    if (!rc)
        rc = reserve((void **)&reg->segments, reg->segment_count, &reg->segment_room, sizeof(*at));
    if (!rc) {
        at = &reg->segments[segment_after(reg, info->addr)];
        memmove(at + 1, at, (size_t)(reg->segments + reg->segment_count - at) * sizeof(*at));
        *at = (struct segment){.addr = info->addr,
                               .size = info->size,
                               .front = info->front,
                               .device = info->device,
                               .plain = info->plain,
                               .own = info->own,
                               .owner = info->owner};
        reg->segment_count++;
        atomic_fetch_add(&reg->changes, 1);
    }
    pthread_mutex_unlock(&reg->lock);
    return rc;
}

/* It was not deregistered from somebody who is gone, or may yet use it. */
static void segment_quarantine(struct nccl_reg *reg, uint64_t addr)
{
    struct segment *segment;

    pthread_mutex_lock(&reg->lock);
    segment = segment_at(reg, addr);
    if (segment && !segment->quarantined) {
        segment->quarantined = true;
        reg->parked -= segment->leaving ? segment->size : 0;
        reg->quarantined += segment->leaving ? segment->size : 0;
    }
    pthread_mutex_unlock(&reg->lock);
}

/* --- a communicator's registrations, all with its turn --- */

/* The index of the first record that starts behind addr. For each operation: without branches that cannot be foretold.
 */
static size_t record_after(const struct nccl_reg_comm *comm, uint64_t addr)
{
    const struct record *low = comm->records;
    size_t count = comm->record_count, half;

    if (!count || low->addr > addr)
        return 0;
    for (; count > 1; count -= half) {
        half = count / 2;
        low = low[half].addr <= addr ? low + half : low;
    }
    return (size_t)(low - comm->records) + 1;
}

static bool holds(const struct record *record, uint64_t addr, size_t size)
{
    return addr - record->addr < record->size && size <= record->size - (addr - record->addr);
}

/* The record that holds all of a buffer, or NULL. */
static struct record *record_of(const struct nccl_reg_comm *comm, uint64_t addr, size_t size)
{
    const size_t i = record_after(comm, addr);
    struct record *record = i ? &comm->records[i - 1] : NULL;

    return record && holds(record, addr, size) ? record : NULL;
}

static struct record *record_at(const struct nccl_reg_comm *comm, uint64_t addr)
{
    struct record *record = record_of(comm, addr, 1);

    return record && record->addr == addr ? record : NULL;
}

/* Where the place of addr is remembered; NULL: nowhere. */
static _Atomic(uint64_t) *near_of(const struct nccl_reg_comm *comm, uint64_t addr)
{
    near_set *sets = atomic_load_explicit(&comm->near, memory_order_acquire);
    const uint64_t place = addr >> PLACE_SHIFT;

    return sets && place && place <= UINT32_MAX ? sets[place * 0x9e3779b97f4a7c15u >> (64 - NEAR_BITS)] : NULL;
}

/* What is known of the place where addr is; 0: nothing. */
static inline uint64_t near_get(const struct nccl_reg_comm *comm, uint64_t addr)
{
    const _Atomic(uint64_t) *set = near_of(comm, addr);

    for (unsigned int i = 0; set && i < NEAR_WAYS; i++) {
        const uint64_t near = atomic_load_explicit(&set[i], memory_order_relaxed);

        if (NEAR_PLACE(near) == addr >> PLACE_SHIFT)
            return near;
    }
    return 0;
}

/* The records, or what has used them, have changed. */
static void near_forget(struct nccl_reg_comm *comm)
{
    near_set *sets = comm->near_count ? atomic_load(&comm->near) : NULL;

    for (unsigned int i = 0; sets && i < NEAR_SETS * NEAR_WAYS; i++)
        atomic_store_explicit(&sets[i / NEAR_WAYS][i % NEAR_WAYS], 0, memory_order_relaxed);
    comm->near_count = 0;
}

/* Is nothing left to be done with a buffer? */
static inline bool is_settled(uint64_t near, enum nccl_reg_kind kind, uint64_t addr, size_t size)
{
    return NEAR_SETTLED(near, kind) && size <= PLACE_SIZE - addr % PLACE_SIZE;
}

/* Does it matter for this record of which kind the operation was that used it first? */
static bool kinds_matter(const struct nccl_reg_comm *comm, const struct record *record)
{
    return comm->info.careful && (!record->plain || comm->info.maps_plain);
}

/* A buffer at addr was found in a record, and has been prepared. */
static void near_remember(struct nccl_reg_comm *comm, uint64_t addr, const struct record *record)
{
    const uint64_t place = addr >> PLACE_SHIFT;
    unsigned int settled = 0, way = comm->near_count++ % NEAR_WAYS;
    _Atomic(uint64_t) *set;
    near_set *sets;

    if (!atomic_load_explicit(&comm->near, memory_order_relaxed)) {
        sets = aligned_alloc(sizeof(*sets), NEAR_SETS * sizeof(*sets));
        if (sets)
            memset(sets, 0, NEAR_SETS * sizeof(*sets));
        atomic_store_explicit(&comm->near, sets, memory_order_release);
    }
    set = near_of(comm, addr);
    if (!set)
        return;
    for (unsigned int i = 0; i < NEAR_WAYS; i++)
        if (!set[i] || NEAR_PLACE(set[i]) == place) {
            way = i;
            break;
        }
    if (holds(record, place << PLACE_SHIFT, PLACE_SIZE))
        settled = 1u << NCCL_REG_POINT_TO_POINT |
                  (unsigned int)(!kinds_matter(comm, record) || record->use == USE_COLLECTIVE) << NCCL_REG_COLLECTIVE;
    atomic_store_explicit(&set[way], NEAR(place, record - comm->records, settled), memory_order_relaxed);
}

static void record_delete(struct nccl_reg_comm *comm, const struct record *record)
{
    const size_t i = (size_t)(record - comm->records);

    near_forget(comm);
    comm->record_count--;
    memmove(&comm->records[i], &comm->records[i + 1], (comm->record_count - i) * sizeof(*record));
}

static bool user_holds(const struct nccl_reg_comm *comm, uint64_t addr, size_t size)
{
    for (size_t i = 0; i < comm->user_count; i++)
        if (comm->users_own[i].addr < end_of(addr, size) &&
            addr < end_of(comm->users_own[i].addr, comm->users_own[i].size))
            return true;
    return false;
}

/* --- calls of the table, all with the turn --- */

static bool is_closed(const struct nccl_reg_comm *comm)
{
    return atomic_load(&comm->calls) & CALLS_CLOSED;
}

/* False: the communicator was given up, and may be gone already. */
static bool call_begin(struct nccl_reg_comm *comm)
{
    unsigned int none = 0;

    return atomic_compare_exchange_strong(&comm->calls, &none, CALL_INSIDE);
}

static void call_end(struct nccl_reg_comm *comm)
{
    atomic_fetch_and(&comm->calls, ~CALL_INSIDE);
}

static uint64_t now_ns(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* Without a turn: wait for calls that are under way, as long as one of these bits is set. */
static void calls_wait(const atomic_uint *calls, unsigned int bits)
{
    const struct timespec nap = {.tv_nsec = 50000};
    const uint64_t limit = now_ns() + CALL_WAIT_NS;

    while (atomic_load(calls) & bits && now_ns() < limit)
        nanosleep(&nap, NULL);
}

/* NULL: refused, or the communicator was given up. */
static void *attach(struct nccl_reg *reg, struct nccl_reg_comm *comm, void *key, uint64_t addr, size_t size)
{
    void *handle = NULL;

    if (!call_begin(comm))
        return NULL;
    near_forget(comm);
    if (reg->ops->attach(&comm->info, key, addr, size, &handle)) {
        comm->counters.failed++;
        handle = NULL;
    }
    call_end(comm);
    comm->counters.attached += handle != NULL;
    return handle;
}

/* 0, or -EIO, or -EPIPE: the communicator was given up. */
static int detach_one(struct nccl_reg *reg, struct nccl_reg_comm *comm, void *key, uint64_t addr, size_t size,
                      void **handle)
{
    int rc;

    if (!*handle)
        return 0;
    if (!call_begin(comm))
        return -EPIPE;
    near_forget(comm);
    rc = reg->ops->detach(&comm->info, key, addr, size, *handle) ? -EIO : 0;
    call_end(comm);
    if (!rc)
        *handle = NULL;
    comm->counters.detached += !rc;
    comm->counters.failed += rc != 0;
    return rc;
}

/* Not 0: it is there as before. -EIO: may still be in use, and its segment stays for good. */
static int detach(struct nccl_reg *reg, struct nccl_reg_comm *comm, void *key, struct record *record)
{
    int rc = detach_one(reg, comm, key, record->addr - record->front, record->front + record->size, &record->wide);

    if (!rc)
        rc = detach_one(reg, comm, key, record->addr, record->size, &record->handle);
    if (rc == -EIO) {
        record->pinned = true;
        segment_quarantine(reg, record->addr);
    }
    return rc;
}

/* Can calls be made on it now? */
static bool is_ready(const struct nccl_reg *reg, struct nccl_reg_comm *comm, void *key)
{
    bool ready;

    if (!atomic_load_explicit(&comm->nonblocking, memory_order_relaxed))
        return !is_closed(comm);
    if (!call_begin(comm))
        return false;
    ready = reg->ops->ready(&comm->info, key);
    call_end(comm);
    return ready;
}

/* Records, without handles, for the segments that the communicator lacks. Returns how many; *ret_changes: as of when.
 */
static size_t missing_get(struct nccl_reg *reg, struct nccl_reg_comm *comm, struct record **ret_missing,
                          uint64_t *ret_changes)
{
    struct record *missing = NULL;
    size_t count = 0, at = 0;

    pthread_mutex_lock(&reg->lock);
    *ret_changes = atomic_load(&reg->changes);
    for (size_t i = 0; i < reg->segment_count; i++) {
        const struct segment *segment = &reg->segments[i];

        while (at < comm->record_count && comm->records[at].addr < segment->addr)
            at++;
        if (segment->leaving || segment->device != comm->info.device ||
            (at < comm->record_count && comm->records[at].addr == segment->addr))
            continue;
        if (!missing)
            missing = malloc((reg->segment_count - i) * sizeof(*missing));
        if (!missing)
            break;
        missing[count++] = (struct record){
            .addr = segment->addr, .size = segment->size, .front = segment->front, .plain = segment->plain};
    }
    pthread_mutex_unlock(&reg->lock);
    *ret_missing = missing;
    return count;
}

/* Register what is missing. What there is no memory to remember is tried again at the next change. */
static void catch_up(struct nccl_reg *reg, struct nccl_reg_comm *comm, void *key)
{
    struct record *missing, *at;
    uint64_t changes;
    const size_t count = missing_get(reg, comm, &missing, &changes);

    for (size_t i = 0; i < count; i++) {
        if (reserve((void **)&comm->records, comm->record_count, &comm->record_room, sizeof(*at)))
            break;
        missing[i].handle = attach(reg, comm, key, missing[i].addr, missing[i].size);
        at = &comm->records[record_after(comm, missing[i].addr)];
        memmove(at + 1, at, (size_t)(comm->records + comm->record_count - at) * sizeof(*at));
        *at = missing[i];
        comm->record_count++;
    }
    free(missing);
    atomic_store_explicit(&comm->seen, changes, memory_order_relaxed);
}

/*
 * Register it once more, with the front: found first from now on, and used by nobody yet. What was there stays as it
 * is for the work that uses it, so nobody waits. False: there is none, or it was refused.
 */
static bool widen(struct nccl_reg *reg, struct nccl_reg_comm *comm, void *key, struct record *record)
{
    if (!record->front || record->wide || !is_ready(reg, comm, key))
        return false;
    record->wide = attach(reg, comm, key, record->addr - record->front, record->front + record->size);
    if (!record->wide) {
        record->front = 0; /* not again */
        return false;
    }
    /* What this group has asked for happens at its end, with the new one. */
    if (!group.depth || record->group != group.number)
        record->use = USE_NONE;
    comm->counters.renewed++;
    return true;
}

/*
 * Make a registration anew, where there is no front. What used it before has to be over: peers write through it. The
 * host cannot wait for that as long as it takes: the work may wait for what this thread launches next.
 */
static bool renew(struct nccl_reg *reg, struct nccl_reg_comm *comm, void *key, struct record *record, bool captured)
{
    if (captured || record->pinned || record->wide || user_holds(comm, record->addr, record->size) ||
        !is_ready(reg, comm, key) || reg->ops->wait(&comm->info, /* briefly: */ true))
        return false;
    if (detach(reg, comm, key, record))
        return false;
    record->handle = attach(reg, comm, key, record->addr, record->size);
    record->use = USE_NONE;
    comm->counters.renewed++;
    return true;
}

/* With a careful communicator: see that the registration may be used as op does it. False: it may not. */
static bool use_prepare(struct nccl_reg *reg, struct nccl_reg_comm *comm, void *key, struct record *record,
                        const struct nccl_reg_op *op)
{
    bool safe = true;

    /* For a graph NCCL itself registers the whole allocation, and without ours that would count as nothing elsewhere.
     */
    if (op->captured && record->front && !record->wide)
        safe = widen(reg, comm, key, record);
    if (!kinds_matter(comm, record) || op->kind != NCCL_REG_COLLECTIVE)
        return safe;
    /* At the end of a group its collectives come first, in whatever order they were called. */
    if (group.depth && record->group == group.number)
        record->use = USE_COLLECTIVE;
    return record->use != USE_POINT_TO_POINT || widen(reg, comm, key, record) ||
           renew(reg, comm, key, record, op->captured);
}

/* Look at an operation's buffers; a sum of NCCL_REG_... */
static int prepare(struct nccl_reg *reg, struct nccl_reg_comm *comm, void *key, const struct nccl_reg_op *op)
{
    unsigned int inside = 0, outside = 0;
    bool safe = true;

    if (atomic_load_explicit(&comm->seen, memory_order_relaxed) !=
            atomic_load_explicit(&reg->changes, memory_order_acquire) &&
        is_ready(reg, comm, key))
        catch_up(reg, comm, key);
    for (unsigned int i = 0; i < NCCL_REG_BUFFERS; i++) {
        const uint64_t addr = op->buffers[i].addr;
        const size_t size = op->buffers[i].size;
        const uint64_t near = near_get(comm, addr);
        struct record *record;

        if (!size)
            continue;
        if (NEAR_INDEX(near) < comm->record_count && holds(&comm->records[NEAR_INDEX(near)], addr, size))
            record = &comm->records[NEAR_INDEX(near)];
        else
            record = record_of(comm, addr, size);
        if (record && record->handle && comm->info.careful)
            safe &= use_prepare(reg, comm, key, record, op);
        if (!record || !record->handle) { /* it may just have been refused */
            outside++;
            continue;
        }
        inside++;
        if (record->use == USE_NONE) {
            record->use = op->kind == NCCL_REG_COLLECTIVE ? USE_COLLECTIVE : USE_POINT_TO_POINT;
            record->group = group.depth ? group.number : 0;
        }
        record->pinned |= op->captured;
        near_remember(comm, addr, record);
    }
    comm->counters.ops += inside || outside;
    comm->counters.mixed += inside && outside;
    comm->counters.outside += !inside && outside;
    comm->counters.unsafe += !safe;
    return (inside && outside ? NCCL_REG_MIXED : 0) | (safe ? 0 : NCCL_REG_UNSAFE);
}

/* --- communicators --- */

static unsigned int bucket_of(const void *comm)
{
    return (unsigned int)(((uint64_t)(uintptr_t)comm * 0x9e3779b97f4a7c15u) >> 56) % BUCKETS;
}

static struct nccl_reg_comm *comm_find(const struct nccl_reg *reg, void *comm)
{
    struct nccl_reg_comm *found = atomic_load_explicit(&reg->buckets[bucket_of(comm)], memory_order_acquire);

    while (found && atomic_load_explicit(&found->key, memory_order_acquire) != comm)
        found = found->next;
    return found;
}

static void comm_clear(struct nccl_reg *reg, struct nccl_reg_comm *comm);

/*
 * Give a turn back. Whoever ends a communicator does not wait for it: then its holder clears up, and he who has come
 * too late to see that here finds the turn free.
 */
static void turn_give(struct nccl_reg *reg, struct nccl_reg_comm *comm)
{
    pthread_mutex_unlock(&comm->turn);
    while (!atomic_load(&comm->key) && atomic_load(&comm->known) && !pthread_mutex_trylock(&comm->turn)) {
        comm_clear(reg, comm);
        pthread_mutex_unlock(&comm->turn);
    }
}

/* The same, with its turn; NULL: it is not known any more. */
static struct nccl_reg_comm *comm_take(struct nccl_reg *reg, void *comm)
{
    struct nccl_reg_comm *found = comm_find(reg, comm);

    if (!found)
        return NULL;
    pthread_mutex_lock(&found->turn);
    if (atomic_load_explicit(&found->key, memory_order_relaxed) == comm)
        return found;
    turn_give(reg, found);
    return NULL;
}

/* One of this bucket that is gone, or a new one; with the lock. */
static struct nccl_reg_comm *comm_new(struct nccl_reg *reg, unsigned int bucket)
{
    struct nccl_reg_comm *comm;

    for (comm = atomic_load(&reg->buckets[bucket]); comm; comm = comm->next)
        if (!atomic_load(&comm->known) && !atomic_load(&comm->users))
            return comm;
    comm = calloc(1, sizeof(*comm));
    if (!comm)
        return NULL;
    pthread_mutex_init(&comm->turn, NULL);
    comm->next = atomic_load(&reg->buckets[bucket]);
    comm->next_all = atomic_load(&reg->all);
    atomic_store(&reg->buckets[bucket], comm);
    atomic_store(&reg->all, comm);
    return comm;
}

int nccl_reg_comm_add(struct nccl_reg *reg, void *comm, const struct nccl_reg_comm_info *info)
{
    struct nccl_reg_comm *made = NULL;
    int rc = 0;

    pthread_mutex_lock(&reg->lock);
    if (!comm_find(reg, comm)) {
        made = comm_new(reg, bucket_of(comm));
        if (made) {
            made->info = *info;
            atomic_store(&made->device, info->device);
            atomic_store(&made->seen, 0);
            atomic_store(&made->calls, 0);
            atomic_store(&made->known, true);
            atomic_store(&made->nonblocking, info->nonblocking);
            reg->comm_count++;
            atomic_store_explicit(&made->key, comm, memory_order_release);
        } else {
            rc = -ENOMEM;
        }
    }
    pthread_mutex_unlock(&reg->lock);
    /* It may share connections with those that rest for a segment, and whoever saw to that did not see it. */
    if (made)
        calls_wait(&reg->detaching, ~0u);
    return rc;
}

int nccl_reg_comm_get(const struct nccl_reg *reg, void *comm, struct nccl_reg_comm_info *ret_info)
{
    const struct nccl_reg_comm *found = comm_find(reg, comm);

    if (!found)
        return -ENOENT;
    *ret_info = found->info;
    return 0;
}

void nccl_reg_comm_nonblocking(struct nccl_reg *reg, void *comm)
{
    struct nccl_reg_comm *found = comm_find(reg, comm);

    if (found)
        atomic_store(&found->nonblocking, true);
}

static void counters_add(struct counters *sum, const struct counters *more)
{
    uint64_t *to = (uint64_t *)sum;
    const uint64_t *from = (const uint64_t *)more;

    for (unsigned int i = 0; i < sizeof(*sum) / sizeof(*to); i++)
        to[i] += from[i];
}

/* With the turn: clear up if it is gone. Only with the lock is that sure: it may be about to be another one. */
static void comm_clear(struct nccl_reg *reg, struct nccl_reg_comm *comm)
{
    pthread_mutex_lock(&reg->lock);
    if (!atomic_load(&comm->key) && atomic_load(&comm->known)) {
        counters_add(&reg->past, &comm->counters);
        memset(&comm->counters, 0, sizeof(comm->counters));
        comm->record_count = comm->user_count = 0;
        near_forget(comm);
        atomic_store(&comm->known, false);
        reg->comm_count--;
    }
    pthread_mutex_unlock(&reg->lock);
}

/* -EPIPE: not all; the communicator is closed now. */
static int comm_detach_all(struct nccl_reg *reg, struct nccl_reg_comm *comm, void *key)
{
    bool used = false;

    if (!is_ready(reg, comm, key)) {
        atomic_fetch_or(&comm->calls, CALLS_CLOSED);
        return -EPIPE;
    }
    for (size_t i = 0; i < comm->record_count; i++)
        used |= comm->records[i].wide || (comm->records[i].handle && comm->records[i].use != USE_NONE);
    /* NCCL itself waits for it, but only behind this. If it cannot be waited for, a registration that is left behind
     * does more harm. */
    if (used)
        reg->ops->wait(&comm->info, /* briefly: */ false);
    for (size_t i = 0; i < comm->record_count; i++)
        if (detach(reg, comm, key, &comm->records[i]) == -EPIPE)
            return -EPIPE;
    return 0;
}

int nccl_reg_comm_remove(struct nccl_reg *reg, void *comm, bool talk)
{
    struct nccl_reg_comm *found;
    int rc = -ENOENT;

    if (!talk) {
        nccl_reg_comm_close(reg, comm);
        return nccl_reg_comm_gone(reg, comm);
    }
    found = comm_find(reg, comm);
    if (!found)
        return rc;
    pthread_mutex_lock(&found->turn);
    if (atomic_load(&found->key) == comm) {
        rc = comm_detach_all(reg, found, comm);
        /* Somebody may have given it up meanwhile. */
        if (!rc)
            atomic_compare_exchange_strong(&found->key, &comm, NULL);
    }
    turn_give(reg, found);
    return rc;
}

void nccl_reg_comm_close(struct nccl_reg *reg, void *comm)
{
    struct nccl_reg_comm *found;

    /* With the lock it does not become another one. */
    pthread_mutex_lock(&reg->lock);
    found = comm_find(reg, comm);
    if (found)
        atomic_fetch_or(&found->calls, CALLS_CLOSED);
    pthread_mutex_unlock(&reg->lock);
    if (found)
        calls_wait(&found->calls, CALL_INSIDE);
}

int nccl_reg_comm_gone(struct nccl_reg *reg, void *comm)
{
    struct nccl_reg_comm *found;

    /* With the lock none is added at its address. */
    pthread_mutex_lock(&reg->lock);
    found = comm_find(reg, comm);
    if (found && (!is_closed(found) || !atomic_compare_exchange_strong(&found->key, &comm, NULL)))
        found = NULL;
    pthread_mutex_unlock(&reg->lock);
    if (!found)
        return -ENOENT;
    /* Clear up, unless the turn is elsewhere; then its holder does. */
    if (!pthread_mutex_trylock(&found->turn))
        turn_give(reg, found);
    return 0;
}

/* --- operations --- */

/* The place of the group's communicator of this number. */
static struct nccl_reg_comm **group_at(unsigned int i)
{
    return i < GROUP_FIRST ? &group.first[i] : &group.more[i - GROUP_FIRST];
}

/* comm is used until this thread's group ends. */
static void group_use(struct nccl_reg_comm *comm)
{
    size_t room = group.room;

    for (unsigned int i = 0; i < group.count; i++)
        if (*group_at(i) == comm)
            return;
    atomic_fetch_add(&comm->users, 1);
    /* Without memory to remember it, it stays in use: its segments never go. */
    if (group.count >= GROUP_FIRST && reserve((void **)&group.more, group.count - GROUP_FIRST, &room, sizeof(void *)))
        return;
    group.room = (unsigned int)room;
    *group_at(group.count++) = comm;
}

/*
 * It is in use from now on; what after_op will get. Who lets a segment go says so first (detaching), takes the turns,
 * and does not where there is a user. So who counts himself first and then finds nobody about that needs no turn.
 */
static struct nccl_reg_comm *op_begin(struct nccl_reg_comm *comm)
{
    if (group.depth) {
        group_use(comm);
        return NULL;
    }
    atomic_fetch_add(&comm->users, 1);
    return comm;
}

/* In use: is nothing left to be done for this operation? */
static bool op_settled(const struct nccl_reg *reg, const struct nccl_reg_comm *comm, const struct nccl_reg_op *op)
{
    if (op->captured || atomic_load_explicit(&comm->seen, memory_order_relaxed) !=
                            atomic_load_explicit(&reg->changes, memory_order_acquire))
        return false;
    for (unsigned int i = 0; i < NCCL_REG_BUFFERS; i++) {
        const uint64_t addr = op->buffers[i].addr;
        const size_t size = op->buffers[i].size;

        if (size && !is_settled(near_get(comm, addr), op->kind, addr, size))
            return false;
    }
    return op->buffers[0].size || op->buffers[1].size;
}

int nccl_reg_before_op(struct nccl_reg *reg, void *comm, const struct nccl_reg_op *op, struct nccl_reg_comm **ret_used)
{
    struct nccl_reg_comm *found = comm_find(reg, comm);
    int rc = -ENOENT;

    *ret_used = NULL;
    if (!found)
        return rc;
    *ret_used = op_begin(found);
    if (!atomic_load(&reg->detaching) && atomic_load_explicit(&found->key, memory_order_acquire) == comm &&
        op_settled(reg, found, op)) {
        atomic_store_explicit(&found->ops, atomic_load_explicit(&found->ops, memory_order_relaxed) + 1,
                              memory_order_relaxed);
        return 0;
    }
    pthread_mutex_lock(&found->turn);
    if (atomic_load_explicit(&found->key, memory_order_relaxed) == comm)
        rc = prepare(reg, found, comm, op);
    turn_give(reg, found);
    if (rc < 0) {
        nccl_reg_after_op(*ret_used);
        *ret_used = NULL;
    }
    return rc;
}

void nccl_reg_before_call(struct nccl_reg *reg, void *comm, struct nccl_reg_comm **ret_used)
{
    struct nccl_reg_comm *found = comm_take(reg, comm);

    *ret_used = NULL;
    if (!found)
        return;
    *ret_used = op_begin(found);
    turn_give(reg, found);
}

void nccl_reg_after_op(struct nccl_reg_comm *used)
{
    if (used)
        atomic_fetch_sub_explicit(&used->users, 1, memory_order_release);
}

void nccl_reg_group_start(void)
{
    if (!group.depth++)
        group.number = atomic_fetch_add_explicit(&groups, 1, memory_order_relaxed) + 1;
}

void nccl_reg_group_end(bool goes_on)
{
    if (!group.depth || --group.depth)
        return;
    for (unsigned int i = 0; i < group.count; i++) {
        struct nccl_reg_comm *comm = *group_at(i);

        if (goes_on)
            atomic_store(&comm->nonblocking, true);
        atomic_fetch_sub_explicit(&comm->users, 1, memory_order_release);
    }
    free(group.more);
    group.more = NULL;
    group.count = group.room = 0;
}

unsigned int nccl_reg_group_depth(void)
{
    return group.depth;
}

int nccl_reg_user_add(struct nccl_reg *reg, void *comm, void *handle, uint64_t addr, size_t size)
{
    struct nccl_reg_comm *found = comm_take(reg, comm);
    int rc;

    if (!found)
        return -ENOENT;
    rc = reserve((void **)&found->users_own, found->user_count, &found->user_room, sizeof(*found->users_own));
    if (!rc)
        found->users_own[found->user_count++] = (struct user){.handle = handle, .addr = addr, .size = size};
    turn_give(reg, found);
    return rc;
}

int nccl_reg_user_remove(struct nccl_reg *reg, void *comm, void *handle)
{
    struct nccl_reg_comm *found = comm_take(reg, comm);
    int rc = -ENOENT;

    if (!found)
        return rc;
    for (size_t i = 0; rc && i < found->user_count; i++)
        if (found->users_own[i].handle == handle) {
            found->users_own[i] = found->users_own[--found->user_count];
            rc = 0;
        }
    turn_give(reg, found);
    return rc;
}

/* --- how segments go --- */

/* With its turn: does this communicator let the segment go now? */
static bool comm_permits(const struct nccl_reg *reg, struct nccl_reg_comm *comm, void *key,
                         const struct segment *segment)
{
    const struct record *record = record_at(comm, segment->addr);

    if (atomic_load(&comm->users) || (record && record->pinned && !segment->own) ||
        user_holds(comm, segment->addr, segment->size))
        return false;
    return is_closed(comm) ? !record || !record->handle : is_ready(reg, comm, key);
}

static void turns_give(struct nccl_reg *reg, struct nccl_reg_comm *held)
{
    struct nccl_reg_comm *next;

    for (; held; held = next) {
        next = held->next_held;
        turn_give(reg, held);
    }
}

/*
 * Take the turns of all communicators of the segment's device: those that share connections with one that has it
 * registered must be at rest, too. False, with none of them: one does not let go.
 */
static bool turns_take(struct nccl_reg *reg, const struct segment *segment, struct nccl_reg_comm **ret_held)
{
    struct nccl_reg_comm *held = NULL;
    void *key;

    for (struct nccl_reg_comm *comm = atomic_load(&reg->all); comm; comm = comm->next_all) {
        /* Another device's threads are at work with theirs, and it has none of this memory. */
        if (atomic_load(&comm->device) != segment->device)
            continue;
        if (pthread_mutex_trylock(&comm->turn)) {
            /* One that was given up with a thread in it has no key, and nothing is done with it any more. */
            if (!atomic_load(&comm->key))
                continue;
            turns_give(reg, held);
            return false;
        }
        key = atomic_load(&comm->key);
        if (key && comm_permits(reg, comm, key, segment)) {
            comm->next_held = held;
            held = comm;
            continue;
        }
        turn_give(reg, comm);
        if (key && atomic_load(&comm->key) == key) {
            turns_give(reg, held);
            return false;
        }
    }
    *ret_held = held;
    return true;
}

/* With all turns: deregister it from one. False: that was revoked meanwhile. */
static bool comm_let_go(struct nccl_reg *reg, struct nccl_reg_comm *comm, const struct segment *segment)
{
    void *key = atomic_load(&comm->key);
    struct record *record = key ? record_at(comm, segment->addr) : NULL;
    int rc;

    if (!record)
        return true;
    rc = detach(reg, comm, key, record);
    /* What could not be undone is tried once more when the communicator goes. */
    if (!rc)
        record_delete(comm, record);
    return rc != -EPIPE || !atomic_load(&comm->key);
}

/* Deregister a segment that this thread has claimed. False: not now. */
static bool segment_detach(struct nccl_reg *reg, const struct segment *segment)
{
    struct nccl_reg_comm *held = NULL;
    bool gone;

    if (group.depth)
        return false;
    atomic_fetch_add(&reg->detaching, 1);
    gone = turns_take(reg, segment, &held);
    for (struct nccl_reg_comm *comm = held; comm; comm = comm->next_held)
        gone &= comm_let_go(reg, comm, segment);
    turns_give(reg, held);
    atomic_fetch_sub(&reg->detaching, 1);
    return gone;
}

/* With the lock: its owner is there until it is dropped. */
static bool owner_hold(const struct nccl_reg *reg, const struct segment *segment)
{
    return !segment->owner || !reg->ops->hold || reg->ops->hold(segment->owner);
}

static void owner_drop(const struct nccl_reg *reg, const struct segment *segment)
{
    if (segment->owner && reg->ops->drop)
        reg->ops->drop(segment->owner);
}

/* Let the segment at addr go, if it is to and nobody else is about it. The bytes that were released. */
static size_t segment_let_go(struct nccl_reg *reg, uint64_t addr)
{
    struct segment *segment, copy = {0};
    bool gone;

    pthread_mutex_lock(&reg->lock);
    segment = segment_at(reg, addr);
    if (segment && segment->leaving && !segment->claimed && !segment->quarantined && owner_hold(reg, segment)) {
        segment->claimed = true;
        copy = *segment;
    }
    pthread_mutex_unlock(&reg->lock);
    if (!copy.claimed)
        return 0;

    gone = segment_detach(reg, &copy);
    pthread_mutex_lock(&reg->lock);
    segment = segment_at(reg, addr); /* still there, but maybe not at the same place of the array */
    segment->claimed = false;
    gone = gone && !segment->quarantined;
    if (gone) {
        reg->parked -= copy.size;
        segment_delete(reg, segment);
    }
    pthread_mutex_unlock(&reg->lock);
    if (gone)
        copy.release(copy.release_arg, copy.addr, copy.size);
    owner_drop(reg, &copy);
    return gone ? copy.size : 0;
}

int nccl_reg_segment_remove(struct nccl_reg *reg, uint64_t addr, void (*release)(void *arg, uint64_t addr, size_t size),
                            void *arg)
{
    struct segment *segment;
    int rc = -ENOENT;

    pthread_mutex_lock(&reg->lock);
    segment = segment_at(reg, addr);
    if (segment && !segment->leaving) {
        segment->leaving = true;
        segment->release = release;
        segment->release_arg = arg;
        *(segment->quarantined ? &reg->quarantined : &reg->parked) += segment->size;
        rc = 0;
    }
    pthread_mutex_unlock(&reg->lock);
    if (!rc)
        segment_let_go(reg, addr);
    return rc;
}

size_t nccl_reg_settle(struct nccl_reg *reg, int device)
{
    uint64_t addr = 0;
    size_t released = 0;
    bool more;

    do {
        more = false;
        pthread_mutex_lock(&reg->lock);
        for (size_t i = reg->parked ? segment_after(reg, addr) : reg->segment_count; i < reg->segment_count && !more;
             i++) {
            addr = reg->segments[i].addr;
            more = reg->segments[i].leaving && !reg->segments[i].quarantined &&
                   (device < 0 || device == reg->segments[i].device);
        }
        pthread_mutex_unlock(&reg->lock);
        if (more)
            released += segment_let_go(reg, addr);
    } while (more);
    return released;
}

/* --- how they are lost --- */

static void records_lose(struct nccl_reg *reg, uint64_t addr, int device)
{
    for (struct nccl_reg_comm *comm = atomic_load(&reg->all); comm; comm = comm->next_all) {
        const struct record *record;

        /* Nobody will ask, and one that was given up is not to be waited for; nor is another device's, which may be in
         * a call for as long as it likes. */
        if (!atomic_load(&comm->key) || atomic_load(&comm->device) != device)
            continue;
        pthread_mutex_lock(&comm->turn);
        record = record_at(comm, addr);
        if (record)
            record_delete(comm, record);
        turn_give(reg, comm);
    }
}

/* Segments that have something in this range: of this owner, or (any) of whichever. Not what somebody lets go. */
static void lose(struct nccl_reg *reg, uint64_t addr, uint64_t end, const void *owner, bool any)
{
    struct segment lost;

    do {
        lost.size = 0;
        pthread_mutex_lock(&reg->lock);
        for (size_t i = segment_from(reg, addr); i < reg->segment_count && reg->segments[i].addr < end; i++) {
            const struct segment *segment = &reg->segments[i];

            if (segment->claimed || (any ? !segment->owner : segment->owner != owner))
                continue;
            lost = *segment;
            if (lost.leaving)
                *(lost.quarantined ? &reg->quarantined : &reg->parked) -= lost.size;
            segment_delete(reg, segment);
            break;
        }
        pthread_mutex_unlock(&reg->lock);
        if (lost.size) {
            records_lose(reg, lost.addr, lost.device);
            /* Whoever took the old record for that of a new segment at this address looks again. */
            atomic_fetch_add(&reg->changes, 1);
        }
    } while (lost.size);
}

void nccl_reg_segment_lost(struct nccl_reg *reg, uint64_t addr, const void *owner)
{
    lose(reg, addr, addr + 1, owner, /* any: */ false);
}

void nccl_reg_owner_lost(struct nccl_reg *reg, const void *owner)
{
    lose(reg, 0, UINT64_MAX, owner, /* any: */ false);
}

void nccl_reg_range_lost(struct nccl_reg *reg, uint64_t addr, size_t size)
{
    lose(reg, addr, end_of(addr, size), NULL, /* any: */ true);
}

/* --- life --- */

int nccl_reg_create(const struct nccl_reg_ops *ops, struct nccl_reg **ret_reg)
{
    struct nccl_reg *reg = calloc(1, sizeof(*reg));

    if (!reg)
        return -ENOMEM;
    reg->ops = ops;
    atomic_store(&reg->changes, 1); /* a new communicator has seen 0 */
    pthread_mutex_init(&reg->lock, NULL);
    *ret_reg = reg;
    return 0;
}

void nccl_reg_destroy(struct nccl_reg *reg)
{
    struct nccl_reg_comm *comm, *next;

    for (comm = atomic_load(&reg->all); comm; comm = next) {
        next = comm->next_all;
        pthread_mutex_destroy(&comm->turn);
        free(comm->records);
        free(atomic_load(&comm->near));
        free(comm->users_own);
        free(comm);
    }
    pthread_mutex_destroy(&reg->lock);
    free(reg->segments);
    free(reg);
}

void nccl_reg_stats_get(struct nccl_reg *reg, struct nccl_reg_stats *ret_stats)
{
    struct timespec limit;
    struct counters sum;
    bool locked;

    clock_gettime(CLOCK_REALTIME, &limit);
    limit.tv_nsec += STATS_WAIT_NS;
    limit.tv_sec += limit.tv_nsec / 1000000000;
    limit.tv_nsec %= 1000000000;
    locked = pthread_mutex_timedlock(&reg->lock, &limit) == 0;
    sum = reg->past;
    *ret_stats = (struct nccl_reg_stats){.comms = reg->comm_count,
                                         .segments = reg->segment_count,
                                         .parked = reg->parked,
                                         .quarantined = reg->quarantined};
    if (locked)
        pthread_mutex_unlock(&reg->lock);
    for (struct nccl_reg_comm *comm = atomic_load(&reg->all); comm; comm = comm->next_all) {
        sum.ops += atomic_load(&comm->ops); /* of all who have had this entry */
        if (pthread_mutex_trylock(&comm->turn))
            continue;
        counters_add(&sum, &comm->counters);
        /* Clearing up takes the lock. */
        if (locked)
            turn_give(reg, comm);
        else
            pthread_mutex_unlock(&comm->turn);
    }
    ret_stats->ops = sum.ops;
    ret_stats->mixed = sum.mixed;
    ret_stats->outside = sum.outside;
    ret_stats->unsafe = sum.unsafe;
    ret_stats->attached = sum.attached;
    ret_stats->detached = sum.detached;
    ret_stats->renewed = sum.renewed;
    ret_stats->failed = sum.failed;
}
