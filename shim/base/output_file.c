/* SPDX-License-Identifier: Apache-2.0 */
/* output_file.c - see output_file.h. No locks but flock. */
#include "base/output_file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/fs.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "base/descriptor.h"
#include "base/log.h"

/* The greatest number that is tried. */
#define NUMBERS 1000
/* How often a name is tried again because another process has changed it. */
#define AGAIN_MAX 100

/* An attempt to create a file. */
struct attempt {
    const char *path; /* the path asked for */
    const char *name; /* path, or path.N */
    const struct file_kind *kind;
    int flags;
    const char *why; /* the reason why the name cannot be used */
    bool busy;       /* because a process writes it */
};

enum outcome { OURS, TAKEN, AGAIN, FAILED };

/* The kind of special file that path is; NULL: a file, a folder or nothing. Nothing is created next to special files:
 * /dev/full.1 would be of no use. */
static const char *special(const char *path)
{
    char to[8];
    struct stat st;

    if (readlink(path, to, sizeof(to)) >= 6 && strncmp(to, "/proc/", 6) == 0)
        return "an open file of the program";
    if (stat(path, &st) || S_ISREG(st.st_mode) || S_ISDIR(st.st_mode))
        return NULL;
    return S_ISFIFO(st.st_mode) ? "a pipe" : S_ISSOCK(st.st_mode) ? "a socket" : "a device";
}

static bool is_null(const char *path)
{
    struct stat st;

    return stat(path, &st) == 0 && S_ISCHR(st.st_mode) && st.st_rdev == makedev(1, 3);
}

/* Rename a file to its first free number; never to the name of another file. */
static bool move_away(const struct attempt *try)
{
    char to[PATH_MAX];

    for (int i = 1; i < NUMBERS; i++) {
        const int n = snprintf(to, sizeof(to), "%s.%d", try->path, i);

        if ((size_t)n >= sizeof(to)) /* or it fails */
            return false;
        if (syscall(SYS_renameat2, AT_FDCWD, try->name, AT_FDCWD, to, RENAME_NOREPLACE) == 0)
            return true;
        /* NFS has no RENAME_NOREPLACE. A crash between the two calls leaves two names of one file. */
        if ((errno == EINVAL || errno == ENOSYS) && link(try->name, to) == 0)
            return unlink(try->name) == 0;
        if (errno != EEXIST)
            return false;
    }
    return false;
}

/* Examine the file that has the name now. A writer holds the lock from before the first byte until its process ends, so
 * a file whose lock is free belongs to an earlier run. */
static enum outcome look_at(struct attempt *try, int fd, bool made)
{
    char start[16] = "";
    struct stat st, at;

    if (flock(fd, LOCK_EX | LOCK_NB)) {
        try->busy = errno == EWOULDBLOCK;
        try->why = try->busy ? "is being written by another process" : "exists, and its file system has no locks";
        if (made) /* another process locked the file while it was empty, or the file system has no locks */
            return try->busy ? AGAIN : OURS;
        return TAKEN;
    }
    if (fstat(fd, &st) || lstat(try->name, &at) || st.st_dev != at.st_dev || st.st_ino != at.st_ino)
        return AGAIN;
    if (st.st_size == 0)
        return OURS;
    try->why = try->kind->not_one;
    if (pread(fd, start, sizeof(start), 0) < 0 || strncmp(start, try->kind->magic, strlen(try->kind->magic)) != 0)
        return TAKEN;
    try->why = "is an earlier run's, which cannot be renamed";
    return move_away(try) ? AGAIN : TAKEN;
}

static enum outcome attempt(struct attempt *try, int *ret_fd)
{
    const int flags = O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | O_NOCTTY | try->flags;
    int fd = open(try->name, flags | O_CREAT | O_EXCL, 0666);
    const bool made = fd >= 0;
    enum outcome outcome;
    struct stat st;

    try->busy = false;
    if (!made) {
        if (errno != EEXIST)
            return FAILED;
        if (lstat(try->name, &st))
            return AGAIN;
        try->why = S_ISDIR(st.st_mode)   ? "is a folder"
                   : S_ISLNK(st.st_mode) ? "is a symbolic link"
                   : S_ISREG(st.st_mode) ? "exists, and cannot be opened"
                                         : "exists, and is no file";
        fd = S_ISREG(st.st_mode) ? open(try->name, flags) : -1;
        if (fd < 0)
            return TAKEN;
    }
    outcome = look_at(try, fd, made);
    if (outcome == OURS)
        *ret_fd = fd;
    else
        close(fd);
    return outcome;
}

/* Create the first of path, path.1, path.2, ... that is possible. *ret_why: the reason why path is not; NULL: it is. */
static int create(struct attempt *try, char *name, size_t len, const char **ret_why, bool *ret_busy)
{
    int fd = -1, again = 0;

    *ret_why = NULL;
    try->name = name;
    for (int i = 0; i < NUMBERS;) {
        const int n = snprintf(name, len, i ? "%s.%d" : "%s", try->path, i);
        enum outcome outcome;

        if ((size_t)n >= len) { /* or it fails */
            errno = ENAMETOOLONG;
            return -1;
        }
        outcome = attempt(try, &fd);
        if (outcome == OURS)
            return fd;
        if (outcome == FAILED)
            return -1;
        if (outcome == AGAIN && again++ < AGAIN_MAX)
            continue;
        if (!i) {
            *ret_why = try->why;
            *ret_busy = try->busy;
        }
        i++;
    }
    errno = EEXIST;
    return -1;
}

int file_create(const char *path, const struct file_kind *kind, int flags, char *name, size_t len)
{
    struct attempt try = {.path = path, .kind = kind, .flags = flags};
    const char *why = special(path);
    bool busy = false;
    int fd;

    if (why) {
        if (!is_null(path))
            log_write(LOG_WARN, "no %s: %.300s is %s", kind->what, path, why);
        return -1;
    }
    fd = create(&try, name, len, &why, &busy);
    if (fd < 0) {
        log_write(LOG_WARN, "no %s: cannot create %.300s: %s", kind->what, why ? name : path, strerror(errno));
        return -1;
    }
    if (why)
        log_write(busy ? LOG_INFO : LOG_WARN, "%.200s %s: the %s is %.200s", path, why, kind->what, name);
    return file_aside(fd);
}
