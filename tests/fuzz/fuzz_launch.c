/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_launch.c - any bytes as what /proc says of this process's parents, and as what launchers leave in the
 * environment: the search ends, reads nothing beyond what it was given, and its answer is one that the trace can hold.
 *
 * How to run it: fuzz.h. An input is a byte whose bits are launchers that seem to have been here, the rank and the
 * local rank that they say, and then the files as they are opened, each up to a byte 0xff, and again from the start
 * when they are used up. A file that begins with 0xfe cannot be read. It has launch.c inside, whose files these are.
 */
#include <errno.h>
#include <fcntl.h>
#include <sys/types.h>
#include <unistd.h>

static int given_open(const char *path, int flags);
static ssize_t given_read(int fd, void *buf, size_t len);
static int given_close(int fd);
static ssize_t given_readlink(const char *path, char *buf, size_t len);

#define open     given_open
#define read     given_read
#define close    given_close
#define readlink given_readlink
#include "base/launch.c" /* NOLINT(bugprone-suspicious-include): see above */
#undef open
#undef read
#undef close
#undef readlink

#include "fuzz.h"

#define OPENED_MAX 200

static const uint8_t *given, *start;
static size_t left, all;
static unsigned int opened;
static char fault[256];

#define FAULT(...) (fault[0] ? 0 : snprintf(fault, sizeof(fault), __VA_ARGS__))

/* The next file's bytes. */
static size_t take(void *buf, size_t len)
{
    if (!left) {
        given = start;
        left = all;
    }
    const uint8_t *end = left ? memchr(given, 0xff, left) : NULL;
    const size_t size = end ? (size_t)(end - given) : left, n = size < len ? size : len;

    if (n)
        memcpy(buf, given, n);
    given += size + (end != NULL);
    left -= size + (end != NULL);
    return n;
}

static int given_open(const char *path, int flags)
{
    if (++opened > OPENED_MAX)
        FAULT("%u files opened, the last one %.50s", opened, path);
    if (strncmp(path, "/proc/", 6) != 0)
        FAULT("%.99s is opened", path);
    errno = ENOENT;
    return all && opened <= OPENED_MAX ? 1000 : -1;
}

static ssize_t given_read(int fd, void *buf, size_t len)
{
    const size_t n = take(buf, len);

    return n && *(const uint8_t *)buf == 0xfe ? -1 : (ssize_t)n;
}

static int given_close(int fd)
{
    return fd == 1000 ? 0 : -1;
}

static ssize_t given_readlink(const char *path, char *buf, size_t len)
{
    return all ? (ssize_t)take(buf, len) : -1;
}

static const char *fuzz_run(const uint8_t *data, size_t size)
{
    struct launch launch = {0};
    char path[4096], value[32] = "", local[32] = "";

    fault[0] = '\0';
    opened = 0;
    given = start = data;
    left = all = size;
    clearenv();
    if (left) {
        const uint8_t seen = *given++;
        left--;
        take(value, sizeof(value) - 1);
        take(local, sizeof(local) - 1);
        for (unsigned int i = 0; i < LAUNCHERS; i++) {
            if (!(seen >> i % 8 & 1))
                continue;
            setenv(launchers[i].rank, value, 1);
            if (launchers[i].local_rank)
                setenv(launchers[i].local_rank, local, 1);
            if (launchers[i].needs && launchers[i].local_rank &&
                strcmp(launchers[i].needs, launchers[i].local_rank) != 0)
                setenv(launchers[i].needs, "0", 1);
        }
    }
    launch_detect(&launch);
    if (launch.rank < -1 || launch.local_rank < -1)
        FAULT("rank %d, local rank %d", launch.rank, launch.local_rank);
    if (!memchr(launch.host, 0, sizeof(launch.host)) || !memchr(launch.exe, 0, sizeof(launch.exe)))
        FAULT("a name has no end");
    else if (strchr(launch.exe, '/') || strchr(launch.host, '/'))
        FAULT("%.99s on %.99s would be another folder", launch.exe, launch.host);
    else if (!launch.from || launch_expand(&launch, "%h.%e.r%r.l%l.%p", path, sizeof(path)))
        FAULT("no name for a trace");
    clearenv();
    return fault;
}

static size_t fuzz_random(uint64_t *rng, uint8_t *buffer)
{
    static const char *const numbers[] = {"3\377-2\377", "0\3771\377", "5\377\377"};
    /* clang-format off */
    static const char *const pieces[] = {
        "slurmstepd", "mpirun", "python3", "torchrun", "12 (a) b) S 345 6", "1 (x) S 1", ")", " S ", "-1", "\xff",
        "\xff", "\xff", "7", "\xfe", "99999999999", "bin/torchrun", "hydra_pmi_proxy", "/", "\n"
    };
    /* clang-format on */
    size_t size = 0;

    buffer[size++] = (uint8_t)next(rng);
    if (next(rng) % 4) {
        const char *both = numbers[next(rng) % 3];
        for (; *both; both++)
            buffer[size++] = (uint8_t)*both;
    }
    for (uint64_t n = next(rng) % 60; n; n--) {
        const char *piece = pieces[next(rng) % (sizeof(pieces) / sizeof(pieces[0]))];
        for (; *piece; piece++)
            buffer[size++] = (uint8_t)*piece;
        if (next(rng) % 16 == 0)
            buffer[size++] = (uint8_t)next(rng);
    }
    return size;
}
