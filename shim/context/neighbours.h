/* SPDX-License-Identifier: Apache-2.0 */
/*
 * neighbours.h - memory between the processes of one user on one card (CUPOOL_NEIGHBOURS): a request that the driver
 * has refused asks the others for their idle memory, and the background thread gives this process's back when they ask.
 *
 * It makes no request again and decides nothing about its own pools' idle memory; the callers of neighbours_ask have
 * given that back before. base/neighbour_socket.h has the sockets and messages.
 *
 * Threads: neighbours_ask and neighbours_begin may be called from any thread, neighbours_ring also in a signal handler;
 * every other function by the background thread alone, or in a forked child. No locks. No function fails.
 */
#ifndef CUPOOL_SHIM_CONTEXT_NEIGHBOURS_H
#define CUPOOL_SHIM_CONTEXT_NEIGHBOURS_H

#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct pool_asking;

/*
 * Ask the other processes on a device for idle memory, and wait for them, CUPOOL_NEIGHBOURS milliseconds at most for
 * all questions with this record (all zeros before the first). wanted: the bytes that are enough; 0: not known. True:
 * try again, and ask again if that fails. That is so once although none has given any: one that had none to give may
 * have given it back before the question, but after the driver's refusal. Always false where ranks have to lay memory
 * out alike.
 */
bool neighbours_ask(int device, size_t wanted, struct pool_asking *asking);

/* This process has memory of a device, so others may ask for it from now on. Keeps errno. True, once for each device:
 * wake the background thread, which has one more socket to listen to. */
bool neighbours_begin(int device);

/* For the background thread; see struct background_job. */
uint64_t neighbours_due(uint64_t now);
void neighbours_tick(uint64_t now);
unsigned int neighbours_listen(struct pollfd *fds, unsigned int max);
void neighbours_ring(void);
void neighbours_end(void);

/* In a forked child, which answers nobody. */
void neighbours_forget(void);

#endif
