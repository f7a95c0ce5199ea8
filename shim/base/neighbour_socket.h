/* SPDX-License-Identifier: Apache-2.0 */
/*
 * neighbour_socket.h - how processes of one user on one card find each other, and the two messages that they exchange:
 * a process asks for memory, and the others answer how much they have given back.
 *
 * Each process has one Unix datagram socket for each card, in the abstract namespace, so that nothing is left behind
 * when a process dies. Its name holds the version of the messages, the user, the card, and a number from 0 on: an asker
 * tries them all, and finds nobody at those that are not in use. Processes with a network namespace of their own
 * (containers) do not find those outside.
 *
 * It knows no memory and no CUDA: context/neighbours.h gives memory back and decides when neighbours are asked.
 *
 * Trust: anybody on the machine can send to such a socket. A message counts if the kernel says that its sender is this
 * user, and if its length and its first bytes are right; all others are read and dropped.
 *
 * Threads: neighbour_ask and neighbour_listen may be called from any thread, neighbour_ring also in a signal handler;
 * every other function by the thread that listens, alone. No locks. It allocates no memory; errors are negative errno
 * values.
 */
#ifndef CUPOOL_SHIM_BASE_NEIGHBOUR_SOCKET_H
#define CUPOOL_SHIM_BASE_NEIGHBOUR_SOCKET_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

/* The number of processes on one card that can be asked. */
#define NEIGHBOURS_MAX 64
/* The number of questions that are read at a time. */
#define NEIGHBOUR_BATCH 16

/* A card, by its UUID: its number differs with CUDA_VISIBLE_DEVICES. */
struct neighbour_card {
    unsigned char uuid[16];
};

/* A place where a process is asked. All zeros but fd, which is -1, before neighbour_listen. */
struct neighbour_station {
    atomic_int fd;         /* -1: not open */
    int number;            /* written before fd, as are the others */
    struct sockaddr_un at; /* its name */
    socklen_t at_len;
    struct stat file; /* fstat of fd when it was opened, for file_state */
};

/* The sender of a question, to which the answer goes. */
struct neighbour_question {
    struct sockaddr_un from;
    socklen_t from_len;
};

/* The outcome of asking: so many processes were asked, have answered, and have given back so many bytes. */
struct neighbour_outcome {
    unsigned int asked, answered;
    uint64_t given;
};

/* Open the station of this process for a card; once for each station, in any thread. No cancellation point, and keeps
 * errno. -EADDRINUSE: NEIGHBOURS_MAX processes have one; or an error of the system. */
int neighbour_listen(struct neighbour_station *station, const struct neighbour_card *card);
/* True if it is open. A station whose descriptor the program has closed is closed, and the descriptor not touched. */
bool neighbour_is_open(struct neighbour_station *station);
void neighbour_close(struct neighbour_station *station);
/* Make a poll of the station return. Async-signal-safe, no cancellation point, and keeps errno. */
void neighbour_ring(const struct neighbour_station *station);

/* Read what has come, NEIGHBOUR_BATCH messages at most. Returns the number of questions. *ret_quiet: no message had
 * come, of a neighbour or not. Waits for nothing. */
unsigned int neighbour_read(struct neighbour_station *station, struct neighbour_question *questions, bool *ret_quiet);
/* Waits for nothing: an answer that cannot be delivered is lost. */
void neighbour_answer(const struct neighbour_station *station, const struct neighbour_question *question,
                      uint64_t given);

/*
 * Ask all processes of this user on a card, and wait for their answers: until they have given wanted bytes (0: until
 * all have answered), wait_ns nanoseconds at most for all of them together. own: this process's station of the card,
 * which is not asked; NULL: it has none. No cancellation point, and keeps errno.
 */
void neighbour_ask(const struct neighbour_card *card, const struct neighbour_station *own, uint64_t wanted,
                   uint64_t wait_ns, struct neighbour_outcome *ret_outcome);

#endif
