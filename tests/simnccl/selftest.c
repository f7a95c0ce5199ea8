/* SPDX-License-Identifier: Apache-2.0 */
/*
 * selftest.c - does the NCCL stand-in work between threads and between processes, and keep its promises?
 *
 * The main program starts ranks as threads and as processes, kills some of them, and runs the parts in the other files.
 * It has functions of NCCL's name of its own in front, as a preload has. It prints every failure, and exits with 1 if
 * there was one. It does not test the library.
 *
 * Locking: none; threads are ranks.
 */
#include "selftest.h"

#include <dirent.h>
#include <signal.h>
#include <sys/wait.h>

atomic_int failures;
struct hooks hooks;
static char folder[] = "/tmp/simnccl-selftest-XXXXXX";

void nap(void)
{
    const struct timespec ts = {.tv_nsec = 1000000};

    nanosleep(&ts, NULL);
}

void gate_hold(void *arg)
{
    struct gate *g = arg;

    while (!g->open)
        nap();
}

/* ---- in front of the stand-in ---- */

ncclResult_t ncclBroadcast(const void *send, void *recv, size_t n, ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream)
{
    int version;

    hooks.broadcasts++;
    if (hooks.nest)
        OK(pncclGetVersion(&version));
    return pncclBroadcast(send, recv, n, type, root, comm, stream);
}

ncclResult_t ncclMemAlloc(void **ptr, size_t size)
{
    hooks.mem_allocs++;
    while (hooks.hold) {
        hooks.held = true;
        nap();
    }
    return pncclMemAlloc(ptr, size);
}

ncclResult_t ncclCommRegister(const ncclComm_t comm, void *at, size_t size, void **handle)
{
    hooks.registers++;
    return pncclCommRegister(comm, at, size, handle);
}

/* ---- processes ---- */

static pid_t start(const char *const argv[], const char *const env[], int err)
{
    pid_t pid = fork();

    if (pid == 0) {
        if (err >= 0)
            dup2(err, 2);
        for (; env && *env; env++)
            putenv((char *)*env); /* execv's prototype is as old as this one's */
        execv(argv[0], (char *const *)argv);
        _exit(99);
    }
    return pid;
}

static int finish(pid_t pid)
{
    int status = 0;

    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int spawn(const char *const argv[], const char *const env[], char *text, size_t size)
{
    int fd[2];
    size_t used = 0;
    ssize_t n;

    if (pipe(fd) != 0)
        return 98;
    pid_t pid = start(argv, env, fd[1]);
    close(fd[1]);
    while (used + 1 < size && (n = read(fd[0], text + used, size - 1 - used)) > 0)
        used += (size_t)n;
    text[used] = 0;
    close(fd[0]);
    return finish(pid);
}

/* Rooms in the folder. */
static int rooms(void)
{
    DIR *d = opendir(folder);
    int n = 0;

    for (struct dirent *e; d && (e = readdir(d));)
        n += strncmp(e->d_name, "simnccl-", 8) == 0;
    if (d)
        closedir(d);
    return n;
}

/* An id as text: it is a path. */
static pid_t rank_start(const char *self, const char *part, const ncclUniqueId *id, int nranks, int rank)
{
    char n[8], r[8];
    const char *argv[] = {self, part, id->internal, n, r, NULL};
    const char *env[] = {"SIMNCCL_STRICT=1", NULL};

    snprintf(n, sizeof(n), "%d", nranks);
    snprintf(r, sizeof(r), "%d", rank);
    return start(argv, env, -1);
}

static void processes(const char *self)
{
    pid_t pid[RANKS];
    ncclUniqueId id;

    OK(ncclGetUniqueId(&id));
    for (int i = 0; i < RANKS; i++)
        pid[i] = rank_start(self, "rank", &id, RANKS, i);
    for (int i = 0; i < RANKS; i++)
        CHECK_EQ(finish(pid[i]), 0);
    CHECK_EQ(rooms(), 0);

    /* One is killed while the other waits for it: that one ends with an error. */
    OK(ncclGetUniqueId(&id));
    pid[0] = rank_start(self, "bereaved", &id, 2, 0);
    pid[1] = rank_start(self, "killed", &id, 2, 1);
    CHECK_EQ(finish(pid[1]), 128 + SIGKILL);
    CHECK_EQ(finish(pid[0]), 0);
    CHECK_EQ(rooms(), 0);

    /* One is killed before the others come: its room is removed, but not one in which a rank waits. */
    OK(ncclGetUniqueId(&id));
    pid[0] = rank_start(self, "rank", &id, 2, 0);
    while (rooms() < 1)
        nap();
    kill(pid[0], SIGKILL);
    finish(pid[0]);
    CHECK_EQ(rooms(), 1);
    OK(ncclGetUniqueId(&id));
    CHECK_EQ(rooms(), 0);
    pid[0] = rank_start(self, "small", &id, 2, 0);
    while (rooms() < 1)
        nap();
    ncclUniqueId other;
    OK(ncclGetUniqueId(&other));
    pid[1] = rank_start(self, "small", &id, 2, 1);
    CHECK_EQ(finish(pid[0]), 0);
    CHECK_EQ(finish(pid[1]), 0);
    CHECK_EQ(rooms(), 0);
}

/* A process that is one rank. */
static int part(const char *what, const char *path, int nranks, int rank)
{
    ncclUniqueId id = {{0}};
    ncclResult_t error = ncclSuccess;
    ncclComm_t comm;
    void *at;

    snprintf(id.internal, sizeof(id.internal), "%s", path);
    OK(cudaSetDevice(rank));
    OK(ncclCommInitRank(&comm, nranks, id, rank));
    if (strcmp(what, "killed") == 0)
        kill(getpid(), SIGKILL);
    if (strcmp(what, "bereaved") == 0) {
        OK(cudaMalloc(&at, 4));
        OK(ncclAllReduce(at, at, 1, ncclInt32, ncclSum, comm, NULL));
        OK(cudaStreamSynchronize(NULL));
        OK(ncclCommGetAsyncError(comm, &error));
        CHECK_EQ(error, ncclRemoteError);
    }
    if (strcmp(what, "rank") == 0)
        data_rank(comm);
    OK(ncclCommDestroy(comm));
    return failures != 0;
}

/* ---- threads ---- */

struct seat {
    ncclUniqueId id;
    int rank;
};

static void *thread_rank(void *arg)
{
    const struct seat *seat = arg;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclComm_t comm;

    OK(cudaSetDevice(seat->rank));
    if (seat->rank % 2)
        OK(ncclCommInitRankConfig(&comm, RANKS, seat->id, seat->rank, &config));
    else
        OK(ncclCommInitRankScalable(&comm, RANKS, seat->rank, 1, (ncclUniqueId *)&seat->id, &config));
    data_rank(comm);
    OK(ncclCommFinalize(comm));
    OK(ncclCommDestroy(comm));
    return NULL;
}

static void threads(void)
{
    struct seat seats[RANKS];
    pthread_t thread[RANKS];

    OK(ncclGetUniqueId(&seats[0].id));
    for (int i = 0; i < RANKS; i++) {
        seats[i] = (struct seat){seats[0].id, i};
        pthread_create(&thread[i], NULL, thread_rank, &seats[i]);
    }
    for (int i = 0; i < RANKS; i++)
        pthread_join(thread[i], NULL);
    CHECK_EQ(rooms(), 0);
}

int main(int argc, char **argv)
{
    int version = 0;

    if (argc == 3 && strcmp(argv[1], "case") == 0)
        return contract_case(argv[2]);
    if (argc == 5)
        return part(argv[1], argv[2], (int)strtol(argv[3], NULL, 10), (int)strtol(argv[4], NULL, 10));
    if (!mkdtemp(folder) || setenv("XDG_RUNTIME_DIR", folder, 1) != 0)
        return 1;
    OK(ncclGetVersion(&version));
    CHECK_EQ(version, NCCL_VERSION_CODE);
    processes("/proc/self/exe");
    contracts("/proc/self/exe");
    threads();
    data_groups();
    CHECK_EQ(rooms(), 0);
    if (rmdir(folder) != 0)
        failures++;
    return failures != 0;
}
