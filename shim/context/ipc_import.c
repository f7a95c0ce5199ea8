/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ipc_import.c - see ipc_import.h.
 *
 * Locking: imports.lock guards the tables, and is held over no call of the driver and no wait for an exporter. Only the
 * thread that has set imports.busy (claim, unclaim) changes them, so it may read them without the lock; a context that
 * ends marks its entries, and the next claim clears them away. `sorted` is read and changed with the lock.
 */
#include "context/ipc_import.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/array.h"
#include "base/log.h"
#include "context/ipc_map.h"
#include "context/ipc_native.h"
#include "context/ipc_peer.h"
#include "context/lifetime.h"
#include "context/wait_device.h"
#include "hash.h"
#include "real/real.h"

#define BUCKETS    4096u /* a power of two */
#define ADDR_SHIFT 52    /* leaves as many bits of a hash */

/* A segment that is mapped in a context. */
struct mapping {
    struct ipc_name segment;
    enum ipc_how how;
    CUcontext context;
    uint64_t addr;
    size_t size;
    unsigned int uses;    /* open blocks */
    struct import *first; /* of these */
    struct mapping *next; /* in its bucket */
};

struct import {
    struct ipc_name block;
    struct ipc_peer *peer;
    struct mapping *mapping;
    uint64_t addr;
    size_t size;
    unsigned int opens;
    bool lost; /* its context has ended */
    struct import *next_block, *next_addr, *next_of_mapping;
};

atomic_uint ipc_import_blocks;

static struct {
    pthread_mutex_t lock;
    pthread_cond_t done; /* busy has become false */
    bool busy;
    bool lost; /* some may be */
    struct import *by_block[BUCKETS], *by_addr[BUCKETS];
    struct mapping *by_segment[BUCKETS];
    struct mapping **sorted; /* by address, those whose context lives */
    size_t sorted_count, mappings, room;
    struct ipc_peers peers; /* used by the claiming thread alone */
} imports = {.lock = PTHREAD_MUTEX_INITIALIZER, .done = PTHREAD_COND_INITIALIZER};

/* --- the books --- */

static struct import **block_bucket(const struct ipc_name *block)
{
    return &imports.by_block[ipc_name_hash(block) % BUCKETS];
}

static struct import **addr_bucket(uint64_t addr)
{
    return &imports.by_addr[hash_of(addr) >> ADDR_SHIFT];
}

static struct mapping **segment_bucket(const struct ipc_name *segment)
{
    return &imports.by_segment[ipc_name_hash(segment) % BUCKETS];
}

/* With the lock: how many of the sorted mappings begin at addr or before. */
static size_t sorted_until(uint64_t addr)
{
    size_t from = 0, count = imports.sorted_count;

    while (count) {
        const size_t half = count / 2;

        if (imports.sorted[from + half]->addr <= addr)
            from += count - half;
        count = half;
    }
    return from;
}

static void mapping_enter(struct mapping *mapping)
{
    struct mapping **bucket = segment_bucket(&mapping->segment);
    size_t at;

    pthread_mutex_lock(&imports.lock);
    mapping->next = *bucket;
    *bucket = mapping;
    imports.mappings++;
    at = sorted_until(mapping->addr);
    memmove(imports.sorted + at + 1, imports.sorted + at, (imports.sorted_count++ - at) * sizeof(struct mapping *));
    imports.sorted[at] = mapping;
    pthread_mutex_unlock(&imports.lock);
}

/* With the lock. */
static void mapping_remove(struct mapping *mapping)
{
    struct mapping **at = segment_bucket(&mapping->segment);
    size_t i = sorted_until(mapping->addr);

    while (*at != mapping)
        at = &(*at)->next;
    *at = mapping->next;
    imports.mappings--;
    while (i && imports.sorted[i - 1] != mapping && imports.sorted[i - 1]->addr == mapping->addr)
        i--; /* it is open in two contexts */
    if (i && imports.sorted[i - 1] == mapping)
        memmove(imports.sorted + i - 1, imports.sorted + i, (imports.sorted_count-- - i) * sizeof(struct mapping *));
}

static void books_enter(struct import *import)
{
    struct import **block = block_bucket(&import->block), **addr = addr_bucket(import->addr);

    pthread_mutex_lock(&imports.lock);
    import->lost = !import->mapping->context; /* it has ended meanwhile */
    imports.lost |= import->lost;
    import->next_block = *block;
    import->next_addr = *addr;
    import->next_of_mapping = import->mapping->first;
    *block = *addr = import->mapping->first = import;
    atomic_fetch_add(&ipc_import_blocks, 1);
    pthread_mutex_unlock(&imports.lock);
}

static void books_remove(struct import *import)
{
    struct import **block = block_bucket(&import->block), **addr = addr_bucket(import->addr);
    struct import **at = &import->mapping->first;

    pthread_mutex_lock(&imports.lock);
    while (*block != import)
        block = &(*block)->next_block;
    *block = import->next_block;
    while (*addr != import)
        addr = &(*addr)->next_addr;
    *addr = import->next_addr;
    while (*at != import)
        at = &(*at)->next_of_mapping;
    *at = import->next_of_mapping;
    atomic_fetch_sub(&ipc_import_blocks, 1);
    if (!import->mapping->uses)
        mapping_remove(import->mapping);
    pthread_mutex_unlock(&imports.lock);
}

/* Take a block off the books, whose memory nothing uses. The mapping goes with its last block: in a context that has
 * ended, the driver has unmapped its own. */
static CUresult import_end(struct import *import, uint64_t limit)
{
    struct mapping *mapping = import->mapping;
    CUresult result = CUDA_SUCCESS;

    mapping->uses--;
    if (!mapping->uses && !(import->lost && mapping->how == IPC_NATIVE))
        result = ipc_map_close(mapping->how, mapping->addr);
    books_remove(import);
    if (!mapping->uses)
        free(mapping);
    ipc_peer_close(&imports.peers, import->peer, &import->block, limit);
    free(import);
    return result;
}

/* With the lock: a block that is open in a context that has ended; NULL: none. */
static struct import *lost_find(void)
{
    struct import *import = NULL;

    for (unsigned int i = 0; imports.lost && !import && i < BUCKETS; i++)
        for (import = imports.by_addr[i]; import && !import->lost; import = import->next_addr)
            ;
    imports.lost = import != NULL;
    return import;
}

/* With the lock, which is released meanwhile, by the claiming thread: take what is lost off the books. */
static void lost_end(void)
{
    struct import *import;

    while ((import = lost_find())) {
        pthread_mutex_unlock(&imports.lock);
        import_end(import, ipc_peer_limit());
        pthread_mutex_lock(&imports.lock);
    }
}

static void claim(int *ret_cancel)
{
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, ret_cancel);
    pthread_mutex_lock(&imports.lock);
    while (imports.busy)
        pthread_cond_wait(&imports.done, &imports.lock);
    imports.busy = true;
    lost_end();
    pthread_mutex_unlock(&imports.lock);
}

static void unclaim(int cancel)
{
    pthread_mutex_lock(&imports.lock);
    lost_end();
    imports.busy = false;
    pthread_cond_signal(&imports.done);
    pthread_mutex_unlock(&imports.lock);
    pthread_setcancelstate(cancel, NULL);
}

void ipc_import_settle(void)
{
    int cancel;

    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
    pthread_mutex_lock(&imports.lock);
    if (!imports.busy && lost_find()) { /* else the thread that has the claim does it */
        imports.busy = true;
        lost_end();
        imports.busy = false;
        pthread_cond_signal(&imports.done);
    }
    pthread_mutex_unlock(&imports.lock);
    pthread_setcancelstate(cancel, NULL);
}

static struct import *import_find(const struct ipc_name *block, CUcontext context)
{
    struct import *import;

    pthread_mutex_lock(&imports.lock); /* a context may end meanwhile */
    import = *block_bucket(block);
    while (import && !(ipc_name_equal(&import->block, block) && import->mapping->context == context))
        import = import->next_block;
    pthread_mutex_unlock(&imports.lock);
    return import;
}

static void opens_set(struct import *import, unsigned int opens)
{
    pthread_mutex_lock(&imports.lock);
    import->opens = opens;
    pthread_mutex_unlock(&imports.lock);
}

/* Make room for one more mapping. False: there is no host memory. */
static bool sorted_reserve(void)
{
    struct mapping **sorted;

    pthread_mutex_lock(&imports.lock);
    sorted = array_grown(imports.sorted, imports.mappings, &imports.room, sizeof(struct mapping *));
    imports.sorted = sorted ? sorted : imports.sorted;
    pthread_mutex_unlock(&imports.lock);
    return sorted != NULL;
}

/* The mapping of a granted segment, made if it is missing, with one use more. */
static CUresult mapping_get(const struct ipc_grant *grant, int fd, CUcontext context, struct mapping **ret_mapping)
{
    struct mapping *mapping;
    CUresult result = CUDA_SUCCESS;

    pthread_mutex_lock(&imports.lock); /* a context may end meanwhile */
    mapping = *segment_bucket(&grant->segment);
    while (mapping && !(ipc_name_equal(&mapping->segment, &grant->segment) && mapping->context == context))
        mapping = mapping->next;
    pthread_mutex_unlock(&imports.lock);
    if (mapping && (mapping->size != grant->segment_size || mapping->how != (enum ipc_how)grant->how))
        return CUDA_ERROR_MAP_FAILED;
    if (!mapping) {
        mapping = sorted_reserve() ? calloc(1, sizeof(*mapping)) : NULL;
        if (!mapping)
            return CUDA_ERROR_OUT_OF_MEMORY;
        *mapping = (struct mapping){.segment = grant->segment,
                                    .how = (enum ipc_how)grant->how,
                                    .context = context,
                                    .size = grant->segment_size};
        result = ipc_map_open(grant, fd, &mapping->addr);
        if (result) {
            free(mapping);
            return result;
        }
        mapping_enter(mapping);
    }
    mapping->uses++;
    *ret_mapping = mapping;
    return CUDA_SUCCESS;
}

/* Enter a block whose grant has come. After an error the grant has been given back. */
static CUresult import_enter(struct ipc_peer *peer, const struct ipc_name *block, const struct ipc_grant *grant, int fd,
                             CUcontext context, uint64_t *ret_addr)
{
    struct import *import = calloc(1, sizeof(*import));
    CUresult result = import ? mapping_get(grant, fd, context, &import->mapping) : CUDA_ERROR_OUT_OF_MEMORY;

    if (result) {
        ipc_peer_close(&imports.peers, peer, block, ipc_peer_limit());
        free(import);
        return result;
    }
    import->block = *block;
    import->peer = peer;
    import->addr = import->mapping->addr + grant->offset;
    import->size = grant->size;
    import->opens = 1;
    books_enter(import);
    *ret_addr = import->addr;
    return CUDA_SUCCESS;
}

/* --- open and close --- */

static CUresult open_new(const struct ipc_ticket *ticket, CUcontext context, uint64_t *ret_addr)
{
    struct ipc_grant grant;
    CUresult result = CUDA_ERROR_MAP_FAILED;
    struct ipc_peer *peer;
    int rc, fd;

    rc = ipc_peer_ask(&imports.peers, ticket, ipc_peer_limit(), &peer, &grant, &fd);
    if (!rc)
        result = import_enter(peer, &ticket->block, &grant, fd, context, ret_addr);
    if (fd >= 0)
        close(fd);
    if (rc)
        log_write(LOG_WARN, "memory of process %d cannot be opened: %s", (int)ticket->pid, ipc_peer_reason(rc));
    else if (result)
        log_write(LOG_WARN, "memory of process %d cannot be mapped (error %d)", (int)ticket->pid, (int)result);
    return result;
}

CUresult ipc_import_open(const struct ipc_ticket *ticket, CUdeviceptr *ret_addr)
{
    const struct real_driver *driver = real_driver_get();
    CUresult result = CUDA_SUCCESS;
    CUcontext context = NULL;
    struct import *import;
    uint64_t addr = 0;
    int cancel;

    if (!driver)
        return CUDA_ERROR_NOT_INITIALIZED;
    result = driver->cuCtxGetCurrent(&context);
    if (result || !context)
        return result ? result : CUDA_ERROR_INVALID_CONTEXT;
    context_current(driver); /* so that its end is noticed */
    claim(&cancel);
    import = import_find(&ticket->block, context);
    if (import)
        opens_set(import, import->opens + 1);
    else
        result = open_new(ticket, context, &addr);
    if (!result)
        *ret_addr = import ? import->addr : addr;
    unclaim(cancel);
    return result;
}

/* The open block at this address; with the lock, or the claim. */
static struct import *import_at(CUdeviceptr addr)
{
    struct import *import = *addr_bucket(addr);

    while (import && import->addr != addr)
        import = import->next_addr;
    return import;
}

/* The context of an open block whose next close is its last. NULL: there is none, or no such block. */
static CUcontext context_to_wait_for(CUdeviceptr addr)
{
    const struct import *import;
    CUcontext context;

    pthread_mutex_lock(&imports.lock);
    import = import_at(addr);
    context = import && import->opens == 1 ? import->mapping->context : NULL;
    pthread_mutex_unlock(&imports.lock);
    return context;
}

CUresult ipc_import_close(CUdeviceptr addr, bool *ret_ours)
{
    struct import *import;
    CUcontext context;
    CUresult result;
    int cancel;

    /* Without the claim, because other threads may have to open or close meanwhile for this work to end. Again, if
     * other threads have closed it meanwhile, so that this close has become the last. */
    for (;;) {
        context = context_to_wait_for(addr);
        result = context ? context_wait_handle(context) : CUDA_SUCCESS;
        *ret_ours = context != NULL;
        if (result)
            return result;
        claim(&cancel);
        if (context || !context_to_wait_for(addr))
            break;
        unclaim(cancel);
    }
    import = import_at(addr);
    *ret_ours = import != NULL;
    if (import && import->opens > 1)
        opens_set(import, import->opens - 1);
    else if (import)
        result = import_end(import, ipc_peer_limit());
    unclaim(cancel);
    return result;
}

/* With the lock: the open block of this mapping around addr. */
static const struct import *import_around(const struct mapping *mapping, uint64_t addr)
{
    const struct import *import = mapping->first;

    while (import && addr - import->addr >= import->size)
        import = import->next_of_mapping;
    return import;
}

bool ipc_import_range(uint64_t addr, uint64_t *ret_base, size_t *ret_size, CUcontext *ret_context)
{
    const struct mapping *mapping = NULL;
    const struct import *import = NULL;

    pthread_mutex_lock(&imports.lock);
    /* The driver may have a segment at one address for two contexts, each with blocks of its own. */
    for (size_t i = sorted_until(addr);
         !import && i && addr - imports.sorted[i - 1]->addr < imports.sorted[i - 1]->size; i--) {
        mapping = imports.sorted[i - 1];
        import = import_around(mapping, addr);
    }
    if (mapping && !import && ipc_native_is_open(mapping->addr)) /* the driver has it at this address, too */
        mapping = NULL;
    *ret_base = import ? import->addr : 0;
    *ret_size = import ? import->size : 0;
    *ret_context = mapping ? mapping->context : NULL;
    pthread_mutex_unlock(&imports.lock);
    return mapping != NULL;
}

void ipc_import_context_gone(CUcontext handle)
{
    size_t left = 0;

    pthread_mutex_lock(&imports.lock);
    for (size_t i = 0; i < imports.sorted_count; i++) {
        struct mapping *mapping = imports.sorted[i];

        if (mapping->context != handle) {
            imports.sorted[left++] = mapping;
            continue;
        }
        mapping->context = NULL; /* a later context may have this handle */
        for (struct import *import = mapping->first; import; import = import->next_of_mapping)
            import->lost = true;
        imports.lost = true;
    }
    imports.sorted_count = left;
    pthread_mutex_unlock(&imports.lock);
}

void ipc_import_forget(void)
{
    pthread_mutex_init(&imports.lock, NULL);
    pthread_cond_init(&imports.done, NULL);
    ipc_peers_forget(&imports.peers);
    memset(imports.by_block, 0, sizeof(imports.by_block));
    memset(imports.by_addr, 0, sizeof(imports.by_addr));
    memset(imports.by_segment, 0, sizeof(imports.by_segment));
    imports.sorted = NULL; /* another thread of the parent may have been about to move it */
    imports.mappings = imports.sorted_count = imports.room = 0;
    imports.busy = imports.lost = false;
    atomic_store(&ipc_import_blocks, 0);
}
