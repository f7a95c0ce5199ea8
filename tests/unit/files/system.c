/* SPDX-License-Identifier: Apache-2.0 */
/* system.c - see system.h. No locks: one thread. */
#define SYSTEM_ITSELF
#include "system.h"

#include <errno.h>
#include <stdarg.h>

#include "golden.h"

enum system_failure system_failure;
int system_error;
const char *system_removes;
bool system_mounted;
unsigned int system_locks;
int system_old_rename;
long system_ns;
int system_held;

static bool fails(const char *what)
{
    /* Only writes fail in the other ways. */
    if ((system_failure > FAILS_EINTR && !strstr(what, "write")) || !golden_call_fails(what))
        return false;
    errno = system_failure == FAILS_EINTR ? EINTR : system_error ? system_error : EIO;
    return true;
}

/* The kernel's files. */
static const char *local(const char *path)
{
    return strstr(path, "current_clocksource") ? "clock" : strncmp(path, "/proc/", 6) == 0 ? path + 1 : path;
}

int system_open(const char *path, int flags, ...)
{
    va_list args;
    unsigned int mode;

    va_start(args, flags);
    mode = flags & O_CREAT ? va_arg(args, unsigned int) : 0;
    va_end(args);
    return fails("open") ? -1 : open(local(path), flags, mode);
}

ssize_t system_read(int fd, void *to, size_t len)
{
    return fails("read") ? -1 : read(fd, to, len);
}

ssize_t system_pread(int fd, void *to, size_t len, off_t at)
{
    return fails("pread") ? -1 : pread(fd, to, len, at);
}

int system_mutex(pthread_mutex_t *mutex, int (*call)(pthread_mutex_t *mutex), int more)
{
    const int rc = call(mutex);

    system_held += rc ? 0 : more;
    if (system_held < 0)
        printf("a mutex is unlocked that is not locked\n");
    return rc;
}

/* True if a write fails; *ret_len: the bytes that it writes all the same. */
static bool write_fails(const char *what, const char *data, size_t len, size_t *ret_len)
{
    static int more; /* writes that fail after this one */
    int state;

    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
    if (state != PTHREAD_CANCEL_DISABLE) {
        pthread_setcancelstate(state, NULL);
        printf("a thread that writes can be cancelled\n");
    }
    *ret_len = len;
    if (more) {
        more--;
        errno = EIO;
        return true;
    }
    if (!fails(what))
        return false;
    more = system_failure == FAILS_TORN || system_failure == FAILS_LINE ? 1 : system_failure == FAILS_BUT_ONE ? 2 : 0;
    *ret_len = system_failure == FAILS_HALF || system_failure == FAILS_TORN ? len / 2 : more ? len - 1 : 0;
    if (system_failure == FAILS_LINE && memchr(data, '\n', len))
        *ret_len = (size_t)((const char *)memchr(data, '\n', len) - data);
    if (system_failure == FAILS_LARGE) {
        raise(SIGXFSZ);
        errno = EFBIG;
    }
    return system_failure != FAILS_HALF && system_failure != FAILS_NOTHING && !more;
}

ssize_t system_write(int fd, const void *from, size_t len)
{
    return write_fails("write", from, len, &len) ? -1 : write(fd, from, len);
}

ssize_t system_pwrite(int fd, const void *from, size_t len, off_t at)
{
    return write_fails("pwrite", from, len, &len) ? -1 : pwrite(fd, from, len, at);
}

int system_fstat(int fd, struct stat *st)
{
    return fails("fstat") ? -1 : fstat(fd, st);
}

int system_stat(const char *path, struct stat *st)
{
    return fails("stat") ? -1 : stat(path, st);
}

int system_lstat(const char *path, struct stat *st)
{
    const int rc = fails("lstat") ? -1 : lstat(path, st);

    st->st_dev += system_mounted;
    system_mounted = false;
    return rc;
}

ssize_t system_readlink(const char *path, char *to, size_t len)
{
    static const char program[16] = "/usr/bin/program"; /* without an end, as the system's */

    if (fails("readlink"))
        return -1;
    if (strcmp(path, "/proc/self/exe") != 0)
        return readlink(path, to, len);
    for (size_t i = 0; i < sizeof(program); i++)
        to[i] = program[i];
    return sizeof(program);
}

int system_flock(int fd, int operation)
{
    if (operation != LOCK_UN) {
        system_locks++;
        if (system_removes)
            unlink(system_removes);
    }
    return fails(operation == LOCK_UN ? "flock (off)" : "flock") ? -1 : flock(fd, operation);
}

int system_link(const char *from, const char *to)
{
    return fails("link") ? -1 : link(from, to);
}

int system_unlink(const char *path)
{
    return fails("unlink") ? -1 : unlink(path);
}

int system_ftruncate(int fd, off_t len)
{
    return fails("ftruncate") ? -1 : ftruncate(fd, len);
}

/* Not one that fails: there is nothing to be done about it. */
int system_close(int fd)
{
    return close(fd);
}

int system_fcntl(int fd, int command, ...)
{
    va_list args;
    int value;

    va_start(args, command);
    value = command == F_GETSIG ? 0 : va_arg(args, int);
    va_end(args);
    return command == F_DUPFD_CLOEXEC && fails("fcntl") ? -1 : fcntl(fd, command, value);
}

int system_gethostname(char *to, size_t len)
{
    if (fails("gethostname"))
        return -1;
    snprintf(to, len, "node7/x");
    return 0;
}

int system_clock_gettime(clockid_t clock, struct timespec *to)
{
    to->tv_sec = clock == CLOCK_REALTIME ? 1700000000 : 5000;
    to->tv_nsec = system_ns;
    return 0;
}

long system_call(long number, ...)
{
    va_list args;
    long a[6];

    va_start(args, number);
    for (int i = 0; i < 6; i++)
        a[i] = va_arg(args, long);
    va_end(args);
    if (number == SYS_gettid)
        return 4243;
    if (number == SYS_renameat2 && fails("rename"))
        return -1;
    if (number == SYS_renameat2 && system_old_rename) {
        errno = system_old_rename;
        return -1;
    }
    return syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
