/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hazards.h - what hooks report for CUPOOL_FREE=auto: work that host code or other devices can observe.
 *
 * It decides which reports matter, and keeps no policy; context/free_policy.h and context/strict.h do.
 *
 * Threads: every function may be called from any thread. No locks but those of a policy. No function fails.
 */
#ifndef CUPOOL_SHIM_EXPORTS_HAZARDS_H
#define CUPOOL_SHIM_EXPORTS_HAZARDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "context/strict.h"
#include "real/hooks.h"
#include "real/real.h"

/*
 * Reports of the hooks. Streams are handles, CU_STREAM_LEGACY or CU_STREAM_PER_THREAD. All of them may be called before
 * a driver is loaded.
 *
 * Around a call that launches asynchronous work that touches host memory or runs on the host: begin before the call,
 * and end once it has succeeded, with begin's result. end does not ask the driver about the stream, which the program
 * may destroy as soon as the work runs.
 */
struct policy *hazard_host_work_begin(CUstream stream);
void hazard_host_work_end(struct policy *policy, CUstream stream);
/* As hazard_host_work_begin, but only if one of the two addresses is host memory. */
struct policy *hazard_copy_begin(CUdeviceptr to, CUdeviceptr from, CUstream stream);
/* As hazard_host_work_begin, for the launch of a graph, if any graph's work is such. */
struct policy *hazard_graph_launch_begin(CUstream stream);
/* An event was made on the current device; one is about to go; a stream is about to wait for one. If it may be another
 * device's, a free that waits for the stream natively waits for that device's work, too, which the queue of the
 * stream's context does not order: begin and hazard_host_work_end are as around host work. */
void hazard_event_made(CUevent event);
void hazard_event_gone(CUevent event);
struct policy *hazard_event_wait_begin(CUevent event, CUstream stream);
/* Two reports about graphs: a graph built by hand got a node that touches host memory or runs on the host; it got a
 * memset node for memory at `to`. */
void hazard_graph_node(void);
void hazard_graph_set(CUdeviceptr to);
/* Around a wait for a context on the host (NULL: the current one): begin before the wait, and end after it if it
 * succeeded, with begin's result. The context's host work up to begin then counts as completed. */
uint64_t hazard_context_wait_begin(CUcontext handle);
void hazard_context_wait_end(CUcontext handle, uint64_t seq);
/* As hazard_context_wait_end, after a wait for one stream of the current context: completes that stream's work only. */
void hazard_stream_wait_end(CUstream stream, uint64_t seq);
/* Around a wait for a stream, or for a context (NULL: the current one), with begin's result: memory that cudaFreeAsync
 * has freed is natively there afterwards, whatever is launched then. So end publishes such blocks of the context, if
 * all of its work has ended. Does nothing where there are none, and never waits. */
CUcontext hazard_freed_stream_begin(CUstream stream);
CUcontext hazard_freed_context_begin(CUcontext handle);
void hazard_freed_end(CUcontext handle);
/* A stream is about to be destroyed; its handle may be reused for another stream. */
void hazard_stream_gone(CUstream stream);

/* Work on stream is about to touch memory at addr. If the memory belongs to another context, both devices become
 * strict. */
void hazard_foreign_access(CUdeviceptr addr, CUstream stream);

/* As hazard_foreign_access, for many copies. */
void hazard_foreign_accesses_3d(const CUDA_MEMCPY3D_BATCH_OP *operations, size_t count, CUstream stream);
void hazard_foreign_accesses(const CUdeviceptr *to, const CUdeviceptr *from, size_t count, CUstream stream);

/* A call of the driver's is about to take memory away, and waits for no work. Natively an earlier cudaFree, of any
 * thread, has waited for the work that uses the memory, so all devices become strict. NCCL and the like give up their
 * own memory after waits of their own, and the program's (ncclMemFree) without one: for them only this thread's frees
 * are waited for, since a communicator that is aborted must not wait for other threads. */
void hazard_memory_goes(const void *caller);
/* The driver is about to free memory that is not pooled: that of cudaMallocAsync and of graphs goes without a wait. */
void hazard_free(CUdeviceptr addr, const void *caller);

/* Memory mapped at addr, or a memory pool of the driver (addr 0), becomes accessible. If another device or the host
 * gets access, or any device loses it, which waits for no work, all devices become strict. A pool's own device has
 * access without such a call. */
void hazard_access(CUdeviceptr addr, const CUmemAccessDesc *access, size_t count);
/* The device of a context, pooled or not; -1: unknown. */
int hazard_context_device(const struct real_driver *driver, CUcontext handle);
/* The device that a location is on; -1: none. */
int hazard_location_device(const CUmemLocation *location);
/* True if the processor can reach memory of this kind at this location. */
bool hazard_is_host(const CUmemLocation *location, CUmemAllocationType type);

#endif
