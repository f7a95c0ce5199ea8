/* SPDX-License-Identifier: Apache-2.0 */
/*
 * differ_memory.c - the differential fuzzer's memory: it is got and given back in every way, rightly and wrongly.
 *
 * The log describes an address by its relation to others. A pointer that is wrong is used while nothing else can be
 * got, so that it does not become right. Work on the memory is in differ_work.c.
 *
 * Locking: none, see differ.h.
 */
#include "differ.h"

#define D(p) ((CUdeviceptr)(uintptr_t)(p))

static size_t base_free[DEVICES], base_total[DEVICES], peak[DEVICES];

static size_t size_pick(void)
{
    const uint32_t kind = pick(100);

    if (kind < 45)
        return 1 + pick(4096);
    if (kind < 75)
        return 4096 + pick(60 << 10);
    if (kind < 90)
        return 1 + pick(1 << 20);
    if (kind < 97)
        return 2 * MIB - 2048 + pick(4096);
    return 1 + pick(12 << 20);
}

static size_t rounded(size_t n)
{
    return (n + 2 * MIB - 1) & ~(2 * MIB - 1);
}

/* The bytes of live blocks; each rounded up to the driver's pages. */
static size_t live_bytes(int dev, bool pages)
{
    size_t n = 0;

    for (int i = 0; i < BLOCKS; i++) {
        const struct block *b = &blocks[i];
        if (b->o.live && b->o.dev == dev && b->kind != BLOCK_MANAGED)
            n += pages ? rounded(b->size) : b->size;
    }
    for (int i = 0; dev == 0 && i < CONTEXTS; i++)
        n += contexts[i].p ? pages ? rounded(contexts[i].size) : contexts[i].size : 0;
    return n;
}

static bool overlaps(const char *p, size_t n)
{
    for (int i = 0; i < BLOCKS; i++) {
        const struct block *b = &blocks[i];
        if (b->o.live && p < b->p + b->size && b->p < p + n)
            return true;
    }
    for (int i = 0; i < CONTEXTS; i++) {
        const char *q = (const char *)(uintptr_t)contexts[i].p; /* NOLINT: an address */
        if (q && p < q + contexts[i].size && q < p + n)
            return true;
    }
    return false;
}

/* ---- to get ---- */

static void fresh_look(const struct block *b)
{
    unsigned char bytes[512];
    bool zero = true;

    if (cudaMemcpy(bytes, b->p + pick((uint32_t)b->size - 512), sizeof(bytes), cudaMemcpyDeviceToHost)) {
        told("look", 1);
        return;
    }
    for (size_t i = 0; i < sizeof(bytes); i++)
        zero = zero && !bytes[i];
    out(" fresh{%s}", zero ? "zero" : "other");
}

static void got(struct block *b, int dev, char *p, size_t size, enum block_kind kind)
{
    const unsigned gen = b->o.gen;

    if (overlaps(p, size))
        out(" overlap");
    *b = (struct block){.o = {.live = true, .gen = gen, .dev = dev}, .p = p, .size = size, .kind = kind};
    if ((uintptr_t)p % 512)
        out(" unaligned");
    if (size >= 2 * MIB && kind == BLOCK_PLAIN)
        out(" aligned{%d}", (uintptr_t)p % (2 * MIB) == 0);
    if (live_bytes(dev, true) > peak[dev])
        peak[dev] = live_bytes(dev, true);
    if (size >= 2 * MIB && kind == BLOCK_PLAIN && !captured_anywhere() && chance(4))
        fresh_look(b);
}

static int pitched(char **p, size_t *size)
{
    const size_t width = 1 + pick(3000), height = 1 + pick(40);
    size_t pitch = 0;
    CUdeviceptr d = 0;
    int code;

    if (chance(2)) {
        code = (int)cudaMallocPitch((void **)p, &pitch, width, height);
    } else {
        code = (int)cuMemAllocPitch(&d, &pitch, width, height, 4u << pick(3));
        *p = (char *)(uintptr_t)d; /* NOLINT: an address */
    }
    *size = pitch * height;
    if (!code)
        out(" pitch=%zu*%zu", pitch, height);
    return code;
}

static void block_get(struct block *b)
{
    const int dev = (int)pick((uint32_t)devices), l = lane_pick(dev);
    const uint32_t form = pick(12);
    size_t size = size_pick();
    enum block_kind kind = BLOCK_PLAIN;
    CUdeviceptr d = 0;
    char *p = NULL;
    int code;

    use(dev);
    switch (form) {
    case 0:
        code = pitched(&p, &size);
        break;
    case 1:
        if (captured_anywhere()) {
            out(" -");
            return;
        }
        kind = BLOCK_ASYNC;
        code = (int)cudaMallocAsync((void **)&p, size, lanes[l].stream);
        break;
    case 2:
    case 3:
    case 4:
        code = (int)cuMemAlloc(&d, size);
        p = (char *)(uintptr_t)d; /* NOLINT: an address */
        break;
    default:
        code = (int)cudaMalloc((void **)&p, size);
    }
    out(" %zu", size);
    if (kind == BLOCK_PLAIN && unsafe_here()) {
        out(" malloc_in_capture{%d}", code);
        if (!code)
            free_later(p);
        abandon = true;
        return;
    }
    if (!told("get", code))
        return;
    got(b, dev, p, size, kind);
    if (kind == BLOCK_ASYNC)
        b->o.mark = sent(l);
}

/* ---- to give back ---- */

void block_dead(struct block *b)
{
    b->o.live = false;
    b->o.gen++;
}

static void block_free_async(struct block *b, bool driver)
{
    const int l = lane_pick(b->o.dev);

    if (captured_anywhere() || !order(l, b->o.mark)) {
        out(" -");
        return;
    }
    use(b->o.dev);
    const int code = driver ? (int)cuMemFreeAsync(D(b->p), lanes[l].stream) : (int)cudaFreeAsync(b->p, lanes[l].stream);
    if (told("free_async", code)) {
        (void)sent(l);
        block_dead(b);
        /* Not again: a real driver takes a second free of the same memory, and crashes or hangs later. */
    }
}

static void block_free(struct block *b)
{
    const uint32_t form = pick(8);
    int code;

    if (form < 2 && b->kind != BLOCK_MANAGED) {
        block_free_async(b, form);
        return;
    }
    /* cudaFree waits for the memory's own device, and only for memory of cudaMalloc. */
    if ((b->kind != BLOCK_PLAIN || lanes[b->o.mark.lane].dev != b->o.dev) &&
        (captured_anywhere() || !settle(b->o.mark))) {
        out(" -");
        return;
    }
    use(chance(4) ? (int)pick((uint32_t)devices) : b->o.dev);
    const bool unsafe = unsafe_here();
    code = form < 5 ? (int)cuMemFree(D(b->p)) : (int)cudaFree(b->p);
    if (unsafe) {
        out(" free_in_capture{%d}", code);
        if (code)
            free_later(b->p);
        abandon = true;
        block_dead(b);
        return;
    }
    if (!told("free", code))
        return;
    if (b->kind == BLOCK_PLAIN)
        freed(b->o.dev);
    block_dead(b);
    if (hazards && b->kind == BLOCK_PLAIN && chance(2)) /* what the wait is good for */
        op_after_free();
    else if (chance(8))
        TOLD("again", form < 5 ? (int)cuMemFree(D(b->p)) : (int)cudaFree(b->p));
}

void op_block(void)
{
    struct block *b = &blocks[pick(BLOCKS)];

    if (b->o.live)
        block_free(b);
    else
        block_get(b);
}

/* ---- what is wrong ---- */

static void errors_of_block(const struct block *b)
{
    const size_t at = b->size > 1 ? 1 + pick((uint32_t)(b->size - 1)) : 1;

    use(b->o.dev);
    switch (pick(5)) {
    case 0:
        TOLD("inside", cudaFree(b->p + at));
        break;
    case 1:
        TOLD("inside", cuMemFree(D(b->p + at)));
        break;
    case 2:
        TOLD("inside", cudaFreeAsync(b->p + at, lanes[b->o.dev].stream));
        break;
    case 3:
        TOLD("host", cudaFreeHost(b->p));
        break;
    default:
        TOLD("kind", cudaMemcpy(b->p, b->p, 1, (enum cudaMemcpyKind)99));
    }
}

void op_errors(void)
{
    struct block *b = &blocks[pick(BLOCKS)];
    CUdeviceptr d = 1;
    void *p = &d;
    size_t pitch;

    if (captured_anywhere()) {
        out(" -");
        return;
    }
    if (b->o.live && chance(2)) {
        errors_of_block(b);
        return;
    }
    use((int)pick((uint32_t)devices));
    switch (pick(17)) {
    case 0:
        TOLD("none", cudaMalloc(&p, 0));
        out(" null=%d", p == NULL);
        break;
    case 1:
        TOLD("nowhere", cudaMalloc((void **)NULL, 16));
        break;
    case 2:
        TOLD("huge", cudaMalloc(&p, (size_t)1 << (40 + pick(24))));
        break;
    case 3:
        TOLD("most", cudaMalloc(&p, SIZE_MAX - pick(4096)));
        break;
    case 4:
        TOLD("none", cuMemAlloc(&d, 0));
        out(" kept=%d", d == 1);
        break;
    case 5:
        TOLD("nowhere", cuMemAlloc(NULL, 16));
        break;
    case 6:
        TOLD("most", cuMemAlloc(&d, SIZE_MAX - pick(4096)));
        break;
    case 7:
        TOLD("null", cudaFree(NULL));
        break;
    case 8:
        TOLD("null", cuMemFree(0));
        break;
    case 9:
        TOLD("wild", cudaFree((void *)(uintptr_t)(1 + pick(1 << 20)))); /* NOLINT: wrong on purpose */
        break;
    case 10:
        TOLD("stack", cudaFree(&d));
        break;
    case 11:
        TOLD("stack", cuMemFree(D(&d)));
        break;
    case 12:
        TOLD("wild", cudaFreeAsync((void *)0x1234, NULL)); /* NOLINT: wrong on purpose */
        break;
    case 13:
        TOLD("null", cudaFreeAsync(NULL, NULL));
        break;
    case 14:
        TOLD("pitch", cudaMallocPitch(&p, NULL, 16, 16));
        TOLD("none", cudaMallocPitch(&p, &pitch, 0, 16));
        break;
    case 15:
        TOLD("wild_fill", cudaMemset((void *)0x1234, 0, 16)); /* NOLINT: wrong on purpose */
        break;
    default:
        TOLD("async_none", cudaMallocAsync(&p, 0, NULL));
    }
}

/* Memory that has been freed is read: natively an error. */
void op_stale(void)
{
    const int dev = (int)pick((uint32_t)devices);
    const size_t size = size_pick();
    char byte, *p = NULL;

    if (captured_anywhere()) {
        out(" -");
        return;
    }
    use(dev);
    if (!TOLD("get", cudaMalloc((void **)&p, size)) || !TOLD("free", cudaFree(p)))
        return;
    freed(dev);
    /* On a full device cupool hands it back to the driver; the read may then end the context. */
    if (!pressure) {
        out(" stale_read{%d}", (int)cudaMemcpy(&byte, p, 1, cudaMemcpyDeviceToHost));
        errors_forget();
    }
    TOLD("again", chance(2) ? (int)cudaFree(p) : (int)cuMemFree(D(p)));
}

/* ---- questions ---- */

static void attributes_driver(const struct block *b, size_t at)
{
    static const CUpointer_attribute plain[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                                CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_MAPPED};
    const struct block *other = &blocks[pick(BLOCKS)];
    unsigned long long id = 0, other_id = 0;
    CUdeviceptr base = 0;
    CUcontext owner = NULL, now = NULL;
    size_t size = 0;
    int value = 0;

    const CUpointer_attribute a = plain[pick(4)];
    told("attribute", (int)cuPointerGetAttribute(&value, a, D(b->p + at)));
    out(" %d:%d", (int)a, value);
    TOLD("start", cuPointerGetAttribute(&base, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, D(b->p + at)));
    out(" %d", base == D(b->p));
    TOLD("size", cuPointerGetAttribute(&size, CU_POINTER_ATTRIBUTE_RANGE_SIZE, D(b->p + at)));
    out(" %zu", size);
    TOLD("owner", cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, D(b->p)));
    (void)cuCtxGetCurrent(&now);
    out(" %d", owner == now);
    if (other->o.live && other != b && !cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, D(b->p)) &&
        !cuPointerGetAttribute(&other_id, CU_POINTER_ATTRIBUTE_BUFFER_ID, D(other->p)))
        out(" buffer_id{%s}", id == other_id ? "shared" : "own");
}

void op_attributes(void)
{
    const struct block *b = &blocks[pick(BLOCKS)];
    struct cudaPointerAttributes a = {0};
    CUdeviceptr base = 0;
    size_t size = 0, at;

    if (!b->o.live) {
        TOLD("wild_range", cuMemGetAddressRange(&base, &size, 0x1234));
        TOLD("wild_attributes", cudaPointerGetAttributes(&a, &a));
        out(" %d", (int)a.type);
        return;
    }
    at = pick((uint32_t)b->size);
    use(b->o.dev);
    if (chance(3)) {
        attributes_driver(b, at);
        return;
    }
    TOLD("range", cuMemGetAddressRange(chance(4) ? NULL : &base, chance(4) ? NULL : &size, D(b->p + at)));
    out(" %d+%zu", base ? (int)(base - D(b->p)) : 0, size);
    TOLD("attributes", cudaPointerGetAttributes(&a, b->p + at));
    out(" %d,%d,%d", (int)a.type, a.device, (char *)a.devicePointer == b->p + at);
}

/* docs/memory.md has the bound of held memory; what is idle is counted as free. */
void op_info(void)
{
    const int dev = (int)pick((uint32_t)devices);
    size_t avail = 0, total = 0;

    use(dev);
    if (!TOLD("info", chance(2) ? (int)cudaMemGetInfo(&avail, &total) : (int)cuMemGetInfo(&avail, &total)))
        return;
    if (!base_total[dev]) {
        base_total[dev] = total;
        base_free[dev] = avail + live_bytes(dev, false);
    }
    const size_t live = live_bytes(dev, false), most = peak[dev] + peak[dev] / 10 + 160 * MIB;
    out(" %d%d%d", total == base_total[dev], avail + live <= base_free[dev] + 2 * MIB * BLOCKS,
        avail + most >= base_free[dev]);
}

void op_near_full(void)
{
    const int dev = (int)pick((uint32_t)devices);
    size_t avail = 0, total = 0;
    void *p = NULL;
    int code;

    if (captured_anywhere()) {
        out(" -");
        return;
    }
    use(dev);
    if (!TOLD("info", cudaMemGetInfo(&avail, &total)))
        return;
    code = (int)cudaMalloc(&p, avail - (size_t)pick(64) * MIB);
    out(" near_full{%d}", code);
    errors_forget();
    out(" free=%d", code ? 0 : (int)cudaFree(p)); /* told in either case: the rule is about the request alone */
}
