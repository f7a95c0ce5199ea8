/* SPDX-License-Identifier: Apache-2.0 */
/* vmm_retains.c - a library that retains the program's virtual memory by its address and exports it, as NCCL does. Its
 * name makes what it calls NCCL's own. */
#include "vmm_kept.h"

__attribute__((visibility("default"))) CUmemGenericAllocationHandle nccl_shares(CUdeviceptr at)
{
    CUmemGenericAllocationHandle own, theirs;
    int fd;

    if (cuMemRetainAllocationHandle(&own, (void *)(uintptr_t)at) || /* NOLINT(performance-no-int-to-ptr) */
        cuMemExportToShareableHandle(&fd, own, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) || cuMemRelease(own) ||
        cuMemImportFromShareableHandle(&theirs, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR))
        return 0;
    close(fd);
    return theirs;
}

__attribute__((visibility("default"))) CUmemGenericAllocationHandle nccl_retains(CUdeviceptr at)
{
    CUmemGenericAllocationHandle own;

    return cuMemRetainAllocationHandle(&own, (void *)(uintptr_t)at) ? 0 : own; /* NOLINT(performance-no-int-to-ptr) */
}

__attribute__((visibility("default"))) CUresult nccl_releases(CUmemGenericAllocationHandle own)
{
    return cuMemRelease(own);
}
