/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_peer.c - shim/context/ipc_peer.c: answers that come late, and connections that the program has closed. This
 * process is the exporter, too; its answers are sent before they are waited for, so that nothing depends on time.
 */
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/conf.h"
#include "base/ipc_socket.h"
#include "cases.h"
#include "clock.h"
#include "context/ipc_peer.h"

#define SECOND_NS UINT64_C(1000000000)

static struct ipc_descriptor station, exporter;
static struct ipc_ticket ticket;
static struct ipc_peers peers;

const struct conf *conf_get(void)
{
    static const struct conf conf;

    return &conf;
}

static int start(void **state)
{
    struct ipc_name name;

    memset(&peers, 0, sizeof(peers));
    assert_int_equal(ipc_listen(&station, &name), 0);
    ipc_ticket_make(&ticket, (int)getpid(), &name, &(struct ipc_name){{3}});
    return *state != NULL;
}

static int end(void **state)
{
    ipc_peers_forget(&peers);
    ipc_leave(&exporter);
    ipc_leave(&station);
    return *state != NULL;
}

/* The kind of the message that the exporter reads next; 0: there is none. */
static unsigned int heard(uint64_t *ret_number)
{
    struct ipc_request raw[2], request = {.kind = 0};
    int fd;
    const ssize_t n = ipc_receive(&exporter, raw, sizeof(raw), &fd);

    if (n > 0)
        assert_true(ipc_request_read(raw, (size_t)n, &request));
    *ret_number = request.number;
    return request.kind;
}

static void answer(uint64_t number, uint64_t offset)
{
    struct ipc_grant grant;

    ipc_grant_begin(&grant, number, IPC_GRANTED);
    grant.how = IPC_NATIVE;
    grant.segment_size = 4096;
    grant.offset = offset;
    grant.size = 512;
    assert_int_equal(ipc_send(&exporter, &grant, sizeof(grant), -1), 0);
}

static int asked(uint64_t limit, struct ipc_peer **ret_peer, uint64_t *ret_offset)
{
    struct ipc_grant grant = {.offset = 0};
    int fd;
    const int rc = ipc_peer_ask(&peers, &ticket, limit, ret_peer, &grant, &fd);

    assert_int_equal(fd, -1);
    *ret_offset = grant.offset;
    return rc;
}

static void *first_answer(void *arg)
{
    uint64_t number;
    int pid;

    while (ipc_accept(&station, &exporter, &pid))
        nap_ns(100000);
    while (heard(&number) != IPC_OPEN)
        nap_ns(100000);
    answer(number, 256);
    return arg;
}

/* The connection stays from here on: a block is open. */
static struct ipc_peer *connected(void)
{
    struct ipc_peer *peer;
    pthread_t thread;
    uint64_t offset;

    assert_int_equal(pthread_create(&thread, NULL, first_answer, NULL), 0);
    assert_int_equal(asked(now_ns() + 60 * SECOND_NS, &peer, &offset), 0);
    assert_int_equal(offset, 256);
    pthread_join(thread, NULL);
    return peer;
}

/* A block that nobody waits for any more is given back, and its grant is no answer to the next request. */
CASE_WITH(test_late, start, end)
{
    struct ipc_peer *first = connected(), *peer;
    uint64_t offset, number;

    assert_int_equal(asked(0, &peer, &offset), -ETIMEDOUT);
    assert_null(peer);
    assert_int_equal(heard(&number), IPC_OPEN);
    assert_int_equal(number, 2);
    assert_int_equal(heard(&number), IPC_CLOSE);
    answer(2, 512);
    answer(3, 1024);
    assert_int_equal(asked(now_ns() + 60 * SECOND_NS, &peer, &offset), 0);
    assert_ptr_equal(peer, first);
    assert_int_equal(offset, 1024);
    for (int i = 0; i < 2; i++)
        ipc_peer_close(&peers, first, &ticket.block, 0);
    assert_null(peers.first);
}

/* The importer's end of the connection, as a program that closes every descriptor would find it. */
static int importers_end(void)
{
    struct sockaddr_un at;
    socklen_t len;

    for (int fd = 3; fd < 400; fd++) {
        len = sizeof(at);
        if (getpeername(fd, (struct sockaddr *)&at, &len) == 0 && len > sizeof(sa_family_t))
            return fd;
    }
    return -1;
}

/* The program has closed the connection: there is another one, and what is open stays so. */
CASE_WITH(test_closed_by_the_program, start, end)
{
    struct ipc_peer *first = connected(), *peer;
    uint64_t offset, number;
    int pid;

    assert_int_equal(close(importers_end()), 0);
    assert_int_equal(asked(0, &peer, &offset), -ETIMEDOUT);
    ipc_leave(&exporter);
    assert_int_equal(ipc_accept(&station, &exporter, &pid), 0);
    assert_int_equal(heard(&number), IPC_OPEN);
    answer(3, 1024);
    assert_int_equal(asked(now_ns() + 60 * SECOND_NS, &peer, &offset), 0);
    assert_ptr_equal(peer, first);
    for (int i = 0; i < 2; i++)
        ipc_peer_close(&peers, first, &ticket.block, 0);
    assert_null(peers.first);
}
