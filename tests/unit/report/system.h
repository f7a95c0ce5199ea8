/* SPDX-License-Identifier: Apache-2.0 */
/*
 * system.h - what the tests of the reports give to their sources, which are compiled with this header before them: the
 * clock, the process, the libraries that it has loaded, and host memory that may be refused.
 *
 * Threads: one.
 */
#ifndef CUPOOL_TESTS_REPORT_SYSTEM_H
#define CUPOOL_TESTS_REPORT_SYSTEM_H

#include <link.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

extern uint64_t system_ns;         /* both clocks */
extern const char *system_library; /* the path of the only library */
/* The program installs this handler just before the library does; NULL: it does not. */
extern void (*system_handler)(int number);

int system_sigaction(int number, const struct sigaction *action, struct sigaction *old);
int system_clock_gettime(clockid_t clock, struct timespec *to);
int system_iterate(int (*each)(struct dl_phdr_info *info, size_t size, void *arg), void *arg);
const char *system_getenv(const char *name);

#define sigaction(number, action, old) system_sigaction(number, action, old)
#define getpid()                       4242
#define clock_gettime(clock, to)       system_clock_gettime(clock, to)
#define dl_iterate_phdr(each, arg)     system_iterate(each, arg)
#define getenv(name)                   system_getenv(name)

#endif
