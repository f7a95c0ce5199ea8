/* SPDX-License-Identifier: Apache-2.0 */
/* file.c - see file.h. */
#include "file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

/* Away from the numbers that programs expect to get, or close wholesale. */
#define FD_MIN 200

bool file_is_special(const char *path)
{
    struct stat st;

    return stat(path, &st) == 0 && S_ISCHR(st.st_mode);
}

int file_create(const char *path, int flags, char *name, size_t len)
{
    int fd = -1, high;

    for (int i = 0; i < 1000; i++) {
        const int n = snprintf(name, len, i ? "%s.%d" : "%s", path, i);

        if (n < 0 || (size_t)n >= len) {
            errno = ENAMETOOLONG;
            return -1;
        }
        fd = open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOCTTY | flags, 0666);
        if (fd >= 0 || errno != EEXIST)
            break;
    }
    if (fd < 0)
        return -1;
    high = fcntl(fd, F_DUPFD_CLOEXEC, FD_MIN);
    if (high >= 0) {
        close(fd);
        fd = high;
    }
    return fd;
}

bool file_is(int fd, const struct stat *file)
{
    struct stat now;

    return fstat(fd, &now) == 0 && now.st_dev == file->st_dev && now.st_ino == file->st_ino;
}

static void size_limit(sigset_t *ret_set)
{
    sigemptyset(ret_set);
    sigaddset(ret_set, SIGXFSZ);
}

void file_quiet_begin(struct file_quiet *quiet)
{
    sigset_t limit, pending;

    size_limit(&limit);
    pthread_sigmask(SIG_BLOCK, &limit, &quiet->before);
    sigpending(&pending);
    quiet->was_pending = sigismember(&pending, SIGXFSZ) == 1;
}

void file_quiet_end(const struct file_quiet *quiet)
{
    const struct timespec now = {0, 0};
    sigset_t limit;

    size_limit(&limit);
    if (!quiet->was_pending)
        while (sigtimedwait(&limit, NULL, &now) < 0 && errno == EINTR)
            ;
    pthread_sigmask(SIG_SETMASK, &quiet->before, NULL);
}
