/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cancelled.c - a thread with a pending cancellation makes one call. Calls of CUDA are no cancellation points here, so
 * the call returns ("back" and its result), and the thread ends behind it. The next thread's call must not hang. Both
 * leave errno as it was; otherwise they say so.
 *
 *   cancelled CALL     alloc, free, exported (the free of a block that was exported), handle, host, populated, info,
 *                      reset, copies; of cupool.h: trim, pause, resume
 *
 * Exit code: 0; 1 for an error of CUDA; 5 for anything else.
 */
#include <cuda_runtime_api.h>

#include "../program.h"
#include "cupool.h"

static const char *what;
static void *block;

/* Every other operation of a simulated GPU starts late. */
static int copies(void)
{
    char host[100];
    int rc = 0;

    for (int i = 0; i < 20 && !rc; i++)
        rc = (int)cudaMemcpy(host, block, sizeof(host), cudaMemcpyDeviceToHost);
    return rc;
}

static int make(void)
{
    cudaIpcMemHandle_t handle;
    size_t free, total;
    void *p;

    if (strcmp(what, "alloc") == 0)
        return (int)cudaMalloc(&p, 3 << 20);
    if (strcmp(what, "free") == 0 || strcmp(what, "exported") == 0)
        return (int)cudaFree(block);
    if (strcmp(what, "handle") == 0)
        return (int)cudaIpcGetMemHandle(&handle, block);
    if (strcmp(what, "host") == 0)
        return (int)cudaMallocHost(&p, 100000);
    if (strcmp(what, "populated") == 0)
        return (int)cudaMallocHost(&p, 300 << 20);
    if (strcmp(what, "info") == 0)
        return (int)cudaMemGetInfo(&free, &total);
    if (strcmp(what, "reset") == 0)
        return (int)cudaDeviceReset();
    if (strcmp(what, "copies") == 0)
        return copies();
    if (strcmp(what, "trim") == 0)
        return cupool_trim(CUPOOL_ALL_DEVICES) < 0;
    if (strcmp(what, "pause") == 0)
        return cupool_pause(0, CUPOOL_KEEP);
    if (strcmp(what, "resume") == 0)
        return cupool_resume(0);
    exit(5);
}

static int call(void)
{
    int rc;

    errno = ENOTNAM;
    rc = make();
    if (errno != ENOTNAM)
        printf("errno %d\n", errno);
    return rc;
}

static void *cancelled(void *arg)
{
    int before, rc;

    OK(cudaFree(NULL)); /* the thread has a context */
    pthread_cancel(pthread_self());
    rc = call();
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    printf("back %d\n", rc);
    pthread_setcancelstate(before, NULL);
    pthread_testcancel();
    return NULL;
}

static void *another(void *arg)
{
    printf("another %d\n", call());
    return NULL;
}

static void in_a_thread(void *(*run)(void *))
{
    pthread_t thread;
    void *result;

    if (pthread_create(&thread, NULL, run, NULL) || pthread_join(thread, &result))
        exit(5);
    if (result == PTHREAD_CANCELED)
        puts("cancelled");
}

int main(int argc, char **argv)
{
    cudaIpcMemHandle_t handle;
    void *first;

    if (argc != 2)
        return 5;
    what = argv[1];
    alarm(50);
    setvbuf(stdout, NULL, _IOLBF, 0);
    OK(cudaMalloc(&first, 1000)); /* the second block begins no driver allocation */
    OK(cudaMalloc(&block, 1000));
    if (strcmp(what, "exported") == 0)
        OK(cudaIpcGetMemHandle(&handle, block));
    if (strcmp(what, "resume") == 0)
        OK(cupool_pause(0, CUPOOL_KEEP));
    in_a_thread(cancelled);
    in_a_thread(another);
    return 0;
}
