/* SPDX-License-Identifier: Apache-2.0 */
/*
 * peer_process.h - whether another process still runs. A process counts as gone only when all its threads have ended
 * and its files are closed, those of the GPU's driver included: from then on none of its work touches memory. It also
 * counts as gone once it has become another program (execve), which closes those files before it has its new stack.
 *
 * It knows a process by its number and the time of its start, so a later process with that number is not taken for it.
 * It reads /proc; where that does not show the process, or is another process namespace's, kill(2) decides.
 *
 * Threads: every function may be called from any thread. No locks, no state.
 */
#ifndef CUPOOL_SHIM_BASE_PEER_PROCESS_H
#define CUPOOL_SHIM_BASE_PEER_PROCESS_H

#include <stdbool.h>

struct peer_process {
    int pid;
    unsigned long long start; /* in the kernel's ticks since it was booted; 0: not known */
    unsigned long long stack; /* where its stack begins; 0: not known */
};

/* The process with this number, which runs now. */
struct peer_process peer_process_of(int pid);
bool peer_process_lives(const struct peer_process *process);

#endif
