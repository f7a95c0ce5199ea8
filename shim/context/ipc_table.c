/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ipc_table.c - see ipc_table.h.
 *
 * Locking: table.lock guards everything, and is a leaf: it is held over no call but malloc, free, and the system's
 * copying of a descriptor. The last close of one gives up GPU memory, for which an importer's open would wait.
 */
#include "context/ipc_table.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/descriptor.h"
#include "base/ipc_socket.h"
#include "hash.h"

#define BUCKETS    4096u /* a power of two */
#define ADDR_SHIFT 52    /* leaves as many bits of a hash: its lower ones are 0 for most blocks */
/* The most grants of a block to one holder, far below what would overflow their sum. */
#define HOLDS_MAX 4096u

/* A segment in the books. */
struct shared {
    struct ipc_segment as;
    struct ipc_descriptor descriptor; /* as.fd, which the program may close */
    struct ipc_name name;
    unsigned int blocks;
    struct shared *next;
    struct shared *next_leaving; /* in struct leaving */
};

struct block {
    uint64_t addr;
    size_t size;
    struct ipc_name name;
    const struct context *owner;
    struct shared *segment;
    unsigned int holds;          /* by all holders */
    struct ipc_hold *first_hold; /* one for each holder */
    bool parked, gone;           /* gone: it has left the books, and only holders still know it */
    struct block *next_addr, *next_name;
};

/* The grants of a block to one holder. */
struct ipc_hold {
    struct block *block;
    const struct ipc_holder *holder;
    unsigned int count;
    struct ipc_hold *next, **at; /* in the holder's list; at: the pointer to this one */
    struct ipc_hold *next_of_block;
};

/* Taken off the books under the lock, by one thread, which gives it back without the lock. */
struct leaving {
    struct shared *segments;
    unsigned int blocks;
};

/* A block counts until the descriptor of its segment is closed: a pause looks here whether memory is exported. */
atomic_uint ipc_table_blocks;

static struct {
    pthread_mutex_t lock; /* guards everything below, and all holders */
    struct block *by_addr[BUCKETS], *by_name[BUCKETS];
    struct shared *segments;
    struct shared *leaving; /* that threads are about to give back; a forked child has their descriptors, too */
    unsigned int released;  /* parked blocks without a holder */
} table = {.lock = PTHREAD_MUTEX_INITIALIZER};

_Static_assert(BUCKETS == UINT64_C(1) << (64 - ADDR_SHIFT), "every bucket is used");

static struct block **addr_bucket(uint64_t addr)
{
    return &table.by_addr[hash_of(addr) >> ADDR_SHIFT];
}

static struct block **name_bucket(const struct ipc_name *name)
{
    return &table.by_name[ipc_name_hash(name) % BUCKETS];
}

static struct block *block_at(uint64_t addr)
{
    struct block *block = *addr_bucket(addr);

    while (block && block->addr != addr)
        block = block->next_addr;
    return block;
}

static struct block *block_named(const struct ipc_name *name)
{
    struct block *block = *name_bucket(name);

    while (block && !ipc_name_equal(&block->name, name))
        block = block->next_name;
    return block;
}

static struct shared *segment_at(uint64_t addr)
{
    struct shared *segment = table.segments;

    while (segment && segment->as.addr != addr)
        segment = segment->next;
    return segment;
}

static void segment_unlink(struct shared **at, const struct shared *segment)
{
    while (*at != segment)
        at = &(*at)->next;
    *at = segment->next;
}

static void segment_drop(struct shared *segment, struct leaving *leaving)
{
    if (--segment->blocks)
        return;
    segment_unlink(&table.segments, segment);
    segment->next = table.leaving;
    table.leaving = segment;
    segment->next_leaving = leaving->segments;
    leaving->segments = segment;
}

/* Without the lock. */
static void leaving_end(const struct leaving *leaving)
{
    for (struct shared *segment = leaving->segments, *next; segment; segment = next) {
        next = segment->next_leaving;
        ipc_leave(&segment->descriptor);
        pthread_mutex_lock(&table.lock);
        segment_unlink(&table.leaving, segment);
        pthread_mutex_unlock(&table.lock);
        free(segment);
    }
    if (leaving->blocks)
        atomic_fetch_sub(&ipc_table_blocks, leaving->blocks);
}

/* The block leaves the books. Its holders, if any, keep what they need to take their grants back. */
static void block_remove(struct block *block, struct leaving *leaving)
{
    struct block **at = addr_bucket(block->addr);

    while (*at != block)
        at = &(*at)->next_addr;
    *at = block->next_addr;
    at = name_bucket(&block->name);
    while (*at != block)
        at = &(*at)->next_name;
    *at = block->next_name;
    segment_drop(block->segment, leaving);
    table.released -= block->parked && !block->holds;
    leaving->blocks++;
    block->gone = true;
    if (!block->holds)
        free(block);
}

bool ipc_table_name(uint64_t addr, struct ipc_name *ret_block)
{
    const struct block *block;
    bool found;

    pthread_mutex_lock(&table.lock);
    block = block_at(addr);
    found = block && !block->parked;
    if (found)
        *ret_block = block->name;
    pthread_mutex_unlock(&table.lock);
    return found;
}

bool ipc_table_has_segment(uint64_t segment)
{
    bool has;

    pthread_mutex_lock(&table.lock);
    has = segment_at(segment) != NULL;
    pthread_mutex_unlock(&table.lock);
    return has;
}

/* The segment in the books, entered if it is missing and described; then its descriptor is taken over, and *spare is
 * -1. NULL: it is not, or there is no host memory. */
static struct shared *segment_enter(const struct ipc_segment *as, int *spare)
{
    struct shared *segment = segment_at(as->addr);

    if (segment || !as->size || !(segment = calloc(1, sizeof(*segment))))
        return segment;
    segment->as = *as;
    *spare = -1;
    ipc_keep(as->fd, &segment->descriptor);
    ipc_name_make(&segment->name);
    segment->next = table.segments;
    table.segments = segment;
    return segment;
}

static struct block *block_enter(const struct context *owner, uint64_t addr, size_t size, struct shared *segment,
                                 struct leaving *leaving)
{
    struct block *block = calloc(1, sizeof(*block)), **at;

    segment->blocks++;
    if (!block) {
        segment_drop(segment, leaving);
        return NULL;
    }
    *block = (struct block){.addr = addr, .size = size, .owner = owner, .segment = segment};
    ipc_name_make(&block->name);
    at = addr_bucket(addr);
    block->next_addr = *at;
    *at = block;
    at = name_bucket(&block->name);
    block->next_name = *at;
    *at = block;
    atomic_fetch_add(&ipc_table_blocks, 1);
    return block;
}

int ipc_table_add(const struct context *owner, uint64_t addr, size_t size, const struct ipc_segment *segment,
                  struct ipc_name *ret_block)
{
    struct leaving leaving = {0};
    struct shared *shared = NULL;
    int rc = 0, spare = segment->fd;
    struct block *block;
    bool full;

    pthread_mutex_lock(&table.lock);
    block = block_at(addr);
    full = atomic_load(&ipc_table_blocks) >= IPC_BLOCKS_MAX;
    if (block && block->parked)
        rc = -EBUSY;
    if (!block && !full) {
        shared = segment_enter(segment, &spare);
        block = shared ? block_enter(owner, addr, size, shared, &leaving) : NULL;
    }
    if (block)
        *ret_block = block->name;
    else
        rc = !full && !shared && !segment->size ? -EAGAIN : -ENOMEM;
    pthread_mutex_unlock(&table.lock);
    if (spare >= 0)
        file_drop(spare);
    leaving_end(&leaving);
    return rc;
}

enum ipc_free ipc_table_free(uint64_t addr)
{
    enum ipc_free answer = IPC_FREE_NOW;
    struct leaving leaving = {0};
    struct block *block;

    pthread_mutex_lock(&table.lock);
    block = block_at(addr);
    if (block && block->parked) {
        answer = IPC_FREE_AGAIN;
    } else if (block && block->holds) {
        block->parked = true;
        answer = IPC_FREE_PARKED;
    } else if (block) {
        block_remove(block, &leaving);
    }
    pthread_mutex_unlock(&table.lock);
    leaving_end(&leaving);
    return answer;
}

bool ipc_table_parked(uint64_t addr)
{
    const struct block *block;
    bool parked;

    pthread_mutex_lock(&table.lock);
    block = block_at(addr);
    parked = block && block->parked;
    pthread_mutex_unlock(&table.lock);
    return parked;
}

bool ipc_table_released(uint64_t *ret_addr)
{
    bool found = false;

    pthread_mutex_lock(&table.lock);
    for (unsigned int i = 0; table.released && i < BUCKETS && !found; i++)
        for (const struct block *block = table.by_addr[i]; block && !found; block = block->next_addr) {
            found = block->parked && !block->holds;
            *ret_addr = found ? block->addr : 0;
        }
    pthread_mutex_unlock(&table.lock);
    return found;
}

bool ipc_table_take(uint64_t addr)
{
    struct leaving leaving = {0};
    struct block *block;
    bool taken;

    pthread_mutex_lock(&table.lock);
    block = block_at(addr);
    taken = block && block->parked && !block->holds;
    if (taken)
        block_remove(block, &leaving);
    pthread_mutex_unlock(&table.lock);
    leaving_end(&leaving);
    return taken;
}

/* This holder's hold of a block, made if it is missing and `make`. NULL: none, or no host memory. */
static struct ipc_hold *hold_of(struct ipc_holder *holder, struct block *block, bool make)
{
    struct ipc_hold *hold = block->first_hold;

    while (hold && hold->holder != holder)
        hold = hold->next_of_block;
    if (hold || !make)
        return hold;
    hold = malloc(sizeof(*hold));
    if (!hold)
        return NULL;
    *hold = (struct ipc_hold){.block = block,
                              .holder = holder,
                              .next = holder->first,
                              .at = &holder->first,
                              .next_of_block = block->first_hold};
    if (hold->next)
        hold->next->at = &hold->next;
    holder->first = block->first_hold = hold;
    return hold;
}

/* Grant a block. IPC_FULL: no host memory, no descriptor, or it has been granted too often. */
static enum ipc_status grant(struct ipc_holder *holder, struct block *block, struct ipc_grant *grant, int *ret_fd)
{
    const struct ipc_segment *segment = &block->segment->as;
    const bool has = segment->how == IPC_DESCRIPTOR && ipc_is_open(&block->segment->descriptor);
    const int fd = has ? fcntl(segment->fd, F_DUPFD_CLOEXEC, 0) : -1;
    struct ipc_hold *hold = segment->how == IPC_DESCRIPTOR && fd < 0 ? NULL : hold_of(holder, block, /* make: */ true);

    if (!hold || hold->count == HOLDS_MAX) {
        if (fd >= 0)
            file_drop(fd);
        return IPC_FULL;
    }
    hold->count++;
    block->holds++;
    grant->how = segment->how;
    grant->segment = block->segment->name;
    grant->segment_size = segment->front + segment->size;
    grant->offset = segment->front + (block->addr - segment->addr);
    grant->size = block->size;
    memcpy(grant->card, segment->card, sizeof(grant->card));
    memcpy(grant->handle, segment->handle, sizeof(grant->handle));
    *ret_fd = fd;
    return IPC_GRANTED;
}

void ipc_table_grant(struct ipc_holder *holder, const struct ipc_request *request, struct ipc_grant *ret_grant,
                     int *ret_fd)
{
    struct block *block;

    *ret_fd = -1;
    ipc_grant_begin(ret_grant, request->number, IPC_GONE);
    pthread_mutex_lock(&table.lock);
    block = block_named(&request->block);
    if (block && !block->parked)
        ret_grant->status = grant(holder, block, ret_grant, ret_fd);
    pthread_mutex_unlock(&table.lock);
}

/* Take back so many of a hold's grants; with the lock. */
static void hold_less(struct ipc_hold *hold, unsigned int count)
{
    struct block *block = hold->block;
    struct ipc_hold **at = &block->first_hold;

    hold->count -= count;
    block->holds -= count;
    if (!hold->count) {
        while (*at != hold)
            at = &(*at)->next_of_block;
        *at = hold->next_of_block;
        *hold->at = hold->next;
        if (hold->next)
            hold->next->at = hold->at;
        free(hold);
    }
    if (block->holds)
        return;
    if (block->gone)
        free(block);
    else
        table.released += block->parked;
}

bool ipc_table_close(struct ipc_holder *holder, const struct ipc_name *name)
{
    struct ipc_hold *hold;
    struct block *block;

    pthread_mutex_lock(&table.lock);
    block = block_named(name);
    hold = block ? hold_of(holder, block, /* make: */ false) : holder->first;
    while (!block && hold && !ipc_name_equal(&hold->block->name, name)) /* one that is gone */
        hold = hold->next;
    if (hold)
        hold_less(hold, 1);
    pthread_mutex_unlock(&table.lock);
    return hold != NULL;
}

void ipc_table_end(struct ipc_holder *holder)
{
    pthread_mutex_lock(&table.lock);
    for (struct ipc_hold *hold = holder->first, *next; hold; hold = next) {
        next = hold->next;
        hold_less(hold, hold->count);
    }
    pthread_mutex_unlock(&table.lock);
}

/* Remove the blocks of a context (NULL: of any) and segment (0: any). */
static void remove_those_of(const struct context *owner, uint64_t segment)
{
    struct leaving leaving = {0};

    if (!ipc_table_any())
        return;
    pthread_mutex_lock(&table.lock);
    for (unsigned int i = 0; i < BUCKETS; i++) {
        for (struct block *block = table.by_addr[i], *next; block; block = next) {
            next = block->next_addr;
            if ((!owner || block->owner == owner) && (!segment || block->segment->as.addr == segment))
                block_remove(block, &leaving);
        }
    }
    pthread_mutex_unlock(&table.lock);
    leaving_end(&leaving);
}

void ipc_table_context_gone(const struct context *owner)
{
    remove_those_of(owner, 0);
}

void ipc_table_segment_gone(uint64_t segment)
{
    remove_those_of(NULL, segment);
}

void ipc_table_forget(void)
{
    /* Another thread of the parent may have held the lock. The blocks in the books are the parent's. */
    pthread_mutex_init(&table.lock, NULL);
    for (int i = 0; i < 2; i++)
        for (struct shared *segment = i ? table.leaving : table.segments; segment; segment = segment->next)
            ipc_leave(&segment->descriptor);
    table.segments = table.leaving = NULL;
    memset(table.by_addr, 0, sizeof(table.by_addr));
    memset(table.by_name, 0, sizeof(table.by_name));
    table.released = 0;
    atomic_store(&ipc_table_blocks, 0);
}

void ipc_table_count(bool (*is_left_out)(const struct context *owner, int device), int device,
                     struct ipc_table_counts *ret_counts)
{
    unsigned int left_out = 0;

    *ret_counts = (struct ipc_table_counts){.blocks = 0};
    pthread_mutex_lock(&table.lock);
    for (unsigned int i = 0; i < BUCKETS; i++)
        for (const struct block *block = table.by_addr[i]; block; block = block->next_addr) {
            const bool counts = !is_left_out || !is_left_out(block->owner, device);

            left_out += !counts;
            ret_counts->held += counts && block->holds;
            ret_counts->parked += counts && block->parked;
        }
    ret_counts->blocks = atomic_load(&ipc_table_blocks) - left_out;
    pthread_mutex_unlock(&table.lock);
}
