/* SPDX-License-Identifier: Apache-2.0 */
/*
 * beside_waits.c - what the driver holds up while another thread waits in one of its calls: a table of the milliseconds
 * that calls of this thread took beside one of another thread that waits for a kernel of 300 ms, and that one's own.
 * The simulated GPU cannot say it. Rows of the kind WAITS in shim/hooks.def are built upon it.
 *
 *     cc -D_GNU_SOURCE -O2 -I/usr/local/cuda/include -o beside_waits tests/gpu/beside_waits.c -lcuda -lpthread
 *     ./beside_waits
 */
#include <cuda.h>
#include <pthread.h>

#include "../program.h"

#define MIB ((size_t)1 << 20)

static const char spin[] = ".version 6.0\n.target sm_52\n.address_size 64\n"
                           ".visible .entry spin(.param .u64 ns)\n{\n"
                           ".reg .u64 %a, %b, %n;\n.reg .pred %p;\n"
                           "ld.param.u64 %n, [ns];\nmov.u64 %a, %globaltimer;\n"
                           "AGAIN:\nmov.u64 %b, %globaltimer;\nsub.u64 %b, %b, %a;\n"
                           "setp.lt.u64 %p, %b, %n;\n@%p bra AGAIN;\nret;\n}\n";
static CUcontext context;
static CUstream stream, idle;
static CUevent reached; /* on the idle stream */
static CUdeviceptr data;
static double took;

/* The arguments of the other thread's calls. */
struct subject {
    CUmodule module;
    CUdeviceptr memory;
    void *pinned, *registered;
    CUarray array;
};

static int nothing(struct subject *s)
{
    (void)s;
    return 0;
}

static int free_memory(struct subject *s)
{
    return (int)cuMemFree(s->memory);
}

static int free_pinned(struct subject *s)
{
    return (int)cuMemFreeHost(s->pinned);
}

static int unregister(struct subject *s)
{
    return (int)cuMemHostUnregister(s->registered);
}

static int destroy_array(struct subject *s)
{
    return (int)cuArrayDestroy(s->array);
}

static int unload_module(struct subject *s)
{
    return (int)cuModuleUnload(s->module);
}

static int synchronize(struct subject *s)
{
    (void)s;
    return (int)cuCtxSynchronize();
}

static const struct {
    const char *name;
    int (*call)(struct subject *);
} calls[] = {
    {"nothing", nothing},
    {"cuMemFree", free_memory},
    {"cuMemFreeHost", free_pinned},
    {"cuMemHostUnregister", unregister},
    {"cuArrayDestroy", destroy_array},
    {"cuModuleUnload", unload_module},
    {"cuCtxSynchronize", synchronize},
};

struct other {
    unsigned int call;
    struct subject *subject;
};

static void *other_main(void *arg)
{
    const struct other *other = arg;
    double start;

    OK(cuCtxSetCurrent(context));
    start = now_ms();
    OK(calls[other->call].call(other->subject));
    took = now_ms() - start;
    return NULL;
}

static void subject_make(struct subject *s)
{
    const CUDA_ARRAY_DESCRIPTOR shape = {.Width = 1024, .Height = 1024, .Format = CU_AD_FORMAT_UNSIGNED_INT8, 1};

    OK(cuModuleLoadData(&s->module, spin));
    OK(cuMemAlloc(&s->memory, 4 * MIB));
    OK(cuMemAllocHost(&s->pinned, MIB));
    s->registered = aligned_alloc(4096, MIB);
    OK(cuMemHostRegister(s->registered, MIB, 0));
    OK(cuArrayCreate(&s->array, &shape));
}

/* Of this thread, beside the other one. */
static int record(void *event)
{
    return (int)cuCtxRecordEvent(context, event);
}

static int query(void *event)
{
    const CUresult result = cuEventQuery(event);

    return result == CUDA_ERROR_NOT_READY ? 0 : (int)result;
}

static int stream_make(void *event)
{
    CUstream made;

    (void)event;
    return (int)cuStreamCreate(&made, CU_STREAM_NON_BLOCKING);
}

static int attribute(void *event)
{
    CUcontext of;
    CUdeviceptr addr;

    (void)event;
    OK(cuMemAllocAsync(&addr, 4096, CU_STREAM_PER_THREAD));
    (void)cuPointerGetAttribute(&of, CU_POINTER_ATTRIBUTE_CONTEXT, addr);
    return 0;
}

static int info(void *event)
{
    size_t free, total;

    (void)event;
    return (int)cuMemGetInfo(&free, &total);
}

static int allocate(void *event)
{
    CUdeviceptr addr;

    (void)event;
    return (int)cuMemAlloc(&addr, 4 * MIB);
}

static int ask_stream(void *event)
{
    (void)event;
    return cuStreamQuery(idle) == CUDA_ERROR_NOT_READY ? (printf(" busy"), 0) : 0;
}

static int wait_stream(void *event)
{
    (void)event;
    return (int)cuStreamSynchronize(idle);
}

static int wait_event(void *event)
{
    (void)event;
    return (int)cuEventSynchronize(reached);
}

static int copy(void *event)
{
    int to;

    (void)event;
    return (int)cuMemcpyDtoHAsync(&to, data, sizeof(to), idle);
}

static const struct {
    const char *name;
    int (*call)(void *event);
} ours[] = {
    {"record", record},  {"query", query},      {"stream", stream_make}, {"attribute", attribute}, {"info", info},
    {"alloc", allocate}, {"asked", ask_stream}, {"waited", wait_stream}, {"reached", wait_event},  {"copy", copy},
};

int main(void)
{
    uint64_t ns = 300000000;
    void *arguments[] = {&ns};
    CUfunction kernel;
    CUdevice device;
    CUevent event;

    OK(cuInit(0));
    OK(cuDeviceGet(&device, 0));
    OK(cuCtxCreate(&context, NULL, 0, device));
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuStreamCreate(&idle, CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    OK(cuEventCreate(&reached, CU_EVENT_DISABLE_TIMING));
    OK(cuEventRecord(reached, idle));
    OK(cuMemAlloc(&data, 4096));
    printf("%-20s", "the other thread's");
    for (size_t j = 0; j < sizeof(ours) / sizeof(*ours); j++)
        printf(" %10s", ours[j].name);
    printf(" %10s\n", "itself");
    for (unsigned int i = 0; i < sizeof(calls) / sizeof(*calls); i++) {
        printf("%-20s", calls[i].name);
        for (size_t j = 0; j < sizeof(ours) / sizeof(*ours); j++) {
            struct subject s = {0};
            struct other other = {i, &s};
            pthread_t thread;
            double start;

            subject_make(&s);
            OK(cuModuleGetFunction(&kernel, s.module, "spin"));
            OK(cuCtxSynchronize());
            OK(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, arguments, NULL));
            OK(pthread_create(&thread, NULL, other_main, &other));
            nap_ms(30);
            start = now_ms();
            OK(ours[j].call(event));
            printf(" %10.1f", now_ms() - start);
            OK(pthread_join(thread, NULL));
            OK(cuCtxSynchronize());
        }
        printf(" %10.1f\n", took);
    }
    return 0;
}
