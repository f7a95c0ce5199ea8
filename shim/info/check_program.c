/* SPDX-License-Identifier: Apache-2.0 */
/* check_program.c - the report on one executable; see check_internal.h. Each check is a function that prints its line.
 * No locks: one thread only. */
#include "info/check_internal.h"

#include <elf.h>
#include <errno.h>
#include <limits.h>
#include <link.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

#include "base/conf.h"
#include "base/conf_report.h"

/* This program's own header, from the linker: /proc may be missing. */
extern const ElfW(Ehdr) own_header __asm__("__ehdr_start") __attribute__((visibility("hidden")));

#define LIBS_MAX 1024
/* The longest wait for the loader's answer, in seconds; on a slow network it may take several. */
#define ANSWER_S 10

/* The libraries that the program's own loader would load. */
static struct {
    char *libs[LIBS_MAX]; /* paths, inside text */
    unsigned int lib_count;
    bool preloaded;     /* it loads libcupool.so */
    bool driver;        /* it finds a driver */
    char text[1 << 20]; /* its answer */
} loads;

static bool is_ours(const char *base)
{
    return strcmp(base, "libcupool.so") == 0 || strcmp(base, "libcupool-nccl.so") == 0;
}

static void look_at_privileges(const char *program)
{
    struct stat st;
    struct statvfs fs;

    if (stat(program, &st) != 0 || (statvfs(program, &fs) == 0 && fs.f_flag & ST_NOSUID))
        return;
    if ((st.st_mode & S_ISUID && st.st_uid != geteuid()) ||
        ((st.st_mode & (S_ISGID | S_IXGRP)) == (S_ISGID | S_IXGRP) && st.st_gid != getegid()))
        SAY_MISSED("it is set-uid or set-gid: the loader takes no preload, and cupool would do nothing");
    else if (geteuid() != 0 && getxattr(program, "security.capability", NULL, 0) > 0)
        SAY_MISSED("it has file capabilities: the loader takes no preload, and cupool would do nothing");
}

static bool is_roots_alone(const char *path)
{
    struct stat st;

    return stat(path, &st) == 0 && st.st_uid == 0 && !(st.st_mode & (S_IWGRP | S_IWOTH));
}

/* The file itself names its interpreter, and asking the interpreter means running it. So only a file is run that has a
 * loader's name after all links, and that only root can have put there. ret_path: the resolved path. */
static bool is_loader(const char *interp, char ret_path[PATH_MAX])
{
    static const char *const names[] = {"ld-linux", "ld64", "ld.so", "ld-2."}; /* links resolve to the last one */
    bool named = false, trusted;
    char *slash;

    if (!realpath(interp, ret_path))
        return false;
    slash = strrchr(ret_path, '/');
    for (unsigned int i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        named = named || strncmp(slash + 1, names[i], strlen(names[i])) == 0;
    *slash = '\0';
    trusted = is_roots_alone(*ret_path ? ret_path : "/");
    *slash = '/';
    return named && trusted && is_roots_alone(ret_path) && access(ret_path, X_OK) == 0;
}

static int remaining_ms(const struct timespec *end)
{
    struct timespec now;
    time_t left;

    clock_gettime(CLOCK_MONOTONIC, &now);
    left = (end->tv_sec - now.tv_sec) * 1000 + (end->tv_nsec - now.tv_nsec) / 1000000;
    return left > 0 ? (int)left : 0;
}

/* Read the answer into loads.text. False: it did not end in time. */
static bool read_answer(int fd)
{
    struct pollfd in = {.fd = fd, .events = POLLIN};
    struct timespec end;
    size_t used = 0;
    ssize_t n = 1;

    clock_gettime(CLOCK_MONOTONIC, &end);
    end.tv_sec += ANSWER_S;
    while (n && used < sizeof(loads.text) - 1) {
        const int rc = poll(&in, 1, remaining_ms(&end));

        if (rc < 0 && errno == EINTR)
            continue;
        n = rc > 0 ? read(fd, loads.text + used, sizeof(loads.text) - 1 - used) : -1;
        if (n < 0)
            break;
        used += (size_t)n;
    }
    loads.text[n < 0 ? 0 : used] = '\0';
    return n == 0;
}

/* Ask the program's own loader which libraries it would load, the preloads and, as a further preload, the driver
 * included. The loader runs no code of theirs. Asking it is better than repeating the many rules of its search. */
static void ask_loader(const char *interp, const char *program)
{
    const char *preload = getenv("LD_PRELOAD");
    char *env_preload = NULL, loader[PATH_MAX];
    pid_t pid;
    int fds[2];

    if (!is_loader(interp, loader) || asprintf(&env_preload, "%s:libcuda.so.1", preload ? preload : "") < 0)
        return;
    if (pipe(fds) != 0) {
        free(env_preload);
        return;
    }
    pid = fork();
    if (pid == 0) {
        setenv("LD_PRELOAD", env_preload, 1);
        dup2(fds[1], STDOUT_FILENO);
        dup2(fds[1], STDERR_FILENO);
        close(fds[0]);
        close(fds[1]);
        execl(loader, interp, "--list", program, (char *)NULL);
        _exit(127);
    }
    close(fds[1]);
    if (pid > 0) {
        if (!read_answer(fds[0]))
            kill(pid, SIGKILL);
        while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
            ;
    }
    close(fds[0]);
    free(env_preload);
}

/* A line is "NAME => PATH (0x..)", "PATH (0x..)", "NAME => not found", or an error. */
static void read_line(char *line)
{
    char *arrow = strstr(line, " => "), *path = arrow ? arrow + 4 : line + strspn(line, " \t");
    char *end = strstr(path, " (0x");

    if (arrow && strncmp(path, "not found", 9) == 0) {
        *arrow = '\0';
        check_found.broken = true;
        check_say("note", "%s is not found: the program does not start as it is", line + strspn(line, " \t"));
    } else if (end) {
        *end = '\0';
        if (is_ours(check_base_of(path)))
            loads.preloaded = true;
        else if (strncmp(check_base_of(path), "libcuda.so", 10) == 0)
            loads.driver = true;
        if (loads.lib_count < LIBS_MAX && path[0] == '/')
            loads.libs[loads.lib_count++] = path;
    } else if (!strstr(line, "libcuda.so.1") && (strstr(line, "rror") || strstr(line, "version `"))) {
        const bool broken = strstr(line, "error while loading") != NULL;

        check_found.broken |= broken;
        check_say("note", "%s%s", broken ? "the program does not start as it is: " : "the loader says: ", line);
    }
}

static void read_list(void)
{
    char *save = NULL;

    for (char *line = strtok_r(loads.text, "\n", &save); line; line = strtok_r(NULL, "\n", &save))
        read_line(line);
}

/* --- how the program reaches CUDA --- */

struct reach {
    const char *shared, *static_in, *driver_in, *asan, *other, *unsimulated;
};

static void look_at_file(const char *path, struct reach *reach)
{
    const char *base = check_base_of(path);
    struct elf_file file;

    if (strncmp(base, "libcudart.so", 12) == 0 || strncmp(base, "libcudart-", 10) == 0) {
        reach->shared = path;
        return;
    }
    if (strncmp(base, "libasan.so", 10) == 0)
        reach->asan = path;
    if (strncmp(base, "libcuda.so", 10) == 0 || is_ours(base) || elf_open(path, &file) != 0)
        return;
    /* Both texts are in every libcudart_static.a; a program of the driver API has only the first. */
    if (elf_contains(&file, "libcuda.so.1") && elf_contains(&file, "cudaErrorMissingConfiguration"))
        reach->static_in = path;
    else if (elf_symbol(&file, "cuMemAlloc_v2") == ELF_UNDEFINED || elf_contains(&file, "libcuda.so.1"))
        reach->driver_in = path;
    if (elf_symbol(&file, "cudaMalloc") == ELF_DEFINED || elf_symbol(&file, "cuMemAlloc_v2") == ELF_DEFINED)
        reach->other = path;
    /* The simulated GPU has no kernels, and not the tables by which NVIDIA's static cudart begins. */
    if (getenv("SIMGPU_DEVICES") && (elf_symbol(&file, "__cudaRegisterFatBinary") == ELF_UNDEFINED ||
                                     (reach->static_in == path && elf_contains(&file, "cuGetExportTable"))))
        reach->unsimulated = path;
    elf_close(&file);
}

static void look_at_reach(const char *program)
{
    const bool runtime_only = conf_get()->hook.number == HOOK_RUNTIME;
    struct reach reach = {0};

    look_at_file(program, &reach);
    for (unsigned int i = 0; i < loads.lib_count; i++)
        look_at_file(loads.libs[i], &reach);
    if (reach.shared)
        check_say("cudart", "shared: %s", reach.shared);
    if (reach.static_in)
        check_say("cudart", "static, in %s: caught where it calls the driver", reach.static_in);
    if (reach.driver_in)
        check_say("driver API", "used by %s", reach.driver_in);
    check_found.reaches = reach.shared || reach.static_in || reach.driver_in;
    if (!check_found.reaches)
        check_say(
            "cudart",
            "none is linked; what the program loads or starts while it runs is caught too, but cannot be seen here");
    if (runtime_only && (reach.static_in || reach.driver_in))
        SAY_MISSED("CUPOOL_HOOK=runtime sees calls of a shared libcudart only");
    if (reach.asan)
        SAY_MISSED("it is linked with %s, which refuses a preload in front of it: LD_PRELOAD=%s:libcupool.so",
                   check_base_of(reach.asan), check_base_of(reach.asan));
    if (reach.unsimulated) {
        check_found.broken = true;
        check_say("simulated", "%s cannot run on simulated GPUs (--sim): it has NVIDIA's static cudart, or kernels",
                  reach.unsimulated);
    }
    if (reach.other)
        check_say("note",
                  "%s has a cudaMalloc or cuMemAlloc of its own: what cupool does not serve goes through it if it is "
                  "preloaded",
                  reach.other);
}

/* Report functions that take memory which is not pooled: by the imports of the file and, unless a static cudart has all
 * these names anyway, by its strings, with which a program looks functions up. */
static void look_at_unpooled(const char *path)
{
    static const char *const names[] = {"cudaMallocAsync",   "cudaMallocAsync_ptsz", "cudaMallocFromPoolAsync",
                                        "cudaMallocManaged", "cuMemCreate",          "cuMemAllocAsync",
                                        "cuMemAllocManaged"};
    char list[200] = "";
    struct elf_file file;
    size_t used = 0;
    bool has_all;

    if (elf_open(path, &file))
        return;
    has_all = elf_contains(&file, "cudaErrorMissingConfiguration");
    for (unsigned int i = 0; i < sizeof(names) / sizeof(names[0]) && used < sizeof(list); i++) {
        const enum elf_symbol symbol = elf_symbol(&file, names[i]);

        if (symbol == ELF_UNDEFINED || (symbol == ELF_ABSENT && !has_all && elf_contains(&file, names[i])))
            used += (size_t)snprintf(list + used, sizeof(list) - used, "%s%s", used ? ", " : "", names[i]);
    }
    if (used)
        check_say("note", "%s calls %s: what is taken so is not pooled", check_base_of(path), list);
    elf_close(&file);
}

/* NVIDIA's libraries use these functions for their own memory. */
static bool is_nvidias(const char *path)
{
    return strncmp(check_base_of(path), "libcu", 5) == 0 || strncmp(check_base_of(path), "libnv", 5) == 0 ||
           strncmp(check_base_of(path), "libnccl", 7) == 0;
}

static void look_at_preload(void)
{
    const char *preload = getenv("LD_PRELOAD");
    char *copy = strdup(preload ? preload : ""), *save = NULL;
    bool named = false;

    for (char *entry = copy ? strtok_r(copy, ": ", &save) : NULL; entry; entry = strtok_r(NULL, ": ", &save)) {
        if (is_ours(check_base_of(entry)))
            named = true;
        else
            check_say("preload", "%s is preloaded too, %s cupool", entry, named ? "behind" : "in front of");
    }
    free(copy);
    if (!named)
        SAY_MISSED("LD_PRELOAD does not name libcupool.so; ask with cupool-run --check");
    else if (loads.lib_count && !loads.preloaded)
        SAY_MISSED("this program's loader does not take libcupool.so");
}

static void look_at_settings(void)
{
    static const char *const names[] = {"PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"};

    if (!conf_get()->enable.number)
        SAY_MISSED("CUPOOL_ENABLE=0 switches cupool off");
    if (conf_get()->debug.number == DEBUG_OWN)
        check_say("note", "CUPOOL_DEBUG=1: every request is a driver allocation of its own, nothing is pooled");
    for (unsigned int i = 0; i < 2; i++) {
        const char *value = getenv(names[i]);

        if (value && strstr(value, "expandable_segments:True"))
            check_say("note", "%s: expandable segments take memory by cuMemCreate, which is not pooled", names[i]);
    }
    conf_report();
}

void check_program(const char *path, const struct elf_file *file)
{
    const int bits = own_header.e_ident[EI_CLASS] == ELFCLASS64 ? 64 : 32;

    look_at_settings();
    check_say("program", "%s (%d-bit %s, %s)", path, file->bits, elf_machine_name(file->machine),
              file->bits == 64 && !file->interp ? "statically linked" : "dynamically linked");
    if (file->bits != bits || file->machine != own_header.e_machine) {
        SAY_MISSED("it is made for another machine than libcupool.so (%d-bit %s)", bits,
                   elf_machine_name(own_header.e_machine));
        return;
    }
    if (!file->interp) {
        SAY_MISSED("statically linked: there is no loader that could preload anything");
        return;
    }
    if (strncmp(check_base_of(file->interp), "ld-musl", 7) == 0) {
        SAY_MISSED("its libc is musl; libcupool.so is made for glibc");
        return;
    }
    look_at_privileges(path);
    ask_loader(file->interp, path);
    read_list();
    if (!loads.lib_count && !check_found.broken)
        check_say("note", "its loader %s does not list its libraries; they were not looked at", file->interp);
    look_at_preload();
    look_at_reach(path);
    look_at_unpooled(path);
    for (unsigned int i = 0; i < loads.lib_count; i++)
        if (!is_nvidias(loads.libs[i]))
            look_at_unpooled(loads.libs[i]);
    if (loads.lib_count && !loads.driver)
        check_say("driver", "libcuda.so.1 is not found: on this machine the program has no GPU to use");
    for (unsigned int i = 0; i < loads.lib_count; i++)
        if (strncmp(check_base_of(loads.libs[i]), "libcuda.so", 10) == 0)
            check_say("driver", "%s", loads.libs[i]);
}
