/* SPDX-License-Identifier: Apache-2.0 */
/* heap.c - see heap.h. Free blocks are in a treap (a search tree, balanced by random priorities), by size, then
 * address. */
#include "heap.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>

#define KIB     ((size_t)1 << 10)
#define MIB     ((size_t)1 << 20)
#define GRANULE ((size_t)512)

/* PyTorch's kSmallSize, kSmallBuffer, kMinLargeAlloc, kLargeBuffer, kRoundLarge. */
#define SMALL_MAX     (1 * MIB)
#define SMALL_SEGMENT (2 * MIB)
#define LARGE_MIN     (10 * MIB)
#define LARGE_SEGMENT (20 * MIB)
#define LARGE_ROUND   (2 * MIB)

struct block {
    uint64_t addr;
    size_t size;
    struct block *prev, *next;   /* neighbours by address, of the same segment */
    struct block *left, *right;  /* while free */
    struct block *older, *newer; /* all blocks, for the end */
    unsigned int priority;
    bool free, small;
};

struct heap {
    enum heap_rules rules;
    struct space *space;
    struct block *trees[2]; /* large, small */
    struct block *newest, *spare;
    unsigned int seed;
    struct heap_stats stats;
};

static size_t round_up(size_t size, size_t unit)
{
    return (size + unit - 1) / unit * unit;
}

/* --- the tree --- */

static bool before(const struct block *a, const struct block *b)
{
    return a->size != b->size ? a->size < b->size : a->addr < b->addr;
}

/* Cut a tree in two: what comes before block, and the rest. */
static void tree_split(struct block *tree, const struct block *block, struct block **ret_left, struct block **ret_right)
{
    while (tree) {
        if (before(tree, block)) {
            *ret_left = tree;
            ret_left = &tree->right;
            tree = tree->right;
        } else {
            *ret_right = tree;
            ret_right = &tree->left;
            tree = tree->left;
        }
    }
    *ret_left = *ret_right = NULL;
}

static void tree_insert(struct block **tree, struct block *block)
{
    while (*tree && (*tree)->priority >= block->priority)
        tree = before(*tree, block) ? &(*tree)->right : &(*tree)->left;
    tree_split(*tree, block, &block->left, &block->right);
    *tree = block;
}

static void tree_remove(struct block **tree, struct block *block)
{
    struct block *left = block->left, *right = block->right;

    while (*tree != block)
        tree = before(*tree, block) ? &(*tree)->right : &(*tree)->left;
    while (left && right) {
        if (left->priority > right->priority) {
            *tree = left;
            tree = &left->right;
            left = left->right;
        } else {
            *tree = right;
            tree = &right->left;
            right = right->left;
        }
    }
    *tree = left ? left : right;
}

/* The smallest block of at least this size, of these the one with the lowest address. */
static struct block *tree_find(struct block *tree, size_t size)
{
    struct block *best = NULL;

    while (tree) {
        if (tree->size >= size) {
            best = tree;
            tree = tree->left;
        } else {
            tree = tree->right;
        }
    }
    return best;
}

/* --- blocks --- */

static struct block *block_new(struct heap *heap)
{
    struct block *block = heap->spare;

    if (block)
        heap->spare = block->next;
    else
        block = malloc(sizeof(*block));
    if (!block)
        return NULL;
    heap->seed = heap->seed * 1664525u + 1013904223u;
    *block = (struct block){.priority = heap->seed >> 4, .older = heap->newest};
    if (heap->newest)
        heap->newest->newer = block;
    heap->newest = block;
    return block;
}

static void block_delete(struct heap *heap, struct block *block)
{
    if (block->newer)
        block->newer->older = block->older;
    else
        heap->newest = block->older;
    if (block->older)
        block->older->newer = block->newer;
    block->next = heap->spare;
    heap->spare = block;
}

static void free_insert(struct heap *heap, struct block *block)
{
    block->free = true;
    tree_insert(&heap->trees[block->small], block);
}

static void free_remove(struct heap *heap, struct block *block)
{
    block->free = false;
    tree_remove(&heap->trees[block->small], block);
}

/* A whole segment, free, goes back. */
static void segment_put(struct heap *heap, struct block *block)
{
    space_give(heap->space, block->addr, block->size);
    heap->stats.held -= block->size;
    heap->stats.segments_free++;
    block_delete(heap, block);
}

/* Swallow the neighbour after block; neither is in a tree. */
static void merge_next(struct heap *heap, struct block *block)
{
    struct block *next = block->next;

    block->size += next->size;
    block->next = next->next;
    if (block->next)
        block->next->prev = block;
    block_delete(heap, next);
}

/* PyTorch does that when cudaMalloc fails: every segment that is free as a whole goes back. */
static bool cached_release(struct heap *heap)
{
    struct block *block, *older;
    bool any = false;

    for (block = heap->newest; block; block = older) {
        older = block->older;
        if (!block->free || block->prev || block->next)
            continue;
        free_remove(heap, block);
        segment_put(heap, block);
        any = true;
    }
    return any;
}

/* --- the rules --- */

static bool is_small(const struct heap *heap, size_t size)
{
    return heap->rules == HEAP_PYTORCH ? size <= SMALL_MAX : size < SPACE_PAGE;
}

static size_t segment_size(const struct heap *heap, size_t size)
{
    if (is_small(heap, size))
        return SMALL_SEGMENT;
    if (heap->rules == HEAP_PYTORCH && size < LARGE_MIN)
        return LARGE_SEGMENT;
    return round_up(size, LARGE_ROUND);
}

static bool splits(const struct heap *heap, const struct block *block, size_t size)
{
    const size_t rest = block->size - size;

    if (block->small)
        return rest >= GRANULE;
    return heap->rules == HEAP_PYTORCH && rest > SMALL_MAX;
}

/* A block as large as a segment for size bytes, in no tree. */
static struct block *segment_get(struct heap *heap, size_t size)
{
    const size_t whole = segment_size(heap, size);
    struct block *block = block_new(heap);
    int rc;

    if (!block)
        return NULL;
    rc = space_take(heap->space, whole, &block->addr);
    if (rc && cached_release(heap))
        rc = space_take(heap->space, whole, &block->addr);
    if (rc) {
        block_delete(heap, block);
        return NULL;
    }
    block->size = whole;
    block->small = is_small(heap, size);
    heap->stats.segments_alloc++;
    heap->stats.held += whole;
    if (heap->stats.held > heap->stats.peak_held)
        heap->stats.peak_held = heap->stats.held;
    return block;
}

int heap_alloc(struct heap *heap, size_t size, uint64_t *ret_block)
{
    struct block *block, *rest;
    bool hit;

    if (size > heap->space->capacity) {
        heap->stats.oom++;
        return -ENOMEM;
    }
    size = round_up(size, GRANULE);
    block = tree_find(heap->trees[is_small(heap, size)], size);
    hit = block != NULL;
    if (hit)
        free_remove(heap, block);
    else
        block = segment_get(heap, size);
    if (!block) {
        heap->stats.oom++;
        return -ENOMEM;
    }
    if (splits(heap, block, size)) {
        rest = block_new(heap);
        if (!rest)
            abort();
        rest->addr = block->addr + size;
        rest->size = block->size - size;
        rest->small = block->small;
        rest->prev = block;
        rest->next = block->next;
        if (rest->next)
            rest->next->prev = rest;
        block->next = rest;
        block->size = size;
        free_insert(heap, rest);
    }
    heap->stats.hits += hit;
    heap->stats.misses += !hit;
    heap->stats.live += block->size;
    if (heap->stats.live > heap->stats.peak_live)
        heap->stats.peak_live = heap->stats.live;
    *ret_block = (uint64_t)(uintptr_t)block;
    return 0;
}

void heap_free(struct heap *heap, uint64_t name)
{
    struct block *block = (struct block *)(uintptr_t)name;

    heap->stats.live -= block->size;
    if (block->next && block->next->free) {
        free_remove(heap, block->next);
        merge_next(heap, block);
    }
    if (block->prev && block->prev->free) {
        block = block->prev;
        free_remove(heap, block);
        merge_next(heap, block);
    }
    if (heap->rules == HEAP_DRIVER && !block->prev && !block->next)
        segment_put(heap, block);
    else
        free_insert(heap, block);
}

/* --- life --- */

struct heap *heap_new(enum heap_rules rules, struct space *space)
{
    struct heap *heap = calloc(1, sizeof(*heap));

    if (heap) {
        heap->rules = rules;
        heap->space = space;
    }
    return heap;
}

void heap_reset(struct heap *heap)
{
    while (heap->newest) {
        struct block *block = heap->newest;

        /* The first of its segment knows where that is; its neighbours come after it. */
        while (block->prev)
            block = block->prev;
        while (block->next)
            merge_next(heap, block);
        segment_put(heap, block);
    }
    heap->trees[0] = heap->trees[1] = NULL;
    heap->stats.live = 0;
}

void heap_delete(struct heap *heap)
{
    struct block *block, *next;

    for (block = heap->newest; block; block = next) {
        next = block->older;
        free(block);
    }
    for (block = heap->spare; block; block = next) {
        next = block->next;
        free(block);
    }
    free(heap);
}

const struct heap_stats *heap_stats_get(const struct heap *heap)
{
    return &heap->stats;
}
