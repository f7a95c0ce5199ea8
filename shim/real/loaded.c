/* SPDX-License-Identifier: Apache-2.0 */
/* loaded.c - see loaded.h. No locks. */
#include "real/loaded.h"

#include <dlfcn.h>
#include <link.h>
#include <stddef.h>
#include <string.h>

#include "real/caller.h"
#include "real/find_object.h"

void *loaded_handle(const char *name)
{
    /* glibc ends a process that marks an object as not to be unloaded while it is unloading it. Without the mark the
     * object stays, too, unless it goes already. */
    return dlopen(name, RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD | (caller_unloads() ? 0 : RTLD_NODELETE));
}

const char *loaded_file_name(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash ? slash + 1 : path;
}

struct search {
    const char *prefix; /* of the file name */
    const char *path;
};

static int search_one(struct dl_phdr_info *info, size_t size, void *arg)
{
    struct search *search = arg;

    (void)size;
    if (!info->dlpi_name || strncmp(loaded_file_name(info->dlpi_name), search->prefix, strlen(search->prefix)) != 0)
        return 0;
    search->path = info->dlpi_name;
    return 1;
}

const char *loaded_path(const char *prefix)
{
    struct search search = {.prefix = prefix};

    dl_iterate_phdr(search_one, &search);
    return search.path;
}

/* Beginnings of libcudart's file name. Wheels rename it, for example to libcudart-d0da41ae.so.11.0. */
static const char *const cudart_prefixes[] = {"libcudart.so", "libcudart-"};

const char *cudart_path(void)
{
    const char *path = loaded_path(cudart_prefixes[0]);

    return path ? path : loaded_path(cudart_prefixes[1]);
}

bool cudart_is(const char *path)
{
    const char *name = loaded_file_name(path);

    return strncmp(name, cudart_prefixes[0], strlen(cudart_prefixes[0])) == 0 ||
           strncmp(name, cudart_prefixes[1], strlen(cudart_prefixes[1])) == 0;
}

const void *loaded_object(const void *address)
{
    struct found_object found;

    return find_object(address, &found) ? found.map : NULL;
}

void loaded_keep(const void *function)
{
    Dl_info info;

    if (dladdr(function, &info) && info.dli_fname)
        loaded_handle(info.dli_fname);
}
