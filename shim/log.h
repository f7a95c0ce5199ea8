/* SPDX-License-Identifier: Apache-2.0 */
/*
 * log.h - messages for people, on stderr, one write(2) a line. No memory, no lock, errno untouched: safe anywhere. It
 * neither waits for a reader nor raises a signal, and writes into no file that is the program's own: what cannot be
 * said so is not said.
 */
#ifndef CUPOOL_SHIM_LOG_H
#define CUPOOL_SHIM_LOG_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "conf.h"

/* False: the program was started without a stderr; nothing is to be written there. */
bool log_is_open(void);

/* Text as it is, whatever the level. */
void log_put(const char *text, size_t len);

/* Written if CUPOOL_LOG_LEVEL is at least level. Lines over 500 bytes are cut. */
void log_write(enum conf_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The same for several lines with newlines between them, which stay together; each goes on behind who says it. Over
 * 1400 bytes are cut. */
void log_lines(enum conf_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The same, once per place in the code and process. */
#define log_once(level, ...)                                                                                           \
    do {                                                                                                               \
        static atomic_flag said_ = ATOMIC_FLAG_INIT;                                                                   \
        if (!atomic_flag_test_and_set(&said_))                                                                         \
            log_write(level, __VA_ARGS__);                                                                             \
    } while (0)

#endif
