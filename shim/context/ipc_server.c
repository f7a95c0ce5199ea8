/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ipc_server.c - see ipc_server.h.
 *
 * Locking: server.lock is for the opening of the station alone. The connections belong to the background thread.
 */
#include "context/ipc_server.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/descriptor.h"
#include "base/ipc_socket.h"
#include "base/log.h"
#include "base/peer_process.h"
#include "clock.h"
#include "context/ipc_table.h"

/* The intervals, in nanoseconds, at which importers are looked at: those that have left without a word, and, since a
 * child that they have forked keeps their connection open, those that hold blocks. */
#define LOOK_NS      20000000u
#define LOOK_HELD_NS 1000000000u
/* Connections taken, and messages read of each connection, in one tick: nobody keeps the thread from its other work. */
#define ACCEPTS  16
#define MESSAGES 64
/* The pause, in nanoseconds, after connections of other users: they can make as many as they like. */
#define PAUSE_NS 1000000u
/* The pause after one for which the process has no descriptor left. */
#define DESCRIPTOR_PAUSE_NS 100000000u

struct connection {
    bool used;
    struct ipc_descriptor socket; /* fd -1: ended; the process is looked at until it is gone */
    struct peer_process process;
    struct ipc_holder holder;
};

static struct {
    pthread_mutex_t lock; /* guards the opening */
    atomic_bool open;     /* set once station, name and bell are there */
    struct ipc_name name;
    struct ipc_descriptor station, bell[2]; /* what is written to bell[1] arrives at bell[0] */
    struct connection connections[IPC_CONNECTIONS_MAX];
    uint64_t pause, look;
} server = {.lock = PTHREAD_MUTEX_INITIALIZER};

static int bell_make(void)
{
    int pair[2];

    server.bell[0].fd = server.bell[1].fd = -1;
    if (socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair))
        return -errno;
    for (int i = 0; i < 2; i++) {
        ipc_keep(file_aside(pair[i]), &server.bell[i]);
    }
    return 0;
}

int ipc_server_begin(struct ipc_name *ret_station, bool *ret_new)
{
    int rc = 0;

    *ret_new = false;
    pthread_mutex_lock(&server.lock);
    if (!atomic_load(&server.open)) {
        rc = ipc_listen(&server.station, &server.name);
        if (!rc && (rc = bell_make()))
            ipc_leave(&server.station);
        *ret_new = !rc;
        atomic_store(&server.open, !rc);
    }
    *ret_station = server.name;
    pthread_mutex_unlock(&server.lock);
    return rc;
}

bool ipc_server_is(const struct ipc_name *station)
{
    return atomic_load(&server.open) && ipc_name_equal(station, &server.name);
}

/* The connection ends. Its holder's blocks stay held while the process lives. */
static void connection_lost(struct connection *connection)
{
    ipc_end(&connection->socket);
    if (!connection->holder.first)
        connection->used = false;
    server.look = now_ns();
}

/* Answer a request. Without room for the answer the importer would wait in vain, so the connection ends. */
static void open_answer(struct connection *connection, const struct ipc_request *request)
{
    struct ipc_grant grant;
    int fd, rc;

    ipc_table_grant(&connection->holder, request, &grant, &fd);
    if (!server.look)
        server.look = now_ns() + LOOK_HELD_NS;
    rc = ipc_send(&connection->socket, &grant, sizeof(grant), fd);
    if (fd >= 0)
        close(fd);
    if (!rc)
        return;
    /* It was not sent, so the importer does not have the block. */
    if (grant.status == IPC_GRANTED)
        ipc_table_close(&connection->holder, &request->block);
    connection_lost(connection);
}

static void connection_serve(struct connection *connection)
{
    for (int i = 0; i < MESSAGES && connection->socket.fd >= 0; i++) {
        struct ipc_request request, raw[2];
        int fd;
        const ssize_t n = ipc_receive(&connection->socket, raw, sizeof(raw), &fd);

        if (fd >= 0) /* nobody has asked for it */
            close(fd);
        if (n == -EAGAIN)
            return;
        if (n <= 0 || !ipc_request_read(raw, (size_t)n, &request)) {
            connection_lost(connection);
            return;
        }
        if (request.kind == IPC_OPEN)
            open_answer(connection, &request);
        else
            ipc_table_close(&connection->holder, &request.block);
    }
}

static struct connection *connection_new(void)
{
    for (unsigned int i = 0; i < IPC_CONNECTIONS_MAX; i++)
        if (!server.connections[i].used)
            return &server.connections[i];
    return NULL;
}

/* Take the connections that wait. With no room for one, it waits on. */
static void connections_take(void)
{
    struct connection *connection;
    int pid, rc;

    for (int i = 0; i < ACCEPTS && (connection = connection_new()); i++) {
        rc = ipc_accept(&server.station, &connection->socket, &pid);
        if (rc == -EPERM)
            server.pause = now_ns() + PAUSE_NS;
        else if (rc && rc != -EAGAIN) /* it is reported by every poll */
            server.pause = now_ns() + DESCRIPTOR_PAUSE_NS;
        if (rc && rc != -EPERM)
            return;
        if (rc)
            continue;
        connection->process = (struct peer_process){.pid = pid};
        connection->holder.first = NULL;
        connection->used = true;
        connection_serve(connection); /* an importer connects to ask: its request need not wait for another poll */
        if (connection->used)         /* after the answer: reading /proc takes longer than all else here */
            connection->process = peer_process_of(pid);
    }
}

/* Take back what importers hold that have ended. */
static void importers_look(uint64_t now)
{
    bool lost = false, held = false;

    for (unsigned int i = 0; i < IPC_CONNECTIONS_MAX; i++) {
        struct connection *connection = &server.connections[i];

        if (!connection->used || !connection->holder.first) /* without a hold it is free once it is lost */
            continue;
        if (peer_process_lives(&connection->process)) {
            lost |= connection->socket.fd < 0;
            held = true;
            continue;
        }
        ipc_table_end(&connection->holder);
        ipc_end(&connection->socket);
        connection->used = false;
    }
    server.look = lost ? now + LOOK_NS : held ? now + LOOK_HELD_NS : 0;
}

uint64_t ipc_server_due(uint64_t now)
{
    uint64_t due = server.look ? server.look : UINT64_MAX;

    return server.pause > now && server.pause < due ? server.pause : due;
}

void ipc_server_tick(uint64_t now)
{
    char rung[16];

    if (!atomic_load(&server.open))
        return;
    while (ipc_is_open(&server.bell[0]) && recv(server.bell[0].fd, rung, sizeof(rung), MSG_DONTWAIT) > 0)
        ;
    for (unsigned int i = 0; i < IPC_CONNECTIONS_MAX; i++) {
        struct connection *connection = &server.connections[i];

        if (connection->used && connection->socket.fd >= 0)
            connection_serve(connection);
    }
    if (now >= server.pause && ipc_is_open(&server.station))
        connections_take();
    if (server.look && now_ns() >= server.look)
        importers_look(now_ns());
}

unsigned int ipc_server_listen(struct pollfd *fds, unsigned int max)
{
    unsigned int count = 0;

    if (!atomic_load(&server.open) || max < 2)
        return 0;
    if (ipc_is_open(&server.bell[0]))
        fds[count++] = (struct pollfd){.fd = server.bell[0].fd, .events = POLLIN};
    if (now_ns() >= server.pause && ipc_is_open(&server.station) && connection_new())
        fds[count++] = (struct pollfd){.fd = server.station.fd, .events = POLLIN};
    for (unsigned int i = 0; i < IPC_CONNECTIONS_MAX && count < max; i++) {
        const struct connection *connection = &server.connections[i];

        if (connection->used && ipc_is_open(&connection->socket))
            fds[count++] = (struct pollfd){.fd = connection->socket.fd, .events = POLLIN};
    }
    return count;
}

void ipc_server_ring(void)
{
    const int saved = errno;

    /* The system call itself: send() would be a cancellation point in a thread of the program. */
    if (atomic_load(&server.open) && ipc_is_open(&server.bell[1]))
        syscall(SYS_sendto, server.bell[1].fd, "", (size_t)1, MSG_DONTWAIT | MSG_NOSIGNAL, NULL, (socklen_t)0);
    errno = saved;
}

/* Close every descriptor of this process; `leave` is how. */
static void close_all(void (*leave)(struct ipc_descriptor *))
{
    if (!atomic_exchange(&server.open, false))
        return;
    for (unsigned int i = 0; i < IPC_CONNECTIONS_MAX; i++) {
        if (server.connections[i].used)
            leave(&server.connections[i].socket);
        server.connections[i].used = false;
        server.connections[i].holder.first = NULL;
    }
    ipc_leave(&server.station);
    for (int i = 0; i < 2; i++)
        ipc_leave(&server.bell[i]);
}

void ipc_server_end(void)
{
    close_all(ipc_end);
}

void ipc_server_forget(void)
{
    pthread_mutex_init(&server.lock, NULL);
    close_all(ipc_leave); /* the connections go on for the parent */
}
