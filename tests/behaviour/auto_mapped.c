/* SPDX-License-Identifier: Apache-2.0 */
/*
 * auto_mapped.c - after cudaFree the host may count on memory that the device writes and reads without a copy to or
 * from it: flags that a stream writes, mapped and managed memory, pinned memory, which the device can write, too.
 *
 * Each hazard holds a stream (auto_debts.h). meson builds it a second time with -DCUDA_API_PER_THREAD_DEFAULT_STREAM.
 */
#include "auto_debts.h"

static unsigned char *alias; /* where the device sees host */

static int mapped(void)
{
    OK(cudaHostAlloc((void **)&host, N, cudaHostAllocMapped));
    OK(cudaHostGetDevicePointer((void **)&alias, host, 0));
    return setup();
}

static int mapped_registered(void)
{
    host = (unsigned char *)aligned_alloc(4096, N);
    CHECK(host);
    OK(cudaHostRegister(host, N, cudaHostRegisterMapped));
    OK(cudaHostGetDevicePointer((void **)&alias, host, 0));
    return setup();
}

/* Pinned memory that was not asked to be mapped: under unified addressing the device can write it all the same. */
static int unmapped(void)
{
    TRY(pinned());
    alias = host;
    return 0;
}

static int managed(void)
{
    int concurrent = 0;

    OK(cudaDeviceGetAttribute(&concurrent, cudaDevAttrConcurrentManagedAccess, 0));
    if (!concurrent)
        SKIP("the host may not touch managed memory while this device works");
    OK(cudaMallocManaged((void **)&host, N, cudaMemAttachGlobal));
    alias = host;
    return setup();
}

static int write_value_32(void)
{
    OK(cuStreamWriteValue32((CUstream)s, BT_ADDRESS(alias), 0x11111111, 0));
    return 0;
}

static int write_value_64(void)
{
    OK(cuStreamWriteValue64((CUstream)s, BT_ADDRESS(alias), 0x1111111111111111u, 0));
    return 0;
}

static int write_batch(void)
{
    CUstreamBatchMemOpParams op = {0};

    op.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    op.writeValue.address = BT_ADDRESS(alias);
    op.writeValue.value = 0x11111111;
    OK(cuStreamBatchMemOp((CUstream)s, 1, &op, 0));
    return 0;
}

static int set_alias(void)
{
    OK(cudaMemsetAsync(alias, 0x11, N, s));
    return 0;
}

static int copy_alias(void)
{
    OK(cudaMemcpyAsync(alias, dev, N, cudaMemcpyDefault, s));
    return 0;
}

static int from_alias(void)
{
    OK(cudaMemcpyAsync(dev, alias, N, cudaMemcpyDefault, s));
    return 0;
}

LANDS(value_mapped, mapped, .launch = write_value_32, .n = 4)
LANDS(value_pinned, unmapped, .launch = write_value_32, .n = 4)
LANDS(value_64, unmapped, .launch = write_value_64, .n = 8)
LANDS(value_batch, unmapped, .launch = write_batch, .n = 4)
LANDS(mapped_set, mapped, .launch = set_alias)
LANDS(mapped_copy, mapped, .launch = copy_alias)
TAKEN(mapped_source, mapped, .launch = from_alias)
LANDS(mapped_registered_set, mapped_registered, .launch = set_alias)
LANDS(pinned_set, unmapped, .launch = set_alias)
LANDS(managed_set, managed, .launch = set_alias)
LANDS(managed_copy, managed, .launch = copy_alias)
TAKEN(managed_source, managed, .launch = from_alias)
