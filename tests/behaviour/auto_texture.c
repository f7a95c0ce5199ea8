/* SPDX-License-Identifier: Apache-2.0 */
/*
 * auto_texture.c - a texture object is destroyed after a cudaFree, and the next one gets its number: the work before
 * that cudaFree must not see it.
 *
 * cuTexObjectDestroy waits for nothing, and natively cudaFree has waited for the work that uses the object. The work
 * is simgpu_fetch on the simulated GPU and a kernel on a real one. Surface objects need arrays, which the simulated GPU
 * lacks; tests/rows calls both.
 */
#include "auto.h"

#define N (64 * BT_KIB) /* bytes of a texture */

static cudaStream_t s;
static unsigned char *first, *second, *out; /* N bytes each: two textures, and what work has read */
static void *victim;
static CUtexObject object;

/* out[i] = texture[i], words of 32 bits, n of them. */
static const char ptx[] = ".version 7.0\n.target sm_70\n.address_size 64\n"
                          ".visible .entry fetch(.param .u64 texture, .param .u64 to, .param .u32 n)\n{\n"
                          ".reg .pred %p;\n.reg .b32 %r<10>;\n.reg .b64 %d<5>;\n"
                          "ld.param.u64 %d1, [texture];\nld.param.u64 %d2, [to];\nld.param.u32 %r1, [n];\n"
                          "mov.u32 %r2, %ctaid.x;\nmov.u32 %r3, %ntid.x;\nmov.u32 %r4, %tid.x;\n"
                          "mad.lo.s32 %r5, %r2, %r3, %r4;\nsetp.ge.u32 %p, %r5, %r1;\n@%p bra DONE;\n"
                          "tex.1d.v4.u32.s32 {%r6, %r7, %r8, %r9}, [%d1, {%r5}];\n"
                          "cvta.to.global.u64 %d3, %d2;\nmul.wide.u32 %d4, %r5, 4;\nadd.s64 %d3, %d3, %d4;\n"
                          "st.global.u32 [%d3], %r6;\nDONE:\nret;\n}\n";

static int fetch(void)
{
    int (*simulated)(void *, unsigned long long, unsigned long long, size_t) =
        (int (*)(void *, unsigned long long, unsigned long long, size_t))bt_driver("simgpu_fetch");
    static CUfunction function;
    CUdeviceptr to = BT_ADDRESS(out);
    unsigned int n = N / 4;
    void *arguments[] = {&object, &to, &n};
    CUmodule module;

    if (simulated) {
        OK(simulated(s, object, to, N));
        return 0;
    }
    if (!function) { /* loading may wait for the device, so setup calls this once */
        OK(cuModuleLoadData(&module, ptx));
        OK(cuModuleGetFunction(&function, module, "fetch"));
    }
    OK(cuLaunchKernel(function, n / 256, 1, 1, 256, 1, 1, 0, (CUstream)s, arguments, NULL));
    return 0;
}

static int make(const void *from)
{
    const CUDA_TEXTURE_DESC how = {.flags = CU_TRSF_READ_AS_INTEGER};
    CUDA_RESOURCE_DESC what = {.resType = CU_RESOURCE_TYPE_LINEAR};

    what.res.linear.devPtr = BT_ADDRESS(from);
    what.res.linear.format = CU_AD_FORMAT_UNSIGNED_INT32;
    what.res.linear.numChannels = 1;
    what.res.linear.sizeInBytes = N;
    OK(cuTexObjectCreate(&object, &what, &how, NULL));
    return 0;
}

static int setup(void)
{
    OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    OK(cudaMalloc((void **)&first, N));
    OK(cudaMalloc((void **)&second, N));
    OK(cudaMalloc((void **)&out, N));
    TRY(bt_fill(first, N, 1));
    TRY(bt_fill(second, N, 2));
    TRY(make(first));
    TRY(fetch());
    TRY(hold_for(s, 1)); /* on a real GPU this makes the memory that it copies */
    OK(cudaMalloc(&victim, 1000));
    OK(cudaFree(victim)); /* a context's first free waits */
    OK(cudaMalloc(&victim, 1000));
    OK(cudaDeviceSynchronize());
    return 0;
}

static int free_victim(void *unused)
{
    OK(cudaFree(victim));
    return 0;
}

static int free_here(void)
{
    return free_victim(NULL);
}

static int free_in_thread(void)
{
    struct bt_thread thread;

    TRY(bt_thread_start(&thread, free_victim, NULL));
    return bt_thread_join(&thread);
}

/* Of the other device, whose work before it waits for this one's. */
static int free_far(void)
{
    static cudaStream_t far;
    static void *p;
    cudaEvent_t event;

    OK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    OK(cudaEventRecord(event, s));
    OK(cudaSetDevice(1));
    if (!far)
        OK(cudaStreamCreateWithFlags(&far, cudaStreamNonBlocking));
    OK(cudaMalloc(&p, 1000));
    OK(cudaStreamWaitEvent(far, event, 0));
    OK(cudaFree(p));
    OK(cudaSetDevice(0));
    return 0;
}

static int setup_far(void)
{
    void *p;

    TRY(bt_devices(2));
    OK(cudaSetDevice(1));
    OK(cudaMalloc(&p, 1000));
    OK(cudaFree(p)); /* a context's first free waits */
    OK(cudaSetDevice(0));
    return setup();
}

/* The held work ends: all that it fetched is of the first texture. */
static int fetched_first(void)
{
    long bad;

    hold_release();
    OK(cudaDeviceSynchronize());
    bad = auto_count(out, N, 1);
    CHECK(bad >= 0);
    return bad ? WRONG("%ld of %zu bytes are of a texture that was made later", bad, (size_t)N) : 0;
}

/* The work that reads the first texture was launched before the free; release makes that. */
static int replaced(void)
{
    for (int round = 0; round < 2; round++) {
        TRY(bt_fill(out, N, 0));
        TRY(hold(s));
        TRY(fetch());
        TRY(auto_now->release());
        OK(cuTexObjectDestroy(object));
        TRY(make(second));
        TRY(fetched_first());
        OK(cuTexObjectDestroy(object));
        TRY(make(first));
        if (auto_now->release != free_far)
            OK(cudaMalloc(&victim, 1000));
    }
    return 0;
}

/* The wait disturbs no capture that has begun since the free. */
HAZARD(replaced_beside_capture, .setup = setup)
{
    cudaStream_t captured;
    cudaGraph_t graph;

    OK(cudaStreamCreateWithFlags(&captured, cudaStreamNonBlocking));
    TRY(bt_fill(out, N, 0));
    TRY(hold(s));
    TRY(fetch());
    TRY(free_here());
    OK(cudaStreamBeginCapture(captured, cudaStreamCaptureModeRelaxed));
    OK(cudaMemsetAsync(second, 2, N, captured));
    OK(cuTexObjectDestroy(object));
    TRY(make(second));
    OK(cudaStreamEndCapture(captured, &graph));
    return fetched_first();
}

/* Nothing waits for work that was launched after the last free, or where nothing was freed. */
RIGHT(destroyed_beside_work, .setup = setup)
{
    cudaError_t busy;

    if (!hold_is_exact())
        SKIP("needs work that is held");
    for (int round = 0; round < 2; round++) {
        TRY(hold_for(s, 10000000));
        OK(cuTexObjectDestroy(object));
        busy = cudaStreamQuery(s);
        TRY(make(second));
        hold_release();
        OK(cudaStreamSynchronize(s));
        EXPECT(busy, cudaErrorNotReady);
        OK(cudaFree(victim));
        OK(cudaMalloc(&victim, 1000));
    }
    LAST(cudaSuccess);
    return 0;
}

/* With CUPOOL_HOST_POOL=1 a free of pinned memory does not wait either. */
RIGHT(replaced_after_pinned_free, .setup = setup)
{
    OK(cudaMallocHost(&victim, 1000));
    TRY(bt_fill(out, N, 0));
    TRY(hold(s));
    TRY(fetch());
    OK(cudaFreeHost(victim));
    OK(cuTexObjectDestroy(object));
    TRY(make(second));
    return fetched_first();
}

AUTO_ADD(own_free, .fn = replaced, .hazard = true, .setup = setup, .release = free_here)
AUTO_ADD(free_of_thread, .fn = replaced, .hazard = true, .setup = setup, .release = free_in_thread)
AUTO_ADD(free_far, .fn = replaced, .hazard = true, .setup = setup_far, .release = free_far)
