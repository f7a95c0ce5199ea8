/* SPDX-License-Identifier: Apache-2.0 */
/* fake_driver.c - see fake_driver.h. */
#include "fake_driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STACK 8

struct fake fake;

static __thread struct {
    CUcontext stack[STACK];
    unsigned int depth; /* of what was pushed */
    CUstreamCaptureMode mode;
} thread;

/* --- names of things --- */

static const char *context_name(CUcontext handle)
{
    static char names[4][16];
    static unsigned int next;
    char *name = names[next++ % 4];

    if (handle)
        snprintf(name, sizeof(names[0]), "c%d", (int)(fake_context_of(handle) - fake.contexts));
    return handle ? name : "none";
}

static int event_number(CUevent event)
{
    return event ? (int)((struct fake_event *)event - fake.events) : -1;
}

int fake_stream_number(CUstream stream)
{
    return stream == (CUstream)-1   ? -100
           : (uintptr_t)stream > 16 ? (int)((struct fake_stream *)stream - fake.streams)
                                    : -(int)(uintptr_t)stream;
}

/* The result of a call that the log names; an error of the current context comes first. */
#define CALLED(name, ...)                                                                                              \
    do {                                                                                                               \
        const CUresult scripted_ = (fake_log_add(__VA_ARGS__), fake_called(FN(name), NULL));                           \
        if (scripted_)                                                                                                 \
            return scripted_;                                                                                          \
    } while (0)
/* For a query, which leaves no word in the log of a test that does not count the calls. */
#define ASKED(name)                                                                                                    \
    do {                                                                                                               \
        const CUresult scripted_ = fake_called(FN(name), "?%s", #name);                                                \
        if (scripted_)                                                                                                 \
            return scripted_;                                                                                          \
    } while (0)

/* --- contexts --- */

struct fake_context *fake_context_of(CUcontext handle)
{
    return (struct fake_context *)handle;
}

CUcontext fake_context(unsigned int i)
{
    return (CUcontext)&fake.contexts[i];
}

static CUcontext current(void)
{
    return thread.stack[thread.depth];
}

void fake_current(CUcontext handle)
{
    thread.stack[thread.depth] = handle;
}

bool fake_thread_is_clean(CUcontext handle)
{
    return !thread.depth && current() == handle && thread.mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
}

static CUresult get_current(CUcontext *handle)
{
    ASKED(cuCtxGetCurrent);
    *handle = current();
    return CUDA_SUCCESS;
}

static CUresult get_device(CUdevice *device)
{
    ASKED(cuCtxGetDevice);
    if (!current())
        return CUDA_ERROR_INVALID_CONTEXT;
    *device = fake_context_of(current())->device;
    return CUDA_SUCCESS;
}

static CUresult push(CUcontext handle)
{
    CALLED(cuCtxPushCurrent_v2, "push:%s", context_name(handle));
    thread.stack[++thread.depth] = handle;
    return CUDA_SUCCESS;
}

static CUresult pop(CUcontext *handle)
{
    CALLED(cuCtxPopCurrent_v2, "pop");
    *handle = current();
    thread.depth--;
    return CUDA_SUCCESS;
}

static CUresult get_id(CUcontext handle, unsigned long long *id)
{
    ASKED(cuCtxGetId);
    handle = handle ? handle : current();
    if (!handle)
        return CUDA_ERROR_INVALID_CONTEXT;
    *id = fake_context_of(handle)->id;
    return CUDA_SUCCESS;
}

static CUresult retain(CUcontext *handle, CUdevice device)
{
    CALLED(cuDevicePrimaryCtxRetain, "retain:%d", device);
    *handle = fake_context((unsigned int)device);
    return CUDA_SUCCESS;
}

static CUresult release_primary(CUdevice device)
{
    CALLED(cuDevicePrimaryCtxRelease_v2, "release:%d", device);
    return CUDA_SUCCESS;
}

static CUresult get_state(CUdevice device, unsigned int *flags, int *active)
{
    ASKED(cuDevicePrimaryCtxGetState);
    *flags = 0;
    *active = fake.contexts[device].active;
    return CUDA_SUCCESS;
}

static CUresult exchange(CUstreamCaptureMode *mode)
{
    const CUstreamCaptureMode before = thread.mode;

    ASKED(cuThreadExchangeStreamCaptureMode);
    thread.mode = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}

/* --- work --- */

static CUresult synchronize(void)
{
    struct fake_context *context = fake_context_of(current());

    CALLED(cuCtxSynchronize, "sync:%s", context_name(current()));
    if (!current())
        return CUDA_ERROR_INVALID_CONTEXT;
    context->over = context->launched;
    return context->error;
}

static CUresult event_create(CUevent *event, unsigned int flags)
{
    CALLED(cuEventCreate, "event:%s,%u", context_name(current()), flags);
    if (!current())
        return CUDA_ERROR_INVALID_CONTEXT;
    *event = (CUevent)&fake.events[fake.events_made++ % FAKE_EVENTS];
    return CUDA_SUCCESS;
}

static CUresult record(CUcontext handle, CUevent event)
{
    CALLED(cuCtxRecordEvent, "record:%s,e%d", context_name(handle), event_number(event));
    if (!handle)
        return CUDA_ERROR_INVALID_CONTEXT;
    *(struct fake_event *)event =
        (struct fake_event){.context = fake_context_of(handle), .at = fake_context_of(handle)->launched};
    return fake_context_of(handle)->error;
}

static CUresult wait(CUcontext handle, CUevent event)
{
    CALLED(cuCtxWaitEvent, "wait:%s,e%d", context_name(handle), event_number(event));
    return CUDA_SUCCESS;
}

static CUresult event_query(CUevent event)
{
    const struct fake_event *at = (const struct fake_event *)event;

    ASKED(cuEventQuery);
    if (at->stream)
        return at->stream->over < at->at ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
    if (at->context && at->context->error)
        return at->context->error;
    return at->context && at->context->over < at->at ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

static CUresult event_record(CUevent event, CUstream stream)
{
    struct fake_event *at = (struct fake_event *)event;

    CALLED(cuEventRecord, "record:e%d,s%d", event_number(event), fake_stream_number(stream));
    if ((uintptr_t)stream > 16)
        *at =
            (struct fake_event){.stream = (struct fake_stream *)stream, .at = ((struct fake_stream *)stream)->launched};
    return CUDA_SUCCESS;
}

static CUresult event_destroy(CUevent event)
{
    CALLED(cuEventDestroy_v2, "gone:e%d", event_number(event));
    return CUDA_SUCCESS;
}

/* --- streams --- */

CUstream fake_stream(unsigned int i, unsigned int context)
{
    fake.streams_made = i >= fake.streams_made ? i + 1 : fake.streams_made;
    fake.streams[i].context = &fake.contexts[context];
    return (CUstream)&fake.streams[i];
}

static CUresult stream_create(CUstream *stream, unsigned int flags)
{
    CALLED(cuStreamCreate, "stream:%s,%u", context_name(current()), flags);
    if (!current())
        return CUDA_ERROR_INVALID_CONTEXT;
    *stream = fake_stream(fake.streams_made, (unsigned int)(fake_context_of(current()) - fake.contexts));
    return CUDA_SUCCESS;
}

static CUresult stream_context(CUstream stream, CUcontext *handle)
{
    ASKED(cuStreamGetCtx);
    if ((uintptr_t)stream <= 16)
        return CUDA_ERROR_INVALID_HANDLE;
    *handle = (CUcontext)((struct fake_stream *)stream)->context;
    return CUDA_SUCCESS;
}

static CUresult stream_green(CUstream stream, CUgreenCtx *green)
{
    const CUcontext handle = (uintptr_t)stream <= 16 ? current() : (CUcontext)((struct fake_stream *)stream)->context;

    ASKED(cuStreamGetGreenCtx);
    *green = fake_context_of(handle)->green ? (CUgreenCtx)handle : NULL;
    return CUDA_SUCCESS;
}

static CUresult stream_captures(CUstream stream, CUstreamCaptureStatus *status)
{
    ASKED(cuStreamIsCapturing);
    *status = (uintptr_t)stream > 16 ? ((struct fake_stream *)stream)->captures : CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
}

static CUresult stream_query(CUstream stream)
{
    const struct fake_stream *of = (const struct fake_stream *)stream;

    ASKED(cuStreamQuery);
    if ((uintptr_t)stream <= 16)
        return CUDA_SUCCESS;
    return of->over < of->launched ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

static CUresult stream_synchronize(CUstream stream)
{
    struct fake_stream *of = (struct fake_stream *)stream;

    CALLED(cuStreamSynchronize, "sync:s%d", fake_stream_number(stream));
    of->over = of->launched;
    return CUDA_SUCCESS;
}

static CUresult set(CUdeviceptr addr, unsigned char byte, size_t size, CUstream stream)
{
    CALLED(cuMemsetD8Async, "set:%#llx,%u,%zu,s%d", addr, byte, size, fake_stream_number(stream));
    fake.bytes_at = size > 1 ? addr : fake.bytes_at;
    if (addr - fake.bytes_at < sizeof(fake.bytes) && size <= sizeof(fake.bytes) - (addr - fake.bytes_at))
        memset(fake.bytes + (addr - fake.bytes_at), byte, size);
    return CUDA_SUCCESS;
}

static CUresult read_back(void *to, CUdeviceptr addr, size_t size, CUstream stream)
{
    CALLED(cuMemcpyDtoHAsync_v2, "read:%#llx,%zu,s%d", addr, size, fake_stream_number(stream));
    if (fake.bytes_at && addr == fake.bytes_at && size <= sizeof(fake.bytes))
        memcpy(to, fake.bytes, size);
    else
        memset(to, 0x5a, size);
    return CUDA_SUCCESS;
}

/* --- memory --- */

void fake_range_add(CUdeviceptr addr, size_t size, CUmemorytype type, int device)
{
    for (unsigned int i = 0; i < FAKE_RANGES; i++)
        if (!fake.ranges[i].size) {
            fake.ranges[i] = (struct fake_range){addr, size, type, device, false};
            return;
        }
    abort();
}

struct fake_range *fake_range_of(CUdeviceptr addr)
{
    for (unsigned int i = 0; i < FAKE_RANGES; i++)
        if (addr - fake.ranges[i].addr < fake.ranges[i].size)
            return &fake.ranges[i];
    return NULL;
}

static CUresult mem_alloc(CUdeviceptr *addr, size_t size)
{
    CALLED(cuMemAlloc_v2, "alloc:%s,%zu", context_name(current()), size);
    if (!current())
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!size)
        return CUDA_ERROR_INVALID_VALUE;
    if (size > fake.free)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *addr = fake.next;
    fake.next += (size + 2 * MIB - 1) / (2 * MIB) * 2 * MIB;
    fake.free -= size;
    fake_range_add(*addr, size, CU_MEMORYTYPE_DEVICE, fake_context_of(current())->device);
    return CUDA_SUCCESS;
}

static CUresult range_free(CUdeviceptr addr)
{
    struct fake_range *range = fake_range_of(addr);

    if (!range || range->addr != addr)
        return CUDA_ERROR_INVALID_VALUE;
    fake.free += range->size;
    range->size = 0;
    return CUDA_SUCCESS;
}

static CUresult mem_free(CUdeviceptr addr)
{
    CALLED(cuMemFree_v2, "free:%#llx", addr);
    return range_free(addr);
}

static CUresult mem_free_async(CUdeviceptr addr, CUstream stream)
{
    CALLED(cuMemFreeAsync, "free:%#llx,s%d", addr, fake_stream_number(stream));
    return range_free(addr);
}

static CUresult mem_info(size_t *free, size_t *total)
{
    ASKED(cuMemGetInfo_v2);
    if (current() && fake_context_of(current())->error)
        return fake_context_of(current())->error;
    *free = fake.free;
    *total = FAKE_CAPACITY;
    return CUDA_SUCCESS;
}

static CUresult pointer_attribute(void *data, CUpointer_attribute attribute, CUdeviceptr addr)
{
    const struct fake_range *range = fake_range_of(addr);

    ASKED(cuPointerGetAttribute);
    if (!range)
        return CUDA_ERROR_INVALID_VALUE;
    if (attribute == CU_POINTER_ATTRIBUTE_MEMORY_TYPE)
        *(CUmemorytype *)data = range->type;
    else if (attribute == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)
        *(int *)data = range->device;
    else if (attribute == CU_POINTER_ATTRIBUTE_BUFFER_ID)
        *(unsigned long long *)data = range->addr; /* no address comes twice */
    else if (attribute == CU_POINTER_ATTRIBUTE_RANGE_START_ADDR)
        *(CUdeviceptr *)data = range->addr;
    else if (attribute == CU_POINTER_ATTRIBUTE_RANGE_SIZE)
        *(size_t *)data = range->size;
    else if (attribute == CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES)
        *(unsigned long long *)data = range->shareable;
    else
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

/* --- devices --- */

static CUresult version(int *ret_version)
{
    ASKED(cuDriverGetVersion);
    *ret_version = fake.version;
    return CUDA_SUCCESS;
}

static CUresult device_attribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
    ASKED(cuDeviceGetAttribute);
    *value = attribute == CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED && device < fake.devices && fake.pools;
    return CUDA_SUCCESS;
}

static CUresult device_count(int *count)
{
    ASKED(cuDeviceGetCount);
    *count = fake.devices;
    return CUDA_SUCCESS;
}

static CUresult device_name(char *name, int len, CUdevice device)
{
    ASKED(cuDeviceGetName);
    snprintf(name, (size_t)len, "Fake \"%d\"", device);
    return CUDA_SUCCESS;
}

static CUresult device_uuid(CUuuid *uuid, CUdevice device)
{
    ASKED(cuDeviceGetUuid_v2);
    for (unsigned int i = 0; i < sizeof(uuid->bytes); i++)
        uuid->bytes[i] = (char)(i * 17 + (unsigned int)device);
    return CUDA_SUCCESS;
}

static const struct real_driver complete = {.cuMemAlloc_v2 = mem_alloc,
                                            .cuMemFree_v2 = mem_free,
                                            .cuMemGetInfo_v2 = mem_info,
                                            .cuCtxGetCurrent = get_current,
                                            .cuCtxGetDevice = get_device,
                                            .cuCtxPushCurrent_v2 = push,
                                            .cuCtxPopCurrent_v2 = pop,
                                            .cuCtxSynchronize = synchronize,
                                            .cuCtxRecordEvent = record,
                                            .cuCtxWaitEvent = wait,
                                            .cuEventCreate = event_create,
                                            .cuDevicePrimaryCtxRetain = retain,
                                            .cuDevicePrimaryCtxRelease_v2 = release_primary,
                                            .cuDevicePrimaryCtxGetState = get_state,
                                            .cuStreamGetCtx = stream_context,
                                            .cuStreamGetGreenCtx = stream_green,
                                            .cuStreamIsCapturing = stream_captures,
                                            .cuThreadExchangeStreamCaptureMode = exchange,
                                            .cuDriverGetVersion = version,
                                            .cuEventQuery = event_query,
                                            .cuEventDestroy_v2 = event_destroy,
                                            .cuPointerGetAttribute = pointer_attribute,
                                            .cuStreamCreate = stream_create,
                                            .cuStreamQuery = stream_query,
                                            .cuStreamSynchronize = stream_synchronize,
                                            .cuMemsetD8Async = set,
                                            .cuMemFreeAsync = mem_free_async,
                                            .cuCtxGetId = get_id,
                                            .cuDeviceGetAttribute = device_attribute,
                                            .cuDeviceGetCount = device_count,
                                            .cuDeviceGetName = device_name,
                                            .cuDeviceGetUuid_v2 = device_uuid,
                                            .cuMemcpyDtoHAsync_v2 = read_back,
                                            .cuEventRecord = event_record};

void fake_start(void)
{
    memset(&fake, 0, sizeof(fake));
    fake.driver = complete;
    fake.version = 13000;
    fake.devices = 1;
    for (unsigned int i = 0; i < FAKE_CONTEXTS; i++) {
        fake.contexts[i].device = i < FAKE_DEVICES ? (int)i : 0;
        fake.contexts[i].id = i + 1;
    }
    fake.contexts[0].active = true;
    fake.next = 0x7f0000000000;
    fake.free = FAKE_CAPACITY;
    fake.pools = true;
    atomic_store(&fake.ns, 1000 * SECOND_NS);
    fake.relax_step = 1000000;
    fake_current(fake_context(0));
}
