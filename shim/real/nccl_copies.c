/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nccl_copies.c - the copies of NCCL in the process, and which of them an object calls; see real_nccl_get in real.h.
 *
 * Locking: none; both lists only grow.
 */
#include <dlfcn.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>

#include "base/log.h"
#include "real/dlsym_next.h"
#include "real/loaded.h"
#include "real/real.h"

static const char *const nccl_names[REAL_NCCL_COUNT] = {
#define NCCL(symbol, parameters) #symbol,
#include "hooks.def"
};

/* The names of the members of struct real_nccl, in order, up to next. */
static const char *const own_names[] = {
#define NCCL_CALL(symbol, parameters) #symbol,
#include "real/calls.def"
};

/* Copies of NCCL, and the objects that call each of them; both lists only grow. */
struct nccl_copy {
    void *handle;
    struct real_nccl functions;
    struct nccl_copy *next;
};

struct nccl_caller {
    const void *object;
    const struct nccl_copy *copy;
    struct nccl_caller *next;
};

static struct {
    _Atomic(const struct nccl_copy *) first; /* the copy that the loader's order gives every caller */
    _Atomic(struct nccl_copy *) copies;
    _Atomic(struct nccl_caller *) callers;
} nccl;

/* The copy behind this handle; NULL: it has no NCCL. */
static const struct nccl_copy *copy_of(void *handle)
{
    struct nccl_copy *copy;
    void **own;

    /* This function is not one of our hooks, so an object that defines it is NCCL or stands in for it. */
    if (!handle || !dlsym_real(handle, "ncclGetVersion"))
        return NULL;
    for (copy = atomic_load(&nccl.copies); copy; copy = copy->next)
        if (copy->handle == handle)
            return copy;
    copy = calloc(1, sizeof(*copy));
    if (!copy)
        return NULL;
    copy->handle = handle;
    own = (void **)&copy->functions;
    for (unsigned int i = 0; i < sizeof(own_names) / sizeof(own_names[0]); i++)
        own[i] = dlsym_real(handle, own_names[i]);
    for (unsigned int i = 0; i < REAL_NCCL_COUNT; i++)
        copy->functions.next[i] = dlsym_real(handle, nccl_names[i]);
    loaded_keep((void *)copy->functions.ncclGetVersion);
    copy->next = atomic_load(&nccl.copies);
    while (!atomic_compare_exchange_weak(&nccl.copies, &copy->next, copy))
        ;
    return copy;
}

/*
 * An object that has loaded its own NCCL is kept loaded: its link map identifies it in the list of callers, and must
 * not come to identify another object. A wrapper that jumps to NCCL's function leaves its own caller's address; the
 * search then finds the same NCCL, or libnccl.so.2, unless the loader keeps several copies apart.
 */
static const struct nccl_copy *copy_look(const void *caller)
{
    const struct nccl_copy *copy = copy_of(RTLD_NEXT);
    Dl_info info;

    if (copy) {
        atomic_store(&nccl.first, copy);
        return copy;
    }
    if (caller && dladdr(caller, &info) && info.dli_fname)
        copy = copy_of(loaded_handle(info.dli_fname));
    return copy ? copy : copy_of(loaded_handle("libnccl.so.2"));
}

static __attribute__((noinline)) const struct real_nccl *nccl_of(const void *caller)
{
    const struct nccl_copy *copy = atomic_load_explicit(&nccl.first, memory_order_acquire);
    struct nccl_caller *known = atomic_load(&nccl.callers);
    const void *object = caller ? loaded_object(caller) : NULL;

    /* The list comes before `first`, which may have been loaded later and does not know this caller's communicators. */
    for (; object && known; known = known->next)
        if (known->object == object)
            return &known->copy->functions;
    copy = copy ? copy : copy_look(caller);
    known = object && copy && !atomic_load(&nccl.first) ? calloc(1, sizeof(*known)) : NULL;
    if (known) {
        *known = (struct nccl_caller){.object = object, .copy = copy, .next = atomic_load(&nccl.callers)};
        while (!atomic_compare_exchange_weak(&nccl.callers, &known->next, known))
            ;
    }
    return copy ? &copy->functions : NULL;
}

/* The common case of every operation: one copy, for all callers. */
const struct real_nccl *real_nccl_get(const void *caller)
{
    const struct nccl_copy *copy = atomic_load_explicit(&nccl.first, memory_order_acquire);

    return copy && !atomic_load(&nccl.callers) ? &copy->functions : nccl_of(caller);
}

static ncclResult_t missing_nccl(void)
{
    return ncclInvalidUsage;
}

void *real_nccl_find(enum real_nccl_symbol symbol, const void *caller)
{
    const struct real_nccl *found = real_nccl_get(caller);

    if (found && found->next[symbol])
        return found->next[symbol];
    log_write(LOG_ERROR, "%s was called, but nothing that is loaded defines it", nccl_names[symbol]);
    return (void *)missing_nccl;
}
