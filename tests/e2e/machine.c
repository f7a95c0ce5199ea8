/* SPDX-License-Identifier: Apache-2.0 */
/* machine.c - a preload that makes another machine: what the system says of NUMA nodes, memory and cgroups comes from
 * the folder MACHINE_ROOT, and the thread runs on the node MACHINE_NODE. The kernel's memory policies are the real
 * ones. */
#include "../program.h"

#define VISIBLE __attribute__((visibility("default")))

/* The library is built for large files, as this is, and calls it by that name. */
VISIBLE int open(const char *path, int flags, ...)
{
    static const char *const ours[] = {"/sys/devices/system/node/", "/proc/self/cgroup", "/proc/meminfo",
                                       "/sys/fs/cgroup"};
    const char *root = getenv("MACHINE_ROOT");
    char other[4096];
    mode_t mode = 0;
    va_list args;

    if (flags & O_CREAT) {
        va_start(args, flags);
        mode = va_arg(args, mode_t);
        va_end(args);
    }
    for (unsigned int i = 0; root && i < sizeof(ours) / sizeof(ours[0]); i++)
        if (strncmp(path, ours[i], strlen(ours[i])) == 0) {
            snprintf(other, sizeof(other), "%s%s", root, path);
            path = other;
            break;
        }
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

VISIBLE int getcpu(unsigned int *cpu, unsigned int *node)
{
    const char *text = getenv("MACHINE_NODE");

    *cpu = 0;
    *node = text ? (unsigned int)strtoul(text, NULL, 10) : 0;
    return 0;
}
