/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scenes.h - what scenes of contexts (sweep_scenes.h) have in common: requests and frees by the functions of shim/serve
 * that say their results, and what there is at the end.
 *
 * Only test_sweep_*.c include it. Threads: a scene's own.
 */
#ifndef CUPOOL_TESTS_SHIM_SCENES_H
#define CUPOOL_TESTS_SHIM_SCENES_H

#include "context/context_state.h"
#include "context/pause.h"
#include "exports/hazards.h"
#include "ready.h"
#include "serve/serve.h"
#include "sweep_scenes.h"

#define QUIET " CUPOOL_TRACE_FILE=x CUPOOL_NEIGHBOURS=0"
#define KIB   ((size_t)1024)

/* --- other threads --- */

/* The first context that is known; NULL: none, or it is not pooled. */
static inline struct context *first_context(void)
{
    struct context *context = atomic_load(&contexts.count) ? atomic_load(&contexts.entries[0]) : NULL;

    return context && atomic_load(&context->handle) && context->pool ? context : NULL;
}

static inline void *other_frees_one(void *arg)
{
    struct context *context = first_context();

    fake_current(context ? context->handle : NULL);
    if (context)
        order_ops.order(context, POOL_ORDER_FREE);
    return arg;
}

#define CAPTURED 31 /* this stream captures; the library makes those behind it */

/* It would wait for calls in flight, and so for the thread that waits for it. */
static inline void *other_captures(void *arg)
{
    const CUstream stream = fake_stream(CAPTURED, 0);
    const struct context *context;

    for (unsigned int i = 0; i < atomic_load(&contexts.count); i++) {
        context = atomic_load(&contexts.entries[i]);
        for (unsigned int k = 0; k < SLOTS_ALL; k++)
            if (slot_is_busy(&context->slots[k]))
                return arg;
    }
    fake.streams[CAPTURED].captures = CU_STREAM_CAPTURE_STATUS_ACTIVE;
    capture_begun(capture_begin(stream), stream, true);
    return arg;
}

static inline void *other_has_captured(void *arg)
{
    fake.streams[CAPTURED].captures = CU_STREAM_CAPTURE_STATUS_NONE;
    capture_check((CUstream)&fake.streams[CAPTURED], false, atomic_load(&capture_total));
    return arg;
}

/* The scene uses the context without a pin: it does not end. */
static bool holds_context;

/* And what has its handle next is another context. */
static inline void *other_ends_context(void *arg)
{
    struct context *context = first_context();

    if (!context || holds_context)
        return arg;
    context = context_leaving(context->handle);
    fake.contexts[0].id += 1000;
    context_gone(context, true);
    return arg;
}

static const struct sweep_meanwhile sweep_meanwhile[SWEEP_MEANWHILE] = {
    {"freed", .begin = other_frees_one},
    {"captured", .begin = other_captures, .end = other_has_captured},
    {"ended", .begin = other_ends_context, .never_at = "cuStreamIsCapturing"},
};

/* --- scenes --- */

/* Calls from now on are made in this context. */
static inline void in(unsigned int i)
{
    fake_current(fake_context(i));
}

/* How contexts begin is for other scenes: this one is known. Afterwards context 0 is current. */
static inline struct context *known(unsigned int i)
{
    struct context *context;

    sweep_count(false);
    context = pooled(i);
    sweep_count(true);
    return context;
}

#define KNOWN_SCENE(scene, words)                                                                                      \
    static void scene##_known(struct context *context);                                                                \
    SCENE(scene, words)                                                                                                \
    {                                                                                                                  \
        scene##_known(known(0));                                                                                       \
    }                                                                                                                  \
    static void scene##_known(struct context *context)

static inline uint64_t get(size_t size)
{
    uint64_t addr = 0;
    const enum serve_verdict verdict = serve_alloc(size, (const void *)(uintptr_t)get, /* by_runtime: */ false, &addr);

    sweep_say("get(%zuK)=%d,%#llx", size >> 10, (int)verdict, (unsigned long long)addr);
    return addr;
}

static inline void put(uint64_t addr)
{
    struct serve_failed failed;
    const enum serve_verdict verdict = serve_free(addr);

    if (verdict == SERVE_FAILED || verdict == SERVE_UNFREED) {
        serve_failed_begin(addr, &failed);
        serve_failed_end(&failed);
    }
    sweep_say("put(%#llx)=%d", (unsigned long long)addr, (int)verdict);
}

/* The slots and batches: which thread has ordered how far. */
static inline void tell_order(unsigned int i)
{
    const struct context *context = context_entry_find(fake_context(i));
    uint64_t seqs = 0, dones = 0, users = 0, events = 0, batches = 0, owns = 0;
    const struct slot *combiner;

    if (!context)
        return;
    combiner = &context->slots[SLOT_COMBINER];
    for (unsigned int k = 0; k < SLOTS_ALL; k++) {
        seqs += context->slots[k].seq * (k + 1);
        dones += context->slots[k].done * (k + 1);
        users += context->slots[k].user * (k + 1) + context->slots[k].waits * 1000u;
        events += context->slots[k].event != NULL;
    }
    for (unsigned int k = 0; k < SLOTS; k++) {
        batches += context->batches[k].seq * (k + 1);
        owns += context->batches[k].own_seq * (k + 1);
        events += context->batches[k].event != NULL;
    }
    sweep_say("c%u:seq=%llu,%llu done=%llu,%llu user=%u,%llu events=%llu batches=%llu own=%llx waited=%llu stream=%d",
              i, (unsigned long long)combiner->seq, (unsigned long long)seqs, (unsigned long long)combiner->done,
              (unsigned long long)dones, combiner->user, (unsigned long long)users, (unsigned long long)events,
              (unsigned long long)batches, (unsigned long long)owns, (unsigned long long)policy_waited(context->device),
              fake_stream_number(context->policy.host_work_stream));
}

/* The context's state, if it is known. */
static inline void tell(unsigned int i)
{
    struct context *context = context_entry_find(fake_context(i));
    struct pool_stats stats = {0};
    char wrong[256] = "";

    if (!context) {
        sweep_say("c%u:none", i);
        return;
    }
    if (context->pool) {
        pool_stats_get(context->pool, &stats);
        pool_check(context->pool, wrong, sizeof(wrong));
    }
    sweep_say(
        "c%u:%s live=%lluK held=%lluK idle=%lluK n=%llu,%llu,%llu,%llu order=%llu kept=%llu free=%zuM given=%lluK "
        "arrived=%lluK defers=%d failed=%d leaving=%u undecided=%d host=%llu,%llu device=%d primary=%d%s",
        i, context->pool ? "pooled" : "exempt", (unsigned long long)stats.live >> 10,
        (unsigned long long)stats.held >> 10, (unsigned long long)stats.idle >> 10, (unsigned long long)stats.allocs,
        (unsigned long long)stats.hits, (unsigned long long)stats.frees, (unsigned long long)stats.failed,
        (unsigned long long)stats.order, (unsigned long long)stats.kept, (size_t)context->device_free >> 20,
        (unsigned long long)context->given >> 10, (unsigned long long)context->arrived >> 10, context->defers,
        context->failed, context->leaving, context->undecided, (unsigned long long)context->policy.host_work_seq,
        (unsigned long long)context->policy.synced_seq, context->device, context->primary, wrong);
}

/* Of the driver, and of this thread. */
static inline void tell_driver(void)
{
    unsigned int ranges = 0;
    size_t bytes = 0;

    for (unsigned int i = 0; i < FAKE_RANGES; i++) {
        ranges += fake.ranges[i].size != 0;
        bytes += fake.ranges[i].size;
    }
    sweep_say("driver:%u,%zuK streams=%u events=%u captures=%u endings=%u,%u closing=%u clean=%d clocks=%u", ranges,
              bytes >> 10, fake.streams_made, fake.events_made, atomic_load(&capture_count),
              atomic_load(&contexts.endings), context_endings, atomic_load(&contexts_closing),
              fake_thread_is_clean(fake_context(0)), fake.clocks);
}

#endif
