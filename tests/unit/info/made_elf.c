/* SPDX-License-Identifier: Apache-2.0 */
/* made_elf.c - see made_elf.h. No locks: one thread. */
#include "made_elf.h"

#include <fcntl.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

extern const ElfW(Ehdr) own_header __asm__("__ehdr_start") __attribute__((visibility("hidden")));

int made_machine(void)
{
    return own_header.e_machine;
}

static void words_add(struct made_parts *parts, const char *words)
{
    size_t names = 1, text = 0, symbols = 1;
    char *copy = strdup(words ? words : ""), *save = NULL;

    for (char *word = strtok_r(copy, " ", &save); word; word = strtok_r(NULL, " ", &save)) {
        if (*word != '+' && *word != '-') {
            snprintf(parts->text + text, sizeof(parts->text) - text, "%s", word);
            text += strlen(word) + 1;
            continue;
        }
        parts->symbols[symbols].st_name = (Elf64_Word)names;
        parts->symbols[symbols++].st_shndx = *word == '+' ? 1 : SHN_UNDEF;
        snprintf(parts->names + names, sizeof(parts->names) - names, "%s", word + 1);
        names += strlen(word);
    }
    free(copy);
    parts->sections[2].sh_size = symbols * sizeof(Elf64_Sym);
    parts->sections[3].sh_size = names;
}

void made_elf_parts(const struct made_elf *made, struct made_parts *ret_parts)
{
    struct made_parts *parts = ret_parts;
    Elf64_Ehdr *header = &parts->header;

    memset(parts, 0, sizeof(*parts));
    memcpy(header->e_ident, ELFMAG, SELFMAG);
    header->e_ident[EI_CLASS] = (unsigned char)(made->class ? made->class : ELFCLASS64);
    header->e_ident[EI_DATA] = made->data ? (unsigned char)made->data : own_header.e_ident[EI_DATA];
    header->e_machine = (Elf64_Half)(made->machine ? made->machine : made_machine());
    header->e_phoff = offsetof(struct made_parts, segments);
    header->e_phentsize = sizeof(Elf64_Phdr);
    header->e_phnum = 3;
    header->e_shoff = offsetof(struct made_parts, sections);
    header->e_shentsize = sizeof(Elf64_Shdr);
    header->e_shnum = 4;
    parts->segments[0].p_type = PT_LOAD;
    parts->segments[1].p_type = made->interp ? PT_INTERP : PT_NOTE;
    parts->segments[1].p_offset = offsetof(struct made_parts, interp);
    parts->segments[2].p_type = PT_DYNAMIC;
    snprintf(parts->interp, sizeof(parts->interp), "%s", made->interp ? made->interp : "");
    parts->sections[1].sh_type = SHT_PROGBITS;
    parts->sections[2].sh_type = SHT_DYNSYM;
    parts->sections[2].sh_link = 3;
    parts->sections[2].sh_offset = offsetof(struct made_parts, symbols);
    parts->sections[3].sh_type = SHT_STRTAB;
    parts->sections[3].sh_offset = offsetof(struct made_parts, names);
    words_add(parts, made->words);
}

void made_file(const char *path, const void *data, size_t len, unsigned int mode)
{
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

    if (fd < 0 || write(fd, data, len) != (ssize_t)len || fchmod(fd, mode) || close(fd)) {
        perror(path);
        exit(99);
    }
}

void made_elf(const char *path, const struct made_elf *made)
{
    struct made_parts parts;

    made_elf_parts(made, &parts);
    made_file(path, &parts, sizeof(parts), 0755);
}

void made_text(const char *path, const char *text, unsigned int mode)
{
    made_file(path, text, strlen(text), mode);
}
