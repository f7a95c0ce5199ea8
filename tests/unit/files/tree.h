/* SPDX-License-Identifier: Apache-2.0 */
/* tree.h - what is left after a case: files, descriptors, locks, the thread's state. One thread; no locks. */
#ifndef CUPOOL_TESTS_FILES_TREE_H
#define CUPOOL_TESTS_FILES_TREE_H

#include <stddef.h>

/* Make an empty folder d, and remember which descriptors are open. */
void tree_start(void);
/* Print all that is in d, without what is in statistics pages but for their numbers; which descriptors there are more
 * than before; the thread's cancellation and signal mask, if they are not the usual ones; and errno, if it is not. */
void tree_print(void);
/* The value of errno before the calls. */
#define TREE_ERRNO 123
/* Print errno, if it is another one. */
void tree_errno(const char *what);
void tree_file(const char *path, const char *text);

#endif
