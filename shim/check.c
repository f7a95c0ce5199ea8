/* SPDX-License-Identifier: Apache-2.0 */
/* check.c - see check.h. A function for each thing that is looked at; it prints its line and may say "not caught". */
#include "check.h"

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "conf.h"
#include "elf_file.h"

#define PATH_LEN 4096
#define ARGS_MAX 256
#define LIBS_MAX 1024
/* Scripts of scripts, launchers of launchers: more is a circle. */
#define HOPS_MAX 12

/* What the environment, and so the preload, goes through when a program starts another. Names between blanks. */
enum starter { STARTS_HERE, STARTS_RANKS, STARTS_CONTAINER, STARTS_ELSEWHERE, STARTS_NONE };

static const char *const starters[] = {
    [STARTS_HERE] = " env nice ionice nohup setsid time timeout stdbuf numactl taskset chrt setarch strace ltrace perf "
                    "nsys ncu compute-sanitizer ",
    [STARTS_RANKS] = " mpirun mpiexec mpiexec.hydra orterun prterun prun srun jsrun aprun ",
    [STARTS_CONTAINER] = " docker podman apptainer singularity enroot kubectl ",
    [STARTS_ELSEWHERE] = " ssh sbatch qsub sudo su runuser pkexec systemd-run ",
};

static struct {
    bool missed; /* something was said that keeps calls from us */
    int argc;
    char *argv[ARGS_MAX + 1];
    char path[PATH_LEN];  /* of argv[0] */
    char *libs[LIBS_MAX]; /* what the loader would load, paths */
    unsigned int lib_count;
    bool preloaded;      /* the loader takes libcupool.so */
    bool driver;         /* and finds a driver */
    bool reaches;        /* CUDA is linked */
    char text[1 << 20];  /* the loader's answer */
    char words[1 << 14]; /* of the command, that were not in argv */
    size_t words_len;
} check;

static void say(const char *label, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void say(const char *label, const char *format, ...)
{
    va_list args;

    printf("%-10s ", label);
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    putchar('\n');
}

#define SAY_MISSED(...) (check.missed = true, say("NOT CAUGHT", __VA_ARGS__))

static const char *base_of(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash ? slash + 1 : path;
}

static bool is_program(const char *path)
{
    struct stat st;

    return stat(path, &st) == 0 && S_ISREG(st.st_mode) && access(path, X_OK) == 0;
}

/* The file that exec would take for name. */
static bool find_program(const char *name, char path[PATH_LEN])
{
    const char *dirs = getenv("PATH");

    if (strchr(name, '/')) {
        snprintf(path, PATH_LEN, "%s", name);
        return is_program(path);
    }
    for (dirs = dirs ? dirs : "/bin:/usr/bin"; *name; dirs++) {
        const size_t len = strcspn(dirs, ":");

        snprintf(path, PATH_LEN, "%.*s/%s", len ? (int)len : 1, len ? dirs : ".", name);
        if (is_program(path))
            return true;
        dirs += len;
        if (!*dirs)
            return false;
    }
    return false;
}

/* A copy of a word, for argv; NULL: too many. */
static char *keep(const char *word, size_t len)
{
    char *copy = check.words + check.words_len;

    if (len >= sizeof(check.words) - check.words_len)
        return NULL;
    memcpy(copy, word, len);
    copy[len] = '\0';
    check.words_len += len + 1;
    return copy;
}

static bool put_in_front(int n, char *const *words)
{
    if (check.argc + n > ARGS_MAX)
        return false;
    memmove(check.argv + n, check.argv, ((size_t)check.argc + 1) * sizeof(check.argv[0]));
    for (int i = 0; i < n; i++)
        check.argv[i] = words[i];
    check.argc += n;
    return true;
}

static void drop(int n)
{
    memmove(check.argv, check.argv + n, ((size_t)(check.argc - n) + 1) * sizeof(check.argv[0]));
    check.argc -= n;
}

/* --- scripts --- */

/* Put the script's interpreter in front of it. */
static bool follow_script(void)
{
    char line[1024], *words[2], *rest;
    bool text;
    FILE *file = fopen(check.path, "re");
    size_t n;

    if (!file) {
        say("program", "%s: cannot be read (%s)", check.path, strerror(errno));
        return false;
    }
    n = fread(line, 1, sizeof(line) - 1, file);
    fclose(file);
    line[n] = '\0';
    text = !memchr(line, '\0', n);
    line[strcspn(line, "\n")] = '\0';
    check.argv[0] = keep(check.path, strlen(check.path));
    if (strncmp(line, "#!", 2) != 0) {
        if (!text) {
            say("program", "%s: neither a program nor a script", check.path);
            return false;
        }
        say("script", "%s without #!, which a shell takes as its own", check.path);
        words[0] = keep("/bin/sh", strlen("/bin/sh"));
        return check.argv[0] && words[0] && put_in_front(1, words);
    }
    rest = line + 2 + strspn(line + 2, " \t");
    say("script", "%s, run by %s", check.path, rest);
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

/* Where among the arguments the program begins: the first that is one. Values of options mostly are none. */
static int program_find(void)
{
    char path[PATH_LEN];

    for (int i = 1; i < check.argc; i++)
        if (check.argv[i][0] != '-' && !strchr(check.argv[i], '=') && find_program(check.argv[i], path))
            return i;
    return 0;
}

static void print_words(int from, int to)
{
    for (int i = from; i < to; i++)
        printf(" %s", check.argv[i]);
}

/* env can take the preload away again. */
static void look_at_env(int program)
{
    for (int i = 1; i < program; i++) {
        const char *arg = check.argv[i];

        if (strcmp(arg, "-i") == 0 || strcmp(arg, "-") == 0 || strcmp(arg, "--ignore-environment") == 0)
            SAY_MISSED("env %s empties the environment; put cupool-run behind it", arg);
        else if (strncmp(arg, "LD_PRELOAD=", 11) == 0 && !strstr(arg, "libcupool.so"))
            SAY_MISSED("env replaces LD_PRELOAD; put cupool-run behind it");
        else if ((strcmp(arg, "-u") == 0 && strcmp(check.argv[i + 1], "LD_PRELOAD") == 0) ||
                 strcmp(arg, "-uLD_PRELOAD") == 0 || strcmp(arg, "--unset=LD_PRELOAD") == 0)
            SAY_MISSED("env takes LD_PRELOAD away; put cupool-run behind it");
    }
}

/* env -S holds a command in one word, as #! lines need it. */
static void split_env(void)
{
    static const char *const forms[] = {"-S", "--split-string="};
    char *words[32], *save = NULL, *text;
    int n = 0;

    for (unsigned int i = 0; check.argc > 1 && i < 2; i++) {
        const size_t len = strlen(forms[i]);

        if (strncmp(check.argv[1], forms[i], len) != 0)
            continue;
        text = keep(check.argv[1] + len, strlen(check.argv[1] + len));
        for (char *w = text ? strtok_r(text, " \t", &save) : NULL; w && n < 32; w = strtok_r(NULL, " \t", &save))
            words[n++] = w;
        words[n] = NULL;
        text = check.argv[0];
        drop(2);
        put_in_front(n, words);
        put_in_front(1, &text);
        return;
    }
}

static void say_ranks(int program, bool inside)
{
    if (inside) {
        say("launcher", "%s starts cupool-run on every rank, which is right", check.argv[0]);
        return;
    }
    SAY_MISSED("%s does not hand the preload to ranks on other hosts, or to any. Put cupool-run inside:",
               check.argv[0]);
    printf("%-10s", "");
    print_words(0, program ? program : check.argc);
    printf(" cupool-run --");
    print_words(program ? program : check.argc, check.argc);
    putchar('\n');
}

/* The preload does not reach what these start. */
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

/* FOLLOW_NEXT: argv is now what the program in argv[0] starts. NONE: it is itself what matters. END: all is said. */
static enum follow follow_starter(void)
{
    const enum starter kind = starter_find(base_of(check.argv[0]));
    const bool is_env = strcmp(base_of(check.argv[0]), "env") == 0;
    int program;
    bool inside;

    if (kind == STARTS_NONE)
        return FOLLOW_NONE;
    if (is_env)
        split_env();
    program = program_find();
    inside = program && strcmp(base_of(check.argv[program]), "cupool-run") == 0;
    if (kind == STARTS_CONTAINER || (kind == STARTS_ELSEWHERE && !inside)) {
        say_elsewhere(kind);
        return FOLLOW_END;
    }
    if (kind == STARTS_RANKS)
        say_ranks(program, inside);
    else
        say("starter", "%s hands the environment on", check.argv[0]);
    if (is_env && !inside)
        look_at_env(program ? program : check.argc);
    if (!program)
        return kind == STARTS_HERE ? FOLLOW_NONE : FOLLOW_END;
    drop(program);
    if (inside)
        for (drop(1); check.argc && check.argv[0][0] == '-'; drop(1))
            ;
    return check.argc ? FOLLOW_NEXT : FOLLOW_END;
}

/* --- the executable --- */

static void look_at_privileges(void)
{
    struct stat st;
    struct statvfs fs;

    if (stat(check.path, &st) != 0 || (statvfs(check.path, &fs) == 0 && fs.f_flag & ST_NOSUID))
        return;
    if ((st.st_mode & S_ISUID && st.st_uid != geteuid()) ||
        ((st.st_mode & (S_ISGID | S_IXGRP)) == (S_ISGID | S_IXGRP) && st.st_gid != getegid()))
        SAY_MISSED("it is set-uid or set-gid: the loader takes no preload, and cupool would do nothing");
    else if (geteuid() != 0 && getxattr(check.path, "security.capability", NULL, 0) > 0)
        SAY_MISSED("it has file capabilities: the loader takes no preload, and cupool would do nothing");
}

/* Ask the program's own loader what it would load, the preloads and, as one more of those, the driver. It runs no code
 * of theirs. One answer for all: the loader's search has more rules than one would want to write down again. */
static void ask_loader(const char *interp)
{
    const char *preload = getenv("LD_PRELOAD");
    char *env_preload = NULL;
    size_t used = 0;
    ssize_t n;
    pid_t pid;
    int fds[2];

    if (access(interp, X_OK) != 0 || pipe(fds) != 0 ||
        asprintf(&env_preload, "%s:libcuda.so.1", preload ? preload : "") < 0)
        return;
    fflush(stdout);
    pid = fork();
    if (pid == 0) {
        setenv("LD_PRELOAD", env_preload, 1);
        dup2(fds[1], STDOUT_FILENO);
        dup2(fds[1], STDERR_FILENO);
        close(fds[0]);
        close(fds[1]);
        execl(interp, interp, "--list", check.path, (char *)NULL);
        _exit(127);
    }
    close(fds[1]);
    while (pid > 0 && used < sizeof(check.text) - 1 &&
           (n = read(fds[0], check.text + used, sizeof(check.text) - 1 - used)) != 0) {
        if (n < 0 && errno != EINTR)
            break;
        used += n > 0 ? (size_t)n : 0;
    }
    close(fds[0]);
    if (pid > 0)
        while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
            ;
    free(env_preload);
    check.text[used] = '\0';
}

/* A line is "NAME => PATH (0x..)", "PATH (0x..)", "NAME => not found", or an error. */
static void read_line(char *line)
{
    char *arrow = strstr(line, " => "), *path = arrow ? arrow + 4 : line + strspn(line, " \t");
    char *end = strstr(path, " (0x");

    if (arrow && strncmp(path, "not found", 9) == 0) {
        *arrow = '\0';
        say("note", "%s is not found: the program does not start as it is", line + strspn(line, " \t"));
    } else if (end) {
        *end = '\0';
        if (strcmp(base_of(path), "libcupool.so") == 0)
            check.preloaded = true;
        else if (strncmp(base_of(path), "libcuda.so", 10) == 0)
            check.driver = true;
        if (check.lib_count < LIBS_MAX && path[0] == '/')
            check.libs[check.lib_count++] = path;
    } else if (!strstr(line, "libcuda.so.1") && (strstr(line, "rror") || strstr(line, "version `"))) {
        say("note", "%s%s",
            strstr(line, "error while loading") ? "the program does not start as it is: " : "the loader says: ", line);
    }
}

static void read_list(void)
{
    char *save = NULL;

    for (char *line = strtok_r(check.text, "\n", &save); line; line = strtok_r(NULL, "\n", &save))
        read_line(line);
}

/* --- what the program reaches CUDA by --- */

struct reach {
    const char *shared, *static_in, *driver_in, *asan, *other;
};

static void look_at_file(const char *path, struct reach *reach)
{
    const char *base = base_of(path);
    struct elf_file file;

    if (strncmp(base, "libcudart.so", 12) == 0 || strncmp(base, "libcudart-", 10) == 0) {
        reach->shared = path;
        return;
    }
    if (strncmp(base, "libasan.so", 10) == 0)
        reach->asan = path;
    if (strncmp(base, "libcuda.so", 10) == 0 || strcmp(base, "libcupool.so") == 0 || elf_open(path, &file) != 0)
        return;
    /* Both are in every libcudart_static.a; a program of the driver API has the first only. */
    if (elf_contains(&file, "libcuda.so.1") && elf_contains(&file, "cudaErrorMissingConfiguration"))
        reach->static_in = path;
    else if (elf_symbol(&file, "cuMemAlloc_v2") == ELF_UNDEFINED || elf_contains(&file, "libcuda.so.1"))
        reach->driver_in = path;
    if (elf_symbol(&file, "cudaMalloc") == ELF_DEFINED || elf_symbol(&file, "cuMemAlloc_v2") == ELF_DEFINED)
        reach->other = path;
    elf_close(&file);
}

static void look_at_reach(void)
{
    const bool runtime_only = conf_get()->hook.number == HOOK_RUNTIME;
    struct reach reach = {0};

    look_at_file(check.path, &reach);
    for (unsigned int i = 0; i < check.lib_count; i++)
        look_at_file(check.libs[i], &reach);
    if (reach.shared)
        say("cudart", "shared: %s", reach.shared);
    if (reach.static_in)
        say("cudart", "static, in %s: caught where it calls the driver", reach.static_in);
    if (reach.driver_in)
        say("driver API", "used by %s", reach.driver_in);
    check.reaches = reach.shared || reach.static_in || reach.driver_in;
    if (!check.reaches)
        say("cudart",
            "none is linked; what the program loads or starts while it runs is caught too, but cannot be seen here");
    if (runtime_only && (reach.static_in || reach.driver_in))
        SAY_MISSED("CUPOOL_HOOK=runtime sees calls of a shared libcudart only");
    if (reach.asan)
        SAY_MISSED("it is linked with %s, which refuses a preload in front of it: LD_PRELOAD=%s:libcupool.so",
                   base_of(reach.asan), base_of(reach.asan));
    if (reach.other)
        say("note",
            "%s has a cudaMalloc or cuMemAlloc of its own: what cupool does not serve goes through it if it is "
            "preloaded",
            reach.other);
}

static void look_at_preload(void)
{
    const char *preload = getenv("LD_PRELOAD");
    char *copy = strdup(preload ? preload : ""), *save = NULL;
    bool named = false;

    for (char *entry = copy ? strtok_r(copy, ": ", &save) : NULL; entry; entry = strtok_r(NULL, ": ", &save)) {
        if (strcmp(base_of(entry), "libcupool.so") == 0)
            named = true;
        else
            say("preload", "%s is preloaded too, %s cupool", entry, named ? "behind" : "in front of");
    }
    free(copy);
    if (!named)
        SAY_MISSED("LD_PRELOAD does not name libcupool.so; ask with cupool-run --check");
    else if (check.lib_count && !check.preloaded)
        SAY_MISSED("this program's loader does not take libcupool.so");
}

static void look_at_settings(void)
{
    static const char *const names[] = {"PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"};

    if (!conf_get()->enable.number)
        SAY_MISSED("CUPOOL_ENABLE=0 switches cupool off");
    if (conf_get()->debug.number == DEBUG_OWN)
        say("note", "CUPOOL_DEBUG=1: every request is a driver allocation of its own, nothing is pooled");
    for (unsigned int i = 0; i < 2; i++) {
        const char *value = getenv(names[i]);

        if (value && strstr(value, "expandable_segments:True"))
            say("note", "%s: expandable segments take memory by cuMemCreate, which is not pooled", names[i]);
    }
    conf_report();
}

static void look_at_program(const struct elf_file *file)
{
    struct elf_file own = {.bits = 64};

    if (elf_open("/proc/self/exe", &own) == 0)
        elf_close(&own);
    say("program", "%s (%d-bit %s, %s)", check.path, file->bits, elf_machine_name(file->machine),
        file->bits == 64 && !file->interp ? "statically linked" : "dynamically linked");
    if (file->bits != own.bits || file->machine != own.machine) {
        SAY_MISSED("it is made for another machine than libcupool.so (%d-bit %s)", own.bits,
                   elf_machine_name(own.machine));
        return;
    }
    if (!file->interp) {
        SAY_MISSED("statically linked: there is no loader that could preload anything");
        return;
    }
    if (strncmp(base_of(file->interp), "ld-musl", 7) == 0) {
        SAY_MISSED("its libc is musl; libcupool.so is made for glibc");
        return;
    }
    look_at_privileges();
    ask_loader(file->interp);
    read_list();
    if (!check.lib_count)
        say("note", "its loader %s does not list its libraries; they were not looked at", file->interp);
    look_at_preload();
    look_at_reach();
    if (check.lib_count && !check.driver)
        say("driver", "libcuda.so.1 is not found: on this machine the program has no GPU to use");
    for (unsigned int i = 0; i < check.lib_count; i++)
        if (strncmp(base_of(check.libs[i]), "libcuda.so", 10) == 0)
            say("driver", "%s", check.libs[i]);
}

static int verdict(void)
{
    if (check.missed)
        say("verdict", "not caught, or not everywhere; see above");
    else
        say("verdict", check.reaches ? "caught: what this program allocates comes from the pool"
                                     : "nothing stands in the way of catching what it loads or starts");
    return check.missed;
}

/* One program of the chain: 0 or 1, the verdict; 2, nothing can be said; -1, the next one is in argv. */
static int check_hop(void)
{
    struct elf_file file;
    enum follow follow;
    int error;

    if (!find_program(check.argv[0], check.path)) {
        say("program", "%s: not found, or not executable", check.argv[0]);
        return 2;
    }
    /* By name before by contents: launchers are scripts as well as programs. */
    follow = follow_starter();
    if (follow != FOLLOW_NONE)
        return follow == FOLLOW_NEXT ? -1 : verdict();
    error = elf_open(check.path, &file);
    if (error == -ENOEXEC)
        return follow_script() ? -1 : 2;
    if (error) {
        say("program", "%s: cannot be read (%s), so nothing can be said of it", check.path, strerror(-error));
        return 2;
    }
    look_at_settings();
    look_at_program(&file);
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
        say("program", "%s: too many scripts and launchers one in another", argv[0]);
    return status < 0 ? 2 : status;
}
