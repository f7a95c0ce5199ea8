/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vmm_kept.c - a program that takes virtual memory for every buffer, as JAX's platform allocator does, and one that
 * gives up the memory and keeps its addresses, as vLLM's sleep mode does.
 *
 *   vmm_kept WORD...   what it does, one after the other
 *
 * Output: results and contents, and free memory compared with the beginning; nothing that depends on addresses, so it
 * is the same with and without the library. Exit status 1: a call that must succeed has failed, or data was wrong.
 */
#include "vmm_kept.h"

static CUcontext context;
static size_t beginning;
static int device;
bool contents_stay;

CUmemAllocationProp properties(void)
{
    return (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                 .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}};
}

CUresult create(struct buffer *b)
{
    const CUmemAllocationProp as = properties();

    return cuMemCreate(&b->handle, b->size, &as, 0);
}

CUresult let(const struct buffer *b)
{
    const CUmemAccessDesc access = {.location = properties().location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};

    return cuMemSetAccess(b->at, b->size, &access, 1);
}

struct buffer take(size_t size)
{
    struct buffer b = {.size = size};

    OK(cuMemAddressReserve(&b.at, size, UNIT, 0, 0));
    OK(create(&b));
    OK(cuMemMap(b.at, size, 0, b.handle, 0));
    OK(let(&b));
    return b;
}

void give(const struct buffer *b)
{
    OK(cuMemUnmap(b->at, b->size));
    OK(cuMemRelease(b->handle));
    OK(cuMemAddressFree(b->at, b->size));
}

/* No call that unmaps waits for the device, so whoever uses memory does. */
void fill(const struct buffer *b, unsigned char byte)
{
    OK(cuMemsetD8(b->at, byte, PART));
    OK(cuMemsetD8(b->at + b->size - PART, byte, PART));
    OK(cuStreamSynchronize(NULL));
}

void check(const struct buffer *b, unsigned char byte)
{
    unsigned char got[2] = {0};

    OK(cuMemcpyDtoH(&got[0], b->at, 1));
    OK(cuMemcpyDtoH(&got[1], b->at + b->size - 1, 1));
    if (got[0] != byte || got[1] != byte)
        FAIL("wrong data: %d and %d, not %d", got[0], got[1], byte);
}

void info(void)
{
    size_t left, total;

    OK(cuMemGetInfo(&left, &total));
    printf("taken %zu\n", beginning - left);
}

/* Buffers of several sizes, in each round the same. */
static void loop(int rounds)
{
    struct buffer b[6];

    for (int round = 0; round < rounds; round++) {
        for (int i = 0; i < 6; i++) {
            b[i] = take((1 + (size_t)i % 3) * UNIT);
            fill(&b[i], (unsigned char)(round + i));
        }
        for (int i = 0; i < 6; i++)
            check(&b[i], (unsigned char)(round + i));
        for (int i = 0; i < 6; i++)
            give(&b[round % 2 ? i : 5 - i]);
    }
    info();
}

static void sleeping(int rounds)
{
    struct buffer b[4];

    for (int i = 0; i < 4; i++)
        b[i] = take(4 * UNIT);
    for (int round = 0; round < rounds; round++) {
        for (int i = 0; i < 4; i++) {
            OK(cuMemUnmap(b[i].at, b[i].size));
            OK(cuMemRelease(b[i].handle));
        }
        info();
        for (int i = 0; i < 4; i++) {
            OK(create(&b[i]));
            OK(cuMemMap(b[i].at, b[i].size, 0, b[i].handle, 0));
            OK(let(&b[i]));
            fill(&b[i], (unsigned char)(round + i));
        }
        for (int i = 0; i < 4; i++)
            check(&b[i], (unsigned char)(round + i));
        info();
    }
    for (int i = 0; i < 4; i++)
        give(&b[i]);
    info();
}

/* As one of these, and then no call for a while. */
static void sleep_last(void)
{
    struct buffer b = take(4 * UNIT);

    OK(cuMemUnmap(b.at, b.size));
    OK(cuMemRelease(b.handle));
}

/* Memory that was given up is there for every other request. */
static void full(void)
{
    const size_t part = beginning / 8 / UNIT * UNIT, most = beginning / 4 * 3 / UNIT * UNIT;
    struct buffer b[7];
    CUdeviceptr p;

    for (int way = 0; way < 3; way++) {
        for (int i = 0; i < 7; i++)
            b[i] = take(part);
        for (int i = 0; i < 7; i++)
            give(&b[i]);
        b[0].size = most;
        if (way == 0) {
            OK(cuMemAlloc(&p, most));
            OK(cuMemFree(p));
        } else if (way == 1) {
            OK(create(&b[0]));
            OK(cuMemRelease(b[0].handle));
        } else {
            OK(cuMemAllocAsync(&p, most, NULL));
            OK(cuMemFreeAsync(p, NULL));
        }
        OK(cuCtxSynchronize());
    }
    b[0] = take(UNIT);
    give(&b[0]);
}

static void *create_most(void *arg)
{
    struct buffer *b = arg;

    OK(cuCtxSetCurrent(context));
    nap_ms(100);
    OK(create(b));
    OK(cuMemRelease(b->handle));
    return NULL;
}

/* Another thread takes the memory while it is going back to the driver, which takes its time. */
static void going(void)
{
    void (*slow)(const char *symbol, unsigned int ms) =
        (void (*)(const char *, unsigned int))dlsym(RTLD_DEFAULT, "simgpu_slow");
    struct buffer other = {.size = beginning / 4 * 3 / UNIT * UNIT}, b = take(other.size);
    pthread_t thread;
    CUdeviceptr at;

    if (slow)
        slow("cuMemUnmap", 400);
    OK(cuMemUnmap(b.at, b.size));
    OK(cuMemRelease(b.handle));
    pthread_create(&thread, NULL, create_most, &other);
    OK(cuMemAddressReserve(&at, UNIT, 0, 0, 0)); /* the addresses of b are kept, so its memory goes back here */
    pthread_join(thread, NULL);
    OK(cuMemAddressFree(at, UNIT));
    OK(cuMemAddressFree(b.at, b.size));
    if (slow)
        slow(NULL, 0);
}

/* Others keep what was exported, whatever the program does. */
static void exported(void)
{
    struct buffer b = take(UNIT), c, other = {.size = UNIT};
    int fd;

    fill(&b, 11);
    OK(cuMemExportToShareableHandle(&fd, b.handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    OK(cuMemImportFromShareableHandle(&other.handle, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    close(fd);
    give(&b);
    c = take(UNIT);
    fill(&c, 12);
    OK(cuMemAddressReserve(&other.at, UNIT, 0, 0, 0));
    OK(cuMemMap(other.at, UNIT, 0, other.handle, 0));
    OK(let(&other));
    if (contents_stay)
        check(&other, 11);
    check(&c, 12);
    info();
    give(&other);
    give(&c);
    info();
}

/* A network card may be given access to it. */
static void prepared(void)
{
    const unsigned int one = 1;
    struct buffer b = take(UNIT);
    int fd;

    (void)cuPointerSetAttribute(&one, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, b.at); /* whatever the answer */
    give(&b);
    b = take(UNIT);
    (void)cuMemGetHandleForAddressRange(&fd, b.at, UNIT, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
    give(&b);
    b = take(UNIT);
    give(&b);
}

static void captured(void)
{
    struct buffer b = take(UNIT);
    CUstream stream;
    CUgraph graph;

    give(&b);
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    b = take(UNIT);
    give(&b);
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuGraphDestroy(graph));
    OK(cuStreamDestroy(stream));
    b = take(UNIT);
    give(&b);
}

/* The program asks about what it has, and about what it has given up. */
static void asks(void)
{
    const CUmemLocation here = properties().location;
    CUmemAllocationProp as;
    unsigned long long flags = 9;
    struct buffer b = take(UNIT);
    CUdeviceptr base = 0;
    size_t size = 0;
    unsigned int type = 0;
    CUmemGenericAllocationHandle again;

    for (int round = 0; round < 3; round++) {
        OK(cuMemUnmap(b.at, UNIT));
        OK(cuMemMap(b.at, UNIT, 0, b.handle, 0));
        printf("access %d", (int)cuMemGetAccess(&flags, &here, b.at));
        printf(" %llu\n", flags);
        OK(let(&b));
        printf("access %d", (int)cuMemGetAccess(&flags, &here, b.at));
        printf(" %llu\n", flags);
        OK(cuMemGetAddressRange(&base, &size, b.at + 5));
        printf("range %d %zu\n", base == b.at, size);
        OK(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)b.at)); /* NOLINT(performance-no-int-to-ptr) */
        printf("the same handle %d, properties %d\n", again == b.handle,
               (int)cuMemGetAllocationPropertiesFromHandle(&as, again));
        OK(cuMemRelease(again));
        OK(cuMemUnmap(b.at, UNIT));
        printf("unmapped: access %d", (int)cuMemGetAccess(&flags, &here, b.at));
        printf(" range %d", (int)cuMemGetAddressRange(&base, &size, b.at));
        printf(" type %d", (int)cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, b.at));
        printf(" retain %d\n", (int)cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)b.at)); /* NOLINT */
        OK(cuMemRelease(b.handle));
        OK(cuMemAddressFree(b.at, UNIT));
        b = take(UNIT);
        give(&b);
        printf("gone: type %d\n", (int)cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, b.at));
        b = take(UNIT);
    }
    give(&b);
}

/* A call that natively fails does so, and changes nothing. */
static void errors(void)
{
    struct buffer b = take(2 * UNIT);
    CUdeviceptr at = 7;

    give(&b);
    b = take(2 * UNIT);
    printf("errors %d %d %d %d %d\n", (int)cuMemUnmap(b.at, UNIT), (int)cuMemAddressFree(b.at, 2 * UNIT),
           (int)cuMemMap(b.at, 2 * UNIT, 0, b.handle, 0), (int)cuMemAddressReserve(&at, 5, 0, 0, 0), (int)(at == 7));
    fill(&b, 4);
    OK(cuMemUnmap(b.at, 2 * UNIT));
    printf("errors %d %d %d\n", (int)cuMemUnmap(b.at, 2 * UNIT), (int)let(&b), (int)cuMemAddressFree(b.at, UNIT));
    OK(cuMemMap(b.at, 2 * UNIT, 0, b.handle, 0));
    OK(let(&b));
    if (contents_stay)
        check(&b, 4);
    give(&b);
    printf("errors %d %d\n", (int)cuMemUnmap(b.at, 2 * UNIT), (int)cuMemAddressFree(b.at, 2 * UNIT));
    b = take(2 * UNIT);
    OK(cuMemUnmap(b.at, 2 * UNIT));
    printf("errors %d\n", (int)cuMemMap(b.at, 2 * UNIT, UNIT, b.handle, 0));
    OK(cuMemMap(b.at, 2 * UNIT, 0, b.handle, 0));
    give(&b);
    info();
}

/* As include/cupool.h does it. */
static void trim(void)
{
    int64_t (*call)(int device) = (int64_t(*)(int))dlsym(RTLD_DEFAULT, "cupool_lib_trim");

    if (call)
        printf("trimmed %lld\n", (long long)call(-1));
}

static void pause_device(void)
{
    int (*call)(int device, unsigned int flags) = (int (*)(int, unsigned int))dlsym(RTLD_DEFAULT, "cupool_lib_pause");
    if (call)
        printf("paused %d\n", call(device, /* CUPOOL_KEEP */ 1));
}

/* Memory of a device whose context is not current. */
static void elsewhere(void)
{
    struct buffer b;
    CUcontext other;
    size_t left, total;

    device = 1;
    OK(cuDevicePrimaryCtxRetain(&other, device));
    OK(cuCtxSetCurrent(other));
    OK(cuMemGetInfo(&left, &total));
    b = take(16 * UNIT);
    give(&b);
    OK(cuCtxSetCurrent(context));
    b.size = left / UNIT * UNIT - 4 * UNIT;
    OK(create(&b));
    OK(cuMemRelease(b.handle));
    device = 0;
    OK(cuDevicePrimaryCtxRelease(1));
}

/* The driver may take mappings away with their context. */
static void reset(void)
{
    struct buffer b = take(UNIT), live = take(2 * UNIT);
    unsigned int flags;
    int active = 1;

    give(&b);
    OK(cuDevicePrimaryCtxReset(device));
    OK(cuDevicePrimaryCtxRetain(&context, device));
    OK(cuCtxSetCurrent(context));
    give(&live);
    live = take(2 * UNIT);
    b = take(UNIT);
    fill(&b, 8);
    check(&b, 8);
    give(&b);
    for (int i = 0; active && i < 3; i++) {
        OK(cuDevicePrimaryCtxRelease(device));
        OK(cuDevicePrimaryCtxGetState(device, &flags, &active));
    }
    OK(cuDevicePrimaryCtxRetain(&context, device));
    OK(cuCtxSetCurrent(context));
    b = take(UNIT);
    fill(&b, 9);
    give(&b);
    give(&live);
}

/* CUDA does not work in the child. */
static void forked(void)
{
    struct buffer b = take(UNIT), c;
    int status;

    give(&b);
    fflush(stdout);
    if (fork() == 0) {
        create(&b);
        cuMemUnmap(b.at, b.size);
        _exit(0);
    }
    wait(&status);
    c = take(UNIT);
    give(&c);
}

/* Words that say how long they wait, or for whom. */
static bool waits(const char *word)
{
    int n;

    if (sscanf(word, "nap:%d", &n) == 1)
        nap_ms(n);
    else if (strcmp(word, "wait") == 0) { /* until somebody writes a line */
        puts("waits");
        fflush(stdout);
        while ((n = getchar()) != '\n' && n != EOF)
            ;
    } else {
        return false;
    }
    return true;
}

static bool takes(const char *word)
{
    unsigned long long n;
    struct buffer b;

    if (strcmp(word, "contents") == 0) {
        contents_stay = true;
    } else if (sscanf(word, "loop:%llu", &n) == 1) {
        loop((int)n);
    } else if (sscanf(word, "once:%llu", &n) == 1) {
        b = take((size_t)n);
        give(&b);
    } else if (sscanf(word, "create:%llu", &n) == 1) {
        b.size = (size_t)n;
        printf("create %d\n", (int)create(&b));
    } else if (sscanf(word, "pooled:%llu", &n) == 1) {
        printf("pooled %d\n", (int)cuMemAlloc(&b.at, (size_t)n));
    } else if (sscanf(word, "sleep:%llu", &n) == 1) {
        sleeping((int)n);
    } else if (sscanf(word, "random:%llu", &n) == 1) {
        random_program(n);
    } else {
        return false;
    }
    return true;
}

int main(int argc, char **argv)
{
    static const struct {
        const char *word;
        void (*call)(void);
    } words[] = {{"info", info},
                 {"sleep_last", sleep_last},
                 {"reset", reset},
                 {"trim", trim},
                 {"elsewhere", elsewhere},
                 {"full", full},
                 {"exported", exported},
                 {"prepared", prepared},
                 {"captured", captured},
                 {"asks", asks},
                 {"retained", retained},
                 {"errors", errors},
                 {"threads", threads},
                 {"forked", forked},
                 {"going", going},
                 {"within", asked_from_within},
                 {"called_back", called_back},
                 {"by_nccl", exported_by_nccl},
                 {"held_by_nccl", held_by_nccl},
                 {"there", at_its_addresses},
                 {"pause", pause_device}};
    size_t total;

    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, device));
    OK(cuCtxSetCurrent(context));
    OK(cuMemGetInfo(&beginning, &total));
    for (int i = 1; i < argc; i++) {
        bool done = waits(argv[i]) || takes(argv[i]);

        for (size_t w = 0; !done && w < sizeof(words) / sizeof(words[0]); w++)
            if (strcmp(argv[i], words[w].word) == 0) {
                words[w].call();
                done = true;
            }
        if (!done)
            return 2;
    }
    return 0;
}
