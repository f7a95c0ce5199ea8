/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ghosts.h - the ghost list: the sizes of segments that a growing pool gave back, and the readmission credit for those
 * requested again. Private to pool/. It gives nothing back and holds no memory; bound.c does.
 *
 * Locking: the pool's lock. No errors.
 */
#ifndef CUPOOL_POOL_GHOSTS_H
#define CUPOOL_POOL_GHOSTS_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct segment;

/* The size of the ghost list: the number of sizes for which a pool remembers segments that it gave back. */
#define GHOSTS 512u

struct ghosts {
    /* By a hash of segment->got_for, for segments of the latest such size that went back: their bytes, and
     * segment->listed of the last one. */
    struct {
        size_t got_for, bytes;
        uint64_t listed;
    } entries[GHOSTS];
    size_t credit;       /* readmission credit: bytes that may be held in addition, because sizes on the ghost list
                            were requested again */
    unsigned int streak; /* how often sizes on the ghost list were requested lately; see ghosts_update */
};

/* The pool grows by size bytes for a request of got_for bytes. */
void ghosts_update(struct ghosts *ghosts, size_t size, size_t got_for);
/* True if the pool has grown for sizes on the ghost list so often that the program seems to repeat its steps. */
bool ghosts_repeat(const struct ghosts *ghosts);
/* An idle segment goes back. */
void ghosts_add(struct ghosts *ghosts, const struct segment *segment);
/* The pool has grown by a segment, and uses it now: if one for such a request went back, this one counts as idle since
 * that one became so. */
void ghosts_recall(const struct ghosts *ghosts, struct segment *segment);

#endif
