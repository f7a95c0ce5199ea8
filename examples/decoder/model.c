/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model.c - the decoder: parameters, a step of training, and the sum of gradients over ranks.
 *
 * Here: embedding, blocks, a last norm, a linear layer to words, cross entropy; back again; NCCL's all-reduce of
 * all gradients in one group; AdamW, which gives each gradient back.
 *
 * Not here: clever about when to reduce. Measure first.
 *
 * Threads: see decoder.h.
 */
#include "decoder.h"

#include <stdlib.h>
#include <string.h>

#define DECAY 0.01f

/* Parameters before and after those of the blocks. */
enum { WORDS, POSITIONS, BLOCKS };
enum { LAST_GAIN, LAST_SHIFT, HEAD, AFTER };

static struct param *block_of(struct model *m, int layer)
{
    return m->param + BLOCKS + (size_t)layer * BLOCK_PARAMS;
}

static struct param *last(struct model *m)
{
    return block_of(m, m->s.layers);
}

static void *host_take(size_t n, size_t size)
{
    void *p = calloc(n, size);

    if (!p)
        decoder_fail(__FILE__, __LINE__, "calloc", "out of memory");
    return p;
}

/* scale: of random values; 0: all are `value`. */
static void param_begin(struct model *m, struct rank *r, struct param *p, size_t n, float scale, float value)
{
    float *host = (float *)host_take(n, sizeof(*host));

    for (size_t i = 0; i < n; i++)
        host[i] = scale > 0 ? scale * data_weight((uint64_t)(p - m->param), i) : value;
    p->n = n;
    p->value = (float *)op_upload(r, host, n * sizeof(*host));
    p->first = (float *)op_take(r, n * sizeof(*host));
    p->second = (float *)op_take(r, n * sizeof(*host));
    CUDA(cudaMemsetAsync(p->first, 0, n * sizeof(*host), r->stream));
    CUDA(cudaMemsetAsync(p->second, 0, n * sizeof(*host), r->stream));
    CUDA(cudaStreamSynchronize(r->stream));
    free(host);
}

static void block_begin(struct model *m, struct rank *r, struct param *p)
{
    size_t width = (size_t)m->s.width;
    float scale = 0.035f; /* a deviation of 0.02 */

    param_begin(m, r, &p[NORM1_GAIN], width, 0, 1);
    param_begin(m, r, &p[NORM1_SHIFT], width, 0, 0);
    param_begin(m, r, &p[QKV_WEIGHT], 3 * width * width, scale, 0);
    param_begin(m, r, &p[QKV_BIAS], 3 * width, 0, 0);
    param_begin(m, r, &p[PROJECT_WEIGHT], width * width, scale, 0);
    param_begin(m, r, &p[PROJECT_BIAS], width, 0, 0);
    param_begin(m, r, &p[NORM2_GAIN], width, 0, 1);
    param_begin(m, r, &p[NORM2_SHIFT], width, 0, 0);
    param_begin(m, r, &p[WIDE_WEIGHT], 4 * width * width, scale, 0);
    param_begin(m, r, &p[WIDE_BIAS], 4 * width, 0, 0);
    param_begin(m, r, &p[NARROW_WEIGHT], 4 * width * width, scale, 0);
    param_begin(m, r, &p[NARROW_BIAS], width, 0, 0);
}

void model_begin(struct model *m, struct rank *r, const struct sizes *s)
{
    size_t width = (size_t)s->width, words = (size_t)s->words;

    m->s = *s;
    m->params = BLOCKS + s->layers * BLOCK_PARAMS + AFTER;
    m->param = (struct param *)host_take((size_t)m->params, sizeof(*m->param));
    m->host = (int *)host_take(3 * (size_t)s->rows + words + 1, sizeof(*m->host));
    m->saved = (struct saved *)host_take((size_t)s->layers, sizeof(*m->saved));
    param_begin(m, r, &m->param[WORDS], words * width, 0.035f, 0);
    param_begin(m, r, &m->param[POSITIONS], (size_t)s->seq * width, 0.035f, 0);
    for (int i = 0; i < s->layers; i++)
        block_begin(m, r, block_of(m, i));
    param_begin(m, r, &last(m)[LAST_GAIN], width, 0, 1);
    param_begin(m, r, &last(m)[LAST_SHIFT], width, 0, 0);
    param_begin(m, r, &last(m)[HEAD], width * words, 0.035f, 0);
}

/* This step's tokens on the device. */
struct batch {
    int *tokens, *targets, *first, *at;
};

static struct batch batch_take(struct model *m, struct rank *r, int step)
{
    size_t rows = (size_t)m->s.rows, words = (size_t)m->s.words;
    int *tokens = m->host, *targets = tokens + rows, *at = targets + rows, *first = at + rows;

    data_fill(&m->s, r->rank, step, tokens, targets);
    data_index(&m->s, tokens, first, at);
    return (struct batch){
        (int *)op_upload(r, tokens, rows * sizeof(int)), (int *)op_upload(r, targets, rows * sizeof(int)),
        (int *)op_upload(r, first, (words + 1) * sizeof(int)), (int *)op_upload(r, at, rows * sizeof(int))};
}

/* Embedding to cross entropy and back to the blocks' output. *loss: one float, this rank's mean. */
static float *head_step(struct model *m, struct rank *r, float *x, const int *targets, float **loss)
{
    int rows = m->s.rows, width = m->s.width;
    struct param *p = last(m);
    float *stats, *normal, *logits, *losses, *dlogits, *dnormal, *dx, *grads[2];

    normal = op_norm(r, x, p[LAST_GAIN].value, p[LAST_SHIFT].value, rows, width, &stats);
    logits = op_linear(r, normal, p[HEAD].value, NULL, rows, width, m->s.words);
    losses = op_entropy(r, &m->s, logits, targets, &dlogits);
    op_give(r, logits);
    *loss = op_columns(r, losses, rows, 1);
    op_give(r, losses);

    dnormal = op_linear_back(r, dlogits, normal, p[HEAD].value, rows, width, m->s.words, grads, 0);
    p[HEAD].grad = grads[0];
    op_give(r, dlogits);
    op_give(r, normal);
    dx = op_norm_back(r, dnormal, x, stats, p[LAST_GAIN].value, rows, width, grads);
    p[LAST_GAIN].grad = grads[0];
    p[LAST_SHIFT].grad = grads[1];
    op_give(r, dnormal);
    op_give(r, stats);
    op_give(r, x);
    return dx;
}

static void embed_back(struct model *m, struct rank *r, const struct batch *batch, const float *dx)
{
    struct param *p = m->param;
    const struct sizes *s = &m->s;
    struct embed_words words = {(float *)op_take(r, p[WORDS].n * sizeof(float)), dx, batch->first, batch->at, s->width};
    struct embed_positions positions = {(float *)op_take(r, p[POSITIONS].n * sizeof(float)), dx, s->batch, s->seq,
                                        s->width};

    CUDA(launch_embed_words(r->stream, (struct grid){(unsigned)s->words, 1, 1}, &words));
    CUDA(launch_embed_positions(r->stream, (struct grid){(unsigned)s->seq, 1, 1}, &positions));
    p[WORDS].grad = words.grad;
    p[POSITIONS].grad = positions.grad;
}

static void reduce(struct model *m, struct rank *r, float *loss)
{
    if (!r->comm)
        return;
    NCCL(ncclGroupStart());
    for (int i = 0; i < m->params; i++) {
        float *grad = m->param[i].grad;

        NCCL(ncclAllReduce(grad, grad, m->param[i].n, ncclFloat, ncclSum, r->comm, r->stream));
    }
    NCCL(ncclAllReduce(loss, loss, 1, ncclFloat, ncclSum, r->comm, r->stream));
    NCCL(ncclGroupEnd());
}

static void update(struct model *m, struct rank *r, int step, float rate)
{
    float power_1 = 1, power_2 = 1;

    for (int i = 0; i <= step; i++) {
        power_1 *= 0.9f;
        power_2 *= 0.95f;
    }
    for (int i = 0; i < m->params; i++) {
        struct param *p = &m->param[i];
        struct optimizer args = {p->value, p->first, p->second,   p->grad,    p->n, 1.0f / (float)r->ranks,
                                 rate,     DECAY,    1 - power_1, 1 - power_2};

        CUDA(launch_optimizer(r->stream, (struct grid){(unsigned)((p->n + THREADS - 1) / THREADS), 1, 1}, &args));
        op_give(r, p->grad);
        p->grad = NULL;
    }
}

float model_step(struct model *m, struct rank *r, int step, float rate)
{
    struct batch batch = batch_take(m, r, step);
    float *x = op_embed(r, &m->s, m->param[WORDS].value, m->param[POSITIONS].value, batch.tokens), *loss, mean;

    for (int i = 0; i < m->s.layers; i++)
        x = block_forward(r, &m->s, block_of(m, i), &m->saved[i], x);
    x = head_step(m, r, x, batch.targets, &loss);
    for (int i = m->s.layers - 1; i >= 0; i--)
        x = block_back(r, &m->s, block_of(m, i), &m->saved[i], x);
    embed_back(m, r, &batch, x);
    op_give(r, x);
    op_give(r, batch.tokens);
    op_give(r, batch.targets);
    op_give(r, batch.first);
    op_give(r, batch.at);
    reduce(m, r, loss);
    update(m, r, step, rate);
    CUDA(cudaMemcpyAsync(&mean, loss, sizeof(mean), cudaMemcpyDeviceToHost, r->stream));
    CUDA(cudaStreamSynchronize(r->stream));
    op_give(r, loss);
    return mean / (float)m->s.rows / (float)r->ranks;
}

static uint64_t digest_reduce(struct rank *r, uint64_t value, ncclRedOp_t op)
{
    uint64_t *device = (uint64_t *)op_upload(r, &value, sizeof(value));

    NCCL(ncclAllReduce(device, device, 1, ncclUint64, op, r->comm, r->stream));
    CUDA(cudaMemcpyAsync(&value, device, sizeof(value), cudaMemcpyDeviceToHost, r->stream));
    CUDA(cudaStreamSynchronize(r->stream));
    op_give(r, device);
    return value;
}

uint64_t model_digest(struct model *m, struct rank *r)
{
    uint64_t digest = 0;

    for (int k = 0; k < m->params; k++) {
        size_t bytes = m->param[k].n * sizeof(float);
        uint32_t *host = (uint32_t *)host_take(1, bytes);

        CUDA(cudaMemcpyAsync(host, m->param[k].value, bytes, cudaMemcpyDeviceToHost, r->stream));
        CUDA(cudaStreamSynchronize(r->stream));
        for (size_t i = 0; i < m->param[k].n; i++)
            digest = data_mix(digest + host[i] + 0x9e3779b97f4a7c15u);
        free(host);
    }
    if (r->comm && digest_reduce(r, digest, ncclMin) != digest_reduce(r, digest, ncclMax))
        decoder_fail(__FILE__, __LINE__, "parameters", "ranks disagree");
    return digest;
}

void model_end(struct model *m, struct rank *r)
{
    for (int i = 0; i < m->params; i++) {
        op_give(r, m->param[i].value);
        op_give(r, m->param[i].first);
        op_give(r, m->param[i].second);
    }
    free(m->param);
    free(m->saved);
    free(m->host);
}
