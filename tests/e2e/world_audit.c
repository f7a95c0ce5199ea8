/* SPDX-License-Identifier: Apache-2.0 */
/* world_audit.c - for LD_AUDIT: watches every binding by name, changes none, and says at the end what cudaMalloc was.
 */
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

EXPORT unsigned int la_version(unsigned int version);
EXPORT unsigned int la_objopen(struct link_map *map, Lmid_t space, uintptr_t *cookie);
EXPORT uintptr_t la_symbind64(Elf64_Sym *symbol, unsigned int index, uintptr_t *from, uintptr_t *to,
                              unsigned int *flags, const char *name);

unsigned int la_version(unsigned int version)
{
    return version < LAV_CURRENT ? version : LAV_CURRENT;
}

unsigned int la_objopen(struct link_map *map, Lmid_t space, uintptr_t *cookie)
{
    *cookie = (uintptr_t)map;
    return LA_FLG_BINDTO | LA_FLG_BINDFROM;
}

uintptr_t la_symbind64(Elf64_Sym *symbol, unsigned int index, uintptr_t *from, uintptr_t *to, unsigned int *flags,
                       const char *name)
{
    const struct link_map *map = (const struct link_map *)*to;

    if (strcmp(name, "cudaMalloc") == 0)
        fprintf(stderr, "audit: cudaMalloc of %s\n", map->l_name);
    return symbol->st_value;
}
