/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_elf.c - any bytes as a file that cupool-info --check looks at: nothing is read beyond its end, and what is told
 * of it lies inside it.
 *
 * How to run it: fuzz.h. It has elf_file.c inside, to parse bytes that are in memory.
 */
#include "fuzz.h"
#include "info/elf_file.c" /* NOLINT(bugprone-suspicious-include): see above */

static char fault[256];

#define FAULT(...) (fault[0] ? 0 : snprintf(fault, sizeof(fault), __VA_ARGS__))

static bool inside(const struct elf_file *file, size_t at, size_t n)
{
    return at <= file->size && n <= file->size - at;
}

static void check(const struct elf_file *file)
{
    static const char *const names[] = {"cudaMalloc", "main", "", "\xff"};

    if (file->bits != 32 && file->bits != 64)
        FAULT("%d bits", file->bits);
    if (file->symbols > file->size / sizeof(Elf64_Sym) ||
        !inside(file, file->symbols_at, file->symbols * sizeof(Elf64_Sym)))
        FAULT("%zu symbols at %zu in %zu bytes", file->symbols, file->symbols_at, file->size);
    if (!inside(file, file->names_at, file->names))
        FAULT("%zu bytes of names at %zu in %zu", file->names, file->names_at, file->size);
    if (file->interp &&
        !inside(file, (size_t)((const unsigned char *)file->interp - file->data), strlen(file->interp) + 1))
        FAULT("the loader's name is not in the file");
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (elf_symbol(file, names[i]) != ELF_ABSENT && !elf_contains(file, names[i]))
            FAULT("the symbol %s is there and its name is not", names[i]);
    }
    if (!elf_machine_name(file->machine)[0])
        FAULT("machine %d has no name", file->machine);
}

static const char *fuzz_run(const uint8_t *data, size_t size)
{
    unsigned char *copy = malloc(size ? size : 1); /* exact: a sanitizer sees one byte too many */
    struct elf_file file = {.data = copy, .size = size};

    fault[0] = '\0';
    memcpy(copy, data, size);
    if (!parse(&file))
        check(&file);
    free(copy);
    return fault;
}

/* A small file with one symbol, some of whose numbers are others. */
static size_t fuzz_random(uint64_t *rng, uint8_t *buffer)
{
    static const uint64_t numbers[] = {0, 1, 63, 64, 65, 511, 512, 0xffff, 0xffffffff, UINT64_MAX, UINT64_MAX - 23};
    struct {
        Elf64_Ehdr header;
        Elf64_Phdr segments[2];
        Elf64_Shdr sections[2];
        Elf64_Sym symbol;
        char names[32];
    } file = {0};
    size_t size = sizeof(file);

    memcpy(file.header.e_ident, ELFMAG, SELFMAG);
    file.header.e_ident[EI_CLASS] = ELFCLASS64;
    file.header.e_ident[EI_DATA] = ELFDATA2LSB;
    file.header.e_type = ET_DYN;
    file.header.e_machine = EM_X86_64;
    file.header.e_phoff = offsetof(__typeof__(file), segments);
    file.header.e_phentsize = sizeof(Elf64_Phdr);
    file.header.e_phnum = 2;
    file.header.e_shoff = offsetof(__typeof__(file), sections);
    file.header.e_shentsize = sizeof(Elf64_Shdr);
    file.header.e_shnum = 2;
    file.segments[0].p_type = PT_DYNAMIC;
    file.segments[1].p_type = PT_INTERP;
    file.segments[1].p_offset = offsetof(__typeof__(file), names);
    file.sections[0].sh_type = SHT_DYNSYM;
    file.sections[0].sh_link = 1;
    file.sections[0].sh_offset = offsetof(__typeof__(file), symbol);
    file.sections[0].sh_size = sizeof(Elf64_Sym);
    file.sections[1].sh_offset = offsetof(__typeof__(file), names);
    file.sections[1].sh_size = sizeof(file.names);
    file.symbol.st_name = 1;
    memcpy(file.names + 1, "cudaMalloc", 10);
    memcpy(buffer, &file, size);
    for (uint64_t n = next(rng) % 4; n; n--) {
        const uint64_t number = numbers[next(rng) % (sizeof(numbers) / sizeof(numbers[0]))] + next(rng) % 3;
        const size_t at = (size_t)(next(rng) % (size / 4)) * 4, wide = (size_t)2 << next(rng) % 3;
        memcpy(buffer + at, &number, at + wide <= size ? wide : 2);
    }
    return next(rng) % 4 ? size : (size_t)(next(rng) % size);
}
