/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ipc_insert.c - see ipc_insert.h.
 *
 * Locking: table.lock guards the lists and what is in their entries, and is a leaf. It is held over no other call: a
 * thread that works on an import or a range without it has set its state to BUSY, and other threads leave such an entry
 * alone.
 */
#include "context/ipc_insert.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

#include "base/descriptor.h"
#include "base/log.h"
#include "clock.h"
#include "context/capture_gate.h"
#include "context/ipc_map.h"
#include "context/ipc_peer.h"
#include "context/lifetime.h"
#include "context/wait_device.h"
#include "pool.h"
#include "real/real.h"
#include "trace/trace.h"

typedef unsigned long long ull;

/* No device has this much memory; sums of sizes cannot overflow. */
#define SIZE_MAX_RESERVED ((size_t)1 << 47)

struct range {
    uint64_t addr;
    size_t size;
    struct range *next;
};

enum state { OUTSIDE, BUSY, INSERTED };

struct import {
    int64_t number;
    struct ipc_peer *peer;
    struct ipc_name block;
    CUmemGenericAllocationHandle handle;
    size_t size;
    int device; /* that has the memory */
    enum state state;
    uint64_t at; /* unless OUTSIDE */
    struct import *next;
};

static struct {
    pthread_mutex_t lock; /* guards everything below */
    struct range *ranges;
    struct import *imports;
    int64_t number; /* of the last import */
} table = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* The driver, if it has all calls that are needed here. */
static int driver_find(const struct real_driver **ret_driver)
{
    const struct real_driver *driver = real_driver_get();
    int count;

    if (!driver)
        return -EAGAIN;
    if (!driver->cuMemAddressReserve || !driver->cuMemAddressFree || !driver->cuMemMap || !driver->cuMemUnmap ||
        !driver->cuMemSetAccess || !driver->cuMemRelease || !driver->cuDeviceGetCount || !driver->cuDeviceGetUuid_v2)
        return -ENOTSUP;
    *ret_driver = driver;
    return driver->cuDeviceGetCount(&count) ? -EAGAIN : 0;
}

static int refused(CUresult result, const char *what, uint64_t at, size_t size)
{
    log_write(LOG_WARN, "%zu bytes at %#llx are not %s (error %d)", size, (ull)at, what, (int)result);
    return result == CUDA_ERROR_OUT_OF_MEMORY ? -ENOMEM : result == CUDA_ERROR_ALREADY_MAPPED ? -EBUSY : -EIO;
}

/* --- ranges --- */

static void range_enter(struct range *range)
{
    pthread_mutex_lock(&table.lock);
    range->next = table.ranges;
    table.ranges = range;
    pthread_mutex_unlock(&table.lock);
}

int insert_reserve(size_t size, uint64_t *ret_range)
{
    const struct real_driver *driver;
    int rc = driver_find(&driver);
    struct range *range;
    CUresult result;
    CUdeviceptr addr = 0;

    if (!size || size > SIZE_MAX_RESERVED)
        return -EINVAL;
    if (rc)
        return rc;
    range = malloc(sizeof(*range));
    if (!range)
        return -ENOMEM;
    size = (size + POOL_SEGMENT_UNIT - 1) / POOL_SEGMENT_UNIT * POOL_SEGMENT_UNIT;
    result = driver->cuMemAddressReserve(&addr, size, POOL_SEGMENT_UNIT, 0, 0);
    if (result) {
        free(range);
        return refused(result, "reserved", 0, size);
    }
    *range = (struct range){.addr = addr, .size = size};
    range_enter(range);
    *ret_range = addr;
    return 0;
}

/* True if an import is, or is about to be or to leave, among these addresses; with the lock. */
static bool is_used(uint64_t addr, size_t size)
{
    const struct import *import = table.imports;

    while (import && (import->state == OUTSIDE || import->at >= addr + size || addr >= import->at + import->size))
        import = import->next;
    return import;
}

int insert_unreserve(uint64_t addr)
{
    const struct real_driver *driver;
    struct range **at, *range;
    CUresult result;
    int rc = driver_find(&driver);

    if (rc)
        return rc;
    pthread_mutex_lock(&table.lock);
    at = &table.ranges;
    while (*at && (*at)->addr != addr)
        at = &(*at)->next;
    range = *at;
    rc = !range ? -EINVAL : is_used(addr, range->size) ? -EBUSY : 0;
    if (!rc)
        *at = range->next;
    pthread_mutex_unlock(&table.lock);
    if (rc)
        return rc;
    result = driver->cuMemAddressFree(addr, range->size);
    if (result) { /* so that the program can give it up later */
        rc = refused(result, "given back", addr, range->size);
        range_enter(range);
    } else {
        free(range);
    }
    return rc;
}

/* --- imports --- */

/* The import with this number; with the lock. NULL: none. */
static struct import **import_find(int64_t number)
{
    struct import **at = &table.imports;

    while (*at && (*at)->number != number)
        at = &(*at)->next;
    return at;
}

/* Ask the exporter for the block of a ticket. */
static int ask(const struct ipc_ticket *ticket, struct import *import, struct ipc_grant *ret_grant, int *ret_fd)
{
    const int rc = ipc_peer_ask(ticket, ipc_peer_limit(), &import->peer, ret_grant, ret_fd);

    if (rc)
        log_write(LOG_WARN, "memory of process %d cannot be imported: %s", (int)ticket->pid, ipc_peer_reason(rc));
    return rc == -ECONNREFUSED || rc == -ECONNRESET || rc == -EPIPE ? -EHOSTDOWN : rc;
}

static void let_go(struct import *import)
{
    ipc_peer_close(import->peer, &import->block);
    free(import);
}

static int no_use(int rc, const char *why)
{
    log_write(LOG_WARN, "memory of another process cannot be inserted: %s", why);
    return rc;
}

/* Take the memory of a grant. */
static int take(const struct ipc_grant *grant, int fd, struct import *import)
{
    CUresult result;

    import->device = ipc_map_device(grant->card);
    import->size = grant->segment_size;
    /* The driver maps memory from its beginning on alone. */
    if (grant->how != IPC_DESCRIPTOR || grant->offset || grant->segment_size % POOL_SEGMENT_UNIT)
        return no_use(-ENOTSUP, "it does not begin virtual memory");
    /* Such a ticket is from cudaIpcGetMemHandle. Behind a block of cupool_export come only guard bytes, and the rest of
     * their unit. */
    if (grant->segment_size - grant->size > POOL_SEGMENT_UNIT)
        return no_use(-ENOTSUP, "it shares virtual memory with other blocks");
    if (import->device < 0)
        return no_use(-ENODEV, "its device is not visible to this process");
    result = ipc_map_take(fd, &import->handle);
    return result ? refused(result, "imported", 0, import->size) : 0;
}

int64_t insert_import(const struct ipc_ticket *ticket, size_t *ret_size)
{
    struct import *import;
    const struct real_driver *driver;
    struct ipc_grant grant;
    int64_t number;
    int rc = driver_find(&driver), fd;

    if (rc)
        return rc;
    import = calloc(1, sizeof(*import));
    if (!import)
        return -ENOMEM;
    import->block = ticket->block;
    rc = ask(ticket, import, &grant, &fd);
    if (rc) {
        free(import);
        return rc;
    }
    rc = take(&grant, fd, import);
    if (fd >= 0)
        file_drop(fd);
    if (rc) {
        let_go(import);
        return rc;
    }
    *ret_size = import->size;
    pthread_mutex_lock(&table.lock);
    number = import->number = ++table.number;
    import->next = table.imports;
    table.imports = import;
    pthread_mutex_unlock(&table.lock);
    return number;
}

int insert_close(int64_t number)
{
    const struct real_driver *driver;
    struct import **at, *import;
    CUresult result;
    int rc = driver_find(&driver);

    if (rc)
        return rc;
    pthread_mutex_lock(&table.lock);
    at = import_find(number);
    import = *at;
    rc = !import ? -EINVAL : import->state != OUTSIDE ? -EBUSY : 0;
    if (!rc)
        *at = import->next;
    pthread_mutex_unlock(&table.lock);
    if (rc)
        return rc;
    result = driver->cuMemRelease(import->handle);
    if (result) /* tried again, because the memory would be lost */
        result = driver->cuMemRelease(import->handle);
    rc = result ? refused(result, "given back", 0, import->size) : 0;
    let_go(import);
    return rc;
}

/* --- insert and withdraw --- */

/* True if these addresses are in one range; with the lock. */
static bool is_reserved(uint64_t at, size_t size)
{
    const struct range *range = table.ranges;

    while (range && (at < range->addr || at - range->addr >= range->size || size > range->size - (at - range->addr)))
        range = range->next;
    return range;
}

/* Write the event of a call that began at this time. */
static void tell(const char *event, const struct import *import, uint64_t start)
{
    const uint64_t ns = now_ns() - start;

    trace_event(event, "\"d\":%d,\"p\":\"0x%llx\",\"n\":%zu,\"us\":%llu.%llu", import->device, (ull)import->at,
                import->size, TRACE_US(ns));
}

static void state_set(struct import *import, enum state state)
{
    pthread_mutex_lock(&table.lock);
    import->state = state;
    pthread_mutex_unlock(&table.lock);
}

int insert_map(uint64_t at, int64_t number)
{
    const uint64_t start = now_ns();
    const struct real_driver *driver;
    struct import *import;
    CUresult result;
    int rc = driver_find(&driver);

    if (rc)
        return rc;
    pthread_mutex_lock(&table.lock);
    import = *import_find(number);
    if (!import || at % POOL_SEGMENT_UNIT || !is_reserved(at, import->size))
        rc = -EINVAL;
    else if (import->state != OUTSIDE || is_used(at, import->size))
        rc = -EBUSY;
    if (!rc) {
        import->state = BUSY;
        import->at = at;
    }
    pthread_mutex_unlock(&table.lock);
    if (rc)
        return rc;
    context_current(driver); /* so that insert_unmap knows of the context whose work uses the memory */
    result = ipc_map_place(import->handle, at, import->size, import->device);
    rc = result ? refused(result, "inserted", at, import->size) : 0;
    if (!rc)
        tell("insert", import, start);
    state_set(import, rc ? OUTSIDE : INSERTED);
    return rc;
}

/* Unmapping does not wait for work that uses the memory, which would meet an illegal address. */
static int unmap(const struct real_driver *driver, const struct import *import)
{
    CUresult result;
    bool late;

    if (capture_active_now())
        return -EBUSY;
    context_current(driver);
    result = context_wait_all(WAIT_NO_LIMIT, &late);
    if (!result)
        result = context_wait_primaries();
    if (result == CUDA_ERROR_NOT_READY)
        return -EBUSY;
    if (!result)
        result = driver->cuMemUnmap(import->at, import->size);
    return result ? refused(result, "withdrawn", import->at, import->size) : 0;
}

int insert_unmap(uint64_t at)
{
    const uint64_t start = now_ns();
    const struct real_driver *driver;
    struct import *import;
    int rc = driver_find(&driver);

    if (rc)
        return rc;
    pthread_mutex_lock(&table.lock);
    import = table.imports;
    while (import && (import->state == OUTSIDE || import->at != at))
        import = import->next;
    rc = !import ? -EINVAL : import->state != INSERTED ? -EBUSY : 0;
    if (!rc)
        import->state = BUSY;
    pthread_mutex_unlock(&table.lock);
    if (rc)
        return rc;
    rc = unmap(driver, import);
    if (!rc)
        tell("withdraw", import, start);
    state_set(import, rc ? INSERTED : OUTSIDE);
    return rc;
}

void insert_forget(void)
{
    /* Another thread of the parent may have held it. The entries are the parent's. */
    pthread_mutex_init(&table.lock, NULL);
    table.ranges = NULL;
    table.imports = NULL;
}
