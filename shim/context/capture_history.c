/* SPDX-License-Identifier: Apache-2.0 */
/*
 * capture_history.c - see capture_history.h.
 *
 * Locking: births.lock guards the list; a leaf.
 */
#include "context/capture_history.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "context/capture.h"

struct birth {
    uint64_t addr;
    unsigned int time;
};

static struct {
    pthread_mutex_t lock; /* guards everything below */
    struct birth *list;
    size_t count, room;
} births = {.lock = PTHREAD_MUTEX_INITIALIZER};

unsigned int births_now(void)
{
    return atomic_load(&capture_total) - capture_active();
}

/* The entry of this address; NULL: none. With the lock. */
static struct birth *find(uint64_t addr)
{
    for (size_t i = 0; i < births.count; i++)
        if (births.list[i].addr == addr)
            return &births.list[i];
    return NULL;
}

void births_add(uint64_t addr, unsigned int time)
{
    struct birth *found, *grown;

    pthread_mutex_lock(&births.lock);
    found = find(addr); /* the entry of a segment that went with its context */
    if (!found && births.count == births.room) {
        grown = realloc(births.list, (births.room + 64) * sizeof(*grown));
        births.list = grown ? grown : births.list;
        births.room += grown ? 64 : 0;
    }
    if (!found && births.count < births.room)
        found = &births.list[births.count++];
    if (found)
        *found = (struct birth){.addr = addr, .time = time};
    pthread_mutex_unlock(&births.lock);
}

bool births_captured(uint64_t addr)
{
    unsigned int time = 0;
    struct birth *found;

    pthread_mutex_lock(&births.lock);
    found = find(addr);
    if (found) {
        time = found->time;
        *found = births.list[--births.count];
    }
    pthread_mutex_unlock(&births.lock);
    return atomic_load(&capture_total) != time;
}
