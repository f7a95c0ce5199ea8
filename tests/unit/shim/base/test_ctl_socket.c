/* SPDX-License-Identifier: Apache-2.0 */
/* test_ctl_socket.c - shim/base/ctl_socket.c alone: the folder and the socket's name, which requests are read, how long
 * a silent peer keeps its place, and that nothing is left. The commands: tests/e2e/test_ctl.py. */
#include <fcntl.h>
#include <limits.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "base/ctl_socket.h"
#include "cases.h"

#define START UINT64_C(5000000000)

static char folder[64], path[PATH_MAX];
static unsigned int open_before;
static const char *why;

static unsigned int descriptors(void)
{
    unsigned int count = 0;

    for (int fd = 0; fd < 400; fd++)
        count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

static int begin(void **state)
{
    strcpy(folder, "/tmp/cupool-test-XXXXXX");
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/cupool-%d.sock", folder, (int)getpid());
    open_before = descriptors();
    return 0;
}

static int begin_open(void **state)
{
    begin(state);
    why = "x";
    errno = 77;
    assert_int_equal(ctl_socket_open(folder, &why), 0);
    assert_int_equal(errno, 77);
    assert_null(why);
    return 0;
}

static int end(void **state)
{
    ctl_socket_close(/* forked: */ false);
    assert_int_equal(access(path, F_OK), -1);
    assert_int_equal(rmdir(folder), 0); /* nothing is left in it */
    assert_int_equal(descriptors(), open_before);
    return 0;
}

static int connected(void)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    snprintf(at.sun_path, sizeof(at.sun_path), "%.*s", (int)sizeof(at.sun_path) - 1, path);
    assert_int_equal(connect(fd, (const struct sockaddr *)&at, sizeof(at)), 0);
    return fd;
}

/* Whether the connection has ended, if nothing has been said on it. */
static bool is_ended(int fd)
{
    char byte;
    const ssize_t n = recv(fd, &byte, 1, 0);

    assert_true(n == 0 || (n < 0 && (errno == EAGAIN || errno == ECONNRESET)));
    return n == 0 || errno == ECONNRESET;
}

static const struct ctl_request good = {.magic = CTL_MAGIC, .version = CTL_VERSION, .command = 9, .device = 3};

CASE_WITH(test_requests, begin_open, end)
{
    static const size_t lengths[] = {0, 1, sizeof(good) - 1, sizeof(good) + 1, 2 * sizeof(good)};
    char bytes[2 * sizeof(good)] = "";
    struct ctl_request request, wrong;
    struct ctl_reply reply;
    char answer[64];
    int fd;

    memcpy(bytes, &good, sizeof(good));
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]) + 6; i++) { /* lengths, or a byte of the head */
        fd = connected();
        wrong = good;
        if (i < 5) {
            assert_int_equal(send(fd, bytes, lengths[i], 0), lengths[i]);
        } else {
            ((unsigned char *)&wrong)[i - 5] ^= 4;
            assert_int_equal(send(fd, &wrong, sizeof(wrong), 0), sizeof(wrong));
        }
        assert_false(ctl_socket_read(START, &request));
        assert_true(is_ended(fd));
        close(fd);
    }
    fd = connected();
    assert_false(ctl_socket_read(START, &request));
    assert_false(is_ended(fd));
    assert_int_equal(send(fd, &good, sizeof(good), 0), sizeof(good));
    assert_true(ctl_socket_read(START, &request));
    assert_memory_equal(&request, &good, sizeof(good));
    ctl_socket_reply(-7, "reason", 6);
    assert_int_equal(recv(fd, answer, sizeof(answer), 0), sizeof(reply) + 6);
    memcpy(&reply, answer, sizeof(reply));
    assert_int_equal(reply.magic, CTL_MAGIC);
    assert_int_equal(reply.version, CTL_VERSION);
    assert_int_equal(reply.rc, -7);
    assert_int_equal(reply.size, 6);
    assert_memory_equal(answer + sizeof(reply), "reason", 6);
    assert_true(is_ended(fd));
    close(fd);
    assert_false(ctl_socket_read(START, &request));
}

/* A peer of the process's own user is heard, and root; nobody else. */
CASE_WITH(test_users, begin_open, end)
{
    static const struct row {
        uid_t own, peer;
        bool heard;
    } rows[] = {{0, 65534, false}, {65534, 65534, true}, {65534, 0, true}, {65534, 65533, false}};
    struct ctl_request request;

    (void)state;
    if (geteuid() != 0 || seteuid(65534)) /* no root, or root of a namespace with no other user */
        skip();
    assert_int_equal(seteuid(0), 0);
    assert_int_equal(chmod(folder, 0711) | chmod(path, 0777), 0);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        int fd;

        assert_int_equal(seteuid(rows[i].peer), 0);
        fd = connected();
        assert_int_equal(seteuid(0) | seteuid(rows[i].own), 0);
        assert_false(ctl_socket_read(START, &request));
        assert_int_equal(seteuid(0), 0);
        assert_int_equal(is_ended(fd), !rows[i].heard);
        close(fd);
    }
}

/* Whether the peer still waits for the answer. */
CASE_WITH(test_awaited, begin_open, end)
{
    struct ctl_request request;
    int fd;

    (void)state;
    for (unsigned int gone = 0; gone < 3; gone++) { /* 1: before it is asked about; 2: before the answer alone */
        fd = connected();
        assert_int_equal(send(fd, &good, sizeof(good), 0), sizeof(good));
        if (gone == 1)
            close(fd);
        assert_true(ctl_socket_read(START, &request));
        assert_int_equal(ctl_socket_is_awaited(), gone != 1);
        if (gone == 2)
            close(fd);
        assert_int_equal(ctl_socket_reply(0, "", 0), !gone);
        if (!gone)
            close(fd);
    }
}

static void ask(int fd, uint64_t now)
{
    struct ctl_request request;

    assert_int_equal(send(fd, &good, sizeof(good), 0), sizeof(good));
    assert_true(ctl_socket_read(now, &request));
    ctl_socket_reply(0, "", 0);
    assert_int_equal(recv(fd, &request, sizeof(request), 0), sizeof(struct ctl_reply));
    close(fd);
}

/* A silent peer is dropped after two seconds, or for another one if all places are taken: the oldest first. */
CASE_WITH(test_silent_peers, begin_open, end)
{
    struct ctl_request request;
    int fds[CTL_PEERS + 2];

    assert_true(ctl_socket_due() == UINT64_MAX);
    for (unsigned int i = 0; i <= CTL_PEERS + 1; i++) {
        if (i == CTL_PEERS) /* the first place becomes free, and is taken by a younger one */
            ask(fds[0], START + i);
        fds[i] = connected();
        assert_false(ctl_socket_read(START + i, &request));
        if (i == CTL_PEERS) {
            assert_true(ctl_socket_due() == START + 1 + CTL_PATIENCE_NS);
            assert_false(is_ended(fds[1]));
        }
    }
    for (unsigned int i = 1; i <= CTL_PEERS + 1; i++)
        assert_int_equal(is_ended(fds[i]), i == 1);
    assert_true(ctl_socket_due() == START + 2 + CTL_PATIENCE_NS);
    assert_false(ctl_socket_read(START + 1 + CTL_PATIENCE_NS, &request));
    assert_false(is_ended(fds[2]));
    assert_false(ctl_socket_read(START + 2 + CTL_PATIENCE_NS, &request));
    assert_true(is_ended(fds[2]));
    assert_false(is_ended(fds[3]));
    ask(fds[CTL_PEERS + 1], START + 2 + CTL_PATIENCE_NS); /* whatever its place */
    for (unsigned int i = 1; i <= CTL_PEERS; i++)
        close(fds[i]);
}

/* As many as one look takes in leave no pause behind: the next peer is polled for at once. */
CASE_WITH(test_a_crowd, begin_open, end)
{
    struct pollfd polled[CTL_PEERS + 2];
    struct ctl_request request;
    int fds[CTL_PEERS];

    for (unsigned int i = 0; i < CTL_PEERS; i++)
        fds[i] = connected();
    assert_false(ctl_socket_read(START, &request));
    assert_int_equal(ctl_socket_listen(polled, CTL_PEERS + 2), CTL_PEERS + 2);
    assert_true(ctl_socket_due() == START + CTL_PATIENCE_NS);
    for (unsigned int i = 0; i < CTL_PEERS; i++)
        close(fds[i]);
}

/* A socket at the name, which listens or not, of a child that lives until somebody writes to the pipe. */
static pid_t other_listens(int pipe_to, int pipe_from, bool listens)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    const pid_t pid = fork();
    char byte;
    int fd;

    if (pid)
        return pid;
    snprintf(at.sun_path, sizeof(at.sun_path), "%.*s", (int)sizeof(at.sun_path) - 1, path);
    fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    if (bind(fd, (const struct sockaddr *)&at, sizeof(at)) || (listens && listen(fd, 0)) || write(pipe_to, "", 1) != 1)
        _exit(1);
    _exit(read(pipe_from, &byte, 1) != 1);
}

/* A process with this number in another container has its socket in the folder: it keeps it. A socket at which nobody
 * listens is one of a process that has ended. */
CASE_WITH(test_another_container, begin, end)
{
    int to[2], from[2], status, before;
    struct stat theirs, now;
    char byte;
    pid_t pid;

    (void)state;
    for (unsigned int i = 0; i < 3; i++) { /* 1: its queue is full; 2: it does not listen */
        assert_int_equal(pipe2(to, O_CLOEXEC), 0);
        assert_int_equal(pipe2(from, O_CLOEXEC), 0);
        pid = other_listens(to[1], from[0], i != 2);
        assert_int_equal(read(to[0], &byte, 1), 1);
        assert_int_equal(stat(path, &theirs), 0);
        before = i == 1 ? connected() : -1;
        assert_int_equal(ctl_socket_open(folder, &why), i == 2 ? 0 : -EADDRINUSE);
        assert_int_equal(why != NULL, i != 2);
        assert_int_equal(stat(path, &now), 0);
        assert_int_equal(now.st_ino == theirs.st_ino, i != 2);
        close(before);
        assert_int_equal(write(from[1], "", 1), 1);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_int_equal(status, 0);
        for (unsigned int k = 0; k < 2; k++) {
            close(to[k]);
            close(from[k]);
        }
        if (i != 2)
            assert_int_equal(unlink(path), 0);
    }
}

/* The bell, the socket and each peer are polled; ringing is heard, and then no more. */
CASE_WITH(test_poll, begin_open, end)
{
    struct pollfd fds[CTL_PEERS + 2];
    struct ctl_request request;
    int fd;

    assert_int_equal(ctl_socket_listen(fds, CTL_PEERS + 1), 0); /* there is not enough room */
    assert_int_equal(ctl_socket_listen(fds, CTL_PEERS + 2), 2);
    assert_int_equal(poll(fds, 2, 0), 0);
    for (unsigned int i = 0; i < 2; i++) {
        assert_true(fds[i].fd >= 200); /* away from those of the program */
        assert_int_equal(fcntl(fds[i].fd, F_GETFD), FD_CLOEXEC);
    }
    errno = 77;
    for (unsigned int i = 0; i < 1000; i++) /* more than there is room for */
        ctl_socket_ring();
    assert_int_equal(errno, 77);
    assert_int_equal(poll(fds, 2, 0), 1);
    assert_false(ctl_socket_read(START, &request));
    assert_int_equal(poll(fds, 2, 0), 0);
    fd = connected();
    assert_int_equal(poll(fds, 2, 0), 1);
    assert_false(ctl_socket_read(START, &request));
    assert_int_equal(ctl_socket_listen(fds, CTL_PEERS + 2), 3);
    assert_int_equal(poll(fds, 3, 0), 0);
    assert_int_equal(send(fd, &good, sizeof(good), 0), sizeof(good));
    assert_int_equal(poll(fds, 3, 0), 1);
    close(fd);
}

static void descriptors_limit(rlim_t most)
{
    struct rlimit limit;

    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = most ? most : limit.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

/* A connection that waits for a free descriptor is reported by every poll: a pause of a tenth of a second. */
CASE_WITH(test_no_descriptor, begin_open, end)
{
    struct pollfd fds[CTL_PEERS + 2];
    struct ctl_request request;
    int fd = connected();

    descriptors_limit(3);
    assert_false(ctl_socket_read(START, &request));
    descriptors_limit(0);
    assert_true(ctl_socket_due() == START + 100000000);
    assert_int_equal(ctl_socket_listen(fds, CTL_PEERS + 2), 1);
    assert_false(ctl_socket_read(START + 99999999, &request));
    assert_int_equal(ctl_socket_listen(fds, CTL_PEERS + 2), 1);
    assert_false(ctl_socket_read(START + 100000000, &request));
    assert_int_equal(ctl_socket_listen(fds, CTL_PEERS + 2), 3);
    close(fd);
}

/* The program has closed our descriptors, and has files of its own by these numbers, which stay as they are. */
CASE_WITH(test_taken, begin_open, end)
{
    const int other = open("/dev/null", O_RDWR | O_CLOEXEC);
    struct pollfd fds[CTL_PEERS + 2];
    struct ctl_request request;
    int fd = connected(), bell, count;

    assert_false(ctl_socket_read(START, &request));
    assert_int_equal(ctl_socket_listen(fds, CTL_PEERS + 2), 3);
    bell = fds[0].fd;
    while (fcntl(++bell, F_GETFD) < 0) /* its other end */
        ;
    assert_int_equal(dup2(other, fds[2].fd), fds[2].fd);
    assert_int_equal(ctl_socket_listen(fds, CTL_PEERS + 2), 2); /* without the peer */
    assert_int_equal(dup2(other, bell), bell);
    ctl_socket_ring();
    assert_int_equal(poll(fds, 1, 0), 0);
    for (count = 0; count < 2; count++) {
        assert_int_equal(dup2(other, fds[count].fd), fds[count].fd);
        assert_int_equal(ctl_socket_listen(fds, CTL_PEERS + 2), 0);
    }
    assert_false(ctl_socket_read(START, &request));
    ctl_socket_close(/* forked: */ false);
    for (count = 0; count < 2; count++)
        assert_int_equal(close(fds[count].fd), 0);
    assert_int_equal(close(bell) | close(bell + 2) | close(other) | close(fd), 0);
    unlink(path); /* nobody could be asked there, so it is left to cupool-ctl */
}

/* A child of fork closes its copies, and the socket stays the parent's. */
CASE_WITH(test_forked, begin_open, end)
{
    ctl_socket_close(/* forked: */ true);
    assert_int_equal(descriptors(), open_before);
    assert_int_equal(access(path, F_OK), 0);
    unlink(path);
}

/* Places where it does not go. */
CASE_WITH(test_folders, begin, end)
{
    char name[PATH_MAX], longer[200];
    struct pollfd fds[CTL_PEERS + 2];
    const int first = dup(STDIN_FILENO); /* that is free */
    FILE *file;

    close(first);
    for (mode_t bit = 1; bit <= 040; bit <<= 1) { /* others may come in */
        assert_int_equal(chmod(folder, 0700 | bit), 0);
        assert_int_equal(ctl_socket_open(folder, &why), -EACCES);
        assert_non_null(strstr(why, "0700"));
    }
    assert_int_equal(chmod(folder, 0700), 0);
    /* One of another user, who could put a socket of his own there. */
    if (geteuid() == 0 && chown(folder, 65534, (gid_t)-1) == 0) {
        assert_int_equal(ctl_socket_open(folder, &why), -EACCES);
        assert_non_null(strstr(why, "another user"));
        assert_int_equal(chown(folder, 0, (gid_t)-1), 0);
    } else if (geteuid() != 0) {
        assert_int_equal(ctl_socket_open("/", &why), -EACCES);
        assert_non_null(strstr(why, "another user"));
    }
    snprintf(name, sizeof(name), "%s/x", folder);
    file = fopen(name, "w");
    assert_non_null(file);
    fclose(file);
    assert_int_equal(ctl_socket_open(name, &why), -EACCES);
    assert_non_null(strstr(why, "no folder"));
    unlink(name);
    assert_int_equal(symlink(folder, name), 0);
    assert_int_equal(ctl_socket_open(name, &why), -EACCES);
    unlink(name);
    snprintf(name, sizeof(name), "%s/a/b", folder);
    assert_int_equal(ctl_socket_open(name, &why), -ENOENT);
    assert_null(why);
    memset(longer, 'x', sizeof(longer) - 1);
    longer[sizeof(longer) - 1] = '\0';
    snprintf(name, sizeof(name), "%s/%.80s", folder, longer);
    assert_int_equal(ctl_socket_open(name, &why), -ENAMETOOLONG);
    rmdir(name);
    assert_int_equal(mkdir(path, 0700), 0); /* a folder has its name */
    assert_true(ctl_socket_open(folder, &why) < 0);
    assert_int_equal(ctl_socket_listen(fds, CTL_PEERS + 2), 0);
    assert_int_equal(descriptors(), open_before);
    assert_int_equal(rmdir(path), 0);
    for (rlim_t more = 0; more < 3; more++) { /* one descriptor less than it needs */
        descriptors_limit((rlim_t)first + more);
        assert_int_equal(ctl_socket_open(folder, &why), -EMFILE);
        descriptors_limit(0);
        assert_int_equal(ctl_socket_listen(fds, CTL_PEERS + 2), 0);
        assert_int_equal(descriptors(), open_before);
    }
    /* A socket of an earlier process of this number is replaced, and a folder that is missing is made. */
    assert_int_equal(ctl_socket_open(folder, &why), 0);
    ctl_socket_close(/* forked: */ true);
    assert_int_equal(access(path, F_OK), 0);
    assert_int_equal(ctl_socket_open(folder, &why), 0);
    close(connected());
    ctl_socket_close(/* forked: */ false);
    assert_int_equal(rmdir(folder), 0);
    assert_int_equal(ctl_socket_open(folder, &why), 0);
    close(connected());
}
