/* SPDX-License-Identifier: Apache-2.0 */
/*
 * backend.c - see backend.h.
 *
 * Locking: none; `chosen` is atomic.
 */
#include "context/backend.h"

#include <stdatomic.h>

#include "base/conf.h"
#include "base/log.h"
#include "context/cuda_memory.h"
#include "context/nccl_memory.h"
#include "context/vmm_memory.h"

#define UNDECIDED (-1)

static atomic_int chosen = UNDECIDED; /* or an enum backend */

#define SOURCE(symbol, name) [BACKEND_##symbol] = &name##_source,
static const struct memory_source *const sources[] = {BACKENDS(SOURCE)};

#define NAME(symbol, name) [BACKEND_##symbol] = #name,
static const char *const names[] = {BACKENDS(NAME)};

const char *backend_name(unsigned int backend)
{
    return names[backend];
}

const struct memory_source *backend_source(unsigned int backend)
{
    return sources[backend];
}

enum backend backend_chosen(void)
{
    const enum backend wanted = (enum backend)conf_get()->backend.number;
    int decided = atomic_load_explicit(&chosen, memory_order_acquire);
    const char *why;

    if (decided != UNDECIDED)
        return (enum backend)decided;
    /* Several threads may get here at once; they find the same answer, and the first one's is kept. */
    why = sources[wanted]->lacks ? sources[wanted]->lacks() : NULL;
    if (atomic_compare_exchange_strong(&chosen, &decided, why ? BACKEND_CUDA : wanted) && why)
        log_write(LOG_WARN, "CUPOOL_BACKEND=%s is not possible: %s; all memory comes from cudaMalloc", names[wanted],
                  why);
    return (enum backend)atomic_load(&chosen);
}

int backend_find(enum backend backend)
{
    return sources[backend]->find ? sources[backend]->find() : 0;
}

void backend_choose(enum backend backend)
{
    atomic_store(&chosen, backend);
}
