/* SPDX-License-Identifier: Apache-2.0 */
/* peer_process.c - see peer_process.h. No locks and no state. */
#include "base/peer_process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* A process as /proc describes it. */
struct seen {
    char state;
    int threads;
    unsigned long long start, stack;
};

/* True if /proc numbers processes as the kernel does for this one. In a process namespace of its own that has no /proc
 * of its own (unshare --pid without --mount-proc), a number is another process there. */
static bool proc_is_ours(void)
{
    char own[16], text[16];
    const int len = snprintf(own, sizeof(own), "%d", (int)getpid());

    return readlink("/proc/self", text, sizeof(text)) == len && memcmp(own, text, (size_t)len) == 0;
}

static bool look(int pid, struct seen *ret_seen)
{
    char path[32], text[512];
    const char *name_end;
    ssize_t n;
    int fd;

    if (!proc_is_ours())
        return false;
    snprintf(path, sizeof(path), "/proc/%d/stat", pid);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    n = read(fd, text, sizeof(text) - 1);
    close(fd);
    text[n > 0 ? n : 0] = '\0';
    name_end = strrchr(text, ')'); /* the name may have any character in it */
    return name_end &&
           sscanf(
               name_end,
               ") %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %d %*d %llu %*u %*d %*u %*u %*u "
               "%llu",
               &ret_seen->state, &ret_seen->threads, &ret_seen->start, &ret_seen->stack) == 4;
}

struct peer_process peer_process_of(int pid)
{
    struct peer_process process = {.pid = pid};
    struct seen seen;

    if (look(pid, &seen)) {
        process.start = seen.start;
        process.stack = seen.stack;
    }
    return process;
}

bool peer_process_lives(const struct peer_process *process)
{
    struct seen seen;

    if (!look(process->pid, &seen))
        return kill(process->pid, 0) == 0 || errno != ESRCH;
    if (process->start && seen.start != process->start)
        return false;
    /* The kernel chooses another place for each program, by chance. */
    if (process->stack && seen.stack && seen.stack != process->stack)
        return false;
    /* The first thread of a process becomes a zombie before the others have ended. */
    return (seen.state != 'Z' && seen.state != 'X') || seen.threads > 1;
}
