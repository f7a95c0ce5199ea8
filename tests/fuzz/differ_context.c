/* SPDX-License-Identifier: Apache-2.0 */
/*
 * differ_context.c - the differential fuzzer's contexts, devices, host memory, peers and IPC handles.
 *
 * It makes contexts of the program's own beside the primary ones, takes references to these, resets them; and lets
 * others at memory, or the device at the host's. There is no other process.
 *
 * Locking: none, see differ.h.
 */
#include "differ.h"

#define D(p) ((CUdeviceptr)(uintptr_t)(p))

/* ---- host memory ---- */

static int host_get(struct host *h)
{
    void *p = NULL;
    int code;

    switch (sharing ? pick(6) : 1 + pick(5)) {
    case 0:
        h->kind = HOST_MAPPED;
        code = (int)cudaHostAlloc(&p, h->size, cudaHostAllocMapped | cudaHostAllocPortable);
        break;
    case 1:
        h->kind = HOST_REGISTERED;
        p = aligned_alloc(4096, 16384);
        memset(p, 0, 16384);
        code = (int)cudaHostRegister(p, 16384, cudaHostRegisterDefault);
        break;
    case 2:
        h->kind = HOST_PAGEABLE;
        p = calloc(1, h->size);
        code = 0;
        break;
    case 3:
        h->kind = HOST_PINNED;
        code = (int)cuMemAllocHost(&p, h->size);
        break;
    default:
        h->kind = HOST_PINNED;
        code = (int)cudaMallocHost(&p, h->size);
    }
    h->p = p;
    return code;
}

static int host_free(struct host *h)
{
    int code;

    if (h->kind == HOST_PAGEABLE) {
        free(h->p);
        return 0;
    }
    if (h->kind != HOST_REGISTERED)
        return chance(2) ? (int)cudaFreeHost(h->p) : (int)cuMemFreeHost(h->p);
    code = (int)cudaHostUnregister(h->p);
    if (!code)
        free(h->p);
    return code;
}

/* Managed memory is a block: the device works on it like on others. */
static void managed_get(void)
{
    struct block *b = &blocks[pick(BLOCKS)];
    const size_t size = 1 + pick(20000);
    const unsigned gen = b->o.gen;
    void *p = NULL;

    if (b->o.live) {
        out(" -");
        return;
    }
    out(" managed");
    if (TOLD("get", cudaMallocManaged(&p, size, cudaMemAttachGlobal)))
        *b = (struct block){.o = {.live = true, .gen = gen, .dev = 0}, .p = p, .size = size, .kind = BLOCK_MANAGED};
}

void op_host(void)
{
    struct host *h = &hosts[pick(HOSTS)];

    if (h->o.live) {
        if (!settle(h->o.mark)) {
            out(" -");
            return;
        }
        use(h->o.dev);
        if (told("free", host_free(h))) {
            h->o.live = false;
            h->o.gen++;
        }
        return;
    }
    h->o.dev = (int)pick((uint32_t)devices);
    if (sharing && chance(8)) {
        use(0);
        managed_get();
        return;
    }
    h->size = 1 + pick(16384);
    use(h->o.dev);
    const int code = host_get(h);
    out(" %d", (int)h->kind);
    if (!told("get", code))
        return;
    memset(h->p, 0x11, h->size);
    h->o = (struct object){.live = true, .defined = true, .gen = h->o.gen, .dev = h->o.dev};
}

void op_host_errors(void)
{
    char local[64];
    void *p = NULL;

    if (captured_anywhere()) {
        out(" -");
        return;
    }
    switch (pick(sharing ? 6 : 5)) {
    case 0:
        TOLD("stack", cudaFreeHost(local));
        break;
    case 1:
        TOLD("null", cudaFreeHost(NULL));
        break;
    case 2:
        TOLD("unregistered", cudaHostUnregister(local));
        break;
    case 3:
        TOLD("huge", cudaMallocHost(&p, (size_t)1 << 60));
        break;
    case 4:
        for (int i = 0; i < HOSTS; i++) {
            if (!hosts[i].o.live || hosts[i].kind == HOST_PAGEABLE)
                continue;
            TOLD("device_free", cudaFree(hosts[i].p + 1));
            break;
        }
        break;
    default:
        TOLD("pointer", cudaHostGetDevicePointer(&p, local, 1));
    }
}

/* ---- contexts ---- */

static int context_create(CUcontext *ret, int dev)
{
#if CUDA_VERSION >= 13000
    return (int)cuCtxCreate(ret, NULL, 0, dev);
#else
    return (int)cuCtxCreate(ret, 0, dev);
#endif
}

void op_context(void)
{
    struct context *c = &contexts[pick(CONTEXTS)];

    if (captured_anywhere()) {
        out(" -");
        return;
    }
    use(0);
    if (c->live) {
        TOLD("destroy", cuCtxDestroy(c->ctx));
        c->live = false;
        if (c->p)
            TOLD("free", cuMemFree(c->p));
        c->p = 0;
        return;
    }
    if (!told("create", context_create(&c->ctx, 0)))
        return;
    c->live = true;
    TOLD("pop", cuCtxPopCurrent(NULL));
}

static void context_memory(struct context *c)
{
    unsigned char bytes[4096];
    const size_t n = c->size < sizeof(bytes) ? c->size : sizeof(bytes);

    if (!c->p) {
        c->size = 1 + pick(chance(8) ? 3 << 20 : 30000);
        if (!TOLD("get", cuMemAlloc(&c->p, c->size)))
            c->p = 0;
        else
            TOLD("fill", cuMemsetD8(c->p, (unsigned char)pick(256), c->size));
        return;
    }
    if (TOLD("read", cuMemcpyDtoH(bytes, c->p, n)))
        out(" %08x", sum(bytes, n));
    if (chance(2)) {
        TOLD("free", cuMemFree(c->p));
        c->p = 0;
    }
}

/* Memory of another context; also given back while the primary one is current. */
void op_context_use(void)
{
    struct context *c = &contexts[pick(CONTEXTS)];
    CUcontext was = NULL, now = NULL;

    if (!c->live || captured_anywhere()) {
        out(" -");
        return;
    }
    use(0);
    if (c->p && chance(3)) {
        TOLD("free_from_outside", cuMemFree(c->p));
        c->p = 0;
        return;
    }
    (void)cuCtxGetCurrent(&was);
    TOLD("push", cuCtxPushCurrent(c->ctx));
    context_memory(c);
    (void)cuCtxGetCurrent(&now);
    out(" current=%d", now == c->ctx);
    TOLD("pop", cuCtxPopCurrent(&now));
    out(" %d", now == c->ctx);
    (void)cuCtxGetCurrent(&now);
    out(" back=%d", now == was);
}

void op_primary(void)
{
    const int dev = (int)pick((uint32_t)devices);
    CUcontext ctx = NULL, now = NULL;
    unsigned flags = 0;
    int active = 0;

    use(dev);
    TOLD("retain", cuDevicePrimaryCtxRetain(&ctx, dev));
    (void)cuCtxGetCurrent(&now);
    out(" current=%d", now == ctx);
    TOLD("state", cuDevicePrimaryCtxGetState(dev, &flags, &active));
    out(" %d", active);
    TOLD("release", cuDevicePrimaryCtxRelease(dev));
    TOLD("state", cuDevicePrimaryCtxGetState(dev, &flags, &active));
    out(" %d", active);
    TOLD("release_nobody", cuDevicePrimaryCtxRelease(63));
}

/* Without a current context. */
void op_popped(void)
{
    CUcontext ctx = NULL;
    void *p = NULL, *q = NULL;

    if (captured_anywhere()) {
        out(" -");
        return;
    }
    use(0);
    if (!TOLD("get", cudaMalloc(&p, 1 + pick(10000))))
        return;
    TOLD("pop", cuCtxPopCurrent(&ctx));
    switch (pick(3)) {
    case 0:
        TOLD("free", cudaFree(p));
        (void)cuCtxGetCurrent(&ctx);
        out(" popped{%d}", ctx != NULL);
        break;
    case 1:
        TOLD("driver_free", cuMemFree(D(p)));
        (void)cuCtxGetCurrent(&ctx);
        out(" current=%d", ctx != NULL);
        break;
    default:
        TOLD("driver_get", cuMemAlloc((CUdeviceptr *)&q, 100));
        TOLD("malloc", cudaMalloc(&q, 100));
        (void)cuCtxGetCurrent(&ctx);
        out(" current=%d", ctx != NULL);
        TOLD("free", cudaFree(q));
        TOLD("free", cudaFree(p));
    }
    devices_forget();
    use(0);
    freed(0);
}

void everything_dead(int dev)
{
    for (int i = 0; i < BLOCKS; i++) {
        if (blocks[i].o.live && blocks[i].o.dev == dev)
            block_dead(&blocks[i]);
    }
    for (int i = 0; i < HOSTS; i++) {
        if (hosts[i].o.live && hosts[i].o.dev == dev && hosts[i].kind != HOST_PAGEABLE) {
            hosts[i].o.live = false;
            hosts[i].o.gen++;
        }
    }
    for (int i = 0; i < EVENTS; i++)
        events[i].live = events[i].live && events[i].dev != dev;
    for (int i = 0; i < EXECS; i++)
        execs[i].live = execs[i].live && execs[i].dev != dev;
    for (int i = 0; i < LANES_ALL; i++) {
        if (i >= DEVICES && i < LANES && lanes[i].live && lanes[i].dev == dev)
            lane_dead(i);
    }
}

/* All work is over before, also what others did with this device's memory. */
static bool quiet_before(int dev)
{
    for (int i = 0; i < BLOCKS; i++) {
        if (blocks[i].o.live && blocks[i].o.dev == dev && !settle(blocks[i].o.mark))
            return false;
    }
    for (int i = 0; i < HOSTS; i++) {
        if (hosts[i].o.live && hosts[i].o.dev == dev && !settle(hosts[i].o.mark))
            return false;
    }
    use(dev);
    if (!TOLD("sync", cudaDeviceSynchronize()))
        return false;
    synced(dev);
    return true;
}

void op_reset(void)
{
    const int dev = (int)pick((uint32_t)devices);
    const struct block *b = &blocks[pick(BLOCKS)];
    const bool was = b->o.live && b->o.dev == dev && b->kind == BLOCK_PLAIN;
    CUcontext ctx;

    if (captured_anywhere() || !quiet_before(dev)) {
        out(" -");
        return;
    }
    use(dev);
    if (chance(3)) { /* the runtime knows nothing of it; a reference of our own makes the context anew */
        TOLD("driver_reset", cuDevicePrimaryCtxReset(dev));
        if (was)
            TOLD("stale", cuMemFree(D(b->p)));
        TOLD("retain", cuDevicePrimaryCtxRetain(&ctx, dev));
    } else {
        TOLD("reset", cudaDeviceReset());
    }
    everything_dead(dev);
    devices_forget();
    use(dev);
    if (was)
        TOLD("stale", chance(2) ? (int)cudaFree(b->p) : (int)cudaFreeAsync(b->p, NULL));
    TOLD("context", cudaFree(NULL));
    lane_start(dev, dev, NULL);
    lane_start(ORPHANS + dev, dev, NULL);
    synced(dev);
}

/* ---- others ---- */

void op_peer(void)
{
    const int dev = (int)pick((uint32_t)devices);
    int can = 0;

    use(dev);
    switch (pick(4)) {
    case 0:
        TOLD("can", cudaDeviceCanAccessPeer(&can, dev, 1 - dev));
        out(" %d", can);
        break;
    case 1:
        if (devices > 1)
            TOLD("disable", cudaDeviceDisablePeerAccess(1 - dev));
        break;
    case 2:
        TOLD("enable_self", cudaDeviceEnablePeerAccess(dev, 0));
        break;
    default:
        if (devices > 1)
            TOLD("enable", cudaDeviceEnablePeerAccess(1 - dev, 0));
    }
}

void op_ipc(void)
{
    const struct block *b = &blocks[pick(BLOCKS)];
    cudaIpcMemHandle_t handle;
    void *p = NULL;
    int code;

    if (captured_anywhere() || !b->o.live || b->kind != BLOCK_PLAIN) {
        out(" -");
        return;
    }
    use(b->o.dev);
    if (chance(4)) {
        TOLD("close", cudaIpcCloseMemHandle(b->p));
        TOLD("stack", cudaIpcGetMemHandle(&handle, &handle));
        return;
    }
    code = (int)cudaIpcGetMemHandle(&handle, b->p);
    out(" ipc{%d", code);
    if (!code)
        out(":%d", (int)cudaIpcOpenMemHandle(&p, handle, cudaIpcMemLazyEnablePeerAccess));
    out("}");
    errors_forget();
}

void op_device(void)
{
    int value = -1;

    switch (pick(6)) {
    case 0:
        TOLD("device", cudaGetDevice(&value));
        out(" %d", value);
        break;
    case 1:
        TOLD("set", cudaSetDevice(77));
        break;
    case 2:
        TOLD("driver_device", cuCtxGetDevice(&value));
        out(" %d", value);
        break;
    case 3:
        TOLD("attribute", cudaDeviceGetAttribute(&value, cudaDevAttrWarpSize, 0));
        out(" %d", value);
        break;
    case 4:
        TOLD("peek", cudaPeekAtLastError());
        break;
    default:
        TOLD("invalid", cudaMemcpyAsync(NULL, NULL, 0, (enum cudaMemcpyKind)7, NULL));
    }
}
