/* SPDX-License-Identifier: Apache-2.0 */
/*
 * elf_file.h - reads what cupool-info --check wants to know of an executable or a shared library.
 *
 * What it is not: part of the library, or a general reader. It knows 64-bit files of this machine's byte order; of
 * others it tells class and machine only. Files may be cut or wrong: every offset is checked before it is used.
 */
#ifndef CUPOOL_SHIM_ELF_FILE_H
#define CUPOOL_SHIM_ELF_FILE_H

#include <stdbool.h>
#include <stddef.h>

struct elf_file {
    const unsigned char *data; /* the whole file, mapped */
    size_t size;
    int bits;                                    /* 32 or 64 */
    int machine;                                 /* EM_ number */
    bool executable;                             /* ET_EXEC, or ET_DYN, which libraries are too */
    bool dynamic;                                /* has a dynamic section */
    const char *interp;                          /* the loader that it asks for; NULL: none. In data */
    size_t symbols_at, symbols, names_at, names; /* .dynsym and its strings, in data; 0: none */
};

enum elf_symbol { ELF_ABSENT, ELF_UNDEFINED, ELF_DEFINED };

/* Map path. 0; -ENOEXEC: no ELF file; another negative errno. elf_close after 0 only. */
int elf_open(const char *path, struct elf_file *ret_file);
void elf_close(struct elf_file *file);

/* What the dynamic symbol table says of name. */
enum elf_symbol elf_symbol(const struct elf_file *file, const char *name);

/* Is this text, ended by a zero, anywhere in the file? */
bool elf_contains(const struct elf_file *file, const char *text);

/* The machine's name, or "unknown". */
const char *elf_machine_name(int machine);

#endif
