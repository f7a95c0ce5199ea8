/* SPDX-License-Identifier: Apache-2.0 */
/*
 * neighbour.c - a process that shares its card with others. It reads commands from stdin, a line each, and answers each
 * with a line:
 *
 *   alloc BYTES    the error of cudaMalloc; the block is kept
 *   plain BYTES    the same, of cudaMallocAsync, which no pool serves
 *   free           the error of cudaFree of the newest block
 *   device N       makes this device current
 *   busy MS        work of so many milliseconds for the device, of which the library is not told
 *   fds            the number of open descriptors
 *   fork           a child that goes on and reads the commands in place of this process, which waits for it
 *   closefrom FD   close every descriptor from FD on
 *   sockets N      N descriptors of sockets of its own, each with a message in it
 *   messages       the number of those messages that are still there
 *   exit           end, but for a last exit handler, which waits for the end of stdin
 *
 * It ends with stdin.
 */
#include <cuda_runtime_api.h>
#include <sys/socket.h>

#include "descriptors.h"

#define BLOCKS_MAX  64
#define SOCKETS_MAX 400

static void *blocks[BLOCKS_MAX];
static int n;
static int sockets[SOCKETS_MAX], sockets_n;
static bool lingers;

static void nap(void *ms)
{
    const struct timespec time = {.tv_nsec = (long)(intptr_t)ms * 1000000};

    nanosleep(&time, NULL);
}

/* Pairs of sockets: each end has sent the other one a message. */
static long sockets_make(int count)
{
    for (; sockets_n < count && sockets_n < SOCKETS_MAX; sockets_n += 2) {
        int *pair = &sockets[sockets_n];

        if (socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) || send(pair[0], "mine", 4, 0) != 4 ||
            send(pair[1], "mine", 4, 0) != 4)
            return -1;
    }
    return 0;
}

static long messages(void)
{
    char text[8];
    long count = 0;

    for (int i = 0; i < sockets_n; i++)
        count += recv(sockets[i], text, sizeof(text), MSG_PEEK | MSG_DONTWAIT) == 4;
    return count;
}

/* Registered first, so it runs last: after the library's. */
static void linger(void)
{
    while (lingers && getchar() != EOF)
        ;
}

static long command(const char *word, size_t bytes)
{
    if (strcmp(word, "alloc") == 0 || strcmp(word, "plain") == 0) {
        const int rc = (int)(*word == 'a' ? cudaMalloc(&blocks[n], bytes) : cudaMallocAsync(&blocks[n], bytes, NULL));

        n += rc == 0 && n < BLOCKS_MAX - 1;
        return rc;
    }
    if (strcmp(word, "free") == 0)
        return n ? (long)cudaFree(blocks[--n]) : -1;
    if (strcmp(word, "device") == 0)
        return (long)cudaSetDevice((int)bytes);
    if (strcmp(word, "busy") == 0)
        return (long)cudaLaunchHostFunc(NULL, nap, (void *)(intptr_t)bytes);
    if (strcmp(word, "fds") == 0)
        return descriptors();
    if (strcmp(word, "closefrom") == 0)
        return syscall(SYS_close_range, (unsigned int)bytes, ~0u, 0u);
    if (strcmp(word, "sockets") == 0)
        return sockets_make((int)bytes);
    if (strcmp(word, "messages") == 0)
        return messages();
    if (strcmp(word, "exit") == 0) {
        lingers = true;
        exit(0);
    }
    if (strcmp(word, "fork") == 0 && fork()) {
        wait(NULL);
        exit(0);
    }
    return 0;
}

int main(void)
{
    char line[256], word[32];
    unsigned long long bytes;

    atexit(linger);
    if (cudaFree(NULL))
        return 3;
    while (fgets(line, sizeof(line), stdin)) {
        bytes = 0;
        if (sscanf(line, "%31s %llu", word, &bytes) < 1)
            continue;
        printf("%ld\n", command(word, (size_t)bytes));
        fflush(stdout);
    }
    return 0;
}
