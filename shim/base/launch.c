/* SPDX-License-Identifier: Apache-2.0 */
/* launch.c - see launch.h. No locks: no state. */
#include "base/launch.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/conf.h"

/*
 * In order of precedence, for the case that the process tree does not decide: torchrun runs inside the others far more
 * often than the other way round, and all its workers share the outer launcher's variables. needs: a variable without
 * which rank means something else (Kubernetes sets RANK for whole pods; SLURM_PROCID is 0 in a batch script).
 */
static const struct launcher {
    const char *name, *rank, *local_rank, *needs;
    const char *processes; /* the names of its parent processes, each between bars */
} launchers[] = {
    {"torchrun", "RANK", "LOCAL_RANK", "LOCAL_RANK", "|torchrun|pt_elastic|deepspeed|"},
    {"openmpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", NULL,
     "|orted|prted|prterun|mpirun|mpiexec|orterun|"},
    {"pmix", "PMIX_RANK", NULL, NULL, "|orted|prted|prterun|mpirun|mpiexec|orterun|slurmstepd|"},
    {"mpich", "PMI_RANK", "MPI_LOCALRANKID", NULL, "|hydra_pmi_proxy|hydra_bstrap_proxy|mpiexec.hydra|mpiexec|mpirun|"},
    {"slurm", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_ID", "|slurmstepd|"},
};

#define LAUNCHERS (sizeof(launchers) / sizeof(launchers[0]))

static int env_number(const char *name)
{
    const char *text = name ? getenv(name) : NULL;
    char *end;
    long n;

    if (!text || !*text)
        return -1;
    n = strtol(text, &end, 10);
    return *end || n < 0 || n > 1 << 30 ? -1 : (int)n;
}

static bool present(const struct launcher *launcher)
{
    return env_number(launcher->rank) >= 0 && (!launcher->needs || getenv(launcher->needs));
}

static ssize_t file_read(const char *path, char *buf, size_t len)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n;

    if (fd < 0)
        return -1;
    n = read(fd, buf, len - 1);
    close(fd);
    buf[n > 0 ? n : 0] = '\0';
    return n;
}

static pid_t process_parent(pid_t pid)
{
    char path[32], stat[512];
    const char *end;
    int parent;

    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    if (file_read(path, stat, sizeof(stat)) <= 0)
        return 0;
    end = strrchr(stat, ')'); /* the process name before it may hold any character */
    return end && sscanf(end + 1, " %*c %d", &parent) == 1 ? parent : 0;
}

/* True if pid is a parent process of this launcher: by its name or, for torchrun started as a module, by its command
 * line. */
static bool process_is(pid_t pid, const struct launcher *launcher)
{
    char path[40], text[1024], name[64];
    ssize_t n;

    snprintf(path, sizeof(path), "/proc/%d/comm", (int)pid);
    n = file_read(path, text, 32);
    if (n <= 0)
        return false;
    text[strcspn(text, "\n")] = '\0';
    snprintf(name, sizeof(name), "|%.40s|", text);
    if (strstr(launcher->processes, name))
        return true;
    if (launcher != &launchers[0])
        return false;
    snprintf(path, sizeof(path), "/proc/%d/cmdline", (int)pid);
    n = file_read(path, text, sizeof(text));
    for (ssize_t i = 0; i + 1 < n; i++)
        if (!text[i])
            text[i] = ' ';
    return n > 0 && (strstr(text, "torch.distributed.run") || strstr(text, "torch.distributed.launch") ||
                     strstr(text, "bin/torchrun") || strstr(text, "bin/deepspeed"));
}

static const struct launcher *launcher_find(void)
{
    const struct launcher *first = NULL;
    unsigned int count = 0;
    pid_t pid;

    for (unsigned int i = 0; i < LAUNCHERS; i++) {
        if (!present(&launchers[i]))
            continue;
        first = first ? first : &launchers[i];
        count++;
    }
    if (count < 2)
        return first;
    pid = getppid();
    for (int up = 0; up < 16 && pid > 1; up++, pid = process_parent(pid))
        for (unsigned int i = 0; i < LAUNCHERS; i++)
            if (present(&launchers[i]) && process_is(pid, &launchers[i]))
                return &launchers[i];
    return first;
}

void launch_detect(struct launch *ret_launch)
{
    const uint64_t setting = conf_get()->rank.number;
    const struct launcher *launcher = launcher_find();
    char path[1024];
    const char *slash, *name;
    ssize_t n;

    ret_launch->rank = launcher ? env_number(launcher->rank) : -1;
    ret_launch->local_rank = launcher ? env_number(launcher->local_rank) : -1;
    ret_launch->from = launcher ? launcher->name : "none";
    if (setting != UINT64_MAX) {
        ret_launch->rank = (int)setting;
        ret_launch->from = "setting";
    }
    if (gethostname(ret_launch->host, sizeof(ret_launch->host) - 1) != 0)
        strcpy(ret_launch->host, "host");
    ret_launch->host[sizeof(ret_launch->host) - 1] = '\0';
    ret_launch->host[strcspn(ret_launch->host, "/")] = '\0';
    n = readlink("/proc/self/exe", path, sizeof(path) - 1);
    path[n > 0 ? n : 0] = '\0';
    slash = strrchr(path, '/');
    name = slash ? slash + 1 : n > 0 ? "exe" : program_invocation_short_name; /* there may be no /proc */
    snprintf(ret_launch->exe, sizeof(ret_launch->exe), "%.200s", *name ? name : "exe");
}

static int append(char *buf, size_t len, size_t *at, const char *text)
{
    const size_t n = strlen(text);

    if (*at + n >= len)
        return -ENAMETOOLONG;
    memcpy(buf + *at, text, n + 1);
    *at += n;
    return 0;
}

int launch_expand(const struct launch *launch, const char *pattern, char *buf, size_t len)
{
    size_t at = 0;
    int rc = 0;

    if (!len)
        return -ENAMETOOLONG;
    buf[0] = '\0';
    for (; *pattern && !rc; pattern++) {
        char piece[16] = {pattern[0]};
        const char *text = piece;

        if (pattern[0] == '%' && pattern[1]) {
            piece[1] = *++pattern;
            switch (*pattern) {
            case 'h':
                text = launch->host;
                break;
            case 'e':
                text = launch->exe;
                break;
            case 'p':
                snprintf(piece, sizeof(piece), "%d", (int)getpid());
                break;
            case 'r':
            case 'l':
                snprintf(piece, sizeof(piece), "%d", *pattern == 'r' ? launch->rank : launch->local_rank);
                if (piece[0] == '-')
                    text = "x";
                break;
            case '%':
                piece[1] = '\0';
                break;
            default:
                break;
            }
        }
        rc = append(buf, len, &at, text);
    }
    return rc;
}
