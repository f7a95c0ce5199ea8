/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pages.h - between pages.c, small.c and memory.c: a device's memory as 2 MiB pages, and the pages that small
 * allocations share.
 *
 * Locking: everything under sim_lock().
 */
#ifndef SIM_PAGES_H
#define SIM_PAGES_H

#include "sim.h"

#define SLOTS (SIM_PAGE / SIM_GRANULE)

struct small {
    struct small *next;
    size_t page;
    unsigned used, longest; /* granules in use; no free run is longer than this */
    unsigned dirty;         /* adversary: so many granules from the first on are dirty, or were handed out */
    struct sim_alloc *slot[SLOTS];
};

struct page {
    struct sim_alloc *big;
    struct small *small;
    int fd;     /* of the file that holds its bytes, one for all pages of an allocation; 0: the device's */
    size_t run; /* in the first and the last page of a run of free ones: the number of these */
};

struct device {
    char *va, *host; /* the addresses of the program; those of the engine */
    int fd;
    size_t total, used, pages, first; /* first: no page below it is free */
    struct page *page;
    struct small *smalls, *spare;
};
extern struct device devices[SIM_DEVICES_MAX];

/* ---- pages.c ---- */

struct device *device_get(int dev);
struct device *device_of(uint64_t addr); /* NULL: no device's address */
/* A file out of the way of programs that count on low numbers. */
int file_make(size_t size);
/* First fit: takes n pages off the start of the first run that has them, and returns their index, or d->pages. */
size_t pages_take(struct device *d, size_t n);
void pages_release(struct device *d, size_t at, size_t n);
/* Lets the engine's view of n pages be of this file from now on. */
void pages_view(struct device *d, size_t at, size_t n, int fd, size_t offset);
/* Makes them zero. */
void pages_punch(struct device *d, size_t at, size_t n);
/* Is an operation running on any of these pages? */
bool pages_pinned(const struct device *d, size_t at, size_t n);

/* ---- shared.c ---- */

/* Count n more bytes of this process; false: with those of the others they are more than total. */
bool shared_charge(int dev, size_t n, size_t total);
void shared_discharge(int dev, size_t n);
/* The bytes that other processes use; 0 without SIMGPU_SHARED. */
size_t shared_others(int dev);

/* ---- small.c ---- */

/* Memory for an allocation of less than a page. False: there is none. */
bool small_take(struct device *d, struct sim_alloc *a);
void small_release(struct device *d, struct sim_alloc *a);

#endif
