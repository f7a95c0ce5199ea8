/* SPDX-License-Identifier: Apache-2.0 */
/* log.c - see log.h. No locks; the constructor sets the statics. */
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/descriptor.h"

/* The file of descriptor 2 when the program started. If it was closed, a file with that number later is the program's
 * own. */
static bool looked, closed;
static struct stat first;

__attribute__((constructor)) static void look(void)
{
    const int saved = errno;

    closed = fstat(STDERR_FILENO, &first) != 0;
    looked = true;
    errno = saved;
}

/* True if stderr is a place for messages. A file that was opened later may hold data of a program that has closed its
 * stderr. A file without positions holds no data, and appending overwrites nothing: these are where a program has
 * redirected its stderr. */
static bool is_for_messages(void)
{
    struct stat now;
    int flags;

    if (!looked || file_state(STDERR_FILENO, &first) != -EBADF)
        return true;
    if (fstat(STDERR_FILENO, &now) != 0)
        return false;
    if (S_ISCHR(now.st_mode) || S_ISFIFO(now.st_mode) || S_ISSOCK(now.st_mode))
        return true;
    flags = fcntl(STDERR_FILENO, F_GETFL);
    return flags >= 0 && flags & O_APPEND;
}

/* False: a write would wait for a reader. */
static bool is_ready(void)
{
    struct pollfd out = {.fd = STDERR_FILENO, .events = POLLOUT};
    const struct timespec now = {0, 0};

    /* If a seccomp filter forbids ppoll, the write goes ahead without it. */
    return syscall(SYS_ppoll, &out, 1, &now, NULL, (size_t)_NSIG / 8) != 0;
}

void log_put(const char *text, size_t len)
{
    const int saved = errno;
    struct file_quiet quiet;

    if (!closed && is_for_messages() && is_ready()) {
        file_quiet_begin(&quiet);
        /* The system calls themselves: write() and poll() would be cancellation points in a thread of the program. */
        file_quiet_end(&quiet, syscall(SYS_write, STDERR_FILENO, text, len) < 0);
    }
    errno = saved;
}

bool log_is_open(void)
{
    return !closed;
}

static const char *const names[] = {"", "error", "warning", "info", "debug"};

void log_write(enum conf_log_level level, const char *format, ...)
{
    char line[512];
    va_list args;
    int used, more;

    if (closed || level > conf_get()->log_level.number)
        return;
    used = snprintf(line, sizeof(line), "cupool[%d]: %s: ", (int)getpid(), names[level]);
    va_start(args, format);
    /* NOLINTNEXTLINE(clang-analyzer-valist.Uninitialized): clang-tidy 14 misses the va_start above. */
    more = vsnprintf(line + used, sizeof(line) - (size_t)used - 1, format, args);
    va_end(args);
    if (more > 0) {
        used = used + more < (int)sizeof(line) - 1 ? used + more : (int)sizeof(line) - 2;
        line[used++] = '\n';
        log_put(line, (size_t)used);
    }
}

void log_lines(enum conf_log_level level, const char *format, ...)
{
    char text[1400], out[1600];
    const char *line = text;
    size_t used, whole = 0; /* so much is whole lines */
    va_list args;

    if (closed || level > conf_get()->log_level.number)
        return;
    va_start(args, format);
    /* NOLINTNEXTLINE(clang-analyzer-valist.Uninitialized): as above. */
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    used = (size_t)snprintf(out, sizeof(out), "cupool[%d]: %s: ", (int)getpid(), names[level]);
    for (;;) {
        const size_t len = strcspn(line, "\n");

        if (used + len + 40 > sizeof(out))
            break;
        memcpy(out + used, line, len);
        used += len;
        out[used++] = '\n';
        whole = used;
        if (!line[len])
            break;
        line += len + 1;
        used += (size_t)snprintf(out + used, sizeof(out) - used, "cupool[%d]:   ", (int)getpid());
    }
    log_put(out, whole);
}
