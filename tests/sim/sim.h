/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim.h - what the files of the simulated libcuda share.
 *
 * It declares the objects behind CUDA's handles (a CUcontext is a pointer to a struct CUctx_st of ours, and so on) and
 * the internal functions on them. It is no interface for tests; those use CUDA's own, and simgpu.h for the few extras.
 *
 * Locking: one mutex, sim_lock(), guards every object. Functions named here expect it to be held unless they say
 * otherwise. It is never held while work touches device memory or while a host function of the program runs. Objects
 * are recycled, never unmapped, so that a stale handle is an error code and not a crash.
 */
#ifndef SIM_H
#define SIM_H

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cuda_names.h"

#define SIM_PAGE        ((size_t)2 << 20)
#define SIM_GRANULE     ((size_t)512)
#define SIM_DEVICES_MAX 16

/* ---- control.c: settings, counters, faults ---- */

/* One per exported function; in a list from its first call on. */
struct sim_counter {
    const char *symbol;
    _Atomic unsigned long calls;
    _Atomic int listed;
    struct sim_counter *next;
};

struct sim_settings {
    int devices, driver_version;
    size_t memory;
    const char *name;   /* of each device */
    const char *shared; /* the file of processes that have the devices together; NULL: each has its own */
    unsigned delay_us;
    uint64_t seed, adversary;
};
extern struct sim_settings sim_settings;

/* First thing in every exported function, without the lock: counts the call, serves injected faults, and refuses calls
 * from host functions (800), in a forked child and before cuInit (3), unless early. */
CUresult sim_enter(struct sim_counter *c, bool early);
void sim_settings_init(void);
void sim_initialized_set(void);

#define SIM_ENTER_(sym, early)                                                                                         \
    do {                                                                                                               \
        static struct sim_counter c_ = {.symbol = #sym};                                                               \
        CUresult r_ = sim_enter(&c_, early);                                                                           \
        if (r_ != CUDA_SUCCESS)                                                                                        \
            return r_;                                                                                                 \
    } while (0)
#define SIM_ENTER(sym)       SIM_ENTER_(sym, false)
#define SIM_ENTER_EARLY(sym) SIM_ENTER_(sym, true)

/* An exported function that is one call. */
#define SIM_CALL(sym, params, call)                                                                                    \
    CUresult sym params                                                                                                \
    {                                                                                                                  \
        SIM_ENTER(sym);                                                                                                \
        return call;                                                                                                   \
    }

/* One exported function and its per-thread twin; pt tells them apart. */
#define SIM_PAIR(sym, pt_sym, params, call)                                                                            \
    CUresult sym params                                                                                                \
    {                                                                                                                  \
        const bool pt = false;                                                                                         \
        SIM_ENTER(sym);                                                                                                \
        return call;                                                                                                   \
    }                                                                                                                  \
    CUresult pt_sym params                                                                                             \
    {                                                                                                                  \
        const bool pt = true;                                                                                          \
        SIM_ENTER(pt_sym);                                                                                             \
        return call;                                                                                                   \
    }

/* ---- memory.c, pages.c, small.c: allocations ---- */

enum sim_mem {
    SIM_MEM_DEVICE,
    SIM_MEM_ASYNC,
    SIM_MEM_MANAGED,
    SIM_MEM_HOST,
    SIM_MEM_REGISTERED,
    SIM_MEM_IPC,
    SIM_MEM_VMM
};

struct sim_alloc {
    uint64_t addr;     /* what the program sees; PROT_NONE for device memory, as on a GPU the host cannot touch it */
    char *host;        /* where the engine reads and writes it */
    size_t size, span; /* as requested; as taken */
    enum sim_mem kind;
    CUcontext ctx;
    int dev, pins; /* pins: operations running on it right now */
    unsigned flags, refs;
    bool freeing, dead, sync_memops;
    uint64_t id;                   /* BUFFER_ID */
    int ipc_pid;                   /* importer: whose memory */
    uint64_t ipc_file, ipc_offset; /* importer: inode of the file behind it, place in that */
    void *physical;                /* vmm.c: the memory that is mapped here */
    uint64_t access;               /* vmm.c: a bit for each device that reaches it */
    uint64_t range;                /* vmm.c: where the reservation begins of which this is a part */
    size_t range_size;
    struct sim_alloc *next, *prev; /* in its context */
    struct sim_alloc *leaving;     /* in its stream */
    bool returning;                /* by cuMemFreeAsync */
};

/* CUDA_SUCCESS or CUDA_ERROR_OUT_OF_MEMORY. VMM and IPC get addresses only. */
CUresult sim_device_alloc(CUcontext ctx, size_t size, enum sim_mem kind, struct sim_alloc **ret);
/* Host-side memory: pinned and managed (host NULL: memory is mapped), registered and imported (host given). */
CUresult sim_host_alloc(CUcontext ctx, uint64_t addr, char *host, size_t size, enum sim_mem kind,
                        struct sim_alloc **ret);
void sim_alloc_free(struct sim_alloc *a);
/* Of addresses alone: the part from `at` bytes on, whole pages, becomes one of its own; and is joined again. */
struct sim_alloc *sim_alloc_split(struct sim_alloc *a, size_t at);
void sim_alloc_join(struct sim_alloc *a, struct sim_alloc *next);
/* The allocation that contains addr, or NULL. */
struct sim_alloc *sim_alloc_find(uint64_t addr);
/* A second free of memory that cuMemFreeAsync has freed and that has not arrived: an H100 accepts it and crashes later.
 * Here the process ends at once. */
void sim_freed_again(const struct sim_alloc *a, uint64_t addr);
/* The allocation that contains all n bytes from addr, or NULL. */
struct sim_alloc *sim_alloc_range(uint64_t addr, size_t n);
bool sim_is_device_va(uint64_t addr);
void sim_alloc_unpin(struct sim_alloc *a);
void sim_memory_info(int dev, size_t *ret_free, size_t *ret_total);
bool sim_memory_charge(int dev, size_t n); /* count n bytes as used; false: they are not there */
void sim_memory_discharge(int dev, size_t n);
/* Something else is there from now on: it has a BUFFER_ID of its own. */
void sim_alloc_renew(struct sim_alloc *a);
/* vmm.c: the handle types by which the memory mapped there can be shared. */
unsigned long long sim_vmm_handle_types(const struct sim_alloc *a);
bool sim_vmm_supported(void);
/* vmm.c: may work of a device touch this memory? */
bool sim_vmm_reaches(const struct sim_alloc *a, int dev);
/* The memory pool that a device has by default; from any thread, no lock needed. */
CUmemoryPool sim_pool_of(int dev);
char *sim_memory_host(int dev, uint64_t addr);
void sim_memory_punch(int dev, uint64_t addr, size_t n); /* make it zero again */
/* The file that holds an allocation's bytes from now on, and the allocation's place in it: one of its own, so that who
 * maps it keeps them when the allocation is freed. -1: there is none. May drop the lock, waiting for operations on
 * it. */
int sim_memory_export(struct sim_alloc *a, uint64_t *ret_offset);
/* Let this file hold an allocation's bytes, until its pages are punched. */
void sim_memory_view(const struct sim_alloc *a, int fd);
/* The file of the device's whole memory. */
int sim_memory_fd(int dev);

/* ---- engine.c: operations, queues, workers ---- */

struct sim_rec { /* one record of an event in a stream */
    int refs;
    bool done;
    uint64_t time, number; /* number: adversary.c's, of its completion */
};

/* A point in time, complete when rec is done (if any) and all of ctx's operations up to seq are (if any). */
struct sim_point {
    struct sim_rec *rec;
    CUcontext ctx;
    uint64_t seq;
};

enum sim_kind {
    SIM_NOP,
    SIM_SET,
    SIM_COPY,
    SIM_HOST,
    SIM_CALLBACK,
    SIM_WAIT,
    SIM_RECORD,
    SIM_FREE,
    SIM_WRITE_VALUE,
    SIM_WAIT_VALUE,
    SIM_KERNEL,
    SIM_FETCH,
    SIM_GRAPH
};

struct sim_work {
    enum sim_kind kind;
    union {
        struct {
            uint64_t dst;
            size_t pitch, width, height;
            uint32_t value;
            unsigned elem;
        } set; /* width in bytes */
        struct {
            uint64_t dst, src;
            size_t dpitch, spitch, dslice, sslice, width, height, depth;
            void *staged;
            CUcontext also; /* another device's, whose work the copy is as well; NULL: none */
        } copy;             /* dslice, sslice: from one layer to the next */
        struct {
            CUhostFn fn;
            CUstreamCallback cb;
            void *arg;
        } host;
        struct {
            uint64_t addr, value;
            unsigned flags, bytes;
        } value;
        struct {
            const int *until;
            uint64_t max_ns;
        } kernel;
        struct {
            uint64_t texture, dst;
            size_t n;
        } fetch;
        struct sim_point wait;
        struct sim_rec *rec;
        uint64_t addr;
        CUgraphExec exec;
    };
};

/* A condition that only events from outside the context's own numbering can meet; shared by the operations behind
 * it. */
struct sim_barrier {
    int refs;
    struct sim_point point;
    struct sim_barrier *prev;
};

struct sim_op {
    struct sim_work work;
    CUstream stream;
    uint64_t seq, fence, legacy; /* own number; all up to fence first; the legacy stream up to legacy first */
    struct sim_barrier *barrier;
    struct sim_op *twin; /* its number in copy.also, and what comes before it there; in no stream */
    struct sim_op *next, *next_all, *next_blk;
    int refs;
    bool done;
};

struct sim_fifo {
    struct sim_op *head, *tail;
};

enum sim_state { SIM_IDLE, SIM_READY, SIM_RUNNING, SIM_BLOCKED };

struct sim_nodes { /* a set of graph nodes */
    CUgraphNode *at;
    size_t n, room;
};

struct CUstream_st {
    uint32_t magic;
    CUcontext ctx;
    unsigned flags, depth;
    int priority;
    bool legacy, blocking, destroyed, per_thread;
    bool dying;      /* a thread is in the call that destroys it */
    CUcontext green; /* made in this green context; NULL: in none */
    uint64_t id, rng;
    struct sim_op *head, *tail;
    uint64_t last, done; /* numbers of the newest operation enqueued and completed */
    uint64_t number;     /* adversary.c's, of the last completion */
    enum sim_state state;
    CUstream next_ready, next_blocked; /* scheduler */
    CUstream next, prev;               /* in its context */
    struct sim_capture *cap;
    struct sim_nodes deps; /* while capturing */
    /* Memory of cuMemAlloc that was freed in the stream: the driver has it back when the stream has come to its end. */
    struct sim_alloc *leaving;
};

struct CUctx_st {
    uint32_t magic, gen; /* gen: counts resets; handles of an older one are dead */
    int dev, refs;
    unsigned flags, stall;
    CUresult error; /* sticky */
    bool primary, active, green;
    bool stopping; /* its end waits for its work, without the lock */
    uint64_t id, peers;
    uint64_t last_seq, fence; /* newest number given out; new operations wait for all up to fence */
    uint64_t known;           /* adversary.c: the host knows that all up to it is over */
    struct sim_barrier *barrier;
    struct sim_fifo all, blk; /* unfinished operations in order: of the context, of its blocking streams */
    struct CUstream_st legacy;
    CUstream streams;
    struct sim_alloc *allocs;
    CUcontext next;
};

struct CUevent_st {
    uint32_t magic, gen;
    CUcontext ctx;
    unsigned flags;
    bool recorded;
    struct sim_point point;
    uint64_t time;   /* of a record that was complete at once; 0: see point */
    uint64_t cap_id; /* recorded in this capture; 0: outside */
    struct sim_nodes deps;
    CUevent next, next_all;
};

#define SIM_MAGIC_CTX    0x53434f4eu
#define SIM_MAGIC_ENDED  0x53454e44u /* a context that is no more */
#define SIM_MAGIC_STREAM 0x5353544du
#define SIM_MAGIC_EVENT  0x53455654u
#define SIM_MAGIC_GRAPH  0x53475250u
#define SIM_MAGIC_EXEC   0x53455845u
#define SIM_MAGIC_NODE   0x534e4f44u
#define SIM_MAGIC_GREEN  0x53475245u
#define SIM_MAGIC_DESC   0x53444553u

void sim_lock(void);
void sim_unlock(void);
/* With the lock, which is released meanwhile. A thread of the program that is to be cancelled is so after its call, or
 * the stream that it runs would stay at work for ever. */
void sim_sleep(const struct timespec *time);
/* The lock, until the block in which this stands is left. */
#define SIM_LOCKED() __attribute__((cleanup(sim_unlock_late), unused)) const char locked_ = (sim_lock(), 0)
static inline void sim_unlock_late(const char *unused)
{
    sim_unlock();
}
/* Leave the function with the result of a call that is no success. */
#define SIM_TRY(call)                                                                                                  \
    do {                                                                                                               \
        const CUresult result_ = (call);                                                                               \
        if (result_ != CUDA_SUCCESS)                                                                                   \
            return result_;                                                                                            \
    } while (0)
uint64_t sim_now(void);

/* Queue work behind everything in s, or add it to the capture that s is in. Takes over staged memory and references in
 * w. Waits for it if sync. May drop the lock meanwhile. */
CUresult sim_submit(CUstream s, struct sim_work *w, bool sync);
/* Everything given to the context so far is done / of its blocking streams / of s. These drop the lock while
 * waiting. */
void sim_ctx_wait(CUcontext ctx);
void sim_ctx_stall(CUcontext ctx); /* the same, while other threads' launches and calls stall */
/* Wait for others' sim_ctx_stall, as natively nearly every call does but queries. May drop the lock. Result as
 * sim_ctx_check's. */
CUresult sim_ctx_stalled(CUcontext ctx);
void sim_stream_wait(CUstream s);
void sim_point_wait(const struct sim_point *p, CUcontext ctx); /* of an event of ctx */
bool sim_ctx_idle(CUcontext ctx);
bool sim_stream_idle(CUstream s);
void sim_stream_left(CUstream s); /* the driver has back what was freed in it */
extern __thread bool sim_in_hostfn;

/* ---- point.c: points in time ---- */

bool sim_done_all(CUcontext ctx, uint64_t seq); /* all operations of ctx up to seq / those of its blocking streams */
bool sim_done_blk(CUcontext ctx, uint64_t seq);
bool sim_point_done(const struct sim_point *p);
void sim_point_take(struct sim_point *p); /* one more reference */
void sim_point_drop(struct sim_point *p);
void sim_barrier_drop(struct sim_barrier *b);
bool sim_barrier_done(struct sim_barrier *b);
void sim_ctx_fence(CUcontext ctx, const struct sim_point *p); /* later work of ctx waits for p */

/* ---- work.c: what operations do ---- */

/* At the call, as the driver does: CUDA_ERROR_INVALID_VALUE. dev: of the stream; -1: a copy of two contexts, or a node
 * of a graph. */
CUresult sim_work_check(const struct sim_work *w, int dev);
/* Run w; called and returns with the lock, drops it in between. */
void sim_work_run(CUstream s, struct sim_work *w);
void sim_work_drop(struct sim_work *w); /* release what it owns */
void sim_work_copy(struct sim_work *dst, const struct sim_work *src);

/* ---- texture.c ---- */

/* The address of the memory that the context's texture object of this number reads, n bytes at least; 0: there is no
 * such object. */
uint64_t sim_texture_addr(CUcontext ctx, uint64_t number, size_t n);

/* ---- copy.c ---- */

/* The place that a pointer must be in. SIM_OF_CONTEXT: on a device, and the copy names the context by which it is
 * reached. */
enum sim_must { SIM_ANY, SIM_ON_HOST, SIM_ON_DEVICE, SIM_OF_CONTEXT };

struct sim_side {
    uint64_t addr;
    size_t pitch, slice; /* from one row, one layer to the next */
    enum sim_must must;
    CUcontext ctx; /* SIM_OF_CONTEXT: as the copy names it */
};

/* Everything between an exported copy and sim_submit. Takes the lock itself. */
CUresult sim_copy(struct sim_side dst, struct sim_side src, size_t width, size_t height, size_t depth, CUstream handle,
                  bool pt, bool sync);
/* CUDA_MEMCPY3D as an operation: 0, or CUDA_ERROR_NOT_SUPPORTED for CUDA arrays. */
CUresult sim_copy_of(const CUDA_MEMCPY3D *c, struct sim_side *ret_dst, struct sim_side *ret_src);
/* A fill of height rows of width elements; CUDA_ERROR_INVALID_VALUE. */
CUresult sim_set_of(uint64_t dst, size_t pitch, uint32_t value, unsigned elem, size_t width, size_t height,
                    struct sim_work *ret);

/* ---- context.c ---- */

CUresult sim_current(CUcontext *ret); /* the calling thread's, alive and without a sticky error */
CUresult sim_ctx_check(CUcontext ctx);
CUcontext sim_primary(int dev);
CUcontext sim_ctx_new(int dev, unsigned flags); /* stays mapped for good: handles may go stale */
void sim_ctx_end(CUcontext ctx);                /* waits; drops the lock meanwhile */
CUcontext sim_primary_take(int dev);
void sim_primary_drop(int dev);

/* ---- stream.c, event.c ---- */

CUresult sim_stream_resolve(CUstream handle, bool pt, CUstream *ret);
CUstream sim_stream_make(CUcontext ctx, unsigned flags, int priority);
void sim_streams_kill(CUcontext ctx);
CUstream sim_stream_new(void);
void sim_stream_init(CUstream s, CUcontext ctx, unsigned flags, int priority);
void sim_stream_retire(CUstream s); /* recycle it once its queue is empty */

/* ---- capture.c, graph.c ---- */

struct sim_capture {
    CUstream origin;
    CUcontext ctx;
    CUstreamCaptureMode mode;
    uint64_t tid, id;
    bool invalid, own_graph;
    CUgraph graph;
    struct sim_capture *next;
};

struct CUgraphNode_st {
    uint32_t magic;
    CUgraph graph;
    struct sim_work work;
    struct sim_nodes deps;
    bool mark;
};

struct CUgraph_st {
    uint32_t magic;
    struct sim_nodes nodes; /* in creation order, which is a topological one */
};

struct CUgraphExec_st {
    uint32_t magic;
    int refs;
    struct sim_work *works;
    size_t n;
};

/* A call that captures forbid while the thread's mode says so: 900 and the captures are lost. */
CUresult sim_capture_unsafe(void);
/* A call that no capture of ctx survives, whatever the mode. */
CUresult sim_capture_sync(CUcontext ctx);
/* Work on the legacy stream while a blocking stream captures: 906. */
CUresult sim_capture_implicit(CUcontext ctx);
bool sim_capture_peek(CUcontext ctx); /* whether it would be */
CUresult sim_capture_add(CUstream s, struct sim_work *w);
CUgraphNode sim_graph_add(CUgraph graph, const CUgraphNode *deps, size_t n, const struct sim_work *w);
void sim_capture_end(struct sim_capture *cap); /* frees its graph, if its own, unless cap->graph was taken off */
void sim_capture_lose(struct sim_capture *cap);
struct sim_capture *sim_capture_by_id(uint64_t id);
void sim_nodes_add(struct sim_nodes *set, CUgraphNode node);
void sim_nodes_copy(struct sim_nodes *dst, const struct sim_nodes *src);
void sim_nodes_clear(struct sim_nodes *set);
void sim_exec_drop(CUgraphExec exec);
void sim_graph_free(CUgraph graph);
uint64_t sim_tid(void);

#endif
