/* SPDX-License-Identifier: Apache-2.0 */
/* world.h - what a module (world_mem.c) offers to the program that loads it (world.c). Codes are CUDA's. */
#ifndef E2E_WORLD_H
#define E2E_WORLD_H

#include <stddef.h>

struct world_api {
    int (*alloc)(void **p, size_t n);
    int (*free)(void *p);
    int (*fill)(void *p, int byte, size_t n); /* and wait */
    int (*read)(void *host, void *p, size_t n);
    int (*start)(void); /* whatever the API starts lazily, without allocating device memory */
    int (*last)(void);  /* cudaGetLastError */
    int (*device)(int ordinal);
    int (*reset)(void);
    int (*graph)(void);       /* a capture into a graph, a call that CUDA 12.0 lacks */
    void (*leave)(char call); /* how a destructor calls alloc, free, reset or graph: a letter; a capital: in a thread */
};

/* The one symbol that a module exports. */
const struct world_api *world_module(void);

#endif
