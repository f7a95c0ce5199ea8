/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shared.c - processes that have one card: with SIMGPU_SHARED=FILE the bytes in use count for all of them together.
 *
 * The file holds a row for each process, with the bytes that it uses on each device. No contents are shared: addresses
 * and handles are a process's own, as on a GPU.
 *
 * Locking: everything under sim_lock(). Between processes flock on the file, which ends with a process that is killed;
 * the row of a process that is gone counts no more.
 */
#include "pages.h"

#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>

#define ROWS 256

struct row {
    atomic_int pid; /* 0: no process */
    _Atomic size_t used[SIM_DEVICES_MAX];
};

static struct row *rows, *own;
static int fd;

static bool row_lives(struct row *row)
{
    const int pid = atomic_load(&row->pid);

    if (!pid || (kill(pid, 0) < 0 && errno == ESRCH)) {
        atomic_store(&row->pid, 0);
        return false;
    }
    return true;
}

static void shared_open(const char *path)
{
    fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || flock(fd, LOCK_EX) || ftruncate(fd, sizeof(*rows) * ROWS)) {
        perror("simgpu: SIMGPU_SHARED");
        abort();
    }
    rows = mmap(NULL, sizeof(*rows) * ROWS, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (rows == MAP_FAILED)
        abort();
    for (struct row *row = rows; row < rows + ROWS && !own; row++) {
        if (row_lives(row))
            continue;
        for (int i = 0; i < SIM_DEVICES_MAX; i++)
            atomic_store(&row->used[i], 0);
        atomic_store(&row->pid, getpid());
        own = row;
    }
    flock(fd, LOCK_UN);
    if (!own)
        abort();
}

/* The bytes that other processes use. */
static size_t others(int dev)
{
    size_t sum = 0;

    for (struct row *row = rows; row < rows + ROWS; row++)
        if (row != own && row_lives(row))
            sum += atomic_load(&row->used[dev]);
    return sum;
}

bool shared_charge(int dev, size_t n, size_t total)
{
    bool fits;

    if (!sim_settings.shared)
        return true;
    if (!rows)
        shared_open(sim_settings.shared);
    flock(fd, LOCK_EX);
    fits = atomic_load(&own->used[dev]) + others(dev) + n <= total;
    if (fits)
        atomic_fetch_add(&own->used[dev], n);
    flock(fd, LOCK_UN);
    return fits;
}

void shared_discharge(int dev, size_t n)
{
    if (own)
        atomic_fetch_sub(&own->used[dev], n);
}

size_t shared_others(int dev)
{
    if (!sim_settings.shared)
        return 0;
    if (!rows)
        shared_open(sim_settings.shared);
    return others(dev);
}
