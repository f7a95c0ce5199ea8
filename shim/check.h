/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check.h - cupool-info --check: what cupool will catch in a program, said before it runs. cupool-run --check calls it
 * in the environment that the program would get.
 *
 * What it is not: a promise. It reads files and asks the program's own loader what that would load; what a program
 * loads while it runs is not to be seen. It starts nothing of the program.
 */
#ifndef CUPOOL_SHIM_CHECK_H
#define CUPOOL_SHIM_CHECK_H

/* Print what is found of the command argv[0..argc-1]. 0: caught; 1: not, or not everywhere; 2: no such program. */
int check_command(int argc, char **argv);

#endif
