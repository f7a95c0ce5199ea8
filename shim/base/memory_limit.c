/* SPDX-License-Identifier: Apache-2.0 */
/* memory_limit.c - see memory_limit.h. No locks. */
#include "base/memory_limit.h"

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/descriptor.h"

#define CGROUPS "/sys/fs/cgroup"

/* The text of files, away from the stack: the program's threads may have small ones. */
struct scratch {
    char text[8192], folder[PATH_MAX], path[PATH_MAX + 64];
};

/* The files of a cgroup: its limit, and how much it uses. */
struct files {
    const char *limit, *used;
};

/* The number that a file of a cgroup has; "max", or no such file: none. */
static uint64_t number_of(struct scratch *scratch, const char *folder, const char *file)
{
    char text[64], *end;
    uint64_t limit;

    if (snprintf(scratch->path, sizeof(scratch->path), "%s/%s", folder, file) >= (int)sizeof(scratch->path))
        return UINT64_MAX;
    limit = strtoull(file_text(scratch->path, text, sizeof(text)), &end, 10);
    return end == text ? UINT64_MAX : limit;
}

/* The limit of a cgroup; free: what is left of it. */
static uint64_t limit_of(struct scratch *scratch, const char *folder, const struct files *files, bool free)
{
    const uint64_t limit = number_of(scratch, folder, files->limit);
    const uint64_t used = free && limit != UINT64_MAX ? number_of(scratch, folder, files->used) : 0;

    return used == UINT64_MAX ? limit : used < limit ? limit - used : 0;
}

/* The least limit of a cgroup and of those above it, or what is left. path: as /proc/self/cgroup has it. */
static uint64_t cgroup_limit(struct scratch *scratch, const char *root, const char *path, const struct files *files,
                             bool free)
{
    uint64_t least = limit_of(scratch, root, files, free), limit;
    char *const folder = scratch->folder, *slash;

    if (snprintf(folder, sizeof(scratch->folder), "%s%s", root, path) >= (int)sizeof(scratch->folder))
        return least;
    while (strlen(folder) > strlen(root)) {
        limit = limit_of(scratch, folder, files, free);
        least = limit < least ? limit : least;
        slash = strrchr(folder, '/');
        *slash = '\0';
    }
    return least;
}

/* At most `least`, and what the process's cgroups allow. */
static uint64_t within_cgroups(uint64_t least, bool free)
{
    static const struct files two = {"memory.max", "memory.current"},
                              one = {"memory.limit_in_bytes", "memory.usage_in_bytes"};
    struct scratch *scratch = mmap(NULL, sizeof(*scratch), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *rest, *line;
    uint64_t limit;

    if (scratch == MAP_FAILED)
        return least;
    rest = scratch->text;
    (void)file_text("/proc/self/cgroup", scratch->text, sizeof(scratch->text));
    while ((line = strsep(&rest, "\n"))) {
        if (strncmp(line, "0::", 3) == 0) { /* version 2 */
            limit = cgroup_limit(scratch, CGROUPS, line + 3, &two, free);
        } else if (strstr(line, ":memory:")) {
            limit = cgroup_limit(scratch, CGROUPS "/memory", strstr(line, ":memory:") + 8, &one, free);
        } else {
            continue;
        }
        least = limit < least ? limit : least;
    }
    munmap(scratch, sizeof(*scratch));
    return least;
}

uint64_t machine_memory(void)
{
    return within_cgroups((uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE), /* free: */ false);
}

uint64_t machine_memory_free(void)
{
    char text[4096];
    const char *line = strstr(file_text("/proc/meminfo", text, sizeof(text)), "MemAvailable:");

    return line ? within_cgroups(strtoull(line + 13, NULL, 10) << 10, /* free: */ true) : 0;
}

unsigned int machine_ranks(void)
{
    /* torchrun, Open MPI, MPICH and Intel MPI, MVAPICH, Slurm (the first of "4(x2),3"). */
    static const char *const names[] = {"LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS",
                                        "MV2_COMM_WORLD_LOCAL_SIZE", "SLURM_TASKS_PER_NODE"};

    for (unsigned int i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        const char *text = getenv(names[i]);
        const long ranks = text ? strtol(text, NULL, 10) : 0;

        if (ranks > 0 && ranks <= INT_MAX)
            return (unsigned int)ranks;
    }
    return 1;
}
