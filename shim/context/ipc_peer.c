/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ipc_peer.c - see ipc_peer.h.
 *
 * Locking: peers.lock guards the list, and what its entries say otherwise. It is a leaf, held over system calls that do
 * not wait: a close is sent with it. A thread that asks an exporter has set busy in its entry, and waits for the answer
 * without the lock; other threads that want to ask that exporter wait until it is no longer busy.
 */
#include "context/ipc_peer.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#include "base/array.h"
#include "base/conf.h"
#include "base/ipc_socket.h"
#include "clock.h"
#include "context/events.h"

/* The time, in nanoseconds, for which an answer is looked for before the thread sleeps: to wake it would take a good
 * part of the exporter's time to answer. */
#define LOOK_NS 100000u
/* The interval, in nanoseconds, at which an exporter that has had no room is tried again. */
#define AGAIN_NS 20000000u

struct ipc_peer {
    struct ipc_name station;
    struct ipc_descriptor socket; /* changed with the lock, by the thread that asks */
    uint64_t number;              /* of the last request; that thread's */
    bool busy;                    /* a thread asks */
    pthread_cond_t idle;          /* busy has become false */
    unsigned int uses;            /* grants, and threads that ask or are about to */
    struct ipc_name *unsaid;      /* blocks that are closed, which the exporter has had no room to hear */
    size_t unsaid_count, unsaid_room;
    struct ipc_peer *next;
};

static struct {
    pthread_mutex_t lock;
    struct ipc_peer *first;
    atomic_bool unsaid; /* an exporter has yet to hear of a close; set with the lock */
} peers = {.lock = PTHREAD_MUTEX_INITIALIZER};

uint64_t ipc_peer_limit(void)
{
    const uint64_t ms = conf_get()->ipc.number;

    return now_ns() + (ms < UINT32_MAX ? ms : UINT32_MAX) * 1000000u;
}

/* --- with the lock --- */

static void idle_init(pthread_cond_t *idle)
{
    pthread_condattr_t monotonic;

    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(idle, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

/* The exporter with this station, with one use more. NULL: there is no host memory. */
static struct ipc_peer *peer_get(const struct ipc_name *station)
{
    struct ipc_peer *peer = peers.first;

    while (peer && !ipc_name_equal(&peer->station, station))
        peer = peer->next;
    if (!peer && (peer = calloc(1, sizeof(*peer)))) {
        peer->station = *station;
        peer->socket.fd = -1;
        idle_init(&peer->idle);
        peer->next = peers.first;
        peers.first = peer;
    }
    if (peer)
        peer->uses++;
    return peer;
}

/* A connection without a use ends, once the exporter has heard of every close. */
static void peer_drop(struct ipc_peer *peer)
{
    struct ipc_peer **at = &peers.first;

    if (peer->uses || peer->unsaid_count)
        return;
    while (*at != peer)
        at = &(*at)->next;
    *at = peer->next;
    ipc_end(&peer->socket);
    pthread_cond_destroy(&peer->idle);
    free(peer->unsaid);
    free(peer);
}

/* False: the exporter has no room, or the kernel no memory, for the message. Where the exporter has ended, nobody needs
 * to hear it. */
static bool close_say(const struct ipc_peer *peer, const struct ipc_name *block)
{
    struct ipc_request request;
    int rc;

    ipc_request_make(&request, IPC_CLOSE, 0, block);
    rc = ipc_send(&peer->socket, &request, sizeof(request), -1);
    return rc != -EAGAIN && rc != -ENOBUFS && rc != -ENOMEM;
}

/* False: the exporter still has no room. */
static bool unsaid_say(struct ipc_peer *peer)
{
    while (peer->unsaid_count && close_say(peer, &peer->unsaid[peer->unsaid_count - 1]))
        peer->unsaid_count--;
    return !peer->unsaid_count;
}

static void unsaid_say_all(void)
{
    bool unsaid = false;

    if (!atomic_load(&peers.unsaid))
        return;
    for (struct ipc_peer *peer = peers.first, *next; peer; peer = next) {
        next = peer->next;
        if (unsaid_say(peer))
            peer_drop(peer);
        else
            unsaid = true;
    }
    atomic_store(&peers.unsaid, unsaid);
}

/* Without host memory the exporter holds the block until this process ends. */
static void unsaid_add(struct ipc_peer *peer, const struct ipc_name *block)
{
    struct ipc_name *unsaid = array_grown(peer->unsaid, peer->unsaid_count, &peer->unsaid_room, sizeof(*unsaid));

    if (!unsaid)
        return;
    peer->unsaid = unsaid;
    peer->unsaid[peer->unsaid_count++] = *block;
    atomic_store(&peers.unsaid, true);
}

static void request_close(struct ipc_peer *peer, const struct ipc_name *block)
{
    if (!unsaid_say(peer) || !close_say(peer, block))
        unsaid_add(peer, block);
}

/* Wait until no other thread asks the exporter, and keep others from it. -ETIMEDOUT. */
static int turn_take(struct ipc_peer *peer, uint64_t limit)
{
    const struct timespec until = {(time_t)(limit / 1000000000), (long)(limit % 1000000000)};
    int rc = 0;

    while (peer->busy && !rc)
        rc = pthread_cond_timedwait(&peer->idle, &peers.lock, &until);
    if (peer->busy)
        return -ETIMEDOUT;
    peer->busy = true;
    return 0;
}

static void turn_end(struct ipc_peer *peer)
{
    peer->busy = false;
    pthread_cond_signal(&peer->idle);
}

/* Release the lock, and let the background thread say what an exporter has had no room to hear since `unsaid` was read.
 */
static void unlock(bool unsaid)
{
    const bool is_new = !unsaid && atomic_load(&peers.unsaid);

    pthread_mutex_unlock(&peers.lock);
    if (is_new)
        context_events.closes_left();
}

/* --- by the thread that asks, without the lock --- */

/* Receive the answer to the last request. 0; -EPROTO: the exporter has sent something else. */
static int grant_receive(struct ipc_peer *peer, uint64_t limit, struct ipc_grant *ret_grant, int *ret_fd)
{
    const uint64_t sleeps = now_ns() + LOOK_NS;
    struct ipc_grant raw[2];
    ssize_t n;
    int rc;

    for (;;) {
        n = ipc_receive(&peer->socket, raw, sizeof(raw), ret_fd);
        if (n == -EAGAIN && now_ns() < sleeps) {
            sched_yield(); /* the exporter may have this processor alone */
            continue;
        }
        if (n == -EAGAIN) {
            if ((rc = ipc_wait(&peer->socket, limit)))
                return rc;
            continue;
        }
        if (n <= 0)
            return n ? (int)n : -ECONNRESET;
        rc = ipc_grant_read(raw, (size_t)n, *ret_fd >= 0, ret_grant) ? 0 : -EPROTO;
        if (!rc && ret_grant->number == peer->number)
            return 0;
        if (*ret_fd >= 0)
            close(*ret_fd);
        *ret_fd = -1;
        if (rc) /* an answer to an earlier request, which came too late, is passed over */
            return rc;
    }
}

/* Connect, unless that has been done. Where the program has closed the connection, what is open stays held until this
 * process ends. */
static int connect_to(struct ipc_peer *peer, uint64_t limit)
{
    struct ipc_descriptor socket;
    int rc;

    if (ipc_is_open(&peer->socket))
        return 0;
    rc = ipc_connect(&peer->station, limit, &socket);
    pthread_mutex_lock(&peers.lock); /* another thread may be about to say that it has closed a block */
    peer->socket = socket;
    pthread_mutex_unlock(&peers.lock);
    return rc;
}

static int connect_and_send(struct ipc_peer *peer, const struct ipc_request *request, uint64_t limit)
{
    const int rc = connect_to(peer, limit);

    return rc ? rc : ipc_send_by(&peer->socket, request, sizeof(*request), limit);
}

/* Where the exporter has ended the connection from before, it is connected to once more: an exporter that has no room
 * for an answer does so, and what is open stays held there. */
static int request_send(struct ipc_peer *peer, const struct ipc_request *request, uint64_t limit)
{
    const bool connected = ipc_is_open(&peer->socket);
    const int rc = connect_and_send(peer, request, limit);

    if (!connected || (rc != -EPIPE && rc != -ECONNRESET))
        return rc;
    pthread_mutex_lock(&peers.lock);
    ipc_end(&peer->socket);
    pthread_mutex_unlock(&peers.lock);
    return connect_and_send(peer, request, limit);
}

static int ask(struct ipc_peer *peer, const struct ipc_name *block, uint64_t limit, struct ipc_grant *ret_grant,
               int *ret_fd)
{
    struct ipc_request request;
    bool unsaid;
    int rc;

    ipc_request_make(&request, IPC_OPEN, ++peer->number, block);
    rc = request_send(peer, &request, limit);
    if (rc)
        return rc;
    rc = grant_receive(peer, limit, ret_grant, ret_fd);
    if (rc) {
        pthread_mutex_lock(&peers.lock);
        unsaid = atomic_load(&peers.unsaid);
        request_close(peer, block);
        unlock(unsaid);
    } else if (ret_grant->status != IPC_GRANTED) {
        rc = ret_grant->status == IPC_GONE ? -ENOENT : -ENOSPC;
    }
    if (rc && *ret_fd >= 0) { /* it came with an empty message */
        close(*ret_fd);
        *ret_fd = -1;
    }
    return rc;
}

/* --- the calls --- */

/* With the lock, which is released meanwhile. */
static int peer_ask(const struct ipc_ticket *ticket, uint64_t limit, struct ipc_peer **ret_peer,
                    struct ipc_grant *ret_grant, int *ret_fd)
{
    struct ipc_peer *peer;
    int rc;

    unsaid_say_all();
    peer = peer_get(&ticket->station);
    if (!peer)
        return -ENOMEM;
    rc = turn_take(peer, limit);
    if (!rc) {
        pthread_mutex_unlock(&peers.lock);
        rc = ask(peer, &ticket->block, limit, ret_grant, ret_fd);
        pthread_mutex_lock(&peers.lock);
        turn_end(peer);
    }
    peer->uses -= rc != 0;
    peer_drop(peer);
    *ret_peer = rc ? NULL : peer;
    return rc;
}

int ipc_peer_ask(const struct ipc_ticket *ticket, uint64_t limit, struct ipc_peer **ret_peer,
                 struct ipc_grant *ret_grant, int *ret_fd)
{
    const int saved = errno;
    int rc;

    *ret_fd = -1;
    pthread_mutex_lock(&peers.lock);
    rc = peer_ask(ticket, limit, ret_peer, ret_grant, ret_fd);
    pthread_mutex_unlock(&peers.lock);
    errno = saved;
    return rc;
}

void ipc_peer_close(struct ipc_peer *peer, const struct ipc_name *block)
{
    const int saved = errno;
    bool unsaid;

    pthread_mutex_lock(&peers.lock);
    unsaid = atomic_load(&peers.unsaid);
    request_close(peer, block);
    peer->uses--;
    peer_drop(peer);
    unsaid_say_all();
    unlock(unsaid);
    errno = saved;
}

uint64_t ipc_peer_due(uint64_t now)
{
    return atomic_load(&peers.unsaid) ? now + AGAIN_NS : UINT64_MAX;
}

void ipc_peer_tick(uint64_t now)
{
    (void)now;
    if (!atomic_load(&peers.unsaid))
        return;
    pthread_mutex_lock(&peers.lock);
    unsaid_say_all();
    pthread_mutex_unlock(&peers.lock);
}

const char *ipc_peer_reason(int rc)
{
    switch (rc) {
    case -ECONNREFUSED:
        return "that process has ended, or is in a container of its own";
    case -ECONNRESET:
    case -EPIPE:
        return "that process has ended, or is in a container that does not see this one";
    case -EPERM:
        return "that process is another user's";
    case -ETIMEDOUT:
        return "that process did not answer within CUPOOL_IPC milliseconds; it is stopped, or has no place or "
               "descriptor for one more importer";
    case -ENOENT:
        return "the block has been freed there";
    case -ENOSPC:
        return "that process has no room in its books";
    default:
        return strerror(-rc);
    }
}

void ipc_peer_forget(void)
{
    pthread_mutex_init(&peers.lock, NULL);
    for (struct ipc_peer *peer = peers.first; peer; peer = peer->next)
        ipc_leave(&peer->socket);
    peers.first = NULL;
    atomic_store(&peers.unsaid, false);
}
