/* SPDX-License-Identifier: Apache-2.0 */
/*
 * system.h - the system that the tests of shim/info give it. The sources are compiled with this header before them, so
 * that their calls of these functions come here.
 *
 * It is no stand-in of the whole system: what it does not name stays libc's.
 *
 * Threads: one.
 */
#ifndef CUPOOL_TESTS_INFO_SYSTEM_H
#define CUPOOL_TESTS_INFO_SYSTEM_H

#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

/* A file that the test describes, in place of what the disk says of it. Paths that begin with /v/ are files of the
 * test's folder v. */
struct system_file {
    const char *path; /* NULL: no more */
    unsigned int mode, uid, gid;
    bool nosuid;               /* its file system is mounted so */
    unsigned int capabilities; /* 0: it has none; else the bytes of its, and 1 */
};

/* A library that dlopen finds. */
struct system_library {
    const char *name, *path, *missing; /* the functions that it lacks, each between blanks; "all": every one */
    int version;
};

struct system {
    const struct system_file *files;
    const struct system_library *libraries;
    const char *answer; /* of the loader to --list, on stdout */
    /* "slow": it does not end; "signal": a signal interrupts each wait for it; "none": it cannot be run; "reaped": the
     * system has forgotten it before it is waited for. */
    const char *slow;
    int fillers, bytes;         /* before the answer come so many libraries, and lines of so many bytes in all */
    const char *links;          /* "FROM TO": what realpath makes of one path */
    bool shows;                 /* the loader shows how it was asked */
    const char *cgroup, *clock; /* what is in the two files; NULL: they are not there */
    unsigned int uid, gid;
    int devices, init;   /* the GPUs, and what cuInit returns */
    int lacks;           /* the attribute that no device has */
    int has, value;      /* an attribute that the devices have, and its value */
    const char *refuses; /* the functions of the driver that fail, each between blanks */
    uint64_t total;      /* bytes of a device */
    uint64_t limit;      /* the four limits begin with this one; 0: no limit */
};

/* cupool_info.c's main. */
int info_main(int argc, char **argv);

extern struct system system_now;

/* For golden_after. */
void system_left(void);

int system_stat(const char *path, struct stat *st);
int system_statvfs(const char *path, struct statvfs *fs);
int system_access(const char *path, int mode);
ssize_t system_getxattr(const char *path, const char *name, void *value, size_t size);
char *system_realpath(const char *path, char *to);
int system_pipe(int fds[2]);
pid_t system_fork(void);
int system_execl(const char *path, const char *name, const char *option, const char *program);
int system_poll(struct pollfd *fds, nfds_t count, int ms);
ssize_t system_read(int fd, void *to, size_t len);
int system_kill(pid_t pid, int number);
pid_t system_waitpid(pid_t pid, int *status, int options);
int system_clock_gettime(clockid_t clock, struct timespec *now);
char *system_strdup(const char *text);
int system_asprintf(char **to, const char *format, const char *a);
int system_open(const char *path, int flags);
int system_fstat(int fd, struct stat *st);
int system_close(int fd);
void *system_mmap(void *at, size_t len, int protection, int flags, int fd, off_t offset);
int system_munmap(void *at, size_t len);
FILE *system_fopen(const char *path, const char *mode);
int system_fclose(FILE *file);
void *system_dlopen(const char *name, int flags);
void *system_dlsym(void *library, const char *name);
int system_dlinfo(void *library, int request, struct link_map **to);
int system_getrlimit(int resource, struct rlimit *limit);
int system_getaffinity(pid_t pid, size_t size, cpu_set_t *set);

#ifndef SYSTEM_ITSELF
#define stat(path, st)                           system_stat(path, st)
#define statvfs(path, fs)                        system_statvfs(path, fs)
#define access(path, mode)                       system_access(path, mode)
#define getxattr(path, name, value, size)        system_getxattr(path, name, value, size)
#define realpath(path, to)                       system_realpath(path, to)
#define pipe(fds)                                system_pipe(fds)
#define fork()                                   system_fork()
#define execl(path, name, option, program, none) system_execl(path, name, option, program)
#define poll(fds, count, ms)                     system_poll(fds, count, ms)
#define read(fd, to, len)                        system_read(fd, to, len)
#define kill(pid, number)                        system_kill(pid, number)
#define waitpid(pid, status, options)            system_waitpid(pid, status, options)
#define clock_gettime(clock, now)                system_clock_gettime(clock, now)
#undef strdup
#define strdup(text)                      system_strdup(text)
#define asprintf(to, format, a)           system_asprintf(to, format, a)
#define open(path, flags)                 system_open(path, flags)
#define fstat(fd, st)                     system_fstat(fd, st)
#define close(fd)                         system_close(fd)
#define mmap(at, len, p, flags, fd, o)    system_mmap(at, len, p, flags, fd, o)
#define munmap(at, len)                   system_munmap(at, len)
#define fopen(path, mode)                 system_fopen(path, mode)
#define fclose(file)                      system_fclose(file)
#define dlopen(name, flags)               system_dlopen(name, flags)
#define dlsym(library, name)              system_dlsym(library, name)
#define dlinfo(library, request, to)      system_dlinfo(library, request, to)
#define getrlimit(resource, limit)        system_getrlimit(resource, limit)
#define sched_getaffinity(pid, size, set) system_getaffinity(pid, size, set)
#define geteuid()                         system_now.uid
#define getegid()                         system_now.gid
#endif

#endif
