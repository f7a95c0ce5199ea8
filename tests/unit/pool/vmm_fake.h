/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vmm_fake.h - a driver of virtual memory made of nothing, and a program's calls of it, natively or through the cache
 * as exports/vmm.c makes them.
 *
 * It has no contents but a number for each piece of physical memory. Addresses and handles are never used twice. Ranges
 * border on each other.
 *
 * Threads: every function may be called from any thread. One lock for each driver.
 */
#ifndef CUPOOL_TESTS_UNIT_POOL_VMM_FAKE_H
#define CUPOOL_TESTS_UNIT_POOL_VMM_FAKE_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "vmm_cache.h"
#include "vmm_trim.h"

#define MIB      ((size_t)1 << 20)
#define UNIT     (2 * MIB)
#define FAKE_MAX 20000u
#define BAD      1 /* the driver refuses the arguments */
#define REFUSED  2 /* as a test wants */

/* A call of the driver; also the index of its counter. */
enum fake_call { RESERVE, CREATE, MAP, ACCESS, UNMAP, RELEASE, UNRESERVE, RETAIN, CALLS };

struct fake {
    pthread_mutex_t lock; /* guards everything below */
    struct {
        uint64_t addr;
        size_t size;
        unsigned int memory; /* mapped here, and one; 0: none */
        uint32_t access;     /* a bit for each location */
    } ranges[FAKE_MAX];
    struct {
        size_t size;
        unsigned int refs, maps;
        int contents;
    } memory[FAKE_MAX]; /* its handle is its index and 1 */
    unsigned int range_count, memory_count;
    uint64_t reserved; /* bytes of all ranges so far */
    unsigned int calls[CALLS];
    enum fake_call refuses; /* this call, so many times */
    unsigned int times;
    uint64_t taken; /* bytes of physical memory */
};

/* A program, and its driver; cache: NULL: natively. */
struct side {
    struct fake *driver;
    struct vmm_cache *cache;
    bool captures; /* nothing may be served */
    bool slow;     /* the cache's own calls take time */
    uint64_t now;
    unsigned int device; /* whose memory the program takes */
    const void *thread;  /* that makes its calls; NULL: the one that does */
    unsigned int begun;  /* calls of struct vmm_ops */
    uint64_t returned;
    unsigned int device_begun, device_returned; /* the last ones' */
    long allocated;                             /* by everybody, before it */
};

extern const struct vmm_ops fake_ops; /* arg: a struct side */

struct side *side_new(bool cached, size_t least);
/* False: of the host's memory that was taken since side_new, not all has been freed. */
bool side_free(struct side *side);
/* The cache gets no host memory meanwhile; none for a larger table. */
extern bool fake_no_memory, fake_no_growth;

/* The program's calls; results of the driver. Locations are numbers below 32. */
int side_reserve(struct side *side, size_t size, size_t align, uint64_t *ret_addr);
int side_create(struct side *side, size_t size, uint32_t kind, uint64_t *ret_handle);
int side_map(struct side *side, uint64_t addr, size_t size, size_t offset, uint64_t handle);
int side_access(struct side *side, uint64_t addr, size_t size, uint32_t location, uint32_t flags);
int side_unmap(struct side *side, uint64_t addr, size_t size);
int side_release(struct side *side, uint64_t handle);
int side_unreserve(struct side *side, uint64_t addr, size_t size);
int side_retain(struct side *side, uint64_t addr, uint64_t *ret_handle);
/* Is the handle valid; the access of a location (-1: nothing is mapped); the contents, which a mapping needs. */
bool side_is_valid(struct side *side, uint64_t handle);
int side_get_access(struct side *side, uint64_t addr, uint32_t location);
bool side_is_mapped(struct side *side, uint64_t addr);
int side_write(struct side *side, uint64_t addr, int contents);
int side_read(struct side *side, uint64_t addr, int *ret_contents);
/* Bytes that are free for the program to take: more is as a real cuMemGetInfo says. */
uint64_t side_taken(struct side *side);

#endif
