/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comm_lifetime.c - communicators come, are closed, and go; the registrations that the program itself makes. See
 * nccl_reg.h.
 *
 * Locking: see nccl_reg_state.h; no caller holds a lock.
 */
#include <errno.h>

#include "clock_and_arrays.h"
#include "comm_records.h"
#include "entries.h"
#include "groups.h"
#include "registrations.h"

/* The longest time, in nanoseconds, that the end of a communicator waits for a call of another thread: most take
 * microseconds, but one may be stuck. */
#define CALL_WAIT_NS 1000000000
/* The longest wait for the device, in milliseconds, at the end of a communicator. */
#define END_WAIT_MS 1000u

/* Wait for calls under way as long as one of these bits is set. The caller holds no communicator's lock. */
static void calls_wait(const atomic_uint *calls, unsigned int bits)
{
    const uint64_t limit = reg_now_ns() + CALL_WAIT_NS;

    while (atomic_load(calls) & bits && reg_now_ns() < limit)
        reg_nap();
}

int nccl_reg_comm_add(struct nccl_reg *reg, void *comm, const struct nccl_reg_comm_info *info)
{
    struct nccl_reg_comm *made = NULL;
    int rc = 0;

    pthread_mutex_lock(&reg->lock);
    if (!comm_find(reg, comm)) {
        made = reg_comm_new(reg, bucket_of(comm));
        if (made) {
            made->info = *info;
            atomic_store(&made->device, info->device);
            atomic_store(&made->seen, 0);
            atomic_store(&made->calls, 0);
            atomic_store(&made->finalized, false);
            made->rests = 0;
            work_goes_on(made);
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

bool nccl_reg_comm_any(const struct nccl_reg *reg)
{
    return atomic_load(&reg->all) != NULL;
}

void nccl_reg_comm_nonblocking(struct nccl_reg *reg, void *comm)
{
    struct nccl_reg_comm *found = comm_find(reg, comm);

    if (found) {
        atomic_store(&found->nonblocking, true);
        work_goes_on(found);
    }
}

unsigned int nccl_reg_poll_begin(const struct nccl_reg *reg, void *comm)
{
    const struct nccl_reg_comm *found = comm_find(reg, comm);

    return found ? atomic_load(&found->work) : 0;
}

void nccl_reg_poll_end(struct nccl_reg *reg, void *comm, unsigned int begun, int state)
{
    struct nccl_reg_comm *found = comm_find(reg, comm);

    if (found)
        work_seen(found, begun, state);
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
    pthread_mutex_lock(&found->lock);
    if (atomic_load(&found->key) == comm) {
        rc = comm_detach_all(reg, found, comm);
        if (!rc && stays) {
            atomic_store(&found->finalized, true);
            atomic_fetch_add(&found->calls, CALLS_CLOSED);
        } else if (!rc) { /* unless another thread has closed the communicator meanwhile */
            atomic_compare_exchange_strong(&found->key, &comm, NULL);
        }
    }
    reg_comm_give(reg, found);
    return rc;
}

int nccl_reg_comm_remove(struct nccl_reg *reg, void *comm, bool may_call)
{
    if (may_call)
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

    /* With the registry's lock held, the entry is not reused for another communicator. */
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
    bool undone = false;

    pthread_mutex_lock(&reg->lock);
    found = comm_find(reg, comm);
    if (found && comm_is_closed(found)) {
        undone = atomic_load(&found->finalized) && atomic_load(&found->calls) / CALLS_CLOSED == 1;
        if (!undone)
            atomic_fetch_sub(&found->calls, CALLS_CLOSED);
    }
    pthread_mutex_unlock(&reg->lock);
    if (undone)
        nccl_reg_comm_gone(reg, comm);
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
        reg_comm_give(reg, found);
    }
    return rc;
}

int nccl_reg_comm_gone(struct nccl_reg *reg, void *comm)
{
    struct nccl_reg_comm *found;
    bool finalized;

    /* With the registry's lock held, no communicator is added at its address. */
    pthread_mutex_lock(&reg->lock);
    found = comm_find(reg, comm);
    finalized = found && atomic_load(&found->finalized);
    if (found && (!comm_is_closed(found) || !atomic_compare_exchange_strong(&found->key, &comm, NULL)))
        found = NULL;
    pthread_mutex_unlock(&reg->lock);
    if (!found)
        return -ENOENT;
    /* Clear the entry, unless another thread holds the communicator's lock; its holder then clears it. */
    if (!pthread_mutex_trylock(&found->lock))
        reg_comm_give(reg, found);
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
    reg_comm_give(reg, found);
    return rc;
}

/* With the communicator's lock: the program's registration of this handle; NULL: none. */
static struct user *user_find(const struct nccl_reg_comm *comm, const void *handle)
{
    for (size_t i = 0; i < comm->user_count; i++)
        if (comm->users_own[i].handle == handle)
            return &comm->users_own[i];
    return NULL;
}

int nccl_reg_user_remove(struct nccl_reg *reg, void *comm, void *handle)
{
    struct nccl_reg_comm *found = reg_comm_take(reg, comm);
    struct user *user;

    if (!found)
        return -ENOENT;
    user = user_find(found, handle);
    if (user)
        *user = found->users_own[--found->user_count];
    reg_comm_give(reg, found);
    return user ? 0 : -ENOENT;
}

bool nccl_reg_user_known(struct nccl_reg *reg, void *comm, void *handle)
{
    struct nccl_reg_comm *found = reg_comm_take(reg, comm);
    bool known;

    if (!found)
        return false;
    known = user_find(found, handle) != NULL;
    reg_comm_give(reg, found);
    return known;
}
