/* SPDX-License-Identifier: Apache-2.0 */
/*
 * log.h - messages for people, on stderr, one write(2) per line. It allocates no memory, takes no lock and keeps errno:
 * safe in any place, signal handlers included. It never waits for a reader, raises no signal, and writes into no file
 * of the program: a message that would do so is dropped. It is not the trace.
 */
#ifndef CUPOOL_SHIM_BASE_LOG_H
#define CUPOOL_SHIM_BASE_LOG_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/conf.h"

/* False: the program was started without a stderr, so nothing may be written there. */
bool log_is_open(void);

/* Write text unchanged, whatever the level. */
void log_put(const char *text, size_t len);

/* Write one line if CUPOOL_LOG_LEVEL is at least level. Lines over 500 bytes are cut. */
void log_write(enum conf_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* As log_write, for several lines separated by newlines, which stay together; each begins with the process. Text over
 * 1400 bytes is cut. */
void log_lines(enum conf_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* As log_write, once per code location and process. */
#define log_once(level, ...)                                                                                           \
    do {                                                                                                               \
        static atomic_flag said_ = ATOMIC_FLAG_INIT;                                                                   \
        if (!atomic_flag_test_and_set(&said_))                                                                         \
            log_write(level, __VA_ARGS__);                                                                             \
    } while (0)

#endif
