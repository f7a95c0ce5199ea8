/* SPDX-License-Identifier: Apache-2.0 */
/* memory.c - what device memory looks like: contents when it is fresh, alignment, what the driver says about an
 * address. */

#include "attributes.h"

static const size_t sizes[] = {512,     4 * KIB, 64 * KIB, 512 * KIB, MIB,     2 * MIB - 512,
                               2 * MIB, 3 * MIB, 4 * MIB,  16 * MIB,  64 * MIB};
#define SIZES (sizeof(sizes) / sizeof(sizes[0]))

/* All zero, or not? */
static const char *contents(const char *name, const void *p, size_t size)
{
    unsigned char *host = malloc(size);
    bool zero = true;

    NEED(host ? 0 : 2);
    NEED(cudaMemcpy(host, p, size, cudaMemcpyDeviceToHost));
    for (size_t i = 0; zero && i < size; i++)
        zero = host[i] == 0;
    free(host);
    return zero ? "zero" : "dirty";
}

/* fresh: the first of its size in the process. again: after one of the same size was filled and freed. beside: the same
 * while others of that size are in use, so that what small ones share stays with the process. */
static void run_contents(const char *name, int arg)
{
    char text[32], item[64];

    NEED(cudaFree(NULL)); /* no warm-up: it would dirty some pages */
    for (size_t i = 0; i < SIZES; i++) {
        void *p, *q, *others[2];

        NEED(cudaMalloc(&p, sizes[i]));
        snprintf(item, sizeof(item), "%s.fresh", size_name(sizes[i], text, sizeof(text)));
        fact(name, item, "%s", contents(name, p, sizes[i]));
        NEED(cudaMemset(p, 0xab, sizes[i]));
        NEED(cudaDeviceSynchronize());
        NEED(cudaFree(p));
        NEED(cudaMalloc(&q, sizes[i]));
        snprintf(item, sizeof(item), "%s.again", size_name(sizes[i], text, sizeof(text)));
        fact(name, item, "%s", contents(name, q, sizes[i]));
        snprintf(item, sizeof(item), "%s.address", size_name(sizes[i], text, sizeof(text)));
        fact(name, item, "%s", p == q ? "the same" : "another");
        NEED(cudaFree(q));
        NEED(cudaMalloc(&others[0], sizes[i]));
        NEED(cudaMalloc(&p, sizes[i]));
        NEED(cudaMalloc(&others[1], sizes[i]));
        NEED(cudaMemset(p, 0xab, sizes[i]));
        NEED(cudaDeviceSynchronize());
        NEED(cudaFree(p));
        NEED(cudaMalloc(&q, sizes[i]));
        snprintf(item, sizeof(item), "%s.beside", size_name(sizes[i], text, sizeof(text)));
        fact(name, item, "%s, %s address", contents(name, q, sizes[i]), p == q ? "the same" : "another");
        NEED(cudaFree(q));
        NEED(cudaFree(others[0]));
        NEED(cudaFree(others[1]));
    }
}

/* Freed and taken again by way of the stream-ordered calls. */
static void run_contents_async(const char *name, int arg)
{
    char text[32];

    (void)probe_primary(name);
    for (size_t i = 0; i < SIZES; i += 3) {
        void *p, *q;

        NEED(cudaMalloc(&p, sizes[i]));
        NEED(cudaMemset(p, 0xab, sizes[i]));
        NEED(cudaFreeAsync(p, 0));
        NEED(cudaStreamSynchronize(0));
        NEED(cudaMalloc(&q, sizes[i]));
        fact(name, size_name(sizes[i], text, sizeof(text)), "%s", contents(name, q, sizes[i]));
        NEED(cudaFree(q));
    }
}

/* The largest power of two up to 2 MiB that divides eight results; how far apart the first two are, if they are small.
 */
static void run_align(const char *name, int arg)
{
    static const size_t some[] = {1,        255, 256,         257,     512,     1000,    4 * KIB,
                                  64 * KIB, MIB, 2 * MIB - 1, 2 * MIB, 3 * MIB, 16 * MIB};
    char text[32], item[64];

    NEED(cudaFree(NULL));
    for (size_t i = 0; i < sizeof(some) / sizeof(some[0]); i++) {
        void *p[8];
        uintptr_t all = 2 * MIB;

        for (int j = 0; j < 8; j++) {
            NEED(cudaMalloc(&p[j], some[i]));
            all |= (uintptr_t)p[j];
        }
        fact(name, size_name(some[i], text, sizeof(text)), "%zu", (size_t)(all & -all));
        if (some[i] < 4 * KIB) {
            snprintf(item, sizeof(item), "%s.distance", size_name(some[i], text, sizeof(text)));
            fact(name, item, "%zu", (size_t)llabs((long long)((uintptr_t)p[7] - (uintptr_t)p[6])));
        }
        for (int j = 0; j < 8; j++)
            NEED(cudaFree(p[j]));
    }
}

/* --- what the driver says about addresses --- */

enum place { BASE, INSIDE, LAST, PAST, FREED, PLACES };
static const char *const place_names[] = {"base", "inside", "last", "past", "freed"};

static CUdeviceptr place_of(const struct allocation *s, size_t size, enum place place)
{
    return s->base + (place == INSIDE ? size / 2 : place == LAST ? size - 1 : place == PAST ? size : 0);
}

/* One fact for each attribute: its value at five places of a block. Offsets are from the block's start. */
static void run_range(const char *name, int size)
{
    struct allocation s = {.primary = NULL};
    char lines[ATTRIBUTES + 1][256] = {{0}};
    void *p;

    NEED(cudaFree(NULL));
    NEED(cuCtxGetCurrent(&s.primary));
    NEED(cudaMalloc(&p, (size_t)size));
    s.base = addr_of(p);
    NEED(cuPointerGetAttribute(&s.id, CU_POINTER_ATTRIBUTE_BUFFER_ID, s.base));
    for (enum place place = BASE; place < PLACES; place++) {
        const CUdeviceptr at = place_of(&s, (size_t)size, place);
        char text[64];

        if (place == FREED)
            NEED(cudaFree(p));
        for (size_t i = 0; i <= ATTRIBUTES; i++) {
            const size_t have = strlen(lines[i]);

            if (i < ATTRIBUTES)
                attribute_text(text, sizeof(text), i, &s, at);
            else
                address_range_text(text, sizeof(text), &s, at);
            snprintf(lines[i] + have, sizeof(lines[i]) - have, "%s%s %s", have ? ", " : "", place_names[place], text);
        }
    }
    for (size_t i = 0; i <= ATTRIBUTES; i++)
        fact(name, i < ATTRIBUTES ? attribute_name(i) : "address_range", "%s", lines[i]);
}

/* Several attributes at once, as cudaPointerGetAttributes asks; and the runtime's own answers. */
static void run_pointers(const char *name, int arg)
{
    struct cudaPointerAttributes a;
    unsigned long long id[3];
    void *p, *q, *host;
    int local = 0, r;

    NEED(cudaFree(NULL));
    NEED(cudaMalloc(&p, 1000));
    NEED(cudaMalloc(&q, 1000));
    NEED(cudaMallocHost(&host, 1000));
#define POINTER(item, pointer)                                                                                         \
    do {                                                                                                               \
        memset(&a, 0, sizeof(a));                                                                                      \
        r = (int)cudaPointerGetAttributes(&a, pointer);                                                                \
        fact(name, item, "%d type %d device %d device_pointer %s host_pointer %s", r, (int)a.type, a.device,           \
             a.devicePointer ? "yes" : "no", a.hostPointer ? "yes" : "no");                                            \
    } while (0)
    POINTER("device", p);
    POINTER("device_inside", (char *)p + 500);
    POINTER("device_past", (char *)p + 1000);
    POINTER("pinned", host);
    POINTER("pageable", &local);
    POINTER("null", NULL);
    NEED(cuPointerGetAttribute(&id[0], CU_POINTER_ATTRIBUTE_BUFFER_ID, addr_of(p)));
    NEED(cuPointerGetAttribute(&id[1], CU_POINTER_ATTRIBUTE_BUFFER_ID, addr_of(q)));
    fact(name, "buffer_id_of_two", "%s", id[0] == id[1] ? "the same" : "different");
    NEED(cudaFree(p));
    POINTER("freed", p);
    NEED(cudaMalloc(&p, 1000));
    NEED(cuPointerGetAttribute(&id[2], CU_POINTER_ATTRIBUTE_BUFFER_ID, addr_of(p)));
    fact(name, "buffer_id_again", "%s", id[0] == id[2] ? "the same" : "different");
    fact(name, "last_error", "%d", (int)cudaGetLastError());
#undef POINTER
}

/* SYNC_MEMOPS and IPC handles, set on one block: does it show at another, or after freeing and allocating again? */
static void run_marks(const char *name, int arg)
{
    void *p, *q;
    unsigned int one = 1, value = 9;
    cudaIpcMemHandle_t a, b;
    CUdeviceptr base;
    size_t size;

    NEED(cudaFree(NULL));
    NEED(cudaMalloc(&p, 1000));
    NEED(cudaMalloc(&q, 1000));
    fact(name, "set", "%d", (int)cuPointerSetAttribute(&one, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, addr_of(p)));
    (void)cuPointerGetAttribute(&value, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, addr_of(p));
    fact(name, "of_it", "%u", value);
    (void)cuPointerGetAttribute(&value, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, addr_of(q));
    fact(name, "of_another", "%u", value);
    NEED(cudaFree(p));
    NEED(cudaMalloc(&p, 1000));
    (void)cuPointerGetAttribute(&value, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, addr_of(p));
    fact(name, "of_the_next", "%u", value);
    fact(name, "ipc", "%d", (int)cudaIpcGetMemHandle(&a, p));
    fact(name, "ipc_of_another", "%d", (int)cudaIpcGetMemHandle(&b, q));
    fact(name, "ipc_handles", "%s", memcmp(&a, &b, sizeof(a)) ? "different" : "the same");
    fact(name, "ipc_inside", "%d", (int)cudaIpcGetMemHandle(&a, (char *)q + 256));
    NEED(cudaFree(q));
    fact(name, "ipc_freed", "%d", (int)cudaIpcGetMemHandle(&a, q));
    fact(name, "last_error", "%d", (int)cudaGetLastError());
    fact(name, "range_of_null", "%d", (int)cuMemGetAddressRange(&base, &size, 0));
    fact(name, "range_nowhere", "%d", (int)cuMemGetAddressRange(NULL, NULL, addr_of(p)));
}

const struct probe_case memory_cases[] = {
    {"contents", run_contents, 0},    {"contents_async", run_contents_async, 0},
    {"align", run_align, 0},          {"range.1000", run_range, 1000},
    {"range.1M", run_range, 1 << 20}, {"range.2M", run_range, 2 << 20},
    {"range.3M", run_range, 3 << 20}, {"pointers", run_pointers, 0},
    {"marks", run_marks, 0},          {NULL, NULL, 0},
};
