/* SPDX-License-Identifier: Apache-2.0 */
/*
 * selftest_shared.c - the part of the stand-ins' own test about virtual memory that another process imports by a
 * descriptor: both see the same bytes, and the importer keeps them when the exporter has given the memory back.
 *
 * Locking: single-threaded use.
 */
#include "selftest.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define SIZE       ((size_t)4 << 20)
#define LOAD(name) __typeof__(&(name)) p_##name = (__typeof__(&(name)))dlsym(drv.lib, #name)

/* Map memory at addresses of its own, for device 0. */
static CUdeviceptr map(CUmemGenericAllocationHandle handle)
{
    LOAD(cuMemAddressReserve);
    LOAD(cuMemMap);
    LOAD(cuMemSetAccess);
    CUmemAccessDesc desc = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
                            .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUdeviceptr p = 0;

    OK(p_cuMemAddressReserve(&p, SIZE, 0, 0, 0));
    OK(p_cuMemMap(p, SIZE, 0, handle, 0));
    OK(p_cuMemSetAccess(p, SIZE, &desc, 1));
    return p;
}

static void unmap(CUdeviceptr p)
{
    LOAD(cuMemUnmap);
    LOAD(cuMemAddressFree);

    OK(p_cuMemUnmap(p, SIZE));
    OK(p_cuMemAddressFree(p, SIZE));
}

static int last_byte(CUdeviceptr p)
{
    unsigned char b = 0;

    OK(cudaMemcpy(&b, (void *)(uintptr_t)(p + SIZE - 1), 1, cudaMemcpyDeviceToHost));
    return b;
}

static void fill(CUdeviceptr p, int byte)
{
    OK(cudaMemset((void *)(uintptr_t)p, byte, SIZE));
    OK(cudaDeviceSynchronize());
}

int selftest_import_shared(int in, int out)
{
    LOAD(cuMemImportFromShareableHandle);
    LOAD(cuMemRelease);
    CUmemGenericAllocationHandle handle = 0;
    size_t before, after, total;
    CUdeviceptr p;
    int fd = -1;
    char c;

    OK(cudaMemGetInfo(&before, &total));
    CHECK(read(in, &fd, sizeof(fd)) == sizeof(fd));
    CHECK_EQ(p_cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)in, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
             CUDA_ERROR_INVALID_VALUE);
    OK(p_cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    close(fd);
    p = map(handle);
    OK(p_cuMemRelease(handle));
    CHECK_EQ(last_byte(p), 0x42);
    fill(p, 0x43);
    OK(cudaMemGetInfo(&after, &total));
    CHECK(before == after); /* it counts for the exporter */
    CHECK(write(out, "x", 1) == 1 && read(in, &c, 1) == 1);
    CHECK_EQ(last_byte(p), 0x44); /* the exporter has it no more */
    unmap(p);
    return failures != 0;
}

/* This program again. */
static pid_t importer(int *ret_in, int *ret_out)
{
    int to[2] = {-1, -1}, back[2] = {-1, -1};
    char path[512], fd0[16], fd1[16];
    pid_t pid;

    CHECK(pipe(to) == 0 && pipe(back) == 0);
    pid = fork();
    if (pid == 0) {
        const ssize_t n = readlink("/proc/self/exe", path, sizeof(path) - 1);

        path[n > 0 ? n : 0] = 0;
        snprintf(fd0, sizeof(fd0), "%d", to[0]);
        snprintf(fd1, sizeof(fd1), "%d", back[1]);
        close(to[1]);
        close(back[0]);
        execl(path, path, "import-shared", fd0, fd1, (char *)NULL);
        _exit(1);
    }
    close(to[0]);
    close(back[1]);
    *ret_in = to[1];
    *ret_out = back[0];
    return pid;
}

/* mapped_first: it is exported when it has bytes already; else it gets them in the file. */
static void test_import(int mapped_first)
{
    LOAD(cuMemCreate);
    LOAD(cuMemRelease);
    LOAD(cuMemExportToShareableHandle);
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    CUmemGenericAllocationHandle handle;
    int in, out, fd = -1, status = 1;
    CUdeviceptr p = 0;
    pid_t pid;
    char c;

    OK(p_cuMemCreate(&handle, SIZE, &prop, 0));
    if (mapped_first) {
        p = map(handle);
        fill(p, 0x42);
    }
    OK(p_cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    CHECK(fcntl(fd, F_SETFD, 0) == 0); /* the importer inherits it */
    if (!mapped_first) {
        p = map(handle);
        fill(p, 0x42);
    }
    pid = importer(&in, &out);
    CHECK(write(in, &fd, sizeof(fd)) == sizeof(fd));
    CHECK(read(out, &c, 1) == 1);
    CHECK_EQ(last_byte(p), 0x43);
    fill(p, 0x44);
    unmap(p);
    p = map(handle); /* the bytes are the memory's, not the addresses' */
    CHECK_EQ(last_byte(p), 0x44);
    unmap(p);
    OK(p_cuMemRelease(handle));
    close(fd);
    CHECK(write(in, "x", 1) == 1);
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
    close(in);
    close(out);
}

void test_shared_memory(void)
{
    test_import(1);
    test_import(0);
}
