/* SPDX-License-Identifier: Apache-2.0 */
/*
 * file.h - files that the library writes: they overwrite nothing, have a name that leads to the newest run, keep away
 * from the program's descriptors, and never raise a signal.
 *
 * Threads: every function, from any thread. No memory. Each file has an advisory lock (flock) as long as it is written;
 * nothing waits for one.
 */
#ifndef CUPOOL_SHIM_FILE_H
#define CUPOOL_SHIM_FILE_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/stat.h>

/* What is in a file. */
struct file_kind {
    const char *what;    /* for messages */
    const char *magic;   /* it begins with that; 15 bytes at most */
    const char *not_one; /* of a file that begins otherwise, for messages */
};

/*
 * Create path, or take it if it is empty. A file of an earlier run in its place is given the first free number, path.1,
 * path.2, ... If path is something else, or a process still writes it, the new file has a number. flags: further ones
 * of open. name: the one used. Returns a descriptor, or -1, and has said on stderr why.
 */
int file_create(const char *path, const struct file_kind *kind, int flags, char *name, size_t len);

/* 0, or -EBADF: the program has closed our descriptor, and may have got the number for a file of its own; -ENOENT: the
 * file has been removed. file: what fd was when opened. */
int file_state(int fd, const struct stat *file);

/* Close it unless it is the program's by now. done: for all processes that have it; else for this one. */
void file_close(int fd, const struct stat *file, bool done);

/* Around write(2): SIGXFSZ at the file size limit, and SIGPIPE where nobody reads, would end the program. */
struct file_quiet {
    sigset_t before;
    sigset_t ours; /* of these two, those that were not pending before */
};
void file_quiet_begin(struct file_quiet *quiet);
void file_quiet_end(const struct file_quiet *quiet);

#endif
