/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fake_driver.h - a driver, a clock and a trace for unit tests of the library, which is linked without
 * shim/real/ but for caller.c.
 *
 * It has devices, contexts, streams, events and memory as a few tables; each call of the driver that has an effect
 * leaves a word in a log ("record:c0,e0"), may be scripted to fail, to be missing, or to run a function of the test
 * first, which stands for the calls of other threads meanwhile. Time stands still except for the cost of waiting: so
 * each limit is met exactly, at once, and on a loaded machine too. Programs under the preload run on the simulated GPU
 * of tests/sim instead.
 *
 * Threads: the clock is atomic; everything else belongs to the thread that runs, of which tests have one at a time.
 */
#ifndef CUPOOL_TESTS_SHIM_FAKE_DRIVER_H
#define CUPOOL_TESTS_SHIM_FAKE_DRIVER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/conf.h"
#include "pool.h"
#include "real/hooks.h"
#include "real/real.h"

#define MIB       ((size_t)1 << 20)
#define SECOND_NS UINT64_C(1000000000)

#define FAKE_DEVICES  4
#define FAKE_CONTEXTS 300 /* the first ones are the devices' primary contexts */
#define FAKE_STREAMS  40
#define FAKE_EVENTS   256
#define FAKE_RANGES   64
#define FAKE_CAPACITY (8192 * MIB)

struct fake_context {
    int device;
    unsigned long long id;
    bool active; /* primary: someone holds a reference */
    bool green;
    CUresult error;          /* what its calls return; CUDA_ERROR_NOT_READY is left to the test */
    uint64_t launched, over; /* work, by number: what is in the context's queue, and how far the device is */
};

struct fake_stream {
    struct fake_context *context;
    CUstreamCaptureStatus captures;
    uint64_t launched, over;
};

struct fake_event {
    struct fake_context *context;
    struct fake_stream *stream; /* NULL: recorded in the context */
    uint64_t at;                /* of the context's or the stream's work: what it comes behind */
};

/* Memory, the host's too. */
struct fake_range {
    CUdeviceptr addr;
    size_t size;
    CUmemorytype type;
    int device;
    bool shareable; /* with other processes */
};

/* A member of struct real_driver, by number. */
#define FN(name) (offsetof(struct real_driver, name) / sizeof(void *))
#define FNS      (sizeof(struct real_driver) / sizeof(void *))

struct fake_script {
    CUresult result;
    unsigned int from, times;  /* of the calls to come: the first one that fails, and how many do */
    void (*before)(void *arg); /* runs before each call has an effect */
    void *arg;
    unsigned int calls;
};

struct fake {
    struct real_driver driver; /* what real_driver_get returns, unless it is absent */
    bool absent;
    int version, devices;
    struct fake_context contexts[FAKE_CONTEXTS];
    struct fake_stream streams[FAKE_STREAMS];
    struct fake_event events[FAKE_EVENTS];
    struct fake_range ranges[FAKE_RANGES];
    unsigned int streams_made, events_made;
    CUdeviceptr next; /* address of the next allocation */
    size_t free;
    bool pools; /* the device has the driver's memory pools */
    struct fake_script scripts[FNS];
    unsigned int steps, fault_at; /* calls so far; the one that fails, counted from 1; 0: none */
    CUresult fault;               /* what that returns */
    size_t faulted, fault_from;   /* its function; the first function whose calls count */
    CUdeviceptr bytes_at;         /* of a fill of more than a byte: what is filled there is read back; 0: not yet */
    unsigned char bytes[256];
    char log[16384], said[16384], traced[16384]; /* calls of the driver; log lines; events of the trace */
    size_t logged;
    uint64_t traced_at; /* the time of the last event of an earlier moment */
    _Atomic(uint64_t) ns;
    uint64_t step;       /* how far the clock goes with each look at it */
    uint64_t relax_step; /* and while someone waits */
    atomic_uint relaxes;
    void (*relax)(void *arg); /* runs each time that the library looks again; NULL: nothing */
    void *relax_arg;
    unsigned int opened, clocks; /* calls of trace_open, background_start */
    bool background;             /* the library has its thread */
    atomic_uint futexes;         /* system calls */
    bool dead_threads, fences;   /* each thread is dead; the kernel has no membarrier */
    int old_rename;              /* errno of a file system that cannot rename without replacing; 0: it can */
    bool no_locks;               /* files cannot be locked */
    const char *renames[2];      /* before a lock another process gives the first file the second name, once */
    bool secure;                 /* the program is set-uid */
    bool no_memory;              /* of the host: for what is aligned, or zeroed */
    void (*allocates)(void);     /* runs before memory is zeroed; NULL: nothing */
    unsigned int binds;          /* calls of mbind; the last one's node, counted from 1 */
    int bound;
    bool policy_hidden;    /* as in a container that forbids the question */
    bool barriers_refused; /* it says that it has one, and refuses */
    unsigned int barriers, registrations;
    struct pool_config config;       /* of the pool that was made last */
    unsigned int pools_refused;      /* so many are not made */
    unsigned int defer_never;        /* calls of pool_defer_never */
    const char *host, *exe;          /* what the system says; NULL: the truth; "": an error */
    const char *root;                /* a folder with its own /proc and /sys; NULL: the system's */
    unsigned int writes_interrupted; /* so many write nothing, because of a signal */
    unsigned int writes_short;       /* so many write all but the last byte, and the next one nothing */
    bool disk_full;
    bool append_only;             /* files cannot be made shorter */
    int shortened;                /* another descriptor of the last file that was to be, as a child has it */
    unsigned int neighbours;      /* other processes on the card */
    unsigned int gives;           /* so many questions they answer with memory, and the later ones without */
    unsigned int questions;       /* to them */
    uint64_t answer_ns;           /* the time that an answer takes, unless the asker does not wait so long */
    const struct real_nccl *nccl; /* NULL: none is loaded */
    bool comm_locked;             /* a lock may be held over calls, because a communicator's is */
    bool registers;               /* memory is registered with NCCL, says the library */
    size_t parked;                /* bytes that could not be deregistered, and may go now */
    void *next_of[REAL_COUNT];    /* what is behind each exported function */
};
extern struct fake fake;

/* For sweeps (sweep_scenes.h), kept by fake_start. Before each call of the driver: an error is its result, and the log
 * has a word for every call. And whether the host lacks memory for the next request. NULL: none of both. */
extern CUresult (*fake_each)(size_t function);
extern bool (*fake_lacks_memory)(void);
/* A call: its scripted result. The words go into the log if fake_each is set; NULL: none. */
__attribute__((format(printf, 2, 3))) CUresult fake_called(size_t function, const char *format, ...);

/* Everything as at the start: one device has an active primary context, which is current on this thread. */
void fake_start(void);

CUcontext fake_context(unsigned int i);
CUstream fake_stream(unsigned int i, unsigned int context); /* made if need be */
/* As in the log; a default stream: not positive. */
int fake_stream_number(CUstream stream);
struct fake_context *fake_context_of(CUcontext handle);
void fake_current(CUcontext handle);
/* Has each call of this thread that changed its context or capture mode been undone? */
bool fake_thread_is_clean(CUcontext handle);
/* Say that there is memory at addr. */
void fake_range_add(CUdeviceptr addr, size_t size, CUmemorytype type, int device);
/* The memory around addr; NULL: none. */
struct fake_range *fake_range_of(CUdeviceptr addr);

/* Locks of the library that this thread holds; a call of the driver below one ends the test. */
unsigned int fake_locks_held(void);

/* The log since the last call; the text stays until the next one. Tests add the calls of their own stand-ins. */
const char *fake_log(void);
__attribute__((format(printf, 1, 2))) void fake_log_add(const char *format, ...);
/* A call: is it the one that is to fail? */
bool fake_fails(size_t function);
static inline unsigned int fake_calls(size_t function)
{
    return fake.scripts[function].calls;
}
/* As fake_called, at the head of a test's own function, which returns that. */
#define SCRIPTED(name, ...)                                                                                            \
    do {                                                                                                               \
        const CUresult scripted_ = fake_called(FN(name), __VA_ARGS__);                                                 \
        if (scripted_)                                                                                                 \
            return scripted_;                                                                                          \
    } while (0)
/* From now on the driver lacks a function. */
void fake_lack(size_t function);
/* The next skipped calls succeed, and times calls after them fail. */
void fake_fail_after(size_t function, unsigned int skipped, CUresult result, unsigned int times);
static inline void fake_fail(size_t function, CUresult result, unsigned int times)
{
    fake_fail_after(function, 0, result, times);
}
void fake_before(size_t function, void (*before)(void *arg), void *arg);

#endif
