/* SPDX-License-Identifier: Apache-2.0 */
/* elf_file.c - see elf_file.h. No locks: no state. */
#include "info/elf_file.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Copy n bytes from offset at, because data in a file need not be aligned. */
static bool take(const struct elf_file *file, uint64_t at, void *to, size_t n)
{
    if (at > file->size || file->size - at < n)
        return false;
    memcpy(to, file->data + at, n);
    return true;
}

static void read_segments(struct elf_file *file, const Elf64_Ehdr *header)
{
    Elf64_Phdr segment;

    for (unsigned int i = 0; i < header->e_phnum && header->e_phentsize >= sizeof(segment); i++) {
        if (!take(file, header->e_phoff + (uint64_t)i * header->e_phentsize, &segment, sizeof(segment)))
            return;
        if (segment.p_type == PT_INTERP && segment.p_offset < file->size &&
            memchr(file->data + segment.p_offset, '\0', file->size - segment.p_offset))
            file->interp = (const char *)file->data + segment.p_offset;
    }
}

static void read_symbols(struct elf_file *file, const Elf64_Ehdr *header)
{
    Elf64_Shdr section, names;

    for (unsigned int i = 0; i < header->e_shnum && header->e_shentsize >= sizeof(section); i++) {
        if (!take(file, header->e_shoff + (uint64_t)i * header->e_shentsize, &section, sizeof(section)))
            return;
        if (section.sh_type != SHT_DYNSYM)
            continue;
        if (!take(file, header->e_shoff + (uint64_t)section.sh_link * header->e_shentsize, &names, sizeof(names)) ||
            section.sh_offset > file->size || section.sh_size > file->size - section.sh_offset ||
            names.sh_offset > file->size || names.sh_size > file->size - names.sh_offset)
            return;
        file->symbols_at = section.sh_offset;
        file->symbols = section.sh_size / sizeof(Elf64_Sym);
        file->names_at = names.sh_offset;
        file->names = names.sh_size;
        return;
    }
}

static int parse(struct elf_file *file)
{
    Elf64_Ehdr header;

    if (file->size < sizeof(Elf32_Ehdr) || memcmp(file->data, ELFMAG, SELFMAG) != 0)
        return -ENOEXEC;
    file->bits = file->data[EI_CLASS] == ELFCLASS64 ? 64 : 32;
    /* The machine is at the same offset in both classes. A file in the other byte order is of a foreign
     * machine. */
    if (file->data[EI_DATA] != (__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? ELFDATA2LSB : ELFDATA2MSB))
        return 0;
    file->machine = ((const Elf32_Ehdr *)(const void *)file->data)->e_machine;
    if (file->bits == 64 && take(file, 0, &header, sizeof(header))) {
        read_segments(file, &header);
        read_symbols(file, &header);
    }
    return 0;
}

int elf_open(const char *path, struct elf_file *ret_file)
{
    struct elf_file file = {0};
    struct stat st;
    int fd, error;

    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        close(fd);
        return -EINVAL;
    }
    file.size = (size_t)st.st_size;
    if (!file.size) {
        close(fd);
        return -ENOEXEC;
    }
    file.data = mmap(NULL, file.size, PROT_READ, MAP_PRIVATE, fd, 0);
    error = errno;
    close(fd);
    if (file.data == MAP_FAILED)
        return -error;
    error = parse(&file);
    if (error) {
        elf_close(&file);
        return error;
    }
    *ret_file = file;
    return 0;
}

void elf_close(struct elf_file *file)
{
    munmap((void *)(uintptr_t)file->data, file->size);
}

enum elf_symbol elf_symbol(const struct elf_file *file, const char *name)
{
    const size_t len = strlen(name) + 1;
    const char *names = (const char *)file->data + file->names_at;
    Elf64_Sym symbol;

    for (size_t i = 0; i < file->symbols; i++) {
        if (!take(file, file->symbols_at + i * sizeof(symbol), &symbol, sizeof(symbol)))
            break;
        if (symbol.st_name < file->names && file->names - symbol.st_name >= len &&
            memcmp(names + symbol.st_name, name, len) == 0)
            return symbol.st_shndx == SHN_UNDEF ? ELF_UNDEFINED : ELF_DEFINED;
    }
    return ELF_ABSENT;
}

bool elf_contains(const struct elf_file *file, const char *text)
{
    return memmem(file->data, file->size, text, strlen(text) + 1) != NULL;
}

const char *elf_machine_name(int machine)
{
    switch (machine) {
    case EM_386:
        return "i386";
    case EM_X86_64:
        return "x86-64";
    case EM_ARM:
        return "arm";
    case EM_AARCH64:
        return "aarch64";
    case EM_PPC64:
        return "ppc64";
    case EM_RISCV:
        return "riscv";
    default:
        return "unknown";
    }
}
