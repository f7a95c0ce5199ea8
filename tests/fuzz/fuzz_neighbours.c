/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_neighbours.c - any messages at a socket where a process is asked for memory, or waits for the answers: those
 * that count are a neighbour's, of the right length, version and kind, and an answer counts once, and only from a
 * process that was asked.
 *
 * How to run it: fuzz.h. An input is a bit for each number at which a process listens (8 bytes), the bytes wanted (a
 * byte, in MiB), and then messages: a byte for the kind of sender (see SENDER_...), the sender's number, the length,
 * and so many bytes. It has neighbour_socket.c inside, whose system calls these are; the oracle reads the input for
 * itself.
 */
#include <poll.h>
#include <sys/socket.h>

#include "clock.h"

static ssize_t given_recvmsg(int fd, struct msghdr *header, int flags);
static ssize_t given_sendto(int fd, const void *data, size_t size, int flags, const struct sockaddr *to, socklen_t len);
static int given_ppoll(struct pollfd *fds, nfds_t count, const struct timespec *time, const sigset_t *mask);
static uint64_t given_now_ns(void);

#define recvmsg given_recvmsg
#define sendto  given_sendto
#define ppoll   given_ppoll
#define now_ns  given_now_ns
#include "base/neighbour_socket.c" /* NOLINT(bugprone-suspicious-include): see above */
#undef recvmsg
#undef sendto
#undef ppoll
#undef now_ns

#include "fuzz.h"

#define HEAD    9 /* bytes before the messages */
#define WAIT_NS 100000000u
#define LENGTH  16
#define CUT     8 /* bytes: a station's name without so many at its end is no station's */

#define SENDER_STATION 1u  /* it has the name of a station, else a name that no station has */
#define SENDER_KNOWN   2u  /* the kernel names the sender */
#define SENDER_OTHER   4u  /* of another user */
#define SENDER_SELF    8u  /* this process */
#define SENDER_ODD     16u /* what the kernel says has another length */

static const struct neighbour_card card = {.uuid = "0123456789abcdef"};
static const uint8_t *given;
static size_t left;
static unsigned int sent;
static uint64_t listening;
static char fault[256];

#define FAULT(...) (fault[0] ? 0 : snprintf(fault, sizeof(fault), __VA_ARGS__))

struct sent {
    unsigned int sender, number;
    size_t len;
    const uint8_t *data;
};

/* The next message. False: there is none. */
static bool take(struct sent *message)
{
    if (left < 3)
        return false;
    *message = (struct sent){given[0], given[1] % NEIGHBOURS_MAX, given[2], given + 3};
    if (message->len > left - 3)
        message->len = left - 3;
    given += 3 + message->len;
    left -= 3 + message->len;
    return true;
}

static ssize_t given_sendto(int fd, const void *data, size_t size, int flags, const struct sockaddr *to, socklen_t len)
{
    const struct sockaddr_un *name = (const struct sockaddr_un *)to;

    if (len >= sizeof(*name) || name->sun_path[0] || len < 40)
        FAULT("a name of %u bytes", len);
    if (size != LENGTH)
        FAULT("a message of %zu bytes", size);
    errno = ECONNREFUSED;
    return listening >> sent++ % NEIGHBOURS_MAX & 1 ? (ssize_t)size : -1;
}

static int given_ppoll(struct pollfd *fds, nfds_t count, const struct timespec *time, const sigset_t *mask)
{
    if (time->tv_sec || time->tv_nsec < 0 || time->tv_nsec > WAIT_NS)
        FAULT("a wait of %ld.%09ld s", (long)time->tv_sec, time->tv_nsec);
    errno = EBADF;
    return left >= 3 ? 1 : -1;
}

/* Time stands still: on a busy machine a thread may be away for longer than any wait. */
static uint64_t given_now_ns(void)
{
    return 1;
}

static ssize_t given_recvmsg(int fd, struct msghdr *header, int flags)
{
    struct cmsghdr *control = header->msg_control;
    struct sent message;
    struct ucred who;
    size_t fits;

    errno = EAGAIN;
    if (!take(&message))
        return -1;
    fits = message.len < header->msg_iov->iov_len ? message.len : header->msg_iov->iov_len;
    memcpy(header->msg_iov->iov_base, message.data, fits);
    header->msg_namelen = address_of(header->msg_name, &card, (int)message.number);
    if (!(message.sender & SENDER_STATION))
        header->msg_namelen -= CUT;
    if (message.sender & SENDER_KNOWN) {
        who = (struct ucred){.pid = getpid() + !(message.sender & SENDER_SELF),
                             .uid = getuid() + (message.sender & SENDER_OTHER ? 1 : 0)};
        *control = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof(who)) - (message.sender & SENDER_ODD ? 4 : 0),
                                    .cmsg_level = SOL_SOCKET,
                                    .cmsg_type = SCM_CREDENTIALS};
        memcpy(CMSG_DATA(control), &who, sizeof(who));
    } else {
        header->msg_controllen = 0;
    }
    return (ssize_t)(flags & MSG_TRUNC ? message.len : fits);
}

/* The bytes that a message of this kind says were given; -1: it does not count. */
static __int128 counted(const struct sent *message, uint16_t kind)
{
    const uint16_t versions[2] = {1, kind};
    const unsigned int who = message->sender & ~SENDER_STATION & 31;
    uint64_t bytes;

    if (who != SENDER_KNOWN || message->len != LENGTH || memcmp(message->data, "cpol", 4) != 0 ||
        memcmp(message->data + 4, versions, 4) != 0)
        return -1;
    memcpy(&bytes, message->data + 8, 8);
    return bytes;
}

static void questions(const uint8_t *data, size_t size)
{
    struct neighbour_question asked[NEIGHBOUR_BATCH];
    struct neighbour_station station = {.fd = open("/dev/null", O_RDWR | O_CLOEXEC)};
    unsigned int count, expected = 0, all = 0;
    struct sent message;
    bool quiet = false;

    given = data;
    left = size;
    for (; all < NEIGHBOUR_BATCH && take(&message); all++)
        expected += counted(&message, 1) >= 0;
    given = data;
    left = size;
    fstat(atomic_load(&station.fd), &station.file);
    count = neighbour_read(&station, asked, &quiet);
    if (count != expected || quiet != !all)
        FAULT("%u questions of %u messages, not %u", count, all, expected);
    neighbour_close(&station);
}

static void answers(const uint8_t *data, size_t size, uint64_t wanted)
{
    uint64_t waiting = listening, sum = 0;
    struct neighbour_outcome outcome;
    unsigned int answered = 0;
    struct sent message;

    given = data;
    left = size;
    while (waiting && (!wanted || sum < wanted) && take(&message)) {
        const uint64_t bit = UINT64_C(1) << message.number;
        const __int128 bytes = counted(&message, 2);

        if (bytes < 0 || !(waiting & bit) || !(message.sender & SENDER_STATION))
            continue;
        waiting &= ~bit;
        answered++;
        sum = sum + bytes > UINT64_MAX ? UINT64_MAX : sum + (uint64_t)bytes;
    }
    given = data;
    left = size;
    sent = 0;
    neighbour_ask(&card, NULL, wanted, WAIT_NS, &outcome);
    if (outcome.asked != (unsigned int)__builtin_popcountll(listening) || outcome.answered != answered ||
        outcome.given != sum)
        FAULT("asked %u, answered %u, given %llu, not %u and %llu", outcome.asked, outcome.answered,
              (unsigned long long)outcome.given, answered, (unsigned long long)sum);
}

static const char *fuzz_run(const uint8_t *data, size_t size)
{
    fault[0] = '\0';
    listening = 0;
    if (size < HEAD)
        return fault;
    memcpy(&listening, data, 8);
    questions(data + HEAD, size - HEAD);
    answers(data + HEAD, size - HEAD, (uint64_t)data[8] << 20);
    return fault;
}

static size_t fuzz_random(uint64_t *rng, uint8_t *buffer)
{
    static const char magic[4] = {'c', 'p', 'o', 'l'}, wrong[4] = {'l', 'o', 'p', 'c'};
    size_t size = HEAD;

    memset(buffer, 0, HEAD);
    for (int i = 0; i < 3; i++)
        buffer[next(rng) % 2] |= (uint8_t)(1u << next(rng) % 8);
    buffer[8] = (uint8_t)(next(rng) % 4);
    for (uint64_t n = next(rng) % 40; n; n--) {
        const uint16_t versions[2] = {next(rng) % 8 ? 1 : (uint16_t)next(rng),
                                      (uint16_t)(next(rng) % 8 ? 1 + next(rng) % 2 : 9)};
        const uint64_t bytes = next(rng) % 8 ? next(rng) % (4 << 20) : next(rng);

        buffer[size++] = next(rng) % 4 ? SENDER_STATION | SENDER_KNOWN : (uint8_t)next(rng);
        buffer[size++] = (uint8_t)(next(rng) % 16);
        buffer[size++] = next(rng) % 8 ? LENGTH : (uint8_t)(next(rng) % 40);
        memcpy(buffer + size, next(rng) % 8 ? magic : wrong, sizeof(magic));
        memcpy(buffer + size + 4, versions, 4);
        memcpy(buffer + size + 8, &bytes, 8);
        size += buffer[size - 1];
    }
    return size;
}
