/* SPDX-License-Identifier: Apache-2.0 */
/*
 * refused.c - calls that take device memory, refused while freed memory would have done.
 *
 * What it is: the program has freed memory, and the simulated GPU refuses one call after the other of a list. Natively
 * the program sees the refusal. Preloaded, the library gives back what is idle and asks again, so that the program sees
 * the second answer: success, or that the simulated GPU has no such thing.
 *
 * What it is not: a card that is full (crowd.c), for real GPUs, about calls that the pool serves.
 */
#include "behaviour.h"

#include <dlfcn.h>

#define REFUSED 2

typedef long word;

/* Null on a real GPU. */
static void (*refuse)(const char *symbol, int code);
static unsigned long (*count)(const char *symbol);
static uint64_t room[64];

/* clang-format off */
static const struct {
    const char *symbol;
    word words[4]; /* numbers and pointers, which travel as one word each */
} calls[] = {
#define ROOM (word)(uintptr_t)room
    {"cuCtxCreate", {ROOM, 0, 0}},
    {"cuCtxCreate_v2", {ROOM, 0, 0}},
    {"cuCtxCreate_v3", {ROOM, 0, 0, 0}},
    {"cuCtxCreate_v4", {ROOM, 0, 0, 0}},
    {"cuGLCtxCreate", {ROOM, 0, 0}},
    {"cuGLCtxCreate_v2", {ROOM, 0, 0}},
    {"cuVDPAUCtxCreate", {ROOM, 0, 0}},
    {"cuVDPAUCtxCreate_v2", {ROOM, 0, 0}},
    {"cuDevicePrimaryCtxRetain", {ROOM, 0}},
    {"cuGreenCtxCreate", {ROOM, 0, 0, 1}},
    {"cuGreenCtxStreamCreate", {ROOM, 0, 1}},
    {"cuStreamCreate", {ROOM, 0}},
    {"cuEventCreate", {ROOM, 0}},
    {"cuCtxSetLimit", {0, 1024}},
    {"cuGraphInstantiate", {ROOM, 0}},
    {"cuGraphInstantiate_v2", {ROOM, 0}},
    {"cuGraphInstantiateWithFlags", {ROOM, 0}},
    {"cuGraphInstantiateWithParams", {ROOM, 0}},
    {"cuGraphInstantiateWithParams_ptsz", {ROOM, 0}},
    {"cuGraphUpload", {0, 0}},
    {"cuGraphUpload_ptsz", {0, 0}},
    {"cuGraphLaunch", {0, 0}},
    {"cuGraphAddMemAllocNode", {ROOM, 0}},
    {"cuGraphAddNode", {ROOM, 0}},
    {"cuGraphAddNode_v2", {ROOM, 0}},
    {"cuGraphAddNode_v3", {ROOM, 0}},
    {"cuMemMapArrayAsync", {ROOM, 1}},
    {"cuMemMapArrayAsync_ptsz", {ROOM, 1}},
    {"cuMemMap", {0, 4096}},
    {"cuMemSetAccess", {0, 4096, ROOM, 0}},
    {"cuMemPoolCreate", {ROOM, ROOM}},
    {"cuImportExternalMemory", {ROOM, ROOM}},
    {"cuExternalMemoryGetMappedBuffer", {ROOM, 1, ROOM}},
    {"cuExternalMemoryGetMappedMipmappedArray", {ROOM, 1, ROOM}},
    {"cuTexObjectCreate", {ROOM, ROOM, ROOM}},
    {"cuSurfObjectCreate", {ROOM, ROOM}},
    {"cuModuleGetFunction", {ROOM, 1, ROOM}},
    {"cuModuleEnumerateFunctions", {ROOM, 1, 1}},
    {"cuModuleGetGlobal_v2", {ROOM, ROOM, 1, ROOM}},
    {"cuModuleGetTexRef", {ROOM, 1, ROOM}},
    {"cuModuleGetSurfRef", {ROOM, 1, ROOM}},
    {"cuLibraryGetKernel", {ROOM, 1, ROOM}},
    {"cuLibraryGetModule", {ROOM, 1}},
    {"cuLibraryGetGlobal", {ROOM, ROOM, 1, ROOM}},
    {"cuLibraryGetManaged", {ROOM, ROOM, 1, ROOM}},
    {"cuLibraryGetUnifiedFunction", {ROOM, 1, ROOM}},
    {"cuKernelGetFunction", {ROOM, 1}},
    {"cuKernelGetAttribute", {ROOM, 0, 1}},
    {"cuKernelSetAttribute", {0, 0, 1}},
    {"cuFuncLoad", {1}},
    {"cuFuncGetModule", {ROOM, 1}},
    {"cuFuncGetAttribute", {ROOM, 0, 1}},
    {"cuFuncSetAttribute", {1, 0, 0}},
    {"cuLaunch", {1}},
    {"cuLaunchGrid", {1, 1, 1}},
    {"cuLaunchGridAsync", {1, 1, 1}},
    {"cuLaunchKernel", {1, 1, 1, 1}},
    {"cuLaunchCooperativeKernel", {1, 1, 1, 1}},
    {"cuLaunchCooperativeKernel_ptsz", {1, 1, 1, 1}},
    {"cuLaunchCooperativeKernelMultiDevice", {ROOM, 1}},
    {"cuGraphicsGLRegisterBuffer", {ROOM, 1}},
    {"cuGraphicsGLRegisterImage", {ROOM, 1, 1}},
    {"cuGraphicsEGLRegisterImage", {ROOM, ROOM}},
    {"cuGraphicsVDPAURegisterVideoSurface", {ROOM, 1}},
    {"cuGraphicsVDPAURegisterOutputSurface", {ROOM, 1}},
    {"cuGraphicsMapResources", {1, ROOM}},
    {"cuGraphicsMapResources_ptsz", {1, ROOM}},
    {"cuGLRegisterBufferObject", {1}},
};
/* clang-format on */
#define CALLS (sizeof(calls) / sizeof(calls[0]))

/* Freed memory that the driver would have at once, and that a pool has now. */
static int leave_some_idle(void)
{
    void *p;

    OK(cudaMalloc(&p, 8 * BT_MIB));
    OK(cudaFree(p));
    return 0;
}

static int is_asked_again(const char *symbol, const word *w)
{
    CUresult (*function)(word, word, word, word, word, word, word, word, word, word, word) = NULL;
    CUcontext own, ignored;
    unsigned long before;
    int rc;

    TRY(leave_some_idle());
    *(void **)&function = dlsym(RTLD_DEFAULT, symbol); /* as the loader would have it */
    CHECK(function);
    before = count(symbol);
    OK(cuCtxGetCurrent(&own));
    if (strstr(symbol, "CtxCreate")) /* a thread that has no context yet */
        OK(cuCtxPopCurrent(&ignored));
    refuse(symbol, REFUSED);
    rc = (int)function(w[0], w[1], w[2], w[3], 0, 0, 0, 0, 0, 0, 0);
    if (!bt_preloaded()) {
        OK(cuCtxSetCurrent(own));
        return rc == REFUSED && count(symbol) == before + 1 ? 0 : BT_FAIL("%s: %d, not refused once", symbol, rc);
    }
    OK(cuCtxSetCurrent(own));
    if (rc == REFUSED || count(symbol) != before + 2)
        return BT_FAIL("%s: %d after %lu calls", symbol, rc, count(symbol) - before);
    return 0;
}

/* Each of them; the first that is wrong is not the last that is looked at. */
static int asked_again(void)
{
    int wrong = 0;

    for (size_t i = 0; i < CALLS; i++) {
        if (is_asked_again(calls[i].symbol, calls[i].words)) {
            printf("  %s\n", bt_why);
            wrong++;
        }
    }
    return wrong ? BT_FAIL("%d of %zu calls", wrong, CALLS) : 0;
}

static const struct bt_test tests[] = {{"asked_again", asked_again}, {NULL, NULL}};

int main(int argc, char **argv)
{
    *(void **)&refuse = dlsym(RTLD_DEFAULT, "simgpu_refuse");
    *(void **)&count = dlsym(RTLD_DEFAULT, "simgpu_count");
    if (!refuse || !count) {
        printf("skip: needs the simulated GPU\n");
        return BT_SKIP;
    }
    return bt_main(argc, argv, tests);
}
