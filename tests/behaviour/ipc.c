/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ipc.c - memory shared with another process through CUDA IPC handles.
 *
 * The tests export here, import in a copy of this program, and compare the bytes; preloaded, both processes are. IPC
 * of events and of cudaMallocAsync pools is not tested.
 */
#define BT_OWN_MAIN
#include "behaviour.h"

#include <sys/wait.h>

static void pattern(unsigned char *host, size_t n, unsigned seed)
{
    for (size_t i = 0; i < n; i++)
        host[i] = (unsigned char)((i * 31 + (i >> 8) * 7) ^ seed);
}

static int upload(void *p, size_t n, unsigned seed)
{
    unsigned char *host = (unsigned char *)malloc(n);

    CHECK(host);
    pattern(host, n, seed);
    OK(cudaMemcpy(p, host, n, cudaMemcpyHostToDevice));
    OK(cudaDeviceSynchronize());
    free(host);
    return 0;
}

/* The current device copies from the memory to q and back; peer: by the call that names both devices. 0, 3 (wrong
 * bytes), 4. */
static int copied(void *q, const void *p, size_t n, const unsigned char *want, unsigned char *got, bool peer)
{
    memset(got, 0, n);
    if (cudaMemset(q, 0, n) || (peer ? cudaMemcpyPeer(q, 1, p, 0, n) : cudaMemcpy(q, p, n, cudaMemcpyDeviceToDevice)) ||
        cudaMemcpy(got, q, n, cudaMemcpyDeviceToHost))
        return 4;
    return memcmp(got, want, n) ? 3 : 0;
}

/* Another device copies from the memory, without access by peers and with it, and writes to it. It does so for the
 * first time when nothing has asked cupool for memory there. 0, 3 (wrong bytes), 4. */
static int other_device(void *p, size_t n, const unsigned char *want, unsigned char *got)
{
    int devices = 0, can = 0, rc;
    void *first = NULL, *q = NULL;

    if (cudaGetDeviceCount(&devices) || devices < 2 || cudaDeviceCanAccessPeer(&can, 1, 0) || !can)
        return 0;
    if (cudaSetDevice(1) || cudaMallocAsync(&first, n, NULL))
        return 4;
    rc = copied(first, p, n, want, got, false);
    if (cudaFreeAsync(first, NULL) || cudaMalloc(&q, n))
        return 4;
    for (int i = 0; !rc && i < 3; i++)
        rc = i == 1 && cudaDeviceEnablePeerAccess(0, 0) ? 4 : copied(q, p, n, want, got, i == 2);
    if (!rc && (cudaMemset(p, got[0], 1) || cudaDeviceSynchronize()))
        rc = 4;
    if (cudaFree(q) || cudaSetDevice(0))
        rc = 4;
    return rc;
}

/* Imported memory is none that can be unmapped, and the calls for that leave it alone. */
static bool can_be_unmapped(const void *p)
{
    const CUmemAccessDesc none = {.location.type = CU_MEM_LOCATION_TYPE_DEVICE};
    const size_t page = 2 * BT_MIB;
    const CUdeviceptr at = BT_ADDRESS(p) / page * page;

    return !cuMemSetAccess(at, page, &none, 1) || !cuMemUnmap(at, page) || !cuMemAddressFree(at, page);
}

/* The importing process: argv = --import HANDLE N SEED. Exits 0 (right bytes), 3 (wrong bytes), 77 (cannot open), 4. */
static int import_main(char **argv)
{
    size_t n = strtoull(argv[3], NULL, 0);
    unsigned char *got, *want;
    cudaIpcMemHandle_t handle;
    void *p = NULL, *own = NULL;
    int rc;

    for (size_t i = 0; i < sizeof(handle); i++) {
        unsigned byte;

        if (sscanf(argv[2] + 2 * i, "%2x", &byte) != 1)
            return 4;
        ((unsigned char *)&handle)[i] = (unsigned char)byte;
    }
    got = (unsigned char *)malloc(n);
    want = (unsigned char *)malloc(n);
    if (!got || !want || cudaMalloc(&own, n))
        exit(4);
    if (cudaIpcOpenMemHandle(&p, handle, cudaIpcMemLazyEnablePeerAccess))
        exit(77);
    pattern(want, n, (unsigned)strtoul(argv[4], NULL, 0));
    if (can_be_unmapped(p))
        exit(6);
    if (cudaMemcpy(got, p, n, cudaMemcpyDeviceToHost))
        exit(4);
    rc = memcmp(got, want, n) ? 3 : other_device(p, n, want, got);
    /* Memory from elsewhere is closed, not freed. */
    if (!rc && cudaFree(p) == cudaSuccess && cudaIpcCloseMemHandle(p) == cudaSuccess)
        rc = 5;
    (void)cudaIpcCloseMemHandle(p);
    if (!rc && cudaFree(own))
        rc = 4;
    free(got);
    free(want);
    return rc;
}

static int import_run(const cudaIpcMemHandle_t *handle, size_t n, unsigned seed)
{
    char hex[2 * sizeof(*handle) + 1], size[32], number[32];
    char *argv[] = {(char *)"ipc", (char *)"--import", hex, size, number, NULL};
    int status = 0;
    pid_t pid;

    for (size_t i = 0; i < sizeof(*handle); i++)
        sprintf(hex + 2 * i, "%02x", ((const unsigned char *)handle)[i]);
    snprintf(size, sizeof(size), "%zu", n);
    snprintf(number, sizeof(number), "%u", seed);
    pid = fork();
    if (pid == 0) {
        execv("/proc/self/exe", argv);
        _exit(4);
    }
    CHECK(pid > 0 && waitpid(pid, &status, 0) == pid);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
        SKIP("the importer could not open the handle");
    if (!WIFEXITED(status) || WEXITSTATUS(status))
        return BT_FAIL("importer: status 0x%x (exit 3: wrong bytes)", status);
    return 0;
}

BT_TEST(fresh_large)
{
    static const size_t sizes[] = {4 << 20, 2 << 20, 10 << 20};
    cudaIpcMemHandle_t handle;
    void *p[3];

    for (int i = 0; i < 3; i++) {
        OK(cudaMalloc(&p[i], sizes[i]));
        TRY(upload(p[i], sizes[i], (unsigned)i));
    }
    for (int i = 0; i < 3; i++) {
        OK(cudaIpcGetMemHandle(&handle, p[i]));
        TRY(import_run(&handle, sizes[i], (unsigned)i));
    }
    for (int i = 0; i < 3; i++)
        OK(cudaFree(p[i]));
    return 0;
}

/* After some life: the block comes from the cache. */
BT_TEST(reused_large)
{
    size_t n = 4 << 20;
    cudaIpcMemHandle_t handle;
    void *p[4];

    for (int i = 0; i < 4; i++)
        OK(cudaMalloc(&p[i], n << (i % 2)));
    for (int i = 0; i < 4; i++)
        OK(cudaFree(p[i]));
    for (int i = 0; i < 4; i++) {
        OK(cudaMalloc(&p[i], n));
        TRY(upload(p[i], n, (unsigned)i));
    }
    for (int i = 0; i < 4; i++) {
        OK(cudaIpcGetMemHandle(&handle, p[i]));
        TRY(import_run(&handle, n, (unsigned)i));
    }
    for (int i = 0; i < 4; i++)
        OK(cudaFree(p[i]));
    return 0;
}

BT_TEST(small)
{
    static const size_t sizes[] = {100, 5000, 100000, 1 << 20};
    cudaIpcMemHandle_t handle;
    void *p[4];

    for (int i = 0; i < 4; i++) {
        OK(cudaMalloc(&p[i], sizes[i]));
        TRY(upload(p[i], sizes[i], (unsigned)i + 10));
    }
    for (int i = 0; i < 4; i++) {
        OK(cudaIpcGetMemHandle(&handle, p[i]));
        LAST(cudaSuccess);
        TRY(import_run(&handle, sizes[i], (unsigned)i + 10));
    }
    for (int i = 0; i < 4; i++)
        OK(cudaFree(p[i]));
    return 0;
}

BT_TEST(wrong)
{
    struct cudaPointerAttributes is;
    cudaIpcMemHandle_t handle;
    static char host[64];
    void *p;

    EXPECT(cudaIpcGetMemHandle(&handle, host), cudaErrorInvalidValue);
    LAST(cudaErrorInvalidValue);
    OK(cudaMalloc(&p, 4 << 20));
    OK(cudaFree(p));
    EXPECT(cudaIpcGetMemHandle(&handle, p), cudaErrorInvalidValue);
    LAST(cudaErrorInvalidValue);
    OK(cudaMalloc(&p, 5 << 19));
    EXPECT(cudaIpcGetMemHandle(&handle, (char *)p + (5 << 19)), cudaErrorInvalidValue); /* its end */
    OK(cudaIpcGetMemHandle(&handle, p));
    OK(cudaFree(p));
    OK(cudaPointerGetAttributes(&is, p));
    EXPECT(is.type, cudaMemoryTypeUnregistered);
    EXPECT(cudaIpcGetMemHandle(&handle, p), cudaErrorInvalidValue);
    LAST(cudaErrorInvalidValue);
    return bt_usable(4 << 20);
}

/* Exported memory can be freed, and the next handle is of the next memory. */
BT_TEST(again)
{
    for (int i = 0; i < 3; i++) {
        cudaIpcMemHandle_t handle;
        void *p;

        OK(cudaMalloc(&p, 6 << 20));
        TRY(upload(p, 6 << 20, (unsigned)i + 20));
        OK(cudaIpcGetMemHandle(&handle, p));
        TRY(import_run(&handle, 6 << 20, (unsigned)i + 20));
        OK(cudaFree(p));
    }
    LAST(cudaSuccess);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 5 && strcmp(argv[1], "--import") == 0)
        return import_main(argv);
    return bt_main(argc, argv);
}
