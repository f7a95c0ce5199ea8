/* SPDX-License-Identifier: Apache-2.0 */
/*
 * descriptors.c - host memory for the descriptors of pools, segments and blocks: recycled and never unmapped, because a
 * double free may read one at any time. It initialises no descriptor; its callers do.
 *
 * Locking: retired.lock and spares_lock, leaves; spare blocks are under the lock of the segments that they are for.
 */
#include "descriptors.h"

#include <errno.h>
#include <pthread.h>
#include <sys/mman.h>

/* The number of segment descriptors made at a time. */
#define CHUNK 256

/* Unused descriptors of pools and segments; recycled, never freed. */
static struct {
    pthread_mutex_t lock; /* guards the members below; a leaf lock */
    struct pool *pools;
    struct segment *segments;
} retired = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void *host_pages(size_t size)
{
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    return p == MAP_FAILED ? NULL : p;
}

/* Move SPARES_CHUNK descriptors, or as many as there are. */
static void move(struct spares *from, struct spares *to)
{
    for (unsigned int i = 0; i < SPARES_CHUNK && from->first; i++) {
        struct block *block = spare_pop(from);

        block->link = to->first;
        to->first = block;
        to->count++;
    }
}

void spares_share(struct pool *pool, struct spares *spares)
{
    lock_take(&pool->spares_lock);
    move(spares, &pool->spares_common);
    lock_give(&pool->spares_lock);
}

int spares_refill(struct pool *pool, struct spares *spares)
{
    struct block *blocks;

    lock_take(&pool->spares_lock);
    move(&pool->spares_common, spares);
    lock_give(&pool->spares_lock);
    if (spares->count >= 2)
        return 0;
    blocks = host_pages(SPARES_CHUNK * sizeof(*blocks));
    if (!blocks)
        return -ENOMEM;
    for (unsigned int i = 0; i < SPARES_CHUNK; i++)
        spare_push(pool, spares, &blocks[i]);
    return 0;
}

struct segment *segment_new(void)
{
    struct segment *segment, *more;

    pthread_mutex_lock(&retired.lock);
    if (!retired.segments) {
        more = host_pages(CHUNK * sizeof(*more));
        for (int i = 0; more && i < CHUNK; i++) {
            more[i].next = retired.segments;
            retired.segments = &more[i];
        }
    }
    segment = retired.segments;
    if (segment)
        retired.segments = segment->next;
    pthread_mutex_unlock(&retired.lock);
    return segment;
}

void segment_retire(struct segment *segment)
{
    pthread_mutex_lock(&retired.lock);
    segment->next = retired.segments;
    retired.segments = segment;
    pthread_mutex_unlock(&retired.lock);
}

struct pool *pool_descriptor_new(void)
{
    struct pool *pool;

    pthread_mutex_lock(&retired.lock);
    pool = retired.pools;
    if (pool)
        retired.pools = pool->next_retired;
    pthread_mutex_unlock(&retired.lock);
    return pool ? pool : host_pages(sizeof(*pool));
}

void pool_descriptor_retire(struct pool *pool)
{
    pthread_mutex_lock(&retired.lock);
    pool->next_retired = retired.pools;
    retired.pools = pool;
    pthread_mutex_unlock(&retired.lock);
}
