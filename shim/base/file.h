/* SPDX-License-Identifier: Apache-2.0 */
/*
 * file.h - the files that the library writes: they overwrite nothing, their name leads to the newest run, their
 * descriptors keep away from the program's, and writing them never raises a signal. The contents are the callers'.
 *
 * Threads: every function may be called from any thread. It allocates no memory. Each file has an advisory lock (flock)
 * while it is written; nothing waits for one.
 */
#ifndef CUPOOL_SHIM_FILE_H
#define CUPOOL_SHIM_FILE_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/stat.h>

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

/* 0; -EBADF: the program has closed our descriptor, and the number may be a file of its own; -ENOENT: the file has been
 * removed. file: the fstat of fd when it was opened. */
int file_state(int fd, const struct stat *file);

/* Close the file, unless the descriptor is the program's by now. done: for all processes that share it; else for this
 * one only. */
void file_close(int fd, const struct stat *file, bool done);

/* Around write(2): SIGXFSZ at the file size limit, and SIGPIPE without a reader, would end the program. */
struct file_quiet {
    sigset_t before;
    sigset_t ours; /* of SIGXFSZ and SIGPIPE, those that were not pending before */
};
void file_quiet_begin(struct file_quiet *quiet);
/* failed: a write failed, so the kernel may have sent this thread a signal. Only then is one taken back: a signal that
 * the program sends the process meanwhile is the program's. */
void file_quiet_end(const struct file_quiet *quiet, bool failed);

#endif
