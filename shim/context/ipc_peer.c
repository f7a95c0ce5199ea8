/* SPDX-License-Identifier: Apache-2.0 */
/* ipc_peer.c - see ipc_peer.h. No locks. */
#include "context/ipc_peer.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#include "base/array.h"
#include "base/conf.h"
#include "base/ipc_socket.h"
#include "clock.h"

/* The time, in nanoseconds, for which an answer is looked for before the thread sleeps: to wake it would take a good
 * part of the exporter's time to answer. */
#define LOOK_NS 100000u

struct ipc_peer {
    struct ipc_name station;
    struct ipc_descriptor socket;
    uint64_t number;         /* of the last request */
    unsigned int uses;       /* grants */
    struct ipc_name *unsaid; /* blocks that are closed, which the exporter has had no room to hear */
    size_t unsaid_count, unsaid_room;
    struct ipc_peer *next;
};

uint64_t ipc_peer_limit(void)
{
    const uint64_t ms = conf_get()->ipc.number;

    return now_ns() + (ms < UINT32_MAX ? ms : UINT32_MAX) * 1000000u;
}

static struct ipc_peer *peer_of(struct ipc_peers *peers, const struct ipc_name *station, uint64_t limit, int *ret_rc)
{
    struct ipc_peer *peer = peers->first;

    while (peer && !ipc_name_equal(&peer->station, station))
        peer = peer->next;
    *ret_rc = 0;
    if (peer && !ipc_is_open(&peer->socket)) /* the program has closed it; what is open stays held until we end */
        *ret_rc = ipc_connect(station, limit, &peer->socket);
    if (peer)
        return *ret_rc ? NULL : peer;
    peer = calloc(1, sizeof(*peer));
    *ret_rc = peer ? ipc_connect(station, limit, &peer->socket) : -ENOMEM;
    if (*ret_rc) {
        free(peer);
        return NULL;
    }
    peer->station = *station;
    peer->next = peers->first;
    peers->first = peer;
    return peer;
}

/* A connection without a use ends, once the exporter has heard of every close. */
static void peer_drop(struct ipc_peers *peers, struct ipc_peer *peer)
{
    struct ipc_peer **at = &peers->first;

    if (peer->uses || peer->unsaid_count)
        return;
    while (*at != peer)
        at = &(*at)->next;
    *at = peer->next;
    ipc_end(&peer->socket);
    free(peer->unsaid);
    free(peer);
}

static int close_say(struct ipc_peer *peer, const struct ipc_name *block, uint64_t limit)
{
    struct ipc_request request;

    ipc_request_make(&request, IPC_CLOSE, 0, block);
    return ipc_send_by(&peer->socket, &request, sizeof(request), limit);
}

/* False: the exporter still has no room. Where it has ended, nobody needs to hear it. */
static bool unsaid_say(struct ipc_peer *peer)
{
    while (peer->unsaid_count &&
           close_say(peer, &peer->unsaid[peer->unsaid_count - 1], /* limit: do not wait */ 0) != -ETIMEDOUT)
        peer->unsaid_count--;
    return !peer->unsaid_count;
}

static void unsaid_say_all(struct ipc_peers *peers)
{
    for (struct ipc_peer *peer = peers->first, *next; peer; peer = next) {
        next = peer->next;
        if (peer->unsaid_count && unsaid_say(peer))
            peer_drop(peers, peer);
    }
}

/* Without host memory the exporter holds the block until this process ends. */
static void unsaid_add(struct ipc_peer *peer, const struct ipc_name *block)
{
    struct ipc_name *unsaid = array_grown(peer->unsaid, peer->unsaid_count, &peer->unsaid_room, sizeof(*unsaid));

    if (!unsaid)
        return;
    peer->unsaid = unsaid;
    peer->unsaid[peer->unsaid_count++] = *block;
}

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

/* An exporter that was waited for in vain is not waited for again, until it has room. */
static void request_close(struct ipc_peer *peer, const struct ipc_name *block, uint64_t limit)
{
    if (!unsaid_say(peer) || close_say(peer, block, limit) == -ETIMEDOUT)
        unsaid_add(peer, block);
}

static int ask(struct ipc_peer *peer, const struct ipc_name *block, uint64_t limit, struct ipc_grant *ret_grant,
               int *ret_fd)
{
    struct ipc_request request;
    int rc;

    ipc_request_make(&request, IPC_OPEN, ++peer->number, block);
    rc = ipc_send_by(&peer->socket, &request, sizeof(request), limit);
    if (!rc) {
        rc = grant_receive(peer, limit, ret_grant, ret_fd);
        if (rc)
            request_close(peer, block, /* limit: do not wait */ 0);
    }
    return rc;
}

static int peer_ask(struct ipc_peers *peers, const struct ipc_ticket *ticket, uint64_t limit,
                    struct ipc_peer **ret_peer, struct ipc_grant *ret_grant, int *ret_fd)
{
    struct ipc_peer *peer;
    int rc;

    unsaid_say_all(peers);
    peer = peer_of(peers, &ticket->station, limit, &rc);
    *ret_fd = -1;
    if (!peer)
        return rc;
    rc = ask(peer, &ticket->block, limit, ret_grant, ret_fd);
    if (!rc && ret_grant->status != IPC_GRANTED)
        rc = ret_grant->status == IPC_GONE ? -ENOENT : -ENOSPC;
    if (rc && *ret_fd >= 0) { /* it came with an empty message */
        close(*ret_fd);
        *ret_fd = -1;
    }
    peer->uses += !rc;
    peer_drop(peers, peer);
    *ret_peer = rc ? NULL : peer;
    return rc;
}

int ipc_peer_ask(struct ipc_peers *peers, const struct ipc_ticket *ticket, uint64_t limit, struct ipc_peer **ret_peer,
                 struct ipc_grant *ret_grant, int *ret_fd)
{
    const int saved = errno, rc = peer_ask(peers, ticket, limit, ret_peer, ret_grant, ret_fd);

    errno = saved;
    return rc;
}

void ipc_peer_close(struct ipc_peers *peers, struct ipc_peer *peer, const struct ipc_name *block, uint64_t limit)
{
    const int saved = errno;

    request_close(peer, block, limit);
    peer->uses--;
    peer_drop(peers, peer);
    unsaid_say_all(peers);
    errno = saved;
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

void ipc_peers_forget(struct ipc_peers *peers)
{
    for (struct ipc_peer *peer = peers->first; peer; peer = peer->next)
        ipc_leave(&peer->socket);
    peers->first = NULL;
}
