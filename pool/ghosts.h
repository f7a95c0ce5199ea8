/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ghosts.h - the ghost list: the sizes of segments that a growing pool gave back, and the readmission credit for those
 * requested again. Private to pool/. It gives nothing back and holds no memory; bound.c does.
 *
 * Locking: the pool's lock. No errors.
 */
#ifndef CUPOOL_POOL_GHOSTS_H
#define CUPOOL_POOL_GHOSTS_H
#include <stddef.h>

/* The size of the ghost list: the number of sizes for which a pool remembers segments that it gave back. */
#define GHOSTS 512u

struct ghosts {
    /* By a hash of segment->got_for, the bytes of segments of the latest such size that went back. */
    struct {
        size_t got_for, bytes;
    } entries[GHOSTS];
    size_t credit;       /* readmission credit: bytes that may be held in addition, because sizes on the ghost list
                            were requested again */
    unsigned int streak; /* how often sizes on the ghost list were requested lately; see ghosts_update */
};

/* The pool grows by size bytes for a request of got_for bytes. */
void ghosts_update(struct ghosts *ghosts, size_t size, size_t got_for);
/* A segment of size bytes, by which the pool grew for a request of got_for bytes, goes back. */
void ghosts_add(struct ghosts *ghosts, size_t size, size_t got_for);

#endif
