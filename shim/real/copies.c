/* SPDX-License-Identifier: Apache-2.0 */
/*
 * copies.c - see copies.h.
 *
 * Locking: the once.
 */
#include "real/copies.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>

#include "real/dlsym_next.h"
#include "real/loaded.h"

/* Each copy exports it. No header declares it: the loader would find the entry of a program that refers to it before
 * that of a copy. */
extern const char cupool_copy;
__attribute__((visibility("default"))) const char cupool_copy = 0;

static struct {
    pthread_once_t looked;
    bool is_second;
    const char *next;
} copies = {.looked = PTHREAD_ONCE_INIT};

static void look(void)
{
    static const char name[] = "cupool_copy";
    /* The program's own scope: RTLD_DEFAULT would find ours, because -Bsymbolic puts our own scope first. */
    void *program = loaded_handle(NULL);
    const void *first = program ? dlsym_real(program, name) : NULL, *next = dlsym_real(RTLD_NEXT, name);
    Dl_info info;

    copies.is_second = first && first != &cupool_copy;
    if (next && next != &cupool_copy && dladdr(next, &info))
        copies.next = info.dli_fname;
    dlerror(); /* a name that was not found would be the next error that the program asks for */
}

__attribute__((constructor)) static void loaded(void)
{
    pthread_once(&copies.looked, look);
}

bool copies_is_first(void)
{
    pthread_once(&copies.looked, look);
    return !copies.is_second;
}

const char *copies_next(void)
{
    pthread_once(&copies.looked, look);
    return copies.next;
}
