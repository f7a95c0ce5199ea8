/* SPDX-License-Identifier: Apache-2.0 */
/* sweep_system.c - see sweep_system.h. */
#include "sweep_system.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "wrapped.h"

#define FDS_MAX 1024
/* The ways to fail that are no errno values. */
#define NO_PID       (-3)
#define TRUNCATED    (-4)
#define OTHER_TYPE   (-5)
#define OWN_PID      (-6)
#define PID_ONE      (-7)
#define OTHER_LEVEL  (-8)
#define OTHER_LENGTH (-9)
#define NO_CONTROL   (-10)
#define ROOT         (-11)
/* The user of every process. */
#define USER 1000

struct system_state sys = {.ns = 1000000000};

static int names[FDS_MAX], names_count, open_count;

const char *system_name(int fd)
{
    static char texts[8][16];
    static unsigned int next;
    char *text = texts[next++ % 8];

    if (fd < 0 || fd >= FDS_MAX || !names[fd])
        snprintf(text, sizeof(texts[0]), fd < 0 ? "none" : "unknown");
    else
        snprintf(text, sizeof(texts[0]), "%s%d", fd < 200 ? "low" : "high", names[fd]);
    return text;
}

int __real_close(int fd);

int system_opened(int fd)
{
    if (fd < 0 || fd >= FDS_MAX || !sweep_on)
        return fd;
    if (sweep_is_zero() && fd) {
        dup3(fd, 0, O_CLOEXEC);
        __real_close(fd);
        fd = 0;
    }
    names[fd] = ++names_count;
    open_count++;
    sweep_note("-> %s", system_name(fd));
    return fd;
}

int __real_fcntl64(int fd, int command, ...);

int system_given(int least)
{
    const bool was_on = sweep_on;
    int fd = __real_fcntl64(STDERR_FILENO, F_DUPFD_CLOEXEC, least);

    sweep_on = true;
    fd = system_opened(fd);
    sweep_on = was_on;
    return fd;
}

unsigned int system_descriptors(void)
{
    return (unsigned int)open_count;
}

/* An address as the kernel gets it; what is noted is the library's. */
static socklen_t address_of(struct sockaddr_un *to, const struct sockaddr *from, socklen_t len)
{
    memset(to, 0, sizeof(*to));
    memcpy(to, from, len < sizeof(*to) ? len : sizeof(*to));
    if (len <= sizeof(sa_family_t) || to->sun_path[0]) {
        sweep_note("address of %u bytes, family %d, %s", (unsigned int)len, to->sun_family,
                   len > sizeof(sa_family_t) ? strrchr(to->sun_path, '.') : "no name");
        return len;
    }
    if (memcmp(to->sun_path + 1, "cupool-", 7) != 0)
        return len;
    sweep_note("address of %u bytes, family %d, %.*s", (unsigned int)len, to->sun_family,
               system_chance_refused ? 13 : (int)len - 3, to->sun_path + 1);
    snprintf(to->sun_path + len - 2, sizeof(to->sun_path) - len, "=%07d", (int)getpid() % 10000000);
    return len + 8;
}

/* The library's address again. */
static void address_back(struct sockaddr_un *at, socklen_t *len)
{
    if (*len > 10 && !at->sun_path[0] && memcmp(at->sun_path + 1, "cupool-", 7) == 0)
        memset((char *)at + (*len -= 8), 0, 8);
}

WRAPPED(int, socket, (int domain, int type, int protocol))
{
    FAILS("socket", -1, EMFILE);
    sweep_note("%d %d %d", domain, type, protocol);
    return system_opened(__real_socket(domain, type, protocol));
}

WRAPPED(int, socketpair, (int domain, int type, int protocol, int fds[2]))
{
    int rc;
    FAILS("socketpair", -1, EMFILE);
    sweep_note("%d %d %d", domain, type, protocol);
    rc = __real_socketpair(domain, type, protocol, fds);
    fds[0] = system_opened(fds[0]);
    fds[1] = system_opened(fds[1]);
    return rc;
}

WRAPPED(int, setsockopt, (int fd, int level, int option, const void *value, socklen_t len))
{
    FAILS("setsockopt", -1, ENOPROTOOPT);
    sweep_note("%s %d %d %u", system_name(fd), level, option, sweep_bytes(value, len));
    return __real_setsockopt(fd, level, option, value, len);
}

WRAPPED(int, getsockopt, (int fd, int level, int option, void *value, socklen_t *len))
{
    struct ucred *peer = value;
    int rc;
    FAILS("getsockopt", -1, ENOPROTOOPT, SHORT, OTHER_USER, ROOT, NO_PID, PID_ONE);
    sweep_note("%s %d %d %u", system_name(fd), level, option, (unsigned int)*len);
    rc = __real_getsockopt(fd, level, option, value, len);
    if (way == SHORT)
        *len -= 4;
    if (sweep_on)
        peer->uid = way == OTHER_USER ? USER + 1 : way == ROOT ? 0 : USER;
    if (sys.peer_pid || way == NO_PID || way == PID_ONE)
        peer->pid = way == NO_PID ? 0 : way == PID_ONE ? 1 : sys.peer_pid;
    return rc;
}

WRAPPED(uid_t, getuid, (void))
{
    return sweep_on ? USER : __real_getuid();
}

WRAPPED(uid_t, geteuid, (void))
{
    return sweep_on ? USER : __real_geteuid();
}

WRAPPED(int, bind, (int fd, const struct sockaddr *at, socklen_t len))
{
    struct sockaddr_un to;
    socklen_t to_len;
    FAILS("bind", -1, EACCES, EADDRINUSE);
    to_len = address_of(&to, at, len);
    sweep_note("%s", system_name(fd));
    return __real_bind(fd, (struct sockaddr *)&to, to_len);
}

WRAPPED(int, listen, (int fd, int backlog))
{
    FAILS("listen", -1, EOPNOTSUPP);
    sweep_note("%s %d", system_name(fd), backlog);
    return __real_listen(fd, backlog);
}

WRAPPED(int, accept4, (int fd, struct sockaddr *at, socklen_t *len, int flags))
{
    FAILS("accept4", -1, EMFILE, ECONNABORTED, EINTR, EAGAIN);
    sweep_note("%s %d", system_name(fd), flags);
    return system_opened(__real_accept4(fd, at, len, flags));
}

WRAPPED(int, connect, (int fd, const struct sockaddr *at, socklen_t len))
{
    struct sockaddr_un to;
    socklen_t to_len;
    FAILS("connect", -1, EAGAIN, EINTR, ECONNREFUSED);
    to_len = address_of(&to, at, len);
    sweep_note("%s", system_name(fd));
    return __real_connect(fd, (struct sockaddr *)&to, to_len);
}

WRAPPED(int, shutdown, (int fd, int how))
{
    FAILS("shutdown", -1, ENOTCONN);
    sweep_note("%s %d", system_name(fd), how);
    return __real_shutdown(fd, how);
}

static void header_note(int fd, const struct msghdr *header, int flags)
{
    const struct cmsghdr *control = header->msg_control ? CMSG_FIRSTHDR(header) : NULL;

    sweep_note("%s flags %d parts %zu control %zu", system_name(fd), flags, (size_t)header->msg_iovlen,
               (size_t)header->msg_controllen);
    for (size_t i = 0; i < header->msg_iovlen; i++)
        sweep_note("part %zu %u", header->msg_iov[i].iov_len,
                   system_chance_refused ? 0 : sweep_bytes(header->msg_iov[i].iov_base, header->msg_iov[i].iov_len));
    if (control)
        sweep_note("control %d %d %zu", control->cmsg_level, control->cmsg_type, (size_t)control->cmsg_len);
}

WRAPPED(ssize_t, sendmsg, (int fd, const struct msghdr *header, int flags))
{
    FAILS("sendmsg", -1, EAGAIN, EINTR, ENOBUFS, EPIPE);
    if (sweep_on)
        header_note(fd, header, flags);
    return __real_sendmsg(fd, header, flags);
}

WRAPPED(ssize_t, recvmsg, (int fd, struct msghdr *header, int flags))
{
    struct cmsghdr *control;
    ssize_t n;
    FAILS("recvmsg", -1, EAGAIN, EINTR, EIO, SHORT, TRUNCATED, OTHER_TYPE, OTHER_LEVEL, OTHER_LENGTH, NO_CONTROL,
          OTHER_USER, OWN_PID);
    sweep_note("%s flags %d control %zu", system_name(fd), flags, (size_t)header->msg_controllen);
    if (sys.interrupted) {
        errno = EINTR;
        return -1;
    }
    n = __real_recvmsg(fd, header, flags);
    control = n >= 0 ? CMSG_FIRSTHDR(header) : NULL;
    if (header->msg_name && n >= 0)
        address_back(header->msg_name, &header->msg_namelen);
    if (control && control->cmsg_type == SCM_CREDENTIALS && sweep_on) {
        struct ucred *sender = (struct ucred *)(void *)CMSG_DATA(control);

        sender->pid += way != OWN_PID;
        sender->uid = USER + (way == OTHER_USER);
    }
    if (control && control->cmsg_type == SCM_RIGHTS && sweep_on) {
        int fds[2];
        const size_t bytes = control->cmsg_len - CMSG_LEN(0);

        memcpy(fds, CMSG_DATA(control), bytes < sizeof(fds) ? bytes : sizeof(fds));
        for (size_t i = 0; (i + 1) * sizeof(int) <= bytes; i++)
            fds[i] = system_opened(fds[i]);
        memcpy(CMSG_DATA(control), fds, bytes < sizeof(fds) ? bytes : sizeof(fds));
    }
    if (control) {
        control->cmsg_type += way == OTHER_TYPE;
        control->cmsg_level += way == OTHER_LEVEL;
        control->cmsg_len += way == OTHER_LENGTH;
    }
    if (way == NO_CONTROL)
        header->msg_controllen = 0;
    if (way == TRUNCATED)
        header->msg_flags |= MSG_CTRUNC;
    if (sweep_on)
        sweep_note("got %zd", n);
    return way == SHORT && n > 0 ? n / 2 : n;
}

WRAPPED(ssize_t, recv, (int fd, void *data, size_t len, int flags))
{
    ssize_t n;
    FAILS("recv", -1, EAGAIN, EINTR, EIO, SHORT);
    n = __real_recv(fd, data, len, flags);
    sweep_note("%s %zu %d got %zd", system_name(fd), len, flags, n);
    return way == SHORT && n > 0 ? n / 2 : n;
}

WRAPPED(ssize_t, sendto, (int fd, const void *data, size_t len, int flags, const struct sockaddr *at, socklen_t at_len))
{
    struct sockaddr_un to;
    ssize_t n;
    FAILS("sendto", -1, EAGAIN, ECONNREFUSED);
    sweep_note("%s %zu %u %d", system_name(fd), len, sweep_bytes(data, len), flags);
    if (!at)
        sweep_note("to nobody %u", (unsigned int)at_len);
    if (at)
        at_len = address_of(&to, at, at_len);
    n = __real_sendto(fd, data, len, flags, at ? (struct sockaddr *)&to : NULL, at_len);
    sweep_note("sent %zd", n);
    return way == SHORT ? n / 2 : n;
}

int __real_poll(struct pollfd *fds, nfds_t count, int limit);

static int polled(struct pollfd *fds, nfds_t count, uint64_t rest)
{
    void (*waits)(void) = sys.waits;
    int n;

    for (nfds_t i = 0; i < count; i++)
        sweep_note("poll %s %d", system_name(fds[i].fd), fds[i].events);
    if (waits) {
        sys.waits = NULL;
        waits();
    }
    n = __real_poll(fds, count, 0);
    sweep_note("polled %d of %llu ns", n, (unsigned long long)rest);
    if (!n)
        sys.ns += rest;
    return n;
}

WRAPPED(int, ppoll, (struct pollfd * fds, nfds_t count, const struct timespec *limit, const sigset_t *mask))
{
    FAILS("ppoll", -1, EINTR, ENOMEM);
    sweep_note("%d %lld %ld", mask != NULL, (long long)limit->tv_sec, (long)limit->tv_nsec);
    return polled(fds, count, (uint64_t)limit->tv_sec * 1000000000u + (uint64_t)limit->tv_nsec);
}

WRAPPED(int, poll, (struct pollfd * fds, nfds_t count, int limit))
{
    FAILS("poll", -1, EINTR);
    return sweep_on ? polled(fds, count, (uint64_t)limit * 1000000u) : __real_poll(fds, count, limit);
}

WRAPPED(long, syscall, (long number, long a, long b, long c, long d, long e, long f))
{
    if (number == SYS_nanosleep) {
        const struct timespec *nap = (const struct timespec *)a; /* NOLINT(performance-no-int-to-ptr) */

        sweep_note("nap %ld", (long)nap->tv_nsec);
        sys.ns += (uint64_t)nap->tv_nsec;
        return 0;
    }
    if (number == SYS_sendto)
        return __wrap_sendto((int)a, (const void *)b, (size_t)c, (int)d, (const struct sockaddr *)e, /* NOLINT */
                             (socklen_t)f);
    return __real_syscall(number, a, b, c, d, e, f);
}

WRAPPED(int, fcntl64, (int fd, int command, ...))
{
    const bool dup = command == F_DUPFD_CLOEXEC;
    int argument = 0, way;
    va_list args;

    if (dup || command == F_SETSIG) {
        va_start(args, command);
        /* NOLINTNEXTLINE(clang-analyzer-valist.Uninitialized): clang 14 does not follow va_start into a call */
        argument = va_arg(args, int);
        va_end(args);
    }
    if (dup && sweep_on && sweep_kind == SWEEP_DESCRIPTORS) {
        errno = EMFILE;
        return -1;
    }
    way = SWEEP_ERROR(dup ? "fcntl dup" : "fcntl", dup ? EMFILE : EBADF);
    if (way) {
        errno = way;
        return -1;
    }
    sweep_note("%s %d %d", system_name(fd), command, argument);
    return dup ? system_opened(__real_fcntl64(fd, command, argument)) : __real_fcntl64(fd, command, argument);
}

WRAPPED(int, flock, (int fd, int how))
{
    sweep_note("flock %s %d", system_name(fd), how);
    return __real_flock(fd, how);
}

WRAPPED(int, fstat64, (int fd, struct stat *ret))
{
    FAILS("fstat", -1, EBADF);
    sweep_note("%s", system_name(fd));
    return __real_fstat64(fd, ret);
}

WRAPPED(int, close, (int fd))
{
    int before;

    if (!sweep_on)
        return __real_close(fd);
    if (fd < 0)
        sweep_say(" closes none");
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    pthread_setcancelstate(before, NULL);
    sweep_note("close %s%s", system_name(fd), before == PTHREAD_CANCEL_DISABLE ? "" : ", may be cancelled");
    if (fd >= 0 && fd < FDS_MAX && names[fd]) {
        names[fd] = 0;
        open_count--;
    } else {
        sweep_say(" closes what it has not opened");
    }
    return __real_close(fd);
}
