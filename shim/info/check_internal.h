/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_internal.h - shared by check_command.c (the command: scripts and launchers) and check_program.c (the executable
 * at its end). Private to these two files. No locks: one thread only.
 */
#ifndef CUPOOL_SHIM_INFO_CHECK_INTERNAL_H
#define CUPOOL_SHIM_INFO_CHECK_INTERNAL_H

#include <stdbool.h>

#include "info/elf_file.h"

struct check_found {
    bool missed;  /* a line of the report said that some calls are not caught */
    bool reaches; /* the program is linked with CUDA */
    bool broken;  /* it does not start, with or without cupool: no such library or symbol, or too little is simulated */
};

extern struct check_found check_found;

/* Print one line of the report. */
void check_say(const char *label, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The file name in a path. */
const char *check_base_of(const char *path);

#define SAY_MISSED(...) (check_found.missed = true, check_say("NOT CAUGHT", __VA_ARGS__))

/* Report on an executable in this environment. */
void check_program(const char *path, const struct elf_file *file);

#endif
