/* SPDX-License-Identifier: Apache-2.0 */
/*
 * made_elf.h - executables as small as elf_file.c reads them, made by the test.
 *
 * They do not run.
 *
 * Threads: one.
 */
#ifndef CUPOOL_TESTS_INFO_MADE_ELF_H
#define CUPOOL_TESTS_INFO_MADE_ELF_H

#include <elf.h>
#include <stddef.h>

/* words: those with "+" before them are defined symbols, those with "-" undefined ones, others text; between blanks. */
struct made_elf {
    const char *interp; /* NULL: statically linked */
    const char *words;
    int machine;     /* 0: this one */
    int class, data; /* 0: ELFCLASS64, this machine's order */
};

struct made_parts {
    Elf64_Ehdr header;
    Elf64_Phdr segments[3];
    Elf64_Shdr sections[4];
    Elf64_Sym symbols[8];
    char names[256], interp[64], text[256];
};

/* The file's bytes. */
void made_elf_parts(const struct made_elf *made, struct made_parts *ret_parts);
/* Write bytes as an executable file. */
void made_file(const char *path, const void *data, size_t len, unsigned int mode);
void made_elf(const char *path, const struct made_elf *made);
/* A file with this text. */
void made_text(const char *path, const char *text, unsigned int mode);
/* This machine. */
int made_machine(void);

#endif
