/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ops.c - the decoder's operations: memory for the output from cudaMalloc, then the kernel.
 *
 * Here: sizes and layouts for the kernels of kernels.cu. What an operation needs for itself alone it takes and
 * gives back, too.
 *
 * Not here: in place. Only the optimizer changes what is there.
 *
 * Threads: see decoder.h.
 */
#include "decoder.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define TILE    64 /* of kernels.cu's gemm */
#define COLUMNS 32 /* of its columns */
#define SHARES  16 /* rows of a sum of columns are added up in so many shares first */

void decoder_fail(const char *file, int line, const char *what, const char *why)
{
    (void)fprintf(stderr, "decoder: %s:%d: %s: %s\n", file, line, what, why);
    exit(1);
}

double decoder_now(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

void *op_take(struct rank *r, size_t bytes)
{
    double start = decoder_now();
    void *p;

    CUDA(cudaMalloc(&p, bytes));
    r->requests++;
    r->seconds += decoder_now() - start;
    return p;
}

void op_give(struct rank *r, void *p)
{
    double start = decoder_now();

    CUDA(cudaFree(p));
    r->requests++;
    r->seconds += decoder_now() - start;
}

void *op_upload(struct rank *r, const void *from, size_t bytes)
{
    void *p = op_take(r, bytes);

    CUDA(cudaMemcpyAsync(p, from, bytes, cudaMemcpyHostToDevice, r->stream));
    return p;
}

static float *floats(struct rank *r, size_t n)
{
    return (float *)op_take(r, n * sizeof(float));
}

static struct grid blocks_of(size_t n)
{
    return (struct grid){(unsigned)n, 1, 1};
}

static struct grid elements(size_t n)
{
    return blocks_of((n + THREADS - 1) / THREADS);
}

float *op_add(struct rank *r, const float *a, const float *b, size_t n)
{
    struct add args = {floats(r, n), a, b, n};

    CUDA(launch_add(r->stream, elements(n), &args));
    return args.y;
}

float *op_gelu(struct rank *r, const float *x, size_t n)
{
    struct gelu args = {floats(r, n), x, n};

    CUDA(launch_gelu(r->stream, elements(n), &args));
    return args.y;
}

float *op_gelu_back(struct rank *r, const float *dy, const float *x, size_t n)
{
    struct gelu_back args = {floats(r, n), dy, x, n};

    CUDA(launch_gelu_back(r->stream, elements(n), &args));
    return args.dx;
}

float *op_columns(struct rank *r, const float *x, int rows, int width)
{
    unsigned across = ((unsigned)width + COLUMNS - 1) / COLUMNS;
    struct columns shares = {floats(r, (size_t)SHARES * (size_t)width), x, rows, width};
    struct columns total = {floats(r, (size_t)width), shares.parts, SHARES, width};

    CUDA(launch_columns(r->stream, (struct grid){across, SHARES, 1}, &shares));
    CUDA(launch_columns(r->stream, (struct grid){across, 1, 1}, &total));
    op_give(r, shares.parts);
    return total.parts;
}

float *op_norm(struct rank *r, const float *x, const float *gain, const float *shift, int rows, int width,
               float **stats)
{
    struct norm args = {floats(r, (size_t)rows * (size_t)width), floats(r, 2 * (size_t)rows), x, gain, shift, width};

    CUDA(launch_norm(r->stream, blocks_of((size_t)rows), &args));
    *stats = args.stats;
    return args.y;
}

float *op_norm_back(struct rank *r, const float *dy, const float *x, const float *stats, const float *gain, int rows,
                    int width, float *grads[2])
{
    size_t n = (size_t)rows * (size_t)width;
    struct norm_back args = {floats(r, n), floats(r, n), dy, x, stats, gain, width};

    CUDA(launch_norm_back(r->stream, blocks_of((size_t)rows), &args));
    grads[0] = op_columns(r, args.scaled, rows, width);
    op_give(r, args.scaled);
    grads[1] = op_columns(r, dy, rows, width);
    return args.dx;
}

/* A matrix of its own, by rows, and the same one transposed. */
static struct layout by_rows(int width)
{
    return (struct layout){0, 0, (size_t)width, 1};
}

static struct layout by_columns(int width)
{
    return (struct layout){0, 0, 1, (size_t)width};
}

static void multiply(struct rank *r, const struct gemm *args, int batch)
{
    struct grid grid = {((unsigned)args->n + TILE - 1) / TILE, ((unsigned)args->m + TILE - 1) / TILE,
                        (unsigned)(batch * args->heads)};

    CUDA(launch_gemm(r->stream, grid, args));
}

float *op_linear(struct rank *r, const float *x, const float *weight, const float *bias, int rows, int in, int out)
{
    struct gemm args = {floats(r, (size_t)rows * (size_t)out),
                        x,
                        weight,
                        bias,
                        rows,
                        out,
                        in,
                        1,
                        by_rows(in),
                        by_rows(out),
                        by_rows(out),
                        1.0f};

    multiply(r, &args, 1);
    return args.c;
}

float *op_linear_back(struct rank *r, const float *dy, const float *x, const float *weight, int rows, int in, int out,
                      float *grads[2], int has_bias)
{
    struct gemm to_x = {floats(r, (size_t)rows * (size_t)in),
                        dy,
                        weight,
                        NULL,
                        rows,
                        in,
                        out,
                        1,
                        by_rows(out),
                        by_columns(out),
                        by_rows(in),
                        1.0f};
    struct gemm to_weight = {floats(r, (size_t)in * (size_t)out),
                             x,
                             dy,
                             NULL,
                             in,
                             out,
                             rows,
                             1,
                             by_columns(in),
                             by_rows(out),
                             by_rows(out),
                             1.0f};

    multiply(r, &to_x, 1);
    multiply(r, &to_weight, 1);
    grads[0] = to_weight.c;
    if (has_bias)
        grads[1] = op_columns(r, dy, rows, out);
    return to_x.c;
}

/* Of a query, key or value, and of what positions take from each other. */
static struct layout of_head(const struct sizes *s, int parts)
{
    size_t row = (size_t)parts * (size_t)s->width;

    return (struct layout){(size_t)s->seq * row, (size_t)(s->width / s->heads), row, 1};
}

static struct layout of_share(const struct sizes *s)
{
    size_t seq = (size_t)s->seq;

    return (struct layout){(size_t)s->heads * seq * seq, seq * seq, seq, 1};
}

static struct layout transposed(struct layout l)
{
    return (struct layout){l.batch, l.head, l.col, l.row};
}

/* c = a b of each head; inner: what is summed over. */
static void multiply_heads(struct rank *r, const struct sizes *s, float *c, struct layout lc, const float *a,
                           struct layout la, const float *b, struct layout lb, int n, int inner)
{
    struct gemm args = {c, a, b, NULL, s->seq, n, inner, s->heads, la, lb, lc, 1.0f};

    multiply(r, &args, s->batch);
}

static float attention_scale(const struct sizes *s)
{
    int head = s->width / s->heads;

    return 1.0f / sqrtf((float)head);
}

float *op_attention(struct rank *r, const struct sizes *s, const float *qkv, float **share)
{
    struct layout part = of_head(s, 3), all = of_share(s);
    int head = s->width / s->heads;
    size_t positions = (size_t)s->rows * (size_t)s->heads;
    float *scores = floats(r, positions * (size_t)s->seq), *y;
    struct softmax args = {NULL, scores, s->seq, attention_scale(s)};

    multiply_heads(r, s, scores, all, qkv, part, qkv + s->width, transposed(part), s->seq, head);
    args.y = floats(r, positions * (size_t)s->seq);
    CUDA(launch_softmax(r->stream, blocks_of(positions), &args));
    op_give(r, scores);
    y = floats(r, (size_t)s->rows * (size_t)s->width);
    multiply_heads(r, s, y, of_head(s, 1), args.y, all, qkv + 2 * (size_t)s->width, part, head, s->seq);
    *share = args.y;
    return y;
}

float *op_attention_back(struct rank *r, const struct sizes *s, const float *dy, const float *qkv, const float *share)
{
    struct layout part = of_head(s, 3), all = of_share(s), one = of_head(s, 1);
    int head = s->width / s->heads, width = s->width;
    size_t positions = (size_t)s->rows * (size_t)s->heads;
    float *dqkv = floats(r, 3 * (size_t)s->rows * (size_t)width), *dshare = floats(r, positions * (size_t)s->seq);
    struct softmax_back args = {NULL, dshare, share, s->seq, attention_scale(s)};

    multiply_heads(r, s, dqkv + 2 * (size_t)width, part, share, transposed(all), dy, one, head, s->seq);
    multiply_heads(r, s, dshare, all, dy, one, qkv + 2 * (size_t)width, transposed(part), s->seq, head);
    args.dx = floats(r, positions * (size_t)s->seq);
    CUDA(launch_softmax_back(r->stream, blocks_of(positions), &args));
    op_give(r, dshare);
    multiply_heads(r, s, dqkv, part, args.dx, all, qkv + width, part, head, s->seq);
    multiply_heads(r, s, dqkv + width, part, args.dx, transposed(all), qkv, part, head, s->seq);
    op_give(r, args.dx);
    return dqkv;
}

float *op_embed(struct rank *r, const struct sizes *s, const float *words, const float *positions, const int *tokens)
{
    struct embed args = {floats(r, (size_t)s->rows * (size_t)s->width), words, positions, tokens, s->seq, s->width};

    CUDA(launch_embed(r->stream, blocks_of((size_t)s->rows), &args));
    return args.y;
}

float *op_entropy(struct rank *r, const struct sizes *s, const float *logits, const int *targets, float **dlogits)
{
    struct entropy args = {
        floats(r, (size_t)s->rows), floats(r, (size_t)s->rows * (size_t)s->words), logits, targets, s->words,
        1.0f / (float)s->rows};

    CUDA(launch_entropy(r->stream, blocks_of((size_t)s->rows), &args));
    *dlogits = args.dx;
    return args.losses;
}
