/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_command.h - cupool-info --check: says before a program runs whether cupool will catch its allocations.
 * cupool-run
 * --check calls it in the environment that the program would get.
 *
 * The answer is no promise. It reads files and asks the program's own loader which libraries that would load; it cannot
 * see what the program loads while it runs. It runs no code of the program.
 *
 * Threads: one thread only; no locks.
 */
#ifndef CUPOOL_SHIM_INFO_CHECK_COMMAND_H
#define CUPOOL_SHIM_INFO_CHECK_COMMAND_H

/* Print the findings about the command argv[0..argc-1]. 0: caught; 1: not caught, or not everywhere; 2: no such
 * program. */
int check_command(int argc, char **argv);

#endif
