/* SPDX-License-Identifier: Apache-2.0 */
/*
 * peers.c - work of one device in the memory of another: fills, which need peer access, and copies, which do not.
 *
 * Nothing here is about the order of frees; auto_peer.c has that. Each test also has to pass as the first one of a
 * process (peers NAME), where the library has seen neither context.
 */
#include "behaviour.h"

#define N (4 * BT_MIB)

/* Device 1 fills a block of device 0, and device 0 reads it. */
static int filled_from_afar(void *p, int byte)
{
    cudaStream_t stream;

    OK(cudaSetDevice(1));
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    OK(cudaMemsetAsync(p, byte, N, stream));
    OK(cudaStreamSynchronize(stream));
    OK(cudaStreamDestroy(stream));
    OK(cudaSetDevice(0));
    return bt_verify(p, N, byte);
}

/* A kernel of device 1 could, before any call that names the memory. Real GPUs have not been asked for this attribute.
 */
static int reached(void *p)
{
    unsigned int flags = 0;

    if (!bt_driver("simgpu_count"))
        return 0;
    OK(cudaSetDevice(1));
    OK(cuPointerGetAttribute(&flags, CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, BT_ADDRESS(p)));
    CHECK(flags == CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE);
    OK(cudaSetDevice(0));
    return 0;
}

/* Peer access comes before the memory, from a context that never allocates; small blocks and large ones. */
BT_TEST(access_first)
{
    void *p, *small[8];
    int rc;

    TRY(bt_devices(2));
    OK(cudaSetDevice(1));
    rc = (int)cudaDeviceEnablePeerAccess(0, 0);
    if (rc != cudaErrorPeerAccessAlreadyEnabled)
        OK(rc);
    (void)cudaGetLastError();
    OK(cudaSetDevice(0));
    OK(cudaMalloc(&p, N));
    TRY(reached(p));
    TRY(filled_from_afar(p, 1));
    for (int i = 0; i < 8; i++) {
        OK(cudaMalloc(&small[i], N));
        TRY(filled_from_afar(small[i], i + 2));
    }
    for (int i = 0; i < 8; i++)
        OK(cudaFree(small[i]));
    OK(cudaFree(p));
    LAST(cudaSuccess);
    return 0;
}

/* The memory is there before; and memory that comes later. */
BT_TEST(access_later)
{
    void *p, *q;
    int rc;

    TRY(bt_devices(2));
    OK(cudaSetDevice(0));
    OK(cudaMalloc(&p, N));
    TRY(bt_fill(p, N, 3));
    OK(cudaSetDevice(1));
    rc = (int)cudaDeviceEnablePeerAccess(0, 0);
    if (rc != cudaErrorPeerAccessAlreadyEnabled)
        OK(rc);
    (void)cudaGetLastError();
    TRY(reached(p));
    TRY(filled_from_afar(p, 4));
    OK(cudaMalloc(&q, 3 * N));
    TRY(reached(q));
    TRY(filled_from_afar(q, 5));
    OK(cudaFree(p));
    OK(cudaFree(q));
    LAST(cudaSuccess);
    return 0;
}

/* Both devices have memory, and neither has access: copies by address, to the other device and to the host. */
BT_TEST(copies)
{
    unsigned char byte = 0;
    void *p[2];

    TRY(bt_devices(2));
    for (int d = 0; d < 2; d++) {
        OK(cudaSetDevice(d));
        OK(cudaMalloc(&p[d], N));
        TRY(bt_fill(p[d], N, d + 6));
    }
    for (int d = 0; d < 2; d++) {
        OK(cudaSetDevice(d));
        OK(cudaMemcpy(&byte, (char *)p[!d] + N - 1, 1, cudaMemcpyDeviceToHost));
        CHECK(byte == !d + 6);
    }
    OK(cudaMemcpy(p[1], p[0], N, cudaMemcpyDefault));
    TRY(bt_verify(p[1], N, 6));
    OK(cudaMemcpyPeer(p[0], 0, p[1], 1, N));
    OK(cudaFree(p[0]));
    OK(cudaFree(p[1]));
    LAST(cudaSuccess);
    return 0;
}

/* A context in which nothing was ever allocated reads the other device's memory. */
BT_TEST(copies_alone)
{
    unsigned char byte = 0;
    void *p;

    TRY(bt_devices(2));
    OK(cudaSetDevice(0));
    OK(cudaMalloc(&p, N));
    TRY(bt_fill(p, N, 8));
    OK(cudaSetDevice(1));
    OK(cudaMemcpy(&byte, (char *)p + N - 1, 1, cudaMemcpyDeviceToHost));
    CHECK(byte == 8);
    OK(cudaSetDevice(0));
    OK(cudaFree(p));
    LAST(cudaSuccess);
    return 0;
}
