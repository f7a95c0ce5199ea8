/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pinned_calls.c - pinned host memory: which work a free waits for, and which calls may be made where: in captures, in
 * host functions, without a context, after a context has gone, after an error.
 *
 * Codes, flags and attributes are in pinned.c.
 */

#include "probe.h"

#define BYTES (64 * KIB)

static struct {
    CUcontext primary;
    cudaStream_t stream, other;
    void *p, *q, *large, *fresh, *freed, *device;
    _Atomic(int) result, last, done;
} s;

static void prepare(const char *name)
{
    s.primary = probe_primary(name);
    NEED(cudaStreamCreateWithFlags(&s.stream, cudaStreamNonBlocking));
    NEED(cudaStreamCreateWithFlags(&s.other, cudaStreamNonBlocking));
    NEED(cudaMalloc(&s.device, BYTES));
    NEED(cudaMallocHost(&s.p, BYTES));
    NEED(cudaMallocHost(&s.q, 1000));
    NEED(cudaMallocHost(&s.large, 4 * MIB));
    NEED(cudaMallocHost(&s.freed, BYTES));
    NEED(cudaFreeHost(s.freed));
    s.fresh = NULL;
}

/* --- which work a free waits for --- */

enum target { LEGACY, PER_THREAD, BLOCKING, NON_BLOCKING, SECOND, OTHER_DEVICE };

/* HOSTFN: also in a host function. */
#define LIST(CALL, HOSTFN)                                                                                             \
    HOSTFN(free, cudaFreeHost(s.p))                                                                                    \
    HOSTFN(free_driver, cuMemFreeHost(s.p))                                                                            \
    HOSTFN(free_large, cudaFreeHost(s.large))                                                                          \
    HOSTFN(free_null, cudaFreeHost(NULL))                                                                              \
    HOSTFN(free_again, cudaFreeHost(s.freed))                                                                          \
    HOSTFN(free_inside, cudaFreeHost((char *)s.p + 1000))                                                              \
    HOSTFN(free_plain, cudaFreeHost(&s))                                                                               \
    HOSTFN(alloc_small, cudaMallocHost(&s.fresh, 1000))                                                                \
    HOSTFN(alloc_large, cudaMallocHost(&s.fresh, 4 * MIB))                                                             \
    HOSTFN(alloc_flags, cudaHostAlloc(&s.fresh, BYTES, cudaHostAllocMapped))                                           \
    HOSTFN(alloc_none, cudaMallocHost(&s.fresh, 0))                                                                    \
    HOSTFN(alloc_driver, cuMemAllocHost(&s.fresh, BYTES))                                                              \
    HOSTFN(get_flags, cudaHostGetFlags(&(unsigned int){0}, s.p))                                                       \
    CALL(alloc_driver_flags, cuMemHostAlloc(&s.fresh, BYTES, 0))                                                       \
    CALL(attributes, cudaPointerGetAttributes(&(struct cudaPointerAttributes){0}, s.p))                                \
    CALL(device_pointer, cudaHostGetDevicePointer(&(void *){0}, s.p, 0))

LIST(PROBE_CALL, PROBE_CALL)
static const struct probe_call calls[] = {LIST(PROBE_ROW, PROBE_ROW)};
#define NUMBER(name_, code_) NUMBER_##name_,
enum { LIST(NUMBER, NUMBER) };
#define CALLS (sizeof(calls) / sizeof(calls[0]))

static int do_call(void *arg)
{
    return calls[*(const size_t *)arg].fn();
}

/* Does the call wait for work of the target, whose memory and context are the primary one's? */
static void run_waits(const char *name, int target)
{
    int devices = 0;

    NEED(cudaGetDeviceCount(&devices));
    if (target == OTHER_DEVICE && devices < 2) {
        fact(name, "all", ONE_DEVICE);
        return;
    }
    for (size_t i = 0; i < CALLS; i++) {
        CUcontext theirs = NULL;
        cudaStream_t stream = cudaStreamLegacy;
        struct block b;
        bool waits;
        int result;

        if (target != NON_BLOCKING && i > 2)
            break;
        prepare(name);
        b = block_new(name, BLOCK_VALUE);
        if (target == PER_THREAD)
            stream = cudaStreamPerThread;
        else if (target == SECOND)
            NEED(cuCtxCreate(&theirs, NULL, 0, 0));
        else if (target == OTHER_DEVICE)
            NEED(cudaSetDevice(1));
        if (target == BLOCKING)
            NEED(cudaStreamCreate(&stream));
        else if (target >= NON_BLOCKING)
            NEED(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
        NEED(block_start(&b, stream));
        if (target >= SECOND)
            NEED(cuCtxSetCurrent(s.primary));
        ask(name, calls[i].name);
        waits = call_waits(name, s.primary, do_call, &i, &b, &result);
        fact(name, calls[i].name, "%s, %d", waits ? "waits" : "does not wait", result);
        NEED(cuCtxSynchronize());
        if (theirs)
            NEED(cuCtxDestroy(theirs));
    }
}

/* Memory of one context freed while another is current, or none: for which of the two does it wait? */
static void run_waits_elsewhere(const char *name, int other)
{
    static const char *const items[] = {"busy_own.current_other", "busy_current.current_other",
                                        "busy_own.current_none"};
    int devices = 0;

    NEED(cudaGetDeviceCount(&devices));
    if (other == OTHER_DEVICE && devices < 2) {
        fact(name, "all", ONE_DEVICE);
        return;
    }
    for (size_t i = 0; i < 3; i++) {
        CUcontext theirs;
        CUstream stream;
        struct block b;
        size_t call = 0;
        bool waits;
        int result;

        prepare(name);
        b = block_new(name, BLOCK_VALUE);
        if (other == SECOND)
            NEED(cuCtxCreate(&theirs, NULL, 0, 0));
        else
            NEED(cuDevicePrimaryCtxRetain(&theirs, 1));
        NEED(cuCtxSetCurrent(i == 1 ? theirs : s.primary));
        NEED(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
        NEED(block_start(&b, stream));
        ask(name, items[i]);
        waits = call_waits(name, i == 2 ? NULL : theirs, do_call, &call, &b, &result);
        fact(name, items[i], "%s, %d", waits ? "waits" : "does not wait", result);
        NEED(cuCtxSynchronize());
        NEED(cuCtxSetCurrent(s.primary));
    }
}

/* --- captures and host functions --- */

static void *elsewhere(void *arg)
{
    atomic_store(&s.result, do_call(arg));
    atomic_store(&s.last, (int)cudaGetLastError());
    return NULL;
}

/* "CODE last LAST end END", as capture.* tells; arg: the mode, and 3 more in a thread that does not capture. */
static void run_capture(const char *name, int arg)
{
    for (size_t i = 0; i < CALLS; i++) {
        cudaGraph_t graph;
        pthread_t thread;

        prepare(name);
        ask(name, calls[i].name);
        NEED(cudaStreamBeginCapture(s.stream, (enum cudaStreamCaptureMode)(arg % 3)));
        if (arg < 3) {
            (void)elsewhere(&i);
        } else {
            NEED(pthread_create(&thread, NULL, elsewhere, &i));
            NEED(pthread_join(thread, NULL));
        }
        fact(name, calls[i].name, "%d last %d end %d", atomic_load(&s.result), atomic_load(&s.last),
             (int)cudaStreamEndCapture(s.stream, &graph));
        (void)cudaGetLastError();
    }
}

static void CUDART_CB in_fn(void *call)
{
    atomic_store(&s.result, do_call(call));
    atomic_store(&s.last, (int)cudaGetLastError());
    atomic_store(&s.done, 1);
}

/* Each call in a host function: its code, the last error there, and what the stream says. */
static void run_hostfn(const char *name, int arg)
{
    size_t i = (size_t)arg;

    prepare(name);
    ask(name, calls[i].name);
    NEED(cudaLaunchHostFunc(s.stream, in_fn, &i));
    for (int ms = 0; ms < PATIENCE_MS && !atomic_load(&s.done); ms++)
        nap_ms(1);
    if (!atomic_load(&s.done)) {
        fact(name, calls[i].name, "hangs");
        return;
    }
    fact(name, calls[i].name, "%d last %d sync %d", atomic_load(&s.result), atomic_load(&s.last),
         (int)cudaStreamSynchronize(s.stream));
}

/* --- contexts --- */

static int without_context(void *arg)
{
    int *r = arg;
    void *p = NULL;
    CUcontext current = NULL;

    r[0] = (int)cuMemAllocHost(&p, 1000);
    r[1] = (int)cuMemHostAlloc(&p, 1000, 0);
    r[2] = (int)cuMemAllocHost(&p, 0);
    r[3] = (int)cuMemHostGetFlags(&(unsigned int){0}, s.p);
    r[4] = (int)cuMemFreeHost(s.q);
    r[5] = (int)cuMemFreeHost((void *)0x1234);
    (void)cuCtxGetCurrent(&current);
    r[6] = current != NULL;
    r[7] = (int)cudaFreeHost(s.p);
    (void)cuCtxGetCurrent(&current);
    r[8] = current != NULL;
    r[9] = (int)cudaMallocHost(&p, 1000);
    (void)cuCtxGetCurrent(&current);
    r[10] = current != NULL;
    return 0;
}

static void run_no_context(const char *name, int arg)
{
    static const char *const items[] = {"driver_alloc",      "driver_alloc_flags",
                                        "driver_alloc_none", "driver_get_flags",
                                        "driver_free",       "driver_free_wild",
                                        "current_then",      "free",
                                        "current_after_it",  "alloc",
                                        "current_after_that"};
    int r[11], ignored;

    prepare(name);
    (void)call_waits(name, NULL, without_context, r, NULL, &ignored);
    for (int i = 0; i < 11; i++)
        fact(name, items[i], "%d", r[i]);
}

/* The first calls of a process: do they make a context? */
static void run_fresh(const char *name, int arg)
{
    CUcontext current = NULL;
    void *p = NULL;

    TELL_LAST("driver_before_init", cuMemAllocHost(&p, 1000));
    TELL_LAST("driver_free_before_init", cuMemFreeHost((void *)0x1234));
    if (arg == 0)
        TELL_LAST("call", cudaFreeHost((void *)0x1234));
    else if (arg == 1)
        TELL_LAST("call", cudaFreeHost(NULL));
    else if (arg == 2)
        TELL_LAST("call", cudaMallocHost(&p, 0));
    else if (arg == 3)
        TELL_LAST("call", cudaMallocHost(NULL, 16));
    else
        TELL_LAST("call", cudaHostAlloc(&p, 1000, 0x100));
    (void)cuCtxGetCurrent(&current);
    fact(name, "current", "%s", current ? "some" : "none");
}

static void tell_address(const char *name, const char *when, void *p)
{
    char item[64];

#define ITEM(what) (snprintf(item, sizeof(item), "%s.%s", when, what), item)
    fact(name, ITEM("readable"), "%s", page_readable(p) ? "yes" : "no");
    TELL_LAST(ITEM("get_flags"), cuMemHostGetFlags(&(unsigned int){0}, p));
    TELL_LAST(ITEM("memory_type"), cuPointerGetAttribute(&(int){0}, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, addr_of(p)));
    TELL_LAST(ITEM("driver_free"), cuMemFreeHost(p));
    TELL_LAST(ITEM("free"), cudaFreeHost(p));
#undef ITEM
}

/* Memory of a second context, seen from the primary one, before and after the second is destroyed. */
static void run_second(const char *name, int arg)
{
    CUcontext second, of = NULL;
    void *p, *q, *r, *d = NULL;

    prepare(name);
    NEED(cuCtxCreate(&second, NULL, 0, 0));
    NEED(cuMemHostAlloc(&p, BYTES, 0));
    NEED(cuMemHostAlloc(&q, BYTES, CU_MEMHOSTALLOC_PORTABLE));
    NEED(cuMemHostAlloc(&r, BYTES, 0));
    NEED(cuCtxSetCurrent(s.primary));
    TELL_LAST("attribute", cuPointerGetAttribute(&of, CU_POINTER_ATTRIBUTE_CONTEXT, addr_of(p)));
    fact(name, "context", "%s", of == second ? "second" : of == s.primary ? "primary" : of ? "other" : "none");
    TELL_LAST("device_pointer", cuMemHostGetDevicePointer((CUdeviceptr *)&d, p, 0));
    TELL_LAST("flags", cuMemHostGetFlags(&(unsigned int){0}, p));
    TELL_LAST("copy_from", cudaMemcpy(s.device, p, BYTES, cudaMemcpyHostToDevice));
    TELL_LAST("free_from_primary", cudaFreeHost(r));
    TELL_LAST("destroy", cuCtxDestroy(second));
    tell_address(name, "destroyed", p);
    tell_address(name, "portable_destroyed", q);
}

/* After a reset, or the release of the only reference to the primary context, by the driver. */
static void run_gone(const char *name, int how)
{
    CUcontext current = NULL;

    prepare(name);
    if (how == 0)
        TELL_LAST("reset", cudaDeviceReset());
    else if (how == 1)
        TELL_LAST("reset", cuDevicePrimaryCtxReset(0));
    else
        TELL_LAST("release", cuDevicePrimaryCtxRelease(0));
    fact(name, "readable", "%s", page_readable(s.p) ? "yes" : "no");
    if (how < 2) {
        TELL_LAST("driver_free", cuMemFreeHost(s.q));
        TELL_LAST("driver_alloc", cuMemAllocHost(&s.fresh, 1000));
        TELL_LAST("free", cudaFreeHost(s.p));
        (void)cuCtxGetCurrent(&current);
        fact(name, "current", "%s", current ? "some" : "none");
        tell_address(name, "again", s.large);
        TELL_LAST("alloc", cudaMallocHost(&s.fresh, 1000));
    } else {
        tell_address(name, "released", s.p);
    }
}

/* While the work of another thread waits for this thread's free: a kernel-free picture of what a free may hold up. */
static void run_order(const char *name, int arg)
{
    struct block b;
    int freed;
    char *bytes;

    prepare(name);
    b = block_new(name, BLOCK_VALUE);
    bytes = s.p;
    memset(bytes, 1, BYTES);
    NEED(cudaMemset(s.device, 2, BYTES));
    NEED(cudaDeviceSynchronize());
    NEED(block_start(&b, s.stream));
    NEED(cudaMemcpyAsync(bytes, s.device, BYTES, cudaMemcpyDeviceToHost, s.stream));
    block_end_later(name, &b, SETTLE_MS);
    ask(name, "free_of_another");
    freed = (int)cudaFreeHost(s.q);
    fact(name, "free_of_another", "%d, %s", freed, bytes[BYTES - 1] == 2 ? "done" : "not ready");
    NEED(cudaStreamSynchronize(s.stream));
    NEED(block_start(&b, s.stream));
    block_end_later(name, &b, SETTLE_MS);
    freed = (int)cudaHostUnregister(s.p);
    fact(name, "unregister_refused", "%d, %s", freed, cudaStreamQuery(s.stream) ? "not ready" : "done");
    (void)cudaGetLastError();
    NEED(cudaStreamSynchronize(s.stream));
}

/* After an error that stays: a captured fill of memory that is unmapped before the launch. */
static void run_sticky(const char *name, int arg)
{
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle handle;
    CUdeviceptr p;
    cudaGraph_t graph;
    cudaGraphExec_t exec;

    prepare(name);
    NEED(cuMemAddressReserve(&p, 2 * MIB, 0, 0, 0));
    NEED(cuMemCreate(&handle, 2 * MIB, &prop, 0));
    NEED(cuMemMap(p, 2 * MIB, 0, handle, 0));
    NEED(cuMemSetAccess(p, 2 * MIB, &access, 1));
    NEED(cudaStreamBeginCapture(s.stream, cudaStreamCaptureModeRelaxed));
    NEED(cuMemsetD8Async(p, 1, BYTES, s.stream));
    NEED(cudaStreamEndCapture(s.stream, &graph));
    NEED(cudaGraphInstantiate(&exec, graph, 0));
    NEED(cuMemUnmap(p, 2 * MIB));
    NEED(cudaGraphLaunch(exec, s.stream));
    nap_ms(SETTLE_MS);
    if (arg)
        TELL_LAST("sync", cudaDeviceSynchronize());
    for (size_t i = 0; i < CALLS; i++)
        TELL_LAST(calls[i].name, calls[i].fn());
    fact(name, "readable", "%s", page_readable(s.p) ? "yes" : "no");
    TELL_LAST("reset", cudaDeviceReset());
    fact(name, "readable_after_reset", "%s", page_readable(s.large) ? "yes" : "no");
}

#define NO_CASE(name_, code_)
#define HOSTFN_CASE(name_, code_) {"pinned.hostfn." #name_, run_hostfn, NUMBER_##name_},
const struct probe_case pinned_call_cases[] = {
    {"pinned.waits.legacy", run_waits, LEGACY},
    {"pinned.waits.per_thread", run_waits, PER_THREAD},
    {"pinned.waits.blocking", run_waits, BLOCKING},
    {"pinned.waits.non_blocking", run_waits, NON_BLOCKING},
    {"pinned.waits.second_context", run_waits, SECOND},
    {"pinned.waits.other_device", run_waits, OTHER_DEVICE},
    {"pinned.elsewhere.second_context", run_waits_elsewhere, SECOND},
    {"pinned.elsewhere.other_device", run_waits_elsewhere, OTHER_DEVICE},
    {"pinned.capture.global", run_capture, 0},
    {"pinned.capture.thread_local", run_capture, 1},
    {"pinned.capture.relaxed", run_capture, 2},
    {"pinned.capture.global_elsewhere", run_capture, 3},
    {"pinned.capture.thread_local_elsewhere", run_capture, 4},
    {"pinned.capture.relaxed_elsewhere", run_capture, 5},
    LIST(NO_CASE, HOSTFN_CASE){"pinned.no_context", run_no_context, 0},
    {"pinned.fresh.free_wild", run_fresh, 0},
    {"pinned.fresh.free_null", run_fresh, 1},
    {"pinned.fresh.alloc_none", run_fresh, 2},
    {"pinned.fresh.alloc_nowhere", run_fresh, 3},
    {"pinned.fresh.alloc_bad_flags", run_fresh, 4},
    {"pinned.second", run_second, 0},
    {"pinned.gone.reset", run_gone, 0},
    {"pinned.gone.driver_reset", run_gone, 1},
    {"pinned.gone.release", run_gone, 2},
    {"pinned.order", run_order, 0},
    {"pinned.sticky.first", run_sticky, 0},
    {"pinned.sticky.seen", run_sticky, 1},
    {NULL, NULL, 0},
};
