/* SPDX-License-Identifier: Apache-2.0 */
/*
 * job.h - what the examples share: which rank this is, rank 0's bytes for everybody, and errors that end the program.
 *
 * Here: functions for one main file, static so that an example is still built by one line. With -DHAVE_MPI, and
 * started by a launcher of MPI, ranks and bytes come from MPI. Else ranks come from the environment, as torchrun and
 * srun set it, and bytes go through a file that all ranks can read, or without one over TCP where torchrun's
 * environment says (meet.h).
 *
 * Not here: part of the library, which no program needs to know of.
 *
 * Threads: the main one only.
 */
#ifndef EXAMPLES_JOB_H
#define EXAMPLES_JOB_H

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#ifdef HAVE_MPI
#include <mpi.h>
#endif

#define JOB_PATIENCE 60 /* seconds to wait for rank 0's file */
#define JOB_UNUSED   __attribute__((unused))

/* The statement that failed, in words, and the end. */
#define JOB_CHECK(call, error_text)                                                                                    \
    do {                                                                                                               \
        __typeof__(call) error_ = (call);                                                                              \
        if (error_)                                                                                                    \
            job_fail(__FILE__, __LINE__, #call, error_text(error_));                                                   \
    } while (0)
#define CU(call) JOB_CHECK(call, cudaGetErrorString)
#define NC(call) JOB_CHECK(call, ncclGetErrorString)

static struct {
    int rank, ranks;
    int local; /* rank among those of this host */
    int mpi;   /* is MPI in use? */
} job = {.ranks = 1};

JOB_UNUSED __attribute__((noreturn)) static void job_fail(const char *file, int line, const char *what, const char *why)
{
    fprintf(stderr, "rank %d: %s:%d: %s: %s\n", job.rank, file, line, what, why);
    exit(1);
}

JOB_UNUSED static double job_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Scatters a number's bits: for data in which nothing repeats, and for digests. */
JOB_UNUSED static uint64_t job_mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static int job_number(const char *const *names, int fallback)
{
    for (; *names; names++) {
        const char *value = getenv(*names);

        if (value)
            return atoi(value);
    }
    return fallback;
}

#ifdef HAVE_MPI
/* MPI_Init alone, without a launcher, may want what is not installed. */
static int job_mpi_launched(void)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE", "PMIX_RANK",
                                        "MV2_COMM_WORLD_SIZE"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (getenv(names[i]))
            return 1;
    return 0;
}

static void job_mpi_init(int *argc, char ***argv)
{
    MPI_Comm host;

    MPI_Init(argc, argv);
    job.mpi = 1;
    MPI_Comm_rank(MPI_COMM_WORLD, &job.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &job.ranks);
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, job.rank, MPI_INFO_NULL, &host);
    MPI_Comm_rank(host, &job.local);
    MPI_Comm_free(&host);
}
#endif

static void job_init(int *argc, char ***argv)
{
    static const char *const ranks[] = {"WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS", NULL},
                             *const rank[] = {"RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID", NULL},
                             *const local[] = {"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID",
                                               "SLURM_LOCALID", NULL};

#ifdef HAVE_MPI
    if (job_mpi_launched()) {
        job_mpi_init(argc, argv);
        return;
    }
#else
    (void)argc;
    (void)argv;
#endif
    job.rank = job_number(rank, 0);
    job.ranks = job_number(ranks, 1);
    job.local = job_number(local, job.rank);
}

static void job_fini(void)
{
#ifdef HAVE_MPI
    if (job.mpi)
        MPI_Finalize();
#endif
}

/* Whole or not at all, because others look for it. It must not be there yet: it would be another job's. */
JOB_UNUSED static void job_file_write(const char *path, const void *bytes, size_t size)
{
    char made[4096];
    int fd;

    if (snprintf(made, sizeof(made), "%s.new", path) >= (int)sizeof(made))
        job_fail(__FILE__, __LINE__, path, strerror(ENAMETOOLONG));
    fd = open(made, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0 || write(fd, bytes, size) != (ssize_t)size || close(fd) || link(made, path) || unlink(made))
        job_fail(__FILE__, __LINE__, path, strerror(errno));
}

JOB_UNUSED static void job_file_read(const char *path, void *bytes, size_t size)
{
    static const struct timespec pause = {0, 10000000};
    double start = job_now();
    int fd;

    while ((fd = open(path, O_RDONLY | O_CLOEXEC)) < 0) {
        if (errno != ENOENT || job_now() - start > JOB_PATIENCE)
            job_fail(__FILE__, __LINE__, path, strerror(errno));
        (void)nanosleep(&pause, NULL);
    }
    if (read(fd, bytes, size) != (ssize_t)size || close(fd))
        job_fail(__FILE__, __LINE__, path, "not what rank 0 wrote");
}

#include "meet.h"

/* Every rank gets the bytes that rank 0 has there. file: where it goes round without MPI; rank 0 removes it when all
 * have met. */
JOB_UNUSED static void job_share(void *bytes, size_t size, const char *file)
{
    if (job.ranks == 1)
        return;
#ifdef HAVE_MPI
    if (job.mpi) {
        MPI_Bcast(bytes, (int)size, MPI_BYTE, 0, MPI_COMM_WORLD);
        return;
    }
#endif
    if (!file && getenv("MASTER_ADDR")) {
        meet_share(bytes, size);
        return;
    }
    if (!file)
        job_fail(__FILE__, __LINE__, "ranks without MPI", "need MASTER_ADDR or --id FILE, where they meet");
    if (job.rank == 0)
        job_file_write(file, bytes, size);
    else
        job_file_read(file, bytes, size);
}

#ifdef NCCL_MAJOR /* nccl.h was included before */
/* The communicator of all ranks. */
static ncclComm_t job_comm(const char *file)
{
    ncclUniqueId id;
    ncclComm_t comm;

    if (job.rank == 0)
        NC(ncclGetUniqueId(&id));
    job_share(&id, sizeof(id), file);
    NC(ncclCommInitRank(&comm, job.ranks, id, job.rank));
    if (file && job.rank == 0 && job.ranks > 1 && !job.mpi)
        (void)unlink(file);
    return comm;
}
#endif

#endif
