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

struct segment {
    uint64_t addr;
    size_t size;
    int device;
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
    size_t size;
    void *handle; /* NULL: was refused */
    enum use use;
    uint64_t group; /* that use was in this group; 0: in none */
    bool pinned;    /* stays as long as the communicator lives: a graph uses it, or it could not be undone */
};

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
    atomic_uint users; /* threads in an operation, or in a group that has used it; counted up with the turn */
    atomic_bool nonblocking;
    atomic_int device;               /* of info, for who has not the turn */
    bool spare;                      /* guarded by the registry's lock: gone, and may serve another communicator */
    struct nccl_reg_comm *next_held; /* of the turns that a thread holds which lets a segment go; his alone */
    /* Guards everything below; held over the table's calls on this communicator. */
    pthread_mutex_t turn;
    struct nccl_reg_comm_info info;
    uint64_t seen; /* changes of the registry, up to the last comparison */
    struct record *records;
    size_t record_count, record_room;
    struct user *users_own;
    size_t user_count, user_room;
    size_t last[NCCL_REG_BUFFERS]; /* the index of the record that held this buffer of the operation before */
    struct counters counters;
};

struct nccl_reg {
    const struct nccl_reg_ops *ops;
    _Atomic(uint64_t) changes; /* of the segments; counted up with the lock */
    _Atomic(struct nccl_reg_comm *) buckets[BUCKETS];
    _Atomic(struct nccl_reg_comm *) all;
    pthread_mutex_t lock; /* guards everything below, and additions to the lists above */
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
    struct nccl_reg_comm **comms;
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
    const size_t i = segment_after(reg, addr);

    return (i && end_of(reg->segments[i - 1].addr, reg->segments[i - 1].size) > addr) ||
           (i < reg->segment_count && reg->segments[i].addr < end_of(addr, size));
}

int nccl_reg_segment_add(struct nccl_reg *reg, uint64_t addr, size_t size, int device)
{
    struct segment *at;
    int rc;

    pthread_mutex_lock(&reg->lock);
    rc = overlaps(reg, addr, size) ? -EEXIST : 0;
    if (!rc)
        rc = reserve((void **)&reg->segments, reg->segment_count, &reg->segment_room, sizeof(*at));
    if (!rc) {
        at = &reg->segments[segment_after(reg, addr)];
        memmove(at + 1, at, (size_t)(reg->segments + reg->segment_count - at) * sizeof(*at));
        *at = (struct segment){.addr = addr, .size = size, .device = device};
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

static void record_delete(struct nccl_reg_comm *comm, const struct record *record)
{
    const size_t i = (size_t)(record - comm->records);

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

static void attach(struct nccl_reg *reg, struct nccl_reg_comm *comm, void *key, struct record *record)
{
    void *handle = NULL;

    if (reg->ops->attach(&comm->info, key, record->addr, record->size, &handle)) {
        comm->counters.failed++;
        handle = NULL;
    }
    comm->counters.attached += handle != NULL;
    record->handle = handle;
    record->use = USE_NONE;
}

/* False: it is there as before, may still be in use, and its segment stays for good. */
static bool detach(struct nccl_reg *reg, struct nccl_reg_comm *comm, void *key, struct record *record)
{
    if (record->handle && reg->ops->detach(&comm->info, key, record->addr, record->size, record->handle)) {
        comm->counters.failed++;
        record->pinned = true;
        segment_quarantine(reg, record->addr);
        return false;
    }
    comm->counters.detached += record->handle != NULL;
    record->handle = NULL;
    return true;
}

/* Can calls be made on it now? */
static bool is_ready(const struct nccl_reg *reg, const struct nccl_reg_comm *comm, void *key)
{
    return !atomic_load_explicit(&comm->nonblocking, memory_order_relaxed) || reg->ops->ready(&comm->info, key);
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
        missing[count++] = (struct record){.addr = segment->addr, .size = segment->size};
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
        attach(reg, comm, key, &missing[i]);
        at = &comm->records[record_after(comm, missing[i].addr)];
        memmove(at + 1, at, (size_t)(comm->records + comm->record_count - at) * sizeof(*at));
        *at = missing[i];
        comm->record_count++;
    }
    free(missing);
    comm->seen = changes;
}

/*
 * Make a registration anew, so that a collective is the first that uses it. What used it before has to be over: peers
 * write through it. False: it stays as it is.
 */
static bool renew(struct nccl_reg *reg, struct nccl_reg_comm *comm, void *key, struct record *record, bool captured)
{
    if (captured || record->pinned || user_holds(comm, record->addr, record->size) || !is_ready(reg, comm, key) ||
        reg->ops->wait(&comm->info))
        return false;
    if (!detach(reg, comm, key, record))
        return false;
    attach(reg, comm, key, record);
    comm->counters.renewed++;
    return true;
}

/* The record that holds a buffer of an operation, or NULL; often that of the operation before. */
static struct record *buffer_find(struct nccl_reg_comm *comm, const struct nccl_reg_op *op, unsigned int i)
{
    const uint64_t addr = op->buffers[i].addr;
    const size_t size = op->buffers[i].size;
    struct record *record;

    if (!size)
        return NULL;
    if (comm->last[i] < comm->record_count && holds(&comm->records[comm->last[i]], addr, size))
        return &comm->records[comm->last[i]];
    record = record_of(comm, addr, size);
    if (record)
        comm->last[i] = (size_t)(record - comm->records);
    return record;
}

/* Look at an operation's buffers; a sum of NCCL_REG_... */
static int prepare(struct nccl_reg *reg, struct nccl_reg_comm *comm, void *key, const struct nccl_reg_op *op)
{
    unsigned int inside = 0, outside = 0;
    bool safe = true;

    if (comm->seen != atomic_load_explicit(&reg->changes, memory_order_acquire) && is_ready(reg, comm, key))
        catch_up(reg, comm, key);
    for (unsigned int i = 0; i < NCCL_REG_BUFFERS; i++) {
        struct record *record = buffer_find(comm, op, i);

        if (!record || !record->handle) {
            outside += op->buffers[i].size != 0;
            continue;
        }
        inside++;
        /* At the end of a group its collectives come first, in whatever order they were called. */
        if (op->kind == NCCL_REG_COLLECTIVE && group.depth && record->group == group.number)
            record->use = USE_COLLECTIVE;
        if (comm->info.careful && op->kind == NCCL_REG_COLLECTIVE && record->use == USE_POINT_TO_POINT)
            safe &= renew(reg, comm, key, record, op->captured);
        if (record->use == USE_NONE) {
            record->use = op->kind == NCCL_REG_COLLECTIVE ? USE_COLLECTIVE : USE_POINT_TO_POINT;
            record->group = group.depth ? group.number : 0;
        }
        record->pinned |= op->captured;
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

/* The same, with its turn; NULL: it is not known any more. */
static struct nccl_reg_comm *comm_take(const struct nccl_reg *reg, void *comm)
{
    struct nccl_reg_comm *found = comm_find(reg, comm);

    if (!found)
        return NULL;
    pthread_mutex_lock(&found->turn);
    if (atomic_load_explicit(&found->key, memory_order_relaxed) == comm)
        return found;
    pthread_mutex_unlock(&found->turn);
    return NULL;
}

/* One of this bucket that is gone, or a new one; with the lock. */
static struct nccl_reg_comm *comm_new(struct nccl_reg *reg, unsigned int bucket)
{
    struct nccl_reg_comm *comm;

    for (comm = atomic_load(&reg->buckets[bucket]); comm; comm = comm->next)
        if (comm->spare && !atomic_load(&comm->users))
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
    struct nccl_reg_comm *made;
    int rc = 0;

    pthread_mutex_lock(&reg->lock);
    if (!comm_find(reg, comm)) {
        made = comm_new(reg, bucket_of(comm));
        if (made) {
            made->spare = false;
            made->info = *info;
            atomic_store(&made->device, info->device);
            made->seen = 0;
            atomic_store(&made->nonblocking, info->nonblocking);
            reg->comm_count++;
            atomic_store_explicit(&made->key, comm, memory_order_release);
        } else {
            rc = -ENOMEM;
        }
    }
    pthread_mutex_unlock(&reg->lock);
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

/* With the turn: it is gone. */
static void comm_clear(struct nccl_reg *reg, struct nccl_reg_comm *comm)
{
    pthread_mutex_lock(&reg->lock);
    counters_add(&reg->past, &comm->counters);
    memset(&comm->counters, 0, sizeof(comm->counters));
    comm->record_count = comm->user_count = 0;
    comm->spare = true;
    reg->comm_count--;
    pthread_mutex_unlock(&reg->lock);
}

static void comm_detach_all(struct nccl_reg *reg, struct nccl_reg_comm *comm, void *key)
{
    bool used = false;

    if (!is_ready(reg, comm, key))
        return;
    for (size_t i = 0; i < comm->record_count; i++)
        used |= comm->records[i].handle && comm->records[i].use != USE_NONE;
    /* NCCL itself waits for it, but only behind this. If it cannot be waited for, a registration that is left behind
     * does more harm. */
    if (used)
        reg->ops->wait(&comm->info);
    for (size_t i = 0; i < comm->record_count; i++)
        detach(reg, comm, key, &comm->records[i]);
}

int nccl_reg_comm_remove(struct nccl_reg *reg, void *comm, bool talk)
{
    struct nccl_reg_comm *found = comm_find(reg, comm);

    if (!found)
        return -ENOENT;
    if (!talk && pthread_mutex_trylock(&found->turn)) {
        /* Somebody is stuck in a call on it, which this is to end. He alone knows of the registrations; they are lost.
         */
        atomic_store(&found->key, NULL);
        return 0;
    }
    if (talk)
        pthread_mutex_lock(&found->turn);
    if (atomic_load(&found->key) != comm) {
        pthread_mutex_unlock(&found->turn);
        return -ENOENT;
    }
    if (talk)
        comm_detach_all(reg, found, comm);
    atomic_store(&found->key, NULL);
    comm_clear(reg, found);
    pthread_mutex_unlock(&found->turn);
    return 0;
}

/* --- operations --- */

/* With its turn: comm is used until this thread's group ends. */
static void group_use(struct nccl_reg_comm *comm)
{
    size_t room = group.room;

    for (unsigned int i = 0; i < group.count; i++)
        if (group.comms[i] == comm)
            return;
    atomic_fetch_add(&comm->users, 1);
    /* Without memory to remember it, it stays in use: its segments never go. */
    if (reserve((void **)&group.comms, group.count, &room, sizeof(void *)))
        return;
    group.room = (unsigned int)room;
    group.comms[group.count++] = comm;
}

int nccl_reg_before_op(struct nccl_reg *reg, void *comm, const struct nccl_reg_op *op, struct nccl_reg_comm **ret_used)
{
    struct nccl_reg_comm *found = comm_take(reg, comm);
    int rc;

    *ret_used = NULL;
    if (!found)
        return -ENOENT;
    if (group.depth) {
        group_use(found);
    } else {
        atomic_fetch_add_explicit(&found->users, 1, memory_order_relaxed);
        *ret_used = found;
    }
    rc = prepare(reg, found, comm, op);
    pthread_mutex_unlock(&found->turn);
    return rc;
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
        if (goes_on)
            atomic_store(&group.comms[i]->nonblocking, true);
        atomic_fetch_sub_explicit(&group.comms[i]->users, 1, memory_order_release);
    }
    free(group.comms);
    group.comms = NULL;
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
    pthread_mutex_unlock(&found->turn);
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
    pthread_mutex_unlock(&found->turn);
    return rc;
}

/* --- how segments go --- */

/* With its turn: does this communicator let the segment go now? */
static bool comm_permits(const struct nccl_reg *reg, const struct nccl_reg_comm *comm, void *key,
                         const struct segment *segment)
{
    const struct record *record = record_at(comm, segment->addr);

    return !atomic_load_explicit(&comm->users, memory_order_acquire) && !(record && record->pinned) &&
           !user_holds(comm, segment->addr, segment->size) && is_ready(reg, comm, key);
}

static void turns_give(struct nccl_reg_comm *held)
{
    struct nccl_reg_comm *next;

    for (; held; held = next) {
        next = held->next_held;
        pthread_mutex_unlock(&held->turn);
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
            turns_give(held);
            return false;
        }
        key = atomic_load(&comm->key);
        if (key) {
            comm->next_held = held;
            held = comm;
            if (comm_permits(reg, comm, key, segment))
                continue;
            turns_give(held);
            return false;
        }
        pthread_mutex_unlock(&comm->turn);
    }
    *ret_held = held;
    return true;
}

/* Deregister a segment that this thread has claimed. False: not now. */
static bool segment_detach(struct nccl_reg *reg, const struct segment *segment)
{
    struct nccl_reg_comm *held;

    if (group.depth || !turns_take(reg, segment, &held))
        return false;
    for (struct nccl_reg_comm *comm = held; comm; comm = comm->next_held) {
        struct record *record = record_at(comm, segment->addr);

        /* What could not be undone is tried once more when the communicator goes. */
        if (record && detach(reg, comm, atomic_load(&comm->key), record))
            record_delete(comm, record);
    }
    turns_give(held);
    return true;
}

/* Let the segment at addr go, if it is to and nobody else is about it. The bytes that were released. */
static size_t segment_let_go(struct nccl_reg *reg, uint64_t addr)
{
    struct segment *segment, copy = {0};
    bool gone;

    pthread_mutex_lock(&reg->lock);
    segment = segment_at(reg, addr);
    if (segment && segment->leaving && !segment->claimed && !segment->quarantined) {
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
    if (!gone)
        return 0;
    copy.release(copy.release_arg, copy.addr, copy.size);
    return copy.size;
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

void nccl_reg_segment_lost(struct nccl_reg *reg, uint64_t addr)
{
    struct segment *segment;
    bool found = false;

    pthread_mutex_lock(&reg->lock);
    segment = segment_at(reg, addr);
    if (segment && !segment->claimed) {
        if (segment->leaving)
            *(segment->quarantined ? &reg->quarantined : &reg->parked) -= segment->size;
        segment_delete(reg, segment);
        found = true;
    }
    pthread_mutex_unlock(&reg->lock);
    for (struct nccl_reg_comm *comm = found ? atomic_load(&reg->all) : NULL; comm; comm = comm->next_all) {
        struct record *record;

        if (!atomic_load(&comm->key))
            continue; /* nobody will ask; and one that was given up is not to be waited for */
        pthread_mutex_lock(&comm->turn);
        record = record_at(comm, addr);
        if (record)
            record_delete(comm, record);
        pthread_mutex_unlock(&comm->turn);
    }
}

void nccl_reg_parked_lost(struct nccl_reg *reg, const void *arg)
{
    uint64_t addr = 0;
    bool more;

    do {
        more = false;
        pthread_mutex_lock(&reg->lock);
        for (size_t i = segment_after(reg, addr); i < reg->segment_count && !more; i++) {
            addr = reg->segments[i].addr;
            more = reg->segments[i].leaving && reg->segments[i].release_arg == arg;
        }
        pthread_mutex_unlock(&reg->lock);
        if (more)
            nccl_reg_segment_lost(reg, addr);
    } while (more);
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
        if (pthread_mutex_trylock(&comm->turn))
            continue;
        counters_add(&sum, &comm->counters);
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
