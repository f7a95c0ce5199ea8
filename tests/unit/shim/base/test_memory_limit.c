/* SPDX-License-Identifier: Apache-2.0 */
/* test_memory_limit.c - shim/base/memory_limit.c: the least limit of the control groups of this process, of version 1
 * and 2, and of those above them; what is left of it; and how many processes share the machine. The files are in a
 * folder of the test's. */
#include <limits.h>
#include <sys/stat.h>

#include "base/memory_limit.h"
#include "isolated.h"

static const struct row {
    const char *groups;   /* /proc/self/cgroup; NULL: there is no such file */
    const char *files[4]; /* NAME=TEXT, below /sys/fs/cgroup */
    uint64_t expected;    /* 0: what the machine has */
} rows[] = {
    {NULL, {NULL}, 0},
    {"0::/\n", {NULL}, 0},
    {"0::/\n", {"/memory.max=max\n"}, 0},
    {"0::/\n", {"/memory.max=4096\n"}, 4096},
    {"0::/a\n", {"/a/memory.max=8192\n", "/a/memory.current=4000\n"}, 8192}, /* whatever is in use */
    {"0::/a/b\n", {"/a/b/memory.max=max\n", "/a/memory.max=8192\n", "/memory.max=9999\n"}, 8192},
    {"0::/a/b\n", {"/a/b/memory.max=100\n", "/a/memory.max=8192\n"}, 100},
    {"0::/a/b\n", {"/a/b/memory.max=9999\n", "/memory.max=8192\n"}, 8192},
    {"0::/a\n", {"/b/memory.max=100\n", "/a/memory.limit_in_bytes=100\n"}, 0},
    {"5:cpu:/a\n4:memory:/a/b\n0::/\n", {"/memory/a/b/memory.limit_in_bytes=4096\n"}, 4096},
    {"5:cpu:/a\n4:memory:/a/b\n0::/\n", {"/memory/a/memory.limit_in_bytes=4096\n", "/memory.max=5000\n"}, 4096},
    {"4:memory:/\n0::/c\n", {"/memory/memory.limit_in_bytes=4096\n", "/c/memory.max=1000\n"}, 1000},
    {"4:memory:/a\n", {"/memory/a/memory.limit_in_bytes=9223372036854771712\n"}, 0}, /* none, in version 1 */
    {"5:cpu:/a\n", {"/memory/a/memory.limit_in_bytes=4096\n", "/a/memory.max=4096\n"}, 0},
};

static void put(const char *root, const char *name, const char *data)
{
    char path[PATH_MAX];
    FILE *file;

    snprintf(path, sizeof(path), "%s%s", root, name);
    for (char *slash = path + strlen(root); (slash = strchr(slash + 1, '/'));) {
        *slash = '\0';
        mkdir(path, 0700);
        *slash = '/';
    }
    file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(data, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

/* The answers on a machine with these files. */
static void ask(const struct row *row, const char *meminfo, uint64_t *ret_all, uint64_t *ret_free)
{
    char root[] = "/tmp/cupool-test-XXXXXX", name[256], command[64];

    assert_non_null(mkdtemp(root));
    fake_start();
    fake.root = root;
    if (meminfo)
        put(root, "/proc/meminfo", meminfo);
    if (row->groups)
        put(root, "/proc/self/cgroup", row->groups);
    for (unsigned int i = 0; i < COUNT(row->files) && row->files[i]; i++) {
        const char *data = strchr(row->files[i], '=');

        snprintf(name, sizeof(name), "/sys/fs/cgroup%.*s", (int)(data - row->files[i]), row->files[i]);
        put(root, name, data + 1);
    }
    *ret_all = machine_memory();
    *ret_free = machine_memory_free();
    snprintf(command, sizeof(command), "rm -rf %s", root);
    assert_int_equal(system(command), 0);
}

ISOLATED_ROWS(test_limit, rows)
{
    const struct row *row = *state;
    const uint64_t whole = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t limit, free;

    ask(row, NULL, &limit, &free);
    assert_int_equal(limit, row->expected ? row->expected : whole);
    assert_int_equal(free, 0); /* the machine does not say it */
}

#define ENOUGH "MemTotal: 9 kB\nMemFree: 1 kB\nMemAvailable:    64 kB\nBuffers: 3 kB\n"

/* The machine's available memory, or what the control groups leave of their limits. */
static const struct left {
    const char *meminfo;
    struct row row;
} lefts[] = {
    {ENOUGH, {NULL, {NULL}, 65536}},
    {"MemTotal: 9 kB\n", {NULL, {NULL}, 0}},
    {"MemAvailable:64 kB\n", {NULL, {NULL}, 65536}},
    {ENOUGH, {"0::/a\n", {"/a/memory.max=8192\n", "/a/memory.current=4000\n"}, 4192}},
    {ENOUGH, {"0::/a\n", {"/a/memory.max=8192\n", "/a/memory.current=8191\n"}, 1}},
    {ENOUGH, {"0::/a\n", {"/a/memory.max=8192\n", "/a/memory.current=8192\n"}, 0}},
    {ENOUGH, {"0::/a\n", {"/a/memory.max=8192\n", "/a/memory.current=9000\n"}, 0}},
    {ENOUGH, {"0::/a\n", {"/a/memory.max=8192\n"}, 8192}}, /* it does not say how much it uses */
    {ENOUGH, {"0::/a\n", {"/a/memory.max=max\n", "/a/memory.current=9000\n"}, 65536}},
    {ENOUGH, {"0::/a/b\n", {"/a/b/memory.max=9000\n", "/a/memory.max=8192\n", "/a/memory.current=8000\n"}, 192}},
    {ENOUGH,
     {"4:memory:/a\n", {"/memory/a/memory.limit_in_bytes=8192\n", "/memory/a/memory.usage_in_bytes=100\n"}, 8092}},
};

ISOLATED_ROWS(test_left, lefts)
{
    const struct left *row = *state;
    uint64_t limit, free;

    ask(&row->row, row->meminfo, &limit, &free);
    assert_int_equal(free, row->row.expected);
}

static const struct ranks {
    const char *environment;
    unsigned int expected;
} ranks[] = {
    {"", 1},
    {"LOCAL_WORLD_SIZE=8 OMPI_COMM_WORLD_LOCAL_SIZE=4", 8},
    {"LOCAL_WORLD_SIZE=0 OMPI_COMM_WORLD_LOCAL_SIZE=4", 4},
    {"MPI_LOCALNRANKS=3", 3},
    {"MV2_COMM_WORLD_LOCAL_SIZE=2", 2},
    {"SLURM_TASKS_PER_NODE=4(x2),3", 4},
    {"LOCAL_WORLD_SIZE=-1", 1},
    {"LOCAL_WORLD_SIZE=2147483648", 1},
};

ISOLATED_OWN(test_ranks, ranks)
{
    const struct ranks *row = *state;

    assert_int_equal(machine_ranks(), row->expected);
}
