/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ranks.c - MPI, as far as the checkpointing example needs it.
 *
 * Here: numbers of all ranks brought together. Without MPI there is one rank.
 *
 * Not here: called by writer threads, but for ranks_now and ranks_fail: MPI is not initialised for that.
 *
 * Threads: the training one.
 */
#include "../job.h"

#include "checkpoint.h"

int rank, ranks = 1, rank_device;

void ranks_begin(int *argc, char ***argv)
{
    job_init(argc, argv);
    if (job.ranks > 1 && !job.mpi)
        job_fail(__FILE__, __LINE__, "several ranks", "need MPI: a program built with it, and mpirun");
    rank = job.rank;
    ranks = job.ranks;
}

void ranks_device_choose(void)
{
    int devices;

    CU(cudaGetDeviceCount(&devices));
    rank_device = job.local % devices;
    CU(cudaSetDevice(rank_device));
}

void ranks_end(void)
{
    job_fini();
}

double ranks_now(void)
{
    return job_now();
}

void ranks_fail(const char *file, int line, const char *what, const char *why)
{
    job_fail(file, line, what, why);
}

long ranks_least(long value)
{
#ifdef HAVE_MPI
    if (job.mpi)
        MPI_Allreduce(MPI_IN_PLACE, &value, 1, MPI_LONG, MPI_MIN, MPI_COMM_WORLD);
#endif
    return value;
}

double ranks_largest(double value)
{
#ifdef HAVE_MPI
    if (job.mpi)
        MPI_Allreduce(MPI_IN_PLACE, &value, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
#endif
    return value;
}

long ranks_first(long value)
{
#ifdef HAVE_MPI
    if (job.mpi)
        MPI_Bcast(&value, 1, MPI_LONG, 0, MPI_COMM_WORLD);
#endif
    return value;
}

void ranks_gather(uint64_t value, uint64_t *all)
{
#ifdef HAVE_MPI
    if (job.mpi) {
        MPI_Gather(&value, 1, MPI_UINT64_T, all, 1, MPI_UINT64_T, 0, MPI_COMM_WORLD);
        return;
    }
#endif
    all[0] = value;
}
