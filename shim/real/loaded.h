/* SPDX-License-Identifier: Apache-2.0 */
/*
 * loaded.h - the objects that the process has loaded. With dlsym_next.c the only place that calls the loader.
 *
 * It loads nothing that the program has not loaded itself. An object that was found stays loaded, unless it is being
 * unloaded.
 *
 * Threads: any thread; no lock but the loader's. No function fails but by returning NULL or false.
 */
#ifndef CUPOOL_SHIM_REAL_LOADED_H
#define CUPOOL_SHIM_REAL_LOADED_H

#include <stdbool.h>

/* A handle of a loaded library, for dlsym_real; NULL: it is not loaded. Not for dlclose. */
void *loaded_handle(const char *name);

/* The path of the first loaded object whose file name begins with prefix; NULL: none. RTLD_NEXT does not find an object
 * that was loaded with RTLD_LOCAL, but this does. */
const char *loaded_path(const char *prefix);

/* The part of a path behind its last slash. */
const char *loaded_file_name(const char *path);

/* True if the file at this path is a libcudart by its name. */
bool cudart_is(const char *path);
/* The path of a loaded libcudart; NULL: none. */
const char *cudart_path(void);

/* A value that identifies the object that holds an address; NULL: unknown. From glibc 2.35 on without the loader's
 * lock. */
const void *loaded_object(const void *address);

/* Keep the object that holds a function loaded. */
void loaded_keep(const void *function);

#endif
