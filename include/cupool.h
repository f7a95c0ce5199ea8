/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cupool.h - for programs that want to talk to cupool, which serves their cudaMalloc when it is preloaded.
 *
 * This header is the whole interface, and there is nothing to link to. A program that uses it runs with cupool and
 * without; without, each function says so (it returns -ENOSYS, or cupool_enabled() returns 0).
 *
 * No program needs it: programs that do not use it are served in the same way.
 *
 * Errors: negative errno values, listed at each function; errno itself does not change. Nothing here ends the program.
 * -ENOSYS always means that there is no cupool: it is not preloaded, or switched off (CUPOOL_ENABLE=0), this is a
 * forked child of a process that has used CUDA, or the process has run its exit handlers.
 *
 * Threads: every function may be called from any thread, with or without a current context, before the first CUDA call,
 * in exit handlers, and while other threads allocate. Not from signal handlers.
 *
 * Ownership: the caller owns all memory that it passes; strings are copied.
 *
 * Devices are numbered as by cudaGetDevice and cuDeviceGet. CUPOOL_ALL_DEVICES stands for all devices that this process
 * uses. A device that it has not used is no error: it has no pool, and so nothing to count or to give back.
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

/* The version of this header; cupool_version() returns that of the library. */
#define CUPOOL_VERSION_NUMBER 400 /* 10000 * major + 100 * minor + patch */

#define CUPOOL_ALL_DEVICES (-1)

/* The source of the pools' memory: cuMemAlloc, ncclMemAlloc, or cuMemCreate. */
enum cupool_backend { CUPOOL_BACKEND_CUDA, CUPOOL_BACKEND_NCCL, CUPOOL_BACKEND_VMM };

/*
 * The counters of a device, or of all: the sums over its contexts since the process began, those that are gone
 * included. They equal those of CUPOOL_STATS and the trace. An action of another thread meanwhile may be in one counter
 * and not yet in another. New counters are added at the end.
 */
struct cupool_stats {
    uint64_t size; /* bytes of this struct that were filled in; members behind them are newer than the library, and 0 */

    /* Requests. */
    uint64_t allocs;   /* requests that the pool has served */
    uint64_t hits;     /* of these, without the driver */
    uint64_t misses;   /* of these, with a new segment */
    uint64_t frees;    /* frees of pooled memory */
    uint64_t failed;   /* requests that the pool has not served */
    uint64_t bypassed; /* requests that went to the driver although the pool could have served them */

    /* Bytes. */
    uint64_t live; /* in blocks handed out (rounded up), or freed and not to be reused yet */
    uint64_t held; /* in segments: memory from the driver; held - live is cached */
    uint64_t idle; /* in segments without a block handed out: cupool_trim() can give them back */
    /* The maxima so far. Over contexts of a device that existed at the same time they are sums, and over all devices
     * too. peak_live covers blocks handed out only. */
    uint64_t peak_live, peak_held;

    /* Calls. */
    uint64_t segments_alloc, segments_free; /* segments got from the driver and given back */
    uint64_t oom;                           /* segments that the driver has refused */
    uint64_t order;                         /* calls that ordered frees */
    uint64_t kept;                          /* frees that could not be ordered at first */

    /* NCCL, for the whole process whichever device is asked for; 0 without CUPOOL_REGISTER. */
    uint64_t nccl_segments;     /* segments to be registered, now */
    uint64_t nccl_registered;   /* registrations with communicators so far */
    uint64_t nccl_deregistered; /* of these, undone */
    uint64_t nccl_failed;       /* registrations and deregistrations that NCCL refused */
    uint64_t nccl_parked;       /* bytes that have to go back and cannot yet */

    /* Requests at the bound of held memory, which first waited for the work that this thread's frees would natively
     * have waited for. */
    uint64_t bound;

    /* Pinned host memory, for the whole process whichever device is asked for; 0 without CUPOOL_HOST_POOL=1. The
     * meaning is as above, for the memory of cudaMallocHost and cudaHostAlloc; a segment is an allocation of the
     * driver. */
    uint64_t host_allocs, host_hits, host_misses, host_frees, host_failed;
    uint64_t host_live; /* in blocks handed out (rounded up) */
    uint64_t host_held, host_peak_live, host_peak_held;
    uint64_t host_idle; /* in segments without a block handed out: cupool_trim() of all devices can give them
                           back */
    uint64_t host_segments_alloc, host_segments_free, host_bound;
    uint64_t host_blocks;   /* bytes of the blocks that serve host_live */
    uint64_t host_waiting;  /* bytes of freed blocks that work may still use */
    uint64_t host_segments; /* segments, now */
    uint64_t host_refused;  /* requests that the driver refused at first */
    uint64_t host_passing;  /* part of host_held beyond the bound: it goes back to the driver when it is freed */

    /* Refused requests that were made again because other processes on the device gave memory back, or may have. */
    uint64_t helped;

    /* Nanoseconds that all threads together were in the calls that get segments from the driver and give them back. */
    uint64_t driver_ns;

    /* Bytes of held whose memory cupool_pause() has given to the driver: the process has their addresses alone. */
    uint64_t paused;
};

/* A block of this process, for another process of this user: bytes that any pipe, socket or file can carry. */
struct cupool_ticket {
    unsigned char bytes[64];
};

/*
 * The library's exported functions. Call the functions below instead: without the library these are null. From other
 * languages, look up these names.
 */
#define CUPOOL_WEAK __attribute__((weak))
extern int cupool_lib_version(void) CUPOOL_WEAK;
extern int cupool_lib_enabled(void) CUPOOL_WEAK;
extern int64_t cupool_lib_trim(int device) CUPOOL_WEAK;
/* stats->size is the size of the caller's struct. */
extern int cupool_lib_stats_get(int device, struct cupool_stats *stats) CUPOOL_WEAK;
extern int cupool_lib_mark(const char *text) CUPOOL_WEAK;
extern int cupool_lib_backend_set(int backend) CUPOOL_WEAK;
extern int cupool_lib_pause(int device, unsigned int flags) CUPOOL_WEAK;
extern int cupool_lib_resume(int device) CUPOOL_WEAK;
extern const char *cupool_lib_pause_reason(void) CUPOOL_WEAK;
extern int cupool_lib_export(const void *block, struct cupool_ticket *ret_ticket) CUPOOL_WEAK;
extern int64_t cupool_lib_import(const struct cupool_ticket *ticket, size_t *ret_size) CUPOOL_WEAK;
extern int cupool_lib_import_close(int64_t imported) CUPOOL_WEAK;
extern int cupool_lib_reserve(size_t size, void **ret_range) CUPOOL_WEAK;
extern int cupool_lib_unreserve(void *range) CUPOOL_WEAK;
extern int cupool_lib_insert(void *at, int64_t imported) CUPOOL_WEAK;
extern int cupool_lib_withdraw(void *at) CUPOOL_WEAK;
extern int cupool_lib_window_register(void *comm, const void *ptr, size_t size, void **ret_window) CUPOOL_WEAK;
extern int cupool_lib_window_deregister(void *comm, void *window) CUPOOL_WEAK;

/* The linker resolves weak references of position-dependent code to null, so there they are looked up at run time. */
#if defined(__PIC__) || defined(__PIE__)
#define CUPOOL_FIND(symbol) (&(symbol))
#else
#define CUPOOL_FIND(symbol) (__extension__(__typeof__(&(symbol))) dlsym(NULL, #symbol)) /* NULL: RTLD_DEFAULT */
#endif

/* The version of the library, in the form of CUPOOL_VERSION_NUMBER; -ENOSYS only if it is not preloaded. */
static inline int cupool_version(void)
{
    int (*const lib)(void) = CUPOOL_FIND(cupool_lib_version);

    return lib ? lib() : -ENOSYS;
}

/* 1: requests of this process are pooled, or will be; 0: they are not, and all functions below return -ENOSYS. */
static inline int cupool_enabled(void)
{
    int (*const lib)(void) = CUPOOL_FIND(cupool_lib_enabled);

    return lib ? lib() : 0;
}

/*
 * Give the idle segments of a device's pools back to the driver: those without a block handed out; with
 * CUPOOL_ALL_DEVICES those of pinned host memory, too, which belongs to no device. Returns their bytes; -EINVAL: no
 * such device. Returns 0 also while a stream of the process captures, and inside an NCCL group of this thread if memory
 * is registered with NCCL (CUPOOL_REGISTER). May wait for work launched before frees, as cudaFree natively does; and,
 * where memory is registered with NCCL, a second at most for other threads that release such memory. Blocks handed out
 * stay where they are. If memory comes from NCCL or is registered with it, call it on all ranks at the same
 * point of the program: the memory of a rank follows from its requests alone, and should be the same on all ranks.
 */
static inline int64_t cupool_trim(int device)
{
    int64_t (*const lib)(int) = CUPOOL_FIND(cupool_lib_trim);

    return lib ? lib(device) : -ENOSYS;
}

/*
 * Fill in all of *stats. 0; -EINVAL: no such struct or device. Program and library need not be of the same version: the
 * shorter of their structs is filled in, stats->size is its size, and the rest is 0.
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
 * Write an event "mark" with this text to the trace at once, which readers show at this point of the program. The text
 * is UTF-8 and copied; beyond some 250 characters it is cut off. 0, also if there will be no trace; -EAGAIN: the trace
 * begins later, with the first pooled request; -EINVAL: text is NULL.
 */
static inline int cupool_mark(const char *text)
{
    int (*const lib)(const char *) = CUPOOL_FIND(cupool_lib_mark);

    return lib ? lib(text) : -ENOSYS;
}

/*
 * Set the source of new memory, an enum cupool_backend, as CUPOOL_BACKEND does at the start. Requests that begin after
 * this are served from such memory alone. Blocks handed out stay as they are; a segment without blocks handed out goes
 * back to its source. Idle segments go back at once, as by cupool_trim(), but not during a capture or in a group. 0;
 * -EAGAIN: nothing has been pooled yet (use CUPOOL_BACKEND); or no context is current on this thread, or a stream
 * captures, which is no error of CUPOOL_BACKEND_CUDA, nor of CUPOOL_BACKEND_NCCL after the first time; -ENOTSUP: no
 * NCCL is loaded whose ncclMemAlloc gives memory that processes can share, or the device has no virtual memory calls;
 * -EINVAL: no such backend.
 *
 * If one rank has memory of one kind and another rank of the other kind, and the memory is registered, communication
 * between them can hang: call this on all ranks at the same point of the program, and check the result on all. As with
 * CUPOOL_BACKEND=nccl, requests that NCCL refuses are refused, and from then on idle memory goes back only when a
 * request needs it.
 */
static inline int cupool_backend_set(int backend)
{
    int (*const lib)(int) = CUPOOL_FIND(cupool_lib_backend_set);

    return lib ? lib(backend) : -ENOSYS;
}

/*
 * Give the memory of all segments of a device's pools to the driver, so that other processes can have it, and keep
 * their addresses. CUPOOL_KEEP copies what the program has allocated and not freed to pinned host memory;
 * CUPOOL_DISCARD drops it. cupool_resume() puts memory at the same addresses, and copies the contents back. Pointers,
 * and graphs captured before, are good again after that.
 *
 * For CUPOOL_BACKEND=vmm. Before memory goes, the call waits for all work of the process's contexts (of those that the
 * program makes with cuCtxCreate, where memory was pooled). The program launches nothing that uses the memory until it
 * has resumed the device: such work meets an illegal address. Meanwhile requests get new memory, which is not paused,
 * and memory can be freed as always. Memory that the pool did not serve (see cupool_stats.bypassed) stays.
 *
 * 0: paused. -EBUSY: a stream captures; memory of the device is exported, or registered with NCCL
 * (CUPOOL_REGISTER); another thread pauses or resumes the device, or still fills memory (CUPOOL_FILL). -EALREADY: it is
 * paused. -EOPNOTSUPP: its memory comes from another backend, or CUPOOL_DEBUG=guard looks at it. -ENOMEM: no pinned
 * host memory for the contents. -EIO: the driver has refused. -EAGAIN: nothing has been pooled yet. -EINVAL: no such
 * device (one, not all), or not one of the two flags. After an error nothing is paused; after -EIO with CUPOOL_DISCARD
 * contents may be lost. stderr has the reason in words, as has cupool_pause_reason().
 */
#define CUPOOL_KEEP    1u
#define CUPOOL_DISCARD 2u
static inline int cupool_pause(int device, unsigned int flags)
{
    int (*const lib)(int, unsigned int) = CUPOOL_FIND(cupool_lib_pause);

    return lib ? lib(device, flags) : -ENOSYS;
}

/*
 * Bring the memory of a paused device back: all of it, or, after an error, none. 0. -ENOMEM: the device has not so much
 * memory left, also after idle memory went back and other processes were asked for theirs; call it again later. -EBUSY:
 * a stream captures, or another thread pauses or resumes the device. -EALREADY: it is not paused. -EIO: the driver has
 * refused. -EAGAIN, -EINVAL as above.
 */
static inline int cupool_resume(int device)
{
    int (*const lib)(int) = CUPOOL_FIND(cupool_lib_resume);

    return lib ? lib(device) : -ENOSYS;
}

/* Why this thread's last cupool_pause() or cupool_resume() has failed, in words; "" if it has not. Never freed. */
static inline const char *cupool_pause_reason(void)
{
    const char *(*const lib)(void) = CUPOOL_FIND(cupool_lib_pause_reason);

    return lib ? lib() : "";
}

/*
 * Make a ticket for a block that the program got from cudaMalloc, with CUPOOL_BACKEND=vmm: another process under cupool
 * imports the block's memory by it. The block is best a multiple of 2 MiB. Its memory serves nothing else until it is
 * freed and all importers have closed it or ended. Tickets of a block are equal, and hold nothing by themselves.
 *
 * The importer sees what the device has written: wait for that work before it is told to read.
 *
 * 0. -EINVAL: block is not the beginning of one. -ENOTSUP: its memory is not of CUPOOL_BACKEND=vmm, the block is
 * smaller than 2 MiB, or it shares its driver allocation with others (later blocks do not: allocate it again); or
 * there are no tickets in this process (CUPOOL_IPC=0, CUPOOL_HOOK=runtime, CUPOOL_REGISTER). -EBUSY: the
 * device pauses, or the block has been freed. -ENOMEM: too many blocks are exported. -EMFILE: the process has no
 * descriptor left. -EIO: the driver has refused.
 */
static inline int cupool_export(const void *block, struct cupool_ticket *ret_ticket)
{
    int (*const lib)(const void *, struct cupool_ticket *) = CUPOOL_FIND(cupool_lib_export);

    return lib ? lib(block, ret_ticket) : -ENOSYS;
}

/*
 * Take the memory of another process's block, and map it nowhere yet. Returns a number above 0 for the functions below,
 * which is never used again in this process; *ret_size (NULL: not wanted): the bytes that it takes in a range, the
 * block's rounded up to a multiple of 2 MiB, or more under CUPOOL_DEBUG=guard. The memory is there until
 * cupool_import_close(), also when the exporter frees the block or ends. Waits for the exporter for CUPOOL_IPC
 * milliseconds at most.
 *
 * -EINVAL: it is no ticket, or one of this process. -EHOSTDOWN: the exporter has ended. -ENOENT: it has freed the
 * block. -ETIMEDOUT: it has not answered. -EPERM: it is another user's. -ENOSPC: it has no room in its books. -ENODEV:
 * its device is not visible to this process. -ENOTSUP: the memory cannot be inserted (a ticket that cudaIpcGetMemHandle
 * made), or CUPOOL_IPC=0, or the driver has no virtual memory. -EAGAIN: CUDA is not initialised, or does not answer
 * here (in a host function of a stream, at exit). -EMFILE: this process has no descriptor left. -EPROTO: the exporter's
 * cupool is of another version. -ENOMEM; -EIO: the driver has refused.
 */
static inline int64_t cupool_import(const struct cupool_ticket *ticket, size_t *ret_size)
{
    int64_t (*const lib)(const struct cupool_ticket *, size_t *) = CUPOOL_FIND(cupool_lib_import);

    return lib ? lib(ticket, ret_size) : -ENOSYS;
}

/* Give an import up, and let the exporter know. 0; -EINVAL: there is none; -EBUSY: it is inserted; -EAGAIN, -EIO. */
static inline int cupool_import_close(int64_t imported)
{
    int (*const lib)(int64_t) = CUPOOL_FIND(cupool_lib_import_close);

    return lib ? lib(imported) : -ENOSYS;
}

/*
 * Reserve a range of addresses, size bytes rounded up to a multiple of 2 MiB, without memory: work that uses it meets
 * an illegal address until something is inserted there. It is the program's until cupool_unreserve(). 0; -EINVAL: a
 * size of 0, or of more than 128 TiB; -ENOMEM; -ENOTSUP, -EAGAIN, -EIO as above.
 */
static inline int cupool_reserve(size_t size, void **ret_range)
{
    int (*const lib)(size_t, void **) = CUPOOL_FIND(cupool_lib_reserve);

    return lib ? lib(size, ret_range) : -ENOSYS;
}

/* Give a range up, by its first address. 0; -EINVAL: there is none; -EBUSY: something is inserted; -EAGAIN, -EIO. */
static inline int cupool_unreserve(void *range)
{
    int (*const lib)(void *) = CUPOOL_FIND(cupool_lib_unreserve);

    return lib ? lib(range) : -ENOSYS;
}

/*
 * Map an import in a reserved range, from address at on, a multiple of 2 MiB, for the device that has the memory.
 * Nothing is copied, and the device is not waited for. An import is at one place at a time; several may be in a range.
 *
 * 0. -EINVAL: there is no such import, or it does not lie in a range whole. -EBUSY: it is inserted, or another one is
 * among these addresses, or another thread's call is working on it. -ENOMEM, -EAGAIN, -EIO as above.
 */
static inline int cupool_insert(void *at, int64_t imported)
{
    int (*const lib)(void *, int64_t) = CUPOOL_FIND(cupool_lib_insert);

    return lib ? lib(at, imported) : -ENOSYS;
}

/*
 * Unmap what has been inserted at this address. Unmapping itself does not wait, and work that uses the memory would
 * meet an illegal address; so the call first waits for the work of this process's contexts (of those of cuCtxCreate
 * where memory was pooled, or which were current at a cupool_insert()). Other threads launch nothing that uses the
 * memory from the call on. The import stays, and can be inserted again, anywhere.
 *
 * 0. -EINVAL: nothing was inserted at this address. -EBUSY: a stream captures, or another thread's call is working on
 * it. -EAGAIN, -EIO as above. After an error it is inserted as before.
 */
static inline int cupool_withdraw(void *at)
{
    int (*const lib)(void *) = CUPOOL_FIND(cupool_lib_withdraw);

    return lib ? lib(at) : -ENOSYS;
}

/*
 * Make the allocation that holds a buffer a symmetric window of an NCCL communicator (2.27 and later), so that
 * operations on buffers in it can use NCCL's symmetric kernels. The buffer must be in memory from NCCL: the pool's
 * (CUPOOL_BACKEND=nccl), or the program's own from ncclMemAlloc. The window includes the rest of the segment, and the
 * segment stays until the window has gone. ptr, size: the buffer, size in bytes.
 *
 * All ranks call this function, outside of groups and captures, with the communicator's device current and no other
 * thread using the communicator; it blocks until all ranks have called it. An operation's buffers must be at the same
 * offset in all ranks' windows, which NCCL does not check. So the ranks first compare the offset of the buffer in its
 * allocation and the size of that allocation. If they differ (-EXDEV), or a rank has no such memory (-ENOTSUP) or no
 * such buffer (-EINVAL), or a stream captures on a rank (-EBUSY), all ranks return the same error and no window is
 * made. If this rank cannot make windows at all, it returns before that comparison, and all ranks should be in the same
 * situation: -ENOTSUP without CUPOOL_REGISTER or with an NCCL without windows, -EBUSY in a group, -EINVAL if the
 * communicator is not known or is not of this device. -EIO: CUDA or NCCL has refused; if it did so on this rank alone,
 * the other ranks go on waiting.
 *
 * On success (0) *ret_window belongs to NCCL; give it back with cupool_window_deregister before the communicator ends.
 */
static inline int cupool_window_register(void *comm, const void *ptr, size_t size, void **ret_window)
{
    int (*const lib)(void *, const void *, size_t, void **) = CUPOOL_FIND(cupool_lib_window_register);

    return lib ? lib(comm, ptr, size, ret_window) : -ENOSYS;
}

/* Deregister a window, on all ranks, when no work uses it. Errors as above; -EINVAL: no such window. */
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
