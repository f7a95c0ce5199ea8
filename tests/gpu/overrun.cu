/* SPDX-License-Identifier: Apache-2.0 */
/*
 * overrun.cu - writes one element behind a block of device memory, or into one that was freed; for tests/gpu/sanitizer.
 *
 * overrun [SIZE [freed]]: SIZE bytes a block, default 4000. The blocks around it are live, so that nothing but bookkeeping of the
 * driver's allocations can tell.
 */
#include <cstdio>
#include <cstdlib>

__global__ void poke(char *at)
{
    *at = 1;
}

int main(int argc, char **argv)
{
    const size_t size = argc > 1 ? strtoull(argv[1], NULL, 0) : 4000;
    char *block[3];

    for (int i = 0; i < 3; i++)
        if (cudaMalloc(&block[i], size) != cudaSuccess)
            return 2;
    poke<<<1, 1>>>(block[0]);
    cudaDeviceSynchronize();
    cudaFree(block[0]);
    /* One a run: nothing works after it. */
    poke<<<1, 1>>>(argc > 2 ? block[0] : block[1] + size);
    cudaDeviceSynchronize();
    for (int i = 1; i < 3; i++)
        cudaFree(block[i]);
    puts("done");
    return 0;
}
