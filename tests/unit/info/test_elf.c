/* SPDX-License-Identifier: Apache-2.0 */
/* test_elf.c - what elf_file.c says of files that the test makes: cut at each byte, and with other numbers. */
#include "golden.h"
#include "made_elf.h"

#include <errno.h>
#include <string.h>

#include "info/elf_file.h"

#define FILE_NAME "f"

static const char state[] = {[ELF_ABSENT] = '-', [ELF_UNDEFINED] = 'u', [ELF_DEFINED] = 'd'};

/* All that is known of the file, in a line. */
static void facts(char *line, size_t len)
{
    static const char *const names[] = {"first", "second", "last", "secon", "irst", ""};
    struct elf_file file;
    const int rc = elf_open(FILE_NAME, &file);
    size_t used;

    if (rc) {
        snprintf(line, len, "%s", strerror(-rc));
        return;
    }
    used = (size_t)snprintf(line, len, "%d bits, %s, loader %s, symbols", file.bits, elf_machine_name(file.machine),
                            file.interp ? file.interp : "none");
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        used += (size_t)snprintf(line + used, len - used, " %c", state[elf_symbol(&file, names[i])]);
    snprintf(line + used, len - used, ", text %d%d%d", elf_contains(&file, "text"), elf_contains(&file, "end"),
             elf_contains(&file, "en"));
    elf_close(&file);
}

static const struct made_elf usual = {"/lib/ld", "+first -second -last text end", EM_RISCV, 0, 0};

/* The file as long as it is needed, cut. */
static int cut(const void *arg)
{
    struct made_parts parts;
    char line[512], last[512] = "";
    const size_t len = offsetof(struct made_parts, text) + sizeof("text\0end");

    (void)arg;
    made_elf_parts(&usual, &parts);
    for (size_t size = 0; size <= len; size++) {
        made_file(FILE_NAME, &parts, size, 0755);
        facts(line, sizeof(line));
        if (strcmp(line, last) != 0)
            printf("from %zu bytes: %s\n", size, line);
        snprintf(last, sizeof(last), "%s", line);
    }
    return 0;
}

#define FIELD(member)                                                                                                  \
    {                                                                                                                  \
#member, offsetof(struct made_parts, member), sizeof(((struct made_parts *)0)->member)                         \
    }
static const struct field {
    const char *name;
    size_t at, size;
} fields[] = {
    FIELD(header.e_ident[0]),       FIELD(header.e_ident[3]),   FIELD(header.e_ident[EI_CLASS]),
    FIELD(header.e_ident[EI_DATA]), FIELD(header.e_phoff),      FIELD(header.e_phentsize),
    FIELD(header.e_phnum),          FIELD(header.e_shoff),      FIELD(header.e_shentsize),
    FIELD(header.e_shnum),          FIELD(segments[1].p_type),  FIELD(segments[1].p_offset),
    FIELD(sections[1].sh_type),     FIELD(sections[2].sh_type), FIELD(sections[2].sh_link),
    FIELD(sections[2].sh_offset),   FIELD(sections[2].sh_size), FIELD(sections[3].sh_offset),
    FIELD(sections[3].sh_size),     FIELD(symbols[1].st_name),  FIELD(symbols[2].st_name),
    FIELD(symbols[3].st_name),      FIELD(symbols[3].st_shndx),
};

static const size_t needed = offsetof(struct made_parts, text) + sizeof("text\0end");

static uint64_t field_get(const struct field *field, const struct made_parts *parts)
{
    uint64_t number = 0;

    memcpy(&number, (const char *)parts + field->at, field->size); /* low bytes first, as where this is built */
    return number;
}

/* The facts with another number. False: it has no such number, or they are the usual ones. */
static bool changed(const struct field *field, uint64_t number, const char *usual_facts, char *line, size_t len)
{
    struct made_parts parts;

    made_elf_parts(&usual, &parts);
    memcpy((char *)&parts + field->at, &number, field->size);
    if (field_get(field, &parts) != number)
        return false;
    made_file(FILE_NAME, &parts, needed, 0755);
    facts(line, len);
    return strcmp(line, usual_facts) != 0;
}

/* The numbers of a field that change what is known, in the order of what that is. */
static void field_print(const struct field *field, const char *usual_facts)
{
    struct made_parts parts;
    uint64_t own;
    char lines[16][256] = {{0}};
    bool printed[16] = {false};

    made_elf_parts(&usual, &parts);
    own = field_get(field, &parts);
    {
        const uint64_t numbers[16] = {0,       1,          2,      3,          4,   own - 1,    own + 1,    own + 24,
                                      own * 2, needed - 1, needed, needed + 1, 255, UINT16_MAX, UINT32_MAX, UINT64_MAX};

        for (size_t i = 0; i < 16; i++)
            printed[i] = !changed(field, numbers[i], usual_facts, lines[i], sizeof(lines[i]));
        for (size_t i = 0; i < 16; i++) {
            if (printed[i])
                continue;
            printf("%s =", field->name);
            for (size_t k = i; k < 16; k++) {
                if (printed[k] || strcmp(lines[i], lines[k]) != 0)
                    continue;
                printf(" %llu", (unsigned long long)numbers[k]);
                printed[k] = true;
            }
            printf(": %s\n", lines[i]);
        }
    }
}

static int numbers(const void *arg)
{
    struct made_parts parts;
    char usual_facts[256];

    (void)arg;
    made_elf_parts(&usual, &parts);
    made_file(FILE_NAME, &parts, needed, 0755);
    facts(usual_facts, sizeof(usual_facts));
    printf("as it is: %s\n", usual_facts);
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++)
        field_print(&fields[i], usual_facts);
    return 0;
}

/* Entries of the tables are as far from each other as the file says. */
static int far_entries(const void *arg)
{
    struct {
        struct made_parts parts;
        char room[2048];
    } file = {0};
    char line[512];

    (void)arg;
    made_elf_parts(&usual, &file.parts);
    file.parts.header.e_phentsize = 2 * sizeof(Elf64_Phdr);
    file.parts.header.e_phoff = sizeof(file.parts);
    file.parts.header.e_shentsize = 3 * sizeof(Elf64_Shdr);
    file.parts.header.e_shoff = sizeof(file.parts) + 1001; /* no even number */
    for (size_t i = 0; i < 3; i++)
        memcpy(file.room + i * 2 * sizeof(Elf64_Phdr), &file.parts.segments[i], sizeof(Elf64_Phdr));
    for (size_t i = 0; i < 4; i++)
        memcpy(file.room + 1001 + i * 3 * sizeof(Elf64_Shdr), &file.parts.sections[i], sizeof(Elf64_Shdr));
    memset(file.parts.segments, 0, sizeof(file.parts.segments));
    memset(file.parts.sections, 0, sizeof(file.parts.sections));
    /* The file ends with the last entry of the sections, or of those of the segments; then with a byte less. */
    for (size_t i = 0; i < 4; i++) {
        const size_t end = i < 2 ? 1001 + 3 * 3 * sizeof(Elf64_Shdr) + sizeof(Elf64_Shdr)
                                 : 2 * sizeof(Elf64_Phdr) + sizeof(Elf64_Phdr);

        made_file(FILE_NAME, &file, sizeof(file.parts) + end - i % 2, 0755);
        facts(line, sizeof(line));
        puts(line);
    }
    return 0;
}

/* The entries that count are the first ones, whose size may be wrong; or the tables end the file. */
static int first_entries(const void *arg)
{
    static const size_t sizes[] = {sizeof(Elf64_Phdr), sizeof(Elf64_Phdr) - 1, sizeof(Elf64_Shdr),
                                   sizeof(Elf64_Shdr) - 1, 0};
    struct made_parts parts;
    char line[512];

    (void)arg;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        made_elf_parts(&usual, &parts);
        parts.segments[0] = parts.segments[1];
        parts.sections[0] = parts.sections[2];
        if (i < 2 || i == 4)
            parts.header.e_phentsize = (Elf64_Half)sizes[i];
        if (i >= 2)
            parts.header.e_shentsize = (Elf64_Half)sizes[i];
        parts.header.e_phnum = 1;
        parts.header.e_shnum = 1;
        made_file(FILE_NAME, &parts, needed, 0755);
        facts(line, sizeof(line));
        puts(line);
    }
    return 0;
}

/* Symbols, then their names, are the last of the file; then a byte less. */
static int at_the_end(const void *arg)
{
    struct {
        struct made_parts parts;
        Elf64_Sym symbols[8];
        char names[256];
    } file = {0};
    char line[512];

    (void)arg;
    made_elf_parts(&usual, &file.parts);
    memcpy(file.symbols, file.parts.symbols, sizeof(file.symbols));
    memcpy(file.names, file.parts.names, sizeof(file.names));
    for (size_t i = 0; i < 4; i++) {
        const size_t names = file.parts.sections[3].sh_size, symbols = file.parts.sections[2].sh_size;

        file.parts.sections[i < 2 ? 2 : 3].sh_offset = sizeof(file.parts);
        if (i == 2) {
            file.parts.sections[2].sh_offset = offsetof(struct made_parts, symbols);
            memcpy(file.symbols, file.names, names);
        }
        made_file(FILE_NAME, &file, sizeof(file.parts) + (i < 2 ? symbols : names) - i % 2, 0755);
        facts(line, sizeof(line));
        puts(line);
    }
    /* An empty table of names, and one of symbols, at the very end. */
    made_elf_parts(&usual, &file.parts);
    for (size_t i = 2; i < 4; i++) {
        file.parts.sections[i].sh_offset = sizeof(file.parts);
        file.parts.sections[i].sh_size = 0;
        made_file(FILE_NAME, &file, sizeof(file.parts), 0755);
        facts(line, sizeof(line));
        puts(line);
    }
    return 0;
}

static int machines(const void *arg)
{
    (void)arg;
    for (int i = -1; i < 300; i++)
        if (strcmp(elf_machine_name(i), "unknown") != 0)
            printf("%d: %s\n", i, elf_machine_name(i));
    return 0;
}

static int opening(const void *arg)
{
    char line[512];

    (void)arg;
    made_elf(FILE_NAME, &usual);
    facts(line, sizeof(line));
    puts(line);
    return 0;
}

/* The file gets the number 0. */
static int no_input(const void *arg)
{
    close(STDIN_FILENO);
    return opening(arg);
}

static int no_file(const void *arg)
{
    char line[512];

    if (arg)
        mkdir(FILE_NAME, 0755);
    facts(line, sizeof(line));
    puts(line);
    return 0;
}

const char golden_name[] = "info/elf";

void golden_cases(void)
{
    const struct golden cases[] = {{"no file", NULL, no_file, NULL},
                                   {"a file, where there is no standard input", NULL, no_input, NULL},
                                   {"a file that is cut", NULL, cut, NULL},
                                   {"other numbers", NULL, numbers, NULL},
                                   {"entries that are far apart", NULL, far_entries, NULL},
                                   {"entries that are the first ones", NULL, first_entries, NULL},
                                   {"tables at the end", NULL, at_the_end, NULL},
                                   {"machines", NULL, machines, NULL}};
    const struct golden open = {"a file is opened", NULL, opening, NULL};
    const struct golden folder = {"a folder", NULL, no_file, ""};

    golden_after = system_left;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        golden_run(&cases[i]);
    golden_sweep(&open);
    unlink(FILE_NAME);
    golden_run(&folder);
}
