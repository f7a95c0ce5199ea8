/* SPDX-License-Identifier: Apache-2.0 */
/*
 * events.h - the calls by which higher rooms take part in the life of segments and contexts: registration with NCCL,
 * guard bytes, the background thread.
 *
 * It is not a list of observers: there is one table, and every member is set. serve/library.c defines it: data that the
 * linker fills in, and no constructor, because a preload's constructors run after those of libraries that may already
 * allocate.
 *
 * Threads: every member may be called from any thread, on which the context is pinned or about to end. The caller holds
 * no lock. Errors: as each member says.
 */
#ifndef CUPOOL_SHIM_CONTEXT_EVENTS_H
#define CUPOOL_SHIM_CONTEXT_EVENTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct context;

struct context_events {
    /* True if segments are registered with communicators. */
    bool (*registers)(void);
    /* True if a communicator is, or was, known: then captured operations, for which NCCL registers memory by itself,
     * are seen. */
    bool (*sees_operations)(void);
    /* A context's pool has got a segment. */
    void (*segment_added)(struct context *owner, int device, uint64_t addr, size_t size);
    /* An unused segment is about to go. 0: `release` has been called, or will be; otherwise it is registered nowhere,
     * and the caller releases it. */
    int (*segment_removing)(uint64_t addr, void (*release)(void *arg, uint64_t addr, size_t size), void *arg);
    /* Make the pool of pinned memory if the settings want one; the context is current. */
    void (*host_pool_wanted)(void);
    /* The first memory of a device is kept by vmm_kept.h. No context is pinned. */
    void (*kept)(int device);
    /* An exporter has had no room to hear of a close: ipc_peer_tick is wanted soon. */
    void (*closes_left)(void);
    /* A segment has gone with its context. */
    void (*segment_lost)(const struct context *owner, uint64_t addr);
    /* Deregister and release parked memory of one device, or of all (-1). Returns the bytes released. */
    size_t (*retry_parked)(int device);
    /* As retry_parked, and waits for other threads that do so, a second at most. */
    size_t (*retry_parked_wait)(int device);
    /* A context that is not primary is about to end; the call that was to end it has not. It is not pinned, and still
     * works. */
    void (*context_ends)(const struct context *context);
    void (*context_stays)(const struct context *context);
    /* The context has ended. Other threads may still be in calls on its pool. */
    void (*context_ended)(const struct context *context);
    void (*ending_over)(void); /* a call that has, or may have, ended contexts has returned; in no call on a pool */
    /* Around the destruction of the context's pool, which no thread uses any more. */
    void (*pool_ending)(const struct context *context);
    void (*pool_ended)(const struct context *context);
};
extern const struct context_events context_events;

#endif
