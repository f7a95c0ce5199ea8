/* SPDX-License-Identifier: Apache-2.0 */
/*
 * differ_work.c - the differential fuzzer's work on devices: fills, copies, host functions, and what they leave behind.
 *
 * Its order is in differ_order.c; streams and events for their own sake are in differ_stream.c.
 *
 * Locking: none, see differ.h.
 */
#include "differ.h"

#include <stdatomic.h>
#include <time.h>

/* ---- work ---- */

static struct block *block_pick(int dev)
{
    for (int tries = 0; tries < 8; tries++) {
        struct block *b = &blocks[pick(BLOCKS)];
        if (b->o.live && (dev < 0 || b->o.dev == dev))
            return b;
    }
    return NULL;
}

static struct host *host_pick(void)
{
    for (int tries = 0; tries < 4; tries++) {
        struct host *h = &hosts[pick(HOSTS)];
        if (h->o.live)
            return h;
    }
    return NULL;
}

void step_done(const struct step *s)
{
    if (s->whole)
        s->to->defined = !s->from || s->from->defined;
    else if (s->from && !s->from->defined)
        s->to->defined = false;
}

bool step_add(int lane, enum step_kind kind, struct object *to, struct object *from, bool whole)
{
    struct capture *c = &captures[lanes[lane].capture];

    c->steps[c->n++] = (struct step){kind, whole, to, from, to->gen, from ? from->gen : 0};
    return true;
}

/* May work with these objects be given to the lane? It is ordered behind what used them. */
static bool ready(int lane, const struct object *to, const struct object *from)
{
    if (lane_capturing(lane)) { /* on the first lane of it alone: others are not ordered */
        const struct capture *c = &captures[lanes[lane].capture];
        return c->lane == lane && c->n < STEPS;
    }
    if (disturbs(lane))
        return false;
    return order(lane, to->mark) && (!from || order(lane, from->mark));
}

/* Work has been given to the lane, or refused. */
static bool worked(int lane, int code, enum step_kind kind, struct object *to, struct object *from, bool whole)
{
    if (!told("r", code))
        return false;
    if (lane_capturing(lane))
        return step_add(lane, kind, to, from, whole);
    to->mark = sent(lane);
    if (from)
        from->mark = to->mark;
    step_done(&(struct step){kind, whole, to, from, 0, 0});
    return true;
}

#define D(p) ((CUdeviceptr)(uintptr_t)(p))

/* All of it mostly, else a part; in whole words of four bytes, except for bytes. */
static size_t part(size_t size, size_t *offset)
{
    *offset = 0;
    if (!chance(4))
        return size;
    *offset = (size_t)pick((uint32_t)size) & ~(size_t)3;
    return 1 + pick((uint32_t)(size - *offset));
}

void op_fill(void)
{
    struct block *b = block_pick(-1);
    int l = b ? lane_pick(b->o.dev) : -1, code;
    size_t offset, n;

    if (l < 0 || !ready(l, &b->o, NULL)) {
        out(" -");
        return;
    }
    const unsigned char v = (unsigned char)pick(256);
    cudaStream_t s = lanes[l].stream;
    const uint32_t form = pick(l < DEVICES ? 9 : 6);
    n = part(b->size, &offset);
    char *p = b->p + offset;
    bool whole = n == b->size;
    use(b->o.dev);
    switch (form) {
    case 0:
        code = (int)cuMemsetD8Async(D(p), v, n, s);
        break;
    case 1:
        whole = whole && n % 4 == 0;
        code = n > 3 ? (int)cuMemsetD32Async(D(p), v * 0x01020301u, n / 4, s) : 0;
        break;
    case 2:
        whole = whole && n % 2 == 0 && n > 1;
        code = n > 1 ? (int)cuMemsetD16Async(D(p), v, n / 2, s) : 0;
        break;
    case 6:
        code = (int)cudaMemset(p, v, n);
        break;
    case 7:
        code = (int)cuMemsetD8(D(p), v, n);
        break;
    case 8:
        whole = false;
        code = (int)cudaMemset2D(p, n > 1 ? n / 2 : 1, v, n > 7 ? n / 8 : 1, n > 1 ? 2 : 1);
        break;
    default:
        code = (int)cudaMemsetAsync(p, v, n, s);
    }
    out(" %u+%zu", (unsigned)offset, n);
    worked(l, code, STEP_FILL, &b->o, NULL, whole);
    capture_check(l);
}

void op_copy(void)
{
    struct block *to = block_pick(-1), *from = to ? block_pick(to->o.dev) : NULL;
    int l = from ? lane_pick(to->o.dev) : -1, code;

    if (l < 0 || to == from || !ready(l, &to->o, &from->o)) {
        out(" -");
        return;
    }
    const size_t n = to->size < from->size ? to->size : from->size;
    cudaStream_t s = lanes[l].stream;
    use(to->o.dev);
    switch (pick(l < DEVICES ? 8 : 5)) {
    case 0:
        code = (int)cuMemcpyDtoDAsync(D(to->p), D(from->p), n, s);
        break;
    case 1:
        code = (int)cuMemcpyAsync(D(to->p), D(from->p), n, s);
        break;
    case 2:
        code = (int)cudaMemcpyAsync(to->p, from->p, n, cudaMemcpyDefault, s);
        break;
    case 5:
        code = (int)cudaMemcpy(to->p, from->p, n, cudaMemcpyDeviceToDevice);
        break;
    case 6:
        code = (int)cuMemcpyDtoD(D(to->p), D(from->p), n);
        break;
    default:
        code = (int)cudaMemcpyAsync(to->p, from->p, n, cudaMemcpyDeviceToDevice, s);
    }
    out(" %zu", n);
    worked(l, code, STEP_COPY, &to->o, &from->o, n == to->size);
    capture_check(l);
}

void op_peer_copy(void)
{
    struct block *to = block_pick(0), *from = block_pick(1);

    if (chance(2)) {
        struct block *swap = to;
        to = from;
        from = swap;
    }
    if (!to || !from) {
        out(" -");
        return;
    }
    /* Another device's writes are not ordered behind earlier work there, natively except by the wait of cudaFree. */
    const int dev = chance(4) ? from->o.dev : to->o.dev, l = lane_pick(dev);
    if (captured_anywhere()) {
        out(" -");
        return;
    }
    if (dev != to->o.dev && !hazards) {
        use(to->o.dev);
        if (TOLD("wait", cudaDeviceSynchronize()))
            synced(to->o.dev);
    }
    if (!ready(l, &to->o, &from->o)) {
        out(" -");
        return;
    }
    const size_t n = to->size < from->size ? to->size : from->size;
    use(dev);
    int code = chance(2) ? (int)cudaMemcpyPeerAsync(to->p, to->o.dev, from->p, from->o.dev, n, lanes[l].stream)
                         : (int)cudaMemcpyAsync(to->p, from->p, n, cudaMemcpyDefault, lanes[l].stream);
    worked(l, code, STEP_COPY, &to->o, &from->o, n == to->size);
}

static int up(const struct block *b, const struct host *h, size_t n, int l)
{
    cudaStream_t s = lanes[l].stream;

    switch (pick(l < DEVICES ? 5 : 3)) {
    case 0:
        return (int)cuMemcpyHtoDAsync(D(b->p), h->p, n, s);
    case 3:
        return (int)cudaMemcpy(b->p, h->p, n, cudaMemcpyHostToDevice);
    case 4:
        return (int)cuMemcpyHtoD(D(b->p), h->p, n);
    default:
        return (int)cudaMemcpyAsync(b->p, h->p, n, chance(2) ? cudaMemcpyDefault : cudaMemcpyHostToDevice, s);
    }
}

static int down(const struct block *b, struct host *h, size_t n, int l)
{
    cudaStream_t s = lanes[l].stream;

    switch (pick(l < DEVICES ? 5 : 3)) {
    case 0:
        return (int)cuMemcpyDtoHAsync(h->p, D(b->p), n, s);
    case 3:
        return (int)cudaMemcpy(h->p, b->p, n, cudaMemcpyDeviceToHost);
    case 4:
        return (int)cuMemcpyDtoH(h->p, D(b->p), n);
    default:
        return (int)cudaMemcpyAsync(h->p, b->p, n, chance(2) ? cudaMemcpyDefault : cudaMemcpyDeviceToHost, s);
    }
}

/* The device fills pinned or mapped memory of the host. */
static void host_fill(struct host *h)
{
    void *p = NULL;
    int l = lane_pick(h->o.dev);

    if (lane_capturing(l) || !ready(l, &h->o, NULL)) {
        out(" -");
        return;
    }
    use(h->o.dev);
    if (TOLD("pointer", cudaHostGetDevicePointer(&p, h->p, 0)))
        worked(l, (int)cudaMemsetAsync(p, (int)pick(256), h->size, lanes[l].stream), STEP_FILL, &h->o, NULL, true);
}

void op_transfer(void)
{
    struct host *h = host_pick();

    if (sharing && h && h->kind != HOST_PAGEABLE && h->kind != HOST_REGISTERED && chance(6)) {
        host_fill(h);
        return;
    }
    struct block *b = h ? block_pick(h->kind == HOST_PAGEABLE ? -1 : h->o.dev) : NULL;
    int l = b ? lane_pick(b->o.dev) : -1;
    const bool to_device = chance(2);
    if (l < 0 || (h->kind == HOST_PAGEABLE && lane_capturing(l)) || !ready(l, &b->o, &h->o) ||
        (h->kind == HOST_PAGEABLE && !settle(h->o.mark))) {
        out(" -");
        return;
    }
    const size_t n = b->size < h->size ? b->size : h->size;
    use(b->o.dev);
    out(" %s%zu", to_device ? "up" : "down", n);
    bool ok = to_device ? worked(l, up(b, h, n, l), STEP_UP, &b->o, &h->o, n == b->size)
                        : worked(l, down(b, h, n, l), STEP_DOWN, &h->o, &b->o, n == h->size);
    /* Such calls return when the copy is done, or the source read. */
    if (ok && h->kind == HOST_PAGEABLE)
        h->o.mark = (struct mark){0, 0};
    capture_check(l);
}

void op_read(void)
{
    static unsigned char bytes[4096];
    struct block *b = block_pick(-1);
    int l = b ? lane_pick(b->o.dev) : -1, code;

    if (l < 0 || !b->o.defined || lane_capturing(l) || !ready(l, &b->o, NULL)) {
        out(" -");
        return;
    }
    size_t offset = b->size > sizeof(bytes) ? pick((uint32_t)(b->size - sizeof(bytes))) : 0;
    size_t n = b->size < sizeof(bytes) ? b->size : sizeof(bytes);
    use(b->o.dev);
    if (b->kind == BLOCK_MANAGED && chance(2) && settle(b->o.mark)) {
        out(" direct=%08x", sum(b->p + offset, n));
        return;
    }
    memset(bytes, 0, n);
    if (l < DEVICES) {
        code = chance(2) ? (int)cudaMemcpy(bytes, b->p + offset, n, cudaMemcpyDeviceToHost)
                         : (int)cuMemcpyDtoH(bytes, D(b->p + offset), n);
    } else {
        code = (int)cudaMemcpyAsync(bytes, b->p + offset, n, cudaMemcpyDeviceToHost, lanes[l].stream);
        if (!code)
            code = (int)cudaStreamSynchronize(lanes[l].stream);
    }
    if (!told("r", code))
        return;
    lanes[l].synced = lanes[l].sent;
    out(" %zu+%zu:%08x", offset, n, sum(bytes, n));
}

/* ---- the host's side ---- */

void op_host_look(void)
{
    struct host *h = host_pick();

    if (!h || !settle(h->o.mark)) {
        out(" -");
        return;
    }
    if (h->o.defined)
        out(" %zu:%08x", h->size, sum(h->p, h->size));
    if (chance(2)) {
        const unsigned char v = (unsigned char)pick(256);
        for (size_t i = 0; i < h->size; i++)
            h->p[i] = (unsigned char)(v + i / 7);
        h->o.defined = true;
    }
}

void op_after_free(void)
{
    for (int i = 0; i < HOSTS; i++) {
        const struct host *h = &hosts[i];
        if (h->o.live && h->o.defined && state_of(h->o.mark) == FREED)
            out(" host=%08x", sum(h->p, h->size));
    }
    for (int i = 0; i < COUNTERS; i++) {
        if (state_of(counters[i].o.mark) == FREED)
            out(" counted=%08x", __atomic_load_n(&counters[i].hash, __ATOMIC_ACQUIRE));
    }
}

static void CUDART_CB count(void *arg)
{
    const uint32_t v = (uint32_t)(uintptr_t)arg;
    const struct timespec nap = {.tv_nsec = 20000};
    struct counter *c = &counters[v >> 16];

    if (v % 8 == 0)
        nanosleep(&nap, NULL);
    /* Read by the host once it has waited. */
    __atomic_store_n(&c->hash, __atomic_load_n(&c->hash, __ATOMIC_ACQUIRE) * 31 + (v & 0xffff), __ATOMIC_RELEASE);
}

static void CUDART_CB count_callback(cudaStream_t s, cudaError_t status, void *arg)
{
    count(arg);
}

void op_count(void)
{
    const uint32_t i = pick(COUNTERS), v = i << 16 | pick(1 << 16);
    struct counter *c = &counters[i];
    int l, code;

    if (chance(3)) {
        if (settle(c->o.mark))
            out(" counted=%08x", __atomic_load_n(&c->hash, __ATOMIC_ACQUIRE));
        else
            out(" -");
        return;
    }
    l = lane_pick(-1);
    if (!ready(l, &c->o, NULL)) {
        out(" -");
        return;
    }
    use(lanes[l].dev);
    switch (pick(lane_capturing(l) ? 2 : 3)) {
    case 0:
        code = (int)cuLaunchHostFunc(lanes[l].stream, count, (void *)(uintptr_t)v);
        break;
    case 1:
        code = (int)cudaLaunchHostFunc(lanes[l].stream, count, (void *)(uintptr_t)v);
        break;
    default:
        code = (int)cudaStreamAddCallback(lanes[l].stream, count_callback, (void *)(uintptr_t)v, 0);
    }
    worked(l, code, STEP_COUNT, &c->o, NULL, true);
    capture_check(l);
}
