/* SPDX-License-Identifier: Apache-2.0 */
/*
 * returning.c - see returning.h. The driver numbers each piece of memory that it hands out, and tells the number of an
 * address until the memory has arrived. So memory that lies at a segment's address later is told apart.
 *
 * Locking: `lock` guards the slots' numbers, and is the only one under which a slot is written. No call of the driver
 * is made under it. Addresses are read without it: a thread that frees a block twice comes after its own first free.
 */
#include "context/returning.h"

#include <stdatomic.h>

#include "lock.h"
#include "real/real.h"

/* A segment displaces the one that was in its slot. Segments that lie side by side have slots of their own. */
#define SLOTS 4096u

static struct lock lock;
static struct slot {
    _Atomic(uint64_t) addr;
    unsigned long long id;
} slots[SLOTS];

static struct slot *slot_of(uint64_t addr)
{
    return &slots[(addr >> 21 ^ addr >> 33) % SLOTS];
}

/* 0: the driver does not know the address, or cannot say. It is asked twice: by one failure alone no free is let
 * through that would crash later. */
static unsigned long long id_of(const struct real_driver *driver, uint64_t addr)
{
    for (int i = 0; driver->cuPointerGetAttribute && i < 2; i++) {
        unsigned long long id = 0;

        if (driver->cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, addr) == CUDA_SUCCESS)
            return id;
    }
    return 0;
}

bool returning_add(const struct real_driver *driver, uint64_t addr)
{
    const unsigned long long id = id_of(driver, addr);
    struct slot *slot = slot_of(addr);

    lock_take(&lock);
    atomic_store(&slot->addr, addr);
    slot->id = id;
    lock_give(&lock);
    return id || !driver->cuPointerGetAttribute;
}

bool returning_is(const struct real_driver *driver, uint64_t addr)
{
    struct slot *slot = slot_of(addr);
    unsigned long long id;

    if (!driver || !addr || atomic_load(&slot->addr) != addr)
        return false;
    lock_take(&lock);
    id = atomic_load(&slot->addr) == addr ? slot->id : 0;
    lock_give(&lock);
    return id && id_of(driver, addr) == id;
}
