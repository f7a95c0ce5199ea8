/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ctl_socket.c - see ctl_socket.h.
 *
 * Locking: none. The thread that serves has everything but the socket that rings, whose descriptor is atomic.
 */
#include "base/ctl_socket.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/descriptor.h"

/* The pause, in nanoseconds, after a connection that could not be taken: one that waits for a free descriptor is
 * reported by every poll. */
#define PAUSE_NS 100000000u

/* A descriptor of ours, which the program may close. */
struct file {
    int fd; /* -1: not open */
    struct stat stat;
};

struct peer {
    struct file file;
    uint64_t since;
};

static struct {
    struct file listening;
    struct peer peers[CTL_PEERS];
    uint64_t pause; /* no connection is taken until then, or 0 */
    int answering;  /* the peer whose request was read last */
    struct sockaddr_un at;
    /* One of two sockets, which is polled. A pipe would raise SIGPIPE where the program has closed one end, and an
     * eventfd could not be told from one of the program's. */
    struct file woken;
    struct stat wake_stat; /* of the other socket; written before wake */
    atomic_int wake;       /* -1: not open */
} ctl = {
    .listening = {.fd = -1}, .woken = {.fd = -1}, .peers = {[0 ... CTL_PEERS - 1] = {.file = {.fd = -1}}}, .wake = -1};

static bool file_is_open(struct file *file)
{
    if (file->fd >= 0 && file_state(file->fd, &file->stat) == -EBADF)
        file->fd = -1;
    return file->fd >= 0;
}

static void file_end(struct file *file)
{
    if (file_is_open(file))
        file_close(file->fd, &file->stat, /* done: */ false);
    file->fd = -1;
}

/* Take a new descriptor over. 0, or an errno value. */
static int file_begin(struct file *file, int fd)
{
    if (fd < 0)
        return errno;
    fd = file_aside(fd);
    if (fstat(fd, &file->stat)) {
        const int error = errno;

        close(fd);
        return error;
    }
    file->fd = fd;
    return 0;
}

static int folder_check(const char *folder, const char **ret_why)
{
    struct stat stat;

    *ret_why = NULL;
    if (mkdir(folder, 0700) && errno != EEXIST)
        return errno;
    if (lstat(folder, &stat))
        return errno;
    if (!S_ISDIR(stat.st_mode))
        *ret_why = "it is no folder";
    else if (stat.st_uid != geteuid())
        *ret_why = "the folder is another user's";
    else if (stat.st_mode & 077)
        *ret_why = "other users may enter the folder (its mode has to be 0700)";
    return *ret_why ? EACCES : 0;
}

/* The socket's name, with the folder's whole path: the program may change its directory before the file is removed. */
static int name(const char *folder)
{
    char path[PATH_MAX];
    int len;

    if (!realpath(folder, path))
        return errno;
    ctl.at.sun_family = AF_UNIX;
    len = snprintf(ctl.at.sun_path, sizeof(ctl.at.sun_path), "%s/cupool-%d.sock", path, (int)getpid());
    return len < (int)sizeof(ctl.at.sun_path) ? 0 : ENAMETOOLONG;
}

/* True if another process listens at the name: one of another container, which has this number there. The socket of a
 * process of this number that was killed may still be open in a child of it. */
static bool is_taken(void)
{
    const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    struct ucred peer = {0};
    socklen_t len = sizeof(peer);
    bool taken = false;

    if (fd < 0)
        return false;
    if (connect(fd, (const struct sockaddr *)&ctl.at, sizeof(ctl.at)) == 0 || errno == EAGAIN)
        taken = getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) || peer.pid != getpid();
    close(fd);
    return taken;
}

/* The socket has its name only once it listens: cupool-ctl removes a socket at which nobody does. The name may be
 * there, of a process of this number that was killed. */
static int listen_at(const char *folder, const char **ret_why)
{
    struct sockaddr_un first;
    int error = name(folder);

    if (!error && is_taken()) {
        *ret_why = "a process of another container has this one's number, and its socket is there";
        error = EADDRINUSE;
    }
    if (!error)
        error = file_begin(&ctl.listening, socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (error)
        return error;
    first = ctl.at;
    memcpy(strrchr(first.sun_path, '.'), ".new", sizeof(".new"));
    unlink(first.sun_path);
    if (bind(ctl.listening.fd, (const struct sockaddr *)&first, sizeof(first)))
        return errno;
    if (listen(ctl.listening.fd, CTL_PEERS) == 0 && rename(first.sun_path, ctl.at.sun_path) == 0)
        return 0;
    error = errno;
    unlink(first.sun_path);
    return error;
}

static int wake_open(void)
{
    int ends[2], error;
    struct file other;

    if (socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends))
        return errno;
    error = file_begin(&ctl.woken, ends[0]);
    if (!error)
        error = file_begin(&other, ends[1]);
    if (error) /* the first one is closed by ctl_socket_close */
        return error;
    ctl.wake_stat = other.stat;
    atomic_store(&ctl.wake, other.fd);
    return 0;
}

int ctl_socket_open(const char *folder, const char **ret_why)
{
    const int saved = errno;
    int cancel, error;

    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
    error = folder_check(folder, ret_why);
    if (!error)
        error = wake_open();
    if (!error)
        error = listen_at(folder, ret_why);
    if (error)
        ctl_socket_close(/* forked: */ false);
    pthread_setcancelstate(cancel, NULL);
    errno = saved;
    return -error;
}

void ctl_socket_ring(void)
{
    const int fd = atomic_load(&ctl.wake), saved = errno;

    if (fd >= 0 && file_state(fd, &ctl.wake_stat) != -EBADF)
        /* The system call itself: send() would be a cancellation point. */
        syscall(SYS_sendto, fd, "", (size_t)1, MSG_DONTWAIT | MSG_NOSIGNAL, NULL, (socklen_t)0);
    errno = saved;
}

unsigned int ctl_socket_listen(struct pollfd *fds, unsigned int max)
{
    unsigned int count = 0;

    if (!file_is_open(&ctl.listening) || !file_is_open(&ctl.woken) || max < CTL_PEERS + 2)
        return 0;
    fds[count++] = (struct pollfd){.fd = ctl.woken.fd, .events = POLLIN};
    if (!ctl.pause)
        fds[count++] = (struct pollfd){.fd = ctl.listening.fd, .events = POLLIN};
    for (unsigned int i = 0; i < CTL_PEERS; i++)
        if (file_is_open(&ctl.peers[i].file))
            fds[count++] = (struct pollfd){.fd = ctl.peers[i].file.fd, .events = POLLIN};
    return count;
}

static bool is_allowed(int fd)
{
    struct ucred peer;
    socklen_t len = sizeof(peer);

    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) == 0 && len == sizeof(peer) &&
           (peer.uid == geteuid() || peer.uid == 0);
}

/* A place for one more peer: an unused one, or the oldest peer's. */
static struct peer *place(void)
{
    struct peer *oldest = &ctl.peers[0];

    for (unsigned int i = 0; i < CTL_PEERS; i++) {
        if (ctl.peers[i].file.fd < 0)
            return &ctl.peers[i];
        if (ctl.peers[i].since < oldest->since)
            oldest = &ctl.peers[i];
    }
    file_end(&oldest->file);
    return oldest;
}

static void peers_accept(uint64_t now)
{
    if (now < ctl.pause)
        return;
    ctl.pause = 0;
    for (unsigned int i = 0; i < CTL_PEERS && file_is_open(&ctl.listening); i++) {
        const int fd = accept4(ctl.listening.fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        struct peer *peer;

        if (fd < 0) {
            ctl.pause = errno == EAGAIN ? 0 : now + PAUSE_NS;
            return;
        }
        if (!is_allowed(fd)) {
            close(fd);
            continue;
        }
        peer = place();
        if (file_begin(&peer->file, fd) == 0)
            peer->since = now;
    }
}

/* Read a peer's request. False: it has sent none, or none that is valid; then its connection has ended. */
static bool peer_read(struct peer *peer, uint64_t now, struct ctl_request *ret_request)
{
    /* Descriptors that come along are closed by the kernel: there is no room for control data. With MSG_TRUNC the
     * result is the length that was sent. */
    const ssize_t n = recv(peer->file.fd, ret_request, sizeof(*ret_request), MSG_DONTWAIT | MSG_TRUNC);

    if (n == (ssize_t)sizeof(*ret_request) && ret_request->magic == CTL_MAGIC && ret_request->version == CTL_VERSION)
        return true;
    if (n >= 0 || (errno != EAGAIN && errno != EINTR) || now - peer->since >= CTL_PATIENCE_NS)
        file_end(&peer->file);
    return false;
}

bool ctl_socket_read(uint64_t now, struct ctl_request *ret_request)
{
    char rings[64];

    while (file_is_open(&ctl.woken) && recv(ctl.woken.fd, rings, sizeof(rings), MSG_DONTWAIT) > 0)
        ;
    peers_accept(now);
    for (unsigned int i = 0; i < CTL_PEERS; i++) {
        if (file_is_open(&ctl.peers[i].file) && peer_read(&ctl.peers[i], now, ret_request)) {
            ctl.answering = (int)i;
            return true;
        }
    }
    return false;
}

bool ctl_socket_is_awaited(void)
{
    struct pollfd poll_peer = {.fd = ctl.peers[ctl.answering].file.fd};

    return file_is_open(&ctl.peers[ctl.answering].file) && poll(&poll_peer, 1, 0) == 0;
}

bool ctl_socket_reply(int rc, const char *text, size_t size)
{
    struct peer *peer = &ctl.peers[ctl.answering];
    struct ctl_reply head = {.magic = CTL_MAGIC, .version = CTL_VERSION, .rc = rc, .size = (uint32_t)size};
    struct iovec parts[] = {{&head, sizeof(head)}, {(void *)(uintptr_t)text, size}};
    const struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    bool sent = false;

    if (file_is_open(&peer->file))
        sent = sendmsg(peer->file.fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0;
    file_end(&peer->file);
    return sent;
}

uint64_t ctl_socket_due(void)
{
    uint64_t due = ctl.pause ? ctl.pause : UINT64_MAX;

    for (unsigned int i = 0; i < CTL_PEERS; i++)
        if (ctl.peers[i].file.fd >= 0 && ctl.peers[i].since + CTL_PATIENCE_NS < due)
            due = ctl.peers[i].since + CTL_PATIENCE_NS;
    return due;
}

void ctl_socket_close(bool forked)
{
    const int wake = atomic_exchange(&ctl.wake, -1);

    for (unsigned int i = 0; i < CTL_PEERS; i++)
        file_end(&ctl.peers[i].file);
    if (file_is_open(&ctl.listening) && !forked)
        unlink(ctl.at.sun_path);
    file_end(&ctl.listening);
    file_end(&ctl.woken);
    if (wake >= 0)
        file_close(wake, &ctl.wake_stat, /* done: */ false);
}
