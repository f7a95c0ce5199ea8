/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pinned.c - pinned host memory: error codes, flags, alignment, contents, pages, and what the driver says about it.
 *
 * A pool of pinned memory has to answer as the driver does here. When frees wait, and where calls may be made, is in
 * pinned_calls.c.
 */
#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "attributes.h"

/* --- error codes --- */

static void run_alloc_codes(const char *name, int arg)
{
    void *p = &p;

    (void)probe_primary(name);
    TELL_LAST("malloc_none", cudaMallocHost(&p, 0));
    fact(name, "malloc_none.pointer", "%s", !p ? "NULL" : p == &p ? "untouched" : "an address");
    p = &p;
    TELL_LAST("alloc_none", cudaHostAlloc(&p, 0, cudaHostAllocDefault));
    fact(name, "alloc_none.pointer", "%s", !p ? "NULL" : p == &p ? "untouched" : "an address");
    p = &p;
    TELL_LAST("driver_none", cuMemAllocHost(&p, 0));
    fact(name, "driver_none.pointer", "%s", !p ? "NULL" : p == &p ? "untouched" : "an address");
    p = &p;
    TELL_LAST("driver_flags_none", cuMemHostAlloc(&p, 0, 0));
    fact(name, "driver_flags_none.pointer", "%s", !p ? "NULL" : p == &p ? "untouched" : "an address");
    p = &p;
    TELL_LAST("malloc_too_much", cudaMallocHost(&p, (size_t)1 << 50));
    fact(name, "malloc_too_much.pointer", "%s", !p ? "NULL" : p == &p ? "untouched" : "an address");
    TELL_LAST("malloc_wraps", cudaMallocHost(&p, SIZE_MAX - 100));
    TELL_LAST("driver_too_much", cuMemAllocHost(&p, (size_t)1 << 50));
    TELL_LAST("driver_wraps", cuMemHostAlloc(&p, SIZE_MAX - 100, 0));
    TELL_LAST("malloc_nowhere", cudaMallocHost(NULL, 1000));
    TELL_LAST("alloc_nowhere", cudaHostAlloc(NULL, 1000, 0));
    TELL_LAST("driver_nowhere", cuMemAllocHost(NULL, 1000));
    TELL_LAST("driver_flags_nowhere", cuMemHostAlloc(NULL, 1000, 0));
    TELL_LAST("alloc_unknown_flags", cudaHostAlloc(&p, 1000, 0x100));
    TELL_LAST("alloc_flag_8", cudaHostAlloc(&p, 1000, 8));
    TELL_LAST("driver_unknown_flags", cuMemHostAlloc(&p, 1000, 0x100));
    TELL_LAST("driver_flag_8", cuMemHostAlloc(&p, 1000, 8));
}

static void run_free_codes(const char *name, int size)
{
    const size_t n = (size_t)size;
    void *p, *q, *device, *managed, *registered = aligned_alloc(4096, 64 * KIB), *plain = malloc(1000);

    (void)probe_primary(name);
    NEED(cudaMalloc(&device, 1000));
    NEED(cudaMallocManaged(&managed, 64 * KIB, cudaMemAttachGlobal));
    NEED(cudaHostRegister(registered, 64 * KIB, 0));
    NEED(cudaMallocHost(&p, n));
    NEED(cudaMallocHost(&q, n));
    TELL_LAST("null", cudaFreeHost(NULL));
    TELL_LAST("driver_null", cuMemFreeHost(NULL));
    TELL_LAST("interior", cudaFreeHost((char *)p + n / 2));
    TELL_LAST("driver_interior", cuMemFreeHost((char *)p + n / 2));
    TELL_LAST("interior_by_one", cudaFreeHost((char *)p + 1));
    TELL_LAST("past", cudaFreeHost((char *)p + n + 1)); /* at n another block may begin */
    TELL_LAST("by_cudaFree", cudaFree(p));
    TELL_LAST("by_cuMemFree", cuMemFree(addr_of(p)));
    TELL_LAST("by_cudaFreeAsync", cudaFreeAsync(p, 0));
    TELL_LAST("unregister", cudaHostUnregister(p));
    TELL_LAST("register_inside", cudaHostRegister(p, n < 4 * KIB ? n : 4 * KIB, 0));
    TELL_LAST("right", cudaFreeHost(p));
    TELL_LAST("double", cudaFreeHost(p));
    TELL_LAST("driver_right", cuMemFreeHost(q));
    TELL_LAST("driver_double", cuMemFreeHost(q));
    TELL_LAST("freed_by_cudaFree", cudaFree(p));
    TELL_LAST("device", cudaFreeHost(device));
    TELL_LAST("driver_device", cuMemFreeHost(device));
    TELL_LAST("managed", cudaFreeHost(managed));
    TELL_LAST("registered", cudaFreeHost(registered));
    TELL_LAST("driver_registered", cuMemFreeHost(registered));
    TELL_LAST("plain", cudaFreeHost(plain));
    TELL_LAST("driver_plain", cuMemFreeHost(plain));
    TELL_LAST("wild", cudaFreeHost((void *)0x1234));
    TELL_LAST("driver_wild", cuMemFreeHost((void *)0x1234));
    NEED(cudaHostAlloc(&p, n, cudaHostAllocMapped));
    TELL_LAST("alloc_by_driver", cuMemFreeHost(p));
    NEED(cuMemHostAlloc(&p, n, 0));
    TELL_LAST("driver_by_runtime", cudaFreeHost(p));
}

/* --- flags --- */

static void run_flags(const char *name, int arg)
{
    char item[64];

    (void)probe_primary(name);
    for (unsigned int flags = 0; flags <= 10; flags++) {
        const bool alloc_host = flags >= 8; /* three calls without flags: cudaMallocHost, cuMemAllocHost, registered */
        unsigned int runtime = 99, driver = 99;
        void *p = NULL, *inside = NULL, *d = NULL, *e = NULL;
        int code, of_inside;

        snprintf(item, sizeof(item), flags == 8 ? "malloc" : flags == 9 ? "driver_malloc" : "flags_%u", flags);
        if (flags == 10)
            snprintf(item, sizeof(item), "driver_flags_1");
        ask(name, item);
        code = alloc_host ? (int)(flags == 8   ? cudaMallocHost(&p, 64 * KIB)
                                  : flags == 9 ? (cudaError_t)cuMemAllocHost(&p, 64 * KIB)
                                               : (cudaError_t)cuMemHostAlloc(&p, 64 * KIB, 1))
                          : (int)cudaHostAlloc(&p, 64 * KIB, flags);
        if (code) {
            fact(name, item, "error %d", code);
            continue;
        }
        inside = (char *)p + 1000;
        (void)cudaHostGetFlags(&runtime, p);
        (void)cuMemHostGetFlags(&driver, p);
        of_inside = (int)cudaHostGetFlags(&(unsigned int){0}, inside);
        code = (int)cudaHostGetDevicePointer(&d, p, 0);
        (void)cudaHostGetDevicePointer(&e, inside, 0);
        fact(name, item, "runtime %u driver %u inside %d device_pointer %d %s inside %s", runtime, driver, of_inside,
             code, d == p ? "equal" : "other", e == inside ? "equal" : "other");
        (void)cudaGetLastError();
        NEED(cudaFreeHost(p));
        snprintf(item + strlen(item), sizeof(item) - strlen(item), ".freed");
        fact(name, item, "flags %d device_pointer %d", (int)cudaHostGetFlags(&runtime, p),
             (int)cudaHostGetDevicePointer(&d, p, 0));
        (void)cudaGetLastError();
    }
    TELL_LAST("get_flags_of_plain", cudaHostGetFlags(&(unsigned int){0}, item));
    TELL_LAST("device_pointer_of_plain", cudaHostGetDevicePointer(&(void *){0}, item, 0));
    TELL_LAST("get_flags_of_null", cudaHostGetFlags(&(unsigned int){0}, NULL));
}

/* --- attributes --- */

/* One fact for each attribute: at the block's base, middle, last byte, past its end, of a second block, and freed. */
static void run_range(const char *name, int size)
{
    static const char *const places[] = {"base", "inside", "last", "past", "freed"};
    struct allocation s = {.primary = probe_primary(name)};
    char lines[ATTRIBUTES_HARMLESS + 1][300] = {{0}};
    unsigned int one = 1;
    void *p;

    NEED(cudaMallocHost(&p, (size_t)size));
    s.base = addr_of(p);
    fact(name, "buffer_id", "%d", (int)cuPointerGetAttribute(&s.id, CU_POINTER_ATTRIBUTE_BUFFER_ID, addr_of(p)));
    for (int place = 0; place < 5; place++) {
        const char *at = (char *)p + (place == 1 ? size / 2 : place == 2 ? size - 1 : place == 3 ? size : 0);
        char text[64];

        if (place == 4) {
            fact(name, "set_sync_memops", "%d",
                 (int)cuPointerSetAttribute(&one, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, addr_of(p)));
            fact(name, "ipc_handle", "%d", (int)cudaIpcGetMemHandle(&(cudaIpcMemHandle_t){{0}}, p));
            NEED(cudaFreeHost(p));
        }
        for (size_t i = 0; i <= ATTRIBUTES_HARMLESS; i++) {
            const size_t have = strlen(lines[i]);

            if (i < ATTRIBUTES_HARMLESS)
                attribute_text(text, sizeof(text), i, &s, addr_of(at));
            else
                address_range_text(text, sizeof(text), &s, addr_of(at));
            snprintf(lines[i] + have, sizeof(lines[i]) - have, "%s%s %s", have ? ", " : "", places[place], text);
        }
    }
    for (size_t i = 0; i <= ATTRIBUTES_HARMLESS; i++)
        fact(name, i < ATTRIBUTES_HARMLESS ? attribute_name(i) : "address_range", "%s", lines[i]);
}

/* --- alignment, contents, pages --- */

static const size_t sizes[] = {1,   255,     1000,    4 * KIB,     5000,    64 * KIB, 512 * KIB,
                               MIB, 3 * MIB, 2 * MIB, 2 * MIB + 1, 8 * MIB, 64 * MIB};
#define SIZES (sizeof(sizes) / sizeof(sizes[0]))

/* align: the largest power of two up to 2 MiB that divides eight results. distance: of two that follow each other. */
static void run_align(const char *name, int flags)
{
    char text[32], item[64];

    (void)probe_primary(name);
    for (size_t i = 0; i < SIZES; i++) {
        uintptr_t all = 2 * MIB, distance = UINTPTR_MAX;
        void *p[8];

        for (int j = 0; j < 8; j++) {
            NEED(cudaHostAlloc(&p[j], sizes[i], (unsigned int)flags));
            all |= (uintptr_t)p[j];
            for (int k = 0; k < j; k++) {
                const uintptr_t d = p[j] > p[k] ? (uintptr_t)p[j] - (uintptr_t)p[k] : (uintptr_t)p[k] - (uintptr_t)p[j];

                distance = d < distance ? d : distance;
            }
        }
        fact(name, size_name(sizes[i], text, sizeof(text)), "%zu", (size_t)(all & -all));
        snprintf(item, sizeof(item), "%s.distance", text);
        fact(name, item, distance < 128 * MIB ? "%zu" : "far", (size_t)distance);
        for (int j = 0; j < 8; j++)
            NEED(cudaFreeHost(p[j]));
    }
}

static const char *contents(const char *p, size_t size)
{
    for (size_t i = 0; i < size; i++)
        if (p[i])
            return "dirty";
    return "zero";
}

/* fresh: the first of its size. again: after one was filled and freed. beside: the same while others are in use. */
static void run_contents(const char *name, int arg)
{
    char text[32], item[64];

    (void)probe_primary(name);
    for (size_t i = 0; i < SIZES; i++) {
        void *p, *q, *others[2];

        (void)size_name(sizes[i], text, sizeof(text));
        NEED(cudaMallocHost(&p, sizes[i]));
        snprintf(item, sizeof(item), "%s.fresh", text);
        fact(name, item, "%s", contents(p, sizes[i]));
        memset(p, 0xab, sizes[i]);
        NEED(cudaFreeHost(p));
        NEED(cudaMallocHost(&q, sizes[i]));
        snprintf(item, sizeof(item), "%s.again", text);
        fact(name, item, "%s, %s address", contents(q, sizes[i]), p == q ? "the same" : "another");
        NEED(cudaFreeHost(q));
        NEED(cudaMallocHost(&others[0], sizes[i]));
        NEED(cudaMallocHost(&p, sizes[i]));
        NEED(cudaMallocHost(&others[1], sizes[i]));
        memset(p, 0xab, sizes[i]);
        NEED(cudaFreeHost(p));
        NEED(cudaMallocHost(&q, sizes[i]));
        snprintf(item, sizeof(item), "%s.beside", text);
        fact(name, item, "%s, %s address", contents(q, sizes[i]), p == q ? "the same" : "another");
        NEED(cudaFreeHost(q));
        NEED(cudaFreeHost(others[0]));
        NEED(cudaFreeHost(others[1]));
    }
}

/* The line that begins with this word in smaps' entry of p, or in status: without it, and without spaces at its ends.
 */
static void kernel_line(const char *file, const void *p, const char *word, char *text, size_t n)
{
    char line[512];
    unsigned long from, to;
    bool within = p == NULL;
    FILE *f = fopen(file, "r");

    snprintf(text, n, "-");
    while (f && fgets(line, sizeof(line), f)) {
        if (p && sscanf(line, "%lx-%lx ", &from, &to) == 2)
            within = from <= (uintptr_t)p && (uintptr_t)p < to;
        if (!within || strncmp(line, word, strlen(word)) != 0)
            continue;
        line[strcspn(line, "\n")] = 0;
        snprintf(text, n, "%s", line + strlen(word) + strspn(line + strlen(word), " \t"));
        while (*text && text[strlen(text) - 1] == ' ')
            text[strlen(text) - 1] = 0;
        break;
    }
    if (f)
        fclose(f);
}

static long status_kib(const char *word)
{
    char text[64];

    kernel_line("/proc/self/status", NULL, word, text, sizeof(text));
    return strtol(text, NULL, 10);
}

/* How the kernel sees the memory, what the limits may count, whether pages stay after a free, what a child sees. */
static void run_pages(const char *name, int size)
{
    static const char *const counts[] = {"VmPin:", "VmLck:", "RssAnon:", "RssFile:", "RssShmem:"};
    long before[5];
    char text[300];
    size_t free_before, free_after, total;
    unsigned char *p;
    int node = -1, status = 0;
    pid_t child;

    (void)probe_primary(name);
    for (int i = 0; i < 5; i++)
        before[i] = status_kib(counts[i]);
    NEED(cudaMemGetInfo(&free_before, &total));
    NEED(cudaMallocHost((void **)&p, (size_t)size));
    NEED(cudaMemGetInfo(&free_after, &total));
    fact(name, "device_memory_taken", "%zu", free_before - free_after);
    for (int i = 0; i < 5; i++) {
        const long more = status_kib(counts[i]) - before[i];

        snprintf(text, sizeof(text), "untouched_%.*s", (int)strlen(counts[i]) - 1, counts[i]);
        fact(name, text, "%s", more >= size / 1024 ? "counted" : more > 0 ? "part" : "no");
    }
    kernel_line("/proc/self/smaps", p, "VmFlags:", text, sizeof(text));
    fact(name, "VmFlags", "%s", text);
    kernel_line("/proc/self/smaps", p, "Rss:", text, sizeof(text));
    fact(name, "Rss", "%s", text);
    fact(name, "node", "%ld", syscall(SYS_get_mempolicy, &node, NULL, 0L, p, MPOL_F_NODE | MPOL_F_ADDR) ? -1L : node);
    p[0] = 7;
    if ((child = fork()) == 0)
        _exit(!page_readable(p) ? 1 : p[0] == 7 ? 2 : 3);
    (void)waitpid(child, &status, 0);
    fact(name, "child", "%s", WEXITSTATUS(status) == 1 ? "not mapped" : WEXITSTATUS(status) == 2 ? "reads" : "other");
    fact(name, "madvise_free", "%d", madvise(p, 4096, MADV_DONTNEED) ? -1 : 0);
    NEED(cudaFreeHost(p));
    fact(name, "freed", "%s", page_readable(p) ? "still mapped" : "not mapped");
}

/* Does the driver honour the thread's memory policy? Binds to each node in turn. */
static void run_numa(const char *name, int arg)
{
    (void)probe_primary(name);
    for (int node = 0; node < 4; node++) {
        unsigned long mask = 1UL << node;
        char item[32];
        int seen = -1;
        void *p;

        if (syscall(SYS_set_mempolicy, MPOL_BIND, &mask, 64UL))
            break;
        snprintf(item, sizeof(item), "bound_%d", node);
        NEED(cudaMallocHost(&p, 4 * MIB));
        (void)syscall(SYS_get_mempolicy, &seen, NULL, 0L, p, MPOL_F_NODE | MPOL_F_ADDR);
        fact(name, item, "node %d", seen);
        NEED(cudaFreeHost(p));
    }
}

const struct probe_case pinned_cases[] = {
    {"pinned.alloc_codes", run_alloc_codes, 0},
    {"pinned.free_codes.4K", run_free_codes, 4 << 10},
    {"pinned.free_codes.1M", run_free_codes, 1 << 20},
    {"pinned.free_codes.4M", run_free_codes, 4 << 20},
    {"pinned.flags", run_flags, 0},
    {"pinned.range.1000", run_range, 1000},
    {"pinned.range.1M", run_range, 1 << 20},
    {"pinned.range.3M", run_range, 3 << 20},
    {"pinned.align.default", run_align, 0},
    {"pinned.align.combined", run_align, cudaHostAllocWriteCombined},
    {"pinned.contents", run_contents, 0},
    {"pinned.pages.64K", run_pages, 64 << 10},
    {"pinned.pages.4M", run_pages, 4 << 20},
    {"pinned.numa", run_numa, 0},
    {NULL, NULL, 0},
};
