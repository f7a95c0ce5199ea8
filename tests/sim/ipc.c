/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ipc.c - CUDA IPC between processes of one user on one machine.
 *
 * Exported memory lies in a file of its own. A handle names the exporter's process, that file, and the allocation's
 * place there; the importer opens it through /proc and maps it, so both processes see the same bytes, and the importer
 * goes on seeing them when the exporter has freed the memory. Memory that only an importer still has does not count as
 * used.
 *
 * Locking: each function takes sim_lock() itself.
 */
#include "sim.h"

#include <sys/mman.h>
#include <sys/stat.h>

#define TAG 0x53494d4950433031u

struct handle { /* at most sizeof(CUipcMemHandle), 64 bytes */
    uint64_t tag, offset, size, file;
    int32_t pid, fd, dev;
};
_Static_assert(sizeof(struct handle) <= sizeof(CUipcMemHandle), "it travels in one");

CUresult cuIpcGetMemHandle(CUipcMemHandle *ret, CUdeviceptr ptr)
{
    SIM_ENTER(cuIpcGetMemHandle);
    CUcontext ctx;
    struct handle h = {.tag = TAG, .pid = (int32_t)getpid()};

    if (!ret)
        return CUDA_ERROR_INVALID_VALUE;
    SIM_LOCKED();
    CUresult r = sim_current(&ctx);
    struct sim_alloc *a = r == CUDA_SUCCESS ? sim_alloc_find(ptr) : NULL;
    if (r == CUDA_SUCCESS && (!a || a->kind != SIM_MEM_DEVICE))
        r = CUDA_ERROR_INVALID_VALUE;
    if (r == CUDA_SUCCESS) {
        struct stat st;
        h.size = a->size;
        h.dev = a->dev;
        h.fd = sim_memory_export(a, &h.offset);
        if (h.fd < 0 || fstat(h.fd, &st) < 0)
            r = CUDA_ERROR_INVALID_VALUE;
        else
            h.file = st.st_ino;
    }
    if (r == CUDA_SUCCESS) {
        memset(ret, 0, sizeof(*ret));
        memcpy(ret, &h, sizeof(h));
    }
    return r;
}

/* The engine's view of an imported allocation: whole host pages around it. */
static char *map(const struct handle *h, size_t *ret_len)
{
    char path[64];
    size_t skip = h->offset % 4096;

    snprintf(path, sizeof(path), "/proc/%d/fd/%d", h->pid, h->fd);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    struct stat st;
    if (fd < 0)
        return NULL;
    if (fstat(fd, &st) < 0 || st.st_ino != h->file) { /* freed, and the number used again */
        close(fd);
        return NULL;
    }
    *ret_len = (skip + h->size + 4095) & ~(size_t)4095;
    char *at = mmap(NULL, *ret_len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)(h->offset - skip));
    close(fd);
    return at == MAP_FAILED ? NULL : at + skip;
}

static CUresult open_handle(CUdeviceptr *ptr, CUipcMemHandle handle, unsigned flags)
{
    CUcontext ctx;
    struct handle h;
    struct sim_alloc *a;
    size_t len = 0;

    memcpy(&h, &handle, sizeof(h));
    if (!ptr || h.tag != TAG || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
        return CUDA_ERROR_INVALID_VALUE;
    if (h.pid == (int32_t)getpid())
        return CUDA_ERROR_INVALID_CONTEXT;
    SIM_LOCKED();
    CUresult r = sim_current(&ctx);
    for (a = r == CUDA_SUCCESS ? ctx->allocs : NULL; a; a = a->next) {
        if (a->kind == SIM_MEM_IPC && !a->freeing && a->ipc_pid == h.pid && a->ipc_file == h.file &&
            a->ipc_offset == h.offset)
            break;
    }
    if (a) { /* opened before: one mapping, counted */
        a->refs++;
        *ptr = a->addr;
    } else if (r == CUDA_SUCCESS) {
        char *host = map(&h, &len);
        r = host ? sim_device_alloc(ctx, h.size, SIM_MEM_IPC, &a) : CUDA_ERROR_MAP_FAILED;
        if (r == CUDA_SUCCESS) {
            a->host = host;
            a->ipc_pid = h.pid;
            a->ipc_file = h.file;
            a->ipc_offset = h.offset;
            *ptr = a->addr;
        } else if (host) {
            munmap(host - h.offset % 4096, len);
        }
    }
    return r;
}

SIM_CALL(cuIpcOpenMemHandle, (CUdeviceptr * ptr, CUipcMemHandle handle, unsigned int flags),
         open_handle(ptr, handle, flags))
SIM_CALL(cuIpcOpenMemHandle_v2, (CUdeviceptr * ptr, CUipcMemHandle handle, unsigned int flags),
         open_handle(ptr, handle, flags))

CUresult cuIpcCloseMemHandle(CUdeviceptr ptr)
{
    SIM_ENTER(cuIpcCloseMemHandle);
    CUcontext ctx;

    SIM_LOCKED();
    CUresult r = sim_current(&ctx);
    struct sim_alloc *a = r == CUDA_SUCCESS ? sim_alloc_find(ptr) : NULL;
    if (r == CUDA_SUCCESS && (!a || a->kind != SIM_MEM_IPC || a->addr != ptr))
        r = CUDA_ERROR_INVALID_VALUE;
    if (r == CUDA_SUCCESS && --a->refs == 0) {
        uint32_t gen = a->ctx->gen;
        a->freeing = true;
        sim_ctx_stall(a->ctx);
        if (ctx->gen == gen)
            sim_alloc_free(a);
    }
    return r;
}
