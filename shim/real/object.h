/* SPDX-License-Identifier: Apache-2.0 */
/*
 * object.h - the object (program or library) that holds an address of code: its path, its load bias, its build id.
 *
 * It reads no file and no debugging information: programs that read a trace do. It does not classify objects; caller.h
 * does.
 *
 * Threads: every function may be called from any thread, also inside a constructor that a dlopen runs. No lock and no
 * allocation; from glibc 2.35 on not the loader's lock either. Pointers in a struct object are the loader's and stay
 * valid as long as the object is loaded.
 */
#ifndef CUPOOL_SHIM_REAL_OBJECT_H
#define CUPOOL_SHIM_REAL_OBJECT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct object {
    const char *path;   /* as the loader has it; "": the program itself */
    const char *symbol; /* the function; NULL: unknown, always so from glibc 2.35 on */
    uintptr_t start;    /* the first address of the object's memory */
    uintptr_t bias;     /* an address less this is the one that the object's file and its debugging information have */
};

/* The longest build id that is read. */
#define OBJECT_ID_MAX 32

/* Find the object that holds an address. False: there is none. */
bool object_of(const void *address, struct object *ret_object);

/* Copy the build id from the object's memory. Returns its length in bytes; 0: the object has none. */
size_t object_build_id(const struct object *object, uint8_t ret_id[OBJECT_ID_MAX]);

/* Write the absolute path of the object's file, as it was when the object was loaded. False: it does not fit, or is not
 * known. */
bool object_path(const struct object *object, char *buf, size_t len);

#endif
