/* SPDX-License-Identifier: Apache-2.0 */
/*
 * files.c - operations on files, each of which can fail, and each of which a test can make fail or be the last.
 *
 * Here: open, write, fsync, rename, mkdir and unlink with errors in words. files_fault chooses the operation that
 * fails, or before which the process kills itself: a disk that is full and a job that is killed, at any moment.
 *
 * Not here: a cache. Writes go out in pieces of 1 MiB, so that the moments between them count, too.
 *
 * Threads: any; the count is atomic.
 */
#include "checkpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PIECE ((size_t)1 << 20)

static struct {
    long n, at;
    int error;
} fault;

void files_fault(long n, int error)
{
    fault.at = n;
    fault.error = error;
}

long files_count(void)
{
    return __atomic_load_n(&fault.n, __ATOMIC_SEQ_CST);
}

/* Before each operation: an errno if it is to fail. */
static int step(void)
{
    if (__atomic_add_fetch(&fault.n, 1, __ATOMIC_SEQ_CST) != fault.at)
        return 0;
    if (!fault.error)
        (void)kill(getpid(), SIGKILL);
    return fault.error;
}

static int failed(const char *what, const char *path, int error, struct trouble *trouble)
{
    trouble->error = error;
    (void)snprintf(trouble->why, sizeof(trouble->why), "%s %s: %s", what, path, strerror(error));
    return error;
}

int files_open(int *fd, const char *path, struct trouble *trouble)
{
    int error = step();

    *fd = error ? -1 : open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    return *fd >= 0 ? 0 : failed("open", path, error ? error : errno, trouble);
}

int files_write(int fd, const char *path, const void *bytes, size_t size, off_t at, struct trouble *trouble)
{
    const char *from = (const char *)bytes;

    while (size > 0) {
        int error = step();
        ssize_t n = error ? -1 : pwrite(fd, from, size < PIECE ? size : PIECE, at);

        if (n < 0 && !error && errno == EINTR)
            continue;
        if (n <= 0)
            return failed("write", path, error ? error : n < 0 ? errno : EIO, trouble);
        from += n;
        at += n;
        size -= (size_t)n;
    }
    return 0;
}

int files_sync(int fd, const char *path, struct trouble *trouble)
{
    int error = step();

    if (!error && fsync(fd))
        error = errno;
    return error ? failed("fsync", path, error, trouble) : 0;
}

int files_rename(const char *from, const char *to, struct trouble *trouble)
{
    int error = step();

    if (!error && rename(from, to))
        error = errno;
    return error ? failed("rename", from, error, trouble) : 0;
}

/* One that is there already is as good. */
int files_folder_make(const char *path, struct trouble *trouble)
{
    int error = step();

    if (!error && mkdir(path, 0777) && errno != EEXIST)
        error = errno;
    return error ? failed("mkdir", path, error, trouble) : 0;
}

int files_folder_sync(const char *path, struct trouble *trouble)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC), error;

    if (fd < 0)
        return failed("open", path, errno, trouble);
    error = files_sync(fd, path, trouble);
    (void)close(fd);
    return error;
}

void files_remove(const char *path)
{
    struct stat is;

    if (step())
        fault.at++; /* what cannot be removed does no harm: the next operation fails */
    if (lstat(path, &is) == 0 && (S_ISREG(is.st_mode) || S_ISDIR(is.st_mode)))
        (void)remove(path);
}

uint64_t files_checksum(const void *bytes, size_t size)
{
    uint64_t lanes[8] = {1, 2, 3, 4, 5, 6, 7, 8}, words[8], sum = size;
    const char *from = (const char *)bytes;

    for (; size > 0; from += sizeof(words)) {
        size_t n = size < sizeof(words) ? size : sizeof(words);

        if (n < sizeof(words))
            memset(words, 0, sizeof(words));
        memcpy(words, from, n);
        for (int i = 0; i < 8; i++)
            lanes[i] = ((lanes[i] ^ words[i]) * 0x9e3779b97f4a7c15u) ^ (lanes[i] >> 29);
        size -= n;
    }
    for (int i = 0; i < 8; i++) {
        sum = (sum ^ lanes[i]) * 0xbf58476d1ce4e5b9u;
        sum ^= sum >> 31;
    }
    return sum;
}

void files_path(char *path, const char *folder, const char *name)
{
    if (snprintf(path, PATH_ROOM, "%s/%s", folder, name) >= PATH_ROOM)
        ranks_fail(__FILE__, __LINE__, folder, strerror(ENAMETOOLONG));
}
