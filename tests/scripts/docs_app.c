/* SPDX-License-Identifier: Apache-2.0 */
/* docs_app.c - the ./app of the documentation's examples: it allocates, frees, and prints its rank. test_docs.py reads
 * in its trace that the pool served it. */
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>

int main(void)
{
    const char *rank = getenv("OMPI_COMM_WORLD_RANK");
    void *block;

    for (size_t n = 1; n < 1 << 24; n *= 4)
        if (cudaMalloc(&block, n) || cudaMemset(block, 0, n) || cudaFree(block))
            return 1;
    printf("app: rank %s\n", rank ? rank : "-");
    return 0;
}
