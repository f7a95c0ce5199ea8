/* SPDX-License-Identifier: Apache-2.0 */
/*
 * objects.c - see objects.h.
 *
 * Locking: none; numbers are taken with atomic operations.
 */
#include "trace/objects.h"

#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>

#include "real/object.h"
#include "trace/json.h"
#include "trace/trace.h"

/* Objects that get a number. PyTorch with CUDA's libraries has a hundred, of which few call cudaMalloc. */
#define NUMBERS 1024
/* The longest path, escaped, that fits into a line. */
#define PATH 560

/* The first address of each object, in the order of their numbers, from 1. */
static _Atomic(uintptr_t) known[NUMBERS];

static void object_write(unsigned int number, const struct object *object)
{
    uint8_t id[OBJECT_ID_MAX];
    const size_t len = object_build_id(object, id);
    char path[PATH] = "", text[PATH] = "", hex[2 * OBJECT_ID_MAX + 1] = "";

    for (size_t i = 0; i < len; i++)
        snprintf(hex + 2 * i, 3, "%02x", id[i]);
    /* A path that was cut would name another file. */
    if (object_path(object, path, sizeof(path)))
        json_text(text, sizeof(text), path);
    trace_event("object", "\"o\":%u,\"p\":\"0x%llx\",\"bias\":\"0x%llx\",\"id\":\"%s\",\"path\":\"%s\"", number,
                (unsigned long long)object->start, (unsigned long long)object->bias, hex, text);
}

unsigned int objects_number(const void *address)
{
    struct object object;

    if (!object_of(address, &object))
        return 0;
    for (unsigned int i = 0; i < NUMBERS; i++) {
        uintptr_t seen = atomic_load_explicit(&known[i], memory_order_relaxed);

        if (!seen && atomic_compare_exchange_strong(&known[i], &seen, object.start)) {
            object_write(i + 1, &object);
            return i + 1;
        }
        if (seen == object.start)
            return i + 1;
    }
    return 0;
}
