/* SPDX-License-Identifier: Apache-2.0 */
/*
 * registrations.c - see registrations.h.
 *
 * Locking: every function is called with the communicator's lock.
 */
#include "registrations.h"

#include <errno.h>
#include <stdlib.h>

#include "clock_and_arrays.h"
#include "comm_records.h"
#include "groups.h"
#include "lookup.h"
#include "segment_table.h"

/* The longest wait for the device, in milliseconds, of an operation. */
#define OP_WAIT_MS 5000u
/* For this time, in nanoseconds, no operation waits after one has waited in vain. */
#define OP_REST_NS 10000000000u

/* --- calls of the table --- */

/* False: the communicator was closed, and may be gone already. */
static bool call_begin(struct nccl_reg_comm *comm)
{
    unsigned int none = 0;

    return atomic_compare_exchange_strong(&comm->calls, &none, CALL_INSIDE);
}

static void call_end(struct nccl_reg_comm *comm)
{
    atomic_fetch_and(&comm->calls, ~CALL_INSIDE);
}

/* NULL: NCCL refused, or the communicator was closed. */
static void *attach(struct nccl_reg *reg, struct nccl_reg_comm *comm, void *key, uint64_t addr, size_t size)
{
    void *handle = NULL;

    if (!call_begin(comm))
        return NULL;
    lookup_clear(&comm->lookup);
    if (reg->ops->attach(&comm->info, key, addr, size, &handle)) {
        comm->counters.failed++;
        handle = NULL;
    }
    call_end(comm);
    comm->counters.attached += handle != NULL;
    return handle;
}

/* 0, -EIO, or -EPIPE: the communicator was closed. */
static int detach_one(struct nccl_reg *reg, struct nccl_reg_comm *comm, void *key, uint64_t addr, size_t size,
                      void **handle)
{
    int rc;

    if (!*handle)
        return 0;
    if (!call_begin(comm))
        return -EPIPE;
    lookup_clear(&comm->lookup);
    rc = reg->ops->detach(&comm->info, key, addr, size, *handle) ? -EIO : 0;
    call_end(comm);
    if (!rc)
        *handle = NULL;
    comm->counters.detached += !rc;
    comm->counters.failed += rc != 0;
    return rc;
}

/* The bytes of a record's front in its wide registration of this number. */
static size_t front_at(const struct record *record, unsigned int wide)
{
    return record->front / WIDES * wide;
}

int reg_detach(struct nccl_reg *reg, struct nccl_reg_comm *comm, void *key, struct record *record)
{
    int rc = 0;

    for (unsigned int i = record->wide ? record->widened : 0; i > 0 && !rc; i--)
        rc = detach_one(reg, comm, key, record->addr - front_at(record, i), front_at(record, i) + record->size,
                        &record->wide[i - 1]);
    if (!rc)
        rc = detach_one(reg, comm, key, record->addr, record->size, &record->handle);
    if (rc == -EIO) {
        record->pinned = true;
        reg_segment_quarantine(reg, record->addr);
    }
    return rc;
}

int reg_ask(const struct nccl_reg *reg, struct nccl_reg_comm *comm, void *key)
{
    const unsigned int then = atomic_load(&comm->work);
    int rc;

    if (!call_begin(comm))
        return -EPIPE;
    rc = reg->ops->ask(&comm->info, key);
    call_end(comm);
    work_seen(comm, then, rc);
    return rc;
}

bool reg_is_ready(const struct nccl_reg *reg, struct nccl_reg_comm *comm, void *key)
{
    if (!atomic_load_explicit(&comm->nonblocking, memory_order_relaxed))
        return !comm_is_closed(comm);
    return reg_ask(reg, comm, key) == 0;
}

/* --- the registrations that an operation needs --- */

/* Records, without handles, for the segments that the communicator lacks. Returns their number; *ret_changes: the
 * registry's changes at that moment. */
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
        if (segment->leaving || segment->ending || segment->device != comm->info.device ||
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

/* Register the missing segments. A segment without host memory for its record is tried again at the next change. */
static void catch_up(struct nccl_reg *reg, struct nccl_reg_comm *comm, void *key)
{
    struct record *missing;
    uint64_t changes;
    const size_t count = missing_get(reg, comm, &missing, &changes);

    for (size_t i = 0; i < count; i++) {
        if (reg_reserve((void **)&comm->records, comm->record_count, &comm->record_room, sizeof(*missing)))
            break;
        missing[i].handle = attach(reg, comm, key, missing[i].addr, missing[i].size);
        reg_record_insert(comm, &missing[i]);
    }
    free(missing);
    atomic_store_explicit(&comm->seen, changes, memory_order_relaxed);
}

/*
 * Register the segment once more, with one more part of the front or (whole) all of it. NCCL finds this registration
 * from now on, and no operation has used it. The earlier registration stays for the work that uses it, so nothing
 * waits. False: the front is used up, or NCCL refused.
 */
static bool widen(struct nccl_reg *reg, struct nccl_reg_comm *comm, void *key, struct record *record, bool whole)
{
    const unsigned int next = whole ? WIDES : record->widened + 1;

    if (!record->front || record->widened == WIDES || !reg_is_ready(reg, comm, key))
        return false;
    if (!record->wide)
        record->wide = calloc(WIDES, sizeof(*record->wide));
    if (!record->wide)
        return false;
    record->wide[next - 1] =
        attach(reg, comm, key, record->addr - front_at(record, next), front_at(record, next) + record->size);
    if (!record->wide[next - 1]) {
        record->widened = WIDES; /* do not try again */
        return false;
    }
    record->widened = next;
    reg_sent_clear(record);
    comm->counters.renewed++;
    return true;
}

/* Wait for the device before an operation. After a wait in vain no operation waits for a while, or the program would
 * stand still beside work that never ends. */
static bool device_is_done(const struct nccl_reg *reg, struct nccl_reg_comm *comm)
{
    const unsigned int ms = reg_now_ns() < comm->rests ? 0 : OP_WAIT_MS;
    const bool done = reg->ops->wait(&comm->info, ms) == 0;

    if (done)
        comm->rests = 0;
    else if (ms)
        comm->rests = reg_now_ns() + OP_REST_NS;
    return done;
}

/*
 * Replace a registration whose front is used up or missing. All work that has used it must have ended, because peers
 * write through it. The host waits only for a limited time, because that work may wait for work that this thread
 * launches next.
 */
static bool renew(struct nccl_reg *reg, struct nccl_reg_comm *comm, void *key, struct record *record, bool captured)
{
    if (captured || record->pinned || reg_user_holds(comm, record->addr, record->size) ||
        !reg_is_ready(reg, comm, key) || !device_is_done(reg, comm))
        return false;
    if (reg_detach(reg, comm, key, record))
        return false;
    record->handle = attach(reg, comm, key, record->addr, record->size);
    record->widened = 0;
    reg_sent_clear(record);
    comm->counters.renewed++;
    return true;
}

/* With a careful communicator: make the registration safe for op. False: it is not. */
static bool use_prepare(struct nccl_reg *reg, struct nccl_reg_comm *comm, void *key, struct record *record,
                        const struct nccl_reg_op *op)
{
    bool safe = true;

    /* For a graph NCCL itself registers the whole allocation, and without ours it would then take the buffer for
     * unregistered in other places. */
    if (op->captured && record->front && record->widened < WIDES)
        safe = widen(reg, comm, key, record, /* whole: */ true);
    if (!reg_kinds_matter(comm, record))
        return safe;
    if (op->kind == NCCL_REG_POINT_TO_POINT) {
        reg_sent_mark(comm, record);
        return safe;
    }
    /* At the end of a group NCCL runs its collectives first, in whatever order they were called. */
    if (!record->sent && (!record->group || record->group == reg_group()))
        return safe;
    return widen(reg, comm, key, record, /* whole: */ false) || renew(reg, comm, key, record, op->captured);
}

int reg_prepare(struct nccl_reg *reg, struct nccl_reg_comm *comm, void *key, const struct nccl_reg_op *op)
{
    unsigned int inside = 0, outside = 0;
    bool safe = true;

    if (atomic_load_explicit(&comm->seen, memory_order_relaxed) !=
            atomic_load_explicit(&reg->changes, memory_order_acquire) &&
        reg_is_ready(reg, comm, key))
        catch_up(reg, comm, key);
    for (unsigned int i = 0; i < NCCL_REG_BUFFERS; i++) {
        const uint64_t addr = op->buffers[i].addr;
        const size_t size = op->buffers[i].size;
        const uint64_t word = lookup_get(&comm->lookup, addr);
        struct record *record;

        if (!size)
            continue;
        if (LOOKUP_INDEX(word) < comm->record_count && holds(&comm->records[LOOKUP_INDEX(word)], addr, size))
            record = &comm->records[LOOKUP_INDEX(word)];
        else
            record = reg_record_of(comm, addr, size);
        /* Whatever NCCL has answered to our registration, for a graph it registers the memory by itself. */
        if (record)
            record->pinned |= op->captured;
        if (record && record->handle && comm->info.careful)
            safe &= use_prepare(reg, comm, key, record, op);
        if (!record || !record->handle) { /* NCCL may just have refused the registration */
            outside++;
            continue;
        }
        inside++;
        record->used = true;
        reg_lookup_enter(comm, addr, record);
    }
    comm->counters.ops += inside || outside;
    comm->counters.mixed += inside && outside;
    comm->counters.outside += !inside && outside;
    comm->counters.unsafe += !safe;
    return (inside && outside ? NCCL_REG_MIXED : 0) | (safe ? 0 : NCCL_REG_UNSAFE);
}
