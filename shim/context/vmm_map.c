/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vmm_map.c - see vmm_map.h.
 *
 * Locking: table.lock guards the table, `reached`, and the mappings' descriptors, and is never held over a call of the
 * driver. The last close of a descriptor gives GPU memory up, and is none of its calls either.
 */
#include "context/vmm_map.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/descriptor.h"
#include "base/ipc_socket.h"
#include "base/log.h"
#include "context/capture_history.h"
#include "context/limits.h"
#include "context/vmm_create.h"
#include "pool.h"

#define BUCKETS 4096u /* a power of two; of 2 MiB segments as many fill 8 GiB */

/* The most descriptors that are kept: a program may have few of them. */
#define KEPT_MAX 64u

static struct {
    pthread_mutex_t lock; /* guards everything below */
    struct vmm_mapping *buckets[BUCKETS];
    uint64_t numbers;              /* given to memory so far */
    unsigned int kept;             /* descriptors */
    atomic_size_t count;           /* also read without the lock */
    uint64_t reached[DEVICES_MAX]; /* a bit for each device that reaches this one's memory */
} table = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Of these, the devices that are known to reach every mapping, and those that had no way to this one's memory. */
static _Atomic(uint64_t) settled[DEVICES_MAX], unreachable[DEVICES_MAX];

static struct vmm_mapping **bucket_of(uint64_t addr)
{
    return &table.buckets[(addr / POOL_SEGMENT_UNIT) % BUCKETS];
}

/* With the lock: the mapping keeps no descriptor from now on. */
static struct ipc_descriptor kept_take(struct vmm_mapping *mapping)
{
    const struct ipc_descriptor kept = mapping->kept;

    mapping->kept.fd = -1;
    table.kept -= kept.fd >= 0;
    return kept;
}

static CUresult access_give(const struct real_driver *driver, const struct vmm_mapping *mapping, uint64_t devices)
{
    CUmemAccessDesc access[DEVICES_MAX];
    size_t count = 0;

    for (int i = 0; i < DEVICES_MAX; i++)
        if (devices >> i & 1)
            access[count++] = (CUmemAccessDesc){.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = i},
                                                .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    return count ? driver->cuMemSetAccess(mapping->addr - mapping->front, mapping->front + mapping->size, access, count)
                 : CUDA_SUCCESS;
}

/* Of these devices, some may have no way to the memory: the others get access. */
static CUresult access_give_peers(const struct real_driver *driver, const struct vmm_mapping *mapping, uint64_t devices)
{
    _Atomic(uint64_t) *never = &unreachable[mapping->device % DEVICES_MAX];
    CUresult result, first = CUDA_SUCCESS;

    devices &= ~atomic_load(never);
    if (!access_give(driver, mapping, devices))
        return CUDA_SUCCESS;
    for (int i = 0; i < DEVICES_MAX; i++) {
        if (!(devices >> i & 1))
            continue;
        result = access_give(driver, mapping, (uint64_t)1 << i);
        if (result == CUDA_ERROR_INVALID_DEVICE || result == CUDA_ERROR_NOT_SUPPORTED ||
            result == CUDA_ERROR_PEER_ACCESS_UNSUPPORTED || result == CUDA_ERROR_TOO_MANY_PEERS) {
            atomic_fetch_or(never, (uint64_t)1 << i);
            log_write(LOG_INFO, "device %d has no way to the memory of device %d (error %d)", i, mapping->device,
                      (int)result);
        } else if (result) {
            first = result;
        }
    }
    return first;
}

/* Map memory at the addresses, for its own device. The mapping alone keeps the memory then. */
static CUresult physical_map(const struct real_driver *driver, const struct vmm_mapping *mapping)
{
    const uint64_t start = mapping->addr - mapping->front;
    const size_t size = mapping->front + mapping->size;
    CUmemGenericAllocationHandle handle;
    CUresult result = vmm_create(driver, mapping->device, size, &handle), released;
    bool mapped;

    if (result)
        return result;
    result = driver->cuMemMap(start, size, 0, handle, 0);
    mapped = !result;
    released = driver->cuMemRelease(handle);
    if (released) /* tried again, because the memory would be lost */
        released = driver->cuMemRelease(handle);
    if (released)
        log_once(LOG_WARN, "the driver did not take back a handle of %zu bytes, whose memory is lost", size);
    if (mapped)
        result = access_give(driver, mapping, (uint64_t)1 << mapping->device % DEVICES_MAX);
    if (mapped && result)
        driver->cuMemUnmap(start, size);
    return result;
}

/* Map memory there, for its own device; a handle of 0: new memory. */
static CUresult memory_map(const struct real_driver *driver, const struct vmm_mapping *mapping,
                           CUmemGenericAllocationHandle handle)
{
    CUresult result;

    if (!handle)
        return physical_map(driver, mapping);
    result = driver->cuMemMap(mapping->addr, mapping->size, 0, handle, 0);
    if (result)
        return result;
    result = access_give(driver, mapping, (uint64_t)1 << mapping->device % DEVICES_MAX);
    if (result)
        driver->cuMemUnmap(mapping->addr, mapping->size);
    return result;
}

/* Make a mapping of what as describes. */
static CUresult mapping_make(const struct real_driver *driver, const struct vmm_mapping *as,
                             CUmemGenericAllocationHandle handle, struct vmm_mapping **ret_mapping)
{
    struct vmm_mapping *mapping = malloc(sizeof(*mapping)), **bucket;
    const size_t size = as->front + as->size;
    CUdeviceptr start = 0;
    CUresult result;
    uint64_t peers;

    if (!mapping)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *mapping = *as;
    mapping->kept.fd = -1;
    result = driver->cuMemAddressReserve(&start, size, POOL_SEGMENT_UNIT, 0, 0);
    mapping->addr = start + mapping->front;
    if (!result && (result = memory_map(driver, mapping, handle)))
        driver->cuMemAddressFree(start, size);
    if (result) {
        free(mapping);
        return result;
    }
    /* From here on vmm_reach finds it, and before that `reached` says what it would have done. */
    pthread_mutex_lock(&table.lock);
    bucket = bucket_of(mapping->addr);
    mapping->next = *bucket;
    *bucket = mapping;
    mapping->number = ++table.numbers;
    table.count++;
    peers = table.reached[mapping->device % DEVICES_MAX];
    pthread_mutex_unlock(&table.lock);
    result = access_give_peers(driver, mapping, peers);
    if (result)
        vmm_unmap(driver, mapping);
    else
        *ret_mapping = mapping;
    return result;
}

CUresult vmm_map(const struct context *owner, const struct real_driver *driver, int device, size_t front, size_t size,
                 struct vmm_mapping **ret_mapping)
{
    const struct vmm_mapping as = {
        .size = size, .front = front, .owner = owner, .device = device, .captures = capture_history_now()};

    return mapping_make(driver, &as, /* handle: new memory */ 0, ret_mapping);
}

CUresult vmm_map_handle(const struct real_driver *driver, int device, CUmemGenericAllocationHandle handle, size_t size,
                        struct vmm_mapping **ret_mapping)
{
    const struct vmm_mapping as = {.size = size, .device = device};

    return mapping_make(driver, &as, handle, ret_mapping);
}

/* Sets whether the memory is away; returns the devices that reach it. */
static uint64_t away_set(struct vmm_mapping *mapping, bool away)
{
    struct ipc_descriptor kept;
    uint64_t peers;

    pthread_mutex_lock(&table.lock);
    mapping->away = away;
    mapping->number = ++table.numbers;
    kept = kept_take(mapping);
    peers = table.reached[mapping->device % DEVICES_MAX];
    pthread_mutex_unlock(&table.lock);
    ipc_leave(&kept);
    return peers;
}

CUresult vmm_send_away(const struct real_driver *driver, struct vmm_mapping *mapping)
{
    CUresult result;
    uint64_t peers;

    away_set(mapping, true); /* vmm_reach leaves it alone from here on, because its call could come too late */
    result = driver->cuMemUnmap(mapping->addr - mapping->front, mapping->front + mapping->size);
    if (!result)
        return result;
    peers = away_set(mapping, false);
    if (access_give_peers(driver, mapping, peers))
        log_once(LOG_WARN, "not all devices that did reach %zu bytes of device %d", mapping->size, mapping->device);
    return result;
}

CUresult vmm_bring_back(const struct real_driver *driver, struct vmm_mapping *mapping)
{
    CUresult result = physical_map(driver, mapping);

    if (result)
        return result;
    result = access_give_peers(driver, mapping, away_set(mapping, false));
    if (result)
        vmm_send_away(driver, mapping);
    return result;
}

bool vmm_any(void)
{
    return atomic_load_explicit(&table.count, memory_order_relaxed) != 0;
}

/* With the lock. */
static struct vmm_mapping *mapping_at(uint64_t addr)
{
    struct vmm_mapping *mapping = *bucket_of(addr);

    while (mapping && mapping->addr != addr)
        mapping = mapping->next;
    return mapping;
}

struct vmm_mapping *vmm_find(uint64_t addr)
{
    struct vmm_mapping *mapping;

    pthread_mutex_lock(&table.lock);
    mapping = mapping_at(addr);
    pthread_mutex_unlock(&table.lock);
    return mapping;
}

size_t vmm_front(uint64_t addr)
{
    const struct vmm_mapping *mapping;
    size_t front;

    pthread_mutex_lock(&table.lock); /* another thread may unmap it */
    mapping = mapping_at(addr);
    front = mapping ? mapping->front : 0;
    pthread_mutex_unlock(&table.lock);
    return front;
}

int vmm_descriptor_get(uint64_t addr, uint64_t *ret_number)
{
    const struct vmm_mapping *mapping;
    int fd;

    pthread_mutex_lock(&table.lock);
    mapping = mapping_at(addr);
    *ret_number = mapping ? mapping->number : 0;
    fd = mapping && ipc_is_open(&mapping->kept) ? file_copy(mapping->kept.fd) : -1;
    pthread_mutex_unlock(&table.lock);
    return fd;
}

void vmm_descriptor_keep(uint64_t addr, uint64_t number, int fd)
{
    struct ipc_descriptor copy;
    struct vmm_mapping *mapping;

    if (ipc_keep(file_copy(fd), &copy))
        return;
    pthread_mutex_lock(&table.lock);
    mapping = mapping_at(addr);
    if (mapping && mapping->number == number && mapping->kept.fd < 0 && table.kept < KEPT_MAX) {
        table.kept++;
        mapping->kept = copy;
        copy.fd = -1;
    }
    pthread_mutex_unlock(&table.lock);
    ipc_leave(&copy);
}

void vmm_descriptors_forget(void)
{
    struct ipc_descriptor kept;

    pthread_mutex_init(&table.lock, NULL); /* another thread of the parent may have held it */
    for (unsigned int i = 0; i < BUCKETS; i++)
        for (struct vmm_mapping *mapping = table.buckets[i]; mapping; mapping = mapping->next) {
            kept = kept_take(mapping);
            ipc_leave(&kept);
        }
}

struct vmm_mapping *vmm_next(const struct context *owner, unsigned int *i)
{
    struct vmm_mapping *mapping = NULL;

    pthread_mutex_lock(&table.lock);
    for (; table.count && *i < BUCKETS; ++*i) {
        mapping = table.buckets[*i];
        while (mapping && mapping->owner != owner)
            mapping = mapping->next;
        if (mapping)
            break;
    }
    pthread_mutex_unlock(&table.lock);
    return mapping;
}

CUresult vmm_unmap(const struct real_driver *driver, struct vmm_mapping *mapping)
{
    const uint64_t start = mapping->addr - mapping->front;
    const size_t size = mapping->front + mapping->size;
    struct ipc_descriptor kept;
    struct vmm_mapping **at;
    CUresult result = CUDA_SUCCESS;

    pthread_mutex_lock(&table.lock);
    for (at = bucket_of(mapping->addr); *at != mapping; at = &(*at)->next)
        ;
    *at = mapping->next;
    table.count--;
    kept = kept_take(mapping);
    pthread_mutex_unlock(&table.lock);
    ipc_leave(&kept);
    if (!mapping->away)
        result = driver->cuMemUnmap(start, size);
    if (result) /* tried again, because the memory would be lost */
        result = driver->cuMemUnmap(start, size);
    if (!result)
        result = driver->cuMemAddressFree(start, size);
    free(mapping);
    return result;
}

/* The addresses of all mappings of a device's memory, whose number is *ret_count. The caller frees them. NULL: there is
 * no host memory. */
static uint64_t *mappings_of(int device, size_t *ret_count)
{
    uint64_t *all;

    *ret_count = 0;
    pthread_mutex_lock(&table.lock);
    all = malloc((table.count + 1) * sizeof(*all));
    for (unsigned int i = 0; all && i < BUCKETS; i++)
        for (const struct vmm_mapping *mapping = table.buckets[i]; mapping; mapping = mapping->next)
            if (mapping->device == device)
                all[(*ret_count)++] = mapping->addr;
    pthread_mutex_unlock(&table.lock);
    return all;
}

/* True if there is a mapping with this address, and memory at it. */
static bool is_there(uint64_t addr)
{
    const struct vmm_mapping *mapping;
    bool is;

    pthread_mutex_lock(&table.lock);
    mapping = mapping_at(addr);
    is = mapping && !mapping->away;
    pthread_mutex_unlock(&table.lock);
    return is;
}

static bool are_two(int device, int from)
{
    return device >= 0 && from >= 0 && device != from && device < DEVICES_MAX && from < DEVICES_MAX;
}

bool vmm_reaches(int device, int from)
{
    return are_two(device, from) && !(atomic_load(&unreachable[device]) >> from & 1);
}

void vmm_reach_anew(const struct real_driver *driver, int device, int from)
{
    const uint64_t bit = (uint64_t)1 << (unsigned int)from % DEVICES_MAX;

    if (are_two(device, from) && (atomic_fetch_and(&unreachable[device], ~bit) & bit))
        atomic_fetch_and(&settled[device], ~bit);
    vmm_reach(driver, device, from);
}

void vmm_reach(const struct real_driver *driver, int device, int from)
{
    const uint64_t bit = (uint64_t)1 << (unsigned int)from % DEVICES_MAX;
    struct vmm_mapping mapping, *found;
    CUresult result;
    uint64_t *all;
    size_t count;

    if (!are_two(device, from) || (atomic_load(&settled[device]) & bit))
        return;
    pthread_mutex_lock(&table.lock);
    table.reached[device] |= bit;
    pthread_mutex_unlock(&table.lock);
    all = mappings_of(device, &count);
    result = all ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    for (size_t i = 0; all && i < count; i++) {
        pthread_mutex_lock(&table.lock);
        found = mapping_at(all[i]);
        if (found)
            mapping = *found;
        pthread_mutex_unlock(&table.lock);
        /* A mapping that goes meanwhile needs no access, and an error of its addresses tells nothing. */
        if (found && !mapping.away && access_give_peers(driver, &mapping, bit) && is_there(all[i]))
            result = CUDA_ERROR_UNKNOWN;
    }
    free(all);
    if (!result)
        atomic_fetch_or(&settled[device], bit);
    else
        log_once(LOG_WARN, "device %d did not get access to all memory of device %d", from, device);
}
