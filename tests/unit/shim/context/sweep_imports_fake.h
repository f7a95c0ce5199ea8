/* SPDX-License-Identifier: Apache-2.0 */
/* sweep_imports_fake.h - a driver and an exporter whose calls fail in turn, for test_sweep_imports.c alone. */
#ifndef CUPOOL_TESTS_SHIM_SWEEP_IMPORTS_FAKE_H
#define CUPOOL_TESTS_SHIM_SWEEP_IMPORTS_FAKE_H

#include "base/log.h"
#include "cases.h"
#include "context/capture_gate.h"
#include "context/ipc_import.h"
#include "context/ipc_insert.h"
#include "context/ipc_map.h"
#include "context/ipc_native.h"
#include "context/ipc_peer.h"
#include "context/lifetime.h"
#include "context/registry.h"
#include "context/vmm_map.h"
#include "context/wait_device.h"
#include "pool.h"
#include "real/real.h"
#include "sweep_system.h"
#include "trace/trace.h"

#define UNIT ((uint64_t)POOL_SEGMENT_UNIT)
#define AT   UINT64_C(0x600000000000)

typedef unsigned long long ull;

static struct {
    struct real_driver driver;
    CUcontext current;
    struct ipc_grant grant;
    bool with_descriptor, reaches;
    bool no_driver;
    int current_device;
    struct vmm_mapping mappings[16];
    unsigned int mapped;
    int handles, grants; /* that are held */
} fake;

/* --- the driver --- */

#define DRIVER(name, ...)                                                                                              \
    const int result = SWEEP_ERROR(#name, CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_UNKNOWN);                               \
    sweep_note(__VA_ARGS__);                                                                                           \
    if (result)                                                                                                        \
        return (CUresult)result;

static CUresult get_current(CUcontext *ret)
{
    DRIVER(get_current, "current");
    *ret = fake.current;
    return CUDA_SUCCESS;
}

static CUresult get_device(CUdevice *ret)
{
    DRIVER(get_device, "device");
    *ret = fake.current_device;
    return CUDA_SUCCESS;
}

static CUresult get_count(int *ret)
{
    DRIVER(get_count, "count");
    *ret = 3;
    return CUDA_SUCCESS;
}

static CUresult get_uuid(CUuuid *ret, CUdevice device)
{
    DRIVER(get_uuid, "of %d", device);
    memset(ret, device + 1, sizeof(*ret));
    return CUDA_SUCCESS;
}

static CUresult reserve(CUdeviceptr *ret, size_t size, size_t align, CUdeviceptr addr, ull flags)
{
    static uint64_t next = AT;

    DRIVER(reserve, "%zu %zu %llx %llu", size, align, (ull)addr, flags);
    *ret = next;
    next += size;
    return CUDA_SUCCESS;
}

static CUresult address_free(CUdeviceptr addr, size_t size)
{
    DRIVER(address_free, "%llx %zu", (ull)addr, size);
    return CUDA_SUCCESS;
}

static CUresult map(CUdeviceptr at, size_t size, size_t offset, CUmemGenericAllocationHandle handle, ull flags)
{
    const int busy = SWEEP_ERROR("map busy", CUDA_ERROR_ALREADY_MAPPED);

    DRIVER(map, "%llx %zu %zu %llx %llu", (ull)at, size, offset, (ull)handle, flags);
    return (CUresult)busy;
}

static CUresult unmap(CUdeviceptr at, size_t size)
{
    DRIVER(unmap, "%llx %zu", (ull)at, size);
    return CUDA_SUCCESS;
}

static CUresult set_access(CUdeviceptr at, size_t size, const CUmemAccessDesc *access, size_t count)
{
    DRIVER(set_access, "%llx %zu %d %d %d %zu", (ull)at, size, access->location.type, access->location.id,
           access->flags, count);
    return CUDA_SUCCESS;
}

static CUresult release(CUmemGenericAllocationHandle handle)
{
    DRIVER(release, "%llx", (ull)handle);
    fake.handles--;
    return CUDA_SUCCESS;
}

static CUresult take(CUmemGenericAllocationHandle *ret, void *shared, CUmemAllocationHandleType type)
{
    DRIVER(take, "%s %d", system_name((int)(intptr_t)shared), type);
    fake.handles++;
    *ret = 77;
    return CUDA_SUCCESS;
}

static CUresult retain(CUmemGenericAllocationHandle *ret, void *addr)
{
    DRIVER(retain, "%p", addr);
    fake.handles++;
    *ret = 78;
    return CUDA_SUCCESS;
}

static CUresult export_handle(void *ret, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type, ull flags)
{
    DRIVER(export, "%llx %d %llu", (ull)handle, type, flags);
    *(int *)ret = system_given(3);
    return CUDA_SUCCESS;
}

static CUresult ipc_get(CUipcMemHandle *handle, CUdeviceptr addr)
{
    DRIVER(ipc_get, "%llx", (ull)addr);
    memset(handle, 7, sizeof(*handle));
    return CUDA_SUCCESS;
}

static CUresult ipc_open(CUdeviceptr *ret, CUipcMemHandle handle, unsigned int flags)
{
    DRIVER(ipc_open, "%u %u", sweep_bytes(&handle, sizeof(handle)), flags);
    *ret = AT + (1024 + (uint64_t)handle.reserved[0] % 4 * 8) * UNIT; /* one address for several segments */
    return CUDA_SUCCESS;
}

static CUresult ipc_close(CUdeviceptr addr)
{
    DRIVER(ipc_close, "%llx", (ull)addr);
    return CUDA_SUCCESS;
}

const struct real_driver *real_driver_get(void)
{
    return fake.no_driver ? NULL : &fake.driver;
}

void *real_find(enum real_symbol symbol)
{
    switch (symbol) {
    case REAL_cuMemExportToShareableHandle:
        return (void *)export_handle;
    case REAL_cuMemRetainAllocationHandle:
        return (void *)retain;
    case REAL_cuMemRelease:
        return (void *)release;
    case REAL_cuIpcGetMemHandle:
        return (void *)ipc_get;
    case REAL_cuIpcOpenMemHandle_v2:
        return (void *)ipc_open;
    case REAL_cuIpcCloseMemHandle:
        return (void *)ipc_close;
    case REAL_cuMemImportFromShareableHandle:
        return (void *)take;
    default:
        return NULL;
    }
}

/* --- the library --- */

int context_device(const struct context *context)
{
    return context ? 1 : 0;
}

struct context *context_current(const struct real_driver *driver)
{
    sweep_note("seen %d", driver == &fake.driver);
    return NULL;
}

CUresult context_wait_handle(CUcontext handle)
{
    DRIVER(wait_handle, "%p", (void *)handle);
    return CUDA_SUCCESS;
}

CUresult context_wait_all(uint64_t limit, bool *ret_late)
{
    const int late = SWEEP_ERROR("wait_all late", CUDA_ERROR_NOT_READY);

    DRIVER(wait_all, "%d", limit == WAIT_NO_LIMIT);
    *ret_late = false;
    return (CUresult)late;
}

CUresult context_wait_primaries(void)
{
    const int late = SWEEP_ERROR("wait_primaries late", CUDA_ERROR_NOT_READY);

    DRIVER(wait_primaries, "wait");
    return (CUresult)late;
}

bool capture_active_now(void)
{
    return SWEEP_ERROR("capture", 1);
}

uint64_t ipc_peer_limit(void)
{
    return 5;
}

int ipc_peer_ask(const struct ipc_ticket *ticket, uint64_t limit, struct ipc_peer **ret_peer,
                 struct ipc_grant *ret_grant, int *ret_fd)
{
    const int rc = -SWEEP_ERROR("ask", ECONNREFUSED, ECONNRESET, EPIPE, ETIMEDOUT);

    sweep_note("%d until %llu", ticket->block.bytes[0], (ull)limit);
    *ret_fd = -1;
    if (rc)
        return rc;
    if (fake.with_descriptor)
        *ret_fd = system_given(3);
    *ret_peer = (struct ipc_peer *)&fake;
    *ret_grant = fake.grant;
    fake.grants++;
    return 0;
}

void ipc_peer_close(struct ipc_peer *peer, const struct ipc_name *block)
{
    sweep_note("peer closes %d %d", block->bytes[0], peer == (struct ipc_peer *)&fake);
    fake.grants--;
}

const char *ipc_peer_reason(int rc)
{
    return rc ? "a reason" : "none";
}

void log_write(enum conf_log_level level, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    sweep_note("%d %s", level, sweep_words(format, args));
    va_end(args);
    sweep_say(" (said)");
}

void trace_event(const char *event, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    sweep_note("%s %s", event, sweep_words(format, args));
    va_end(args);
}

int vmm_descriptor_get(uint64_t addr, uint64_t *ret_number)
{
    *ret_number = 5;
    sweep_note("%llx", (ull)addr);
    return SWEEP_ERROR("kept", 1) ? system_given(3) : -1;
}

void vmm_descriptor_keep(uint64_t addr, uint64_t number, int fd)
{
    sweep_note("keep %llx %llu %s", (ull)addr, (ull)number, system_name(fd));
}

struct vmm_mapping *vmm_find(uint64_t addr)
{
    sweep_note("find %llx", (ull)addr);
    for (unsigned int i = 0; i < fake.mapped; i++)
        if (fake.mappings[i].addr == addr && fake.mappings[i].size)
            return &fake.mappings[i];
    return NULL;
}

size_t vmm_front(uint64_t addr)
{
    return addr ? 4096 : 0;
}

void vmm_reach(const struct real_driver *driver, int device, int from)
{
    sweep_note("reach %d %d %d", device, from, driver == &fake.driver);
}

bool vmm_reaches(int device, int from)
{
    sweep_note("reaches %d %d", device, from);
    return fake.reaches;
}

CUresult vmm_map_handle(const struct real_driver *driver, int device, CUmemGenericAllocationHandle handle, size_t size,
                        struct vmm_mapping **ret_mapping)
{
    DRIVER(map_handle, "%d %llx %zu %d", device, (ull)handle, size, driver == &fake.driver);
    fake.mappings[fake.mapped] = (struct vmm_mapping){.addr = AT + (2048 + 64 * fake.mapped) * UNIT, .size = size};
    *ret_mapping = &fake.mappings[fake.mapped++];
    return CUDA_SUCCESS;
}

CUresult vmm_unmap(const struct real_driver *driver, struct vmm_mapping *mapping)
{
    mapping->size = 0;
    DRIVER(vmm_unmap, "%llx %d", (ull)mapping->addr, driver == &fake.driver);
    return CUDA_SUCCESS;
}

#endif
