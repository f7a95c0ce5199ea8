/* SPDX-License-Identifier: Apache-2.0 */
/*
 * blocks.c - a block of the decoder: norm, attention, norm, two linear layers with GELU between them.
 *
 * Here: the order of operations, and which buffer lives until when. The way forward keeps what the way back
 * needs, and gives the rest back at once; the way back gives each buffer back after its last use.
 *
 * Not here: aware of kernels.
 *
 * Threads: see decoder.h.
 */
#include "decoder.h"

#include <string.h>

float *block_forward(struct rank *r, const struct sizes *s, const struct param *p, struct saved *saved, float *x)
{
    int rows = s->rows, width = s->width;
    size_t n = (size_t)rows * (size_t)width;
    struct saved b = {.x = x};
    float *out, *y;

    b.norm1 = op_norm(r, x, p[NORM1_GAIN].value, p[NORM1_SHIFT].value, rows, width, &b.stats1);
    b.qkv = op_linear(r, b.norm1, p[QKV_WEIGHT].value, p[QKV_BIAS].value, rows, width, 3 * width);
    b.mixed = op_attention(r, s, b.qkv, &b.share);
    out = op_linear(r, b.mixed, p[PROJECT_WEIGHT].value, p[PROJECT_BIAS].value, rows, width, width);
    b.middle = op_add(r, x, out, n);
    op_give(r, out);

    b.norm2 = op_norm(r, b.middle, p[NORM2_GAIN].value, p[NORM2_SHIFT].value, rows, width, &b.stats2);
    b.wide = op_linear(r, b.norm2, p[WIDE_WEIGHT].value, p[WIDE_BIAS].value, rows, width, 4 * width);
    b.bent = op_gelu(r, b.wide, 4 * n);
    out = op_linear(r, b.bent, p[NARROW_WEIGHT].value, p[NARROW_BIAS].value, rows, 4 * width, width);
    y = op_add(r, b.middle, out, n);
    op_give(r, out);
    *saved = b;
    return y;
}

/* linear_back and norm_back give back what they were the last to read, and put gradients into p[0] and p[1]. */
static float *linear_back(struct rank *r, float *dy, float *x, struct param *p, int rows, int in, int out)
{
    float *grads[2], *dx = op_linear_back(r, dy, x, p[0].value, rows, in, out, grads, 1);

    p[0].grad = grads[0];
    p[1].grad = grads[1];
    op_give(r, x);
    return dx;
}

static float *norm_back(struct rank *r, float *dy, float *x, float *stats, struct param *p, int rows, int width)
{
    float *grads[2], *dx = op_norm_back(r, dy, x, stats, p[0].value, rows, width, grads);

    p[0].grad = grads[0];
    p[1].grad = grads[1];
    op_give(r, dy);
    op_give(r, stats);
    op_give(r, x);
    return dx;
}

/* The gradient goes round a part of the block and through it. Both ways end here. */
static float *join(struct rank *r, float *round, float *through, size_t n)
{
    float *sum = op_add(r, round, through, n);

    op_give(r, round);
    op_give(r, through);
    return sum;
}

float *block_back(struct rank *r, const struct sizes *s, struct param *p, struct saved *saved, float *dy)
{
    int rows = s->rows, width = s->width;
    size_t n = (size_t)rows * (size_t)width;
    struct saved b = *saved;
    float *dbent, *dwide, *dnorm, *dmixed, *dqkv;

    dbent = linear_back(r, dy, b.bent, &p[NARROW_WEIGHT], rows, 4 * width, width);
    dwide = op_gelu_back(r, dbent, b.wide, 4 * n);
    op_give(r, dbent);
    op_give(r, b.wide);
    dnorm = linear_back(r, dwide, b.norm2, &p[WIDE_WEIGHT], rows, width, 4 * width);
    op_give(r, dwide);
    dy = join(r, dy, norm_back(r, dnorm, b.middle, b.stats2, &p[NORM2_GAIN], rows, width), n);

    dmixed = linear_back(r, dy, b.mixed, &p[PROJECT_WEIGHT], rows, width, width);
    dqkv = op_attention_back(r, s, dmixed, b.qkv, b.share);
    op_give(r, dmixed);
    op_give(r, b.share);
    op_give(r, b.qkv);
    dnorm = linear_back(r, dqkv, b.norm1, &p[QKV_WEIGHT], rows, width, 3 * width);
    op_give(r, dqkv);
    dy = join(r, dy, norm_back(r, dnorm, b.x, b.stats1, &p[NORM1_GAIN], rows, width), n);
    memset(saved, 0, sizeof(*saved));
    return dy;
}
