/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sweep_system.h - the system's calls of shim/base's sockets and files for tests with sweep.h: each is noted with its
 * arguments, and fails when its turn has come. The clock stands still but for a microsecond with each look, and for
 * waits, which end at once. Names of sockets and folders have the process's number, so tests can run beside each other.
 *
 * The linker's --wrap sends the calls here; SYSTEM_CALLS in meson.build has the list.
 *
 * Threads: one.
 */
#ifndef CUPOOL_TESTS_SHIM_SWEEP_SYSTEM_H
#define CUPOOL_TESTS_SHIM_SWEEP_SYSTEM_H

#include <stddef.h>
#include <stdint.h>

#include "sweep.h"

struct system_state {
    uint64_t ns;
    int peer_pid;                      /* of the process at the other end; 0: the truth */
    void (*waits)(void);               /* runs when the code under test waits, once; NULL: nothing */
    const char *(*file)(const char *); /* the text of a file that is opened; NULL of it: there is none */
    bool interrupted;                  /* each recvmsg */
};
extern struct system_state sys;

/* A new descriptor, of a number from least on, which the library takes over. */
int system_given(int least);
/* So many descriptors of the library are open. */
unsigned int system_descriptors(void);
/* The name of a descriptor in notes. */
const char *system_name(int fd);
/* Allocations of the library that it has not freed. */
int system_allocations(void);

/* For the functions in the place of the system's: */

/* The ways to fail that are no errno values, of several calls. */
#define SHORT      (-1) /* half of it */
#define OTHER_USER (-2)
/* The call fails, if its turn has come and the way is an errno value; else `way` says how. */
#define FAILS(name, failed, ...)                                                                                       \
    const int way = SWEEP_ERROR(name, __VA_ARGS__);                                                                    \
    if (way > 0) {                                                                                                     \
        errno = way;                                                                                                   \
        return failed;                                                                                                 \
    }
/* The library gets a descriptor; the number that it gets. */
int system_opened(int fd);
/* Names of sockets are by chance. */
extern bool system_chance_refused;

#endif
