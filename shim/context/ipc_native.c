/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ipc_native.c - see ipc_native.h.
 *
 * Locking: native.lock guards the list, and is a leaf.
 */
#include "context/ipc_native.h"

#include <pthread.h>
#include <stdlib.h>

struct opened {
    uint64_t addr;
    unsigned int opens;
    struct opened *next;
};

static struct {
    pthread_mutex_t lock;
    struct opened *first;
} native = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Where the entry of an address is, or would be; with the lock. */
static struct opened **place_of(uint64_t addr)
{
    struct opened **at = &native.first;

    while (*at && (*at)->addr != addr)
        at = &(*at)->next;
    return at;
}

void ipc_native_opened(uint64_t addr)
{
    struct opened **at;

    pthread_mutex_lock(&native.lock);
    at = place_of(addr);
    if (!*at && (*at = calloc(1, sizeof(**at))))
        (*at)->addr = addr;
    if (*at)
        (*at)->opens++;
    pthread_mutex_unlock(&native.lock);
}

void ipc_native_closed(uint64_t addr)
{
    struct opened **at, *gone = NULL;

    pthread_mutex_lock(&native.lock);
    at = place_of(addr);
    if (*at && !--(*at)->opens) {
        gone = *at;
        *at = gone->next;
    }
    pthread_mutex_unlock(&native.lock);
    free(gone);
}

bool ipc_native_is_open(uint64_t addr)
{
    bool is;

    pthread_mutex_lock(&native.lock);
    is = *place_of(addr) != NULL;
    pthread_mutex_unlock(&native.lock);
    return is;
}

void ipc_native_forget(void)
{
    pthread_mutex_init(&native.lock, NULL);
    native.first = NULL;
}
