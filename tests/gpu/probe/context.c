/* SPDX-License-Identifier: Apache-2.0 */
/*
 * context.c - which calls work without a current context, with another one current, and after a context has gone.
 *
 * The facts are codes only; every case is a process of its own, so the order within a case is part of the question.
 */

#include "probe.h"

#define BYTES (64 * KIB)
#define TELL(item, call)                                                                                               \
    do {                                                                                                               \
        ask(name, item);                                                                                               \
        fact(name, item, "%d", (int)(call));                                                                           \
    } while (0)

static const char *current_name(CUcontext primary)
{
    CUcontext c = NULL;
    const CUresult r = cuCtxGetCurrent(&c);

    return r ? "error" : !c ? "none" : !primary ? "some" : c == primary ? "primary" : "other";
}

/* The uses that the address still has. */
static void tell_address(const char *name, const char *when, CUdeviceptr p)
{
    CUdeviceptr base = 0;
    size_t size = 0;
    unsigned int type = 0;
    char item[64];

#define ITEM(what) (snprintf(item, sizeof(item), "%s.%s", when, what), item)
    TELL(ITEM("address_range"), cuMemGetAddressRange(&base, &size, p));
    TELL(ITEM("pointer_attribute"), cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p));
    TELL(ITEM("memset"), cuMemsetD8(p, 0, 64));
    (void)cuCtxSynchronize(); /* p may be freed next, and not everybody waits for this context */
#undef ITEM
}

static void run_before_init(const char *name, int arg)
{
    CUdeviceptr p = 0;
    size_t a, b;

    TELL("driver_alloc", cuMemAlloc(&p, 1000));
    TELL("driver_free", cuMemFree(0x1234000));
    TELL("driver_free_null", cuMemFree(0));
    TELL("driver_mem_get_info", cuMemGetInfo(&a, &b));
    TELL("get_current", cuCtxGetCurrent(&(CUcontext){0}));
    TELL("synchronize", cuCtxSynchronize());
    TELL("pointer_attribute", cuPointerGetAttribute(&(int){0}, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, 0x1234000));
    TELL("last_error", cudaGetLastError());
}

static void run_fresh_process(const char *name, int arg)
{
    CUdeviceptr p = 0;
    size_t a, b;
    void *q = NULL;

    NEED(cuInit(0));
    TELL("driver_alloc", cuMemAlloc(&p, 1000));
    TELL("driver_alloc_none", cuMemAlloc(&p, 0));
    TELL("driver_free", cuMemFree(0x1234000));
    TELL("driver_free_null", cuMemFree(0));
    TELL("driver_mem_get_info", cuMemGetInfo(&a, &b));
    TELL("synchronize", cuCtxSynchronize());
    TELL("address_range", cuMemGetAddressRange(&p, &a, 0x1234000));
    fact(name, "current_before", "%s", current_name(NULL));
    TELL("runtime_malloc", cudaMalloc(&q, 1000));
    fact(name, "current_after", "%s", current_name(NULL));
    TELL("runtime_free", cudaFree(q));
}

/* The first runtime call of a process that is an error, and whether it makes a context. */
static void run_first_calls(const char *name, int arg)
{
    NEED(cuInit(0));
    if (arg == 0)
        TELL("call", cudaFree((void *)0x1234));
    else if (arg == 1)
        TELL("call", cudaMalloc(NULL, 16));
    else if (arg == 2)
        TELL("call", cudaMalloc(&(void *){NULL}, 0));
    else if (arg == 3)
        TELL("call", cudaFree(NULL));
    else
        TELL("call", cudaMemGetInfo(NULL, NULL));
    TELL("last_error", cudaGetLastError());
    fact(name, "current", "%s", current_name(NULL));
}

struct thread_answers {
    CUdeviceptr p;
    void *q, *r;
    CUcontext primary;
    int code[9];
    const char *current[2];
};

static int fresh_thread(void *arg)
{
    struct thread_answers *t = arg;
    CUdeviceptr base;
    size_t a, b;
    unsigned int type;

    t->code[0] = (int)cuMemAlloc(&base, 1000);
    t->code[1] = (int)cuMemGetInfo(&a, &b);
    t->code[2] = (int)cuMemGetAddressRange(&base, &a, t->p);
    t->code[3] = (int)cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, t->p);
    t->code[4] = (int)cuMemsetD8(t->p, 0, 64);
    (void)cuCtxSynchronize();
    t->code[5] = (int)cuMemFree(t->p);
    t->code[6] = (int)cuMemFree(t->p);
    t->current[0] = current_name(t->primary);
    t->code[7] = (int)cudaFree(t->q);
    t->current[1] = current_name(t->primary);
    t->code[8] = (int)cudaMalloc(&t->r, 1000);
    return 0;
}

static void run_fresh_thread(const char *name, int arg)
{
    static const char *const items[] = {
        "driver_alloc", "driver_mem_get_info", "address_range", "pointer_attribute", "memset",
        "driver_free",  "driver_free_again",   "runtime_free",  "runtime_malloc"};
    struct thread_answers t = {.primary = probe_primary(name)};
    int ignored;

    NEED(cuMemAlloc(&t.p, BYTES));
    NEED(cudaMalloc(&t.q, BYTES));
    (void)call_waits(name, NULL, fresh_thread, &t, NULL, &ignored);
    for (size_t i = 0; i < sizeof(items) / sizeof(items[0]); i++)
        fact(name, items[i], "%d", t.code[i]);
    fact(name, "current_before", "%s", t.current[0]);
    fact(name, "current_after", "%s", t.current[1]);
    TELL("last_error", cudaGetLastError());
}

static void run_popped(const char *name, int arg)
{
    CUcontext primary = probe_primary(name), popped;
    CUdeviceptr p, q;
    void *r;

    NEED(cuMemAlloc(&p, BYTES));
    NEED(cudaMalloc(&r, BYTES));
    NEED(cuCtxPopCurrent(&popped));
    fact(name, "current", "%s", current_name(primary));
    tell_address(name, "none", p);
    TELL("driver_alloc", cuMemAlloc(&q, BYTES));
    TELL("driver_free", cuMemFree(p));
    TELL("runtime_free", cudaFree(r));
    fact(name, "current_after", "%s", current_name(primary));
}

static void run_second(const char *name, int arg)
{
    CUcontext primary = probe_primary(name), second, owner = NULL;
    CUdeviceptr p, q, s;
    void *r, *t;

    NEED(cuMemAlloc(&p, BYTES));
    NEED(cudaMalloc(&r, BYTES));
    NEED(cuCtxCreate(&second, NULL, 0, 0));
    NEED(cuMemAlloc(&q, BYTES));
    fact(name, "current", "%s", current_name(primary));
    tell_address(name, "first_from_second", p);
    TELL("driver_free_first", cuMemFree(p));
    TELL("driver_free_first_again", cuMemFree(p));
    TELL("runtime_free_first", cudaFree(r));
    TELL("runtime_malloc", cudaMalloc(&t, BYTES));
    NEED(cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, addr_of(t)));
    fact(name, "runtime_malloc_is_of", "%s", owner == second ? "second" : owner == primary ? "primary" : "other");
    fact(name, "current_after", "%s", current_name(primary));
    NEED(cuCtxSetCurrent(primary));
    tell_address(name, "second_from_first", q);
    TELL("driver_free_second", cuMemFree(q));
    NEED(cuCtxSetCurrent(second));
    NEED(cuMemAlloc(&s, BYTES));
    TELL("destroy", cuCtxDestroy(second));
    fact(name, "current_after_destroy", "%s", current_name(primary));
    tell_address(name, "destroyed_none_current", s);
    NEED(cuCtxSetCurrent(primary));
    tell_address(name, "destroyed", s);
    TELL("driver_free_destroyed", cuMemFree(s));
    TELL("runtime_free_destroyed", cudaFree(t));
    TELL("last_error", cudaGetLastError());
    TELL("set_current_destroyed", cuCtxSetCurrent(second));
    TELL("runtime_malloc_after", cudaMalloc(&t, BYTES));
}

/* 0: cudaDeviceReset. 1: cuDevicePrimaryCtxReset. 2: releasing the last reference. */
static void run_reset(const char *name, int how)
{
    CUcontext primary = probe_primary(name), again;
    CUdeviceptr p, q;
    void *r, *s = NULL;

    NEED(cuMemAlloc(&p, BYTES));
    NEED(cudaMalloc(&r, 4 * MIB));
    if (how == 0)
        TELL("reset", cudaDeviceReset());
    else if (how == 1)
        TELL("reset", cuDevicePrimaryCtxReset(0));
    else
        TELL("reset", cuDevicePrimaryCtxRelease(0));
    fact(name, "current", "%s", current_name(primary));
    TELL("driver_alloc", cuMemAlloc(&q, BYTES));
    TELL("driver_mem_get_info", cuMemGetInfo(&(size_t){0}, &(size_t){0}));
    tell_address(name, "old", p);
    TELL("driver_free", cuMemFree(p));
    TELL("runtime_free", cudaFree(r));
    TELL("last_error", cudaGetLastError());
    TELL("runtime_malloc", cudaMalloc(&s, BYTES));
    TELL("runtime_memset", cudaMemset(s, 0, BYTES));
    TELL("runtime_free_again", cudaFree(r));
    TELL("last_error_again", cudaGetLastError());
    TELL("runtime_free_new", cudaFree(s));
    again = NULL;
    (void)cuCtxGetCurrent(&again);
    fact(name, "context_is", "%s", !again ? "none" : again == primary ? "the same handle" : "another handle");
}

const struct probe_case context_cases[] = {
    {"nocontext.before_init", run_before_init, 0},
    {"nocontext.fresh_process", run_fresh_process, 0},
    {"nocontext.first_free_wild", run_first_calls, 0},
    {"nocontext.first_malloc_nowhere", run_first_calls, 1},
    {"nocontext.first_malloc_none", run_first_calls, 2},
    {"nocontext.first_free_null", run_first_calls, 3},
    {"nocontext.first_mem_get_info_null", run_first_calls, 4},
    {"nocontext.fresh_thread", run_fresh_thread, 0},
    {"nocontext.popped", run_popped, 0},
    {"nocontext.second", run_second, 0},
    {"nocontext.device_reset", run_reset, 0},
    {"nocontext.primary_reset", run_reset, 1},
    {"nocontext.primary_release", run_reset, 2},
    {NULL, NULL, 0},
};
