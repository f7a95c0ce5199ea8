/* SPDX-License-Identifier: Apache-2.0 */
/*
 * backend.h - the backends by number (enum backend), and which one new segments come from.
 *
 * It makes no call but those by which a backend finds out whether this process can have its memory. lifetime.h tells
 * the pools of a change.
 *
 * Threads: every function may be called from any thread; the caller holds no lock, because of these calls. No locks.
 */
#ifndef CUPOOL_SHIM_CONTEXT_BACKEND_H
#define CUPOOL_SHIM_CONTEXT_BACKEND_H

#include "base/conf_types.h"
#include "context/memory_source.h"

/* A pool's kinds of segments are numbers of backends. */
const struct memory_source *backend_source(unsigned int backend);
/* As in CUPOOL_BACKEND and in the trace. */
const char *backend_name(unsigned int backend);

/* The backend of new contexts. The first call decides this and needs a current context: it is CUPOOL_BACKEND, or the
 * driver's memory if this process cannot have the other, with a line in the log. */
enum backend backend_chosen(void);
/* For a program that asks later whether it can have memory of a backend. 0; -ENOTSUP: it cannot, and the log says why;
 * -EAGAIN: no context is current, or a stream captures. */
int backend_find(enum backend backend);
/* Sets the answer of backend_chosen; for lifetime.c. */
void backend_choose(enum backend backend);

#endif
