/* SPDX-License-Identifier: Apache-2.0 */
/* test_file.c - shim/base/output_file.c: files of a process that has closed some descriptors; and shim/real/caller.c:
 * callers of whom the loader knows nothing. Which names files get is tested under the preload:
 * tests/e2e/test_files.py. */
#include <fcntl.h>

#include "base/output_file.h"
#include "isolated.h"
#include "real/caller.h"

static const struct file_kind kind = {"trace", "{\"cupool\":", "exists, and is no trace"};

/* From this descriptor on all are closed. */
ISOLATED_CASE(test_closed, .row = (const void *)0)
{
    char folder[] = "/tmp/cupool-test-XXXXXX", path[64], name[64];
    int fd;

    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/t", folder);
    fake_start();
    for (int i = (int)(uintptr_t)*state; i < 20; i++)
        close(i);
    fd = file_create(path, &kind, 0, name, sizeof(name));
    assert_true(fd >= 20);
    assert_string_equal(name, path);
    assert_string_equal(fake.said, "");
    assert_int_equal(fcntl(fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    for (int i = (int)(uintptr_t)*state; i < 20; i++)
        assert_int_equal(fcntl(i, F_GETFD), -1); /* none of these numbers is taken */
    assert_int_equal(unlink(path) | rmdir(folder), 0);
}
ISOLATED_AGAIN(test_closed, output, .row = (const void *)1)
ISOLATED_AGAIN(test_closed, third, .row = (const void *)3)

static void put(const char *path, const char *data)
{
    FILE *file = fopen(path, "w");

    assert_non_null(file);
    assert_true(fputs(data, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static void assert_holds(const char *path, const char *data)
{
    char text[64] = "";
    FILE *file = fopen(path, "r");

    assert_non_null(file);
    text[fread(text, 1, sizeof(text) - 1, file)] = '\0';
    fclose(file);
    assert_string_equal(text, data);
}

/* Files of earlier runs get the first free number, also where the file system cannot rename without replacing. */
ISOLATED_CASE(test_earlier_runs, .row = (const void *)0)
{
    char folder[] = "/tmp/cupool-test-XXXXXX", path[64], first[64], second[64], name[64];
    int fd;

    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/t", folder);
    snprintf(first, sizeof(first), "%s/t.1", folder);
    snprintf(second, sizeof(second), "%s/t.2", folder);
    put(path, "{\"cupool\": last");
    put(first, "first");
    fake_start();
    fake.old_rename = (int)(uintptr_t)*state;
    fd = file_create(path, &kind, 0, name, sizeof(name));
    assert_true(fd >= 0);
    assert_string_equal(name, path);
    assert_string_equal(fake.said, "");
    assert_holds(path, "");
    assert_holds(first, "first");
    assert_holds(second, "{\"cupool\": last");
    assert_int_equal(unlink(path) | unlink(first) | unlink(second) | rmdir(folder), 0);
}
ISOLATED_AGAIN(test_earlier_runs, invalid, .row = (const void *)EINVAL)
ISOLATED_AGAIN(test_earlier_runs, missing, .row = (const void *)ENOSYS)

/* On a file system without locks a new file is ours all the same; of one that is there nobody knows whose it is. */
ISOLATED_CASE(test_no_locks)
{
    char folder[] = "/tmp/cupool-test-XXXXXX", path[64], second[64], name[64];

    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/t", folder);
    snprintf(second, sizeof(second), "%s/t.1", folder);
    fake_start();
    fake.no_locks = true;
    assert_true(file_create(path, &kind, 0, name, sizeof(name)) >= 0);
    assert_string_equal(name, path);
    assert_string_equal(fake.said, "");
    assert_true(file_create(path, &kind, 0, name, sizeof(name)) >= 0);
    assert_string_equal(name, second);
    assert_non_null(strstr(fake.said, "its file system has no locks"));
    assert_int_equal(unlink(path) | unlink(second) | rmdir(folder), 0);
}

/* Another process renames the file between the open and the lock: what was opened is not what has the name now. */
ISOLATED_CASE(test_renamed_before_the_lock)
{
    char folder[] = "/tmp/cupool-test-XXXXXX", path[64], first[64], name[64];
    int fd;

    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/t", folder);
    snprintf(first, sizeof(first), "%s/t.1", folder);
    put(path, "");
    fake_start();
    fake.renames[0] = path;
    fake.renames[1] = first;
    fd = file_create(path, &kind, 0, name, sizeof(name));
    assert_string_equal(name, path);
    assert_int_equal(write(fd, "ours", 4), 4);
    assert_holds(path, "ours");
    assert_holds(first, "");
    assert_int_equal(unlink(path) | unlink(first) | rmdir(folder), 0);
}

/* Old bytes of the stack are no answer. */
static __attribute__((noinline)) void stack_fill(void)
{
    volatile char text[4096];

    for (size_t i = 0; i < sizeof(text); i++)
        text[i] = 0x41;
}

ISOLATED_CASE(test_unknown_caller)
{
    void *const code = calloc(1, 64);

    stack_fill();
    assert_int_equal(caller_of(code), CALLER_PROGRAM);
    stack_fill();
    assert_int_equal(caller_of(NULL), CALLER_PROGRAM);
    free(code);
}
