/* SPDX-License-Identifier: Apache-2.0 */
/*
 * meet.h - rank 0's bytes for all ranks over TCP, where torchrun's environment says: MASTER_ADDR and MASTER_PORT.
 *
 * Here: the part of job.h for processes that have neither MPI nor a file. Rank 0 listens on that address alone
 * and answers each rank once, if it says the right job, number of ranks and rank. Where torchrun's own store listens
 * on that port, the next one is taken.
 *
 * Not here: protection against other users of the machine. NCCL's own connections are not protected either.
 *
 * Threads: the main one only.
 */
#ifndef EXAMPLES_MEET_H
#define EXAMPLES_MEET_H

#include <netdb.h>
#include <netinet/in.h>
#include <stdint.h>
#include <sys/socket.h>

/* The first thing that a rank sends. */
struct meet_hello {
    uint64_t job;
    int32_t ranks, rank;
};

static uint64_t meet_job(void)
{
    const char *name = getenv("TORCHELASTIC_RUN_ID");
    uint64_t key = 0x6d656574;

    for (; name && *name; name++)
        key = job_mix(key + (unsigned char)*name);
    return key;
}

static struct addrinfo *meet_where(void)
{
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM}, *found;
    const char *host = getenv("MASTER_ADDR"), *port = getenv("MASTER_PORT"),
               *store = getenv("TORCHELASTIC_USE_AGENT_STORE");
    char number[16];
    int error;

    (void)snprintf(number, sizeof(number), "%d", atoi(port ? port : "29500") + (store && strcmp(store, "True") == 0));
    error = getaddrinfo(host, number, &hints, &found);
    if (error)
        job_fail(__FILE__, __LINE__, host, gai_strerror(error));
    return found;
}

/* All of it, or -1. */
static int meet_bytes(int fd, void *bytes, size_t size, int out)
{
    char *at = (char *)bytes;

    while (size > 0) {
        ssize_t n = out ? send(fd, at, size, MSG_NOSIGNAL) : recv(fd, at, size, 0);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return -1;
        at += n;
        size -= (size_t)n;
    }
    return 0;
}

/* A connection that is not from a rank of this job is closed, at the latest after five seconds. */
static void meet_serve(int listening, void *bytes, size_t size)
{
    static const struct timeval patience = {.tv_sec = 5};
    char *met = (char *)calloc((size_t)job.ranks, 1);

    if (!met)
        job_fail(__FILE__, __LINE__, "calloc", strerror(errno));
    for (int left = job.ranks - 1; left > 0;) {
        struct meet_hello hello;
        int fd = accept(listening, NULL, NULL);

        if (fd < 0)
            job_fail(__FILE__, __LINE__, "accept", strerror(errno));
        (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
        if (meet_bytes(fd, &hello, sizeof(hello), 0) == 0 && hello.job == meet_job() && hello.ranks == job.ranks &&
            hello.rank > 0 && hello.rank < job.ranks && !met[hello.rank] && meet_bytes(fd, bytes, size, 1) == 0) {
            met[hello.rank] = 1;
            left--;
        }
        (void)close(fd);
    }
    free(met);
}

static void meet_first(const struct addrinfo *where, void *bytes, size_t size)
{
    int yes = 1, fd = socket(where->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd >= 0)
        (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    if (fd < 0 || bind(fd, where->ai_addr, where->ai_addrlen) || listen(fd, job.ranks))
        job_fail(__FILE__, __LINE__, "listen on MASTER_ADDR", strerror(errno));
    meet_serve(fd, bytes, size);
    (void)close(fd);
}

static void meet_other(const struct addrinfo *where, void *bytes, size_t size)
{
    static const struct timespec pause = {0, 10000000};
    struct meet_hello hello = {meet_job(), job.ranks, job.rank};
    double start = job_now();
    int fd;

    /* Rank 0 may not listen yet. */
    while ((fd = socket(where->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0)) >= 0 &&
           connect(fd, where->ai_addr, where->ai_addrlen)) {
        if (errno != ECONNREFUSED || job_now() - start > JOB_PATIENCE)
            job_fail(__FILE__, __LINE__, "connect to MASTER_ADDR", strerror(errno));
        (void)close(fd);
        (void)nanosleep(&pause, NULL);
    }
    if (fd < 0 || meet_bytes(fd, &hello, sizeof(hello), 1) || meet_bytes(fd, bytes, size, 0))
        job_fail(__FILE__, __LINE__, "MASTER_ADDR", "rank 0 did not answer: another job, or this rank is there twice?");
    (void)close(fd);
}

static void meet_share(void *bytes, size_t size)
{
    struct addrinfo *where = meet_where();

    if (job.rank == 0)
        meet_first(where, bytes, size);
    else
        meet_other(where, bytes, size);
    freeaddrinfo(where);
}

#endif
