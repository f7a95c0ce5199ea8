/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_peer.c - shim/context/ipc_peer.c: answers that come late, connections that the program has closed, exporters
 * that have no room to hear of a close, no descriptor, and threads that ask at once. This process is the exporter, too;
 * its answers are sent before they are waited for, so that nothing depends on time.
 */
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/conf.h"
#include "base/ipc_socket.h"
#include "cases.h"
#include "clock.h"
#include "context/events.h"
#include "context/ipc_peer.h"
#include "wrapped.h"

#define SECOND_NS UINT64_C(1000000000)

static struct ipc_descriptor station, exporter;
static struct ipc_ticket ticket;
static unsigned int left;      /* calls of closes_left */
static atomic_int send_errors; /* so many messages to come are not sent, */
static int send_error;         /* with this error */

WRAPPED(ssize_t, sendmsg, (int fd, const struct msghdr *message, int flags))
{
    if (atomic_load(&send_errors) > 0) {
        atomic_fetch_sub(&send_errors, 1);
        errno = send_error;
        return -1;
    }
    return __real_sendmsg(fd, message, flags);
}

static void closes_left(void)
{
    left++;
}

const struct context_events context_events = {.closes_left = closes_left};

const struct conf *conf_get(void)
{
    static const struct conf conf;

    return &conf;
}

static int start(void **state)
{
    struct ipc_name name;

    left = 0;
    assert_int_equal(ipc_listen(&station, &name), 0);
    ipc_ticket_make(&ticket, (int)getpid(), &name, &(struct ipc_name){{3}});
    return *state != NULL;
}

static int end(void **state)
{
    ipc_peer_forget();
    ipc_leave(&exporter);
    ipc_leave(&station);
    return *state != NULL;
}

static uint64_t long_limit(void)
{
    return now_ns() + 100 * SECOND_NS;
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
    const int rc = ipc_peer_ask(&ticket, limit, ret_peer, &grant, &fd);

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

/* The importer has ended the connection, after any messages. */
static void connection_has_ended(void)
{
    uint64_t number;
    char byte;

    while (heard(&number))
        ;
    assert_int_equal(recv(exporter.fd, &byte, 1, MSG_DONTWAIT), 0);
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
        ipc_peer_close(first, &ticket.block);
    connection_has_ended();
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

/* The connection has ended: there is another one, and what is open stays so. */
static void asked_anew(struct ipc_peer *first)
{
    struct ipc_peer *peer;
    uint64_t offset, number;
    int pid;

    assert_int_equal(asked(0, &peer, &offset), -ETIMEDOUT);
    ipc_leave(&exporter);
    assert_int_equal(ipc_accept(&station, &exporter, &pid), 0);
    assert_int_equal(heard(&number), IPC_OPEN);
    answer(3, 1024);
    assert_int_equal(asked(now_ns() + 60 * SECOND_NS, &peer, &offset), 0);
    assert_ptr_equal(peer, first);
    for (int i = 0; i < 2; i++)
        ipc_peer_close(first, &ticket.block);
    connection_has_ended();
}

CASE_WITH(test_closed_by_the_program, start, end)
{
    struct ipc_peer *first = connected();

    assert_int_equal(close(importers_end()), 0);
    asked_anew(first);
}

/* It has not ended itself: it had no room for an answer, say. A new connection that fails is not made once more. */
CASE_WITH(test_closed_by_the_exporter, start, end)
{
    struct ipc_peer *peer = connected();
    uint64_t offset;

    ipc_end(&exporter);
    asked_anew(peer);
    ipc_leave(&exporter);
    peer = connected();
    send_error = ECONNRESET;
    atomic_store(&send_errors, 1);
    asked_anew(peer);
    send_error = EPIPE;
    atomic_store(&send_errors, 1);
    assert_int_equal(asked(0, &peer, &offset), -EPIPE);
}

/* How many closes the exporter hears now. */
static unsigned int closes_heard(void)
{
    unsigned int count = 0;
    uint64_t number;

    while (heard(&number) == IPC_CLOSE)
        count++;
    return count;
}

/* The grants of a block that is open so many times. */
static struct ipc_peer *granted(unsigned int times)
{
    struct ipc_peer *first = connected(), *peer;
    uint64_t offset, number;

    for (unsigned int i = 1; i < times; i++) {
        answer(i + 1, 0);
        assert_int_equal(asked(now_ns() + 60 * SECOND_NS, &peer, &offset), 0);
        assert_ptr_equal(peer, first);
        assert_int_equal(heard(&number), IPC_OPEN);
    }
    return first;
}

/* A close waits for no exporter, and no close is lost. */
CASE_WITH(test_no_room, start, end)
{
    enum { CLOSES = 2000 };
    struct ipc_peer *peer = granted(CLOSES);
    unsigned int count, sum;

    for (unsigned int i = 0; i < CLOSES; i++)
        ipc_peer_close(peer, &ticket.block);
    assert_int_equal(left, 1);
    assert_int_equal(ipc_peer_due(5), 5 + 20000000);
    ipc_peer_tick(0);
    assert_int_equal(ipc_peer_due(5), 5 + 20000000);
    sum = closes_heard();
    assert_in_range(sum, 1, CLOSES - 1);
    while (ipc_peer_due(0) != UINT64_MAX) {
        ipc_peer_tick(0);
        count = closes_heard();
        assert_int_not_equal(count, 0);
        sum += count;
    }
    assert_int_equal(sum + closes_heard(), CLOSES);
    assert_int_equal(left, 1);
    connection_has_ended();
}

/* The kernel's having no memory is not the end of the exporter. */
CASE_WITH(test_no_memory_for_a_message, start, end)
{
    static const int errors[] = {ENOBUFS, ENOMEM, EAGAIN};
    struct ipc_peer *peer = granted(4);
    uint64_t offset, number;

    for (unsigned int i = 0; i < 3; i++) {
        send_error = errors[i];
        atomic_store(&send_errors, 2);
        ipc_peer_close(peer, &ticket.block);
        assert_int_equal(atomic_load(&send_errors), 0);
        assert_int_equal(left, i + 1);
        assert_int_equal(closes_heard(), 0);
        if (i) {
            ipc_peer_tick(0);
            assert_int_equal(closes_heard(), 1);
        } else { /* it hears of it with the next request, too */
            answer(5, 512);
            assert_int_equal(asked(now_ns() + 60 * SECOND_NS, &peer, &offset), 0);
            assert_int_equal(heard(&number), IPC_CLOSE);
            assert_int_equal(heard(&number), IPC_OPEN);
        }
        assert_int_equal(ipc_peer_due(0), UINT64_MAX);
    }
    for (int i = 0; i < 2; i++)
        ipc_peer_close(peer, &ticket.block);
    connection_has_ended();
}

/* An exporter that has ended need not hear anything. */
CASE_WITH(test_ended, start, end)
{
    struct ipc_peer *peer = granted(2), *none;
    uint64_t offset;

    ipc_end(&exporter);
    ipc_leave(&station);
    assert_int_equal(asked(long_limit(), &none, &offset), -ECONNREFUSED);
    ipc_peer_close(peer, &ticket.block);
    ipc_peer_close(peer, &ticket.block);
    assert_int_equal(left, 0);
    assert_int_equal(ipc_peer_due(0), UINT64_MAX);
}

/* Without a descriptor to be had, an exporter is not asked; the connection to another one is left alone. */
CASE_WITH(test_no_descriptor, start, end)
{
    const struct ipc_ticket first_ticket = ticket;
    struct ipc_peer *first = connected(), *peer;
    struct rlimit usual, none;
    uint64_t offset, number;

    ipc_ticket_make(&ticket, (int)getpid(), &(struct ipc_name){{7}}, &(struct ipc_name){{3}});
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &usual), 0);
    none = (struct rlimit){.rlim_cur = 3, .rlim_max = usual.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    assert_int_equal(asked(long_limit(), &peer, &offset), -EMFILE);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &usual), 0);
    assert_null(peer);
    ticket = first_ticket;
    answer(2, 512);
    assert_int_equal(asked(long_limit(), &peer, &offset), 0);
    assert_ptr_equal(peer, first);
    assert_int_equal(heard(&number), IPC_OPEN);
    assert_int_equal(number, 2);
    for (int i = 0; i < 2; i++)
        ipc_peer_close(first, &ticket.block);
    connection_has_ended();
}

/* --- threads that ask at once --- */

struct request {
    pthread_t thread;
    struct ipc_ticket ticket;
    struct ipc_peer *peer;
    uint64_t limit;
    int rc;
};

static void *request_run(void *arg)
{
    struct request *request = arg;
    struct ipc_grant grant;
    int fd;

    request->rc = ipc_peer_ask(&request->ticket, request->limit, &request->peer, &grant, &fd);
    return NULL;
}

static void request_begin(struct request *request, const struct ipc_ticket *of, uint64_t limit)
{
    *request = (struct request){.ticket = *of, .limit = limit};
    assert_int_equal(pthread_create(&request->thread, NULL, request_run, request), 0);
}

static int request_end(struct request *request)
{
    pthread_join(request->thread, NULL);
    return request->rc;
}

static void open_heard(uint64_t number)
{
    uint64_t got;

    while (heard(&got) != IPC_OPEN)
        nap_ns(100000);
    assert_int_equal(got, number);
}

/* While one is waited for, another one is asked, and blocks of both are closed. */
CASE_WITH(test_another_one_meanwhile, start, end)
{
    struct ipc_descriptor first_station = station, first_exporter;
    struct ipc_peer *first = granted(2), *second;
    struct request request;
    uint64_t number;

    alarm(120); /* a thread that is kept out would wait for the answer below */
    request_begin(&request, &ticket, long_limit());
    open_heard(3);
    first_exporter = exporter;
    exporter.fd = -1;
    start(&(void *){NULL});
    second = connected();
    ipc_peer_close(second, &ticket.block);
    connection_has_ended();
    ipc_leave(&station);
    ipc_leave(&exporter);
    station = first_station;
    exporter = first_exporter;
    ipc_peer_close(first, &ticket.block); /* of the one that is waited for */
    assert_int_equal(heard(&number), IPC_CLOSE);
    answer(3, 512);
    assert_int_equal(request_end(&request), 0);
    assert_ptr_equal(request.peer, first);
    alarm(0);
    for (int i = 0; i < 2; i++)
        ipc_peer_close(first, &ticket.block);
    connection_has_ended();
}

/* One exporter is asked by one thread at a time, over one connection. */
CASE_WITH(test_the_same_one_meanwhile, start, end)
{
    struct request requests[3];
    struct ipc_peer *peer;
    uint64_t offset, number;
    int pid;

    for (int i = 0; i < 3; i++)
        request_begin(&requests[i], &ticket, long_limit());
    while (ipc_accept(&station, &exporter, &pid))
        nap_ns(100000);
    open_heard(1);
    /* A limit holds for the others as well, and nothing is asked then. */
    assert_int_equal(asked(now_ns() + 1000, &peer, &offset), -ETIMEDOUT);
    assert_int_equal(heard(&number), 0);
    for (uint64_t i = 1; i <= 3; i++) {
        answer(i, 256);
        if (i < 3)
            open_heard(i + 1);
    }
    for (int i = 0; i < 3; i++)
        assert_int_equal(request_end(&requests[i]), 0);
    assert_ptr_equal(requests[0].peer, requests[1].peer);
    assert_int_equal(ipc_accept(&station, &(struct ipc_descriptor){.fd = -1}, &pid), -EAGAIN);
    for (int i = 0; i < 3; i++)
        ipc_peer_close(requests[0].peer, &ticket.block);
    connection_has_ended();
}

/* The one that is asked ends: all that wait get an error, and nothing of it is left. */
CASE_WITH(test_it_ends_meanwhile, start, end)
{
    struct request requests[3];
    int pid;

    for (int i = 0; i < 3; i++)
        request_begin(&requests[i], &ticket, long_limit());
    while (ipc_accept(&station, &exporter, &pid))
        nap_ns(100000);
    open_heard(1);
    ipc_leave(&station);
    ipc_end(&exporter);
    for (int i = 0; i < 3; i++)
        assert_int_not_equal(request_end(&requests[i]), 0);
    assert_int_equal(ipc_peer_due(0), UINT64_MAX);
}

/* A child that another thread of the parent has forked while it asked begins anew, and leaves the connection alone. */
CASE_WITH(test_a_fork_meanwhile, start, end)
{
    struct request request;
    struct ipc_peer *peer;
    uint64_t offset;
    int pid, status;

    request_begin(&request, &ticket, long_limit());
    while (ipc_accept(&station, &exporter, &pid))
        nap_ns(100000);
    open_heard(1);
    pid = fork();
    if (pid == 0) {
        ipc_peer_forget();
        _exit(importers_end() == -1 && asked(0, &peer, &offset) == -ETIMEDOUT ? 0 : 1);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    answer(1, 0);
    assert_int_equal(request_end(&request), 0);
    ipc_peer_close(request.peer, &ticket.block);
    connection_has_ended();
}
