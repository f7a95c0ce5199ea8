/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vmm.c - a program that takes physical memory and maps it, as NCCL and PyTorch's expandable segments do.
 *
 *   vmm linked|dlsym|proc SCENARIO   by linking (VMM_LINKED), dlsym on libcuda, or cuGetProcAddress
 *
 * Output: a line for each call of a function that the trace tells of, "call NAME RESULT", and now and then "taken CALLS
 * BYTES": after so many of these calls the driver has given out so much more memory than in the beginning. None of it
 * depends on addresses, so it is the same with and without the library. Exit status 1: data was wrong.
 */
#include <cuda.h>

#include "../program.h"

#define MIB ((size_t)1 << 20)
/* Name, and the version that cuGetProcAddress is asked for. */
#define FUNCTIONS(X)                                                                                                   \
    X(cuInit, 2000)                                                                                                    \
    X(cuDeviceGet, 2000)                                                                                               \
    X(cuDeviceGetCount, 2000)                                                                                          \
    X(cuDevicePrimaryCtxRetain, 7000)                                                                                  \
    X(cuCtxSetCurrent, 4000)                                                                                           \
    X(cuMemAlloc, 3020)                                                                                                \
    X(cuMemFree, 3020)                                                                                                 \
    X(cuMemGetInfo, 3020)                                                                                              \
    X(cuMemsetD8, 3020)                                                                                                \
    X(cuMemcpyDtoH, 3020)                                                                                              \
    X(cuMemSetAccess, 10020)                                                                                           \
    X(cuMemExportToShareableHandle, 10020)                                                                             \
    X(cuMemCreate, 10020)                                                                                              \
    X(cuMemImportFromShareableHandle, 10020)                                                                           \
    X(cuMulticastCreate, 12010)                                                                                        \
    X(cuMemRetainAllocationHandle, 11000)                                                                              \
    X(cuMemRelease, 10020)                                                                                             \
    X(cuMemAddressReserve, 10020)                                                                                      \
    X(cuMemAddressFree, 10020)                                                                                         \
    X(cuMemMap, 10020)                                                                                                 \
    X(cuMemUnmap, 10020)

static struct {
#define X(name, version) __typeof__(&name) name; /* NOLINT(bugprone-macro-parentheses): it declares that name */
    FUNCTIONS(X)
#undef X
} cu;

static _Atomic int calls;
static size_t beginning;

/* A call that the trace tells of, and its result. */
#define CALL(name, ...)                                                                                                \
    __extension__({                                                                                                    \
        const CUresult result_ = cu.name(__VA_ARGS__);                                                                 \
        calls++;                                                                                                       \
        printf("call %s %d\n", #name, (int)result_);                                                                   \
        result_;                                                                                                       \
    })
#define GOOD(name, ...) OK(CALL(name, __VA_ARGS__))

#define NAME(name)  NAME_(name)
#define NAME_(name) #name

static void find(const char *how)
{
#ifdef VMM_LINKED
#define X(name, version) cu.name = name;
    FUNCTIONS(X)
#undef X
#else
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    CUdriverProcAddressQueryResult status;
    __typeof__(&cuGetProcAddress_v2) look = driver ? dlsym(driver, "cuGetProcAddress_v2") : NULL;

    if (!look)
        FAIL("no driver");
    if (strcmp(how, "dlsym") == 0) {
#define X(name, version)                                                                                               \
    cu.name = dlsym(driver, NAME(name));                                                                               \
    if (!cu.name)                                                                                                      \
        FAIL("no " #name);
        FUNCTIONS(X)
#undef X
    } else {
#define X(name, version)                                                                                               \
    if (look(#name, (void **)&cu.name, version, 0, &status) || !cu.name)                                               \
        FAIL("no " #name);
        FUNCTIONS(X)
#undef X
    }
#endif
}

static void taken(void)
{
    size_t left, total;

    OK(cu.cuMemGetInfo(&left, &total));
    printf("taken %d %zu\n", calls, beginning - left);
}

static const CUmemAllocationProp physical = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                             .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                             .location.type = CU_MEM_LOCATION_TYPE_DEVICE};

struct mapped {
    CUdeviceptr at;
    size_t size;
    CUmemGenericAllocationHandle handle;
};

/* As an expandable segment does: the handle is kept. */
static struct mapped take(size_t size)
{
    const CUmemAccessDesc access = {.location = physical.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    struct mapped m = {.size = size};

    GOOD(cuMemCreate, &m.handle, size, &physical, 0);
    GOOD(cuMemAddressReserve, &m.at, size, 0, 0, 0);
    GOOD(cuMemMap, m.at, size, 0, m.handle, 0);
    OK(cu.cuMemSetAccess(m.at, size, &access, 1));
    return m;
}

static void give(const struct mapped *m)
{
    GOOD(cuMemUnmap, m->at, m->size);
    GOOD(cuMemAddressFree, m->at, m->size);
}

static void use(const struct mapped *m, unsigned char byte)
{
    unsigned char last = 0;

    OK(cu.cuMemsetD8(m->at, byte, m->size));
    OK(cu.cuMemcpyDtoH(&last, m->at + m->size - 1, 1));
    if (last != byte)
        FAIL("wrong data: %d, not %d", last, byte);
}

/* Every function, with handles that are released before and after what they are mapped at goes. */
static void life(void)
{
    struct mapped early = take(2 * MIB), late = take(6 * MIB), more;
    CUmulticastObjectProp team = {.numDevices = 1, .size = 2 * MIB};
    CUmemGenericAllocationHandle again, spare;
    int fd;

    taken();
    GOOD(cuMemRelease, early.handle);
    taken();
    use(&early, 3);
    use(&late, 4);
    GOOD(cuMemRetainAllocationHandle, &again, (void *)(uintptr_t)late.at);
    GOOD(cuMemRelease, late.handle);
    give(&late);
    taken();
    OK(cu.cuMemExportToShareableHandle(&fd, again, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    GOOD(cuMemImportFromShareableHandle, &spare, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    close(fd);
    GOOD(cuMemRelease, again);
    taken();
    GOOD(cuMemRelease, spare);
    taken();
    GOOD(cuMulticastCreate, &spare, &team);
    taken();
    more = take(10 * MIB);
    give(&early);
    taken();
    GOOD(cuMemRelease, spare);
    GOOD(cuMemRelease, more.handle);
    taken();
    give(&more);
    taken();
}

/* A call that the driver refuses is refused, and changes nothing. */
static void errors(void)
{
    CUmemAllocationProp nowhere = physical;
    CUmemGenericAllocationHandle handle = 5;
    struct mapped m = take(4 * MIB);
    CUdeviceptr at = 7;

    nowhere.location.id = 99;
    CALL(cuMemCreate, &handle, 1000, &physical, 0);
    CALL(cuMemCreate, NULL, 2 * MIB, &physical, 0);
    CALL(cuMemCreate, &handle, 2 * MIB, NULL, 0);
    CALL(cuMemCreate, &handle, 2 * MIB, &nowhere, 0);
    CALL(cuMemCreate, &handle, (size_t)1 << 45, &physical, 0);
    CALL(cuMemImportFromShareableHandle, &handle, (void *)(intptr_t)-1, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    CALL(cuMulticastCreate, &handle, NULL);
    CALL(cuMemRetainAllocationHandle, &handle, (void *)(uintptr_t)1);
    CALL(cuMemRelease, 0);
    CALL(cuMemAddressReserve, &at, 0, 0, 0, 0);
    CALL(cuMemAddressReserve, NULL, 2 * MIB, 0, 0, 0);
    CALL(cuMemMap, m.at, m.size, 0, m.handle, 0); /* is mapped there */
    CALL(cuMemMap, 1, 2 * MIB, 0, 0, 0);
    CALL(cuMemUnmap, m.at, m.size / 2);
    CALL(cuMemUnmap, 1, 2 * MIB);
    CALL(cuMemAddressFree, m.at, m.size); /* is in use */
    CALL(cuMemAddressFree, 1, 2 * MIB);
    if (handle != 5 || at != 7)
        FAIL("a call that failed wrote");
    use(&m, 9);
    taken();
    GOOD(cuMemRelease, m.handle);
    give(&m);
    taken();
}

/* Only failures: nothing was taken, so there is nothing to tell of. */
static void refused(void)
{
    CUmemGenericAllocationHandle handle;

    CALL(cuMemCreate, &handle, (size_t)1 << 45, &physical, 0);
    CALL(cuMemRelease, 0);
}

/* Natively what was freed is there for it. */
static void pressure(void)
{
    const size_t size = beginning / 4 * 3 / (2 * MIB) * (2 * MIB);
    CUmemGenericAllocationHandle handle;
    CUdeviceptr p;

    OK(cu.cuMemAlloc(&p, size));
    CALL(cuMemCreate, &handle, size, &physical, 0);
    OK(cu.cuMemFree(p));
    GOOD(cuMemCreate, &handle, size, &physical, 0);
    GOOD(cuMemRelease, handle);
}

static void *one_thread(void *context)
{
    const CUmemAccessDesc access = {.location = physical.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};

    OK(cu.cuCtxSetCurrent(context));
    for (int i = 0; i < 200; i++) {
        struct mapped m = {.size = (size_t)(1 + i % 3) * 2 * MIB};

        OK(cu.cuMemCreate(&m.handle, m.size, &physical, 0));
        OK(cu.cuMemAddressReserve(&m.at, m.size, 0, 0, 0));
        OK(cu.cuMemMap(m.at, m.size, 0, m.handle, 0));
        OK(cu.cuMemSetAccess(m.at, m.size, &access, 1));
        if (i % 2)
            OK(cu.cuMemRelease(m.handle));
        OK(cu.cuMemUnmap(m.at, m.size));
        if (i % 2 == 0)
            OK(cu.cuMemRelease(m.handle));
        OK(cu.cuMemAddressFree(m.at, m.size));
    }
    return NULL;
}

/* They are given each other's handles and addresses. */
static void threads(CUcontext context)
{
    pthread_t thread[4];

    for (int i = 0; i < 4; i++)
        pthread_create(&thread[i], NULL, one_thread, context);
    join_all(thread, 4);
}

/* CUDA does not work in the child, and the trace is the parent's. bare: no handler of pthread_atfork runs. */
static void forked(bool bare)
{
    struct mapped m = take(2 * MIB);
    CUmemGenericAllocationHandle handle;
    int status;

    fflush(stdout);
    if ((bare ? (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL) : fork()) == 0) {
        cu.cuMemCreate(&handle, 2 * MIB, &physical, 0);
        cu.cuMemUnmap(m.at, m.size);
        _exit(0);
    }
    wait(&status);
    GOOD(cuMemRelease, m.handle);
    give(&m);
}

#ifdef PLUGIN
#define main plugin_run
int plugin_run(int argc, char **argv);
#endif

int main(int argc, char **argv)
{
    CUcontext context;
    size_t total;

    if (argc != 3)
        return 2;
    find(argv[1]);
    OK(cu.cuInit(0));
    OK(cu.cuDevicePrimaryCtxRetain(&context, 0));
    OK(cu.cuCtxSetCurrent(context));
    OK(cu.cuMemGetInfo(&beginning, &total));
    if (strcmp(argv[2], "life") == 0)
        life();
    else if (strcmp(argv[2], "errors") == 0)
        errors();
    else if (strcmp(argv[2], "refused") == 0)
        refused();
    else if (strcmp(argv[2], "pressure") == 0)
        pressure();
    else if (strcmp(argv[2], "threads") == 0)
        threads(context);
    else if (strcmp(argv[2], "forked") == 0)
        forked(false);
    else if (strcmp(argv[2], "forked_bare") == 0)
        forked(true);
    else if (strcmp(argv[2], "killed") == 0)
        take(2 * MIB), fflush(stdout), kill(getpid(), 9);
    else
        return 2;
    return 0;
}
