/* SPDX-License-Identifier: Apache-2.0 */
/*
 * elf_file.h - reads the facts about an executable or a shared library that cupool-info --check needs.
 *
 * It is not part of the library, nor a general reader. It reads 64-bit files in this machine's byte order; of other
 * files it gives only class and machine. Files may be truncated or malformed: every offset is checked before it is
 * used.
 *
 * Threads: no state.
 */
#ifndef CUPOOL_SHIM_INFO_ELF_FILE_H
#define CUPOOL_SHIM_INFO_ELF_FILE_H

#include <stdbool.h>
#include <stddef.h>

struct elf_file {
    const unsigned char *data; /* the whole file, mapped */
    size_t size;
    int bits;                                    /* 32 or 64 */
    int machine;                                 /* an EM_ number */
    const char *interp;                          /* the path of the loader, in data; NULL: none */
    size_t symbols_at, symbols, names_at, names; /* .dynsym and its strings, as offsets in data; 0: none */
};

/* The state of a name in a dynamic symbol table. */
enum elf_symbol { ELF_ABSENT, ELF_UNDEFINED, ELF_DEFINED };

/* Map path. 0; -ENOEXEC: no ELF file; another negative errno value. Call elf_close only after 0. */
int elf_open(const char *path, struct elf_file *ret_file);
void elf_close(struct elf_file *file);

/* The entry of name in the dynamic symbol table. */
enum elf_symbol elf_symbol(const struct elf_file *file, const char *name);

/* True if this text, ended by a zero byte, is anywhere in the file. */
bool elf_contains(const struct elf_file *file, const char *text);

/* The machine's name, or "unknown". */
const char *elf_machine_name(int machine);

#endif
