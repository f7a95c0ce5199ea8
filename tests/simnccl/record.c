/* SPDX-License-Identifier: Apache-2.0 */
/*
 * record.c - the registrations of a communicator, and ncclMemAlloc.
 *
 * Each communicator has a list of records. A range inside a record gets the same handle again, as in NCCL. Records stay
 * in the list until the communicator goes, so that a handle of a former one is recognised. A record makes nothing
 * faster: it only tells which operations NCCL would run on registered memory.
 *
 * Locking: records are their communicator's, see simnccl.h; memory_lock guards the table of ncclMemAlloc.
 */
#include "simnccl.h"

#define PAGE ((uintptr_t)2 << 20)

static uint64_t buffer_id(const void *at)
{
    unsigned long long id = 0;

    return drv.cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, (uintptr_t)at) == CUDA_SUCCESS ? id : 0;
}

/* Is what was registered still the same allocation? */
static void check_alive(const struct record *r, const char *when)
{
    if (buffer_id(r->at) != r->buffer_id)
        breach("%s: the memory %p was freed while %s", when, r->at,
               r->dead || r->graph ? "a captured operation uses it" : "it was registered");
}

static bool memory_check(ncclComm_t comm, uintptr_t at, size_t size)
{
    CUdeviceptr base;
    size_t length;
    int dev = -1;

    if (size == 0 || drv.cuMemGetAddressRange(&base, &length, (CUdeviceptr)at) != CUDA_SUCCESS) {
        breach("%s: %#lx is no live memory of a device", call_now->name, (unsigned long)at);
        return false;
    }
    if (at + size > base + length && settings.version < 22902)
        breach("%s: a record over several allocations, which NCCL before 2.29.2 mixes up", call_now->name);
    if (drv.cuPointerGetAttribute(&dev, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, (CUdeviceptr)at) == CUDA_SUCCESS &&
        dev != comm->dev)
        breach("%s: memory of device %d with a communicator of device %d", call_now->name, dev, comm->dev);
    return true;
}

static bool is_mapped(const void *at)
{
    unsigned long long handles = 0;

    return settings.legacy_register || (drv.cuPointerGetAttribute(&handles, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES,
                                                                  (CUdeviceptr)at) == CUDA_SUCCESS &&
                                        handles != 0);
}

/* As NCCL's list is sorted: of those that hold all of it, the one that begins first, and of these the oldest. */
static struct record *record_first(ncclComm_t comm, uintptr_t base, uintptr_t end)
{
    struct record *found = NULL;

    for (struct record *r = comm->records; r; r = r->next)
        if (!r->dead && !r->window && base >= r->base && end <= r->end && (!found || r->base <= found->base))
            found = r;
    return found;
}

static struct record *record_new(ncclComm_t comm, const void *at, uintptr_t base, uintptr_t end)
{
    struct record *r = calloc(1, sizeof(*r));

    if (!r)
        return NULL;
    *r = (struct record){
        .at = at, .base = base, .end = end, .refs = 1, .buffer_id = buffer_id(at), .maps = is_mapped(at)};
    r->next = comm->records;
    comm->records = r;
    return r;
}

ncclResult_t record_add(ncclComm_t comm, void *at, size_t size, void **handle)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t base = (uintptr_t)at & ~(page - 1), end = ((uintptr_t)at + size + page - 1) & ~(page - 1);

    if (!memory_check(comm, (uintptr_t)at, size))
        return ncclInvalidArgument;
    struct record *r = record_first(comm, base, end);
    if (r) {
        check_alive(r, call_now->name);
        r->refs++;
        *handle = r;
        return ncclSuccess;
    }
    return (*handle = record_new(comm, at, base, end)) ? ncclSuccess : ncclSystemError;
}

ncclResult_t record_drop(ncclComm_t comm, void *handle, bool window, bool *ret_stay)
{
    struct record *r = comm->records;

    *ret_stay = true;
    while (r && (r != handle || r->dead))
        r = r->next;
    if (!r || r->window != window) {
        breach("%s: the handle is not one of this communicator's %s", call_now->name,
               window ? "windows" : "registrations");
        return ncclInvalidUsage;
    }
    check_alive(r, call_now->name);
    if (--r->refs || r->graph)
        return ncclSuccess;
    *ret_stay = false;
    if (r->busy && !r->captured)
        breach("%s: an operation on the memory %p is not finished", call_now->name, r->at);
    if (group_holds(comm))
        breach("%s in a group, behind operations of the communicator that have not started", call_now->name);
    r->dead = true;
    return ncclSuccess;
}

struct record *record_window(ncclComm_t comm, void *at, size_t size, int flags, ncclResult_t *ret)
{
    unsigned long long handles = 0;
    CUdeviceptr base = 0;
    size_t length;

    *ret = ncclInvalidArgument;
    if (!memory_check(comm, (uintptr_t)at, size) ||
        drv.cuMemGetAddressRange(&base, &length, (CUdeviceptr)at) != CUDA_SUCCESS ||
        ((uintptr_t)at - base) % NCCL_WIN_REQUIRED_ALIGNMENT)
        return NULL;
    /* Memory of cudaMalloc has none. */
    *ret = ncclUnhandledCudaError;
    if (drv.cuPointerGetAttribute(&handles, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, (CUdeviceptr)at) !=
            CUDA_SUCCESS ||
        handles == 0)
        return NULL;
    struct record *r = record_new(comm, at, (uintptr_t)at, (uintptr_t)at + size);
    *ret = r ? ncclSuccess : ncclSystemError;
    if (r) {
        r->window = true;
        r->flags = flags;
    }
    return r;
}

struct record *record_find(ncclComm_t comm, const void *at, size_t size)
{
    struct record *found = NULL;

    for (struct record *r = comm->records; r; r = r->next)
        if (r->window && !r->dead && (uintptr_t)at >= r->base && (uintptr_t)at + size <= r->end)
            found = r;
    found = found ? found : record_first(comm, (uintptr_t)at, (uintptr_t)at + size);
    if (found)
        check_alive(found, call_now->name);
    return found && found->refs ? found : NULL;
}

struct record *record_captured(ncclComm_t comm, const void *at, size_t size)
{
    struct record *found = record_find(comm, at, size);
    CUdeviceptr base;
    size_t length;

    if (!settings.graph_register || (found && found->window) || !is_mapped(at) ||
        drv.cuMemGetAddressRange(&base, &length, (CUdeviceptr)at) != CUDA_SUCCESS)
        return found;
    found = record_first(comm, base, base + length);
    if (!found &&
        (found = record_new(comm, (const void *)base, base, base + length))) /* NOLINT(performance-no-int-to-ptr) */
        found->refs = 0;
    if (found)
        found->graph = true;
    return found;
}

void records_check_end(ncclComm_t comm)
{
    int left = 0;

    for (struct record *r = comm->records; r; r = r->next) {
        if (r->dead && !r->captured)
            continue;
        check_alive(r, call_now->name);
        left += !r->dead && r->refs != 0;
    }
    if (left)
        breach("%s: %d registrations are left", call_now->name, left);
}

void records_free(ncclComm_t comm)
{
    for (struct record *r = comm->records, *next; r; r = next) {
        next = r->next;
        free(r);
    }
    comm->records = NULL;
}

/* ---- ncclMemAlloc ---- */

static struct memory {
    CUdeviceptr at;
    size_t size;
    bool plain; /* cudaMalloc's, where NCCL can do no better */
    struct memory *next;
} * memories;
static pthread_mutex_t memory_lock = PTHREAD_MUTEX_INITIALIZER; /* guards memories */

void memory_touch(CUdevice dev)
{
    const CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = dev}};
    CUmemGenericAllocationHandle handle;

    if (drv.cuMemCreate(&handle, PAGE, &prop, 0) == CUDA_SUCCESS)
        drv.cuMemRelease(handle);
}

ncclResult_t memory_alloc(void **ret, size_t size)
{
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                .location.type = CU_MEM_LOCATION_TYPE_DEVICE};
    CUmemAccessDesc access = {.location.type = CU_MEM_LOCATION_TYPE_DEVICE,
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle handle;
    struct memory *m = calloc(1, sizeof(*m));
    int devices = 0;
    CUdevice dev;

    if (!m || drv.cuCtxGetDevice(&dev) != CUDA_SUCCESS || drv.cuDeviceGetCount(&devices) != CUDA_SUCCESS)
        goto no_memory;
    prop.location.id = dev;
    m->size = (size + PAGE - 1) & ~(PAGE - 1);
    m->plain = !settings.shareable;
    if (m->plain) {
        if (drv.cuMemAlloc_v2(&m->at, m->size) != CUDA_SUCCESS)
            goto no_memory;
        goto got;
    }
    if (drv.cuMemCreate(&handle, m->size, &prop, 0) != CUDA_SUCCESS)
        goto no_memory;
    if (drv.cuMemAddressReserve(&m->at, m->size, PAGE, 0, 0) != CUDA_SUCCESS) {
        drv.cuMemRelease(handle);
        goto no_memory;
    }
    CUresult r = drv.cuMemMap(m->at, m->size, 0, handle, 0);
    drv.cuMemRelease(handle); /* mappings stay */
    /* Each device reaches the memory, as each that has a direct way to its device does. */
    for (access.location.id = 0; r == CUDA_SUCCESS && access.location.id < devices; access.location.id++)
        if ((r = drv.cuMemSetAccess(m->at, m->size, &access, 1)) != CUDA_SUCCESS)
            drv.cuMemUnmap(m->at, m->size);
    if (r != CUDA_SUCCESS) {
        drv.cuMemAddressFree(m->at, m->size);
        goto no_memory;
    }
got:
    pthread_mutex_lock(&memory_lock);
    m->next = memories;
    memories = m;
    pthread_mutex_unlock(&memory_lock);
    *ret = (void *)(uintptr_t)m->at;
    return ncclSuccess;
no_memory:
    free(m);
    return ncclUnhandledCudaError;
}

ncclResult_t memory_free(void *at)
{
    struct memory **p = &memories, *m;

    pthread_mutex_lock(&memory_lock);
    while (*p && (*p)->at != (uintptr_t)at)
        p = &(*p)->next;
    if ((m = *p))
        *p = m->next;
    pthread_mutex_unlock(&memory_lock);
    if (!m) {
        breach("%s: %p is not from ncclMemAlloc", call_now->name, at);
        return ncclUnhandledCudaError;
    }
    if (m->plain) {
        drv.cuMemFree_v2(m->at);
    } else {
        drv.cuMemUnmap(m->at, m->size);
        drv.cuMemAddressFree(m->at, m->size);
    }
    free(m);
    return ncclSuccess;
}
