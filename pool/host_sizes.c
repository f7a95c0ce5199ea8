/* SPDX-License-Identifier: Apache-2.0 */
/* host_sizes.c - see host_sizes.h. */
#include "host_sizes.h"

/* The first class of 16 sizes for a power of two. */
#define STEPPED (HOST_FINE + HOST_STEPS - 1)

unsigned int host_class_of(size_t size)
{
    unsigned int octave;

    if (size <= HOST_PAGE)
        return (unsigned int)((size + HOST_GRANULE - 1) / HOST_GRANULE) - 1;
    if (size <= HOST_STEPS * HOST_PAGE)
        return HOST_FINE + (unsigned int)((size + HOST_PAGE - 1) / HOST_PAGE) - 2;
    octave = 63u - (unsigned int)__builtin_clzll(size - 1); /* 2^octave < size <= 2^(octave + 1) */
    return STEPPED + (octave - HOST_STEPS_SHIFT) * HOST_STEPS +
           (unsigned int)((size - 1 - ((size_t)1 << octave)) >> (octave - 4));
}

size_t host_class_size(unsigned int class)
{
    unsigned int octave;

    if (class < HOST_FINE)
        return (class + 1) * (size_t)HOST_GRANULE;
    if (class < STEPPED)
        return (class - HOST_FINE + 2) * (size_t)HOST_PAGE;
    octave = HOST_STEPS_SHIFT + (class - STEPPED) / HOST_STEPS;
    return ((size_t)1 << octave) + ((size_t)((class - STEPPED) % HOST_STEPS + 1) << (octave - 4));
}

unsigned int host_class_within(size_t size)
{
    const unsigned int class = host_class_of(size);

    return class && host_class_size(class) > size ? class - 1 : class;
}
