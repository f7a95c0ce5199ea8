/* SPDX-License-Identifier: Apache-2.0 */
/* ipc_socket.c - see ipc_socket.h. No locks and no state. */
#include "base/ipc_socket.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/descriptor.h"
#include "clock.h"
#include "hash.h"

/* Connections that may wait to be taken. */
#define BACKLOG 64
/* The pause, in nanoseconds, before a station whose connections nobody takes is tried again. */
#define AGAIN_NS 1000000u

void ipc_name_make(struct ipc_name *ret_name)
{
    uint64_t word[2];

    if (getrandom(ret_name->bytes, sizeof(ret_name->bytes), GRND_NONBLOCK) == (ssize_t)sizeof(ret_name->bytes))
        return;
    /* Before the kernel has gathered chance: unique, if not secret. */
    word[0] = hash_of(now_ns() ^ (uint64_t)(uintptr_t)ret_name);
    word[1] = hash_of(word[0] ^ (uint64_t)getpid() << 32);
    memcpy(ret_name->bytes, word, sizeof(word));
}

static socklen_t address_of(struct sockaddr_un *address, const struct ipc_name *name)
{
    char hex[2 * IPC_NAME_BYTES + 1];
    int len;

    for (size_t i = 0; i < 2 * sizeof(name->bytes); i++)
        hex[i] = "0123456789abcdef"[name->bytes[i / 2] >> (i % 2 ? 0 : 4) & 15];
    hex[2 * IPC_NAME_BYTES] = '\0';
    memset(address, 0, sizeof(*address));
    address->sun_family = AF_UNIX;
    /* The first byte is 0: the abstract namespace. */
    len = snprintf(address->sun_path + 1, sizeof(address->sun_path) - 1, "cupool-ipc-%d-%s", IPC_VERSION, hex);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)len);
}

int ipc_keep(int fd, struct ipc_descriptor *ret)
{
    ret->fd = -1;
    if (fd < 0 || fstat(fd, &ret->file)) /* not asked for -1, which would change errno */
        return -EIO;
    ret->fd = fd;
    ret->mark = file_mark_of(fd);
    return 0;
}

static int socket_make(struct ipc_descriptor *ret)
{
    const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    ret->fd = -1;
    return fd < 0 ? -errno : ipc_keep(file_aside(fd), ret);
}

int ipc_listen(struct ipc_descriptor *ret_station, struct ipc_name *ret_name)
{
    struct sockaddr_un address;
    socklen_t len;
    int rc = socket_make(ret_station);

    if (rc)
        return rc;
    ipc_name_make(ret_name);
    len = address_of(&address, ret_name);
    if (bind(ret_station->fd, (const struct sockaddr *)&address, len) == 0 && listen(ret_station->fd, BACKLOG) == 0)
        return 0;
    rc = -errno;
    ipc_leave(ret_station);
    return rc;
}

/* The process at the other end. False: it is another user's. */
static bool peer_is_own(int fd, int *ret_pid)
{
    struct ucred peer = {0};
    socklen_t len = sizeof(peer);

    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) || len != sizeof(peer))
        return false;
    *ret_pid = peer.pid;
    return peer.uid == geteuid();
}

int ipc_accept(const struct ipc_descriptor *station, struct ipc_descriptor *ret_connection, int *ret_pid)
{
    const int fd = accept4(station->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

    ret_connection->fd = -1;
    if (fd < 0)
        return errno == ECONNABORTED || errno == EINTR ? -EPERM : -errno;
    if (peer_is_own(fd, ret_pid) && *ret_pid > 0)
        return ipc_keep(file_aside(fd), ret_connection);
    close(fd);
    return -EPERM;
}

int ipc_connect(const struct ipc_name *name, uint64_t limit, struct ipc_descriptor *ret_connection)
{
    struct sockaddr_un address;
    const socklen_t len = address_of(&address, name);
    int rc = socket_make(ret_connection), pid;

    if (rc)
        return rc;
    /* With no room for one more connection the kernel says EAGAIN. */
    while ((rc = connect(ret_connection->fd, (const struct sockaddr *)&address, len) ? -errno : 0) == -EAGAIN ||
           rc == -EINTR) {
        if (now_ns() >= limit) {
            rc = -ETIMEDOUT;
            break;
        }
        nap_ns(AGAIN_NS);
    }
    if (!rc && !peer_is_own(ret_connection->fd, &pid))
        rc = -EPERM;
    if (rc)
        ipc_leave(ret_connection);
    return rc;
}

bool ipc_is_open(const struct ipc_descriptor *descriptor)
{
    return descriptor->fd >= 0 && file_state(descriptor->fd, &descriptor->file) != -EBADF &&
           (!descriptor->mark || file_mark_of(descriptor->fd) == descriptor->mark);
}

void ipc_end(struct ipc_descriptor *connection)
{
    if (ipc_is_open(connection))
        shutdown(connection->fd, SHUT_RDWR);
    ipc_leave(connection);
}

void ipc_leave(struct ipc_descriptor *descriptor)
{
    if (ipc_is_open(descriptor))
        file_drop(descriptor->fd);
    descriptor->fd = -1;
}

union control {
    char room[CMSG_SPACE(sizeof(int))];
    struct cmsghdr align;
};

int ipc_send(const struct ipc_descriptor *connection, const void *data, size_t len, int fd)
{
    struct iovec part = {(void *)(uintptr_t)data, len};
    struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1};
    union control control = {0};
    struct cmsghdr *message;

    if (!ipc_is_open(connection))
        return -EBADF;
    if (fd >= 0) {
        header.msg_control = &control;
        header.msg_controllen = sizeof(control);
        message = CMSG_FIRSTHDR(&header);
        *message =
            (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(fd))};
        memcpy(CMSG_DATA(message), &fd, sizeof(fd));
    }
    if (sendmsg(connection->fd, &header, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)len)
        return 0;
    return errno == EINTR ? -EAGAIN : -errno;
}

static int wait_for(const struct ipc_descriptor *connection, short events, uint64_t limit)
{
    struct pollfd poll = {.fd = connection->fd, .events = events};
    uint64_t now;

    while ((now = now_ns()) < limit) {
        const struct timespec rest = {(time_t)((limit - now) / 1000000000), (long)((limit - now) % 1000000000)};
        int n;

        if (!ipc_is_open(connection))
            return -EBADF;
        n = ppoll(&poll, 1, &rest, NULL);
        if (n > 0)
            return 0;
        if (n < 0 && errno != EINTR)
            return -errno;
    }
    return -ETIMEDOUT;
}

int ipc_send_by(const struct ipc_descriptor *connection, const void *data, size_t len, uint64_t limit)
{
    int rc;

    while ((rc = ipc_send(connection, data, len, -1)) == -EAGAIN)
        if ((rc = wait_for(connection, POLLOUT, limit)))
            break;
    return rc;
}

int ipc_wait(const struct ipc_descriptor *connection, uint64_t limit)
{
    return wait_for(connection, POLLIN, limit);
}

/* The one descriptor of a message; any others are closed. */
static int descriptor_of(struct msghdr *header)
{
    int fd = -1;

    for (struct cmsghdr *message = CMSG_FIRSTHDR(header); message; message = CMSG_NXTHDR(header, message)) {
        if (message->cmsg_level != SOL_SOCKET || message->cmsg_type != SCM_RIGHTS)
            continue;
        for (size_t at = 0; CMSG_LEN(at + sizeof(int)) <= message->cmsg_len; at += sizeof(int)) {
            int other;

            memcpy(&other, CMSG_DATA(message) + at, sizeof(other));
            if (fd < 0)
                fd = other;
            else
                close(other);
        }
    }
    return fd;
}

ssize_t ipc_receive(const struct ipc_descriptor *connection, void *data, size_t len, int *ret_fd)
{
    union control control;
    struct iovec part = {data, len};
    struct msghdr header = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
    ssize_t n;

    *ret_fd = -1;
    if (!ipc_is_open(connection))
        return -EBADF;
    /* With MSG_TRUNC the result is the length that was sent. */
    n = recvmsg(connection->fd, &header, MSG_TRUNC | MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (n < 0)
        return errno == EINTR ? -EAGAIN : -errno;
    *ret_fd = descriptor_of(&header);
    /* One was sent, and this process may have no more. */
    return *ret_fd < 0 && header.msg_flags & MSG_CTRUNC ? -EMFILE : n;
}
