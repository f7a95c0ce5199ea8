/* SPDX-License-Identifier: Apache-2.0 */
/*
 * small.c - allocations of less than 2 MiB: they lie 512 bytes apart in shared pages.
 *
 * A page that nobody uses any more comes back as zeroes. In one that others use, an allocation finds what the last one
 * there has left. CUDA promises neither, so the adversary puts dirt where there would be zeroes.
 *
 * Locking: everything under sim_lock().
 */
#include "adversary.h"
#include "pages.h"

#define DIRT       0xa5
#define DIRT_BYTES 16384

static struct small *small_new(int dev)
{
    struct device *d = &devices[dev];
    struct small *s = d->spare;

    if (!sim_memory_charge(dev, SIM_PAGE))
        return NULL;
    if (s) {
        d->spare = NULL;
    } else {
        size_t at = pages_take(d, 1);
        if (at == d->pages) {
            sim_memory_discharge(dev, SIM_PAGE);
            return NULL;
        }
        s = calloc(1, sizeof(*s));
        s->page = at;
        d->page[at].small = s;
    }
    s->longest = SLOTS;
    s->next = d->smalls;
    d->smalls = s;
    return s;
}

/* The adversary puts dirt into the granules before this one that were never handed out; into many of them at both ends
 * alone, because the kernel takes its time for each page that is touched. */
static void small_dirty(struct small *s, struct device *d, unsigned end)
{
    char *from = d->host + s->page * SIM_PAGE + s->dirty * SIM_GRANULE;
    size_t n = end > s->dirty ? (end - s->dirty) * SIM_GRANULE : 0, part = n < DIRT_BYTES ? n : DIRT_BYTES;

    if (!n || !adversary_on())
        return;
    memset(from, DIRT, part);
    memset(from + n - part, DIRT, part);
    s->dirty = end;
}

static bool small_fit(struct small *s, struct device *d, struct sim_alloc *a)
{
    unsigned n = (unsigned)(a->span / SIM_GRANULE), run = 0, longest = 0;

    if (n > s->longest)
        return false;
    for (unsigned i = 0; i < SLOTS; i++) {
        struct sim_alloc *at = s->slot[i];
        if (at) {
            i += (unsigned)(at->span / SIM_GRANULE) - 1;
            run = 0;
            continue;
        }
        if (++run > longest)
            longest = run;
        if (run < n)
            continue;
        unsigned first = i + 1 - n;
        for (unsigned k = first; k <= i; k++)
            s->slot[k] = a;
        s->used += n;
        small_dirty(s, d, i + 1);
        a->addr = (uintptr_t)d->va + s->page * SIM_PAGE + first * SIM_GRANULE;
        a->host = d->host + s->page * SIM_PAGE + first * SIM_GRANULE;
        return true;
    }
    s->longest = longest;
    return false;
}

bool small_take(struct device *d, struct sim_alloc *a)
{
    bool ok = false;

    a->span = (a->size + SIM_GRANULE - 1) & ~(SIM_GRANULE - 1);
    for (struct small *s = d->smalls; s && !ok; s = s->next)
        ok = small_fit(s, d, a);
    struct small *s = ok ? NULL : small_new(a->dev);
    return ok || (s && small_fit(s, d, a));
}

void small_release(struct device *d, struct sim_alloc *a)
{
    size_t off = a->addr - (uintptr_t)d->va;
    struct small *s = d->page[off / SIM_PAGE].small;
    unsigned n = (unsigned)(a->span / SIM_GRANULE), first = (unsigned)(off % SIM_PAGE / SIM_GRANULE);

    for (unsigned i = first; i < first + n; i++)
        s->slot[i] = NULL;
    s->used -= n;
    s->longest = SLOTS;
    if (s->used)
        return;
    struct small **at = &d->smalls;
    while (*at != s)
        at = &(*at)->next;
    *at = s->next;
    sim_memory_discharge((int)(d - devices), SIM_PAGE);
    pages_punch(d, s->page, 1);
    s->dirty = 0;
    if (!d->spare) {
        d->spare = s;
        return;
    }
    pages_release(d, s->page, 1);
    free(s);
}
