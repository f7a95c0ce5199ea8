/* SPDX-License-Identifier: Apache-2.0 */
/* test_sweep_sockets.c - shim/base's sockets and the files that it reads: each call of the system fails once, in each
 * way; the rows in sweep_sockets.inc say what follows. test_sockets.c and test_ctl_socket.c say what is right. */
#include <fcntl.h>
#include <sys/stat.h>

#include "base/ctl_socket.h"
#include "base/descriptor.h"
#include "base/ipc_socket.h"
#include "base/neighbour_socket.h"
#include "base/peer_process.h"
#include "cases.h"
#include "hash.h"
#include "sweep_system.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static void left(void)
{
    sweep_say("; %u descriptors left", system_descriptors());
}

/* --- connections --- */

static void received(const struct ipc_descriptor *connection)
{
    char text[8] = "";
    int fd = 99;

    sweep_say(" receive %zd", SWEPT(ipc_receive(connection, text, sizeof(text), &fd)));
    sweep_say(" '%.8s' %s", text, fd < 0 ? "-" : system_name(fd));
    if (fd >= 0)
        SWEPT(close(fd));
}

static void tell_connections(void)
{
    struct ipc_descriptor station = {.fd = -1}, importer = {.fd = -1}, exporter = {.fd = -1}, other;
    struct ipc_name name = {{0}};
    int pid = 0;

    sweep_say(" listen %d", SWEPT(ipc_listen(&station, &name)));
    sweep_say(" connect %d", SWEPT(ipc_connect(&name, sys.ns + 1500000, &importer)));
    sweep_say(" accept %d", SWEPT(ipc_accept(&station, &exporter, &pid)));
    sweep_say(" %s", pid == getpid() ? "own" : "-");
    sweep_say(" wait %d", SWEPT(ipc_wait(&exporter, sys.ns + 3000000000)));
    sweep_say(" send %d", SWEPT(ipc_send(&importer, "abc", 3, -1)));
    sweep_say(" %d", SWEPT(ipc_send(&importer, "0123456789", 10, STDIN_FILENO)));
    sweep_say(" wait %d", SWEPT(ipc_wait(&exporter, sys.ns + 1000000)));
    received(&exporter);
    received(&exporter);
    sweep_say(" send by %d", SWEPT(ipc_send_by(&exporter, "de", 2, sys.ns + 1000000)));
    received(&importer);
    sweep_say(" open %d", SWEPT(ipc_is_open(&importer)));
    sweep_say(" keep %d", SWEPT(ipc_keep(-1, &other)));
    SWEPT_VOID(ipc_end(&importer));
    sweep_say(" end %d", importer.fd);
    received(&exporter);
    SWEPT_VOID(ipc_leave(&exporter));
    SWEPT_VOID(ipc_leave(&station));
    sweep_say(" leave %d %d", exporter.fd, station.fd);
    SWEPT_VOID(ipc_leave(&station));
    left();
}

/* Numbers that are chosen without chance. */
static void tell_names(void)
{
    struct ipc_name name = {{0}};
    uint64_t word[2];

    SWEPT_VOID(ipc_name_make(&name));
    memcpy(word, name.bytes, sizeof(word));
    sweep_say(" of time and process %d", word[1] == hash_of(word[0] ^ (uint64_t)getpid() << 32));
    for (unsigned int pid = 0; pid < 2; pid++)
        sweep_say(" other processes %d", word[1] == hash_of(word[0] ^ (uint64_t)pid));
}

/* A wait whose limit is about now, or whole seconds away. */
static void tell_limits(void)
{
    struct ipc_descriptor station = {.fd = -1}, importer = {.fd = -1}, many[80];
    struct ipc_name name = {{0}};
    unsigned int count = 0;

    ipc_listen(&station, &name);
    ipc_connect(&name, UINT64_MAX, &importer);
    for (unsigned int i = 0; i < 4; i++)
        sweep_say(" %d", SWEPT(ipc_wait(&importer, sys.ns + (uint64_t)i * 1000)));
    sweep_say(" %d", SWEPT(ipc_wait(&importer, sys.ns + 1000 + 2000000000)));
    while (count < COUNT(many) && ipc_connect(&name, 0, &many[count]) == 0)
        count++;
    sweep_say(" many %d", count >= 60);
    for (unsigned int i = 0; i < 4; i++)
        sweep_say(" %d", SWEPT(ipc_connect(&name, sys.ns + 1000000 + (uint64_t)i * 1000, &many[count])));
}

/* Of several descriptors in one message, the first one is taken. */
static void tell_several(void)
{
    struct ipc_descriptor station = {.fd = -1}, importer = {.fd = -1}, exporter = {.fd = -1};
    struct ipc_name name = {{0}};
    union {
        char room[CMSG_SPACE(2 * sizeof(int))];
        struct cmsghdr align;
    } control = {{0}};
    struct iovec part = {"abc", 3};
    struct msghdr header = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
    int pid;

    ipc_listen(&station, &name);
    ipc_connect(&name, UINT64_MAX, &importer);
    ipc_accept(&station, &exporter, &pid);
    *CMSG_FIRSTHDR(&header) =
        (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(2 * sizeof(int))};
    sendmsg(importer.fd, &header, 0);
    received(&exporter);
    left();
}

/* A file with a mark, and others with another one or none, at its number. */
static void tell_marks(void)
{
    struct ipc_descriptor kept[2] = {0};
    int fds[2];

    if (socketpair(AF_UNIX, SOCK_DGRAM, 0, fds))
        return;
    file_mark(fds[1], 7);
    for (unsigned int i = 0; i < 2; i++) {
        sweep_say(" keep %d", SWEPT(ipc_keep(fds[i], &kept[i])));
        sweep_say(" mark %d open %d", kept[i].mark, SWEPT(ipc_is_open(&kept[i])));
        for (unsigned int number = 7; number < 9; number++) {
            file_mark(fds[i], number);
            sweep_say(" %d", SWEPT(ipc_is_open(&kept[i])));
        }
    }
}

/* --- neighbours --- */

static const struct neighbour_card card = {{0x12, 0xf3, [15] = 0xab}};
static struct neighbour_station stations[3];

static void answer(void)
{
    struct neighbour_question questions[NEIGHBOUR_BATCH];
    bool quiet = false;

    for (unsigned int i = 0; i < 2; i++) {
        const unsigned int count = neighbour_read(&stations[i], questions, &quiet);

        sweep_note("read %u quiet %d", count, quiet);
        for (unsigned int k = 0; k < count; k++)
            neighbour_answer(&stations[i], &questions[k], UINT64_C(1) << 40 << i);
    }
}

static void tell_neighbours(void)
{
    struct neighbour_outcome outcome = {0};
    struct neighbour_question questions[NEIGHBOUR_BATCH];
    bool quiet = false;

    for (unsigned int i = 0; i < COUNT(stations); i++) {
        stations[i].fd = -1;
        sweep_say(" listen %d", SWEPT(neighbour_listen(&stations[i], &card)));
        sweep_say(" #%d", stations[i].fd < 0 ? -1 : stations[i].number);
    }
    sys.waits = answer;
    SWEPT_VOID(neighbour_ask(&card, &stations[2], 0, 5000000000, &outcome));
    sweep_say(" asked %u answered %u given %llx", outcome.asked, outcome.answered, (unsigned long long)outcome.given);
    sweep_say(" quiet %u", SWEPT(neighbour_read(&stations[1], questions, &quiet)));
    sweep_say(" %d", quiet);
    SWEPT_VOID(neighbour_ring(&stations[1]));
    sweep_say(" rung %u", SWEPT(neighbour_read(&stations[1], questions, &quiet)));
    sweep_say(" %d", quiet);
    sweep_say(" open %d", SWEPT(neighbour_is_open(&stations[0])));
    for (unsigned int i = 0; i < COUNT(stations); i++) {
        SWEPT_VOID(neighbour_close(&stations[i]));
        sweep_say(" close %d", stations[i].fd);
    }
    sweep_say(" open %d", SWEPT(neighbour_is_open(&stations[0])));
    SWEPT_VOID(neighbour_ring(&stations[1]));
    SWEPT_VOID(neighbour_answer(&stations[1], questions, 1));
    left();
}

/* More stations, and more questions, than there is room for; an asker that has enough. */
static void tell_neighbours_crowd(void)
{
    static struct neighbour_station many[NEIGHBOURS_MAX + 1];
    static const uint64_t wanted[] = {1, UINT64_C(1) << 40, (UINT64_C(1) << 40) + 1};
    struct neighbour_question questions[NEIGHBOUR_BATCH];
    struct neighbour_outcome outcome;
    bool quiet;

    for (unsigned int i = 0; i < 3; i++)
        stations[i].fd = -1;
    for (unsigned int i = 0; i < 2; i++)
        sweep_say(" listen %d", SWEPT(neighbour_listen(&stations[i], &card)));
    for (unsigned int i = 0; i < COUNT(wanted); i++) {
        sys.waits = answer;
        SWEPT_VOID(neighbour_ask(&card, NULL, wanted[i], 1000000000, &outcome));
        sweep_say(" answered %u", outcome.answered);
    }
    for (unsigned int i = 0; i < 4; i++) {
        sys.waits = answer;
        SWEPT_VOID(neighbour_ask(&card, NULL, 0, i * 1000, &outcome));
        sweep_say(" %u of %u in %u us", outcome.answered, outcome.asked, i);
    }
    SWEPT_VOID(neighbour_ask(&card, &stations[2], 0, 2000001000, &outcome));
    sweep_say(" of %u", outcome.asked);
    sys.interrupted = true; /* so many reads are one batch */
    sweep_say(" read %u", SWEPT(neighbour_read(&stations[0], questions, &quiet)));
    sys.interrupted = false;
    for (unsigned int i = 0; i < COUNT(many); i++) {
        many[i].fd = -1;
        sweep_say(" %d", SWEPT(neighbour_listen(&many[i], &card)));
    }
}

/* --- the socket of cupool-ctl --- */

#define PEERS      2
#define PAUSE_OVER 200000000u

static char folder[64];
static struct sockaddr_un at;

static int peer(void)
{
    const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    return connect(fd, (const struct sockaddr *)&at, sizeof(at)) ? -1 : fd;
}

static void answered(int fd)
{
    char text[64] = "";
    const ssize_t n = recv(fd, text, sizeof(text), MSG_DONTWAIT);
    struct ctl_reply reply;

    memcpy(&reply, text, sizeof(reply));
    sweep_say(" peer %zd", n);
    if (n > (ssize_t)sizeof(reply))
        sweep_say(" %d %u %s", reply.rc, reply.size, text + sizeof(reply));
}

static void served(uint64_t now, int fd)
{
    struct pollfd fds[CTL_PEERS + 2];
    struct ctl_request request = {0};
    const unsigned int count = SWEPT(ctl_socket_listen(fds, COUNT(fds)));

    sweep_say(" polls %u", count);
    for (unsigned int i = 0; i < count; i++)
        sweep_note("%s %d", system_name(fds[i].fd), fds[i].events);
    if (!SWEPT(ctl_socket_read(now, &request))) {
        sweep_say(" nothing");
    } else {
        sweep_say(" read %u", request.command);
        sweep_say(" awaited %d", SWEPT(ctl_socket_is_awaited()));
        sweep_say(" reply %d", SWEPT(ctl_socket_reply(-7, "text", 4)));
    }
    sweep_say(" due %llu", (unsigned long long)SWEPT(ctl_socket_due()));
    answered(fd);
}

static void tell_ctl(void)
{
    static const struct ctl_request good = {.magic = CTL_MAGIC, .version = CTL_VERSION, .command = 9, .device = 3};
    int peers[PEERS] = {-1, -1};
    const char *why = "none";
    char above[sizeof(folder)] = "/tmp/cupool-sweep-XXXXXX";

    if (!mkdtemp(above))
        sweep_say(" no folder");
    snprintf(folder, sizeof(folder), "%.40s/made", above);
    at.sun_family = AF_UNIX;
    snprintf(at.sun_path, sizeof(at.sun_path), "%.60s/cupool-%d.sock", folder, (int)getpid());
    for (int again = 0; again < 2; again++) {
        sweep_say(" open %d", SWEPT(ctl_socket_open(folder, &why)));
        sweep_say(" %s", why ? why : "-");
        peers[0] = peer();
        served(1000, peers[0]);
        (void)!send(peers[0], &good, sizeof(good), MSG_NOSIGNAL);
        SWEPT_VOID(ctl_socket_ring());
        SWEPT_VOID(ctl_socket_ring());
        served(2000, peers[0]);
        peers[1] = peer();
        served(3000, peers[1]);
        served(PAUSE_OVER, peers[1]);
        served(PAUSE_OVER + CTL_PATIENCE_NS, peers[1]);
        SWEPT_VOID(ctl_socket_close(/* forked: */ again));
        for (int i = 0; i < PEERS; i++)
            if (peers[i] >= 0)
                close(peers[i]);
        sweep_say(access(at.sun_path, F_OK) ? " gone" : " there");
        left();
    }
    unlink(at.sun_path);
    sweep_say(rmdir(folder) ? " more in the folder" : "");
    rmdir(above);
}

/* More connections than there is room for. */
static void tell_ctl_crowd(void)
{
    struct pollfd fds[CTL_PEERS + 2];
    struct ctl_request request;
    char above[sizeof(folder)] = "/tmp/cupool-sweep-XXXXXX";
    const char *why;
    int peers[CTL_PEERS + 3];

    if (!mkdtemp(above))
        sweep_say(" no folder");
    at.sun_family = AF_UNIX;
    snprintf(at.sun_path, sizeof(at.sun_path), "%.60s/cupool-%d.sock", above, (int)getpid());
    sweep_say(" open %d", SWEPT(ctl_socket_open(above, &why)));
    for (unsigned int i = 0; i < COUNT(peers); i++) {
        if (i == CTL_PEERS - 2 || i == CTL_PEERS + 1)
            sweep_say(" %d", SWEPT(ctl_socket_read(i * 1000, &request)));
        peers[i] = peer();
    }
    for (unsigned int i = 0; i < 2; i++)
        sweep_say(" %d", SWEPT(ctl_socket_read(CTL_PATIENCE_NS - 1000, &request)));
    for (unsigned int max = CTL_PEERS; max < CTL_PEERS + 3; max++)
        sweep_say(" polls %u", SWEPT(ctl_socket_listen(fds, max)));
    for (unsigned int i = 0; i < COUNT(peers); i++)
        answered(peers[i]);
    for (uint64_t i = 0; i < 15; i++) {
        sweep_say(" %d", SWEPT(ctl_socket_read(CTL_PATIENCE_NS + i * 1000, &request)));
        sweep_say(" due %llu", (unsigned long long)SWEPT(ctl_socket_due()));
    }
    SWEPT_VOID(ctl_socket_close(/* forked: */ false));
    rmdir(above);
    left();
}

/* --- processes --- */

static const char *stat_of(const char *path)
{
    static unsigned int asked;
    static const char *const texts[] = {
        "42 (a) b) S 1 1 1 0 -1 4194304 1 0 0 0 1 2 3 4 20 0 3 0 777 1 2 3 4 5 6666 8 9",
        "42 (a) b) S 1 1 1 0 -1 4194304 1 0 0 0 1 2 3 4 20 0 3 0 777 1 2 3 4 5 6666 8 9",
        "42 (a) b) Z 1 1 1 0 -1 4194304 1 0 0 0 1 2 3 4 20 0 2 0 777 1 2 3 4 5 0 8 9",
        "42 (a) b) Z 1 1 1 0 -1 4194304 1 0 0 0 1 2 3 4 20 0 1 0 777 1 2 3 4 5 0 8 9",
        "42 (a) b) X 1 1 1 0 -1 4194304 1 0 0 0 1 2 3 4 20 0 1 0 777 1 2 3 4 5 0 8 9",
        "42 (a) b) S 1 1 1 0 -1 4194304 1 0 0 0 1 2 3 4 20 0 3 0 778 1 2 3 4 5 6666 8 9",
        "42 (a) b) S 1 1 1 0 -1 4194304 1 0 0 0 1 2 3 4 20 0 3 0 777 1 2 3 4 5 6667 8 9",
        "42 (a) b) S 1 1 1 0 -1 4194304 1 0 0 0 1 2 3 4 20 0 3 0 777 1 2 3 4 5",
        "no process",
        NULL,
    };

    sweep_note("%s", path);
    return texts[asked++ % COUNT(texts)];
}

static void tell_processes(void)
{
    struct peer_process process, old = {.pid = 42};

    sys.file = stat_of;
    for (unsigned int i = 0; i < 2; i++) {
        process = SWEPT(peer_process_of(42));
        sweep_say(" %d started %llu stack %llu lives", process.pid, process.start, process.stack);
        for (unsigned int k = 0; k < 9; k++)
            sweep_say(" %d", SWEPT(peer_process_lives(i ? &old : &process)));
    }
    left();
}

UNIT_CASE(test_sweep)
{
    static const struct sweep_story stories[] = {{"connections", tell_connections, SWEEP_CALLS},
                                                 {"their descriptors", tell_connections, SWEEP_DESCRIPTORS},
                                                 {"names", tell_names, SWEEP_CALLS},
                                                 {"limits", tell_limits, SWEEP_DESCRIPTORS},
                                                 {"several", tell_several, SWEEP_DESCRIPTORS},
                                                 {"marks", tell_marks, SWEEP_CALLS},
                                                 {"neighbours", tell_neighbours, SWEEP_CALLS},
                                                 {"their stations' descriptors", tell_neighbours, SWEEP_DESCRIPTORS},
                                                 {"crowd", tell_neighbours_crowd, SWEEP_ONCE},
                                                 {"ctl", tell_ctl, SWEEP_CALLS},
                                                 {"its descriptors", tell_ctl, SWEEP_DESCRIPTORS},
                                                 {"its crowd", tell_ctl_crowd, SWEEP_ONCE},
                                                 {"processes", tell_processes, SWEEP_CALLS}};

    sweep_test("shim/base/sweep_sockets", stories, COUNT(stories));
}
