/* SPDX-License-Identifier: Apache-2.0 */
/*
 * capture_history.c - see capture_history.h.
 *
 * Locking: history.lock guards the list; a leaf.
 */
#include "context/capture_history.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "context/capture_gate.h"

struct entry {
    uint64_t addr;
    unsigned int time;
};

static struct {
    pthread_mutex_t lock; /* guards everything below */
    struct entry *list;
    size_t count, room;
} history = {.lock = PTHREAD_MUTEX_INITIALIZER};

unsigned int capture_history_now(void)
{
    return atomic_load(&capture_total) - capture_active();
}

bool capture_history_since(unsigned int time)
{
    return atomic_load(&capture_total) != time;
}

/* The entry of this address; NULL: none. With the lock. */
static struct entry *find(uint64_t addr)
{
    for (size_t i = 0; i < history.count; i++)
        if (history.list[i].addr == addr)
            return &history.list[i];
    return NULL;
}

void capture_history_add(uint64_t addr, unsigned int time)
{
    struct entry *found, *grown;

    pthread_mutex_lock(&history.lock);
    found = find(addr); /* the entry of a segment that went with its context */
    if (!found && history.count == history.room) {
        grown = realloc(history.list, (history.room + 64) * sizeof(*grown));
        history.list = grown ? grown : history.list;
        history.room += grown ? 64 : 0;
    }
    if (!found && history.count < history.room)
        found = &history.list[history.count++];
    if (found)
        *found = (struct entry){.addr = addr, .time = time};
    pthread_mutex_unlock(&history.lock);
}

bool capture_history_saw(uint64_t addr)
{
    unsigned int time = 0;
    struct entry *found;

    pthread_mutex_lock(&history.lock);
    found = find(addr);
    if (found) {
        time = found->time;
        *found = history.list[--history.count];
    }
    pthread_mutex_unlock(&history.lock);
    return capture_history_since(time);
}
