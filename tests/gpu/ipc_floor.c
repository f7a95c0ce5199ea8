/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ipc_floor.c - what the first open of a block of virtual memory has to cost, call by call and without cupool: one
 * process exports memory by a descriptor, a copy of this program asks one of its threads for it and maps it, in the
 * rhythm of ipc_open.c. It prints medians in microseconds.
 *
 *     cc -D_GNU_SOURCE -O2 -I/usr/local/cuda/include -o ipc_floor tests/gpu/ipc_floor.c -lcuda -lpthread
 *     for mib in 2 64; do ./ipc_floor 0 $mib; ./ipc_floor 2000 $mib; done
 *
 * MIB: of the memory. answer: from the request until it has the descriptor; the exporter's thread sleeps in poll
 * meanwhile. NAP: so many microseconds more pass between two rounds: a processor that has slept longer is woken later.
 * The first line says how descriptors of memory can be told apart (docs/ipc.md).
 * spins: the importer looks for the answer instead of sleeping. all: the sum of what an open needs, the close of the
 * descriptor included. drop: the exporter's close of the last descriptor.
 */
#include <cuda.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "../program.h"

#define ROUNDS 51

static size_t size; /* of the memory */

enum part { ANSWER, IMPORT, RESERVE, MAP, ACCESS, RELEASE, CLOSE, ALL, IMPORTERS, EXPORT = IMPORTERS, DROP, PARTS };
static const char *const names[PARTS] = {"answer",  "import", "reserve", "map",    "access",
                                         "release", "close",  "all",     "export", "drop"};

/* A byte, with a descriptor (-1: none). */
static void say(int socket, int fd)
{
    char byte = 'x', room[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec part = {&byte, 1};
    struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1};
    struct cmsghdr *message;

    if (fd >= 0) {
        header.msg_control = room;
        header.msg_controllen = sizeof(room);
        message = CMSG_FIRSTHDR(&header);
        *message =
            (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(fd))};
        memcpy(CMSG_DATA(message), &fd, sizeof(fd));
    }
    OK(sendmsg(socket, &header, MSG_NOSIGNAL) != 1);
}

/* Wait for such a byte; its descriptor, or -1. -2: the other process has ended. */
static int hear(int socket, int spins)
{
    char byte, room[CMSG_SPACE(sizeof(int))];
    struct iovec part = {&byte, 1};
    struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof(room)};
    struct pollfd poll_at = {.fd = socket, .events = POLLIN};
    struct cmsghdr *message;
    ssize_t n;
    int fd = -1;

    while ((n = recvmsg(socket, &header, MSG_DONTWAIT)) < 0)
        if (!spins)
            poll(&poll_at, 1, -1);
    message = n ? CMSG_FIRSTHDR(&header) : NULL;
    if (message)
        memcpy(&fd, CMSG_DATA(message), sizeof(fd));
    return n ? fd : -2;
}

static const CUmemAccessDesc access_of = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
                                          .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};

static void context_make(void)
{
    CUcontext context;

    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
}

/* One open; when each part was over. */
static void open_once(int socket, int spins, double *at)
{
    CUmemGenericAllocationHandle handle;
    CUdeviceptr addr;
    double t = now_us();
    int fd;

    say(socket, -1);
    fd = hear(socket, spins);
    at[ANSWER] = now_us() - t;
    OK(cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    at[IMPORT] = now_us() - t;
    OK(cuMemAddressReserve(&addr, size, 0, 0, 0));
    at[RESERVE] = now_us() - t;
    OK(cuMemMap(addr, size, 0, handle, 0));
    at[MAP] = now_us() - t;
    OK(cuMemSetAccess(addr, size, &access_of, 1));
    at[ACCESS] = now_us() - t;
    OK(cuMemRelease(handle));
    at[RELEASE] = now_us() - t;
    close(fd);
    at[CLOSE] = at[ALL] = now_us() - t;
    OK(cuMemsetD8(addr, 1, size));
    OK(cuCtxSynchronize());
    OK(cuMemUnmap(addr, size));
    OK(cuMemAddressFree(addr, size));
}

static void import(int socket, int go)
{
    double at[IMPORTERS];
    char spins;

    context_make();
    while (read(go, &spins, 1) == 1) {
        open_once(socket, spins, at);
        for (int i = CLOSE; i > ANSWER; i--)
            at[i] -= at[i - 1];
        OK(write(go, at, sizeof(at)) != sizeof(at));
    }
}

static int exported, server_socket;

static void *serve(void *arg)
{
    while (hear(server_socket, 0) != -2)
        say(server_socket, exported);
    return NULL;
}

static void measure(int go, char spins, useconds_t nap)
{
    static double all[PARTS][ROUNDS];
    const CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                            .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                            .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    CUmemGenericAllocationHandle handle;
    double at[IMPORTERS], t;

    OK(cuMemCreate(&handle, size, &properties, 0));
    for (int round = 0; round < ROUNDS; round++) {
        usleep(nap);
        t = now_us();
        OK(cuMemExportToShareableHandle(&exported, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
        all[EXPORT][round] = now_us() - t;
        OK(write(go, &spins, 1) != 1);
        OK(read(go, at, sizeof(at)) != sizeof(at));
        for (int i = 0; i < IMPORTERS; i++)
            all[i][round] = at[i];
        t = now_us();
        close(exported);
        all[DROP][round] = now_us() - t;
    }
    OK(cuMemRelease(handle));
    printf("%6u %6s", (unsigned int)nap, spins ? "yes" : "no");
    for (int i = 0; i < PARTS; i++) {
        qsort(all[i], ROUNDS, sizeof(double), by_value);
        printf(" %8.1f", all[i][ROUNDS / 2]);
    }
    printf("\n");
}

/* Descriptors of two memories can be told apart by their inodes, or by a signal that is set for one of them (cupool's
 * file_mark). And whether a second descriptor of one memory is a copy of the first. */
static void tell_apart(void)
{
    const CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                            .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                            .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    CUmemGenericAllocationHandle handles[2];
    struct stat file[2];
    int fd[3];

    for (int i = 0; i < 3; i++) {
        if (i < 2)
            OK(cuMemCreate(&handles[i], size, &properties, 0));
        OK(cuMemExportToShareableHandle(&fd[i], handles[i % 2], CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
        if (i < 2)
            OK(fstat(fd[i], &file[i]));
    }
    printf("one inode for all: %s; signal set: %s; on another memory's: %d; on another descriptor of this memory: %d\n",
           file[0].st_dev == file[1].st_dev && file[0].st_ino == file[1].st_ino ? "yes" : "no",
           fcntl(fd[0], F_SETSIG, 7) == 0 && fcntl(fd[0], F_GETSIG) == 7 ? "yes" : "no", fcntl(fd[1], F_GETSIG),
           fcntl(fd[2], F_GETSIG));
    for (int i = 0; i < 3; i++)
        close(fd[i]);
    for (int i = 0; i < 2; i++)
        OK(cuMemRelease(handles[i]));
}

int main(int argc, char **argv)
{
    char text[3][16];
    int ask[2], go[2], status = 0;
    pthread_t server;
    pid_t pid;

    size = (size_t)(argc > 2 ? atoi(argv[2]) : 2) << 20;
    if (argc > 3) {
        import(atoi(argv[1]), atoi(argv[3]));
        return 0;
    }
    if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ask) || socketpair(AF_UNIX, SOCK_SEQPACKET, 0, go))
        return 1;
    snprintf(text[0], sizeof(text[0]), "%d", ask[1]);
    snprintf(text[1], sizeof(text[1]), "%zu", size >> 20);
    snprintf(text[2], sizeof(text[2]), "%d", go[1]);
    pid = fork();
    if (pid == 0) {
        close(ask[0]);
        close(go[0]);
        execl("/proc/self/exe", "ipc_floor", text[0], text[1], text[2], (char *)NULL);
        _exit(1);
    }
    close(ask[1]);
    close(go[1]);
    context_make();
    server_socket = ask[0];
    tell_apart();
    OK(pthread_create(&server, NULL, serve, NULL));
    printf("%6s %6s", "nap us", "spins");
    for (int i = 0; i < PARTS; i++)
        printf(" %8s", names[i]);
    printf("\n");
    for (char spins = 0; spins < 2; spins++)
        measure(go[0], spins, argc > 1 ? (useconds_t)atoi(argv[1]) : 0);
    close(go[0]);
    waitpid(pid, &status, 0);
    return status ? 1 : 0;
}
