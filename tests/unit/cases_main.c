/* SPDX-License-Identifier: Apache-2.0 */
/* cases_main.c - the main of programs that run their cases and nothing more. */
#include "cases.h"

int main(void)
{
    return cases_run();
}
