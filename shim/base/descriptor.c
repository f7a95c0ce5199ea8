/* SPDX-License-Identifier: Apache-2.0 */
/* descriptor.c - see descriptor.h. No locks and no state. */
#include "base/descriptor.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* The least descriptor number, away from the numbers that programs expect to get or close wholesale. */
#define FD_MIN 200

void file_drop(int fd)
{
    int cancel;

    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
    close(fd);
    pthread_setcancelstate(cancel, NULL);
}

const char *file_text(const char *path, char *text, size_t len)
{
    const int saved = errno;
    ssize_t n = -1;
    int fd, cancel;

    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        n = read(fd, text, len - 1);
        close(fd);
    }
    pthread_setcancelstate(cancel, NULL);
    errno = saved;
    text[n > 0 ? n : 0] = '\0';
    return text;
}

int file_copy(int fd)
{
    return fcntl(fd, F_DUPFD_CLOEXEC, FD_MIN);
}

int file_aside(int fd)
{
    const int high = file_copy(fd);

    if (high < 0)
        return fd;
    file_drop(fd);
    return high;
}

void file_mark(int fd, uint64_t number)
{
    fcntl(fd, F_SETSIG, (int)(1 + number % 64));
}

int file_mark_of(int fd)
{
    const int mark = fcntl(fd, F_GETSIG);

    return mark < 0 ? 0 : mark;
}

int file_state(int fd, const struct stat *file)
{
    struct stat now;

    if (fstat(fd, &now) || now.st_dev != file->st_dev || now.st_ino != file->st_ino)
        return -EBADF;
    return now.st_nlink ? 0 : -ENOENT;
}

void file_close(int fd, const struct stat *file, bool done)
{
    if (file_state(fd, file) == -EBADF)
        return;
    /* A child made without a fork handler may still have the descriptor. */
    if (done)
        flock(fd, LOCK_UN);
    file_drop(fd);
}

/* The signals that a write may raise. */
static void writers_signals(sigset_t *ret_set)
{
    sigemptyset(ret_set);
    sigaddset(ret_set, SIGXFSZ);
    sigaddset(ret_set, SIGPIPE);
    sigaddset(ret_set, SIGTTOU); /* on a terminal; not raised while it is blocked */
}

void file_quiet_begin(struct file_quiet *quiet)
{
    sigset_t set, pending;

    writers_signals(&set);
    pthread_sigmask(SIG_BLOCK, &set, &quiet->before);
    sigpending(&pending);
    /* Signals that were pending before are the program's, and stay pending for it. */
    quiet->ours = set;
    sigdelset(&quiet->ours, SIGTTOU);
    if (sigismember(&pending, SIGXFSZ) == 1)
        sigdelset(&quiet->ours, SIGXFSZ);
    if (sigismember(&pending, SIGPIPE) == 1)
        sigdelset(&quiet->ours, SIGPIPE);
}

void file_quiet_end(const struct file_quiet *quiet, bool failed)
{
    const struct timespec now = {0, 0};

    /* The system call itself: sigtimedwait() would be a cancellation point in a thread of the program. */
    while (failed && (syscall(SYS_rt_sigtimedwait, &quiet->ours, NULL, &now, (size_t)_NSIG / 8) > 0 || errno == EINTR))
        ;
    pthread_sigmask(SIG_SETMASK, &quiet->before, NULL);
}
