/* SPDX-License-Identifier: Apache-2.0 */
/*
 * find_object.h - the loaded object that holds an address, by whichever function this machine's glibc has for it.
 *
 * It reads no file and classifies nothing: object.h and loaded.h build on it. Being weak, glibc's newer function is
 * looked for when the library is loaded, so that one build runs with older glibcs too.
 *
 * Threads: any, also before the constructors have run. No allocation and no lock; before glibc 2.35 the loader's lock.
 */
#ifndef CUPOOL_SHIM_REAL_FIND_OBJECT_H
#define CUPOOL_SHIM_REAL_FIND_OBJECT_H

#include <link.h>
#include <stdbool.h>

struct found_object {
    const struct link_map *map; /* the loader's; valid as long as the object is loaded */
    const void *start;          /* the first address of the object's memory */
    const char *symbol;         /* the function; NULL: unknown, always so from glibc 2.35 on */
};

/* Find the object that holds an address. False: there is none; *ret is then unchanged. */
bool find_object(const void *address, struct found_object *ret);

#endif
