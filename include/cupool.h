/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cupool.h - for programs that want to talk to cupool, which serves their cudaMalloc when it is preloaded.
 *
 * What it is: the whole interface, and all that a program needs of it at build time: there is nothing to link to. The
 * same program runs with cupool and without; without, each function says so (-ENOSYS, or 0 where it asks whether).
 *
 * What it is not: needed. A program that never heard of cupool is served the same.
 *
 * Errors: negative errno values, as said at each function; errno itself stays as it is. Nothing here ends the program.
 * -ENOSYS always means: no cupool. It is not preloaded, or switched off (CUPOOL_ENABLE=0), this is a forked child of a
 * process that has used CUDA, or the process has run its exit handlers.
 *
 * Threads: every function, from any thread, with or without a current context, also before the first CUDA call, in
 * exit handlers and while others allocate. Not from signal handlers.
 *
 * Devices are numbered as cudaGetDevice and cuDeviceGet do. CUPOOL_ALL_DEVICES stands for all that this process uses.
 * A device that it has not used is no error: it has no pool, and so nothing to count or to give back.
 */
#ifndef CUPOOL_H
#define CUPOOL_H

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#if !defined(__PIC__) && !defined(__PIE__)
#include <dlfcn.h>
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this header, as cupool_version() says that of the library. */
#define CUPOOL_VERSION_NUMBER 100 /* 10000 * major + 100 * minor + patch */

#define CUPOOL_ALL_DEVICES (-1)

/* Where the pools' memory comes from: cuMemAlloc, or ncclMemAlloc. */
enum cupool_backend { CUPOOL_BACKEND_CUDA, CUPOOL_BACKEND_NCCL };

/*
 * The counters of a device, or of all: the sums over its contexts, since the process began, those included that are
 * gone. The same as in CUPOOL_STATS and the trace. What other threads do meanwhile may be in one of them and not yet
 * in another. New ones are added at the end.
 */
struct cupool_stats {
    uint64_t size; /* bytes of this struct that were filled in; what is behind them is newer than the library, and 0 */

    /* Requests. */
    uint64_t allocs;   /* that the pool has served */
    uint64_t hits;     /* of these, without the driver */
    uint64_t misses;   /* of these, with a new segment */
    uint64_t frees;    /* of pooled memory */
    uint64_t failed;   /* that the pool has not served */
    uint64_t bypassed; /* that went to the driver, although the pool could have been asked, or was */

    /* Bytes. */
    uint64_t live; /* in blocks that are handed out, rounded up, or were freed and are not to be used again yet */
    uint64_t held; /* in segments: what the driver has given; held - live is cached */
    uint64_t idle; /* in segments of which nothing is handed out: what cupool_trim() can give back */
    /* The most so far; of contexts of a device that were there at a time the sum of theirs, and of all devices too.
     * peak_live: in blocks that are handed out, alone. */
    uint64_t peak_live, peak_held;

    /* Calls. */
    uint64_t segments_alloc, segments_free; /* segments got from the driver and given back */
    uint64_t oom;                           /* segments that the driver has refused */
    uint64_t order;                         /* calls that ordered frees */
    uint64_t kept;                          /* frees that were kept back during a capture */

    /* NCCL, of the whole process whatever device is asked for; 0 without CUPOOL_REGISTER. */
    uint64_t nccl_segments;     /* that are to be registered, now */
    uint64_t nccl_registered;   /* registrations with communicators so far */
    uint64_t nccl_deregistered; /* of these, undone */
    uint64_t nccl_failed;       /* registrations, or their undoing, that NCCL refused */
    uint64_t nccl_parked;       /* bytes that are to go back and cannot yet */

    /* Requests that came to the bound of held memory, and first waited for what this thread's frees waited for
     * natively. */
    uint64_t bound;
};

/*
 * What the library exports. Call the functions below in place of these: without the library these are null. For other
 * languages these are the names to look up.
 */
#define CUPOOL_WEAK __attribute__((weak))
extern int cupool_lib_version(void) CUPOOL_WEAK;
extern int cupool_lib_enabled(void) CUPOOL_WEAK;
extern int64_t cupool_lib_trim(int device) CUPOOL_WEAK;
/* stats->size says how large the caller's struct is. */
extern int cupool_lib_stats_get(int device, struct cupool_stats *stats) CUPOOL_WEAK;
extern int cupool_lib_mark(const char *text) CUPOOL_WEAK;
extern int cupool_lib_backend_set(int backend) CUPOOL_WEAK;
extern int cupool_lib_window_register(void *comm, const void *ptr, size_t size, void **ret_window) CUPOOL_WEAK;
extern int cupool_lib_window_deregister(void *comm, void *window) CUPOOL_WEAK;

/* The linker fixes weak references of position-dependent code to nothing, so there they are looked up. */
#if defined(__PIC__) || defined(__PIE__)
#define CUPOOL_FIND(symbol) (&(symbol))
#else
#define CUPOOL_FIND(symbol) (__extension__(__typeof__(&(symbol))) dlsym(NULL, #symbol)) /* NULL: RTLD_DEFAULT */
#endif

/* The version of the library, as CUPOOL_VERSION_NUMBER; -ENOSYS only if it is not preloaded. */
static inline int cupool_version(void)
{
    int (*const lib)(void) = CUPOOL_FIND(cupool_lib_version);

    return lib ? lib() : -ENOSYS;
}

/* 1: requests of this process are pooled, or will be; 0: they are not, and everything below returns -ENOSYS. */
static inline int cupool_enabled(void)
{
    int (*const lib)(void) = CUPOOL_FIND(cupool_lib_enabled);

    return lib ? lib() : 0;
}

/*
 * Give back to the driver what a device's pools hold without need: segments of which nothing is handed out. Returns
 * their bytes; 0 also while a stream of the process captures, and in a NCCL group of this thread where memory is
 * registered with NCCL (CUPOOL_REGISTER). May wait for work that was launched before frees, as cudaFree natively does.
 * Blocks that are handed out stay where they are. Where memory comes from NCCL or is registered with it, call it on
 * all ranks at the same point of the program: what a rank holds follows from its requests alone, and should be the
 * same on all.
 */
static inline int64_t cupool_trim(int device)
{
    int64_t (*const lib)(int) = CUPOOL_FIND(cupool_lib_trim);

    return lib ? lib(device) : -ENOSYS;
}

/*
 * Fill in the caller's stats, all of it. 0; -EINVAL: no such struct or device. Program and library need not be of the
 * same version: the shorter of their structs is what is filled in, stats->size says how much of it, the rest is 0.
 */
static inline int cupool_stats_get(int device, struct cupool_stats *stats)
{
    int (*const lib)(int, struct cupool_stats *) = CUPOOL_FIND(cupool_lib_stats_get);

    if (!stats)
        return -EINVAL;
    stats->size = sizeof(*stats);
    return lib ? lib(device, stats) : -ENOSYS;
}

/*
 * Write an event "mark" with this text into the trace, at once: readers show where in the program's course it stands.
 * The text is UTF-8 and copied; beyond some 250 characters it is cut. 0, also if there is to be no trace; -EAGAIN:
 * there is none yet, it begins with the first request that is pooled; -EINVAL: no text.
 */
static inline int cupool_mark(const char *text)
{
    int (*const lib)(const char *) = CUPOOL_FIND(cupool_lib_mark);

    return lib ? lib(text) : -ENOSYS;
}

/*
 * Where memory comes from that is got from now on, as CUPOOL_BACKEND says it at the start; an enum cupool_backend.
 * Requests that begin after this are served from such memory alone. Blocks that are handed out stay as they are; when
 * nothing of a segment is handed out any more it goes back to where it came from. What is idle goes at once, as by
 * cupool_trim(), not in a capture or a group. 0; -EAGAIN: nothing has been pooled yet (use CUPOOL_BACKEND), no
 * context is current on this thread, or a stream captures; -ENOTSUP: no NCCL is loaded that has ncclMemAlloc and gives
 * memory with it that can be shared between processes; -EINVAL.
 *
 * Where ranks communicate, memory of one kind on one and of the other on another can hang them if it is registered:
 * call it on all ranks at the same point of the program, and look at what it returns on all. As with
 * CUPOOL_BACKEND=nccl, requests that NCCL refuses are refused, and idle memory goes back only when a request needs it,
 * from then on for good.
 */
static inline int cupool_backend_set(int backend)
{
    int (*const lib)(int) = CUPOOL_FIND(cupool_lib_backend_set);

    return lib ? lib(backend) : -ENOSYS;
}

/*
 * Make the allocation that holds a buffer a symmetric window of a NCCL communicator (2.27 and later), so that
 * operations on buffers in it can take NCCL's symmetric kernels. The buffer is one of the pool's whose memory comes
 * from NCCL (CUPOOL_BACKEND=nccl), or of ncclMemAlloc; all else that lies in the same segment is in the window, too,
 * and the segment stays until the window has gone.
 *
 * All ranks call it, outside of groups and captures, with the communicator's device current and nothing else under way
 * on the communicator by another thread; it blocks until all have. An operation's buffers have to lie alike in all
 * ranks' windows, which nothing checks in NCCL: here the ranks first tell each other where the buffer lies in its
 * allocation and how large that is. Where they differ (-EXDEV), or one of them has no such memory (-ENOTSUP) or buffer
 * (-EINVAL), all return the same and nothing was made; likewise if a stream captures in one of them (-EBUSY). That this
 * rank cannot make windows at all shows before that, and should be so on all: -ENOTSUP without CUPOOL_REGISTER or in a
 * NCCL without windows, -EBUSY in a group, -EINVAL if the communicator is not known or not of this device. -EIO: CUDA
 * or NCCL has refused; if that is so on this rank alone the others go on waiting.
 *
 * 0: *ret_window is NCCL's, to be given back with cupool_window_deregister before the communicator ends.
 */
static inline int cupool_window_register(void *comm, const void *ptr, size_t size, void **ret_window)
{
    int (*const lib)(void *, const void *, size_t, void **) = CUPOOL_FIND(cupool_lib_window_register);

    return lib ? lib(comm, ptr, size, ret_window) : -ENOSYS;
}

/* Undo it, on all ranks, when no work uses it. Errors as above; -EINVAL: no such window. */
static inline int cupool_window_deregister(void *comm, void *window)
{
    int (*const lib)(void *, void *) = CUPOOL_FIND(cupool_lib_window_deregister);

    return lib ? lib(comm, window) : -ENOSYS;
}

#undef CUPOOL_FIND
#undef CUPOOL_WEAK

#ifdef __cplusplus
}
#endif

#endif
