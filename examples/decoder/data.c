/* SPDX-License-Identifier: Apache-2.0 */
/*
 * data.c - the decoder's tokens and first weights, made up from numbers.
 *
 * Here: a word is followed by one that depends on it, seven times of eight, so that a model can learn. Each rank
 * has sequences of its own in each step.
 *
 * Not here: text.
 *
 * Threads: any.
 */
#include "decoder.h"

#include <string.h>

uint64_t data_mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

float data_weight(uint64_t param, uint64_t i)
{
    uint64_t bits = data_mix((param << 40) + i + 0x9e3779b97f4a7c15u);

    return (float)(bits >> 40) / (float)(1 << 23) - 1.0f;
}

void data_fill(const struct sizes *s, int rank, int step, int *tokens, int *targets)
{
    for (int b = 0; b < s->batch; b++) {
        uint64_t seed = data_mix(((uint64_t)rank << 48) + ((uint64_t)step << 16) + (uint64_t)b + 1);
        int word = (int)(seed % (uint64_t)s->words);

        for (int i = 0; i < s->seq; i++) {
            uint64_t chance = data_mix(seed + (uint64_t)i);

            tokens[b * s->seq + i] = word;
            word = (int)((chance % 8 ? 5 * (uint64_t)word + 3 : chance >> 8) % (uint64_t)s->words);
            targets[b * s->seq + i] = word;
        }
    }
}

void data_index(const struct sizes *s, const int *tokens, int *first, int *at)
{
    memset(first, 0, ((size_t)s->words + 1) * sizeof(*first));
    for (int i = 0; i < s->rows; i++)
        first[tokens[i] + 1]++;
    for (int v = 0; v < s->words; v++)
        first[v + 1] += first[v];
    for (int i = 0; i < s->rows; i++)
        at[first[tokens[i]]++] = i;
    /* Each first is now the next one's: back by one. */
    memmove(first + 1, first, (size_t)s->words * sizeof(*first));
    first[0] = 0;
}
