/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ctl.h - the commands of cupool-ctl (CUPOOL_CTL), done by the background thread.
 *
 * base/ctl_socket.h has the socket and the messages. It does nothing by itself, and never in a signal handler. A
 * command waits for the device at most as long as the request says.
 *
 * Threads: ctl_start before the background thread begins; ctl_ring in any thread and in a signal handler; every other
 * function by the background thread alone, ctl_forget in a forked child. No locks. No function fails.
 */
#ifndef CUPOOL_SHIM_REPORT_CTL_H
#define CUPOOL_SHIM_REPORT_CTL_H

#include <poll.h>
#include <stdint.h>

/* scripts/cupool-ctl has these numbers, too. Of one device, or of all:
 * LIST: the process, and its devices in short; STATS: all counters; TRIM: give idle memory back, and wait for nothing;
 * LIMIT: value is the most bytes that a pool holds; CHECK: would PAUSE be refused; PAUSE: flags are those of
 * cupool_pause; RESUME. */
enum ctl_command { CTL_LIST = 1, CTL_STATS, CTL_TRIM, CTL_LIMIT, CTL_CHECK, CTL_PAUSE, CTL_RESUME };
#define CTL_KEEP    1u
#define CTL_DISCARD 2u

/* Rows of background_jobs. */
void ctl_start(void);
uint64_t ctl_due(uint64_t now);
void ctl_tick(uint64_t now);
unsigned int ctl_listen(struct pollfd *fds, unsigned int max);
void ctl_ring(void);
void ctl_end(void);

/* In a forked child, which answers nobody. */
void ctl_forget(void);

#endif
