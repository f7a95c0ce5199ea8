/* SPDX-License-Identifier: Apache-2.0 */
/*
 * work.h - for the behaviour programs: device work that lasts until the program ends it, or for some time.
 *
 * On the simulated GPU it is simgpu_kernel, on a real one a kernel of one thread, compiled by the driver. It needs
 * nothing of the host but the word that ends it, which lies in pinned memory there, so that no call is needed to set
 * it: calls may be held up by what the work holds up.
 */
#ifndef CUPOOL_TESTS_BEHAVIOUR_WORK_H
#define CUPOOL_TESTS_BEHAVIOUR_WORK_H

#include "behaviour.h"

#define BT_WORK_WORDS   64
#define BT_WORK_DEVICES 16

static struct {
    int (*simulated)(void *, const int *, unsigned int);
    CUfunction functions[BT_WORK_DEVICES]; /* NULL: not loaded on that device, or the GPU is simulated */
    int *pinned;                           /* BT_WORK_WORDS of them; the last one stays 0 */
    const int *words[BT_WORK_WORDS];       /* the program's, of which pinned has the values */
} bt_works;

/* The first parameter: the address of the word; the second: nanoseconds. */
static const char bt_work_ptx[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry work(.param .u64 word, .param .u64 ns)\n{\n"
    ".reg .pred %p<3>;\n.reg .b32 %r<2>;\n.reg .b64 %d<6>;\n"
    "ld.param.u64 %d1, [word];\nld.param.u64 %d2, [ns];\nmov.u64 %d3, %globaltimer;\n"
    "LOOP:\nld.volatile.u32 %r1, [%d1];\nsetp.ne.u32 %p1, %r1, 0;\n@%p1 bra DONE;\n"
    "mov.u64 %d4, %globaltimer;\nsub.u64 %d5, %d4, %d3;\nsetp.lt.u64 %p2, %d5, %d2;\n@%p2 bra LOOP;\n"
    "DONE:\nret;\n}\n";

/* Call it before any work is launched on the current device, on one thread: loading the kernel may wait for the device.
 */
BT_UNUSED static int bt_work_begin(void)
{
    CUmodule module;
    void *driver;
    int device;

    OK(cudaGetDevice(&device));
    CHECK(device < BT_WORK_DEVICES);
    if (bt_works.simulated || bt_works.functions[device])
        return 0;
    OK(cudaFree(NULL)); /* there is a context */
    driver = dlopen("libcuda.so.1", RTLD_LAZY);
    CHECK(driver);
    bt_works.simulated = (int (*)(void *, const int *, unsigned int))dlsym(driver, "simgpu_kernel");
    if (bt_works.simulated)
        return 0;
    if (!bt_works.pinned) {
        OK(cudaMallocHost((void **)&bt_works.pinned, BT_WORK_WORDS * sizeof(int)));
        memset(bt_works.pinned, 0, BT_WORK_WORDS * sizeof(int));
    }
    OK(cuModuleLoadData(&module, bt_work_ptx));
    OK(cuModuleGetFunction(&bt_works.functions[device], module, "work"));
    return 0;
}

/* The pinned copy of a word of the program's; by one thread at a time. */
static int *bt_work_copy(const int *word)
{
    int i = 0;

    while (i < BT_WORK_WORDS - 2 && bt_works.words[i] && bt_works.words[i] != word)
        i++;
    bt_works.words[i] = word;
    return &bt_works.pinned[i];
}

/* The word is 0 again: what is launched with it from now on lasts. */
BT_UNUSED static void bt_work_reset(int *word)
{
    __atomic_store_n(word, 0, __ATOMIC_SEQ_CST);
    if (bt_works.pinned)
        __atomic_store_n(bt_work_copy(word), 0, __ATOMIC_SEQ_CST);
}

/* Work that lasts until bt_work_end of the word, which bt_work_reset has been called for; NULL: nothing but time ends
 * it. At the longest so many microseconds. */
BT_UNUSED static int bt_work(cudaStream_t stream, const int *word, unsigned int us)
{
    const int *gate = word;
    unsigned long long ns = us * 1000ull;
    void *arguments[] = {&gate, &ns};
    int device;

    if (bt_works.simulated) {
        OK(bt_works.simulated(stream, word, us));
        return 0;
    }
    gate = word ? bt_work_copy(word) : &bt_works.pinned[BT_WORK_WORDS - 1];
    OK(cudaGetDevice(&device));
    OK(cuLaunchKernel(bt_works.functions[device], 1, 1, 1, 1, 1, 1, 0, (CUstream)stream, arguments, NULL));
    return 0;
}

BT_UNUSED static void bt_work_end(int *word)
{
    __atomic_store_n(word, 1, __ATOMIC_SEQ_CST);
    if (bt_works.pinned)
        __atomic_store_n(bt_work_copy(word), 1, __ATOMIC_SEQ_CST);
}

#endif
