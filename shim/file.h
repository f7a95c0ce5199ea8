/* SPDX-License-Identifier: Apache-2.0 */
/*
 * file.h - what files of ours have in common: they overwrite nothing, keep away from the program's descriptors, and
 * never raise a signal.
 *
 * Threads: every function, from any thread. No locks, no memory.
 */
#ifndef CUPOOL_SHIM_FILE_H
#define CUPOOL_SHIM_FILE_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/stat.h>

/* /dev/null, a pipe and the like: there is no file to be made. */
bool file_is_special(const char *path);

/* Create path, or path.1, path.2, ...; never an existing file. flags: further ones of open. name: the one used. Returns
 * a descriptor, or -1 and errno. */
int file_create(const char *path, int flags, char *name, size_t len);

/* A program may have closed our descriptor and got the number for a file of its own. file: what fd was when opened. */
bool file_is(int fd, const struct stat *file);

/* Around write(2): SIGXFSZ at the file size limit, and SIGPIPE where nobody reads, would end the program. */
struct file_quiet {
    sigset_t before;
    sigset_t ours; /* of these two, those that were not pending before */
};
void file_quiet_begin(struct file_quiet *quiet);
void file_quiet_end(const struct file_quiet *quiet);

#endif
