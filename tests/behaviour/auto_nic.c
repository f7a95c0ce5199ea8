/* SPDX-License-Identifier: Apache-2.0 */
/*
 * auto_nic.c - what network cards may count on after cudaFree: the races of auto.h with a card that reads and writes
 * past every stream, through the libraries of auto_standin.c and by calls of the program itself.
 *
 * On real GPUs every test skips: the card is simgpu_poke and simgpu_host.
 */
#include "auto.h"

typedef int poke_fn(unsigned long long addr, const void *from, size_t n);
typedef void *host_fn(unsigned long long addr, size_t n);

static poke_fn *poke;
static host_fn *peek;
static int (*put)(CUdeviceptr, const void *, size_t, poke_fn *);
static int (*get)(CUdeviceptr, void *, size_t, host_fn *);

static int card(void)
{
    poke = (poke_fn *)dlsym(RTLD_DEFAULT, "simgpu_poke");
    peek = (host_fn *)dlsym(RTLD_DEFAULT, "simgpu_host");
    if (!poke || !peek)
        SKIP("needs the simulated GPU");
    return 0;
}

/* A communication library, auto_now->object. */
static int library(void)
{
    void *lib;

    TRY(card());
    TRY(auto_library(auto_now->object, &lib));
    put = (int (*)(CUdeviceptr, const void *, size_t, poke_fn *))dlsym(lib, "standin_put");
    get = (int (*)(CUdeviceptr, void *, size_t, host_fn *))dlsym(lib, "standin_get");
    CHECK(put && get);
    return 0;
}

static int poke_bytes(char *u, size_t n, int byte, bool by_library)
{
    char *bytes = (char *)malloc(n);

    CHECK(bytes);
    memset(bytes, byte, n);
    if (by_library)
        OK(put(BT_ADDRESS(u), bytes, n, poke));
    else
        OK(poke((uintptr_t)u, bytes, n));
    free(bytes);
    return 0;
}

static int receive(char *u, size_t n, int byte)
{
    return poke_bytes(u, n, byte, true);
}

static int transmit(const char *w, size_t n, int byte)
{
    unsigned char *copy = (unsigned char *)malloc(n);
    size_t bad = 0;

    CHECK(copy);
    OK(get(BT_ADDRESS(w), copy, n, peek));
    for (size_t i = 0; i < n; i++)
        bad += copy[i] != (unsigned char)byte;
    free(copy);
    return bad ? WRONG("%zu bytes were sent before they were written", bad) : 0;
}

/* The program itself registers the buffer with its card. */
static int sync_memops_put(char *u, size_t n, int byte)
{
    unsigned int on = 1;

    if (bt_virtual())
        SKIP("virtual memory cannot have SYNC_MEMOPS");
    OK(cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, BT_ADDRESS(u)));
    return poke_bytes(u, n, byte, false);
}

static int dmabuf_put(char *u, size_t n, int byte)
{
    int fd = -1;

    OK(cuMemGetHandleForAddressRange(&fd, BT_ADDRESS(u), n, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0));
    TRY(poke_bytes(u, n, byte, false));
    CHECK(close(fd) == 0);
    return 0;
}

RACE(uct_receive, receive, .setup = library, .object = "libuct_standin.so")
STALE(uct_send, transmit, .setup = library, .object = "libuct_standin.so")
RACE(mca_receive, receive, .setup = library, .object = "mca_standin.so")
STALE(mca_send, transmit, .setup = library, .object = "mca_standin.so")
RACE(mpi_receive, receive, .setup = library, .object = "libmpi_standin.so")
STALE(mpi_send, transmit, .setup = library, .object = "libmpi_standin.so")
RACE(sync_memops, sync_memops_put, .setup = card)
RACE(dmabuf, dmabuf_put, .setup = card)
