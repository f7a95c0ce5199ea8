/* SPDX-License-Identifier: Apache-2.0 */
/*
 * world.c - a program that is linked to nothing of CUDA (or, with WORLD_LINKED, to both libraries) and reaches it
 * through modules (world_mem.c), each called by a letter. Its arguments are commands, done in order; X is a module, N
 * the number of a block, in the order of requests:
 *
 *   load:X:FLAGS:PATH  dlopen a module; FLAGS as in host.c     unload:X  dlclose it
 *   object:FLAGS:PATH  dlopen something else                   call:NAME  a function of whatever is loaded
 *   start:X   what the API starts lazily                       device:X:ORDINAL
 *   alloc:X:SIZE   a block, filled through X with a byte of its own
 *   free:X:N       through any module                          check:X:N  does it hold its byte throughout?
 *   churn:X:TIMES:SIZE   allocate, check, free; blocks of varying size
 *   huge:X    a request that no GPU can serve                  last:X  print and clear the last error
 *   reset:X                                                    count:NAME  the stand-in's count of a driver function
 *   graph:X   a capture into a graph, by a call that CUDA 12.0 lacks
 *   leave:X:CALL   alloc, free, reset or graph: what a destructor of the module calls; Alloc, ...: in a thread
 *   write:FILE     open FILE, print its descriptor, write a line
 *   clearenv  from here on the environment is empty
 *   seccomp   from here on no file is opened, no socket, thread or process made: each fails with EPERM
 *   as:BYTES  leave so much address space                      stack:BYTES  the rest in a thread with such a stack
 *
 * An error of CUDA is printed and is not the end. Exit code 4: wrong data; 5: anything else that is not CUDA's.
 */
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#include "../program.h"
#include "world.h"

#ifdef WORLD_LINKED
/* Named, so that the linker keeps libcuda and libcudart: they are in the program's own scope then. */
int cuInit(unsigned int flags);
int cudaGetLastError(void);
void *const world_linked[] = {(void *)cuInit, (void *)cudaGetLastError};
#endif

#define BLOCKS 1024
#define PIECE  (256 << 10)

static struct {
    void *handle;
    const struct world_api *api;
} modules[128];

static struct {
    void *p;
    size_t size;
    int byte;
} blocks[BLOCKS];
static int n_blocks;

__attribute__((noreturn)) static void die(const char *what)
{
    const char *why = dlerror();

    printf("%s: %s\n", what, why ? why : strerror(errno));
    fflush(stdout);
    _exit(5);
}

static int said(const char *what, char module, int rc)
{
    if (rc)
        printf("%s:%c: error %d\n", what, module, rc);
    return rc;
}

static const struct world_api *api_of(char module)
{
    const struct world_api *api = modules[module & 127].api;

    if (!api)
        die("no such module");
    return api;
}

static int flags_of(const char *text)
{
    return (strchr(text, 'g') ? RTLD_GLOBAL : RTLD_LOCAL) | (strchr(text, 'd') ? RTLD_DEEPBIND : 0) |
           (strchr(text, 'z') ? RTLD_LAZY : RTLD_NOW);
}

static void load(char module, const char *flags, const char *path)
{
    const struct world_api *(*get)(void);
    void *handle = dlopen(path, flags_of(flags));

    if (!handle)
        die(path);
    *(void **)&get = dlsym(handle, "world_module");
    if (!get)
        die(path);
    modules[module & 127].handle = handle;
    modules[module & 127].api = get();
}

static void unload(char module)
{
    if (!modules[module & 127].handle || dlclose(modules[module & 127].handle))
        die("dlclose");
    modules[module & 127].handle = NULL;
    modules[module & 127].api = NULL;
}

/* Piece by piece, in a buffer that is nobody's allocation: some tests leave hardly any. */
static void check(char module, int n)
{
    static unsigned char host[PIECE];
    const struct world_api *api = api_of(module);

    for (size_t at = 0; at < blocks[n].size; at += PIECE) {
        const size_t some = blocks[n].size - at < PIECE ? blocks[n].size - at : PIECE;

        if (said("read", module, api->read(host, (char *)blocks[n].p + at, some)))
            return;
        for (size_t i = 0; i < some; i++) {
            if (host[i] != blocks[n].byte) {
                printf("wrong data: block %d, byte %zu of %zu is %d, not %d\n", n, at + i, blocks[n].size, host[i],
                       blocks[n].byte);
                fflush(stdout);
                _exit(4);
            }
        }
    }
}

static int take(char module, size_t size)
{
    const struct world_api *api = api_of(module);
    const int n = n_blocks;

    if (n == BLOCKS)
        die("too many blocks");
    blocks[n].p = NULL;
    if (said("alloc", module, api->alloc(&blocks[n].p, size)))
        return -1;
    n_blocks++;
    blocks[n].size = size;
    blocks[n].byte = 1 + n % 250;
    if (said("fill", module, api->fill(blocks[n].p, blocks[n].byte, size)) == 0)
        check(module, n);
    return n;
}

static void churn(char module, long times, size_t size)
{
    const int first = n_blocks;

    for (long i = 0; i < times; i++) {
        const int n = take(module, size - size / 3 * (size_t)(i % 3) / 2);

        if (n >= 0)
            said("free", module, api_of(module)->free(blocks[n].p));
        n_blocks = first;
    }
}

static void count(const char *name)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    unsigned long (*get)(const char *) = NULL;

    if (driver)
        *(void **)&get = dlsym(driver, "simgpu_count");
    printf("%s %lu\n", name, get ? get(name) : 0);
}

static void call(const char *name)
{
    void (*function)(void);

    *(void **)&function = dlsym(RTLD_DEFAULT, name);
    if (!function)
        die(name);
    function();
}

static void file_write(const char *path)
{
    const int fd = open(path, O_RDWR | O_CREAT | O_APPEND, 0666);

    if (fd < 0 || write(fd, "mine\n", 5) != 5)
        die(path);
    printf("fd %d\n", fd);
}

#if defined(__x86_64__)
#define THIS_ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define THIS_ARCH AUDIT_ARCH_AARCH64
#endif

static void confine(void)
{
#define DENY(nr) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, nr, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM)
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, THIS_ARCH, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
#ifdef SYS_open
        DENY(SYS_open),
        DENY(SYS_creat),
        DENY(SYS_fork),
        DENY(SYS_vfork),
        DENY(SYS_readlink),
#endif
        DENY(SYS_openat),
        DENY(SYS_openat2),
        DENY(SYS_clone),
        DENY(SYS_clone3),
        DENY(SYS_socket),
        DENY(SYS_execve),
        DENY(SYS_readlinkat),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const struct sock_fprog program = {sizeof(filter) / sizeof(filter[0]), filter};

    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
        die("seccomp");
}

/* Address space: that in use, and so much more. */
static void space(size_t more)
{
    struct rlimit limit;
    unsigned long pages = 0;
    FILE *statm = fopen("/proc/self/statm", "r");

    if (!statm || fscanf(statm, "%lu", &pages) != 1)
        die("/proc/self/statm");
    fclose(statm);
    limit.rlim_cur = limit.rlim_max = pages * (rlim_t)sysconf(_SC_PAGESIZE) + more;
    if (setrlimit(RLIMIT_AS, &limit))
        die("setrlimit");
}

static void commands(int argc, char **argv);

struct rest {
    int argc;
    char **argv;
};

static void *rest_main(void *arg)
{
    const struct rest *rest = (const struct rest *)arg;

    commands(rest->argc, rest->argv);
    return NULL;
}

static void in_thread(size_t stack, int argc, char **argv)
{
    struct rest rest = {argc, argv};
    pthread_attr_t attr;
    pthread_t id;

    pthread_attr_init(&attr);
    if (pthread_attr_setstacksize(&attr, stack) || pthread_create(&id, &attr, rest_main, &rest))
        die("thread");
    pthread_join(id, NULL);
}

/* One command; its words are fields, empty where left out. */
static void command(char **field)
{
    const char module = field[1][0];
    const long n[4] = {0, strtol(field[1], NULL, 0), strtol(field[2], NULL, 0), strtol(field[3], NULL, 0)};
#define IS(name) (strcmp(field[0], name) == 0)

    if (IS("load")) {
        load(module, field[2], field[3]);
    } else if (IS("unload")) {
        unload(module);
    } else if (IS("object")) {
        if (!dlopen(field[2], flags_of(field[1])))
            die(field[2]);
    } else if (IS("call")) {
        call(field[1]);
    } else if (IS("start")) {
        said("start", module, api_of(module)->start());
    } else if (IS("device")) {
        said("device", module, api_of(module)->device((int)n[2]));
    } else if (IS("alloc")) {
        take(module, (size_t)n[2]);
    } else if (IS("free")) {
        said("free", module, api_of(module)->free(blocks[n[2]].p));
    } else if (IS("check")) {
        check(module, (int)n[2]);
    } else if (IS("churn")) {
        churn(module, n[2], (size_t)n[3]);
    } else if (IS("huge")) {
        void *p;

        said("huge", module, api_of(module)->alloc(&p, (size_t)1 << 60));
    } else if (IS("last")) {
        printf("last:%c: %d\n", module, api_of(module)->last());
    } else if (IS("reset")) {
        said("reset", module, api_of(module)->reset());
    } else if (IS("graph")) {
        printf("graph:%c: %d\n", module, api_of(module)->graph());
    } else if (IS("leave")) {
        api_of(module)->leave(field[2][0]);
    } else if (IS("count")) {
        count(field[1]);
    } else if (IS("write")) {
        file_write(field[1]);
    } else if (IS("clearenv")) {
        clearenv();
    } else if (IS("seccomp")) {
        confine();
    } else if (IS("as")) {
        space((size_t)n[1]);
    } else {
        errno = EINVAL;
        die(field[0]);
    }
}

static void commands(int argc, char **argv)
{
    for (int i = 0; i < argc; i++) {
        char *field[4] = {argv[i]};

        if (strncmp(argv[i], "stack:", 6) == 0) {
            in_thread((size_t)strtol(argv[i] + 6, NULL, 0), argc - i - 1, argv + i + 1);
            return;
        }
        for (int f = 1; f < 4; f++) {
            field[f] = field[f - 1] + strcspn(field[f - 1], ":");
            if (*field[f])
                *field[f]++ = '\0';
        }
        command(field);
    }
}

int main(int argc, char **argv)
{
    setvbuf(stdout, NULL, _IOLBF, 4096);
    commands(argc - 1, argv + 1);
    return 0;
}
