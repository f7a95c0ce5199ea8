/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ipc_import.c - see ipc_import.h.
 *
 * Locking: imports.lock guards the tables, and is held over no call of the driver and no wait for an exporter. Only the
 * thread that has set imports.busy (claim, unclaim) changes them, so it may read them without the lock; a context that
 * ends marks its entries, and the next claim clears them away. `sorted` is read and changed with the lock.
 *
 * A thread maps and unmaps with the claim, and asks an exporter without it: one that is stopped keeps only those
 * waiting that ask it. So another thread may have opened the block meanwhile, and the grant is given back. Exporters
 * hear of closed blocks after the claim has ended.
 */
#include "context/ipc_import.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "context/ipc_map.h"
#include "context/ipc_native.h"
#include "context/ipc_peer.h"
#include "context/ipc_sorted.h"
#include "context/lifetime.h"
#include "context/wait_device.h"
#include "hash.h"
#include "real/real.h"

#define BUCKETS    4096u /* a power of two */
#define ADDR_SHIFT 52    /* leaves as many bits of a hash */

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
    struct sorted_mappings sorted; /* those whose context lives */
    size_t mappings;
    CUcontext mapping;      /* the context in which the claiming thread maps a segment; NULL: it has ended */
    struct import *leaving; /* off the books; their exporters are to hear of it */
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

static void mapping_enter(struct mapping *mapping)
{
    struct mapping **bucket = segment_bucket(&mapping->segment);

    pthread_mutex_lock(&imports.lock);
    mapping->next = *bucket;
    *bucket = mapping;
    imports.mappings++;
    mapping->context = imports.mapping;
    if (mapping->context)
        sorted_add(&imports.sorted, mapping);
    pthread_mutex_unlock(&imports.lock);
}

/* With the lock. */
static void mapping_remove(struct mapping *mapping)
{
    struct mapping **at = segment_bucket(&mapping->segment);

    while (*at != mapping)
        at = &(*at)->next;
    *at = mapping->next;
    imports.mappings--;
    sorted_remove(&imports.sorted, mapping);
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

/* Take a block off the books, whose memory nothing uses; unclaim frees it. The mapping goes with its last block: in a
 * context that has ended, the driver has unmapped its own. */
static CUresult import_end(struct import *import)
{
    struct mapping *mapping = import->mapping;
    CUresult result = CUDA_SUCCESS;

    mapping->uses--;
    if (!mapping->uses && !(import->lost && mapping->how == IPC_NATIVE))
        result = ipc_map_close(mapping->how, mapping->addr);
    books_remove(import);
    if (!mapping->uses)
        free(mapping);
    import->next_block = imports.leaving;
    imports.leaving = import;
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
        import_end(import);
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
    struct import *import, *next;

    pthread_mutex_lock(&imports.lock);
    lost_end();
    import = imports.leaving;
    imports.leaving = NULL;
    imports.busy = false;
    pthread_cond_signal(&imports.done);
    pthread_mutex_unlock(&imports.lock);
    for (; import; import = next) {
        next = import->next_block;
        ipc_peer_close(import->peer, &import->block);
        free(import);
    }
    pthread_setcancelstate(cancel, NULL);
}

void ipc_import_settle(void)
{
    bool any;
    int cancel;

    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
    pthread_mutex_lock(&imports.lock);
    any = !imports.busy && lost_find(); /* else the thread that has the claim does it */
    imports.busy |= any;
    pthread_mutex_unlock(&imports.lock);
    if (any)
        unclaim(cancel);
    else
        pthread_setcancelstate(cancel, NULL);
}

static void opens_set(struct import *import, unsigned int opens)
{
    pthread_mutex_lock(&imports.lock);
    import->opens = opens;
    pthread_mutex_unlock(&imports.lock);
}

/* Count a block that is open in this context once more. False: it is not. */
static bool open_again(const struct ipc_name *block, CUcontext context, CUdeviceptr *ret_addr)
{
    struct import *import;

    pthread_mutex_lock(&imports.lock); /* a context may end meanwhile */
    import = *block_bucket(block);
    while (import && !(ipc_name_equal(&import->block, block) && import->mapping->context == context))
        import = import->next_block;
    pthread_mutex_unlock(&imports.lock);
    if (!import)
        return false;
    opens_set(import, import->opens + 1);
    *ret_addr = import->addr;
    return true;
}

/* Make room for one more mapping. False: there is no host memory. */
static bool mapping_reserve(void)
{
    bool has;

    pthread_mutex_lock(&imports.lock);
    has = sorted_reserve(&imports.sorted, imports.mappings);
    pthread_mutex_unlock(&imports.lock);
    return has;
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
    imports.mapping = context;
    pthread_mutex_unlock(&imports.lock);
    if (mapping && (mapping->size != grant->segment_size || mapping->how != (enum ipc_how)grant->how))
        return CUDA_ERROR_MAP_FAILED;
    if (!mapping) {
        mapping = mapping_reserve() ? calloc(1, sizeof(*mapping)) : NULL;
        if (!mapping)
            return CUDA_ERROR_OUT_OF_MEMORY;
        *mapping =
            (struct mapping){.segment = grant->segment, .how = (enum ipc_how)grant->how, .size = grant->segment_size};
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

/* Enter a block whose grant has come. */
static CUresult import_enter(struct ipc_peer *peer, const struct ipc_name *block, const struct ipc_grant *grant, int fd,
                             CUcontext context, CUdeviceptr *ret_addr)
{
    struct import *import = calloc(1, sizeof(*import));
    CUresult result = import ? mapping_get(grant, fd, context, &import->mapping) : CUDA_ERROR_OUT_OF_MEMORY;

    if (result) {
        free(import);
        return result;
    }
    import->block = *block;
    import->peer = peer;
    import->addr = import->mapping->addr + grant->offset;
    import->size = grant->size;
    import->opens = 1;
    *ret_addr = import->addr;
    books_enter(import);
    return CUDA_SUCCESS;
}

/* --- open and close --- */

/* Open a block that was not open. Without the claim; cancellation is disabled. */
static CUresult open_new(const struct real_driver *driver, const struct ipc_ticket *ticket, CUcontext context,
                         CUdeviceptr *ret_addr)
{
    CUresult result = CUDA_ERROR_MAP_FAILED;
    struct ipc_grant grant;
    struct ipc_peer *peer;
    bool again;
    int fd, cancel;
    const int rc = ipc_peer_ask(ticket, ipc_peer_limit(), &peer, &grant, &fd);

    context_current(driver); /* so that its end is noticed; it may have ended and begun anew meanwhile */
    claim(&cancel);
    again = open_again(&ticket->block, context, ret_addr); /* opened by another thread meanwhile */
    if (!again && !rc)
        result = import_enter(peer, &ticket->block, &grant, fd, context, ret_addr);
    unclaim(cancel);
    if (fd >= 0)
        close(fd);
    if (!rc && (again || result))
        ipc_peer_close(peer, &ticket->block);
    if (again)
        return CUDA_SUCCESS;
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
    int before, cancel;
    bool again;

    if (!driver)
        return CUDA_ERROR_NOT_INITIALIZED;
    result = driver->cuCtxGetCurrent(&context);
    if (result || !context)
        return result ? result : CUDA_ERROR_INVALID_CONTEXT;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    claim(&cancel);
    again = open_again(&ticket->block, context, ret_addr);
    unclaim(cancel);
    result = again ? CUDA_SUCCESS : open_new(driver, ticket, context, ret_addr);
    pthread_setcancelstate(before, NULL);
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
        result = import_end(import);
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
    const struct sorted_mappings *sorted = &imports.sorted;
    const struct mapping *mapping = NULL;
    const struct import *import = NULL;

    pthread_mutex_lock(&imports.lock);
    /* The driver may have a segment at one address for two contexts, each with blocks of its own. */
    for (size_t i = sorted_until(sorted, addr);
         !import && i && addr - sorted->at[i - 1]->addr < sorted->at[i - 1]->size; i--) {
        mapping = sorted->at[i - 1];
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
    struct sorted_mappings *sorted = &imports.sorted;
    size_t left = 0;

    pthread_mutex_lock(&imports.lock);
    for (size_t i = 0; i < sorted->count; i++) {
        struct mapping *mapping = sorted->at[i];

        if (mapping->context != handle) {
            sorted->at[left++] = mapping;
            continue;
        }
        mapping->context = NULL; /* a later context may have this handle */
        for (struct import *import = mapping->first; import; import = import->next_of_mapping)
            import->lost = true;
        imports.lost = true;
    }
    sorted->count = left;
    if (imports.mapping == handle)
        imports.mapping = NULL;
    pthread_mutex_unlock(&imports.lock);
}

void ipc_import_forget(void)
{
    pthread_mutex_init(&imports.lock, NULL);
    pthread_cond_init(&imports.done, NULL);
    memset(imports.by_block, 0, sizeof(imports.by_block));
    memset(imports.by_addr, 0, sizeof(imports.by_addr));
    memset(imports.by_segment, 0, sizeof(imports.by_segment));
    imports.leaving = NULL;
    imports.sorted =
        (struct sorted_mappings){.at = NULL}; /* another thread of the parent may have been about to move it */
    imports.mappings = 0;
    imports.busy = imports.lost = false;
    atomic_store(&ipc_import_blocks, 0);
}
