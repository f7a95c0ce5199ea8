/* SPDX-License-Identifier: Apache-2.0 */
/* file.c - see file.h. */
#include "file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Away from the numbers that programs expect to get, or close wholesale. */
#define FD_MIN 200

bool file_is_special(const char *path)
{
    struct stat st;

    return stat(path, &st) == 0 && !S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode);
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

/* What a write may raise. */
static void writers_signals(sigset_t *ret_set)
{
    sigemptyset(ret_set);
    sigaddset(ret_set, SIGXFSZ);
    sigaddset(ret_set, SIGPIPE);
    sigaddset(ret_set, SIGTTOU); /* on a terminal; not raised where it is blocked */
}

void file_quiet_begin(struct file_quiet *quiet)
{
    sigset_t set, pending;

    writers_signals(&set);
    pthread_sigmask(SIG_BLOCK, &set, &quiet->before);
    sigpending(&pending);
    /* What was pending before is the program's, to be delivered when it wants. */
    quiet->ours = set;
    sigdelset(&quiet->ours, SIGTTOU);
    if (sigismember(&pending, SIGXFSZ) == 1)
        sigdelset(&quiet->ours, SIGXFSZ);
    if (sigismember(&pending, SIGPIPE) == 1)
        sigdelset(&quiet->ours, SIGPIPE);
}

void file_quiet_end(const struct file_quiet *quiet)
{
    const struct timespec now = {0, 0};

    /* The system call itself: sigtimedwait() would be a cancellation point in somebody else's thread. */
    while (syscall(SYS_rt_sigtimedwait, &quiet->ours, NULL, &now, (size_t)_NSIG / 8) > 0 || errno == EINTR)
        ;
    pthread_sigmask(SIG_SETMASK, &quiet->before, NULL);
}
