/* SPDX-License-Identifier: Apache-2.0 */
/* nccl_fake.c - see nccl_fake.h. */
#include "nccl_fake.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "give_way.h"

struct nccl_fake nccl_fake;

/* With the lock, or where nobody else is about. */
static void say(const char *format, va_list args)
{
    if (!*nccl_fake.fault)
        vsnprintf(nccl_fake.fault, sizeof(nccl_fake.fault), format, args);
}

void nccl_fake_say(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    /* NOLINTNEXTLINE(clang-analyzer-valist.Uninitialized): clang-tidy 14 misses the va_start above. */
    say(format, args);
    va_end(args);
}

void nccl_fake_reset(void)
{
    memset(&nccl_fake, 0, sizeof(nccl_fake));
    pthread_mutex_init(&nccl_fake.lock, NULL);
}

void *nccl_fake_comm(unsigned int comm)
{
    return &nccl_fake.comms[comm];
}

void nccl_fake_comm_make(unsigned int comm, int device, bool ready)
{
    pthread_mutex_lock(&nccl_fake.lock);
    memset(nccl_fake.comms[comm].records, 0, nccl_fake.comms[comm].top * sizeof(struct fake_record));
    nccl_fake.comms[comm].top = 0;
    nccl_fake.comms[comm].alive = true;
    nccl_fake.comms[comm].device = device;
    atomic_store(&nccl_fake.comms[comm].ready, ready);
    pthread_mutex_unlock(&nccl_fake.lock);
}

static unsigned int records(const struct fake_comm *comm)
{
    unsigned int count = 0;

    for (unsigned int i = 0; i < comm->top; i++)
        count += comm->records[i].size != 0;
    return count;
}

unsigned int nccl_fake_records(unsigned int comm)
{
    unsigned int count;

    pthread_mutex_lock(&nccl_fake.lock);
    count = records(&nccl_fake.comms[comm]);
    pthread_mutex_unlock(&nccl_fake.lock);
    return count;
}

void nccl_fake_comm_destroy(unsigned int comm, bool aborted)
{
    struct fake_comm *gone = &nccl_fake.comms[comm];

    pthread_mutex_lock(&nccl_fake.lock);
    if (!aborted && records(gone))
        nccl_fake_say("%u registrations left at destroy", records(gone));
    memset(gone->records, 0, gone->top * sizeof(struct fake_record));
    gone->top = 0;
    gone->alive = false;
    pthread_mutex_unlock(&nccl_fake.lock);
}

/* As NCCL does: the one that begins first, of those that hold all of it. */
static struct fake_record *record_of(struct fake_comm *comm, uint64_t addr, size_t size)
{
    struct fake_record *found = NULL;

    for (unsigned int i = 0; i < comm->top; i++) {
        struct fake_record *record = &comm->records[i];

        if (record->size && addr >= record->addr && addr + size <= record->addr + record->size &&
            (!found || record->addr < found->addr))
            found = record;
    }
    return found;
}

/* A registration in front of another is one of its own; inside it, it would be the same once more. */
static bool clashes(const struct fake_record *record, uint64_t addr, size_t size)
{
    const uint64_t end = addr + size, old_end = record->addr + record->size;

    return addr < old_end && record->addr < end && !(addr < record->addr && end >= old_end);
}

static void enter(struct fake_comm *comm, const char *what)
{
    if (!comm->alive || !atomic_load(&comm->ready))
        nccl_fake_say("%s on a communicator that is %s", what, comm->alive ? "not ready" : "gone");
    if (atomic_fetch_add(&comm->inside, 1))
        nccl_fake_say("%s while another call is under way", what);
}

void nccl_fake_op(unsigned int number, const struct nccl_reg_op *op, unsigned int registered)
{
    struct fake_comm *comm = &nccl_fake.comms[number];
    unsigned int found = 0;

    pthread_mutex_lock(&nccl_fake.lock);
    enter(comm, "an operation");
    for (unsigned int i = 0; i < NCCL_REG_BUFFERS; i++) {
        struct fake_record *record =
            op->buffers[i].size ? record_of(comm, op->buffers[i].addr, op->buffers[i].size) : NULL;

        if (!record)
            continue;
        found++;
        if (nccl_fake.old && record->sent && op->kind == NCCL_REG_COLLECTIVE)
            nccl_fake_say("a collective after point-to-point on one registration: the job dies");
        record->sent |= op->kind == NCCL_REG_POINT_TO_POINT;
        record->busy = true;
    }
    if (found < registered)
        nccl_fake_say("%u of %u buffers were registered", found, registered);
    pthread_mutex_unlock(&nccl_fake.lock);
    give_way_at_times();
    atomic_fetch_sub(&comm->inside, 1);
}

void nccl_fake_finish(void)
{
    pthread_mutex_lock(&nccl_fake.lock);
    for (unsigned int i = 0; i < FAKE_COMMS; i++)
        for (unsigned int j = 0; j < nccl_fake.comms[i].top; j++)
            nccl_fake.comms[i].records[j].busy = false;
    pthread_mutex_unlock(&nccl_fake.lock);
}

/* With the lock: does this one fail? */
static bool fails(void)
{
    const unsigned int rate = atomic_load(&nccl_fake.fail_per_mille);

    nccl_fake.rng = nccl_fake.rng * 6364136223846793005u + 1442695040888963407u;
    return rate && (nccl_fake.rng >> 33) % 1000 < rate;
}

/* Without the lock: where a test wants it, the call does not return before it says so. */
static void stick(void *key)
{
    if (atomic_load(&nccl_fake.stuck_in) != key)
        return;
    atomic_store(&nccl_fake.stuck_in, NULL);
    atomic_store(&nccl_fake.stuck, true);
    while (atomic_load(&nccl_fake.stuck))
        give_way();
}

static int fake_attach(const struct nccl_reg_comm_info *info, void *key, uint64_t addr, size_t size, void **ret_handle)
{
    struct fake_comm *comm = key;
    struct fake_record *record = NULL;
    int rc = 0;

    pthread_mutex_lock(&nccl_fake.lock);
    enter(comm, "a registration");
    if (info->arg != &nccl_fake || info->device != comm->device)
        nccl_fake_say("a registration with another communicator's argument");
    nccl_fake.attaches++;
    for (unsigned int i = 0; i < comm->top; i++) {
        if (!comm->records[i].size)
            record = &comm->records[i];
        else if (clashes(&comm->records[i], addr, size))
            nccl_fake_say("%#llx is registered already", (unsigned long long)addr);
    }
    if (!record && comm->top < FAKE_RECORDS)
        record = &comm->records[comm->top++];
    *ret_handle = NULL;
    if (fails()) {
        rc = -EIO;
    } else if (fails()) {
        record = NULL;
    } else if (nccl_fake.attach_fails && !--nccl_fake.attach_fails) {
        *ret_handle = &nccl_fake; /* an answer that comes with an error is none */
        rc = -EIO;
    } else if (nccl_fake.attach_null && !--nccl_fake.attach_null) {
        rc = 0;
    } else if (record) {
        *record = (struct fake_record){.addr = addr, .size = size};
        *ret_handle = record;
    }
    nccl_fake.made += !rc && *ret_handle;
    nccl_fake.failed += rc != 0;
    pthread_mutex_unlock(&nccl_fake.lock);
    stick(key);
    give_way_at_times();
    atomic_fetch_sub(&comm->inside, 1);
    return rc;
}

static int fake_detach(const struct nccl_reg_comm_info *info, void *key, uint64_t addr, size_t size, void *handle)
{
    struct fake_comm *comm = key;
    struct fake_record *record = handle;
    int rc = 0;

    pthread_mutex_lock(&nccl_fake.lock);
    enter(comm, "a deregistration");
    nccl_fake.detaches++;
    if (info->arg != &nccl_fake || record < comm->records || record >= comm->records + FAKE_RECORDS ||
        record->addr != addr || record->size != size)
        nccl_fake_say("a deregistration of what is not registered");
    else if (record->busy)
        nccl_fake_say("a deregistration under work that uses it");
    else if ((nccl_fake.detach_fails && !--nccl_fake.detach_fails) || fails())
        rc = -EIO;
    else
        record->size = 0;
    nccl_fake.undone += !rc;
    nccl_fake.failed += rc != 0;
    pthread_mutex_unlock(&nccl_fake.lock);
    stick(key);
    give_way_at_times();
    atomic_fetch_sub(&comm->inside, 1);
    return rc;
}

static int fake_ask(const struct nccl_reg_comm_info *info, void *key)
{
    struct fake_comm *comm = key;
    bool ready;

    pthread_mutex_lock(&nccl_fake.lock);
    if (!comm->alive)
        nccl_fake_say("a question to a communicator that is gone");
    ready = atomic_load(&comm->ready) && !fails();
    pthread_mutex_unlock(&nccl_fake.lock);
    stick(key);
    pthread_mutex_lock(&nccl_fake.lock);
    if (!comm->alive)
        nccl_fake_say("a communicator that goes under a question");
    pthread_mutex_unlock(&nccl_fake.lock);
    return ready ? 0 : -EINPROGRESS;
}

static int fake_wait(const struct nccl_reg_comm_info *info, unsigned int ms)
{
    int rc = atomic_load(&nccl_fake.wait_rc);

    pthread_mutex_lock(&nccl_fake.lock);
    nccl_fake.waits++;
    nccl_fake.waited_ms += ms;
    if (fails())
        rc = -EBUSY;
    for (unsigned int i = 0; !rc && i < FAKE_COMMS; i++)
        for (unsigned int j = 0; nccl_fake.comms[i].device == info->device && j < nccl_fake.comms[i].top; j++)
            if (ms)
                nccl_fake.comms[i].records[j].busy = false;
            else if (nccl_fake.comms[i].records[j].busy)
                rc = -EBUSY;
    pthread_mutex_unlock(&nccl_fake.lock);
    return rc;
}

void nccl_fake_forget(uint64_t addr, size_t size)
{
    pthread_mutex_lock(&nccl_fake.lock);
    for (unsigned int i = 0; i < FAKE_COMMS; i++)
        for (unsigned int j = 0; j < nccl_fake.comms[i].top; j++) {
            struct fake_record *record = &nccl_fake.comms[i].records[j];

            if (record->size && addr < record->addr + record->size && record->addr < addr + size)
                record->size = 0;
        }
    pthread_mutex_unlock(&nccl_fake.lock);
}

int nccl_fake_segment_add(struct nccl_reg *reg, uint64_t addr, size_t size, int device)
{
    const struct nccl_reg_segment_info info = {.addr = addr,
                                               .size = size,
                                               .front = nccl_fake.front,
                                               .device = device,
                                               .own = nccl_fake.own,
                                               .owner = nccl_fake.owner};

    return nccl_reg_segment_add(reg, &info);
}

void nccl_fake_release(void *arg, uint64_t addr, size_t size)
{
    unsigned int *count = arg;

    pthread_mutex_lock(&nccl_fake.lock);
    for (unsigned int i = 0; i < FAKE_COMMS; i++)
        for (unsigned int j = 0; nccl_fake.comms[i].alive && j < nccl_fake.comms[i].top; j++) {
            const struct fake_record *record = &nccl_fake.comms[i].records[j];

            if (record->size && addr < record->addr + record->size && record->addr < addr + size)
                nccl_fake_say("%#llx was given back while it was registered", (unsigned long long)addr);
        }
    if (nccl_fake.owner && atomic_load(&nccl_fake.held) < 1)
        nccl_fake_say("%#llx is given back without its owner", (unsigned long long)addr);
    nccl_fake.releases++;
    nccl_fake.released_bytes += size;
    if (count)
        ++*count;
    pthread_mutex_unlock(&nccl_fake.lock);
}

static bool fake_hold(void *owner)
{
    if (owner == atomic_load(&nccl_fake.going))
        return false;
    atomic_fetch_add(&nccl_fake.held, 1);
    return true;
}

static void fake_drop(void *owner)
{
    if (!owner || atomic_fetch_sub(&nccl_fake.held, 1) < 1)
        nccl_fake_say("an owner is dropped that nobody holds");
}

const struct nccl_reg_ops nccl_fake_ops = {.attach = fake_attach,
                                           .detach = fake_detach,
                                           .ask = fake_ask,
                                           .wait = fake_wait,
                                           .hold = fake_hold,
                                           .drop = fake_drop};
