/* SPDX-License-Identifier: Apache-2.0 */
/*
 * copies.h - other copies of the library in the process: libcupool.so beside libcupool-nccl.so, two builds, one that is
 * preloaded for all programs and one for this program.
 *
 * Two pools would serve each other's memory, and neither would see all the work that a free may have to wait for. So
 * the copy that the program's calls reach first works, and the others pass everything on. This file only says which is
 * which.
 *
 * Threads: any thread. The loader is asked once, by the constructor at the latest, because a request must not ask for
 * its lock. No function fails.
 */
#ifndef CUPOOL_SHIM_REAL_COPIES_H
#define CUPOOL_SHIM_REAL_COPIES_H

#include <stdbool.h>

/* True if no other copy comes before this one. */
bool copies_is_first(void);
/* The file of the next copy behind this one; NULL: there was none when this one was loaded. */
const char *copies_next(void);

#endif
