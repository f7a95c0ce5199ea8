/* SPDX-License-Identifier: Apache-2.0 */
/* neighbour_socket.c - see neighbour_socket.h. No locks; a station's descriptor is atomic. */
#include "base/neighbour_socket.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/descriptor.h"
#include "clock.h"

/* The version of the messages. It is part of the sockets' names, so processes of different versions do not meet. */
#define VERSION 1
#define MAGIC   UINT32_C(0x6c6f7063) /* "cpol" */

enum kind { QUESTION = 1, ANSWER = 2 };

struct message {
    uint32_t magic;
    uint16_t version, kind;
    uint64_t given; /* bytes; of an answer */
};

/* The name of a station. */
static socklen_t address_of(struct sockaddr_un *address, const struct neighbour_card *card, int number)
{
    char hex[2 * sizeof(card->uuid) + 1];
    int len;

    for (size_t i = 0; i < 2 * sizeof(card->uuid); i++)
        hex[i] = "0123456789abcdef"[card->uuid[i / 2] >> (i % 2 ? 0 : 4) & 15];
    hex[2 * sizeof(card->uuid)] = '\0';
    memset(address, 0, sizeof(*address));
    address->sun_family = AF_UNIX;
    /* The first byte is 0: the abstract namespace. */
    len = snprintf(address->sun_path + 1, sizeof(address->sun_path) - 1, "cupool-%d-%u-%s-%d", VERSION,
                   (unsigned int)getuid(), hex, number);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)len);
}

/* A socket to which the kernel names the sender of each message. -1 and errno. */
static int socket_make(void)
{
    const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0), on = 1;

    if (fd < 0)
        return -1;
    if (setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)) == 0)
        return file_aside(fd);
    close(fd);
    return -1;
}

static bool message_send(int fd, const struct message *message, const struct sockaddr_un *to, socklen_t len)
{
    return sendto(fd, message, sizeof(*message), MSG_DONTWAIT | MSG_NOSIGNAL, (const struct sockaddr *)to, len) ==
           (ssize_t)sizeof(*message);
}

/* True if the kernel says that this user sent the message, in another process. */
static bool is_neighbour(struct msghdr *header)
{
    const struct cmsghdr *control = CMSG_FIRSTHDR(header);
    struct ucred sender;

    if (!control || control->cmsg_level != SOL_SOCKET || control->cmsg_type != SCM_CREDENTIALS ||
        control->cmsg_len != CMSG_LEN(sizeof(sender)))
        return false;
    memcpy(&sender, CMSG_DATA(control), sizeof(sender));
    return sender.uid == getuid() && sender.pid != getpid();
}

/*
 * Read one message. False: there is none. *ret_valid: it is a neighbour's, and of this kind. The room for control data
 * holds the sender and nothing else, so descriptors that come along are closed by the kernel.
 */
static bool message_read(int fd, enum kind kind, struct message *message, struct neighbour_question *from,
                         bool *ret_valid)
{
    union {
        char room[CMSG_SPACE(sizeof(struct ucred))];
        struct cmsghdr align;
    } control;
    struct iovec data = {message, sizeof(*message)};
    struct msghdr header = {.msg_name = &from->from,
                            .msg_namelen = sizeof(from->from),
                            .msg_iov = &data,
                            .msg_iovlen = 1,
                            .msg_control = &control,
                            .msg_controllen = sizeof(control)};
    /* With MSG_TRUNC the result is the length that was sent. */
    const ssize_t n = recvmsg(fd, &header, MSG_DONTWAIT | MSG_TRUNC | MSG_CMSG_CLOEXEC);

    if (n < 0)
        return errno == EINTR;
    from->from_len = header.msg_namelen;
    *ret_valid = n == (ssize_t)sizeof(*message) && message->magic == MAGIC && message->version == VERSION &&
                 message->kind == kind && is_neighbour(&header);
    return true;
}

/* Open a socket with the station's name. 0, or an errno value. */
static int station_open(struct neighbour_station *station, const struct neighbour_card *card)
{
    const int fd = socket_make();
    int error = fd < 0 ? errno : EADDRINUSE;

    for (int number = 0; error == EADDRINUSE && number < NEIGHBOURS_MAX; number++) {
        station->number = number;
        station->at_len = address_of(&station->at, card, number);
        error = bind(fd, (const struct sockaddr *)&station->at, station->at_len) ? errno : 0;
    }
    if (!error && fstat(fd, &station->file))
        error = errno;
    if (error) {
        if (fd >= 0)
            close(fd);
        return error;
    }
    atomic_store(&station->fd, fd);
    return 0;
}

int neighbour_listen(struct neighbour_station *station, const struct neighbour_card *card)
{
    const int saved = errno;
    int cancel, error;

    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
    error = station_open(station, card);
    pthread_setcancelstate(cancel, NULL);
    errno = saved;
    return -error;
}

bool neighbour_is_open(struct neighbour_station *station)
{
    const int fd = atomic_load(&station->fd);

    if (fd >= 0 && file_state(fd, &station->file) == -EBADF)
        atomic_store(&station->fd, -1);
    return atomic_load(&station->fd) >= 0;
}

void neighbour_close(struct neighbour_station *station)
{
    const int fd = atomic_exchange(&station->fd, -1);

    if (fd >= 0)
        file_close(fd, &station->file, /* done: */ false);
}

void neighbour_ring(const struct neighbour_station *station)
{
    const int fd = atomic_load(&station->fd), saved = errno;
    const bool is_ours = fd >= 0 && file_state(fd, &station->file) != -EBADF;
    /* A poll keeps a socket, and its name, whose descriptor the program has closed meanwhile. */
    const int by = fd < 0 || is_ours ? fd : socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);

    /* A message of no bytes. If there is no room for it, others are waiting, and the poll returns for them. The system
     * call itself: sendto() would be a cancellation point in a thread of the program. */
    if (by >= 0)
        syscall(SYS_sendto, by, "", (size_t)0, MSG_DONTWAIT | MSG_NOSIGNAL, &station->at, station->at_len);
    if (by >= 0 && !is_ours)
        file_drop(by);
    errno = saved;
}

unsigned int neighbour_read(struct neighbour_station *station, struct neighbour_question *questions, bool *ret_quiet)
{
    unsigned int count = 0, i = 0;
    struct message message;

    for (; i < NEIGHBOUR_BATCH && neighbour_is_open(station); i++) {
        bool valid = false;

        if (!message_read(atomic_load(&station->fd), QUESTION, &message, &questions[count], &valid))
            break;
        count += valid;
    }
    *ret_quiet = i == 0;
    return count;
}

void neighbour_answer(const struct neighbour_station *station, const struct neighbour_question *question,
                      uint64_t given)
{
    const struct message message = {.magic = MAGIC, .version = VERSION, .kind = ANSWER, .given = given};
    const int fd = atomic_load(&station->fd);

    if (fd >= 0)
        message_send(fd, &message, &question->from, question->from_len);
}

/* Send the question to every number. Returns those that are in use, a bit each. */
static uint64_t question_send(int fd, const struct neighbour_card *card, int own)
{
    const struct message message = {.magic = MAGIC, .version = VERSION, .kind = QUESTION};
    struct sockaddr_un address;
    uint64_t asked = 0;

    for (int number = 0; number < NEIGHBOURS_MAX; number++) {
        const socklen_t len = address_of(&address, card, number);

        /* A process that is stopped gets no more once its queue is full, and is waited for no longer. */
        if (number != own && message_send(fd, &message, &address, len))
            asked |= UINT64_C(1) << number;
    }
    return asked;
}

/* The bit of the station among those asked that has this address; 0: none has. */
static uint64_t bit_of(const struct neighbour_card *card, uint64_t asked, const struct neighbour_question *from)
{
    struct sockaddr_un address;

    for (int number = 0; number < NEIGHBOURS_MAX; number++) {
        if (asked >> number & 1 && from->from_len == address_of(&address, card, number) &&
            memcmp(&address, &from->from, from->from_len) == 0)
            return UINT64_C(1) << number;
    }
    return 0;
}

/* Wait for the answers of those asked. An answer counts once, and from them alone. */
static void answers_wait(int fd, const struct neighbour_card *card, uint64_t asked, uint64_t wanted, uint64_t limit,
                         struct neighbour_outcome *outcome)
{
    uint64_t now;

    while (asked && (!wanted || outcome->given < wanted) && (now = now_ns()) < limit) {
        const struct timespec rest = {(time_t)((limit - now) / 1000000000), (long)((limit - now) % 1000000000)};
        struct pollfd poll = {.fd = fd, .events = POLLIN};
        struct neighbour_question from = {0};
        struct message message;
        bool valid = false;
        uint64_t bit;

        if (ppoll(&poll, 1, &rest, NULL) < 0 && errno != EINTR)
            return;
        if (!message_read(fd, ANSWER, &message, &from, &valid) || !valid)
            continue;
        bit = bit_of(card, asked, &from);
        asked &= ~bit;
        if (!bit)
            continue;
        outcome->answered++;
        outcome->given += message.given < UINT64_MAX - outcome->given ? message.given : UINT64_MAX - outcome->given;
    }
}

void neighbour_ask(const struct neighbour_card *card, const struct neighbour_station *own, uint64_t wanted,
                   uint64_t wait_ns, struct neighbour_outcome *ret_outcome)
{
    const sa_family_t any = AF_UNIX; /* the kernel finds a name */
    struct neighbour_outcome outcome = {0};
    const int saved = errno;
    uint64_t asked = 0;
    int cancel, fd;

    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
    fd = socket_make();
    if (fd >= 0 && bind(fd, (const struct sockaddr *)&any, sizeof(any)) == 0)
        asked = question_send(fd, card, own && atomic_load(&own->fd) >= 0 ? own->number : -1);
    outcome.asked = (unsigned int)__builtin_popcountll(asked);
    if (asked)
        answers_wait(fd, card, asked, wanted, now_ns() + wait_ns, &outcome);
    if (fd >= 0)
        close(fd);
    pthread_setcancelstate(cancel, NULL);
    errno = saved;
    *ret_outcome = outcome;
}
