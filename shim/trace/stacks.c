/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stacks.c - see stacks.h.
 *
 * Locking: none; numbers are taken with atomic operations.
 */
#include "trace/stacks.h"

#include <errno.h>
#include <execinfo.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/conf.h"
#include "base/conf_parse.h"
#include "hash.h"
#include "pool.h"
#include "real/caller.h"
#include "trace/json.h"
#include "trace/objects.h"
#include "trace/trace.h"

/* The number of frames of the program in an event, innermost first, and of our own frames, which are left out. */
#define DEPTH TRACE_FRAMES
#define OURS  8
/* The number of addresses that get a number; later ones get none. */
#define NUMBERS 8192

/* A hash table; the number of an address is its index, from 1. */
static _Atomic(uintptr_t) known[NUMBERS];

/* The unwinder is loaded: calling it takes no lock of the loader. */
static bool ready;

/* The first backtrace() loads libgcc_s. During a request the loader's lock could be held by a constructor that waits
 * for this very request. conf_get() would read the other settings too early. */
__attribute__((constructor)) static void load(void)
{
    static const struct conf_row row = {.name = "CUPOOL_TRACE_STACKS", .type = CONF_BOOL};
    const char *text = secure_getenv(row.name);
    const int saved = errno;
    uint64_t wanted = 0;
    void *here;

    if (text && conf_parse(&row, text, &wanted) == 0 && wanted)
        ready = backtrace(&here, 1) > 0;
    errno = saved;
}

/* Write the event of a frame, and of its object if that is a new one. */
static void frame_write(unsigned int number, const void *address)
{
    const unsigned int object = objects_number(address);
    char name[300], of[20] = "";

    caller_name(address, name, sizeof(name));
    json_clean(name); /* it comes from a file */
    if (object)
        snprintf(of, sizeof(of), "\"o\":%u,", object);
    trace_event("frame", "\"f\":%u,\"p\":\"0x%llx\",%s\"at\":\"%s\"", number, (unsigned long long)(uintptr_t)address,
                of, name);
}

static uint16_t number_of(const void *address)
{
    const uintptr_t key = (uintptr_t)address;

    for (unsigned int i = 0; i < 64; i++) {
        const unsigned int index = ((unsigned int)(hash_of(key) >> 40) + i) % NUMBERS;
        uintptr_t seen = atomic_load_explicit(&known[index], memory_order_relaxed);

        if (!seen && atomic_compare_exchange_strong(&known[index], &seen, key)) {
            frame_write(index + 1, address);
            return (uint16_t)(index + 1);
        }
        if (seen == key)
            return (uint16_t)(index + 1);
    }
    return 0;
}

void stacks_alloc(int device, uint64_t addr, size_t size, const void *caller)
{
    void *stack[OURS + DEPTH];
    uint16_t numbers[DEPTH];
    struct trace_block event = {.device = device, .addr = addr, .size = size, .frames = numbers};
    struct pool *pool = NULL;
    size_t block = 0;
    int depth, first = 0;

    if (pool_live(addr, &pool, &block) && block != (size + POOL_GRANULE - 1) / POOL_GRANULE * POOL_GRANULE)
        event.block = block;
    if (!conf_get()->trace_stacks.number) {
        trace_block(TRACE_BLOCK_ALLOC, &event);
        return;
    }
    depth = ready ? backtrace(stack, OURS + DEPTH) : 0;
    while (first < depth && stack[first] != caller)
        first++;
    if (first == depth) { /* the unwinder does not know the caller, or there is no unwinder */
        stack[0] = (void *)caller;
        first = 0;
        depth = 1;
    }
    for (int i = first; i < depth && event.frames_count < DEPTH; i++)
        numbers[event.frames_count++] = number_of(stack[i]);
    trace_block(TRACE_BLOCK_ALLOC, &event);
}
