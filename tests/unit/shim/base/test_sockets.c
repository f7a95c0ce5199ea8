/* SPDX-License-Identifier: Apache-2.0 */
/* test_sockets.c - shim/base's sockets between processes alone: what a connection says of its state, which messages of
 * neighbours count; that no descriptor is left open, and none of the program's is touched. The processes' use of them
 * is tested end to end: test_ipc.py, test_neighbours.py. */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "base/descriptor.h"
#include "base/ipc_socket.h"
#include "base/neighbour_socket.h"
#include "cases.h"
#include "children.h"
#include "clock.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define SECOND_NS    UINT64_C(1000000000)

/* --- connections --- */

struct ends {
    struct ipc_descriptor station, importer, exporter;
};

/* The name by which other versions of the library know it. */
static void has_name(int fd, const struct ipc_name *name)
{
    char text[64] = "cupool-ipc-1-";
    struct sockaddr_un at = {0};
    socklen_t len = sizeof(at);

    for (unsigned int i = 0; i < sizeof(name->bytes); i++)
        snprintf(text + strlen(text), 3, "%02x", name->bytes[i]);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &len), 0);
    assert_int_equal(len, offsetof(struct sockaddr_un, sun_path) + 1 + strlen(text));
    assert_int_equal(at.sun_path[0], 0);
    assert_memory_equal(at.sun_path + 1, text, strlen(text));
}

static struct ends connected(void)
{
    struct ipc_name name;
    struct ends ends;
    int pid = 0;

    assert_int_equal(ipc_listen(&ends.station, &name), 0);
    has_name(ends.station.fd, &name);
    assert_int_equal(ipc_accept(&ends.station, &ends.exporter, &pid), -EAGAIN);
    assert_int_equal(ipc_connect(&name, 0, &ends.importer), 0);
    assert_int_equal(ipc_accept(&ends.station, &ends.exporter, &pid), 0);
    assert_int_equal(pid, getpid());
    return ends;
}

static void disconnect(struct ends *ends)
{
    ipc_leave(&ends->station);
    ipc_leave(&ends->importer);
    ipc_leave(&ends->exporter);
    assert_int_equal(ends->station.fd, -1);
}

UNIT_CASE(test_connection)
{
    const unsigned int before = descriptors();
    struct ends ends = connected();
    char text[8];
    int fd;

    for (unsigned int i = 0; i < 3; i++) {
        fd = (&ends.station)[i].fd;
        assert_true(fd >= 200); /* away from those of the program */
        assert_int_equal(fcntl(fd, F_GETFD), FD_CLOEXEC);
        assert_true(ipc_is_open(&(&ends.station)[i]));
    }
    assert_int_equal(ipc_receive(&ends.exporter, text, sizeof(text), &fd), -EAGAIN);
    assert_int_equal(ipc_wait(&ends.exporter, now_ns() + 1000), -ETIMEDOUT);
    assert_int_equal(ipc_send(&ends.importer, "abc", 3, -1), 0);
    assert_int_equal(ipc_wait(&ends.exporter, now_ns() + 60 * SECOND_NS), 0);
    assert_int_equal(ipc_receive(&ends.exporter, text, sizeof(text), &fd), 3);
    assert_int_equal(fd, -1);
    assert_memory_equal(text, "abc", 3);
    assert_int_equal(ipc_send(&ends.importer, "0123456789", 10, STDIN_FILENO), 0);
    assert_int_equal(ipc_receive(&ends.exporter, text, sizeof(text), &fd), 10); /* as long as it was */
    assert_int_equal(fcntl(fd, F_GETFD), FD_CLOEXEC);
    close(fd);
    ipc_end(&ends.importer);
    assert_int_equal(ipc_receive(&ends.exporter, text, sizeof(text), &fd), 0);
    assert_int_equal(ipc_send(&ends.exporter, "a", 1, -1), -EPIPE);
    disconnect(&ends);
    assert_int_equal(descriptors(), before);
}

/* A program that has closed its standard input gets its number back. */
UNIT_CASE(test_without_standard_input)
{
    const int input = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 100);
    struct ends ends;

    assert_true(input >= 0);
    close(STDIN_FILENO);
    ends = connected();
    assert_true(ends.station.fd > 0 && ends.importer.fd > 0 && ends.exporter.fd > 0);
    disconnect(&ends);
    assert_int_equal(fcntl(STDIN_FILENO, F_GETFD), -1);
    assert_int_equal(dup2(input, STDIN_FILENO), STDIN_FILENO);
    close(input);
}

/* A child of fork has the descriptor, too; the peer learns of the end all the same, and of a leaving not. */
UNIT_CASE(test_end_and_leave)
{
    for (unsigned int end = 0; end < 2; end++) {
        struct ends ends = connected();
        const int copy = dup(ends.importer.fd);
        char text[8];
        int fd;

        (end ? ipc_end : ipc_leave)(&ends.importer);
        assert_int_equal(ends.importer.fd, -1);
        assert_int_equal(ipc_receive(&ends.exporter, text, sizeof(text), &fd), end ? 0 : -EAGAIN);
        close(copy);
        disconnect(&ends);
    }
}

/* The program has closed our descriptor, and another file has its number. */
UNIT_CASE(test_taken)
{
    struct ends ends = connected();
    const int other = open("/dev/null", O_RDWR | O_CLOEXEC), number = ends.importer.fd;
    char text[8];
    int fd = 7;

    assert_int_equal(dup2(other, number), number);
    assert_false(ipc_is_open(&ends.importer));
    assert_int_equal(ipc_send(&ends.importer, "a", 1, -1), -EBADF);
    assert_int_equal(ipc_send_by(&ends.importer, "a", 1, UINT64_MAX), -EBADF);
    assert_int_equal(ipc_receive(&ends.importer, text, sizeof(text), &fd), -EBADF);
    assert_int_equal(fd, -1);
    assert_int_equal(ipc_wait(&ends.importer, UINT64_MAX), -EBADF);
    ipc_end(&ends.importer);
    assert_true(fcntl(number, F_GETFD) >= 0);
    assert_false(ipc_is_open(&ends.importer));
    close(number);
    close(other);
    disconnect(&ends);
}

/* Of several descriptors one is taken, and the others are closed. */
UNIT_CASE(test_several_descriptors)
{
    struct ends ends = connected();
    const unsigned int before = descriptors();
    union {
        char room[CMSG_SPACE(2 * sizeof(int))];
        struct cmsghdr align;
    } control = {{0}};
    struct iovec part = {"abc", 3};
    struct msghdr header = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
    char text[8];
    int fd;

    *CMSG_FIRSTHDR(&header) =
        (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(2 * sizeof(int))};
    assert_int_equal(sendmsg(ends.importer.fd, &header, 0), 3);
    assert_int_equal(ipc_receive(&ends.exporter, text, sizeof(text), &fd), 3);
    assert_true(fd >= 0);
    close(fd);
    assert_int_equal(descriptors(), before);
    disconnect(&ends);
}

/* Nobody takes connections, or reads messages: there is a limit, and afterwards room again. */
UNIT_CASE(test_no_room)
{
    const unsigned int before = descriptors();
    struct ipc_descriptor station, many[100], last;
    struct ends ends = connected();
    struct ipc_name name;
    char text[8192] = "";
    unsigned int count = 0, sent = 0;
    int fd, pid;

    assert_int_equal(ipc_listen(&station, &name), 0);
    while (count < COUNT(many) && ipc_connect(&name, 0, &many[count]) == 0)
        count++;
    assert_in_range(count, 64, COUNT(many) - 1);
    assert_int_equal(many[count].fd, -1);
    assert_int_equal(ipc_connect(&name, now_ns() + 3000000, &last), -ETIMEDOUT);
    assert_int_equal(last.fd, -1);
    assert_int_equal(ipc_accept(&station, &last, &pid), 0);
    ipc_leave(&last);
    assert_int_equal(ipc_connect(&name, 0, &last), 0);
    ipc_leave(&last);
    while (count)
        ipc_leave(&many[--count]);
    ipc_leave(&station);
    assert_int_equal(ipc_connect(&name, UINT64_MAX, &last), -ECONNREFUSED);
    while (ipc_send(&ends.importer, text, sizeof(text), -1) == 0)
        sent++;
    assert_int_equal(ipc_send(&ends.importer, text, sizeof(text), -1), -EAGAIN);
    assert_int_equal(ipc_send_by(&ends.importer, text, sizeof(text), now_ns() + 1000), -ETIMEDOUT);
    while (sent--)
        assert_int_equal(ipc_receive(&ends.exporter, text, sizeof(text), &fd), sizeof(text));
    assert_int_equal(ipc_send_by(&ends.importer, text, sizeof(text), 0), 0);
    disconnect(&ends);
    assert_int_equal(descriptors(), before);
}

/* --- neighbours --- */

static struct neighbour_card card = {{0x12, 0xf3, [15] = 0xab}};
static struct neighbour_station stations[3];
static struct neighbour_outcome outcome;
static uint64_t wanted;

/* Asks from another process, whose own station is the last. */
static unsigned char ask(void)
{
    errno = 77;
    neighbour_ask(&card, &stations[2], wanted, 60 * SECOND_NS, &outcome);
    return errno == 77 && outcome.asked == 2 ? (unsigned char)(outcome.answered * 64 + outcome.given % 64) : 255;
}

/* A card of this process alone: the tests of another build may run beside it, and stations have names on a host. */
static void stations_open(void)
{
    const uint64_t own = (uint64_t)getpid() << 32 ^ now_ns();
    char name[128];

    memcpy(card.uuid + 4, &own, sizeof(own));
    for (unsigned int i = 0; i < COUNT(stations); i++) {
        stations[i].fd = -1;
        assert_false(neighbour_is_open(&stations[i]));
        errno = 77;
        assert_int_equal(neighbour_listen(&stations[i], &card), 0);
        assert_int_equal(errno, 77);
        assert_true(neighbour_is_open(&stations[i]));
    }
    snprintf(name, sizeof(name), "cupool-1-%u-12f30000%016llx000000ab-%d", (unsigned int)getuid(),
             (unsigned long long)__builtin_bswap64(own), stations[1].number);
    assert_string_equal(stations[1].at.sun_path + 1, name);
}

/* The asker's count of answers, and of bytes modulo 64. */
static int outcome_of(uint64_t wants, const uint64_t *given)
{
    struct neighbour_question questions[NEIGHBOUR_BATCH];
    int status = -1, answered = 0;
    bool quiet;
    pid_t pid;

    wanted = wants;
    pid = fork();
    if (pid == 0)
        _exit(ask());
    while (answered < 2) {
        for (int i = 0; i < 2; i++)
            if (neighbour_read(&stations[i], questions, &quiet) == 1) {
                neighbour_answer(&stations[i], questions, given[i]);
                neighbour_answer(&stations[i], questions, given[i]); /* it counts once */
                answered++;
            }
        nap_ns(100000);
    }
    assert_true(neighbour_read(&stations[2], questions, &quiet) == 0 && quiet); /* its own was not asked */
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

UNIT_CASE(test_neighbours)
{
    const unsigned int before = descriptors();
    struct neighbour_question questions[NEIGHBOUR_BATCH];
    bool quiet = false;

    stations_open();
    assert_int_equal(outcome_of(0, (uint64_t[]){5, 7}), 2 * 64 + 12);
    assert_int_equal(outcome_of(13, (uint64_t[]){5, 7}), 2 * 64 + 12);
    assert_int_equal(outcome_of(0, (uint64_t[]){UINT64_MAX - 3, 9}), 2 * 64 + 63); /* not beyond the greatest number */
    assert_true(outcome_of(4, (uint64_t[]){5, 5}) >= 64 + 5); /* enough: the second answer is not waited for */
    neighbour_ask(&card, NULL, 0, 1000000, &outcome);         /* its own questions are none of a neighbour's */
    assert_int_equal(outcome.asked, 3);
    assert_int_equal(outcome.answered, 0);
    assert_int_equal(neighbour_read(&stations[0], questions, &quiet), 0);
    assert_false(quiet);
    errno = 77;
    neighbour_ring(&stations[1]);
    assert_int_equal(errno, 77);
    for (unsigned int i = 0; i < COUNT(stations); i++)
        neighbour_close(&stations[i]);
    assert_false(neighbour_is_open(&stations[0]));
    neighbour_ask(&card, NULL, 0, 60 * SECOND_NS, &outcome);
    assert_int_equal(outcome.asked, 0);
    assert_int_equal(descriptors(), before);
}

/* True if a ring has come by a socket without a name, as the program's has one here. */
static bool hears(int heard)
{
    struct sockaddr_un from;
    socklen_t len = sizeof(from);
    char byte;

    return recvfrom(heard, &byte, 1, MSG_DONTWAIT, (struct sockaddr *)&from, &len) == 0 && len == 0;
}

/* The program has closed our descriptor, and got its number for a socket of its own: nothing is sent by that. The other
 * descriptor stands for the poll that waits meanwhile: it is heard there nevertheless. */
UNIT_CASE(test_rings_by_no_socket_of_the_program)
{
    const sa_family_t any = AF_UNIX;
    unsigned int before;
    int heard, own, number;
    char byte;

    stations[0].fd = -1;
    assert_int_equal(neighbour_listen(&stations[0], &card), 0);
    number = stations[0].fd;
    heard = dup(number);
    own = socket(AF_UNIX, SOCK_DGRAM, 0);
    assert_int_equal(bind(own, (const struct sockaddr *)&any, sizeof(any)), 0);
    neighbour_ring(&stations[0]);
    assert_int_equal(recv(heard, &byte, 1, MSG_DONTWAIT), 0);
    close(number);
    before = descriptors();
    errno = 77;
    neighbour_ring(&stations[0]);
    assert_int_equal(errno, 77);
    assert_int_equal(descriptors(), before);
    assert_true(hears(heard));
    assert_int_equal(dup2(own, number), number);
    neighbour_ring(&stations[0]);
    assert_true(hears(heard));
    assert_false(hears(heard));
    assert_false(neighbour_is_open(&stations[0]));
    close(heard);
    close(own);
    close(number);
}

/* Messages that are none: too short, too long, or with another byte. A full queue would let the sender wait. */
static unsigned char send_wrong(void)
{
    static const unsigned char changed[] = {0, 3, 4, 6}; /* of magic, version and kind */
    unsigned char message[32] = {'c', 'p', 'o', 'l', 1, 0, 1, 0};
    const int fd = socket(AF_UNIX, SOCK_DGRAM, 0);
    const struct sockaddr *to = (const struct sockaddr *)&stations[0].at;
    unsigned char sent = 0;

    for (size_t len = 15; len <= 17; len += 2)
        sent += sendto(fd, message, len, MSG_DONTWAIT, to, stations[0].at_len) == (ssize_t)len;
    for (size_t i = 0; i < sizeof(changed); i++) {
        message[changed[i]] ^= 2;
        sent += sendto(fd, message, 16, MSG_DONTWAIT, to, stations[0].at_len) == 16;
        message[changed[i]] ^= 2;
    }
    sent += sendto(fd, message, 16, MSG_DONTWAIT, to, stations[0].at_len) == 16; /* this one is right */
    return sent;
}

UNIT_CASE(test_wrong_questions)
{
    struct neighbour_question questions[NEIGHBOUR_BATCH];
    bool quiet = true;

    stations[0].fd = -1;
    assert_int_equal(neighbour_listen(&stations[0], &card), 0);
    assert_int_equal(stations[0].number, 0); /* the first that is free */
    assert_int_equal(child_of(send_wrong), 7);
    assert_int_equal(neighbour_read(&stations[0], questions, &quiet), 1);
    assert_false(quiet);
    assert_int_equal(neighbour_read(&stations[0], questions, &quiet), 0);
    assert_true(quiet);
    neighbour_close(&stations[0]);
}

/* --- signals of a write --- */

/* So that variables of the next functions hold no zeros by chance. */
static __attribute__((noinline)) void stack_fill(void)
{
    volatile unsigned char bytes[8192];

    for (size_t i = 0; i < sizeof(bytes); i++)
        bytes[i] = 0xff;
}

/* No signal but those of a write is held up. */
UNIT_CASE(test_other_signals)
{
    struct file_quiet quiet;
    sigset_t now;

    stack_fill();
    file_quiet_begin(&quiet);
    pthread_sigmask(SIG_BLOCK, NULL, &now);
    file_quiet_end(&quiet, /* failed: */ false);
    for (int number = 1; number < SIGRTMIN; number++)
        assert_int_equal(sigismember(&now, number), number == SIGPIPE || number == SIGXFSZ || number == SIGTTOU);
}

UNIT_CASE(test_signals)
{
    struct file_quiet quiet;
    sigset_t set, pending;
    int ends[2];

    sigemptyset(&set);
    sigaddset(&set, SIGPIPE);
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    close(ends[0]);
    for (unsigned int theirs = 0; theirs < 2; theirs++) {
        pthread_sigmask(SIG_BLOCK, &set, NULL);
        if (theirs) /* the program has one, which stays */
            raise(SIGPIPE);
        file_quiet_begin(&quiet);
        assert_int_equal(write(ends[1], "a", 1), -1);
        file_quiet_end(&quiet, /* failed: */ true);
        sigpending(&pending);
        assert_int_equal(sigismember(&pending, SIGPIPE), theirs);
        if (theirs)
            assert_int_equal(sigwaitinfo(&set, NULL), SIGPIPE);
        pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    }
    close(ends[1]);
}
