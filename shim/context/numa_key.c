/* SPDX-License-Identifier: Apache-2.0 */
/* numa_key.c - see numa_key.h. No locks. */
#include "context/numa_key.h"

#include <errno.h>
#include <linux/mempolicy.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/descriptor.h"

#define NODES_MAX 1024 /* as many as the kernel has bits for, at most */
#define WORD_BITS (8 * sizeof(unsigned long))

/* The kernel lists more than one node: "0-1", "0,2". */
static bool several_nodes(void)
{
    char text[64];

    return strpbrk(file_text("/sys/devices/system/node/online", text, sizeof(text)), "-,") != NULL;
}

static bool has_several(void)
{
    static atomic_int several; /* 0: not known yet, 1: no, 2: yes */

    if (!atomic_load_explicit(&several, memory_order_relaxed))
        atomic_store(&several, several_nodes() ? 2 : 1);
    return atomic_load_explicit(&several, memory_order_relaxed) == 2;
}

/* glibc has it from 2.29 on; weak, so that one build also runs where the glibc is older. */
extern int getcpu(unsigned int *cpu, unsigned int *node) __attribute__((weak));

/* The node of the processor that this thread runs on. False: unknown. */
static bool own_node(unsigned int *ret_node)
{
    unsigned int cpu;

    return (getcpu ? getcpu(&cpu, ret_node) : (int)syscall(SYS_getcpu, &cpu, ret_node, NULL)) == 0;
}

/* The number of this thread's policy, with more than one node; the system call may be forbidden. */
static uint64_t policy_key(void)
{
    unsigned long nodes[NODES_MAX / WORD_BITS] = {0};
    unsigned int node = 0;
    uint64_t number;
    int mode = MPOL_DEFAULT;

    if (syscall(SYS_get_mempolicy, &mode, nodes, (unsigned long)NODES_MAX, NULL, 0L) || mode == MPOL_DEFAULT)
        return own_node(&node) ? (uint64_t)node + 1 : 0;
    number = 0xcbf29ce484222325u ^ (uint64_t)mode; /* FNV-1a by words: equal policies get equal numbers */
    for (unsigned int i = 0; i < NODES_MAX / WORD_BITS; i++)
        number = (number ^ nodes[i]) * 0x100000001b3u;
    return number | (uint64_t)1 << 63;
}

uint64_t numa_key(void)
{
    const int saved = errno;
    uint64_t key;

    if (!has_several())
        return 0;
    key = policy_key();
    errno = saved;
    return key;
}

void numa_prefer(void *p, size_t size)
{
    unsigned long nodes[NODES_MAX / WORD_BITS] = {0};
    unsigned int node;
    int mode = MPOL_DEFAULT;

    if (!has_several() || syscall(SYS_get_mempolicy, &mode, NULL, 0UL, NULL, 0L) || mode != MPOL_DEFAULT ||
        !own_node(&node) || node >= NODES_MAX)
        return;
    nodes[node / WORD_BITS] = 1ul << node % WORD_BITS;
    (void)syscall(SYS_mbind, p, size, (long)MPOL_PREFERRED, nodes, (unsigned long)NODES_MAX, 0UL);
}
