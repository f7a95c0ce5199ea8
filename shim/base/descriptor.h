/* SPDX-License-Identifier: Apache-2.0 */
/*
 * descriptor.h - descriptors of the library's own: their numbers, whether one is still the library's, and how it is
 * written and closed without a signal.
 *
 * It opens nothing that stays open; output_file.h and neighbour_socket.h do.
 *
 * Threads: every function may be called from any thread. No locks, no state.
 */
#ifndef CUPOOL_SHIM_BASE_DESCRIPTOR_H
#define CUPOOL_SHIM_BASE_DESCRIPTOR_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

/* Close a descriptor. Unlike close() it is no cancellation point: a thread of the program may hold a lock of ours, and
 * is to return from the call that it has made. */
void file_drop(int fd);

/* Read the beginning of a file, as text, into text, which is returned; empty if the file cannot be read. A thread of
 * the program that is to be cancelled returns first from the call that it has made. Keeps errno: not every machine has
 * all files. */
const char *file_text(const char *path, char *text, size_t len);

/* Move a descriptor of ours away from the numbers that programs count on. Returns its number from now on. */
int file_aside(int fd);

/* Another descriptor of its file, away from those numbers too. -1: there is none to be had. */
int file_copy(int fd);

/* Give a file of ours, and all its descriptors, a mark that fstat does not show, one of 64: the driver's descriptors of
 * GPU memory may all be of one inode. It is the signal that would be sent if O_ASYNC were set; a file has none at
 * first.
 */
void file_mark(int fd, uint64_t number);
/* 0: it has none. */
int file_mark_of(int fd);

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
