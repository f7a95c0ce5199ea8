/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nccl_given.c - see nccl_given.h.
 *
 * Locking: given.lock guards the list.
 */
#include "context/nccl_given.h"

#include <pthread.h>
#include <stdlib.h>

struct memory {
    struct memory *next;
    const struct context *context; /* NULL: it has ended */
    uint64_t addr;
    int device;
};

static struct {
    pthread_mutex_t lock; /* guards everything below */
    struct memory *first;
} given = {.lock = PTHREAD_MUTEX_INITIALIZER};

void nccl_given_add(const struct context *context, int device, uint64_t addr)
{
    struct memory *memory = malloc(sizeof(*memory));

    if (!memory)
        return;
    *memory = (struct memory){.context = context, .addr = addr, .device = device};
    pthread_mutex_lock(&given.lock);
    memory->next = given.first;
    given.first = memory;
    pthread_mutex_unlock(&given.lock);
}

/* Take off the list the memory at addr or, with addr 0, one of this device whose context has ended. */
static uint64_t take(uint64_t addr, int device)
{
    struct memory *memory, **at = &given.first;
    uint64_t found = 0;

    pthread_mutex_lock(&given.lock);
    while ((memory = *at) && (addr ? memory->addr != addr : memory->context || memory->device != device))
        at = &memory->next;
    if (memory) {
        found = memory->addr;
        *at = memory->next;
    }
    pthread_mutex_unlock(&given.lock);
    free(memory);
    return found;
}

void nccl_given_remove(uint64_t addr)
{
    take(addr, -1);
}

void nccl_given_ended(const struct context *context)
{
    pthread_mutex_lock(&given.lock);
    for (struct memory *memory = given.first; memory; memory = memory->next)
        if (memory->context == context)
            memory->context = NULL;
    pthread_mutex_unlock(&given.lock);
}

uint64_t nccl_given_left(int device)
{
    return take(0, device);
}
