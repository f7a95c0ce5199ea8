/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels.cu - the decoder's kernels.
 *
 * Here: plain kernels of 128 threads, in single precision. The product of matrices goes by tiles of 64 x 64 in
 * shared memory, of which a thread computes 8 x 4 in registers. kernels_host.c compiles this file for the host;
 * target.h has the words that make that possible.
 *
 * Not here: a contest with cuBLAS.
 *
 * Threads: see kernels.h.
 */
#include "target.h"

#define TILE      64
#define DEPTH     16
#define PADDED    (TILE + 4) /* keeps rows apart in the banks of shared memory, and aligned for loads of 16 bytes */
#define ROWS_EACH 8
#define COLS_EACH 4
#define ACROSS    (TILE / COLS_EACH)
#define LARGE     3.0e38f
#define COLUMNS   32
#define LANES     (THREADS / COLUMNS)

/* A tile of TILE x DEPTH elements from (row, depth) on, as [depth][row]; zeros past the end. Neighbouring threads read
 * neighbouring addresses, along rows or along depth. */
DEVICE void tile_load(int t, float (*tile)[PADDED], const float *from, size_t along_row, size_t along_depth, int row,
                      int depth, int rows, int depths)
{
    UNROLL
    for (int i = t; i < TILE * DEPTH; i += THREADS) {
        int r = along_depth == 1 ? i / DEPTH : i % TILE;
        int d = along_depth == 1 ? i % DEPTH : i / TILE;
        int inside = row + r < rows && depth + d < depths;

        tile[d][r] = inside ? from[(size_t)(row + r) * along_row + (size_t)(depth + d) * along_depth] : 0.0f;
    }
}

DEVICE void tile_multiply(int t, float (*acc)[COLS_EACH], float (*at)[PADDED], float (*bt)[PADDED])
{
    int row = t / ACROSS * ROWS_EACH, col = t % ACROSS * COLS_EACH;

    UNROLL
    for (int d = 0; d < DEPTH; d++) {
        float left[ROWS_EACH], right[COLS_EACH];

        UNROLL
        for (int i = 0; i < ROWS_EACH; i++)
            left[i] = at[d][row + i];
        UNROLL
        for (int j = 0; j < COLS_EACH; j++)
            right[j] = bt[d][col + j];
        UNROLL
        for (int i = 0; i < ROWS_EACH; i++) {
            UNROLL
            for (int j = 0; j < COLS_EACH; j++)
                acc[i][j] += left[i] * right[j];
        }
    }
}

DEVICE void tile_store(int t, const struct gemm *a, float *c, float (*acc)[COLS_EACH], int row, int col)
{
    row += t / ACROSS * ROWS_EACH;
    col += t % ACROSS * COLS_EACH;
    UNROLL
    for (int i = 0; i < ROWS_EACH; i++) {
        UNROLL
        for (int j = 0; j < COLS_EACH; j++)
            if (row + i < a->m && col + j < a->n)
                c[(size_t)(row + i) * a->lc.row + (size_t)(col + j) * a->lc.col] =
                    a->alpha * acc[i][j] + (a->bias ? a->bias[col + j] : 0.0f);
    }
}

KERNEL(gemm)
{
    SHARED float at[DEPTH][PADDED], bt[DEPTH][PADDED];
    float acc[OWN][ROWS_EACH][COLS_EACH];
    int batch = block_z / a.heads, head = block_z % a.heads, row = block_y * TILE, col = block_x * TILE;
    const float *from_a = a.a + batch * a.la.batch + head * a.la.head;
    const float *from_b = a.b + batch * a.lb.batch + head * a.lb.head;

    EACH_THREAD(t)
    {
        UNROLL
        for (int i = 0; i < ROWS_EACH; i++) {
            UNROLL
            for (int j = 0; j < COLS_EACH; j++)
                acc[OF(t)][i][j] = 0.0f;
        }
    }
    for (int depth = 0; depth < a.k; depth += DEPTH) {
        EACH_THREAD(t)
        {
            tile_load(t, at, from_a, a.la.row, a.la.col, row, depth, a.m, a.k);
            tile_load(t, bt, from_b, a.lb.col, a.lb.row, col, depth, a.n, a.k);
        }
        SYNC();
        EACH_THREAD(t)
        tile_multiply(t, acc[OF(t)], at, bt);
        SYNC();
    }
    EACH_THREAD(t)
    tile_store(t, &a, a.c + batch * a.lc.batch + head * a.lc.head, acc[OF(t)], row, col);
}

/* All threads' values become one, in [0], in the order of a tree. */
DEVICE void block_sum(float *s)
{
    SYNC();
    for (int half = THREADS / 2; half > 0; half /= 2) {
        EACH_THREAD(t)
        if (t < half)
            s[t] += s[t + half];
        SYNC();
    }
}

DEVICE void block_max(float *s)
{
    SYNC();
    for (int half = THREADS / 2; half > 0; half /= 2) {
        EACH_THREAD(t)
        if (t < half)
            s[t] = fmaxf(s[t], s[t + half]);
        SYNC();
    }
}

KERNEL(embed)
{
    size_t row = (size_t)block_x;
    const float *word = a.words + (size_t)a.tokens[row] * a.width;
    const float *position = a.positions + row % a.seq * a.width;

    EACH_THREAD(t)
    for (int i = t; i < a.width; i += THREADS)
        a.y[row * a.width + i] = word[i] + position[i];
}

KERNEL(embed_words)
{
    int first = a.first[block_x], end = a.first[block_x + 1];

    EACH_THREAD(t)
    for (int i = t; i < a.width; i += THREADS) {
        float sum = 0.0f;

        for (int k = first; k < end; k++)
            sum += a.dy[(size_t)a.at[k] * a.width + i];
        a.grad[(size_t)block_x * a.width + i] = sum;
    }
}

KERNEL(embed_positions)
{
    EACH_THREAD(t)
    for (int i = t; i < a.width; i += THREADS) {
        float sum = 0.0f;

        for (int b = 0; b < a.batch; b++)
            sum += a.dy[((size_t)b * a.seq + block_x) * a.width + i];
        a.grad[(size_t)block_x * a.width + i] = sum;
    }
}

KERNEL(norm)
{
    SHARED float sums[THREADS];
    const float *x = a.x + (size_t)block_x * a.width;
    float mean, inverse;

    EACH_THREAD(t)
    {
        float sum = 0.0f;

        for (int i = t; i < a.width; i += THREADS)
            sum += x[i];
        sums[t] = sum;
    }
    block_sum(sums);
    mean = sums[0] / (float)a.width;
    SYNC();
    EACH_THREAD(t)
    {
        float sum = 0.0f;

        for (int i = t; i < a.width; i += THREADS)
            sum += (x[i] - mean) * (x[i] - mean);
        sums[t] = sum;
    }
    block_sum(sums);
    inverse = rsqrtf(sums[0] / (float)a.width + 1e-5f);
    EACH_THREAD(t)
    {
        for (int i = t; i < a.width; i += THREADS)
            a.y[(size_t)block_x * a.width + i] = (x[i] - mean) * inverse * a.gain[i] + a.shift[i];
        if (t < 2)
            a.stats[2 * (size_t)block_x + t] = t ? inverse : mean;
    }
}

KERNEL(norm_back)
{
    SHARED float sums[THREADS], products[THREADS];
    size_t begin = (size_t)block_x * a.width;
    float mean = a.stats[2 * (size_t)block_x], inverse = a.stats[2 * (size_t)block_x + 1];

    EACH_THREAD(t)
    {
        sums[t] = products[t] = 0.0f;
        for (int i = t; i < a.width; i += THREADS) {
            float d = a.dy[begin + i], normal = (a.x[begin + i] - mean) * inverse;

            a.scaled[begin + i] = d * normal;
            sums[t] += d * a.gain[i];
            products[t] += d * a.gain[i] * normal;
        }
    }
    block_sum(sums);
    block_sum(products);
    EACH_THREAD(t)
    for (int i = t; i < a.width; i += THREADS) {
        float normal = (a.x[begin + i] - mean) * inverse;

        a.dx[begin + i] = inverse * (a.dy[begin + i] * a.gain[i] - (sums[0] + normal * products[0]) / (float)a.width);
    }
}

/* The largest of n values, then the sum of their exponentials below it. */
DEVICE float exponentials(float *s, const float *x, int n, float scale, float *sum)
{
    float largest;

    EACH_THREAD(t)
    {
        s[t] = -LARGE;
        for (int i = t; i < n; i += THREADS)
            s[t] = fmaxf(s[t], scale * x[i]);
    }
    block_max(s);
    largest = s[0];
    SYNC();
    EACH_THREAD(t)
    {
        float own = 0.0f;

        for (int i = t; i < n; i += THREADS)
            own += expf(scale * x[i] - largest);
        s[t] = own;
    }
    block_sum(s);
    *sum = s[0];
    return largest;
}

KERNEL(softmax)
{
    SHARED float s[THREADS];
    size_t begin = (size_t)block_x * a.seq;
    int until = block_x % a.seq;
    float sum, largest = exponentials(s, a.x + begin, until + 1, a.scale, &sum);

    EACH_THREAD(t)
    for (int i = t; i < a.seq; i += THREADS)
        a.y[begin + i] = i <= until ? expf(a.scale * a.x[begin + i] - largest) / sum : 0.0f;
}

KERNEL(softmax_back)
{
    SHARED float s[THREADS];
    size_t begin = (size_t)block_x * a.seq;

    EACH_THREAD(t)
    {
        float own = 0.0f;

        for (int i = t; i < a.seq; i += THREADS)
            own += a.dy[begin + i] * a.y[begin + i];
        s[t] = own;
    }
    block_sum(s);
    EACH_THREAD(t)
    for (int i = t; i < a.seq; i += THREADS)
        a.dx[begin + i] = a.scale * a.y[begin + i] * (a.dy[begin + i] - s[0]);
}

KERNEL(entropy)
{
    SHARED float s[THREADS];
    const float *x = a.x + (size_t)block_x * a.words;
    int target = a.targets[block_x];
    float sum, largest = exponentials(s, x, a.words, 1.0f, &sum);

    EACH_THREAD(t)
    {
        for (int i = t; i < a.words; i += THREADS)
            a.dx[(size_t)block_x * a.words + i] = (expf(x[i] - largest) / sum - (i == target ? 1.0f : 0.0f)) * a.share;
        if (t == 0)
            a.losses[block_x] = logf(sum) + largest - x[target];
    }
}

KERNEL(columns)
{
    SHARED float s[LANES][COLUMNS];
    int share = (a.rows + blocks_y - 1) / blocks_y, begin = block_y * share;
    int end = begin + share < a.rows ? begin + share : a.rows;

    EACH_THREAD(t)
    {
        int column = block_x * COLUMNS + t % COLUMNS, lane = t / COLUMNS;
        float sum = 0.0f;

        if (column < a.width)
            for (int row = begin + lane; row < end; row += LANES)
                sum += a.x[(size_t)row * a.width + column];
        s[lane][t % COLUMNS] = sum;
    }
    SYNC();
    EACH_THREAD(t)
    {
        int column = block_x * COLUMNS + t;

        if (t < COLUMNS && column < a.width) {
            float sum = s[0][t];

            for (int lane = 1; lane < LANES; lane++)
                sum += s[lane][t];
            a.parts[(size_t)block_y * a.width + column] = sum;
        }
    }
}

/* Is there an element for this thread? Then its number. */
#define EACH_ELEMENT(i, n)                                                                                             \
    EACH_THREAD(t_)                                                                                                    \
    for (size_t i = (size_t)block_x * THREADS + t_, i##_end = i + 1; i < i##_end && i < (n); i++)

KERNEL(add)
{
    EACH_ELEMENT(i, a.n)
    a.y[i] = a.a[i] + a.b[i];
}

#define GELU_IN  0.7978845608f
#define GELU_BOW 0.044715f

KERNEL(gelu)
{
    EACH_ELEMENT(i, a.n)
    {
        float x = a.x[i];

        a.y[i] = 0.5f * x * (1.0f + tanhf(GELU_IN * (x + GELU_BOW * x * x * x)));
    }
}

KERNEL(gelu_back)
{
    EACH_ELEMENT(i, a.n)
    {
        float x = a.x[i], bend = tanhf(GELU_IN * (x + GELU_BOW * x * x * x));
        float slope = (1.0f - bend * bend) * GELU_IN * (1.0f + 3.0f * GELU_BOW * x * x);

        a.dx[i] = a.dy[i] * (0.5f * (1.0f + bend) + 0.5f * x * slope);
    }
}

#define BETA_1 0.9f
#define BETA_2 0.95f

KERNEL(optimizer)
{
    EACH_ELEMENT(i, a.n)
    {
        float g = a.grad[i] * a.scale;
        float first = BETA_1 * a.first[i] + (1.0f - BETA_1) * g;
        float second = BETA_2 * a.second[i] + (1.0f - BETA_2) * g * g;

        a.first[i] = first;
        a.second[i] = second;
        a.value[i] -= a.rate * (first / a.fix_1 / (sqrtf(second / a.fix_2) + 1e-8f) + a.decay * a.value[i]);
    }
}

LAUNCHER(gemm, m)
LAUNCHER(embed, seq)
LAUNCHER(embed_words, width)
LAUNCHER(embed_positions, batch)
LAUNCHER(norm, width)
LAUNCHER(norm_back, width)
LAUNCHER(softmax, seq)
LAUNCHER(softmax_back, seq)
LAUNCHER(entropy, words)
LAUNCHER(columns, rows)
LAUNCHER(add, n)
LAUNCHER(gelu, n)
LAUNCHER(gelu_back, n)
LAUNCHER(optimizer, n)
