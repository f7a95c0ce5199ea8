/* SPDX-License-Identifier: Apache-2.0 */
/*
 * segment_release.c - how segments go once no communicator has them registered, and how they are lost. See nccl_reg.h.
 * How they come is in segment_table.c.
 *
 * Locking: see nccl_reg_state.h. A thread that releases a segment claims it and takes the locks of all communicators of
 * its device.
 */
#include <errno.h>

#include "comm_records.h"
#include "entries.h"
#include "groups.h"
#include "registrations.h"
#include "segment_table.h"

/* --- how they go --- */

/* With its lock: true if this communicator permits the release of the segment now. */
static bool comm_permits(const struct nccl_reg_comm *comm, const struct segment *segment)
{
    const struct record *record = reg_record_at(comm, segment->addr);

    if (atomic_load(&comm->users) || (record && record->pinned && !segment->own) ||
        reg_user_holds(comm, segment->addr, segment->size))
        return false;
    if (comm_is_closed(comm))
        return !record || !record->handle;
    /* This thread may be any, and must not ask. */
    return !atomic_load(&comm->nonblocking) || atomic_load(&comm->work) & WORK_IDLE;
}

static void comms_give(struct nccl_reg *reg, struct nccl_reg_comm *held)
{
    struct nccl_reg_comm *next;

    for (; held; held = next) {
        next = held->next_held;
        reg_comm_give(reg, held);
    }
}

/*
 * Take the locks of all communicators of the segment's device, because communicators that share connections with one
 * that has the segment registered must be at rest, too. False: a communicator does not permit the release, and no lock
 * is taken.
 */
static bool comms_take(struct nccl_reg *reg, const struct segment *segment, struct nccl_reg_comm **ret_held)
{
    struct nccl_reg_comm *held = NULL;
    void *key;

    for (struct nccl_reg_comm *comm = atomic_load(&reg->all); comm; comm = comm->next_all) {
        /* Other devices' communicators have not registered this memory, and their threads may be at work with them. */
        if (atomic_load(&comm->device) != segment->device)
            continue;
        if (pthread_mutex_trylock(&comm->lock)) {
            /* A communicator that was closed while a thread was in it has no key, and no call is made on it any
             * more. */
            if (!atomic_load(&comm->key))
                continue;
            comms_give(reg, held);
            return false;
        }
        key = atomic_load(&comm->key);
        if (key && comm_permits(comm, segment)) {
            comm->next_held = held;
            held = comm;
            continue;
        }
        reg_comm_give(reg, comm);
        if (key && atomic_load(&comm->key) == key) {
            comms_give(reg, held);
            return false;
        }
    }
    *ret_held = held;
    return true;
}

/* With all of their locks: deregister the segment from one communicator. False: that was closed meanwhile. */
static bool comm_release(struct nccl_reg *reg, struct nccl_reg_comm *comm, const struct segment *segment)
{
    void *key = atomic_load(&comm->key);
    struct record *record = key ? reg_record_at(comm, segment->addr) : NULL;
    int rc;

    if (!record)
        return true;
    rc = reg_detach(reg, comm, key, record);
    /* A deregistration that failed is tried once more when the communicator goes. */
    if (!rc)
        reg_record_delete(comm, record);
    return rc != -EPIPE || !atomic_load(&comm->key);
}

/* Deregister a segment that this thread has claimed. False: impossible now. */
static bool segment_detach(struct nccl_reg *reg, const struct segment *segment)
{
    struct nccl_reg_comm *held = NULL;
    bool gone;

    if (reg_group())
        return false;
    atomic_fetch_add(&reg->detaching, 1);
    gone = comms_take(reg, segment, &held);
    for (struct nccl_reg_comm *comm = held; comm; comm = comm->next_held)
        gone &= comm_release(reg, comm, segment);
    comms_give(reg, held);
    atomic_fetch_sub(&reg->detaching, 1);
    return gone;
}

/* With the registry's lock: keep the segment's owner from going until owner_drop. */
static bool owner_hold(const struct nccl_reg *reg, const struct segment *segment)
{
    return !segment->owner || !reg->ops->hold || reg->ops->hold(segment->owner);
}

static void owner_drop(const struct nccl_reg *reg, const struct segment *segment)
{
    if (segment->owner && reg->ops->drop)
        reg->ops->drop(segment->owner);
}

/* Release the segment at addr, if it has to go and no other thread is releasing it. Returns the bytes released. */
static size_t segment_release(struct nccl_reg *reg, uint64_t addr)
{
    struct segment *segment, copy = {0};
    bool gone;

    pthread_mutex_lock(&reg->lock);
    segment = reg_segment_at(reg, addr);
    if (segment && segment->leaving && !segment->claimed && !segment->quarantined && owner_hold(reg, segment)) {
        segment->claimed = true;
        copy = *segment;
    }
    pthread_mutex_unlock(&reg->lock);
    if (!copy.claimed)
        return 0;

    gone = segment_detach(reg, &copy);
    pthread_mutex_lock(&reg->lock);
    segment = reg_segment_at(reg, addr); /* still there, but perhaps at another index */
    segment->claimed = false;
    gone = gone && !segment->quarantined;
    if (gone) {
        reg->parked -= copy.size;
        reg_segment_delete(reg, segment);
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
    int rc;

    pthread_mutex_lock(&reg->lock);
    segment = reg_segment_at(reg, addr);
    rc = !segment ? -ENOENT : segment->leaving ? -EALREADY : 0;
    if (!rc) {
        segment->leaving = true;
        segment->release = release;
        segment->release_arg = arg;
        *(segment->quarantined ? &reg->quarantined : &reg->parked) += segment->size;
    }
    pthread_mutex_unlock(&reg->lock);
    if (!rc)
        segment_release(reg, addr);
    return rc;
}

size_t nccl_reg_retry_parked(struct nccl_reg *reg, int device)
{
    uint64_t addr = 0;
    size_t released = 0;
    bool more;

    do {
        more = false;
        pthread_mutex_lock(&reg->lock);
        for (size_t i = reg->parked ? reg_segment_after(reg, addr) : reg->segment_count;
             i < reg->segment_count && !more; i++) {
            addr = reg->segments[i].addr;
            more = reg->segments[i].leaving && !reg->segments[i].quarantined &&
                   (device < 0 || device == reg->segments[i].device);
        }
        pthread_mutex_unlock(&reg->lock);
        if (more)
            released += segment_release(reg, addr);
    } while (more);
    return released;
}

/* --- how they are lost --- */

/* The longest wait for the device, in milliseconds, before an owner ends. */
#define OWNER_WAIT_MS 1000u

/* Claim the owner's next segment behind addr. False: there is none. */
static bool owner_claim(struct nccl_reg *reg, const void *owner, uint64_t addr, struct segment *ret_segment)
{
    bool found = false;

    pthread_mutex_lock(&reg->lock);
    for (size_t i = reg_segment_after(reg, addr); i < reg->segment_count && !found; i++) {
        struct segment *segment = &reg->segments[i];

        if (segment->owner != owner || segment->claimed || segment->quarantined)
            continue;
        segment->ending = segment->claimed = found = true;
        *ret_segment = *segment;
    }
    pthread_mutex_unlock(&reg->lock);
    return found;
}

void nccl_reg_owner_ends(struct nccl_reg *reg, const void *owner)
{
    struct segment segment = {.addr = 0};
    bool done = false, waited = false;

    while (owner_claim(reg, owner, segment.addr, &segment)) {
        const struct nccl_reg_comm_info info = {.device = segment.device};

        if (!waited)
            done = reg->ops->wait(&info, OWNER_WAIT_MS) == 0;
        waited = true;
        if (done)
            segment_detach(reg, &segment);
        pthread_mutex_lock(&reg->lock);
        reg_segment_at(reg, segment.addr)->claimed = false;
        pthread_mutex_unlock(&reg->lock);
    }
}

void nccl_reg_owner_stays(struct nccl_reg *reg, const void *owner)
{
    pthread_mutex_lock(&reg->lock);
    for (size_t i = 0; i < reg->segment_count; i++)
        if (reg->segments[i].owner == owner)
            reg->segments[i].ending = false;
    atomic_fetch_add(&reg->changes, 1);
    pthread_mutex_unlock(&reg->lock);
}

static void records_lose(struct nccl_reg *reg, uint64_t addr, int device)
{
    for (struct nccl_reg_comm *comm = atomic_load(&reg->all); comm; comm = comm->next_all) {
        const struct record *record;

        /* The records of an entry without a key are not used any more, and its lock must not be waited for, because its
         * call may be stuck; nor must the lock of another device's communicator, which may be held over a call for any
         * length of time. */
        if (!atomic_load(&comm->key) || atomic_load(&comm->device) != device)
            continue;
        pthread_mutex_lock(&comm->lock);
        record = reg_record_at(comm, addr);
        if (record)
            reg_record_delete(comm, record);
        reg_comm_give(reg, comm);
    }
}

/* Forget the segments that overlap this range: those of this owner, or (any) of any owner. Segments that a thread is
 * releasing are left alone. */
static void lose(struct nccl_reg *reg, uint64_t addr, uint64_t end, const void *owner, bool any)
{
    struct segment lost;

    do {
        lost.size = 0;
        pthread_mutex_lock(&reg->lock);
        for (size_t i = reg_segment_from(reg, addr); i < reg->segment_count && reg->segments[i].addr < end; i++) {
            const struct segment *segment = &reg->segments[i];

            if (segment->claimed || (any ? !segment->owner : segment->owner != owner))
                continue;
            lost = *segment;
            if (lost.leaving)
                *(lost.quarantined ? &reg->quarantined : &reg->parked) -= lost.size;
            reg_segment_delete(reg, segment);
            break;
        }
        pthread_mutex_unlock(&reg->lock);
        if (lost.size) {
            records_lose(reg, lost.addr, lost.device);
            /* An operation that has taken the old record for that of a new segment at this address compares again. */
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
