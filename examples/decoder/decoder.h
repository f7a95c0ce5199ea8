/* SPDX-License-Identifier: Apache-2.0 */
/*
 * decoder.h - what the decoder's files share: its sizes, a rank's state, and errors that end the program.
 *
 * Here: operations (ops.c) and the model made of them (model.c, blocks.c). Each operation takes its output with
 * cudaMalloc and enqueues its kernel; what is no longer needed is given back with cudaFree, at once.
 *
 * Not here: a cache of memory. That is what the program is to show.
 *
 * Threads: a rank belongs to one thread, which has made its device current.
 */
#ifndef DECODER_H
#define DECODER_H

#include "kernels.h"

#include <nccl.h>
#include <stddef.h>
#include <stdint.h>

struct sizes {
    int layers, width, heads, seq, batch, words;
    int rows; /* batch * seq */
};

struct rank {
    int rank, ranks;
    cudaStream_t stream;
    ncclComm_t comm;        /* NULL if there is one rank */
    unsigned long requests; /* of memory, and its returns */
    double seconds;         /* in them */
};

/* A statement, and why it failed. */
__attribute__((noreturn)) void decoder_fail(const char *file, int line, const char *what, const char *why);
double decoder_now(void);

#define CUDA(call)                                                                                                     \
    do {                                                                                                               \
        cudaError_t error_ = (call);                                                                                   \
        if (error_)                                                                                                    \
            decoder_fail(__FILE__, __LINE__, #call, cudaGetErrorString(error_));                                       \
    } while (0)
#define NCCL(call)                                                                                                     \
    do {                                                                                                               \
        ncclResult_t error_ = (call);                                                                                  \
        if (error_)                                                                                                    \
            decoder_fail(__FILE__, __LINE__, #call, ncclGetErrorString(error_));                                       \
    } while (0)

/* ops.c: memory. */
void *op_take(struct rank *r, size_t bytes);
void op_give(struct rank *r, void *p);
void *op_upload(struct rank *r, const void *from,
                size_t bytes); /* from stays unchanged until the stream is waited for */

/* ops.c: operations. The caller owns what they return. */
float *op_add(struct rank *r, const float *a, const float *b, size_t n);
float *op_gelu(struct rank *r, const float *x, size_t n);
float *op_gelu_back(struct rank *r, const float *dy, const float *x, size_t n);
float *op_columns(struct rank *r, const float *x, int rows, int width);
float *op_norm(struct rank *r, const float *x, const float *gain, const float *shift, int rows, int width,
               float **stats);
/* grads: of gain and of shift. */
float *op_norm_back(struct rank *r, const float *dy, const float *x, const float *stats, const float *gain, int rows,
                    int width, float *grads[2]);
float *op_linear(struct rank *r, const float *x, const float *weight, const float *bias, int rows, int in, int out);
/* grads: of weight and of bias. dx may be NULL: it is not needed; grads[1] is only made if has_bias. */
float *op_linear_back(struct rank *r, const float *dy, const float *x, const float *weight, int rows, int in, int out,
                      float *grads[2], int has_bias);
/* qkv: rows of query, key and value; *share: what each position takes from each other one, needed by the way back. */
float *op_attention(struct rank *r, const struct sizes *s, const float *qkv, float **share);
float *op_attention_back(struct rank *r, const struct sizes *s, const float *dy, const float *qkv, const float *share);
float *op_embed(struct rank *r, const struct sizes *s, const float *words, const float *positions, const int *tokens);
/* Each token's loss, and the gradient of their mean. */
float *op_entropy(struct rank *r, const struct sizes *s, const float *logits, const int *targets, float **dlogits);

/* model.c */
struct param {
    float *value, *first, *second; /* the latter two: the optimizer's moments */
    float *grad;                   /* between backward and update */
    size_t n;
};

enum block_param {
    NORM1_GAIN,
    NORM1_SHIFT,
    QKV_WEIGHT,
    QKV_BIAS,
    PROJECT_WEIGHT,
    PROJECT_BIAS,
    NORM2_GAIN,
    NORM2_SHIFT,
    WIDE_WEIGHT,
    WIDE_BIAS,
    NARROW_WEIGHT,
    NARROW_BIAS,
    BLOCK_PARAMS
};

/* Kept by a block for its way back: of attention, then of the linear layers. */
struct saved {
    float *x, *norm1, *stats1, *qkv, *share, *mixed;
    float *middle, *norm2, *stats2, *wide, *bent;
};

struct model {
    struct sizes s;
    int params;
    struct param *param; /* words, positions, BLOCK_PARAMS of each block, the last norm's gain and shift, head */
    struct saved *saved; /* of each block */
    int *host;           /* this step's tokens, targets and where each word is */
};

void model_begin(struct model *m, struct rank *r, const struct sizes *s);
/* One step: the mean loss of all ranks. */
float model_step(struct model *m, struct rank *r, int step, float rate);
/* Depends on each bit of each parameter; ends the program if ranks disagree. */
uint64_t model_digest(struct model *m, struct rank *r);
void model_end(struct model *m, struct rank *r);

/* blocks.c: both take the last argument over; x is given back on the way back. */
float *block_forward(struct rank *r, const struct sizes *s, const struct param *p, struct saved *saved, float *x);
float *block_back(struct rank *r, const struct sizes *s, struct param *p, struct saved *saved, float *dy);

/* data.c: tokens that a model can learn to foretell; the same for each rank and step, whatever else is done. */
void data_fill(const struct sizes *s, int rank, int step, int *tokens, int *targets);
/* first[v] ... first[v + 1] - 1 are the elements of at that name the rows with word v, in order. */
void data_index(const struct sizes *s, const int *tokens, int *first, int *at);
float data_weight(uint64_t param, uint64_t i); /* between -1 and 1 */
uint64_t data_mix(uint64_t z);

#endif
