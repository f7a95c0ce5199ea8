/* SPDX-License-Identifier: Apache-2.0 */
/*
 * room.c - what the ranks of a communicator share.
 *
 * Every rank, a thread or a process, maps a file with a ring of bytes for each pair of ranks. The file's name goes as
 * soon as the last rank has joined, so that a killed job leaves none behind; one that is killed before that leaves a
 * file without a lock, and the next ncclGetUniqueId removes it. The file knows nothing of operations.
 *
 * Locking: none of its own; a ring has one writer and one reader, everything else is atomic.
 */
#include "simnccl.h"

#include <dirent.h>
#include <poll.h>
#include <sched.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>

#define PREFIX     "simnccl-"
#define NAPS_CHECK 2000 /* naps without progress after which the peers are looked at */

void nap(void)
{
    const struct timespec ts = {.tv_nsec = 50000};

    nanosleep(&ts, NULL);
}

static const char *folder(void)
{
    const char *dir = getenv("XDG_RUNTIME_DIR");

    /* The name has to fit into an id. */
    return dir && *dir == '/' && strlen(dir) < 64 && access(dir, W_OK) == 0 ? dir : "/dev/shm";
}

/* A process that uses a room before it is full holds a shared lock on it. */
static void sweep(const char *dir)
{
    DIR *d = opendir(dir);
    char path[PATH_LENGTH];

    for (struct dirent *e; d && (e = readdir(d));) {
        if (strncmp(e->d_name, PREFIX, strlen(PREFIX)) != 0 ||
            snprintf(path, sizeof(path), "%s/%s", dir, e->d_name) >= (int)sizeof(path))
            continue;
        int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
        if (fd < 0)
            continue; /* another user's */
        if (flock(fd, LOCK_EX | LOCK_NB) == 0)
            unlink(path);
        close(fd);
    }
    if (d)
        closedir(d);
}

ncclResult_t room_id(ncclUniqueId *id)
{
    uint64_t random[2];

    sweep(folder());
    if (getrandom(random, sizeof(random), 0) != sizeof(random))
        return ncclSystemError;
    memset(id, 0, sizeof(*id));
    snprintf(id->internal, sizeof(id->internal), "%s/" PREFIX "%016llx%016llx", folder(), (unsigned long long)random[0],
             (unsigned long long)random[1]);
    return ncclSuccess;
}

static int room_open(const char *path)
{
    for (;;) {
        struct stat st;
        int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (fd < 0)
            return -1;
        /* A sweep may have come in between: then it is nobody's file any more. */
        if (flock(fd, LOCK_SH) == 0 && fstat(fd, &st) == 0 && st.st_nlink > 0)
            return fd;
        close(fd);
    }
}

bool room_join(ncclComm_t comm)
{
    struct room *room = MAP_FAILED;
    int fd = room_open(comm->path), nobody = 0;

    if (fd >= 0 && ftruncate(fd, sizeof(*room)) == 0)
        room = mmap(NULL, sizeof(*room), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (room == MAP_FAILED) {
        fprintf(stderr, "simnccl: cannot make %s: %s\n", comm->path, strerror(errno));
        if (fd >= 0)
            close(fd);
        return false;
    }
    comm->room = room;
    comm->room_fd = fd;
    if (!atomic_compare_exchange_strong(&room->nranks, &nobody, comm->nranks) && nobody != comm->nranks)
        breach("rank %d joins a communicator of %d, another one of %d ranks", comm->rank, comm->nranks, nobody);
    if (atomic_exchange(&room->pid[comm->rank], getpid()))
        breach("two ranks of a communicator call themselves %d", comm->rank);
    if (atomic_fetch_add(&room->opened, 1) + 1 == comm->nranks)
        unlink(comm->path); /* before the room is full: then its name is free */
    room->joined++;
    return true;
}

bool room_full(ncclComm_t comm)
{
    if (comm->room->joined < comm->nranks)
        return false;
    if (comm->room_fd >= 0)
        close(comm->room_fd); /* and with it the lock */
    comm->room_fd = -1;
    return true;
}

void room_leave(ncclComm_t comm)
{
    if (!comm->room)
        return;
    if (comm->room_fd >= 0)
        close(comm->room_fd);
    comm->room_fd = -1;
    comm->room->pid[comm->rank] = 0;
    munmap(comm->room, sizeof(*comm->room));
    comm->room = NULL;
}

void room_put(ncclComm_t comm, struct slot value)
{
    /* Nobody is more than one round ahead of the slowest reader. */
    comm->room->slots[comm->round++ % 2][comm->rank] = value;
    comm->room->arrived++;
}

const struct slot *room_values(ncclComm_t comm)
{
    if (comm->room->arrived < comm->round * (uint64_t)comm->nranks)
        return NULL;
    return comm->room->slots[(comm->round - 1) % 2];
}

bool room_break(ncclComm_t comm, ncclResult_t error)
{
    int none = 0;

    atomic_compare_exchange_strong(&comm->error, &none, (int)error);
    return !atomic_exchange(&comm->room->stop, 1);
}

/* One that has ended, and whose parent has not looked yet, is no more. */
static bool process_lives(pid_t pid)
{
    struct pollfd fd = {.fd = (int)syscall(SYS_pidfd_open, pid, 0), .events = POLLIN};

    if (fd.fd < 0)
        return errno != ESRCH;
    bool ended = poll(&fd, 1, 0) > 0;
    close(fd.fd);
    return !ended;
}

/* Whether everybody whom x waits for is still there. */
static bool peers_live(ncclComm_t comm, const struct xfer *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        int peer = comm->room->pid[x[i].peer];
        if (x[i].left && (peer == 0 || !process_lives(peer))) {
            fprintf(stderr, "simnccl: rank %d has left while rank %d waits for it\n", x[i].peer, comm->rank);
            return false;
        }
    }
    return true;
}

/* As much as goes now; returns whether anything did. */
static bool move(ncclComm_t comm, struct xfer *x)
{
    struct ring *r = x->out ? &comm->room->rings[comm->rank][x->peer] : &comm->room->rings[x->peer][comm->rank];
    uint64_t at = x->out ? r->written : r->read;
    size_t n = x->out ? RING_BYTES - (at - r->read) : r->written - at, to_end = RING_BYTES - at % RING_BYTES;

    if (n > x->left)
        n = x->left;
    if (n > to_end)
        n = to_end;
    if (n == 0)
        return false;
    if (x->out) {
        memcpy(r->data + at % RING_BYTES, x->at, n);
        r->written = at + n;
    } else {
        memcpy(x->at, r->data + at % RING_BYTES, n);
        r->read = at + n;
    }
    x->at += n;
    x->left -= n;
    return true;
}

bool room_exchange(ncclComm_t comm, struct xfer *x, size_t n)
{
    unsigned naps = 0;

    for (;;) {
        uint32_t busy[2] = {0, 0}; /* peers, with whom an earlier one is not finished */
        bool open = false, moved = false;
        for (size_t i = 0; i < n; i++) {
            if (x[i].left == 0)
                continue;
            open = true;
            if (busy[x[i].out] & 1u << x[i].peer)
                continue;
            moved |= move(comm, &x[i]);
            if (x[i].left)
                busy[x[i].out] |= 1u << x[i].peer;
            else if (x[i].arrived && !x[i].arrived(comm, &x[i]))
                return false;
        }
        if (!open)
            return true;
        if (comm->room->stop || comm->abort) {
            room_break(comm, ncclRemoteError);
            return false;
        }
        if (moved) {
            naps = 0;
            continue;
        }
        if (naps < 20)
            sched_yield();
        else
            nap();
        if (++naps % NAPS_CHECK == 0 && !peers_live(comm, x, n)) {
            room_break(comm, ncclRemoteError);
            return false;
        }
    }
}
