/* SPDX-License-Identifier: Apache-2.0 */
/* sweep_exports_fake.h - everything below the exported functions of test_sweep_exports.c, which alone includes it: each
 * function notes its arguments and returns the usual answer, or in its turn another one. */
#ifndef CUPOOL_TESTS_SHIM_SWEEP_EXPORTS_FAKE_H
#define CUPOOL_TESTS_SHIM_SWEEP_EXPORTS_FAKE_H

#include "base/conf.h"
#include "base/ipc_message.h"
#include "base/log.h"
#include "base/memory_limit.h"
#include "base/process.h"
#include "cases.h"
#include "context/backend.h"
#include "context/device.h"
#include "context/device_free.h"
#include "context/driver_free.h"
#include "context/host_memory.h"
#include "context/ipc_import.h"
#include "context/ipc_insert.h"
#include "context/ipc_map.h"
#include "context/ipc_native.h"
#include "context/ipc_server.h"
#include "context/ipc_table.h"
#include "context/lifetime.h"
#include "context/nccl_memory.h"
#include "context/pins.h"
#include "context/registry.h"
#include "context/strict.h"
#include "context/vmm_kept.h"
#include "context/vmm_map.h"
#include "exports/hazards.h"
#include "exports/memory.h"
#include "exports/retry.h"
#include "exports/vmm_served.h"
#include "nccl/direct.h"
#include "pool.h"
#include "real/caller.h"
#include "real/real.h"
#include "report/background_thread.h"
#include "report/guard.h"
#include "report/oom.h"
#include "report/unpooled.h"
#include "serve/ipc_handles.h"
#include "serve/pinned_requests.h"
#include "serve/serve.h"
#include "sweep_system.h"
#include "trace/json.h"
#include "trace/trace.h"

typedef unsigned long long ull;

static struct conf conf;
static struct real_driver driver;
static bool cache_serves, cache_is_none, memory_is_pooled, tickets, handle_is_ticket, host_is_none, no_driver;
static const char *object; /* the caller's */

__thread unsigned int process_depth __attribute__((tls_model("initial-exec"), visibility("hidden")));
__thread struct retry_later retry_later __attribute__((tls_model("initial-exec"), visibility("hidden")));
atomic_int process_state = PROCESS_ACTIVE, trace_prospect = TRACE_UNDECIDED, guard_mode;
atomic_uint ipc_import_blocks;

/* An answer that sweeps try in the place of others. */
#define ZERO (-1000)

static long answer(const char *name, long usual, const int *others)
{
    const int other = sweep_error(name, others);

    return other == ZERO ? 0 : other ? other : usual;
}

#define ANSWER(type, name, parameters, usual, others, ...)                                                             \
    type name parameters                                                                                               \
    {                                                                                                                  \
        sweep_note(":" __VA_ARGS__);                                                                                   \
        return (type)answer(#name, (long)(usual), (const int[])others);                                                \
    }
#define OR(...)                                                                                                        \
    {                                                                                                                  \
        __VA_ARGS__, 0                                                                                                 \
    }
/* A question that is usually answered so. */
#define IS(name, parameters, usual, ...)                                                                               \
    bool name parameters                                                                                               \
    {                                                                                                                  \
        sweep_note(":" __VA_ARGS__);                                                                                   \
        return answer(#name, usual, (const int[]){(usual) ? ZERO : 1, 0});                                             \
    }
#define TOLD(name, parameters, ...)                                                                                    \
    void name parameters                                                                                               \
    {                                                                                                                  \
        sweep_note(#name " " __VA_ARGS__);                                                                             \
    }

const struct conf *conf_get(void)
{
    return &conf;
}

const struct real_driver *real_driver_get(void)
{
    return no_driver ? NULL : &driver;
}

#define NOTE(name)                                                                                                     \
    case REAL_##name:                                                                                                  \
        sweep_note("real " #name);                                                                                     \
        break;

static int next(void)
{
    return SWEEP_ERROR("next", CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OUT_OF_MEMORY);
}

/* It is given back where the program's own address would be wrong. */
static int next_free_host(const void *addr)
{
    sweep_note("of %p", addr);
    return next();
}

void *real_find(enum real_symbol symbol)
{
    switch (symbol) {
        NOTE(cuMemCreate)
        NOTE(cuMemImportFromShareableHandle)
        NOTE(cuMulticastCreate)
        NOTE(cuMemRetainAllocationHandle)
        NOTE(cuMemRelease)
        NOTE(cuMemAddressReserve)
        NOTE(cuMemAddressFree)
        NOTE(cuMemMap)
        NOTE(cuMemUnmap)
        NOTE(cuMemSetAccess)
        NOTE(cuMemGetAccess)
        NOTE(cuMemGetAllocationPropertiesFromHandle)
        NOTE(cuMulticastBindMem)
        NOTE(cuMulticastBindMem_v2)
        NOTE(cuMulticastBindAddr)
        NOTE(cuMulticastBindAddr_v2)
        NOTE(cuMemMapArrayAsync)
        NOTE(cuMemMapArrayAsync_ptsz)
        NOTE(cuIpcGetMemHandle)
        NOTE(cuIpcOpenMemHandle)
        NOTE(cuIpcOpenMemHandle_v2)
        NOTE(cuIpcCloseMemHandle)
        NOTE(cuMemAllocHost_v2)
        NOTE(cuMemHostAlloc)
        NOTE(cuMemFreeHost)
        NOTE(cuMemGetInfo_v2)
        NOTE(cudaMallocHost)
        NOTE(cudaHostAlloc)
    default:
        sweep_note("another");
    }
    return symbol == REAL_cuMemFreeHost ? (void *)next_free_host : (void *)next;
}

void *real_find_for(enum real_symbol symbol, const void *caller)
{
    sweep_note("for %d", caller != NULL);
    return real_find(symbol);
}

void caller_name(const void *address, char *buf, size_t len)
{
    snprintf(buf, len, "%s%s", object ? object : "program", address ? "" : "?");
}

void log_write(enum conf_log_level level, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    sweep_note("%d %s", level, sweep_words(format, args));
    va_end(args);
}

void trace_event(const char *event, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    sweep_note("%s %s", event, sweep_words(format, args));
    va_end(args);
}

void trace_frequent_at(uint64_t clock, const char *event, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    sweep_note("%llu %s %s", (ull)clock, event, sweep_words(format, args));
    va_end(args);
}

/* --- the process, the caller, the context --- */

IS(process_may_start, (void), true)
IS(process_hooks_driver, (void), true)
IS(process_traces, (void), true)
IS(trace_decide, (void), true)
IS(memory_has_context, (void), true)
IS(serve_watches, (const void *caller), true, "%d", caller != NULL)
IS(serve_is_freed, (uint64_t addr, const void *caller), false, "%d", caller != NULL)
ANSWER(enum caller, caller_of, (const void *address), CALLER_PROGRAM, OR(CALLER_MATH, CALLER_INSIDE, CALLER_TRANSFER),
       "%d", address != NULL)
ANSWER(unsigned int, serve_arrivals, (void), 3, OR(4))
IS(device_may_fit, (int device, size_t size), true, "%d,%zu", device, size)
IS(serve_give_back, (unsigned int before, size_t wanted, bool often), false, "%u", before)
IS(serve_give_back_on, (int device, unsigned int before, size_t wanted, bool often), false, "%d,%u,%zu", device, before,
   wanted)
IS(serve_give_back_anywhere, (size_t wanted), false, "%zu", wanted)
IS(serve_ask, (size_t wanted, size_t enough, struct pool_asking *asking), false, "%zu,%zu", wanted, enough)
IS(serve_ask_on, (int device, size_t wanted, struct pool_asking *asking), false, "%d,%zu", device, wanted)
IS(serve_has_asked, (void), false)
TOLD(serve_begin, (void))
TOLD(serve_call_from, (const void *caller), "%d", caller != NULL)
TOLD(process_start, (void))
TOLD(context_saw, (CUresult result), "%d", result)
TOLD(policy_strict, (int device, const char *why), "%d %s", device, why)
TOLD(policy_strict_memory, (CUdeviceptr addr, const char *why), "%llx %s", (ull)addr, why)
TOLD(hazard_memory_goes, (const void *caller), "%d", caller != NULL)
ANSWER(int, hazard_location_device, (const CUmemLocation *location), location->id, OR(-1))
ANSWER(struct context *, driver_free_begin, (CUdeviceptr addr), 0x70, OR(ZERO), "%llx", (ull)addr)
TOLD(driver_free_end, (struct context * context), "%p", (void *)context)
TOLD(json_clean, (char *text), "%s", text)

const void *serve_caller(const void *caller)
{
    return caller;
}

/* --- memory that is kept --- */

struct vmm_cache *vmm_kept_existing(void)
{
    return cache_is_none ? NULL : (struct vmm_cache *)answer("vmm_kept_existing", (long)&conf, (const int[])OR(ZERO));
}

struct vmm_cache *vmm_kept_cache(void)
{
    return cache_is_none ? NULL : (struct vmm_cache *)answer("vmm_kept_cache", (long)&conf, (const int[])OR(ZERO));
}

const void *vmm_kept_thread(void)
{
    return &conf;
}

IS(vmm_kept_serves, (void), true)
IS(vmm_kept_key,
   (const CUmemGenericAllocationHandle *to, const CUmemAllocationProp *properties, ull flags, struct vmm_key *ret),
   (ret->id = 5, true), "%llu", flags)
IS(vmm_kept_range, (const CUdeviceptr *to, size_t size, CUdeviceptr at, ull flags), true, "%zu %llx %llu", size,
   (ull)at, flags)
IS(vmm_kept_access, (const CUmemAccessDesc *access, size_t count, struct vmm_access ret[VMM_ACCESS_MAX]), true, "%zu",
   count)
ANSWER(uint64_t, vmm_kept_trim, (int device), 0, OR(7), "%d", device)
IS(vmm_cache_reserve, (struct vmm_cache * cache, const void *thread, size_t size, size_t align, uint64_t *ret),
   (*ret = 0x111, cache_serves), "%zu %zu", size, align)
IS(vmm_cache_create,
   (struct vmm_cache * cache, const void *thread, size_t size, const struct vmm_key *key, uint64_t *ret),
   (*ret = 0x222, cache_serves), "%zu %d", size, (int)key->id)
IS(vmm_cache_map,
   (struct vmm_cache * cache, const void *thread, uint64_t addr, size_t size, uint64_t handle, bool whole),
   cache_serves &&whole, "%llx %zu %llx %d", (ull)addr, size, (ull)handle, whole)
IS(vmm_cache_set_access,
   (struct vmm_cache * cache, uint64_t addr, size_t size, const struct vmm_access *access, size_t count,
    bool may_serve),
   cache_serves &&may_serve, "%llx %zu %zu %d", (ull)addr, size, count, may_serve)
IS(vmm_cache_unmap,
   (struct vmm_cache * cache, const void *thread, uint64_t addr, size_t size, bool may_serve, uint64_t now),
   cache_serves &&may_serve, "%llx %zu %d %llu", (ull)addr, size, may_serve, (ull)now)
IS(vmm_cache_release, (struct vmm_cache * cache, const void *thread, uint64_t handle, bool may_serve, uint64_t now),
   cache_serves &&may_serve, "%llx %d %llu", (ull)handle, may_serve, (ull)now)
IS(vmm_cache_unreserve,
   (struct vmm_cache * cache, const void *thread, uint64_t addr, size_t size, bool may_serve, uint64_t now),
   cache_serves &&may_serve, "%llx %zu %d %llu", (ull)addr, size, may_serve, (ull)now)
IS(vmm_cache_hides_access, (struct vmm_cache * cache, uint64_t addr, uint32_t location, uint32_t id), false,
   "%llx %u %u", (ull)addr, location, id)
TOLD(vmm_cache_make_room, (struct vmm_cache * cache, uint32_t device, size_t size), "%u %zu", device, size)
TOLD(vmm_cache_reserved, (struct vmm_cache * cache, uint64_t addr, size_t size, size_t align), "%llx %zu %zu",
     (ull)addr, size, align)
TOLD(vmm_cache_created, (struct vmm_cache * cache, uint64_t handle, size_t size, const struct vmm_key *key), "%llx %zu",
     (ull)handle, size)
TOLD(vmm_cache_mapped, (struct vmm_cache * cache, uint64_t addr, size_t size, uint64_t handle, bool whole),
     "%llx %zu %llx %d", (ull)addr, size, (ull)handle, whole)
TOLD(vmm_cache_unmapped, (struct vmm_cache * cache, uint64_t addr, size_t size), "%llx %zu", (ull)addr, size)
TOLD(vmm_cache_retained, (struct vmm_cache * cache, uint64_t addr, uint64_t handle), "%llx %llx", (ull)addr,
     (ull)handle)
TOLD(vmm_cache_access_set,
     (struct vmm_cache * cache, uint64_t addr, size_t size, const struct vmm_access *access, size_t count, bool ok),
     "%llx %zu %zu %d", (ull)addr, size, count, ok)
TOLD(vmm_cache_settle_range, (struct vmm_cache * cache, uint64_t addr, size_t size), "%llx %zu", (ull)addr, size)
TOLD(vmm_cache_settle_handle, (struct vmm_cache * cache, uint64_t handle), "%llx", (ull)handle)
TOLD(vmm_cache_forget_range, (struct vmm_cache * cache, uint64_t addr, size_t size), "%llx %zu", (ull)addr, size)
TOLD(vmm_cache_forget_handle, (struct vmm_cache * cache, uint64_t handle), "%llx", (ull)handle)
TOLD(device_free_taken, (size_t size), "%zu", size)
TOLD(direct_created, (CUmemGenericAllocationHandle handle, size_t size), "%llx %zu", (ull)handle, size)
TOLD(direct_mapped, (uint64_t addr, size_t size, CUmemGenericAllocationHandle handle), "%llx %zu %llx", (ull)addr, size,
     (ull)handle)
TOLD(direct_unmaps, (uint64_t addr, size_t size), "%llx %zu", (ull)addr, size)
TOLD(direct_unmapped, (uint64_t addr, size_t size, bool done), "%llx %zu %d", (ull)addr, size, done)
TOLD(direct_releases, (CUmemGenericAllocationHandle handle), "%llx", (ull)handle)
TOLD(unpooled_took, (enum unpooled kind, uint64_t bytes), "%d %llu", kind, (ull)bytes)
TOLD(nccl_works, (void))

/* --- the pool --- */

#define SEGMENT UINT64_C(0x7f0000000000)

struct pool *context_pool_at(uint64_t addr)
{
    sweep_note("pool of %llx", (ull)addr);
    return memory_is_pooled ? (struct pool *)answer("pool_of", (long)&conf, (const int[])OR(ZERO)) : NULL;
}

int pool_block_find(uint64_t addr, uint64_t *ret_base, size_t *ret_size, uint64_t *ret_segment)
{
    *ret_base = addr & ~UINT64_C(511);
    *ret_size = (size_t)SWEEP_ERROR("small", 512);
    *ret_size = *ret_size ? *ret_size : POOL_SEGMENT_UNIT;
    *ret_segment = SEGMENT;
    return -SWEEP_ERROR("pool_block_find", ENOENT);
}

int pool_segment_find(uint64_t addr, uint64_t *ret_base, size_t *ret_size)
{
    const int units = SWEEP_ERROR("segment of units", 2, 3);

    sweep_note("%llx", (ull)addr);
    *ret_base = SEGMENT;
    *ret_size = (size_t)(units ? units : 1) * POOL_SEGMENT_UNIT;
    return -SWEEP_ERROR("pool_segment_find", ENOENT);
}

IS(pool_is_live, (uint64_t addr), true, "%llx", (ull)addr)
IS(pool_is_suspended, (struct pool * pool), false)
ANSWER(unsigned int, pool_kind_get, (const struct pool *pool), BACKEND_VMM, OR(ZERO))
TOLD(pool_pack_never, (struct pool * pool))
ANSWER(int, pool_withdraw, (uint64_t addr), 0, OR(-ENOENT), "%llx", (ull)addr)
IS(nccl_memory_is_shareable, (uint64_t addr), true, "%llx", (ull)addr)
IS(nccl_ranks_agree, (void), false)
ANSWER(int, context_device, (const struct context *context), 2, OR(3))
TOLD(guard_block_size, (uint64_t addr, size_t *size), "%llx %zu", (ull)addr, *size)

struct context *context_of(const struct pool *pool)
{
    return (struct context *)&driver;
}

const char *backend_name(unsigned int backend)
{
    return backend ? "other" : "cuda";
}

struct vmm_mapping *vmm_find(uint64_t addr)
{
    sweep_note("vmm %llx", (ull)addr);
    return (struct vmm_mapping *)answer("vmm_find", tickets ? (long)&conf : 0, (const int[]){tickets ? ZERO : 1, 0});
}

/* --- memory of other processes --- */

IS(background_start, (void), true)
TOLD(background_wake, (void))
IS(ipc_server_is, (const struct ipc_name *station), false, "%d", station->bytes[0])
IS(ipc_table_has_segment, (uint64_t segment), false, "%llx", (ull)segment)
ANSWER(enum ipc_free, ipc_table_free, (uint64_t addr), IPC_FREE_NOW, OR(IPC_FREE_PARKED), "%llx", (ull)addr)
TOLD(ipc_native_opened, (uint64_t addr), "%llx", (ull)addr)
TOLD(ipc_native_closed, (uint64_t addr), "%llx", (ull)addr)
ANSWER(CUresult, ipc_map_describe,
       (const struct context *owner, uint64_t segment, size_t size, struct ipc_segment *ret), (ret->size = size, 0),
       OR(CUDA_ERROR_UNKNOWN), "%llx %zu", (ull)segment, size)
ANSWER(CUresult, ipc_import_open, (const struct ipc_ticket *ticket, CUdeviceptr *ret), (*ret = 0x333, 0),
       OR(CUDA_ERROR_MAP_FAILED))
ANSWER(CUresult, ipc_import_close, (CUdeviceptr addr, bool *ret_ours), (*ret_ours = true, 0), OR(CUDA_ERROR_UNKNOWN),
       "%llx", (ull)addr)
ANSWER(int64_t, insert_import, (const struct ipc_ticket *ticket, size_t *ret_size), 9, OR(-ENODEV))

int ipc_server_begin(struct ipc_name *ret_station, bool *ret_new)
{
    *ret_station = (struct ipc_name){{8}};
    *ret_new = !SWEEP_ERROR("old station", 1);
    return -SWEEP_ERROR("ipc_server_begin", EMFILE);
}

bool ipc_table_name(uint64_t addr, struct ipc_name *ret_block)
{
    sweep_note("%llx", (ull)addr);
    *ret_block = (struct ipc_name){{7}};
    return SWEEP_ERROR("ipc_table_name", 1);
}

int ipc_table_add(const struct context *owner, uint64_t addr, size_t size, const struct ipc_segment *segment,
                  struct ipc_name *ret_block)
{
    sweep_note("%llx %zu of %llx %llu %d", (ull)addr, size, (ull)segment->addr, (ull)segment->size, segment->fd);
    *ret_block = (struct ipc_name){{6}};
    return -SWEEP_ERROR("ipc_table_add", EAGAIN, ENOMEM, EBUSY);
}

bool ipc_import_range(uint64_t addr, uint64_t *ret_base, size_t *ret_size, CUcontext *ret_context)
{
    return answer("ipc_import_range", !memory_is_pooled, (const int[]){memory_is_pooled ? 1 : ZERO, 0});
}

void ipc_ticket_make(struct ipc_ticket *ret_ticket, int pid, const struct ipc_name *station,
                     const struct ipc_name *block)
{
    sweep_note("ticket %d %d %d", pid == getpid(), station->bytes[0], block->bytes[0]);
    ret_ticket->version = 1;
}

bool ipc_ticket_read(const void *handle, struct ipc_ticket *ret_ticket)
{
    *ret_ticket = (struct ipc_ticket){.station = {{4}}};
    return answer("ipc_ticket_read", handle_is_ticket, (const int[]){handle_is_ticket ? ZERO : 1, 0});
}

/* --- pinned memory --- */

struct host_pool *host_memory_pool(void)
{
    return host_is_none ? NULL : (struct host_pool *)answer("host_memory_pool", (long)&conf, (const int[])OR(ZERO));
}

struct host_pool *host_memory_make(const struct real_driver *its, uint64_t limit)
{
    sweep_note("%llu", (ull)limit);
    return (struct host_pool *)answer("host_memory_make", (long)&conf, (const int[])OR(ZERO));
}

struct context *context_begin(const struct real_driver *its, bool by_runtime, struct pins **ret_own)
{
    sweep_note("%d", by_runtime);
    *ret_own = NULL;
    return (struct context *)answer("context_begin", (long)&driver, (const int[])OR(ZERO));
}

static CUresult get_current(CUcontext *ret)
{
    return (CUresult)SWEEP_ERROR("cuCtxGetCurrent", CUDA_ERROR_NOT_PERMITTED, CUDA_ERROR_UNKNOWN);
}

ANSWER(int, host_memory_alloc, (struct context * context, unsigned int flags, size_t size, uint64_t *ret),
       (*ret = 0x444, 0), OR(-ENOMEM), "%u %zu", flags, size)
ANSWER(int, host_memory_owner, (uint64_t addr, struct context **ret), (*ret = (struct context *)&driver, 0),
       OR(-ENOENT, -EINVAL), "%llx", (ull)addr)
ANSWER(int, host_memory_order, (struct context * context), 0, OR(-EIO))
ANSWER(int, host_pool_free, (struct host_pool * pool, uint64_t addr), 0, OR(-EINVAL, -ENOENT, -EIO), "%llx", (ull)addr)
ANSWER(int, host_pool_block, (struct host_pool * pool, uint64_t addr, uint64_t *ret_base, size_t *ret_size),
       (*ret_base = addr, *ret_size = 64, 0), OR(-EINVAL, -ENOENT), "%llx", (ull)addr)
ANSWER(size_t, host_pool_decay, (struct host_pool * pool, unsigned int age), 1, OR(2), "%u", age)
TOLD(host_pool_disown, (struct host_pool * pool, uint64_t addr, size_t size), "%llx %zu", (ull)addr, size)
TOLD(oom_report_host, (size_t size), "%zu", size)
IS(guard_own, (void), false)
IS(serve_is_answered, (bool *ret_over), (*ret_over = false, true))
IS(context_failed, (const struct context *context), false)
IS(context_pin, (struct context * context), true)
TOLD(context_unpin, (struct context * context), "")
ANSWER(CUresult, context_enter, (const struct context *context, struct visit *visit), 0, OR(CUDA_ERROR_UNKNOWN))
TOLD(context_leave, (const struct context *context, struct visit *visit), "")
ANSWER(uint64_t, machine_memory, (void), 8000, OR(80))
ANSWER(unsigned int, machine_ranks, (void), 2, OR(1))

#endif
