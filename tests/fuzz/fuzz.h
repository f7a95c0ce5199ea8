/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz.h - what the fuzz targets share: the entry of libFuzzer, or, with FUZZ_PLAIN, a main that needs no fuzzer:
 *
 *     TARGET_plain FILE...             replay files, e.g. the findings of a fuzzer; of folders, all that is in them
 *     TARGET_plain -r N [SEED]         run N random inputs; an input that fails is left in fuzz.crash
 *     TARGET_plain -w DIR N [SEED]     write N random inputs, to start a fuzzer with
 *
 * Included by one file of each target, which defines the two functions.
 */
#ifndef FUZZ_H
#define FUZZ_H

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FUZZ_INPUT_MAX ((size_t)64 << 10)

/* The next number of a sequence (splitmix64). */
__attribute__((unused)) static uint64_t next(uint64_t *rng)
{
    uint64_t x = *rng += 0x9e3779b97f4a7c15;

    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return x ^ x >> 31;
}

/* Runs one input. Returns the error, or an empty string; valid until the next call. */
static const char *fuzz_run(const uint8_t *data, size_t size);

/* Fill buffer, of FUZZ_INPUT_MAX bytes, with an input that is likely to get far. Returns its size. */
static size_t fuzz_random(uint64_t *rng, uint8_t *buffer) __attribute__((unused));

#ifndef FUZZ_PLAIN

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *fault = fuzz_run(data, size);

    if (fault[0]) {
        fprintf(stderr, "%s\n", fault);
        abort();
    }
    return 0;
}

#else

static uint8_t fuzz_buffer[FUZZ_INPUT_MAX];

static int save(const char *path, size_t size)
{
    FILE *file = fopen(path, "wb");
    int bad = !file || fwrite(fuzz_buffer, 1, size, file) != size;

    if (file)
        bad |= fclose(file) != 0;
    if (bad)
        perror(path);
    return bad;
}

static int replay(const char *path)
{
    FILE *file = fopen(path, "rb");
    const char *fault;
    size_t size;

    if (!file) {
        perror(path);
        return 1;
    }
    size = fread(fuzz_buffer, 1, sizeof(fuzz_buffer), file);
    fclose(file);
    fault = fuzz_run(fuzz_buffer, size);
    if (fault[0])
        fprintf(stderr, "%s: %s\n", path, fault);
    return fault[0] != '\0';
}

/* 1 also where there is none: a corpus that is not found is not run. */
static int replay_folder(const char *path)
{
    DIR *folder = opendir(path);
    char name[4096];
    int bad = 0, count = 0;

    if (!folder)
        return replay(path);
    for (const struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        if (entry->d_name[0] == '.')
            continue;
        snprintf(name, sizeof(name), "%s/%s", path, entry->d_name);
        bad |= replay(name);
        count++;
    }
    closedir(folder);
    return bad || !count;
}

static int run_random(unsigned long count, uint64_t rng)
{
    for (unsigned long i = 0; i < count; i++) {
        const size_t size = fuzz_random(&rng, fuzz_buffer);
        const char *fault = fuzz_run(fuzz_buffer, size);

        if (fault[0]) {
            fprintf(stderr, "input %lu (fuzz.crash): %s\n", i, fault);
            save("fuzz.crash", size);
            return 1;
        }
    }
    return 0;
}

static int write_random(const char *dir, unsigned long count, uint64_t rng)
{
    char path[4096];

    for (unsigned long i = 0; i < count; i++) {
        snprintf(path, sizeof(path), "%s/random-%lu", dir, i);
        if (save(path, fuzz_random(&rng, fuzz_buffer)))
            return 1;
    }
    return 0;
}

int main(int argc, char **argv)
{
    int bad = 0;

    if (argc >= 3 && !strcmp(argv[1], "-r"))
        return run_random(strtoul(argv[2], NULL, 0), argc > 3 ? strtoull(argv[3], NULL, 0) : 1);
    if (argc >= 4 && !strcmp(argv[1], "-w"))
        return write_random(argv[2], strtoul(argv[3], NULL, 0), argc > 4 ? strtoull(argv[4], NULL, 0) : 1);
    if (argc < 2 || argv[1][0] == '-') {
        fprintf(stderr, "usage: %s FILE... | -r N [SEED] | -w DIR N [SEED]\n", argv[0]);
        return 2;
    }
    for (int i = 1; i < argc; i++)
        bad |= replay_folder(argv[i]);
    return bad;
}

#endif

#endif
