/* SPDX-License-Identifier: Apache-2.0 */
/*
 * process.h - whether the library is at work in this process, and whether a thread is in a call of the library's own.
 *
 * It decides nothing about a request (serve/serve.h does), and knows no CUDA. Nothing is read, opened or
 * started before process_start, which the first call that could be pooled makes.
 *
 * Threads: every function, from any thread. Locking: none; the state is atomic, the depth a thread's own. No function
 * fails or allocates memory.
 */
#ifndef CUPOOL_SHIM_BASE_PROCESS_H
#define CUPOOL_SHIM_BASE_PROCESS_H

#include <stdatomic.h>
#include <stdbool.h>

#include "base/conf.h"

enum process_state {
    PROCESS_NEW,     /* no request has been handled yet */
    PROCESS_ACTIVE,  /* at least one request has been handled */
    PROCESS_PASSIVE, /* switched off, or a forked child */
};

/* Private to the functions below, which are inline because each request and each free passes through them. */
extern atomic_int process_state;
extern __thread unsigned int process_depth __attribute__((tls_model("initial-exec"), visibility("hidden")));

/*
 * The calls by which higher rooms take part in these moments. serve/library.c defines it: data that the linker fills
 * in, and no constructor, because a preload's constructors run after those of libraries that may already allocate.
 */
struct process_events {
    void (*started)(void);  /* once, before the state is PROCESS_ACTIVE */
    void (*forked)(void);   /* in a child that fork() has made, after the state is PROCESS_PASSIVE */
    bool (*is_first)(void); /* no copy of the library in this process comes before this one */
};
extern const struct process_events process_events;

static inline int process_state_get(void)
{
    return atomic_load_explicit(&process_state, memory_order_acquire);
}

/* False: the library is switched off, or the program's calls reach another copy of it first. The first call asks the
 * loader, the library's constructor at the latest; later ones take no lock and allocate no memory. */
bool process_may_start(void);

/* True if the calling thread is between process_bypass_begin and process_bypass_end, or the library may not start or
 * is in a forked child: pass everything through. */
static inline bool process_is_passive(void)
{
    const int now = atomic_load_explicit(&process_state, memory_order_relaxed);

    return process_depth || now == PROCESS_PASSIVE || (now == PROCESS_NEW && !process_may_start());
}

/* True if the calling thread is in a call that the library makes for itself. */
static inline bool process_is_inside(void)
{
    return process_depth > 0;
}

/* Between these two, which may be nested, the hooks pass the calling thread's calls through. */
static inline void process_bypass_begin(void)
{
    process_depth++;
}

static inline void process_bypass_end(void)
{
    process_depth--;
}

/* True if the driver API is pooled: its allocations are served, and cuGetProcAddress returns our functions. Takes no
 * lock and allocates no memory, because it is called inside dlsym. */
bool process_hooks_driver(void);

/* True if a request has been handled. */
bool process_has_begun(void);

/* True if requests are served, or will be. False in a forked child, and after process_end. */
bool process_serves(void);

/* True if the trace may show the driver's other calls. False if some of them do not pass our hooks. */
bool process_traces(void);

/* Only after process_start. True: this process is a child made by _Fork or the system call, which ran no fork handler.
 * It must write nothing: the files are the parent's. */
bool process_is_foreign(void);

/* Start the library, unless it has been started; other threads wait until that is done. Keeps errno. */
void process_start(void);

/* The library's destructor has begun. */
void process_end(void);

#endif
