/* SPDX-License-Identifier: Apache-2.0 */
/*
 * basic.c - cudaMalloc and cudaFree as every program uses them.
 *
 * The tests check results, error codes, the last error, alignment, and contents over the whole length. Work in flight
 * is in order.c, wrong frees are in free_errors.c.
 */
#include "behaviour.h"

BT_TEST(zero)
{
    void *p = (void *)1;

    OK(cudaMalloc(&p, 0));
    CHECK(p == NULL);
    LAST(cudaSuccess);
    return 0;
}

BT_TEST(null_argument)
{
    EXPECT(cudaMalloc((void **)NULL, 16), cudaErrorInvalidValue);
    LAST(cudaErrorInvalidValue);
    LAST(cudaSuccess);
    return 0;
}

BT_TEST(huge)
{
    void *p = NULL;

    EXPECT(cudaMalloc(&p, (size_t)1 << 60), cudaErrorMemoryAllocation);
    EXPECT(cudaPeekAtLastError(), cudaErrorMemoryAllocation);
    LAST(cudaErrorMemoryAllocation);
    LAST(cudaSuccess);
    EXPECT(cudaMalloc(&p, ~(size_t)0), cudaErrorMemoryAllocation);
    LAST(cudaErrorMemoryAllocation);
    return bt_usable(4096);
}

/* A call that succeeds does not clear what an earlier one left behind. */
BT_TEST(last_error_kept)
{
    void *p = NULL;

    EXPECT(cudaMalloc(&p, (size_t)1 << 60), cudaErrorMemoryAllocation);
    OK(cudaMalloc(&p, 4096));
    EXPECT(cudaPeekAtLastError(), cudaErrorMemoryAllocation);
    OK(cudaFree(p));
    EXPECT(cudaPeekAtLastError(), cudaErrorMemoryAllocation);
    LAST(cudaErrorMemoryAllocation);
    LAST(cudaSuccess);
    return 0;
}

BT_TEST(alignment)
{
    static const size_t sizes[] = {
        1,       2, 255, 256, 257, 511, 512, 513, 1000, 4095, 4097, 1u << 20, (1u << 20) + 1, 2u << 20, (2u << 20) + 1,
        3u << 20};

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        void *p = NULL;

        OK(cudaMalloc(&p, sizes[i]));
        CHECK(p && (uintptr_t)p % 256 == 0);
        CHECK(!bt_preloaded() || (uintptr_t)p % 512 == 0);
        OK(cudaFree(p));
    }
    return 0;
}

/* Sizes from 1 byte up: the first, middle and last part hold what was written. */
BT_TEST(writable)
{
    size_t max = bt_max_mem() < 256 * BT_MIB ? bt_max_mem() : 256 * BT_MIB;

    for (size_t n = 1; n <= max; n = n < 64 ? n * 2 + 1 : n * 4 - 3) {
        size_t part = n < 64 * BT_KIB ? n : 64 * BT_KIB;
        char *p = NULL;

        OK(cudaMalloc((void **)&p, n));
        TRY(bt_fill(p, n, (int)(n % 251)));
        TRY(bt_verify(p, part, (int)(n % 251)));
        TRY(bt_verify(p + (n - part) / 2, part, (int)(n % 251)));
        TRY(bt_verify(p + n - part, part, (int)(n % 251)));
        OK(cudaFree(p));
    }
    return 0;
}

BT_TEST(writable_256m)
{
    size_t n = 256 * BT_MIB;
    char *p = NULL;

    if (bt_max_mem() < n)
        SKIP("BEHAVIOUR_MAX_MEM");
    OK(cudaMalloc((void **)&p, n));
    TRY(bt_fill(p, n, 0x11));
    OK(cudaMemset(p + n - 1, 0x22, 1));
    TRY(bt_verify(p + n - 1, 1, 0x22));
    TRY(bt_verify(p + n - 4097, 4096, 0x11));
    TRY(bt_verify(p, 4096, 0x11));
    OK(cudaFree(p));
    return 0;
}

#define BLOCKS 400

/* Many live blocks of mixed sizes: each keeps its own pattern. */
BT_TEST(disjoint)
{
    static char *p[BLOCKS];
    static size_t n[BLOCKS];
    uint64_t seed = 1;

    for (int i = 0; i < BLOCKS; i++) {
        n[i] = 1 + bt_random(&seed) % (i % 20 ? 20000 : 3000000);
        OK(cudaMalloc((void **)&p[i], n[i]));
        OK(cudaMemset(p[i], i, n[i]));
    }
    OK(cudaDeviceSynchronize());
    for (int i = 0; i < BLOCKS; i++) {
        for (int j = 0; j < i; j++)
            CHECK(p[i] + n[i] <= p[j] || p[j] + n[j] <= p[i]);
        TRY(bt_verify(p[i], n[i], i));
    }
    for (int i = 0; i < BLOCKS; i++)
        OK(cudaFree(p[(i * 7) % BLOCKS]));
    return 0;
}

/* Freed and had again many times, in an order that splits and merges. */
BT_TEST(churn)
{
    static char *p[64];
    static size_t n[64];
    uint64_t seed = 2;

    for (int i = 0; i < 1500; i++) {
        int k = (int)(bt_random(&seed) % 64);

        if (p[k]) {
            TRY(bt_verify(p[k] + n[k] - 1, 1, k));
            OK(cudaFree(p[k]));
        }
        n[k] = 1 + bt_random(&seed) % (1u << (8 + bt_random(&seed) % 15));
        OK(cudaMalloc((void **)&p[k], n[k]));
        OK(cudaMemset(p[k], k, n[k]));
    }
    for (int k = 0; k < 64; k++) {
        if (p[k])
            TRY(bt_verify(p[k], n[k], k));
        OK(cudaFree(p[k]));
    }
    LAST(cudaSuccess);
    return 0;
}
