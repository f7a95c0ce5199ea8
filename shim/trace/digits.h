/* SPDX-License-Identifier: Apache-2.0 */
/*
 * digits.h - numbers as text, for events of the trace. Private to shim/. It formats nothing but integers.
 *
 * It makes eight digits at a time in the bytes of a word, because printf, or one division per digit, would cost more
 * than all the rest of an event. Each function writes at `at` and returns the end of the number, without a NUL. It
 * writes whole words: up to DIGITS_ROOM bytes from `at` on are overwritten.
 *
 * Threads: no state.
 */
#ifndef CUPOOL_SHIM_TRACE_DIGITS_H
#define CUPOOL_SHIM_TRACE_DIGITS_H

#include <endian.h>
#include <stdint.h>
#include <string.h>

#define DIGITS_ROOM 32

/* Write `bytes` bytes of a word, the lowest first. */
static inline char *digits_put(char *at, uint64_t word, unsigned int bytes)
{
    word = htole64(word);
    memcpy(at, &word, sizeof(word));
    return at + bytes;
}

/* The digits of n < 10^8, the first one in the lowest byte. */
static inline uint64_t digits_of(uint32_t n)
{
    uint64_t all = n / 10000 | (uint64_t)(n % 10000) << 32, tens;

    tens = (all * 5243 >> 19) & 0x0000007f0000007f; /* hundredths, rounded down, of numbers below 10000 */
    all = tens | (all - tens * 100) << 16;
    tens = (all * 103 >> 10) & 0x000f000f000f000f; /* tenths of numbers below 100 */
    return tens | (all - tens * 10) << 8;
}

/* Tenths of n / unit, rounded, because printf's "%.1f" takes a floating-point number. The library never computes with
 * such numbers: a program may have enabled the trap for inexact results. */
static inline uint64_t digits_tenths(uint64_t n, uint64_t unit)
{
    return (uint64_t)(((unsigned __int128)n * 10 + unit / 2) / unit);
}

/* n in decimal. */
static inline char *digits_decimal(char *at, uint64_t n)
{
    uint64_t digits;
    unsigned int zeros;

    if (n >= 100000000) {
        at = digits_decimal(at, n / 100000000);
        return digits_put(at, digits_of((uint32_t)(n % 100000000)) + 0x3030303030303030, 8);
    }
    digits = digits_of((uint32_t)n);
    zeros = (unsigned int)__builtin_ctzll(digits | (uint64_t)1 << 56) / 8;
    return digits_put(at, (digits + 0x3030303030303030) >> zeros * 8, 8 - zeros);
}

/* n in hexadecimal, in lower case and without leading zeros. */
static inline char *digits_hexadecimal(char *at, uint64_t n)
{
    const unsigned int width = (63u - (unsigned int)__builtin_clzll(n | 1)) / 4 + 1;

    n <<= 64 - width * 4;
    for (unsigned int left = width;; left -= 8, n <<= 32) {
        uint64_t x = n >> 32; /* four bits in each byte */

        x = (x | x << 16) & 0x0000ffff0000ffff;
        x = (x | x << 8) & 0x00ff00ff00ff00ff;
        x = (x | x << 4) & 0x0f0f0f0f0f0f0f0f;
        x += 0x3030303030303030 + (((x + 0x0606060606060606) >> 4) & 0x0101010101010101) * ('a' - '0' - 10);
        at = digits_put(at, __builtin_bswap64(x), left < 8 ? left : 8);
        if (left <= 8)
            return at;
    }
}

#endif
