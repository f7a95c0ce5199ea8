/* SPDX-License-Identifier: Apache-2.0 */
/*
 * values.c - the values of NCCL's types: loaded, stored, reduced, scaled.
 *
 * Locking: none.
 */
#include "run.h"

#include <math.h>

size_t type_size(ncclDataType_t type)
{
    static const unsigned char sizes[ncclNumTypes] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};

    return (unsigned)type < ncclNumTypes ? sizes[type] : 0;
}

static double half_load(uint16_t h)
{
    int exponent = h >> 10 & 31, mantissa = h & 1023;
    double v = exponent == 0    ? ldexp(mantissa, -24)
               : exponent == 31 ? (mantissa ? NAN : INFINITY)
                                : ldexp(1024 + mantissa, exponent - 25);

    return h & 0x8000 ? -v : v;
}

static uint16_t half_store(double v)
{
    uint16_t sign = signbit(v) ? 0x8000 : 0;
    int exponent;

    if (isnan(v))
        return 0x7e00;
    v = fabs(v);
    if (v >= 65520)
        return sign | 0x7c00;
    frexp(v, &exponent);
    if (exponent < -13) /* subnormal */
        exponent = -13;
    /* A mantissa that rounds up to 2048 carries into the exponent by itself. */
    unsigned mantissa = (unsigned)nearbyint(ldexp(v, 11 - exponent));
    return (uint16_t)(sign | (mantissa < 1024 ? mantissa : ((unsigned)(exponent + 13) << 10) + mantissa));
}

static uint16_t bfloat_store(double v)
{
    float f = (float)v;
    uint32_t bits;

    memcpy(&bits, &f, sizeof(bits));
    if (!isnan(v))
        bits += 0x7fff + (bits >> 16 & 1);
    return (uint16_t)(bits >> 16);
}

static bool is_float(ncclDataType_t type)
{
    return type >= ncclFloat16 && type <= ncclBfloat16;
}

/* Integers as 64 bits; unsigned arithmetic is right for signed ones, too, but where they are compared or divided. */
static uint64_t integer_load(ncclDataType_t type, const void *at)
{
    uint64_t v = 0;

    memcpy(&v, at, type_size(type));
    if (type == ncclInt8)
        return (uint64_t)(int64_t)(int8_t)v;
    return type == ncclInt32 ? (uint64_t)(int64_t)(int32_t)v : v;
}

double value_load(ncclDataType_t type, const void *at)
{
    uint32_t bits;
    uint16_t h;
    double d;
    float f;

    switch (type) {
    case ncclFloat64:
        memcpy(&d, at, sizeof(d));
        return d;
    case ncclFloat32:
        memcpy(&f, at, sizeof(f));
        return f;
    case ncclBfloat16:
        memcpy(&h, at, sizeof(h));
        bits = (uint32_t)h << 16;
        memcpy(&f, &bits, sizeof(f));
        return f;
    case ncclFloat16:
        memcpy(&h, at, sizeof(h));
        return half_load(h);
    default:
        return (double)(int64_t)integer_load(type, at);
    }
}

static void value_store(ncclDataType_t type, void *at, double v)
{
    float f = (float)v;
    uint16_t h = type == ncclBfloat16 ? bfloat_store(v) : half_store(v);

    if (type == ncclFloat64)
        memcpy(at, &v, sizeof(v));
    else if (type == ncclFloat32)
        memcpy(at, &f, sizeof(f));
    else
        memcpy(at, &h, sizeof(h));
}

static bool integer_less(ncclDataType_t type, uint64_t a, uint64_t b)
{
    bool is_signed = type == ncclInt8 || type == ncclInt32 || type == ncclInt64;

    return is_signed ? (int64_t)a < (int64_t)b : a < b;
}

static void integer_reduce(const struct op *op, char *to, const char *from, size_t step, int n)
{
    ncclDataType_t type = (ncclDataType_t)op->head.type;
    uint64_t v = integer_load(type, from);

    for (int i = 1; i < n; i++) {
        uint64_t w = integer_load(type, from + (size_t)i * step);
        if (op->head.op == ncclProd)
            v *= w;
        else if (op->head.op == ncclMax)
            v = integer_less(type, v, w) ? w : v;
        else if (op->head.op == ncclMin)
            v = integer_less(type, w, v) ? w : v;
        else
            v += w;
    }
    if (op->head.op == ncclAvg)
        v = integer_less(type, v, 0) ? (uint64_t)((int64_t)v / n) : v / (uint64_t)n;
    memcpy(to, &v, type_size(type));
}

static void float_reduce(const struct op *op, char *to, const char *from, size_t step, int n)
{
    ncclDataType_t type = (ncclDataType_t)op->head.type;
    double v = value_load(type, from);

    for (int i = 1; i < n; i++) {
        double w = value_load(type, from + (size_t)i * step);
        if (op->head.op == ncclProd)
            v *= w;
        else if (op->head.op == ncclMax)
            v = fmax(v, w);
        else if (op->head.op == ncclMin)
            v = fmin(v, w);
        else
            v += w;
    }
    value_store(type, to, op->head.op == ncclAvg ? v / n : v);
}

void values_reduce(const struct op *op, char *to, const char *from, size_t step, int n, size_t bytes)
{
    size_t size = type_size((ncclDataType_t)op->head.type);

    for (size_t i = 0; i < bytes; i += size) {
        if (is_float((ncclDataType_t)op->head.type))
            float_reduce(op, to + i, from + i, step, n);
        else
            integer_reduce(op, to + i, from + i, step, n);
    }
}

void values_scale(const struct op *op, double factor, char *to, const char *from, size_t bytes)
{
    ncclDataType_t type = (ncclDataType_t)op->head.type;
    size_t size = type_size(type);

    for (size_t i = 0; i < bytes; i += size) {
        if (is_float(type)) {
            value_store(type, to + i, value_load(type, from + i) * factor);
        } else {
            uint64_t v = integer_load(type, from + i) * (uint64_t)(int64_t)factor;
            memcpy(to + i, &v, size);
        }
    }
}
