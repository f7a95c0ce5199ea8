/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cupool_info.c - the program cupool-info: prints every setting with its value, the rank and host of this process, and
 * whether cupool will catch a program's allocations. docs/settings.md is made by --markdown, the manual's list by
 * --man. Only the report on the machine loads CUDA. It has one thread.
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/conf.h"
#include "base/conf_report.h"
#include "base/launch.h"
#include "info/check_command.h"
#include "info/machine.h"

static const char *source(const struct conf_value *value)
{
    if (value->invalid)
        return "default (the environment's value is not accepted)";
    return value->from_env ? "environment" : "default";
}

static void print_settings(void)
{
    for (unsigned int i = 0; i < conf_count; i++) {
        const struct conf_row *row = &conf_rows[i];
        const struct conf_value *value = conf_value_get(i);

        printf("%s=%s\n    %s.\n    accepted: %s; default: %s; value from: %s\n", row->name, value->text, row->help,
               row->choices, *row->def ? row->def : "(none)", source(value));
    }
}

/* Print a setting's help as a sentence, in lines no longer than the documentation's (scripts/check-docs). */
static void print_sentence(const char *text)
{
    size_t column = 0;

    for (const char *word = text; *word;) {
        const size_t length = strcspn(word, " ");

        if (column > 0) {
            const bool next_line = column + 1 + length >= 120; /* a full stop may follow */

            putchar(next_line ? '\n' : ' ');
            column = next_line ? 0 : column + 1;
        }
        printf("%.*s", (int)length, word);
        column += length;
        word += length + strspn(word + length, " ");
    }
    puts(".");
}

static void print_markdown(void)
{
    for (unsigned int i = 0; i < conf_count; i++) {
        const struct conf_row *row = &conf_rows[i];

        printf("\n## `%s`\n\nAccepted: ", row->name);
        for (const char *c = row->choices; *c; c++)
            fputs(*c == '|' ? ", " : (char[]){*c, '\0'}, stdout);
        printf(". %s%s%s.\n\n", *row->def ? "Default: `" : "No default", row->def, *row->def ? "`" : "");
        print_sentence(row->help);
    }
    putchar('\n');
}

/* Escape text for troff, where a backslash, a hyphen and a dot at the start of a line have a meaning. */
static void print_roff(const char *text)
{
    for (const char *c = text; *c; c++) {
        if (*c == '|')
            fputs(" | ", stdout);
        else if (*c == '\\' || *c == '-')
            printf(*c == '-' ? "\\-" : "\\e");
        else
            putchar(*c);
    }
}

static void print_man(void)
{
    for (unsigned int i = 0; i < conf_count; i++) {
        const struct conf_row *row = &conf_rows[i];

        printf(".TP\n.BR %s \" (", row->name);
        print_roff(row->choices);
        printf("; default: ");
        print_roff(*row->def ? row->def : "none");
        printf(")\"\n\\&");
        print_roff(row->help);
        puts(".");
    }
}

static void print_process(void)
{
    const char *page = conf_get()->stats_file.text;
    char path[4096];
    struct launch launch;

    launch_detect(&launch);
    printf("host %s, rank %d, local rank %d (from: %s)\n", launch.host, launch.rank, launch.local_rank, launch.from);
    if (launch_expand(&launch, conf_get()->trace_file.text, path, sizeof(path)) == 0)
        printf("a trace of this process would be: %s\n", path);
    if (*page && strcmp(page, "off") != 0 && launch_expand(&launch, page, path, sizeof(path)) == 0)
        printf("its statistics page: %s\n", path);
}

/* 0: the setting's value in "NAME=VALUE" is accepted. 1: it is not; what is, is printed. 2: there is no such setting.
 */
static int print_accepted(char *assignment)
{
    char *equals = strchr(assignment, '=');

    if (!equals)
        return 2;
    *equals = '\0';
    for (unsigned int i = 0; i < conf_count; i++) {
        if (strcmp(conf_rows[i].name, assignment) != 0)
            continue;
        if (setenv(assignment, equals + 1, /* overwrite: */ 1))
            return 2;
        if (!conf_value_get(i)->invalid)
            return 0;
        for (const char *c = conf_rows[i].choices; *c; c++)
            fputs(*c == '|' ? " | " : (char[]){*c, '\0'}, stdout);
        putchar('\n');
        return 1;
    }
    return 2;
}

static int usage(void)
{
    fputs("usage: cupool-info [-a | -c | --markdown | --man | --process | --version | --help]\n"
          "       cupool-info --accepts NAME=VALUE\n"
          "       cupool-info --check COMMAND [ARGUMENT]...\n"
          "Without an option: the driver, GPUs, cudart and NCCL that are found here, what cupool can do with them, and "
          "limits.\n"
          "  -a, --all      this machine, every setting, and this process\n"
          "  -c, --settings  every setting, its value and where that comes from\n"
          "  --markdown  the settings as Markdown\n"
          "  --man       the settings for a manual page\n"
          "  --process   rank, host and trace file name as a program started here would get them\n"
          "  --accepts   whether the setting NAME accepts VALUE; exit status 0: it does, 1: it does not and what it "
          "accepts\n"
          "              is printed, 2: there is no such setting\n"
          "  --check     what cupool would catch of COMMAND; without LD_PRELOAD set, use cupool-run --check\n"
          "  --version   the version\n",
          stdout);
    return 0;
}

static int wrong(const char *word)
{
    if (strcmp(word, "--check") == 0 || strcmp(word, "--accepts") == 0)
        fprintf(stderr, "cupool-info: %s needs %s (see cupool-info --help)\n", word,
                strcmp(word, "--check") == 0 ? "a command" : "NAME=VALUE");
    else
        fprintf(stderr, "cupool-info: '%s' is not understood (see cupool-info --help)\n", word);
    return 2;
}

/* An option, and what is printed for it in this order. */
static const struct {
    const char *names[2];
    void (*print[3])(void);
    bool report; /* the version before, and warnings of bad settings after it */
} outputs[] = {
    {{"", NULL}, {machine_print}, true},
    {{"-a", "--all"}, {machine_print, print_settings, print_process}, true},
    {{"-c", "--settings"}, {print_settings}, true},
    {{"--markdown", NULL}, {print_markdown}, false},
    {{"--man", NULL}, {print_man}, false},
    {{"--process", NULL}, {print_process}, false},
};

static int run(int argc, char **argv)
{
    /* An empty argument is no option. */
    const char *option = argc < 2 ? "" : *argv[1] ? argv[1] : "?";

    if (strcmp(option, "--check") == 0 && argc > 2)
        return check_command(argc - 2, argv + 2);
    if (strcmp(option, "--accepts") == 0 && argc == 3)
        return print_accepted(argv[2]);
    if (argc > 2)
        return wrong(argv[2]);
    if (strcmp(option, "--version") == 0) {
        printf("cupool %s\n", CUPOOL_VERSION);
        return 0;
    }
    for (size_t i = 0; i < sizeof(outputs) / sizeof(outputs[0]); i++) {
        if (strcmp(option, outputs[i].names[0]) != 0 &&
            (!outputs[i].names[1] || strcmp(option, outputs[i].names[1]) != 0))
            continue;
        if (outputs[i].report)
            printf("cupool %s\n", CUPOOL_VERSION);
        for (unsigned int j = 0; j < 3 && outputs[i].print[j]; j++)
            outputs[i].print[j]();
        if (outputs[i].report)
            conf_report();
        return 0;
    }
    if (strcmp(option, "--help") == 0 || strcmp(option, "-h") == 0)
        return usage();
    return wrong(argv[1]);
}

int main(int argc, char **argv)
{
    const int status = run(argc, argv);

    /* A full disk shows only here, since stdio keeps what is printed. */
    if (fflush(stdout) == 0 && !ferror(stdout))
        return status;
    fprintf(stderr, "cupool-info: standard output: not all of it could be written\n");
    return 2;
}
