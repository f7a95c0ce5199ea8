/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels.h - the decoder's kernels as its operations call them: one struct of arguments and one function for each.
 *
 * Here: the interface of kernels.cu, which nvcc compiles for GPUs and kernels_host.c for the host. A launch only
 * enqueues. The structs list pointers first, all of them to device memory; no kernel reads what it writes but
 * optimizer.
 *
 * Not here: aware of who allocates. Each sum has a fixed order, so equal inputs give equal bits.
 *
 * Threads: any, on streams of their current device.
 */
#ifndef DECODER_KERNELS_H
#define DECODER_KERNELS_H

#include <cuda_runtime_api.h>
#include <stddef.h>

#define THREADS 128 /* of a block, in each kernel */

/* Blocks. In y and z a GPU allows 65535. */
struct grid {
    unsigned x, y, z;
};

/* How a matrix lies in memory: element (row, col) of head `head` of batch `batch`. One of row and col is 1. */
struct layout {
    size_t batch, head, row, col;
};

/* c = alpha * a b + bias, m x k times k x n, for each of `heads` heads of grid.z / heads batches. */
struct gemm {
    float *c;
    const float *a, *b, *bias; /* bias: n floats, or NULL */
    int m, n, k, heads;
    struct layout la, lb, lc;
    float alpha;
};

/* y = sum of the token's and the position's vectors. Blocks: one for each row of y. */
struct embed {
    float *y;
    const float *words, *positions;
    const int *tokens;
    int seq, width;
};

/* Gradient of words: row v is the sum of dy's rows at[first[v]] ... at[first[v + 1] - 1]. Blocks: one for each v. */
struct embed_words {
    float *grad;
    const float *dy;
    const int *first, *at;
    int width;
};

/* Gradient of positions: row i is the sum of dy's row i of each sequence. Blocks: one for each i. */
struct embed_positions {
    float *grad;
    const float *dy;
    int batch, seq, width;
};

/* y = (x - mean) / deviation * gain + shift; stats: mean and 1 / deviation of each row. Blocks: rows. */
struct norm {
    float *y, *stats;
    const float *x, *gain, *shift;
    int width;
};

/* dx, and dy times the normalised x, which summed over rows is the gradient of gain. Blocks: rows. */
struct norm_back {
    float *dx, *scaled;
    const float *dy, *x, *stats, *gain;
    int width;
};

/* Row i of each head keeps columns up to i, scaled and normalised; the others become 0. Blocks: rows. */
struct softmax {
    float *y;
    const float *x;
    int seq;
    float scale;
};

struct softmax_back {
    float *dx;
    const float *dy, *y;
    int seq;
    float scale;
};

/* Each token's loss, and the gradient of their mean. Blocks: rows. */
struct entropy {
    float *losses, *dx;
    const float *x;
    const int *targets;
    int words;
    float share; /* 1 / rows */
};

/* Sums of columns over `rows` rows, of which block y takes a share: parts has grid.y rows. Blocks x: 32 columns. */
struct columns {
    float *parts;
    const float *x;
    int rows, width;
};

/* One thread for each of n elements. */
struct add {
    float *y;
    const float *a, *b;
    size_t n;
};

struct gelu {
    float *y;
    const float *x;
    size_t n;
};

struct gelu_back {
    float *dx;
    const float *dy, *x;
    size_t n;
};

/* AdamW: value, first and second moment are updated in place. */
struct optimizer {
    float *value, *first, *second;
    const float *grad;
    size_t n;
    float scale;        /* of grad: 1 / ranks */
    float rate, decay;  /* learning rate, weight decay */
    float fix_1, fix_2; /* 1 - beta ^ step, of both moments */
};

#ifdef __cplusplus
extern "C" {
#endif
cudaError_t launch_gemm(cudaStream_t stream, struct grid grid, const struct gemm *args);
cudaError_t launch_embed(cudaStream_t stream, struct grid grid, const struct embed *args);
cudaError_t launch_embed_words(cudaStream_t stream, struct grid grid, const struct embed_words *args);
cudaError_t launch_embed_positions(cudaStream_t stream, struct grid grid, const struct embed_positions *args);
cudaError_t launch_norm(cudaStream_t stream, struct grid grid, const struct norm *args);
cudaError_t launch_norm_back(cudaStream_t stream, struct grid grid, const struct norm_back *args);
cudaError_t launch_softmax(cudaStream_t stream, struct grid grid, const struct softmax *args);
cudaError_t launch_softmax_back(cudaStream_t stream, struct grid grid, const struct softmax_back *args);
cudaError_t launch_entropy(cudaStream_t stream, struct grid grid, const struct entropy *args);
cudaError_t launch_columns(cudaStream_t stream, struct grid grid, const struct columns *args);
cudaError_t launch_add(cudaStream_t stream, struct grid grid, const struct add *args);
cudaError_t launch_gelu(cudaStream_t stream, struct grid grid, const struct gelu *args);
cudaError_t launch_gelu_back(cudaStream_t stream, struct grid grid, const struct gelu_back *args);
cudaError_t launch_optimizer(cudaStream_t stream, struct grid grid, const struct optimizer *args);
#ifdef __cplusplus
}
#endif

#endif
