/* SPDX-License-Identifier: Apache-2.0 */
/* sweep_files.c - the calls of sweep_system.h but those of sockets and descriptors. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "sweep_system.h"
#include "wrapped.h"

bool system_chance_refused;
static int allocations;
static unsigned char chance;

int system_allocations(void)
{
    return allocations;
}

WRAPPED(int, open64, (const char *path, int flags, mode_t mode))
{
    const char *text = sys.file && sweep_on ? sys.file(path) : NULL;
    FAILS("open", -1, EACCES);
    sweep_note("%s flags %d", path, flags);
    if (sweep_on && sys.file) {
        const int fd = text ? memfd_create("file", MFD_CLOEXEC) : -1;

        errno = ENOENT;
        if (fd >= 0 && (write(fd, text, strlen(text)) != (ssize_t)strlen(text) || lseek(fd, 0, SEEK_SET)))
            errno = EIO;
        return system_opened(fd);
    }
    return system_opened(__real_open64(path, flags, mode));
}

WRAPPED(ssize_t, read, (int fd, void *data, size_t len))
{
    FAILS("read", -1, EINTR);
    sweep_note("%s %zu", system_name(fd), len);
    return __real_read(fd, data, len);
}

WRAPPED(ssize_t, readlink, (const char *path, char *text, size_t len))
{
    FAILS("readlink", -1, ENOENT, SHORT);
    sweep_note("%s %zu", path, len);
    return way == SHORT ? snprintf(text, len, "1") : __real_readlink(path, text, len);
}

WRAPPED(int, kill, (int pid, int signal))
{
    FAILS("kill", -1, ESRCH, EPERM);
    sweep_note("%d", signal);
    return sweep_on ? 0 : __real_kill(pid, signal);
}

WRAPPED(int, mkdir, (const char *path, mode_t mode))
{
    FAILS("mkdir", -1, EEXIST, EROFS);
    sweep_note("%o", mode);
    return __real_mkdir(path, mode);
}

WRAPPED(int, lstat64, (const char *path, struct stat *ret))
{
    int rc;
    FAILS("lstat", -1, ENOENT, OTHER_USER);
    rc = __real_lstat64(path, ret);
    if (sweep_on)
        ret->st_uid = geteuid() + (way == OTHER_USER);
    return rc;
}

WRAPPED(char *, realpath, (const char *path, char *ret))
{
    FAILS("realpath", NULL, ENOENT);
    return __real_realpath(path, ret);
}

WRAPPED(int, unlink, (const char *path))
{
    FAILS("unlink", -1, ENOENT);
    sweep_note("%s", strrchr(path, '.'));
    return __real_unlink(path);
}

WRAPPED(int, rename, (const char *from, const char *to))
{
    FAILS("rename", -1, EACCES);
    sweep_note("%s %s", strrchr(from, '.'), strrchr(to, '.'));
    return __real_rename(from, to);
}

WRAPPED(ssize_t, getrandom, (void *data, size_t len, unsigned int flags))
{
    const int way = SWEEP_ERROR("getrandom", EAGAIN);

    system_chance_refused |= way != 0;
    if (way) {
        errno = way;
        return -1;
    }
    sweep_note("%zu %u", len, flags);
    for (size_t i = 0; i < len; i++) /* names that all have one place in a table */
        ((unsigned char *)data)[i] = (unsigned char)(i < 2 ? 0xa5 : chance * 31 + i);
    chance++;
    return (ssize_t)len;
}

WRAPPED(int, sched_yield, (void))
{
    sweep_note("yield");
    sys.ns += 60000;
    return sweep_on ? 0 : __real_sched_yield();
}

/* Memory that the library frees counts only where it has been taken while calls count. */
static void *taken(void *memory)
{
    allocations += sweep_on && memory;
    return memory;
}

WRAPPED(void *, malloc, (size_t size))
{
    FAILS("allocation", NULL, ENOMEM);
    return taken(__real_malloc(size));
}

WRAPPED(void *, calloc, (size_t count, size_t size))
{
    FAILS("allocation", NULL, ENOMEM);
    return taken(__real_calloc(count, size));
}

WRAPPED(void *, realloc, (void *old, size_t size))
{
    void *memory;
    FAILS("allocation", NULL, ENOMEM);
    memory = __real_realloc(old, size);
    return old ? memory : taken(memory);
}

WRAPPED(void, free, (void *memory))
{
    allocations -= sweep_on && memory;
    __real_free(memory);
}

WRAPPED(int, clock_gettime, (clockid_t clock, struct timespec *ret))
{
    if (!sweep_on)
        return __real_clock_gettime(clock, ret);
    sys.ns += 1000;
    *ret = (struct timespec){.tv_sec = (time_t)(sys.ns / 1000000000), .tv_nsec = (long)(sys.ns % 1000000000)};
    return 0;
}
