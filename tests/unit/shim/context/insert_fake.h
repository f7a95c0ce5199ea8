/* SPDX-License-Identifier: Apache-2.0 */
/*
 * insert_fake.h - a driver and an exporter for test_insert.c: what is reserved, taken, granted and mapped, and calls
 * that are refused. Each call first runs fake.during, which stands for other threads.
 *
 * Only test_insert.c includes it. Threads: one.
 */
#ifndef CUPOOL_TESTS_SHIM_INSERT_FAKE_H
#define CUPOOL_TESTS_SHIM_INSERT_FAKE_H

#include <fcntl.h>

#include "base/log.h"
#include "cases.h"
#include "context/capture_gate.h"
#include "context/ipc_insert.h"
#include "context/ipc_map.h"
#include "context/ipc_peer.h"
#include "context/lifetime.h"
#include "context/wait_device.h"
#include "pool.h"
#include "trace/trace.h"

#define UNIT     ((uint64_t)POOL_SEGMENT_UNIT)
#define MAPS_MAX 64

static struct {
    struct real_driver driver;
    bool no_driver, absent, captures; /* absent: the driver has not been initialised */
    CUresult refuses;                 /* what the next calls return, `times` of them, after `from` more */
    unsigned int times, from;
    void (*during)(void); /* once */
    uint64_t next;        /* the address of the next range */
    size_t reserved;      /* bytes */
    unsigned int handles; /* that are taken */
    unsigned int grants;  /* that are held */
    unsigned int known;   /* calls that let the library know of the current context */
    unsigned int waits;   /* for known contexts, and then others, since the last unmapping */
    int rc;               /* of ipc_peer_ask */
    struct ipc_grant grant;
    size_t behind; /* bytes of the segment behind the block */
    int device;
    char told[128]; /* the last event */
    char said[256]; /* the last line of the log */
    struct {
        uint64_t at, size;
    } maps[MAPS_MAX];
} fake;

static CUresult scripted(void)
{
    void (*during)(void) = fake.during;

    fake.during = NULL;
    if (during)
        during();
    if (fake.from || !fake.times) {
        fake.from -= fake.from != 0;
        return CUDA_SUCCESS;
    }
    fake.times--;
    return fake.refuses;
}

static void refuse(CUresult result, unsigned int from, unsigned int times)
{
    fake.refuses = result;
    fake.from = from;
    fake.times = times;
}

static CUresult reserve(CUdeviceptr *ret, size_t size, size_t align, CUdeviceptr addr, unsigned long long flags)
{
    const CUresult result = scripted();

    assert_int_equal(align, UNIT);
    assert_int_equal(addr + flags, 0);
    if (!result) {
        *ret = fake.next;
        fake.next += size; /* ranges may be side by side */
        fake.reserved += size;
    }
    return result;
}

static CUresult address_free(CUdeviceptr addr, size_t size)
{
    const CUresult result = scripted();

    for (unsigned int i = 0; i < MAPS_MAX; i++)
        assert_true(!fake.maps[i].size || fake.maps[i].at + fake.maps[i].size <= addr ||
                    addr + size <= fake.maps[i].at);
    fake.reserved -= result ? 0 : size;
    return result;
}

static CUresult unmap(CUdeviceptr at, size_t size)
{
    const CUresult result = scripted();
    unsigned int i = 0;

    assert_int_equal(fake.waits, 2); /* for the work that uses it, of known contexts and of others */
    while (fake.maps[i].at != at)
        i++;
    assert_int_equal(fake.maps[i].size, size);
    if (!result) {
        fake.maps[i].at = fake.maps[i].size = 0;
        fake.waits = 0;
    }
    return result;
}

static CUresult release(CUmemGenericAllocationHandle handle)
{
    const CUresult result = scripted();

    assert_int_not_equal(handle, 0);
    fake.handles -= !result;
    return result;
}

/* Only their being there matters. */
static CUresult map_ignored(CUdeviceptr at, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                            unsigned long long flags)
{
    return at + size + offset + handle + flags ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
}

static CUresult access_ignored(CUdeviceptr at, size_t size, const CUmemAccessDesc *access, size_t count)
{
    return access && at + size + count ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
}

static CUresult uuid_ignored(CUuuid *uuid, CUdevice device)
{
    memset(uuid, device, sizeof(*uuid));
    return CUDA_SUCCESS;
}

static CUresult device_count(int *ret)
{
    *ret = 1;
    return fake.absent ? CUDA_ERROR_NOT_INITIALIZED : CUDA_SUCCESS;
}

const struct real_driver *real_driver_get(void)
{
    return fake.no_driver ? NULL : &fake.driver;
}

bool capture_active_now(void)
{
    return fake.captures;
}

struct context *context_current(const struct real_driver *driver)
{
    assert_ptr_equal(driver, &fake.driver);
    fake.known++;
    return NULL;
}

CUresult context_wait_all(uint64_t limit, bool *ret_late)
{
    const CUresult result = scripted();

    assert_int_equal(limit, WAIT_NO_LIMIT);
    fake.waits = !result;
    *ret_late = false;
    return result;
}

CUresult context_wait_primaries(void)
{
    const CUresult result = scripted();

    fake.waits += fake.waits && !result;
    return result;
}

int ipc_map_device(const unsigned char *card)
{
    assert_int_equal(card[0], 7);
    return fake.device;
}

CUresult ipc_map_take(int fd, CUmemGenericAllocationHandle *ret_handle)
{
    const CUresult result = scripted();

    assert_true(fcntl(fd, F_GETFD) >= 0);
    *ret_handle = 1;
    fake.handles += !result;
    return result;
}

CUresult ipc_map_place(CUmemGenericAllocationHandle handle, uint64_t at, size_t size, int device)
{
    const CUresult result = scripted();
    unsigned int i = 0;

    assert_int_equal(handle, 1);
    assert_int_equal(device, fake.device);
    while (fake.maps[i].size)
        i++;
    if (!result) {
        fake.maps[i].at = at;
        fake.maps[i].size = size;
    }
    return result;
}

uint64_t ipc_peer_limit(void)
{
    return 5;
}

int ipc_peer_ask(const struct ipc_ticket *ticket, uint64_t limit, struct ipc_peer **ret_peer,
                 struct ipc_grant *ret_grant, int *ret_fd)
{
    void (*during)(void) = fake.during;

    assert_int_equal(limit, 5);
    assert_int_equal(ticket->block.bytes[0], 3);
    fake.during = NULL;
    if (during)
        during();
    *ret_fd = -1;
    if (fake.rc)
        return fake.rc;
    *ret_peer = (struct ipc_peer *)&fake;
    *ret_grant = fake.grant;
    if (fake.grant.how == IPC_DESCRIPTOR) {
        *ret_fd = fcntl(0, F_DUPFD_CLOEXEC, 100);
        assert_int_equal(*ret_fd, 100); /* none is left open */
    }
    fake.grants++;
    return 0;
}

void ipc_peer_close(struct ipc_peer *peer, const struct ipc_name *block)
{
    assert_ptr_equal(peer, &fake);
    assert_int_equal(block->bytes[0], 3);
    fake.grants--;
}

const char *ipc_peer_reason(int rc)
{
    return rc ? "reason" : "";
}

void trace_event(const char *event, const char *format, ...)
{
    const int n = snprintf(fake.told, sizeof(fake.told), "%s ", event);
    va_list args;

    va_start(args, format);
    vsnprintf(fake.told + n, sizeof(fake.told) - (size_t)n, format, args);
    va_end(args);
}

void log_write(enum conf_log_level level, const char *format, ...)
{
    va_list args;

    assert_int_equal(level, LOG_WARN);
    va_start(args, format);
    vsnprintf(fake.said, sizeof(fake.said), format, args);
    va_end(args);
}

static int start(void **state)
{
    insert_forget();
    memset(&fake, 0, sizeof(fake));
    fake.next = 64 * UNIT;
    fake.driver = (struct real_driver){.cuMemAddressReserve = reserve,
                                       .cuMemAddressFree = address_free,
                                       .cuMemMap = map_ignored,
                                       .cuMemUnmap = unmap,
                                       .cuMemSetAccess = access_ignored,
                                       .cuMemRelease = release,
                                       .cuDeviceGetCount = device_count,
                                       .cuDeviceGetUuid_v2 = uuid_ignored};
    fake.grant = (struct ipc_grant){
        .how = IPC_DESCRIPTOR, .segment_size = 2 * UNIT, .size = 2 * UNIT - 100, .card = {7}, .number = 1};
    return 0;
}

#endif
