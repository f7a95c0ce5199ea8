/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nccl_reg.c - the registry: its communicators, its life and its statistics; see nccl_reg.h.
 *
 * Locking: see nccl_reg_internal.h.
 */
#include "nccl_reg_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* The longest time, in nanoseconds, that a reader of statistics waits for the lock, whose holder a signal handler may
 * have interrupted. */
#define STATS_WAIT_NS 200000000
/* The longest time, in nanoseconds, that the end of a communicator waits for a call of another thread: most take
 * microseconds, but one may be stuck. */
#define CALL_WAIT_NS 1000000000

int reg_reserve(void **array, size_t count, size_t *room, size_t size)
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

uint64_t reg_now_ns(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* Wait for calls under way as long as one of these bits is set. The caller holds no turn. */
static void calls_wait(const atomic_uint *calls, unsigned int bits)
{
    const struct timespec nap = {.tv_nsec = 50000};
    const uint64_t limit = reg_now_ns() + CALL_WAIT_NS;
    const int saved = errno;

    while (atomic_load(calls) & bits && reg_now_ns() < limit)
        syscall(SYS_nanosleep, &nap, NULL); /* nanosleep() is a cancellation point */
    errno = saved;
}

/* --- communicators --- */

static void comm_clear(struct nccl_reg *reg, struct nccl_reg_comm *comm);

/*
 * Give a turn back. A thread that ends a communicator does not wait for its turn; its holder then clears the entry
 * here. If the end comes after the holder's check, the ending thread finds the turn free.
 */
void reg_turn_give(struct nccl_reg *reg, struct nccl_reg_comm *comm)
{
    pthread_mutex_unlock(&comm->turn);
    while (!atomic_load(&comm->key) && atomic_load(&comm->known) && !pthread_mutex_trylock(&comm->turn)) {
        comm_clear(reg, comm);
        pthread_mutex_unlock(&comm->turn);
    }
}

struct nccl_reg_comm *reg_comm_take(struct nccl_reg *reg, void *comm)
{
    struct nccl_reg_comm *found = comm_find(reg, comm);

    if (!found)
        return NULL;
    pthread_mutex_lock(&found->turn);
    if (atomic_load_explicit(&found->key, memory_order_relaxed) == comm)
        return found;
    reg_turn_give(reg, found);
    return NULL;
}

/* An unused entry of this bucket, or a new one; with the lock. */
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
            atomic_store(&made->finalized, false);
            made->rests = 0;
            atomic_store(&made->known, true);
            atomic_store(&made->nonblocking, info->nonblocking);
            reg->comm_count++;
            atomic_store_explicit(&made->key, comm, memory_order_release);
        } else {
            rc = -ENOMEM;
        }
    }
    pthread_mutex_unlock(&reg->lock);
    /* The new communicator may share connections with others that rest while a segment is released, and the releasing
     * threads have not seen it. */
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

/* With the turn: clear the entry if its communicator is gone. The lock makes the check reliable, because the entry may
 * be about to be used for another communicator. */
static void comm_clear(struct nccl_reg *reg, struct nccl_reg_comm *comm)
{
    pthread_mutex_lock(&reg->lock);
    if (!atomic_load(&comm->key) && atomic_load(&comm->known)) {
        counters_add(&reg->past, &comm->counters);
        memset(&comm->counters, 0, sizeof(comm->counters));
        while (comm->record_count)
            reg_record_delete(comm, &comm->records[comm->record_count - 1]);
        comm->user_count = 0;
        atomic_store(&comm->known, false);
        reg->comm_count--;
    }
    pthread_mutex_unlock(&reg->lock);
}

/* -EPIPE: some registrations are left, and the communicator is closed now. */
static int comm_detach_all(struct nccl_reg *reg, struct nccl_reg_comm *comm, void *key)
{
    bool used = false;

    for (size_t i = 0; i < comm->record_count; i++)
        used |= comm->records[i].handle && comm->records[i].used;
    /* NCCL waits for the work of this communicator only, so this wait for the device is limited, and is left out if the
     * communicator does not block. NCCL undoes the remaining registrations when the communicator is destroyed: until
     * then other ranks may have theirs. */
    if (reg_group_uses(comm) || !reg_is_ready(reg, comm, key) ||
        (used && reg->ops->wait(&comm->info, atomic_load(&comm->nonblocking) ? 0 : END_WAIT_MS))) {
        atomic_fetch_add(&comm->calls, CALLS_CLOSED);
        return -EPIPE;
    }
    for (size_t i = 0; i < comm->record_count; i++)
        if (reg_detach(reg, comm, key, &comm->records[i]) == -EPIPE)
            return -EPIPE;
    return 0;
}

/* Undo the registrations of a communicator. stays: it is then closed, otherwise gone. */
static int comm_leave(struct nccl_reg *reg, void *comm, bool stays)
{
    struct nccl_reg_comm *found = comm_find(reg, comm);
    int rc = -ENOENT;

    if (!found)
        return rc;
    pthread_mutex_lock(&found->turn);
    if (atomic_load(&found->key) == comm) {
        rc = comm_detach_all(reg, found, comm);
        if (!rc && stays) {
            atomic_store(&found->finalized, true);
            atomic_fetch_add(&found->calls, CALLS_CLOSED);
        } else if (!rc) { /* unless another thread has closed the communicator meanwhile */
            atomic_compare_exchange_strong(&found->key, &comm, NULL);
        }
    }
    reg_turn_give(reg, found);
    return rc;
}

int nccl_reg_comm_remove(struct nccl_reg *reg, void *comm, bool talk)
{
    if (talk)
        return comm_leave(reg, comm, /* stays: */ false);
    nccl_reg_comm_close(reg, comm);
    return nccl_reg_comm_gone(reg, comm);
}

int nccl_reg_comm_finalize(struct nccl_reg *reg, void *comm)
{
    return comm_leave(reg, comm, /* stays: */ true);
}

void nccl_reg_comm_close(struct nccl_reg *reg, void *comm)
{
    struct nccl_reg_comm *found;

    /* With the lock held, the entry is not reused for another communicator. */
    pthread_mutex_lock(&reg->lock);
    found = comm_find(reg, comm);
    if (found)
        atomic_fetch_add(&found->calls, CALLS_CLOSED);
    pthread_mutex_unlock(&reg->lock);
    if (found)
        calls_wait(&found->calls, CALL_INSIDE);
}

void nccl_reg_comm_reopen(struct nccl_reg *reg, void *comm)
{
    struct nccl_reg_comm *found;

    pthread_mutex_lock(&reg->lock);
    found = comm_find(reg, comm);
    if (found && comm_is_closed(found))
        atomic_fetch_sub(&found->calls, CALLS_CLOSED);
    pthread_mutex_unlock(&reg->lock);
}

bool nccl_reg_comm_is_open(const struct nccl_reg *reg, void *comm)
{
    const struct nccl_reg_comm *found = comm_find(reg, comm);

    return found && !comm_is_closed(found);
}

int nccl_reg_comm_ask(struct nccl_reg *reg, void *comm)
{
    struct nccl_reg_comm *found = reg_comm_take(reg, comm);
    int rc = -EPIPE;

    if (found) {
        rc = reg_ask(reg, found, comm);
        reg_turn_give(reg, found);
    }
    return rc;
}

int nccl_reg_comm_gone(struct nccl_reg *reg, void *comm)
{
    struct nccl_reg_comm *found;
    bool finalized;

    /* With the lock held, no communicator is added at its address. */
    pthread_mutex_lock(&reg->lock);
    found = comm_find(reg, comm);
    finalized = found && atomic_load(&found->finalized);
    if (found && (!comm_is_closed(found) || !atomic_compare_exchange_strong(&found->key, &comm, NULL)))
        found = NULL;
    pthread_mutex_unlock(&reg->lock);
    if (!found)
        return -ENOENT;
    /* Clear the entry, unless another thread holds the turn; its holder then clears it. */
    if (!pthread_mutex_trylock(&found->turn))
        reg_turn_give(reg, found);
    return finalized ? -EALREADY : 0;
}

int nccl_reg_user_add(struct nccl_reg *reg, void *comm, void *handle, uint64_t addr, size_t size)
{
    struct nccl_reg_comm *found = reg_comm_take(reg, comm);
    int rc;

    if (!found)
        return -ENOENT;
    rc = reg_reserve((void **)&found->users_own, found->user_count, &found->user_room, sizeof(*found->users_own));
    if (!rc)
        found->users_own[found->user_count++] = (struct user){.handle = handle, .addr = addr, .size = size};
    reg_turn_give(reg, found);
    return rc;
}

int nccl_reg_user_remove(struct nccl_reg *reg, void *comm, void *handle)
{
    struct nccl_reg_comm *found = reg_comm_take(reg, comm);
    int rc = -ENOENT;

    if (!found)
        return rc;
    for (size_t i = 0; rc && i < found->user_count; i++)
        if (found->users_own[i].handle == handle) {
            found->users_own[i] = found->users_own[--found->user_count];
            rc = 0;
        }
    reg_turn_give(reg, found);
    return rc;
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
        while (comm->record_count)
            reg_record_delete(comm, &comm->records[comm->record_count - 1]);
        pthread_mutex_destroy(&comm->turn);
        free(comm->records);
        near_free(&comm->near);
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
        sum.ops += atomic_load(&comm->ops); /* of all communicators that have used this entry */
        if (pthread_mutex_trylock(&comm->turn))
            continue;
        counters_add(&sum, &comm->counters);
        /* Clearing takes the lock. */
        if (locked)
            reg_turn_give(reg, comm);
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
