/* SPDX-License-Identifier: Apache-2.0 */
/* nextlib.h - see nextlib.c. */
#ifndef E2E_NEXTLIB_H
#define E2E_NEXTLIB_H

/* Print what a look-up gave, and what dlerror says after it. */
void looked_up(const char *how, const char *name, void *p);

void library_look(void);

#endif
