/* SPDX-License-Identifier: Apache-2.0 */
/*
 * selftest_env.c - the stand-ins' settings, and the virtual-memory calls.
 *
 * The tests run this program again with other settings and a part to play, and look at the result. CUDA's own contracts
 * are in the other files.
 *
 * Locking: none.
 */
#include "selftest.h"

#include <sys/wait.h>

static int run_self(const char *part, const char *name, const char *value)
{
    int status = -1;
    char path[512];
    ssize_t n = readlink("/proc/self/exe", path, sizeof(path) - 1);

    path[n > 0 ? n : 0] = 0;
    pid_t pid = fork();
    if (pid == 0) {
        setenv(name, value, 1);
        execl(path, path, "part", part, (char *)NULL);
        _exit(99);
    }
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 98;
}

static void part_fault(void)
{
    void *p, *q;

    OK(cudaMalloc(&p, 16));
    CHECK_EQ(cudaMalloc(&q, 16), 2);
    OK(cudaMalloc(&q, 16));
    OK(cudaFree(p));
    CHECK_EQ(cudaFree(q), 999);
    CHECK_EQ(cudaFree(q), 999);
}

static void part_old_driver(void)
{
    cudaEvent_t e;
    void *fn;
    CUdriverProcAddressQueryResult st;
    int version = 0;

    OK(cudaDriverGetVersion(&version));
    CHECK_EQ(version, 12040);
    OK(cudaEventCreate(&e));
    OK(drv.get_proc("cuCtxRecordEvent", &fn, 12040, 0, &st));
    CHECK(!fn && st == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
    CHECK_EQ(drv.ctx_record(NULL, e), CUDA_ERROR_NOT_SUPPORTED);
    CHECK_EQ(drv.ctx_wait(NULL, e), CUDA_ERROR_NOT_SUPPORTED);
}

static void part_memory(void)
{
    size_t avail, total;
    void *p;
    int n = 0;

    OK(cudaGetDeviceCount(&n));
    CHECK_EQ(n, 2);
    OK(cudaMemGetInfo(&avail, &total));
    CHECK_EQ(total >> 20, 64);
    OK(cudaMalloc(&p, (size_t)64 << 20));
    CHECK_EQ(cudaMalloc(&p, 1), 2);
}

static void part_count(void)
{
    unsigned long (*count)(const char *) = (unsigned long (*)(const char *))dlsym(drv.lib, "simgpu_count");
    void *p;

    unsigned long before = count("cuMemAlloc");
    OK(cudaMalloc(&p, 16));
    OK(cudaMalloc(&p, 16));
    CHECK_EQ(count("cuMemAlloc") - before, 2);
    CHECK_EQ(count("cuMemAlloc_v2") - before, 2);
}

static void part_unmap(bool begun);

static void part_name(void)
{
    struct cudaDeviceProp prop;

    OK(cudaGetDeviceProperties(&prop, 1));
    CHECK(strcmp(prop.name, "NVIDIA H200 MIG 1g.18gb") == 0);
}

static void flag_set(void *flag)
{
    __atomic_store_n((int *)flag, 1, __ATOMIC_RELEASE);
}

/* Work before a copy that is over is known to be over, also where the copy had nothing to wait for; and work before a
 * record of the whole context that is over, also where nothing was left at the record. */
static void part_adversary_known(void)
{
    int flag;
    char byte;
    cudaEvent_t e, all;
    void *p;

    OK(cudaEventCreate(&e));
    OK(cudaEventCreate(&all));
    OK(cudaMalloc(&p, 1));
    for (int i = 0; i < 40; i++) {
        flag = 0;
        OK(cudaEventRecord(e, NULL));
        OK(cudaLaunchHostFunc(NULL, flag_set, &flag));
        while (!__atomic_load_n(&flag, __ATOMIC_ACQUIRE))
            nap_ms(1);
        nap_ms(1);
        if (i % 2) {
            OK(cudaMemcpy(&byte, p, 1, cudaMemcpyDeviceToHost));
        } else {
            OK(drv.ctx_record(NULL, all));
            while (cudaEventQuery(all) == cudaErrorNotReady)
                nap_ms(1);
        }
        OK(cudaEventQuery(e));
    }
    OK(cudaFree(p));
    OK(cudaEventDestroy(all));
    OK(cudaEventDestroy(e));
}

/* Finished work seems unfinished until the host waits, and memory freed in a stream is taken for as long. */
static void part_adversary(void)
{
    size_t before, freed, after, total;
    int hidden = 0, flag = 0;
    cudaStream_t s;
    void *p;

    OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    for (int i = 0; i < 200; i++) {
        flag = 0;
        OK(cudaLaunchHostFunc(s, flag_set, &flag));
        while (!__atomic_load_n(&flag, __ATOMIC_ACQUIRE))
            nap_ms(1);
        hidden += cudaStreamQuery(s) == cudaErrorNotReady;
        OK(cudaStreamSynchronize(s));
        OK(cudaStreamQuery(s));
    }
    CHECK(hidden > 0);
    OK(cudaMemGetInfo(&before, &total));
    OK(cudaMalloc(&p, (size_t)4 << 20));
    OK(cudaFreeAsync(p, s));
    while (cudaStreamQuery(s) == cudaErrorNotReady)
        nap_ms(1);
    OK(cudaMemGetInfo(&freed, &total));
    CHECK_EQ((before - freed) >> 20, 4);
    OK(cudaStreamSynchronize(s));
    OK(cudaMemGetInfo(&after, &total));
    CHECK(after == before);
    part_adversary_known();
}

/* Processes that have the devices together: one that is gone has nothing any more. */
static void part_shared(void)
{
    size_t avail, total;
    void *p;

    for (int i = 0; i < 2; i++) {
        OK(cudaMalloc(&p, (size_t)5 << 30));
        OK(run_self("shared-full", "SIMGPU_DELAY_US", "0"));
        OK(cudaFree(p));
        OK(run_self("shared-empty", "SIMGPU_DELAY_US", "0"));
    }
    OK(cudaMemGetInfo(&avail, &total));
    CHECK_EQ(avail, total);
}

static void part_shared_other(int rc)
{
    size_t avail, total;
    void *p;

    OK(cudaMemGetInfo(&avail, &total));
    CHECK_EQ((total - avail) >> 30, rc ? 5 : 0);
    CHECK_EQ(cudaMalloc(&p, (size_t)5 << 30), rc);
    OK(cudaSetDevice(1));
    OK(cudaMalloc(&p, (size_t)5 << 30));
}

int selftest_part(const char *part)
{
    if (strcmp(part, "fault") == 0)
        part_fault();
    else if (strcmp(part, "old-driver") == 0)
        part_old_driver();
    else if (strcmp(part, "memory") == 0)
        part_memory();
    else if (strcmp(part, "count") == 0)
        part_count();
    else if (strcmp(part, "name") == 0)
        part_name();
    else if (strcmp(part, "adversary") == 0)
        part_adversary();
    else if (strncmp(part, "unmap-", 6) == 0)
        part_unmap(strcmp(part, "unmap-begun") == 0);
    else if (strcmp(part, "shared") == 0)
        part_shared();
    else if (strcmp(part, "shared-full") == 0)
        part_shared_other(2);
    else if (strcmp(part, "shared-empty") == 0)
        part_shared_other(0);
    else
        return 97;
    return failures != 0;
}

static void test_counts(void)
{
    char path[] = "/tmp/simgpu-counts-XXXXXX", line[256];
    int found = 0, fd = mkstemp(path);

    CHECK(fd >= 0);
    close(fd);
    OK(run_self("count", "SIMGPU_COUNTS", path));
    FILE *f = fopen(path, "r");
    while (f && fgets(line, sizeof(line), f)) {
        int pid;
        char name[128];
        unsigned long n;
        if (sscanf(line, "%d %127s %lu", &pid, name, &n) == 3 && strcmp(name, "cuMemAlloc_v2") == 0)
            found += n == 2;
    }
    CHECK_EQ(found, 1);
    if (f)
        fclose(f);
    unlink(path);
}

static void test_shared(void)
{
    char path[] = "/tmp/simgpu-shared-XXXXXX";
    int fd = mkstemp(path);

    CHECK(fd >= 0);
    close(fd);
    OK(run_self("shared", "SIMGPU_SHARED", path));
    unlink(path);
}

/* The calls by which virtual memory is had and given back. */
#define LOAD_MAPPING                                                                                                   \
    LOAD(cuMemCreate);                                                                                                 \
    LOAD(cuMemRelease);                                                                                                \
    LOAD(cuMemAddressReserve);                                                                                         \
    LOAD(cuMemAddressFree);                                                                                            \
    LOAD(cuMemMap);                                                                                                    \
    LOAD(cuMemUnmap);                                                                                                  \
    LOAD(cuMemSetAccess)

static void test_vmm(void)
{
    LOAD_MAPPING;
    LOAD(cuMemRetainAllocationHandle);
    LOAD(cuMemExportToShareableHandle);
    LOAD(cuMemImportFromShareableHandle);
    LOAD(cuPointerGetAttribute);
    enum { SIZE = 4 << 20 };
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR};
    CUmemGenericAllocationHandle h, again;
    CUmemAccessDesc desc = {.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUdeviceptr p;
    size_t before, after, total;
    unsigned long long types, id, other;
    unsigned char b = 1;
    int fd;
    cudaIpcMemHandle_t ipc;

    prop.location.type = desc.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    OK(cudaMemGetInfo(&before, &total));
    OK(p_cuMemCreate(&h, SIZE, &prop, 0));
    OK(cudaMemGetInfo(&after, &total));
    CHECK(before - after == SIZE);
    OK(p_cuMemAddressReserve(&p, SIZE, 0, 0, 0));
    CHECK_EQ(cudaMemset((void *)(uintptr_t)p, 1, SIZE), 1);
    OK(p_cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, p));
    OK(p_cuMemMap(p, SIZE, 0, h, 0));
    OK(p_cuPointerGetAttribute(&other, CU_POINTER_ATTRIBUTE_BUFFER_ID, p));
    CHECK(other != id); /* something is there now */
    OK(p_cuPointerGetAttribute(&types, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, p));
    CHECK_EQ(types, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    OK(p_cuMemSetAccess(p, SIZE, &desc, 1));
    OK(p_cuMemRelease(h));
    OK(cudaMemset((void *)(uintptr_t)p, 7, SIZE));
    OK(cudaMemcpy(&b, (void *)(uintptr_t)(p + SIZE - 1), 1, cudaMemcpyDeviceToHost));
    CHECK_EQ(b, 7);
    CHECK_EQ(cudaFree((void *)(uintptr_t)p), 1);
    CHECK_EQ(cudaIpcGetMemHandle(&ipc, (void *)(uintptr_t)p), 1);
    OK(p_cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)p));
    CHECK(again == h);
    OK(p_cuMemExportToShareableHandle(&fd, h, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    OK(p_cuMemImportFromShareableHandle(&again, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    close(fd);
    CHECK(again == h);
    OK(p_cuMemUnmap(p, SIZE));
    CHECK_EQ(p_cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)p), CUDA_ERROR_INVALID_VALUE);
    OK(p_cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, p));
    CHECK(other != id);
    OK(p_cuMemRelease(h));
    OK(cudaMemGetInfo(&after, &total));
    CHECK(before - after == SIZE);
    OK(p_cuMemRelease(h));
    OK(p_cuMemAddressFree(p, SIZE));
    OK(cudaMemGetInfo(&after, &total));
    CHECK(before == after);
    cudaGetLastError();
}

/* Memory is mapped in parts of a reservation. */
static void test_vmm_parts(void)
{
    LOAD_MAPPING;
    enum { PAGE = 2 << 20 };
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location.type = CU_MEM_LOCATION_TYPE_DEVICE};
    CUmemAccessDesc access = {.location = prop.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle h[2];
    unsigned char b[2] = {0};
    CUdeviceptr p;

    for (int i = 0; i < 2; i++)
        OK(p_cuMemCreate(&h[i], PAGE, &prop, 0));
    OK(p_cuMemAddressReserve(&p, 4 * PAGE, 0, 0, 0));
    CHECK_EQ(p_cuMemMap(p + 4096, PAGE, 0, h[0], 0), 1);
    CHECK_EQ(p_cuMemMap(p + 3 * PAGE, 2 * PAGE, 0, h[0], 0), 1);
    OK(p_cuMemMap(p + PAGE, PAGE, 0, h[0], 0));
    CHECK_EQ(p_cuMemMap(p + PAGE, PAGE, 0, h[1], 0), 1);
    OK(p_cuMemMap(p + 2 * PAGE, PAGE, 0, h[1], 0));
    for (unsigned int i = 1; i < 3; i++) {
        OK(p_cuMemSetAccess(p + i * PAGE, PAGE, &access, 1));
        OK(cudaMemset((void *)(uintptr_t)(p + i * PAGE), (int)i, PAGE));
    }
    CHECK_EQ(cudaMemset((void *)(uintptr_t)p, 7, PAGE), 1);
    for (unsigned int i = 1; i < 3; i++)
        OK(cudaMemcpy(&b[i - 1], (void *)(uintptr_t)(p + i * PAGE), 1, cudaMemcpyDeviceToHost));
    CHECK_EQ(b[0], 1);
    CHECK_EQ(b[1], 2);
    OK(p_cuMemUnmap(p + PAGE, PAGE));
    CHECK_EQ(p_cuMemAddressFree(p, 4 * PAGE), 1);
    CHECK_EQ(p_cuMemAddressFree(p, PAGE), 1);
    OK(p_cuMemMap(p, PAGE, 0, h[0], 0)); /* of what was in two parts */
    OK(p_cuMemUnmap(p, PAGE));
    OK(p_cuMemUnmap(p + 2 * PAGE, PAGE));
    CHECK_EQ(p_cuMemAddressFree(p, 2 * PAGE), 1);
    OK(p_cuMemAddressFree(p, 4 * PAGE));
    for (int i = 0; i < 2; i++)
        OK(p_cuMemRelease(h[i]));
    cudaGetLastError();
}

static void CUDART_CB hold(void *arg)
{
    while (!atomic_load((atomic_bool *)arg))
        usleep(100);
}

/* Such memory is reached by the devices that have access, is no context's, and is unmapped without a wait. */
static void test_vmm_reach(void)
{
    LOAD_MAPPING;
    LOAD(cuPointerGetAttribute);
    enum { SIZE = 2 << 20 };
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .requestedHandleTypes = CU_MEM_HANDLE_TYPE_FABRIC,
                                .location.type = CU_MEM_LOCATION_TYPE_DEVICE};
    CUmemAccessDesc access = {.location = prop.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle h;
    size_t before, after, total;
    atomic_bool over = false;
    CUcontext owner = NULL;
    cudaStream_t busy;
    CUdeviceptr at;
    void *p, *q;

    OK(cudaSetDevice(1));
    OK(cudaMalloc(&q, SIZE));
    OK(cudaSetDevice(0));
    CHECK_EQ(p_cuMemCreate(&h, SIZE, &prop, 0), CUDA_ERROR_NOT_PERMITTED);
    prop.requestedHandleTypes = 0;
    OK(p_cuMemCreate(&h, SIZE, &prop, 0));
    OK(p_cuMemAddressReserve(&at, SIZE, 0, 0, 0));
    OK(p_cuMemMap(at, SIZE, 0, h, 0));
    OK(p_cuMemRelease(h));
    p = (void *)(uintptr_t)at;
    CHECK_EQ(cudaMemset(p, 1, SIZE), 1);
    OK(p_cuMemSetAccess(at, SIZE, &access, 1));
    OK(cudaMemset(p, 1, SIZE));
    OK(p_cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, at));
    CHECK(!owner);
    OK(cudaDeviceSynchronize()); /* the other device's copies do not wait for the fill */
    OK(cudaSetDevice(1));
    CHECK_EQ(cudaMemcpy(q, p, SIZE, cudaMemcpyDefault), 1);
    OK(cudaMemcpyPeer(q, 1, p, 0, SIZE));
    OK(cudaDeviceEnablePeerAccess(0, 0)); /* changes nothing */
    CHECK_EQ(cudaMemcpy(q, p, SIZE, cudaMemcpyDefault), 1);
    access.location.id = 1;
    CHECK_EQ(p_cuMemSetAccess(at, SIZE / 2, &access, 1), 1);
    OK(p_cuMemSetAccess(at, SIZE, &access, 1));
    OK(cudaMemcpy(q, p, SIZE, cudaMemcpyDefault));
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
    OK(p_cuMemSetAccess(at, SIZE, &access, 1));
    CHECK_EQ(cudaMemcpy(q, p, SIZE, cudaMemcpyDefault), 1);
    OK(cudaDeviceReset());
    OK(cudaSetDevice(0));
    OK(cudaDeviceReset());
    OK(cudaMemset(p, 1, SIZE));
    OK(cudaDeviceSynchronize());
    OK(cudaMemGetInfo(&before, &total));
    OK(cudaStreamCreateWithFlags(&busy, cudaStreamNonBlocking));
    OK(cudaLaunchHostFunc(busy, hold, &over));
    OK(p_cuMemUnmap(at, SIZE));
    OK(p_cuMemAddressFree(at, SIZE));
    OK(cudaMemGetInfo(&after, &total));
    CHECK(after - before == SIZE);
    atomic_store(&over, true);
    OK(cudaDeviceSynchronize());
    cudaGetLastError();
}

/* Not looked at by the thread sanitizer: the device is writing it. */
__attribute__((no_sanitize("thread"))) static unsigned char looked_at(const volatile unsigned char *byte)
{
    return *byte;
}

/* Unmapping waits neither for work that has not begun, nor for work that is in the middle of the memory, and both find
 * an illegal address. Of the fill nobody knows when it is in the middle, so it is tried until it was. */
static void part_unmap(bool begun)
{
    LOAD_MAPPING;
    void *(*host)(unsigned long long, size_t) = (void *(*)(unsigned long long, size_t))dlsym(drv.lib, "simgpu_host");
    enum { SIZE = 64 << 20 };
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location.type = CU_MEM_LOCATION_TYPE_DEVICE};
    CUmemAccessDesc access = {.location = prop.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle h;
    atomic_bool over = false;
    int rc = 0;
    cudaStream_t s;
    CUdeviceptr at;

    OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    OK(p_cuMemAddressReserve(&at, SIZE, 0, 0, 0));
    for (int i = 0; i < 1000 && !rc; i++) {
        OK(p_cuMemCreate(&h, SIZE, &prop, 0));
        OK(p_cuMemMap(at, SIZE, 0, h, 0));
        OK(p_cuMemRelease(h));
        OK(p_cuMemSetAccess(at, SIZE, &access, 1));
        const volatile unsigned char *byte = host(at, 1);
        if (!begun)
            OK(cudaLaunchHostFunc(s, hold, &over));
        OK(cudaMemsetAsync((void *)(uintptr_t)at, 1, SIZE, s));
        while (begun && !looked_at(byte))
            ;
        OK(p_cuMemUnmap(at, SIZE));
        atomic_store(&over, true);
        rc = (int)cudaStreamSynchronize(s);
    }
    CHECK_EQ(rc, 700);
    OK(p_cuMemAddressFree(at, SIZE));
}

void test_env(void)
{
    OK(run_self("fault", "SIMGPU_FAULT", "cuMemAlloc:2:2,cuMemFree_v2:2+:999"));
    OK(run_self("old-driver", "SIMGPU_DRIVER_VERSION", "12040"));
    OK(run_self("memory", "SIMGPU_MEMORY", "64M"));
    OK(run_self("name", "SIMGPU_NAME", "NVIDIA H200 MIG 1g.18gb"));
    OK(run_self("adversary", "SIMGPU_ADVERSARY", "1"));
    OK(run_self("unmap-waiting", "SIMGPU_DELAY_US", "20"));
    OK(run_self("unmap-begun", "SIMGPU_DELAY_US", "20"));
    test_counts();
    test_shared();
    test_vmm();
    test_vmm_parts();
    test_vmm_reach();
}
