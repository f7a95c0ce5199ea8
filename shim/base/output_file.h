/* SPDX-License-Identifier: Apache-2.0 */
/*
 * output_file.h - makes the files that the library writes: they overwrite nothing, their name leads to the newest run,
 * and their descriptors keep away from the program's. The contents are the callers'; descriptor.h is for writing and
 * closing.
 *
 * Threads: every function may be called from any thread. It allocates no memory. Each file has an advisory lock (flock)
 * while it is written; nothing waits for one.
 */
#ifndef CUPOOL_SHIM_BASE_OUTPUT_FILE_H
#define CUPOOL_SHIM_BASE_OUTPUT_FILE_H

#include <stddef.h>

/* A kind of file. */
struct file_kind {
    const char *what;    /* for messages */
    const char *magic;   /* the first bytes of every such file; 15 at most */
    const char *not_one; /* a message's words for a file that begins otherwise */
};

/*
 * Create path, or take it over if it is empty. A file of an earlier run at this name is renamed to the first free
 * number, path.1, path.2, ... If path is something else, or a process still writes it, the new file gets a number.
 * flags: further flags of open. name: receives the name used. Returns a descriptor, or -1 after a message on stderr.
 */
int file_create(const char *path, const struct file_kind *kind, int flags, char *name, size_t len);

#endif
