/* SPDX-License-Identifier: Apache-2.0 */
/* test_names.c - which name a file gets (output_file.c), whatever has the name that was asked for; and each call of the
 * system on the way that fails. */
#include "golden.h"
#include "system.h"
#include "tree.h"

#include <errno.h>

#include "base/output_file.h"

static const struct file_kind kind = {"trace", "{\"cupool\":", "exists, and is no trace"};
#define OURS "{\"cupool\":1}\n"

struct name {
    const char *name;
    const char *path;     /* NULL: d/t */
    const char *text;     /* of d/t; NULL: there is none */
    const char *next;     /* of d/t.1 */
    const char *link;     /* d/t is a link to this */
    int others;           /* d/t.1 to d/t.N are others' */
    int room;             /* of the name; 0: enough */
    int len;              /* of the path, which is d/././t; 0: d/t */
    int flags, device;    /* device: d/t is of this kind */
    bool locked, removed; /* by another process */
    bool mounted;         /* and another file system for a moment */
    int error, failure;   /* of renameat2; of each call that fails */
    bool swept;           /* each call fails in turn, too */
};

static const struct name names[] = {
    {.name = "nothing is there"},
    {.name = "nothing is there, and calls would block", .failure = EWOULDBLOCK, .swept = true},
    {.name = "in a folder that is not there", .path = "d/none/t"},
    {.name = "a file without a byte", .text = ""},
    {.name = "a file with one byte", .text = "{"},
    {.name = "a file that is no trace", .text = "{\"cupool\"=1 and more"},
    {.name = "a file that begins as a trace does", .text = "{\"cupool\":"},
    {.name = "an earlier trace", .text = OURS},
    {.name = "two earlier traces", .text = OURS, .next = OURS},
    {.name = "an earlier trace, and another file's number", .swept = true, .text = OURS, .next = "x"},
    {.name = "an earlier trace, and all numbers", .text = OURS, .others = 999},
    {.name = "an earlier trace, and all numbers but one", .text = OURS, .others = 998},
    {.name = "another file, and all numbers", .text = "x", .others = 999},
    {.name = "another file, and all numbers but one", .text = "x", .others = 998},
    {.name = "a file that is written", .text = OURS, .locked = true},
    {.name = "a file without a byte that is locked", .text = "", .locked = true},
    {.name = "a folder", .path = "d"},
    {.name = "a link", .link = "t.2", .next = "x"},
    {.name = "a link to nothing", .link = "none"},
    {.name = "a link to /proc/", .link = "/proc/"},
    {.name = "a link to /proc", .link = "/proc"},
    {.name = "a link to /process", .link = "/process"},
    {.name = "a link to /prod/", .link = "/prod/"},
    {.name = "a link to an open file", .link = "/proc/self/fd/1"},
    {.name = "a pipe", .device = S_IFIFO},
    {.name = "a socket", .device = S_IFSOCK},
    {.name = "no device", .path = "/dev/null"},
    {.name = "a device", .path = "/dev/full"},
    {.name = "another device with a link", .link = "/dev/zero"},
    {.name = "to append", .flags = O_APPEND},
    {.name = "removed again and again", .text = OURS, .removed = true},
    {.name = "the number of another file system's file", .mounted = true},
    {.name = "room for the name less one", .room = 3},
    {.name = "room for the name", .room = 4},
    {.name = "room for a number less one", .text = "x", .room = 5},
    {.name = "room for a number", .text = "x", .room = 6},
    {.name = "the longest path with a number", .text = OURS, .len = 4093},
    {.name = "a path too long for a number", .text = OURS, .len = 4094},
    {.name = "a path too long for a number by two", .text = OURS, .len = 4095},
    {.name = "a file system without RENAME_NOREPLACE", .text = OURS, .next = "x", .error = EINVAL, .swept = true},
    {.name = "a kernel without renameat2", .text = OURS, .next = "x", .error = ENOSYS},
};

static void prepare(const struct name *name)
{
    char path[32];

    tree_start();
    if (name->text)
        tree_file("d/t", name->text);
    if (name->next)
        tree_file("d/t.1", name->next);
    if (name->link && symlink(name->link, "d/t"))
        exit(99);
    if (name->device && mknod("d/t", (mode_t)(name->device | 0600), 0))
        exit(99);
    for (int i = 1; i <= name->others; i++) {
        snprintf(path, sizeof(path), "d/t.%d", i);
        tree_file(path, "x");
    }
    if (name->locked && flock((open)("d/t", O_RDWR | O_CLOEXEC), LOCK_EX | LOCK_NB))
        exit(99);
    if (name->removed)
        system_removes = "d/t";
    system_mounted = name->mounted;
}

/* d/t, with a folder itself so often in between that the path is as long as that. */
static const char *path_of(const struct name *name)
{
    static char path[5000];
    int len = 2;

    if (!name->len)
        return name->path ? name->path : "d/t";
    snprintf(path, sizeof(path), "d/");
    for (; len + 2 < name->len; len += 2)
        snprintf(path + len, sizeof(path) - (size_t)len, "./");
    snprintf(path + len, sizeof(path) - (size_t)len, "%s", len + 1 < name->len ? "/t" : "t");
    return path;
}

static int run(const void *arg)
{
    const struct name *name = arg;
    static char to[5000];
    int fd;

    memset(to, '#', sizeof(to) - 1); /* what was there before does not matter */
    system_old_rename = name->error;
    system_error = name->failure;
    prepare(name);
    fd = file_create(path_of(name), &kind, name->flags, to, name->room ? (size_t)name->room : sizeof(to));
    printf("%s: %s, %u locks\n", fd >= 0 ? "made" : "none", fd >= 0 ? to : "-", system_locks);
    if (fd >= 0 && (write)(fd, "new", 3) != 3)
        printf("it cannot be written\n");
    errno = TREE_ERRNO;
    tree_print();
    return 0;
}

const char golden_name[] = "files/names";

void golden_cases(void)
{
    umask(022);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        const struct golden golden = {names[i].name, NULL, run, &names[i]};

        golden_run(&golden);
        if (i == 0 || names[i].swept)
            golden_sweep(&golden);
    }
}
