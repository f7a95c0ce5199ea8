/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_command.c - see check_command.h. This file follows the command through scripts and launchers to the last
 * program.
 *
 * Locking: none; cupool-info has one thread.
 */
#include "info/check_command.h"

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "info/check_internal.h"

#define PATH_LEN 4096
#define ARGS_MAX 256
/* The longest chain of scripts and launchers; a longer one is a circle. */
#define HOPS_MAX 12

/* Where the environment, and so the preload, goes when a program starts another one. Names are between blanks. */
enum starter { STARTS_HERE, STARTS_RANKS, STARTS_CONTAINER, STARTS_ELSEWHERE, STARTS_NONE };

static const char *const starters[] = {
    [STARTS_HERE] = (" env nice ionice nohup setsid time timeout stdbuf numactl taskset chrt setarch strace ltrace "
                     "perf nsys ncu compute-sanitizer "),
    [STARTS_RANKS] = " mpirun mpiexec mpiexec.hydra orterun prterun prun srun jsrun aprun ",
    [STARTS_CONTAINER] = " docker podman apptainer singularity enroot kubectl ",
    [STARTS_ELSEWHERE] = " ssh sbatch qsub sudo su runuser pkexec systemd-run ",
};

static struct {
    int argc;
    char *argv[ARGS_MAX];
    char path[PATH_LEN]; /* of argv[0] */
    char words[1 << 14]; /* words of the command that were not in argv */
    size_t words_len;
} check;

struct check_found check_found;

void check_say(const char *label, const char *format, ...)
{
    va_list args;

    printf("%-10s ", label);
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    putchar('\n');
}

const char *check_base_of(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash ? slash + 1 : path;
}

static bool is_program(const char *path)
{
    struct stat st;

    return stat(path, &st) == 0 && S_ISREG(st.st_mode) && access(path, X_OK) == 0;
}

/* The file that exec would run for name. */
static bool find_program(const char *name, char path[PATH_LEN])
{
    const char *dirs = getenv("PATH");

    if (strchr(name, '/')) {
        snprintf(path, PATH_LEN, "%s", name);
        return is_program(path);
    }
    for (dirs = dirs ? dirs : "/bin:/usr/bin";; dirs++) {
        const size_t len = strcspn(dirs, ":");

        snprintf(path, PATH_LEN, "%.*s/%s", len ? (int)len : 1, len ? dirs : ".", name);
        if (is_program(path))
            return true;
        dirs += len;
        if (!*dirs)
            return false;
    }
}

/* A copy of a word, for argv; NULL: no room. */
static char *keep(const char *word, size_t len)
{
    char *copy = check.words + check.words_len;

    if (len >= sizeof(check.words) - check.words_len)
        return NULL;
    memcpy(copy, word, len); /* the byte behind it is zero, as all that was not used */
    check.words_len += len + 1;
    return copy;
}

static bool put_in_front(int n, char *const *words)
{
    if (check.argc + n > ARGS_MAX)
        return false;
    memmove(check.argv + n, check.argv, (size_t)check.argc * sizeof(check.argv[0]));
    for (int i = 0; i < n; i++)
        check.argv[i] = words[i];
    check.argc += n;
    return true;
}

static void drop(int n)
{
    memmove(check.argv, check.argv + n, (size_t)(check.argc - n) * sizeof(check.argv[0]));
    check.argc -= n;
}

/* --- scripts --- */

/* Put the script's interpreter in front of the script. */
static bool follow_script(void)
{
    static char shell[] = "/bin/sh";
    char line[1024] = "", *words[2], *rest;
    bool text;
    FILE *file = fopen(check.path, "re");
    size_t n;

    if (!file) {
        check_say("program", "%s: cannot be read (%s)", check.path, strerror(errno));
        return false;
    }
    n = fread(line, 1, sizeof(line) - 1, file);
    fclose(file);
    text = !memchr(line, '\0', n);
    line[strcspn(line, "\n")] = '\0';
    check.argv[0] = keep(check.path, strlen(check.path));
    if (strncmp(line, "#!", 2) != 0) {
        if (!text) {
            check_say("program", "%s: neither a program nor a script", check.path);
            return false;
        }
        check_say("script", "%s without #!, which a shell takes as its own", check.path);
        words[0] = shell;
        return check.argv[0] && put_in_front(1, words);
    }
    rest = line + 2 + strspn(line + 2, " \t");
    check_say("script", "%s, run by %s", check.path, rest);
    n = strcspn(rest, " \t");
    words[0] = keep(rest, n);
    rest += n + strspn(rest + n, " \t");
    words[1] = keep(rest, strlen(rest));
    return check.argv[0] && words[0] && words[1] && put_in_front(*rest ? 2 : 1, words);
}

/* --- programs that start others --- */

static enum starter starter_find(const char *name)
{
    char word[64];
    enum starter kind = STARTS_HERE;

    if (snprintf(word, sizeof(word), " %s ", name) >= (int)sizeof(word))
        return STARTS_NONE;
    while (kind < STARTS_NONE && !strstr(starters[kind], word))
        kind++;
    return kind;
}

/* The index of the argument with which the program begins: the first one that names a program. Values of options seldom
 * do. */
static int program_find(void)
{
    char path[PATH_LEN];

    for (int i = 1; i < check.argc; i++)
        if (check.argv[i][0] != '-' && !strchr(check.argv[i], '=') && find_program(check.argv[i], path))
            return i;
    return 0;
}

/* The index of cupool-run among the arguments; 0: none. By name, because a container has files of its own. */
static int launcher_find(void)
{
    for (int i = 1; i < check.argc; i++)
        if (strcmp(check_base_of(check.argv[i]), "cupool-run") == 0)
            return i;
    return 0;
}

static void print_words(int from, int to)
{
    for (int i = from; i < to; i++)
        printf(" %s", check.argv[i]);
}

/* env can remove the preload again. */
static void look_at_env(int program)
{
    for (int i = 1; i < program; i++) {
        const char *arg = check.argv[i];

        if (strcmp(arg, "-i") == 0 || strcmp(arg, "-") == 0 || strcmp(arg, "--ignore-environment") == 0)
            SAY_MISSED("env %s empties the environment; put cupool-run behind it", arg);
        else if (strncmp(arg, "LD_PRELOAD=", 11) == 0 && !strstr(arg, "libcupool"))
            SAY_MISSED("env replaces LD_PRELOAD; put cupool-run behind it");
        else if ((strcmp(arg, "-u") == 0 && i + 1 < check.argc && strcmp(check.argv[i + 1], "LD_PRELOAD") == 0) ||
                 strcmp(arg, "-uLD_PRELOAD") == 0 || strcmp(arg, "--unset=LD_PRELOAD") == 0)
            SAY_MISSED("env takes LD_PRELOAD away; put cupool-run behind it");
    }
}

/* env -S holds a command in one word, because #! lines need that. */
static void split_env(void)
{
    static const char *const forms[] = {"-S", "--split-string=", "--split-string"};
    char *words[ARGS_MAX], *save = NULL, *text;
    int n = 0;

    for (unsigned int i = 0; check.argc > 1 && i < sizeof(forms) / sizeof(forms[0]); i++) {
        const size_t len = strlen(forms[i]);
        int used = 2;

        if (strncmp(check.argv[1], forms[i], len) != 0)
            continue;
        text = check.argv[1] + len;
        if (!*text && check.argc > 2 && forms[i][len - 1] != '=') /* the command is a word of its own */
            text = check.argv[used++];
        text = keep(text, strlen(text));
        for (char *w = text ? strtok_r(text, " \t", &save) : NULL; w && n < ARGS_MAX; w = strtok_r(NULL, " \t", &save))
            words[n++] = w;
        text = check.argv[0];
        drop(used);
        put_in_front(n, words);
        put_in_front(1, &text);
        return;
    }
}

static void say_ranks(int program)
{
    SAY_MISSED("%s does not hand the preload to ranks on other hosts, or to any. Put cupool-run inside:",
               check.argv[0]);
    printf("%-10s", "");
    if (!program) {
        printf(" %s OPTION... cupool-run -- PROGRAM ARGUMENT...\n", check.argv[0]);
        check_say("note", "none of the words behind %s is a program that is found here", check.argv[0]);
        return;
    }
    print_words(0, program);
    printf(" cupool-run --");
    print_words(program, check.argc);
    putchar('\n');
}

/* The preload does not reach the programs that these start. */
static void say_elsewhere(enum starter kind)
{
    if (kind == STARTS_CONTAINER)
        SAY_MISSED("%s starts its program in a container, without this environment; put cupool-run, and the library, "
                   "inside (see \"containers\" in cupool(7))",
                   check.argv[0]);
    else
        SAY_MISSED("%s starts its program without this environment; put cupool-run behind it", check.argv[0]);
}

enum follow { FOLLOW_NONE, FOLLOW_NEXT, FOLLOW_END };

/* FOLLOW_NEXT: argv is now the command that argv[0] starts. FOLLOW_NONE: argv[0] starts no other program. FOLLOW_END:
 * the report is complete. */
static enum follow follow_starter(void)
{
    const enum starter kind = starter_find(check_base_of(check.argv[0]));
    const bool is_env = strcmp(check_base_of(check.argv[0]), "env") == 0;
    const int launcher = launcher_find();
    int program;

    if (kind == STARTS_NONE)
        return FOLLOW_NONE;
    if (launcher) {
        check_say("launcher", "%s starts cupool-run, which is right", check.argv[0]);
        if (kind == STARTS_CONTAINER) {
            check_say("note", "what is in the container cannot be seen here; ask there");
            return FOLLOW_END;
        }
        for (drop(launcher + 1); check.argc && check.argv[0][0] == '-'; drop(1))
            ;
        return check.argc ? FOLLOW_NEXT : FOLLOW_END;
    }
    if (kind == STARTS_CONTAINER || kind == STARTS_ELSEWHERE) {
        say_elsewhere(kind);
        return FOLLOW_END;
    }
    if (is_env)
        split_env();
    program = program_find();
    if (kind == STARTS_RANKS)
        say_ranks(program);
    else
        check_say("starter", "%s hands the environment on", check.argv[0]);
    if (is_env)
        look_at_env(program ? program : check.argc);
    if (!program)
        return kind == STARTS_HERE ? FOLLOW_NONE : FOLLOW_END;
    drop(program);
    return FOLLOW_NEXT;
}

static int verdict(void)
{
    if (check_found.missed)
        check_say("verdict", "not caught, or not everywhere; see above");
    else if (check_found.broken)
        check_say("verdict", "nothing stands in the way of cupool, but the program does not start as it is; see above");
    else
        check_say("verdict", check_found.reaches ? "caught: what this program allocates comes from the pool"
                                                 : "nothing stands in the way of catching what it loads or starts");
    return check_found.missed;
}

/* Check one program of the chain. 0 or 1: the verdict; 2: nothing is known; -1: argv is the next program. */
static int check_hop(void)
{
    struct elf_file file;
    enum follow follow;
    int error;

    if (!find_program(check.argv[0], check.path)) {
        check_say("program", "%s: not found, or not executable", check.argv[0]);
        return 2;
    }
    /* Names come before contents, because launchers may be scripts as well as programs. */
    follow = follow_starter();
    if (follow != FOLLOW_NONE)
        return follow == FOLLOW_NEXT ? -1 : verdict();
    error = elf_open(check.path, &file);
    if (error == -ENOEXEC)
        return follow_script() ? -1 : 2;
    if (error) {
        check_say("program", "%s: cannot be read (%s), so nothing can be said of it", check.path, strerror(-error));
        return 2;
    }
    check_program(check.path, &file);
    elf_close(&file);
    return verdict();
}

int check_command(int argc, char **argv)
{
    int status = -1;

    if (argc > ARGS_MAX)
        argc = ARGS_MAX;
    memcpy(check.argv, argv, (size_t)argc * sizeof(argv[0]));
    check.argc = argc;
    for (int hop = 0; hop < HOPS_MAX && status < 0; hop++)
        status = check_hop();
    if (status < 0)
        check_say("program", "%s: too many scripts and launchers one in another", argv[0]);
    return status < 0 ? 2 : status;
}
