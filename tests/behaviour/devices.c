/* SPDX-License-Identifier: Apache-2.0 */
/*
 * devices.c - several devices in one process.
 *
 * The tests check the owner of memory, free across the current device, and reset one device. They make no peer access.
 */
#include "behaviour.h"

static int device_of(const void *p, int want)
{
    struct cudaPointerAttributes a;

    OK(cudaPointerGetAttributes(&a, p));
    CHECK(a.device == want);
    return 0;
}

BT_TEST(owns)
{
    void *p[2];

    TRY(bt_devices(2));
    for (int d = 0; d < 2; d++) {
        OK(cudaSetDevice(d));
        OK(cudaMalloc(&p[d], 1 << 20));
        TRY(bt_fill(p[d], 1 << 20, d + 1));
    }
    for (int d = 0; d < 2; d++) {
        TRY(device_of(p[d], d));
        TRY(bt_verify(p[d], 1 << 20, d + 1));
        OK(cudaFree(p[d]));
    }
    OK(cudaSetDevice(0));
    return 0;
}

/* Free under another current device; the block must come back to its own device. */
BT_TEST(free_elsewhere)
{
    void *p, *q;

    TRY(bt_devices(2));
    for (int i = 0; i < 50; i++) {
        size_t n = i % 2 ? 5000 : 3 << 20;

        OK(cudaSetDevice(0));
        OK(cudaMalloc(&p, n));
        OK(cudaSetDevice(1));
        OK(cudaFree(p));
        OK(cudaMalloc(&q, n));
        TRY(device_of(q, 1));
        OK(cudaSetDevice(0));
        OK(cudaFree(q));
        OK(cudaMalloc(&p, n));
        TRY(device_of(p, 0));
        OK(cudaFree(p));
    }
    LAST(cudaSuccess);
    return 0;
}

static int worker(void *arg)
{
    int d = (int)(intptr_t)arg;
    uint64_t seed = (uint64_t)d + 10;

    OK(cudaSetDevice(d));
    for (int i = 0; i < 200; i++) {
        size_t n = 1 + bt_random(&seed) % 200000;
        void *p;

        OK(cudaMalloc(&p, n));
        TRY(device_of(p, d));
        OK(cudaMemset(p, d * 100 + i % 100, n));
        TRY(bt_verify(p, n, d * 100 + i % 100));
        OK(cudaFree(p));
    }
    return 0;
}

BT_TEST(two_threads)
{
    struct bt_thread t[2];

    TRY(bt_devices(2));
    for (int d = 0; d < 2; d++)
        TRY(bt_thread_start(&t[d], worker, (void *)(intptr_t)d));
    for (int d = 0; d < 2; d++)
        TRY(bt_thread_join(&t[d]));
    return 0;
}

#define BUSY_S 30

struct busy {
    int end;
    bool ended; /* as it was told; else it gave up */
};

static void CUDART_CB busy_fn(void *arg)
{
    struct busy *busy = (struct busy *)arg;
    const uint64_t limit = bt_ns() + BUSY_S * 1000000000ull;

    while (!(busy->ended = __atomic_load_n(&busy->end, __ATOMIC_ACQUIRE)) && bt_ns() < limit)
        bt_nap(1000);
}

/* A busy device 1 does not hold up a free on device 0, natively and with the pool: it is busy until after the free. */
BT_TEST(busy_other)
{
    struct busy busy = {0};
    cudaStream_t s;
    void *p;

    TRY(bt_devices(2));
    OK(cudaSetDevice(0));
    OK(cudaMalloc(&p, 1 << 20));
    OK(cudaSetDevice(1));
    OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    OK(cudaLaunchHostFunc(s, busy_fn, &busy));
    OK(cudaSetDevice(0));
    OK(cudaFree(p));
    __atomic_store_n(&busy.end, 1, __ATOMIC_RELEASE);
    OK(cudaSetDevice(1));
    OK(cudaStreamSynchronize(s));
    OK(cudaStreamDestroy(s));
    OK(cudaSetDevice(0));
    CHECK(busy.ended);
    return 0;
}

BT_TEST(reset_one)
{
    void *p[2];

    TRY(bt_devices(2));
    for (int round = 0; round < 3; round++) {
        for (int d = 0; d < 2; d++) {
            OK(cudaSetDevice(d));
            OK(cudaMalloc(&p[d], 1 << 20));
            TRY(bt_fill(p[d], 1 << 20, d + 1));
        }
        OK(cudaDeviceReset()); /* device 1 */
        OK(cudaSetDevice(0));
        TRY(bt_verify(p[0], 1 << 20, 1));
        EXPECT(cudaFree(p[1]), cudaErrorInvalidValue);
        LAST(cudaErrorInvalidValue);
        OK(cudaFree(p[0]));
        OK(cudaSetDevice(1));
        TRY(bt_usable(1 << 20));
        OK(cudaSetDevice(0));
    }
    return 0;
}

BT_TEST(reset_current)
{
    for (int round = 0; round < 3; round++) {
        void *p;

        OK(cudaMalloc(&p, 3 << 20));
        TRY(bt_fill(p, 3 << 20, 9));
        OK(cudaDeviceReset());
        TRY(bt_usable(3 << 20));
        TRY(bt_usable(100));
    }
    return 0;
}

/* A reset with work in flight and blocks that wait to be reused. */
BT_TEST(reset_busy)
{
    cudaStream_t s;
    void *p, *q;

    OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    OK(cudaMalloc(&p, 1 << 20));
    OK(cudaMalloc(&q, 1 << 20));
    TRY(bt_slow(s, 20000));
    OK(cudaMemcpyAsync(q, p, 1 << 20, cudaMemcpyDeviceToDevice, s));
    OK(cudaFree(p));
    OK(cudaDeviceReset());
    return bt_usable(1 << 20);
}

/* An error of device 1, seen while device 0 is current, is not device 0's. The last test: device 1 does not recover. */
#define NO_TEXTURE 99999

BT_TEST(error_elsewhere)
{
    int (*fetch)(void *, unsigned long long, unsigned long long, size_t) =
        (int (*)(void *, unsigned long long, unsigned long long, size_t))bt_driver("simgpu_fetch");
    cudaStream_t s, far;
    void *p, *q, *to;

    TRY(bt_devices(2));
    if (!fetch)
        SKIP("the error is one of a simulated GPU");
    OK(cudaSetDevice(1));
    OK(cudaMalloc(&to, 4096));
    OK(cudaStreamCreateWithFlags(&far, cudaStreamNonBlocking));
    OK(cudaSetDevice(0));
    OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    OK(cudaMalloc(&p, 3 << 20));
    OK(cudaMalloc(&q, 3 << 20));
    OK(fetch(far, NO_TEXTURE, BT_ADDRESS(to), 4096));
    EXPECT(cudaStreamSynchronize(far), cudaErrorIllegalAddress);
    OK(cudaFreeAsync(p, s));
    OK(cudaStreamSynchronize(s));
    EXPECT(cudaFree(p), cudaErrorInvalidValue);
    EXPECT(cudaMemcpyAsync(q, to, 4096, cudaMemcpyDeviceToDevice, far), cudaErrorIllegalAddress);
    OK(cudaFreeAsync(q, s));
    OK(cudaStreamSynchronize(s));
    EXPECT(cudaFree(q), cudaErrorInvalidValue);
    (void)cudaGetLastError();
    TRY(bt_usable(3 << 20));
    OK(cudaStreamDestroy(s));
    return 0;
}
