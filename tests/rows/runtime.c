/* SPDX-License-Identifier: Apache-2.0 */
/*
 * runtime.c - the effects of the rows of the runtime, by the cudart that the program is linked to.
 *
 * It is run with the shared cudart, where the rows of the runtime are called; with CUPOOL_HOOK=runtime, where
 * none of the driver's stands behind them; and with the static one, where the rows of the driver have to do it all.
 */

#include "effects.h"

/* Of cuda_runtime_api.h, which knows some rows' parameters by newer names. */
cudaError_t cudaSetDevice(int device);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *ret_stream, unsigned int flags);

CUdeviceptr memory_take(size_t size)
{
    void *ptr = NULL;

    return cudaMalloc(&ptr, size) ? 0 : (CUdeviceptr)ptr;
}

int memory_give(CUdeviceptr ptr)
{
    return (int)cudaFree((void *)ptr);
}

int world_start(void)
{
    const char *hook = getenv("CUPOOL_HOOK");

    freed_usually = hook && strcmp(hook, "runtime") == 0 ? WAITED : ORDERED;
    OK(cudaSetDevice(0));
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    own = memory_take(4 << 20);
    CHECK(own);
    for (int i = 0; i < 2; i++) /* for what was launched before the context was known */
        CHECK(freed() >= 0);
    IS(freed(), freed_usually);
    return 0;
}

/* A shared cudart's function is ours for a program that is linked to it; a static one's is its own. */
int ways(const struct expectation *e)
{
    Dl_info info;

    CHECK(dladdr(e->row->function, &info));
    IS(strstr(info.dli_fname, "libcupool") != NULL, row_is_answered(e->row));
    return 0;
}

const struct effect effects[] = {
    {"pooled", effect_pooled, false, NULL},
    {"frees", effect_frees, false, NULL},
    {"pinned", effect_pinned, false, NULL},
    {"frees-later", effect_frees_later, false, NULL},
    {"counts-idle", effect_counts_idle, false, NULL},
    {"waits", effect_waits, false, NULL},
    {"ipc", effect_ipc, true, NULL},
    {"transfer", effect_transfer, true, NULL},
    {"closes", effect_closes, false, NULL},
    {"opens", effect_opens, false, NULL},
    {"ends-context", effect_ends_context, true, NULL},
    {NULL, NULL, false, NULL},
};
