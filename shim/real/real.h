/* SPDX-License-Identifier: Apache-2.0 */
/*
 * real.h - the real functions behind our hooks: next.c has the next definition of each, which_cudart.c chooses among
 * several libcudart, driver_calls.c has the driver's functions that the library itself calls, nccl_copies.c has NCCL's.
 * With loaded.c and dlsym_next.c the only place that looks functions up.
 *
 * It loads nothing that the program has not loaded itself: it searches libcuda, libcudart and NCCL among the loaded
 * objects, and searches again as long as they are not found. The pointers returned stay valid: the objects are kept
 * loaded.
 *
 * Threads: every function may be called from any thread; no lock is held over a call of CUDA.
 */
#ifndef CUPOOL_SHIM_REAL_REAL_H
#define CUPOOL_SHIM_REAL_REAL_H

#include <stdbool.h>

#include "real/hooks.h"

/* The driver's functions that the library itself calls, one for each row of calls.def. Members are NULL where the
 * driver lacks them. */
struct real_driver {
/* NOLINTNEXTLINE(bugprone-macro-parentheses): a declaration */
#define DRIVER_CALL(symbol, parameters) CUresult(*symbol) parameters;
#include "real/calls.def"
};

/* The driver's functions; NULL until the program has loaded libcuda.so.1. */
const struct real_driver *real_driver_get(void);

/*
 * The next definition of one of our hooks, which the program would have called. real_next(SYMBOL) has the right type
 * and is never NULL: if nothing defines the symbol, a function that returns "not found" errors stands in.
 */
#define real_next(symbol) ((__typeof__(&(symbol)))real_find(REAL_##symbol))

enum real_symbol {
#define RUNTIME(symbol, parameters) REAL_##symbol,
#define DRIVER(symbol, parameters)  REAL_##symbol,
#include "hooks.def"
    REAL_COUNT
};

void *real_find(enum real_symbol symbol);

/*
 * As real_next, for a function of the runtime as the code at this address would have called it: with several libcudart
 * in the process each object uses its own, with its own last error and state.
 */
#define real_runtime(symbol, caller) ((__typeof__(&(symbol)))real_find_for(REAL_##symbol, caller))
void *real_find_for(enum real_symbol symbol, const void *caller);

/* The hooks of NCCL's functions. */
enum real_nccl_symbol {
#define NCCL(symbol, parameters) REAL_NCCL_##symbol,
#include "hooks.def"
    REAL_NCCL_COUNT
};

/* A copy of NCCL: the functions that the library itself calls, and the functions behind our hooks. NULL where the copy
 * lacks them. */
struct real_nccl {
/* NOLINTNEXTLINE(bugprone-macro-parentheses): a declaration */
#define NCCL_CALL(symbol, parameters) ncclResult_t(*symbol) parameters;
#include "real/calls.def"
    void *next[REAL_NCCL_COUNT];
};

/*
 * The copy of NCCL that the code at this address would have called: the next one in the order of the loader, or, where
 * the loader finds none (a plugin has loaded its own), the one of the object that holds the address. caller NULL: any
 * copy. Returns NULL if none is loaded. Stays valid.
 */
const struct real_nccl *real_nccl_get(const void *caller);

/* As real_nccl_get, for one function; never NULL, as real_next. */
#define real_nccl_next(symbol, caller) ((__typeof__(&(symbol)))real_nccl_find(REAL_NCCL_##symbol, caller))
void *real_nccl_find(enum real_nccl_symbol symbol, const void *caller);

/* True if an object is loaded whose file name begins with name. */
bool real_is_loaded(const char *name);
/* Find the functions of a cudart that has been loaded since; under the loader's locks. A search in a later call might
 * wait for a destructor that waits for that call. caller: an address in the cudart that initialises itself, if it is
 * one. */
void next_fill_runtime(const void *caller);

/* The hook of which this is the driver's own function; REAL_COUNT: none. */
enum real_symbol real_symbol_of(const void *function);

#endif
