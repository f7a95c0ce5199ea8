/* SPDX-License-Identifier: Apache-2.0 */
/* loaded.c - a library that allocates: when asked, or (LOADED_WAITS) from a thread that its constructor waits for. */
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdio.h>

__attribute__((visibility("default"))) int loaded_allocate(void **p, size_t n);

int loaded_allocate(void **p, size_t n)
{
    const cudaError_t rc = cudaMalloc(p, n); /* no tail call: who called is what it is about */

    if (rc)
        printf("refused: %d\n", (int)rc);
    return (int)rc;
}

#ifdef LOADED_WAITS
static void *thread_main(void *arg)
{
    void *p;

    printf("in the thread: %d\n", loaded_allocate(&p, 777));
    return NULL;
}

__attribute__((constructor)) static void start(void)
{
    pthread_t id;

    if (pthread_create(&id, NULL, thread_main, NULL) == 0)
        pthread_join(id, NULL);
}
#endif
