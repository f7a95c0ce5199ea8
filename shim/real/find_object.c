/* SPDX-License-Identifier: Apache-2.0 */
/*
 * find_object.c - see find_object.h.
 *
 * It runs inside other code's dlsym calls, the start-up of sanitizer runtimes included, so it is built without
 * instrumentation and allocates no memory, takes no lock of its own and prints nothing.
 */
#include "real/find_object.h"

#include <dlfcn.h>
#include <stddef.h>

#ifndef DLFO_STRUCT_HAS_EH_DBASE /* headers before 2.35 lack what the glibc of a later day may have */
struct dl_find_object {
    unsigned long long dlfo_flags;
    void *dlfo_map_start, *dlfo_map_end;
    struct link_map *dlfo_link_map;
    void *dlfo_eh_frame;
    unsigned long long reserved[7];
};
#endif
extern int _dl_find_object(void *address, struct dl_find_object *ret) __attribute__((weak));

bool find_object(const void *address, struct found_object *ret)
{
    struct dl_find_object found;
    struct link_map *map = NULL;
    Dl_info info;

    if (_dl_find_object) {
        if (_dl_find_object((void *)address, &found))
            return false;
        *ret = (struct found_object){.map = found.dlfo_link_map, .start = found.dlfo_map_start};
        return true;
    }
    if (!dladdr1(address, &info, (void **)&map, RTLD_DL_LINKMAP) || !map)
        return false;
    *ret = (struct found_object){.map = map, .start = info.dli_fbase, .symbol = info.dli_sname};
    return true;
}
