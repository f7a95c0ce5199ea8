/* SPDX-License-Identifier: Apache-2.0 */
/*
 * watch.c - the exported functions of hooks/watch.def, and their effects: the reports by which CUPOOL_FREE=auto learns
 * of work and memory that the queue of a context does not order.
 *
 * Each row names an effect, and an effect is two functions: NAME_before runs before the driver's function, NAME_after
 * once that has succeeded. Of a call that waits for its work NAME_sync runs before it, and nothing after it. The driver
 * is asked about a stream before the call: afterwards another thread may destroy it. exports/hazards.c decides what
 * follows from a report. No effect changes a call or its result.
 *
 * Locking: none.
 */
#include "context/lifetime.h"
#include "context/strict.h"
#include "exports/export.h"
#include "exports/hazards.h"
#include "exports/retry.h"
#include "exports/vmm_served.h"
#include "real/caller.h"
#include "real/real.h"
#include "report/unpooled.h"
#include "serve/serve.h"

/* A watched call. */
struct watch {
    bool on; /* the effects run: the caller is no library that orders or waits for its own work */
    const void *caller;
    CUstream stream; /* of the call's work; never 0 */
    /* NAME_before leaves these for NAME_after. */
    uint64_t before;
    struct policy *policy; /* whose frees wait for the call's host work; NULL: nobody's */
    CUcontext freed;       /* whose memory that streams have freed is published then; NULL: none's */
};

static struct watch watch_begin(const void *caller, CUstream stream)
{
    return (struct watch){.on = serve_watches(caller), .caller = caller, .stream = stream};
}

/* For an effect that has one function only. */
#define NOTHING ((void)0)

/* --- no effect: an error of the context that the call returns is seen nevertheless --- */

#define nothing_before(...) NOTHING
#define nothing_after(...)  NOTHING

/* --- copies --- */

/* After a call that may have launched host work. */
static void launched(struct watch *w)
{
    hazard_host_work_end(w->policy, w->stream);
}

/* Between two addresses, each of which may be host memory. */
static void copy_sync(struct watch *w, CUdeviceptr to, CUdeviceptr from)
{
    hazard_foreign_access(to, w->stream);
    hazard_foreign_access(from, w->stream);
}

static void copy_before(struct watch *w, CUdeviceptr to, CUdeviceptr from)
{
    copy_sync(w, to, from);
    w->policy = hazard_copy_begin(to, from, w->stream);
}

static void copy_after(struct watch *w, CUdeviceptr to, CUdeviceptr from)
{
    launched(w);
}

/* Between an address of a device and host memory. */
static void copy_with_host_sync(struct watch *w, CUdeviceptr device)
{
    hazard_foreign_access(device, w->stream);
}

static void copy_with_host_before(struct watch *w, CUdeviceptr device)
{
    copy_with_host_sync(w, device);
    w->policy = hazard_host_work_begin(w->stream);
}

static void copy_with_host_after(struct watch *w, CUdeviceptr device)
{
    launched(w);
}

/* To or from one address, which may be host memory. */
static void touch_sync(struct watch *w, CUdeviceptr addr)
{
    hazard_foreign_access(addr, w->stream);
}

static void touch_before(struct watch *w, CUdeviceptr addr)
{
    touch_sync(w, addr);
    w->policy = hazard_copy_begin(addr, addr, w->stream);
}

static void touch_after(struct watch *w, CUdeviceptr addr)
{
    launched(w);
}

static void copy_many_before(struct watch *w, const CUdeviceptr *to, const CUdeviceptr *from, size_t count)
{
    hazard_foreign_accesses(to, from, count, w->stream);
    w->policy = hazard_host_work_begin(w->stream);
}

static void copy_many_after(struct watch *w, const CUdeviceptr *to, const CUdeviceptr *from, size_t count)
{
    launched(w);
}

static void copy_batch_before(struct watch *w, const CUDA_MEMCPY3D_BATCH_OP *operations, size_t count)
{
    hazard_foreign_accesses_3d(operations, count, w->stream);
    w->policy = hazard_host_work_begin(w->stream);
}

static void copy_batch_after(struct watch *w, const CUDA_MEMCPY3D_BATCH_OP *operations, size_t count)
{
    launched(w);
}

/* The two ends of a copy that a structure describes. */
struct ends {
    CUmemorytype to_type, from_type;
    CUdeviceptr to, from; /* valid for memory of a device, and for memory of any kind */
};

/* For each of the three structures, whose members have the same names; none if copy is NULL. */
#define ENDS(copy)                                                                                                     \
    ((copy) ? (struct ends){(copy)->dstMemoryType, (copy)->srcMemoryType, (copy)->dstDevice, (copy)->srcDevice}        \
            : (struct ends){CU_MEMORYTYPE_ARRAY, CU_MEMORYTYPE_ARRAY, 0, 0})

static bool has_address(CUmemorytype type)
{
    return type == CU_MEMORYTYPE_DEVICE || type == CU_MEMORYTYPE_UNIFIED;
}

static void ends_sync(struct watch *w, struct ends ends)
{
    if (has_address(ends.to_type))
        hazard_foreign_access(ends.to, w->stream);
    if (has_address(ends.from_type))
        hazard_foreign_access(ends.from, w->stream);
}

static void ends_before(struct watch *w, struct ends ends)
{
    ends_sync(w, ends);
    if (ends.to_type == CU_MEMORYTYPE_HOST || ends.from_type == CU_MEMORYTYPE_HOST)
        w->policy = hazard_host_work_begin(w->stream);
    else /* pinned memory has an address that serves as one of a device, too */
        w->policy = hazard_copy_begin(has_address(ends.to_type) ? ends.to : 0,
                                      has_address(ends.from_type) ? ends.from : 0, w->stream);
}

/* The effects copy_2d, copy_3d and copy_peer. */
#define COPY_OF(name, type)                                                                                            \
    static void name##_sync(struct watch *w, const type *copy)                                                         \
    {                                                                                                                  \
        ends_sync(w, ENDS(copy));                                                                                      \
    }                                                                                                                  \
    static void name##_before(struct watch *w, const type *copy)                                                       \
    {                                                                                                                  \
        ends_before(w, ENDS(copy));                                                                                    \
    }                                                                                                                  \
    static void name##_after(struct watch *w, const type *copy)                                                        \
    {                                                                                                                  \
        launched(w);                                                                                                   \
    }
COPY_OF(copy_2d, CUDA_MEMCPY2D)
COPY_OF(copy_3d, CUDA_MEMCPY3D)
COPY_OF(copy_peer, CUDA_MEMCPY3D_PEER)

/* --- work on the host, and waits for it --- */

static void host_work_before(struct watch *w)
{
    w->policy = hazard_host_work_begin(w->stream);
}

static void host_work_after(struct watch *w)
{
    launched(w);
}

#define event_made_before(...)      NOTHING
#define event_made_after(w, event)  hazard_event_made(*(event))
#define event_gone_before(w, event) hazard_event_gone(event)
#define event_gone_after(...)       NOTHING
#define event_wait_before(w, event) ((w)->policy = hazard_event_wait_begin(event, (w)->stream))
#define event_wait_after(w, event)  launched(w)

static void stream_wait_before(struct watch *w)
{
    w->before = hazard_context_wait_begin(NULL);
    w->freed = hazard_freed_stream_begin(w->stream);
}

static void stream_wait_after(struct watch *w)
{
    hazard_stream_wait_end(w->stream, w->before);
    hazard_freed_end(w->freed);
}

/* Of this context; NULL: of the current one. */
static void context_wait_before(struct watch *w, CUcontext context)
{
    w->before = hazard_context_wait_begin(context);
    w->freed = hazard_freed_context_begin(context);
}

static void context_wait_after(struct watch *w, CUcontext context)
{
    hazard_context_wait_end(context, w->before);
    hazard_freed_end(w->freed);
}

/* --- graphs --- */

static void graph_launch_before(struct watch *w)
{
    w->policy = hazard_graph_launch_begin(w->stream);
}

static void graph_launch_after(struct watch *w)
{
    launched(w);
}

#define graph_host_work_before(...) NOTHING

static void graph_host_work_after(struct watch *w)
{
    hazard_graph_node();
}

static void graph_copy_before(struct watch *w, const CUDA_MEMCPY3D *copy)
{
    copy_3d_sync(w, copy);
}

static void graph_copy_after(struct watch *w, const CUDA_MEMCPY3D *copy)
{
    hazard_graph_node();
}

static void graph_set_before(struct watch *w, const CUDA_MEMSET_NODE_PARAMS *parameters)
{
    if (parameters)
        hazard_foreign_access(parameters->dst, w->stream);
}

static void graph_set_after(struct watch *w, const CUDA_MEMSET_NODE_PARAMS *parameters)
{
    hazard_graph_set(parameters->dst);
}

/* Kinds of nodes added after CUDA 13.0: CU_GRAPH_NODE_TYPE_MEMCPY_BATCH and _FABRIC_CPY_BATCH. */
#define NODE_COPIES 14
#define NODE_FABRIC 18
/* The first members of the parameters of CU_GRAPH_NODE_TYPE_MEMCPY_BATCH. */
struct node_copies {
    size_t count;
    CUdeviceptr *to, *from;
};

/* A node of any kind. The members read here have the same offsets in every version of CUgraphNodeParams. */
static void graph_node_before(struct watch *w, const CUgraphNodeParams *parameters)
{
    const struct node_copies *copies = parameters ? (const void *)&parameters->memcpy : NULL;

    switch (parameters ? (int)parameters->type : -1) {
    case CU_GRAPH_NODE_TYPE_MEMCPY:
        ends_sync(w, ENDS(&parameters->memcpy.copyParams));
        break;
    case CU_GRAPH_NODE_TYPE_MEMSET:
        hazard_foreign_access(parameters->memset.dst, w->stream);
        break;
    case NODE_COPIES:
        hazard_foreign_accesses(copies->to, copies->from, copies->count, w->stream);
        break;
    case NODE_FABRIC:
        policy_strict(POLICY_ALL, "copies over a fabric");
        break;
    default:
        break;
    }
}

/* Kinds of nodes that touch no host memory and run nothing on the host. Other kinds, new ones included, may. */
static bool stays_on_device(CUgraphNodeType type)
{
    switch (type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
    case CU_GRAPH_NODE_TYPE_GRAPH: /* hooks have seen the nodes of the child graph */
    case CU_GRAPH_NODE_TYPE_EMPTY:
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
    case CU_GRAPH_NODE_TYPE_CONDITIONAL:
        return true;
    default:
        return false;
    }
}

static void graph_node_after(struct watch *w, const CUgraphNodeParams *parameters)
{
    if (parameters->type == CU_GRAPH_NODE_TYPE_MEMSET)
        hazard_graph_set(parameters->memset.dst);
    else if (!stays_on_device(parameters->type))
        hazard_graph_node();
}

/* --- memory that others can use --- */

/* Every free waits, from before the call on, or from its success on, for this reason. */
static void strict_first_before(struct watch *w, const char *why)
{
    policy_strict(POLICY_ALL, why);
}

#define strict_first_after(...) NOTHING
#define strict_then_before(...) NOTHING

static void strict_then_after(struct watch *w, const char *why)
{
    policy_strict(POLICY_ALL, why);
}

static void managed_before(struct watch *w, size_t size)
{
    policy_strict(POLICY_ALL, "managed memory");
}

static void managed_after(struct watch *w, size_t size)
{
    unpooled_took(UNPOOLED_MANAGED, size);
}

/* Host memory that the device can use. Libraries that map some wait for it themselves. */
static void host_pointer_before(struct watch *w)
{
    if (caller_of(w->caller) == CALLER_PROGRAM)
        policy_strict(POLICY_ALL, "mapped host memory");
}

#define host_pointer_after(...) NOTHING

_Static_assert(CU_MEMHOSTALLOC_DEVICEMAP == CU_MEMHOSTREGISTER_DEVICEMAP, "one effect for both");

static void host_memory_before(struct watch *w, unsigned int flags)
{
    if (flags & CU_MEMHOSTALLOC_DEVICEMAP)
        host_pointer_before(w);
}

#define host_memory_after(...) NOTHING

/* Physical memory of the program's. */
static void shared_before(struct watch *w, CUmemGenericAllocationHandle handle)
{
    struct vmm_cache *cache = vmm_kept_existing();

    if (cache)
        vmm_cache_forget_handle(cache, handle);
}

static void shared_after(struct watch *w, CUmemGenericAllocationHandle handle)
{
    policy_strict(POLICY_ALL, "memory exported to other processes");
}

static void access_before(struct watch *w, CUdeviceptr addr, const CUmemAccessDesc *access, size_t count)
{
    hazard_access(addr, access, count);
}

#define access_after(...) NOTHING

/* An object by which work reads or writes memory. Natively earlier frees have waited for that work. */
static void texture_goes_before(struct watch *w)
{
    policy_frees_wait(/* others: */ true);
}

#define texture_goes_after(...) NOTHING

/* A pool of the driver's. */
#define pool_found_before(...) NOTHING

static void pool_found_after(struct watch *w, const CUmemLocation *location, CUmemAllocationType type)
{
    if (hazard_is_host(location, type))
        policy_strict(POLICY_ALL, "a pool of managed or host memory");
}

#define pool_made_before(...) NOTHING

static void pool_made_after(struct watch *w, const CUmemPoolProps *properties)
{
    pool_found_after(w, &properties->location, properties->allocType);
}

/* --- contexts --- */

#define context_seen_before(...) NOTHING

static void context_seen_after(struct watch *w, const CUcontext *context, CUdevice device)
{
    policy_context_seen(*context, device);
}

/* Of a device, or of the current context (POLICY_ALL, because its device is not known). */
#define context_flags_before(...) NOTHING

static void context_flags_after(struct watch *w, unsigned int flags, int device)
{
    if (flags & CU_CTX_SYNC_MEMOPS)
        policy_strict(device, "a device other than the GPU gets access to its memory");
}

#define context_made_before(...) NOTHING

static void context_made_after(struct watch *w, const CUcontext *context, unsigned int flags, CUdevice device)
{
    policy_context_seen(*context, device);
    context_flags_after(w, flags, device);
}

/* It shares memory with graphics. */
#define graphics_context_made_before(...) NOTHING

static void graphics_context_made_after(struct watch *w, const CUcontext *context, unsigned int flags, CUdevice device)
{
    context_made_after(w, context, flags, device);
    policy_strict(device, "memory shared with graphics");
}

#define context_made_with_before(...) NOTHING

static void context_made_with_after(struct watch *w, const CUcontext *context, const CUctxCreateParams *parameters,
                                    unsigned int flags, CUdevice device)
{
    if (parameters && parameters->cigParams)
        graphics_context_made_after(w, context, flags, device);
    else
        context_made_after(w, context, flags, device);
}

/* --- the exported functions --- */

/* For each word of the rows: the function that is called, before the first call, and whether the call is to be made
 * again. */
#define ONCE_NEXT(symbol)              real_next(symbol)
#define RETRIED_NEXT(symbol)           real_next(symbol)
#define RETRIED_OUTSIDE_NEXT(symbol)   vmm_served_##symbol
#define RETRIED_ON_DEVICE_NEXT(symbol) real_next(symbol)
#define ONCE_BEGIN                     ((struct retry){0})
#define ONCE_AGAIN                     false
#define RETRIED_BEGIN                  retry_begin_elsewhere()
#define RETRIED_AGAIN                  retry_again(&retry, result)
#define RETRIED_OUTSIDE_BEGIN          retry_begin_elsewhere()
#define RETRIED_OUTSIDE_AGAIN          retry_again_outside(&retry, result)
#define RETRIED_ON_DEVICE_BEGIN        retry_begin()
#define RETRIED_ON_DEVICE_AGAIN        retry_again_on_device(&retry, result, device)

#define RUNTIME(symbol, parameters)
#define DRIVER(symbol, parameters)
#define WATCH(symbol, parameters, arguments, on_stream, how, before_effect, after_effect)                              \
    EXPORT CUresult symbol parameters                                                                                  \
    {                                                                                                                  \
        struct watch watch = watch_begin(CALLER, on_stream), *const w = &watch;                                        \
        struct retry retry __attribute__((unused));                                                                    \
        CUresult result = CUDA_SUCCESS;                                                                                \
                                                                                                                       \
        if (w->on)                                                                                                     \
            before_effect; /* NOLINT(bugprone-macro-parentheses): a call */                                            \
        retry = how##_BEGIN;                                                                                           \
        do {                                                                                                           \
            result = how##_NEXT(symbol) arguments; /* NOLINT(bugprone-macro-parentheses): a list */                    \
        } while (how##_AGAIN);                                                                                         \
        if (w->on && !result)                                                                                          \
            after_effect; /* NOLINT(bugprone-macro-parentheses): a call */                                             \
        else if (w->on)                                                                                                \
            context_saw(result);                                                                                       \
        return result;                                                                                                 \
    }
#include "hooks.def"
