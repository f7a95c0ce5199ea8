/* SPDX-License-Identifier: Apache-2.0 */
/*
 * state.c - what is trained: tensors on the GPU of which a step changes each byte.
 *
 * Here: a step reads each tensor into memory that serves one operation, changes an eighth there, and writes the
 * halves back in each other's place. The state after a step therefore depends on each step before.
 *
 * Not here: arithmetic. There are no kernels, so that the binary also runs on simulated GPUs.
 *
 * Threads: the training one.
 */
#include "checkpoint.h"

#include <stdlib.h>

#define UNIT ((size_t)512)

/* Tensors of one, two and three parts. */
static size_t parts_of(int i)
{
    return 1 + (size_t)i % 3;
}

static size_t part_size(size_t bytes, int tensors)
{
    size_t parts = 1, size; /* one more, for the rest */

    for (int i = 0; i < tensors; i++)
        parts += parts_of(i);
    size = bytes / parts / UNIT * UNIT;
    return size ? size : UNIT;
}

void state_begin(struct state *s, size_t bytes, int tensors, int fresh)
{
    size_t part = part_size(bytes, tensors);

    *s = (struct state){.tensors = tensors};
    CUDA(cudaStreamCreateWithFlags(&s->compute, cudaStreamNonBlocking));
    for (int i = 0; i < tensors; i++) {
        struct tensor *t = &s->tensor[i];

        t->size = part * parts_of(i);
        s->bytes += t->size;
        CUDA(cudaMalloc((void **)&t->device, t->size));
        if (!fresh)
            CUDA(cudaMalloc((void **)&t->scratch, t->size));
        CUDA(cudaMemsetAsync(t->device, rank * TENSORS_MAX + i, t->size, s->compute));
    }
    CUDA(cudaStreamSynchronize(s->compute)); /* a checkpoint is loaded past this stream */
}

static void tensor_step(const struct state *s, int i, int step, int work, const cudaEvent_t *copied)
{
    const struct tensor *t = &s->tensor[i];
    size_t eighth = t->size / 8, half = t->size / 2;
    char *scratch = t->scratch;

    if (!scratch)
        CUDA(cudaMalloc((void **)&scratch, t->size));
    for (int k = 0; k <= work; k++)
        CUDA(cudaMemcpyAsync(scratch, t->device, t->size, cudaMemcpyDeviceToDevice, s->compute));
    CUDA(cudaMemsetAsync(scratch + (size_t)(step % 8) * eighth, step * 37 + i * 5 + rank, eighth, s->compute));
    if (copied)
        CUDA(cudaStreamWaitEvent(s->compute, copied[i], 0));
    CUDA(cudaMemcpyAsync(t->device, scratch + half, half, cudaMemcpyDeviceToDevice, s->compute));
    CUDA(cudaMemcpyAsync(t->device + half, scratch, half, cudaMemcpyDeviceToDevice, s->compute));
    if (!t->scratch)
        CUDA(cudaFree(scratch));
}

void state_step(struct state *s, int step, int work, const cudaEvent_t *copied)
{
    for (int i = 0; i < s->tensors; i++)
        tensor_step(s, i, step, work, copied);
}

uint64_t state_digest(const struct state *s)
{
    uint64_t sums[TENSORS_MAX];
    size_t largest = 1;
    void *host;

    for (int i = 0; i < s->tensors; i++)
        largest = s->tensor[i].size > largest ? s->tensor[i].size : largest;
    host = malloc(largest);
    if (!host)
        ranks_fail(__FILE__, __LINE__, "malloc", "out of memory");
    CUDA(cudaStreamSynchronize(s->compute));
    for (int i = 0; i < s->tensors; i++) {
        CUDA(cudaMemcpy(host, s->tensor[i].device, s->tensor[i].size, cudaMemcpyDeviceToHost));
        sums[i] = files_checksum(host, s->tensor[i].size);
    }
    free(host);
    return files_checksum(sums, (size_t)s->tensors * sizeof(sums[0]));
}

void state_end(struct state *s)
{
    for (int i = 0; i < s->tensors; i++) {
        CUDA(cudaFree(s->tensor[i].device));
        CUDA(cudaFree(s->tensor[i].scratch));
    }
    CUDA(cudaStreamDestroy(s->compute));
}
