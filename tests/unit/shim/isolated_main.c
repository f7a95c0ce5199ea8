/* SPDX-License-Identifier: Apache-2.0 */
/* isolated_main.c - the main of programs that run their registered tests and nothing more: PROGRAM [FILTER]. */
#include "isolated.h"

int main(int argc, char **argv)
{
    return isolated_run_all(argc > 1 ? argv[1] : NULL);
}
