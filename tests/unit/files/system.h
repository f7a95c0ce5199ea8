/* SPDX-License-Identifier: Apache-2.0 */
/*
 * system.h - the calls of libc by which the library reads and writes files: any of them can fail, by the number that
 * the test gives. The sources are compiled with this header before them.
 *
 * The files are real ones in a folder of the test; the clocks, the process and the thread are not.
 *
 * Threads: one.
 */
#ifndef CUPOOL_TESTS_FILES_SYSTEM_H
#define CUPOOL_TESTS_FILES_SYSTEM_H

#include <fcntl.h>
#include <linux/fs.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* How a call fails. */
/* FAILS_NOTHING: no byte is written. FAILS_LARGE: the file may not get larger, and a signal says so. FAILS_TORN: half
 * is written, and the next write fails. FAILS_BUT_ONE: all but a byte is written, and the next two fail. FAILS_LINE:
 * the first line is written but for its end, and the next write fails. */
enum system_failure {
    FAILS_EIO,
    FAILS_EINTR,
    FAILS_HALF,
    FAILS_NOTHING,
    FAILS_LARGE,
    FAILS_TORN,
    FAILS_BUT_ONE,
    FAILS_LINE
};

extern enum system_failure system_failure;
/* The errno value of FAILS_EIO; 0: EIO. */
extern int system_error;
/* Both clocks, in nanoseconds from some second on. */
extern long system_ns;
/* The errno value with which renameat2 always fails; 0: it does not. */
extern int system_old_rename;
/* Each time that a lock is asked for, another process has removed this file. */
extern const char *system_removes;
/* The next look at a name finds the same file's number on another file system, which another process has mounted. */
extern bool system_mounted;
/* How often a lock was asked for. */
extern unsigned int system_locks;

/* Mutexes that are held. */
extern int system_held;

int system_mutex(pthread_mutex_t *mutex, int (*call)(pthread_mutex_t *mutex), int more);
int system_open(const char *path, int flags, ...);
ssize_t system_read(int fd, void *to, size_t len);
ssize_t system_pread(int fd, void *to, size_t len, off_t at);
ssize_t system_write(int fd, const void *from, size_t len);
ssize_t system_pwrite(int fd, const void *from, size_t len, off_t at);
int system_fstat(int fd, struct stat *st);
int system_stat(const char *path, struct stat *st);
int system_lstat(const char *path, struct stat *st);
ssize_t system_readlink(const char *path, char *to, size_t len);
int system_flock(int fd, int operation);
int system_link(const char *from, const char *to);
int system_unlink(const char *path);
int system_ftruncate(int fd, off_t len);
int system_close(int fd);
int system_fcntl(int fd, int command, ...);
int system_gethostname(char *to, size_t len);
int system_clock_gettime(clockid_t clock, struct timespec *to);
long system_call(long number, ...);

#ifndef SYSTEM_ITSELF
#define pthread_mutex_lock(mutex)    system_mutex(mutex, pthread_mutex_lock, 1)
#define pthread_mutex_trylock(mutex) system_mutex(mutex, pthread_mutex_trylock, 1)
#define pthread_mutex_unlock(mutex)  system_mutex(mutex, pthread_mutex_unlock, -1)
#define open(...)                    system_open(__VA_ARGS__)
#define read(fd, to, len)            system_read(fd, to, len)
#define pread(fd, to, len, at)       system_pread(fd, to, len, at)
#define write(fd, from, len)         system_write(fd, from, len)
#define pwrite(fd, from, len, at)    system_pwrite(fd, from, len, at)
#define fstat(fd, st)                system_fstat(fd, st)
#define stat(path, st)               system_stat(path, st)
#define lstat(path, st)              system_lstat(path, st)
#define readlink(path, to, len)      system_readlink(path, to, len)
#define flock(fd, operation)         system_flock(fd, operation)
#define link(from, to)               system_link(from, to)
#define unlink(path)                 system_unlink(path)
#define ftruncate(fd, len)           system_ftruncate(fd, len)
#define close(fd)                    system_close(fd)
#define fcntl(...)                   system_fcntl(__VA_ARGS__)
#define gethostname(to, len)         system_gethostname(to, len)
#define clock_gettime(clock, to)     system_clock_gettime(clock, to)
#define syscall(...)                 system_call(__VA_ARGS__)
#define getpid()                     4242
#define getppid()                    4000
#endif

#endif
