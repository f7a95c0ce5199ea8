/* SPDX-License-Identifier: Apache-2.0 */
/* log.c - see log.h. */
#include "log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Descriptor 2 was closed when the program started: whatever gets that number later is a file of the program's own. */
static bool closed;

__attribute__((constructor)) static void look(void)
{
    const int saved = errno;

    closed = fcntl(STDERR_FILENO, F_GETFD) < 0 && errno == EBADF;
    errno = saved;
}

bool log_is_open(void)
{
    return !closed;
}

static const char *const names[] = {"", "error", "warning", "info", "debug"};

void log_write(enum conf_log_level level, const char *format, ...)
{
    const int saved = errno;
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
        /* The system call itself: write() would be a cancellation point in somebody else's thread. */
        (void)syscall(SYS_write, STDERR_FILENO, line, (size_t)used);
    }
    errno = saved;
}

void log_lines(enum conf_log_level level, const char *format, ...)
{
    const int saved = errno;
    char text[1400], out[1600];
    const char *line = text;
    va_list args;
    size_t used;

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
        if (!line[len])
            break;
        line += len + 1;
        used += (size_t)snprintf(out + used, sizeof(out) - used, "cupool[%d]:   ", (int)getpid());
    }
    (void)syscall(SYS_write, STDERR_FILENO, out, used);
    errno = saved;
}
