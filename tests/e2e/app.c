/* SPDX-License-Identifier: Apache-2.0 */
/*
 * app.c - the program that the end-to-end tests preload the library into. Its arguments are commands: those of words.h,
 * and
 *
 *   alloc:N:SIZE     N allocations, kept; each is filled and read back
 *   free:N           free the N newest
 *   churn:N:SIZE     N times: allocate, fill, read back, free; a few blocks live at a time, sizes vary below SIZE
 *   overrun:N:SIZE   one allocation, kept; filled, and N bytes behind it too
 *   contents:SIZE    allocate, print the byte that the block is full of before the first fill, free
 *   pinned:N:SIZE    twice: N allocations of pinned host memory, then all are freed (API_RUNTIME only)
 *   written:FILE:WORD:N   until FILE holds WORD N times
 *   threads:T:N:SIZE churn in T threads
 *   cancel:T         T times: start a thread that allocates and frees for ever, and cancel it
 *   capture  reset   an empty stream capture; reset the device
 *   tolerate         from here on CUDA's errors are counted and printed, and not the end
 *   exec             start this program anew with the commands that follow, in this process
 *   occupy:N:FILE    open FILE until descriptor N has been handed out
 *   fds:N            print every open descriptor from N on
 *   fptraps          have the processor trap whatever floating-point numbers may come to, and round upwards
 *   xfsz             catch SIGXFSZ from here on, and report it in the end
 *   nofile:N unlink:FILE tids setenv:NAME:VALUE
 *   lookup:NAME:VERSION:FLAGS   where cuGetProcAddress leads (API_PROC only)
 *
 * Exit code: 0; 3 for an error of CUDA; 4 for wrong data; 5 for anything else. Errors are on stdout.
 */
#include "api.h"
#include "words.h"

#include <dirent.h>
#include <fenv.h>

#define LIVE_MAX 4096
#define WINDOW   6

static struct {
    void *p[LIVE_MAX];
    int n;
} live;
static bool tolerant;
static atomic_int errors, seed;
static volatile sig_atomic_t xfsz;

static void cuda_failed(const char *what, int rc)
{
    errors++;
    printf("error %d in %s\n", rc, what);
    fflush(stdout);
    if (!tolerant)
        exit(3);
}

/* Fill and read back the ends of a block; not the pages between, which the kernel would have to provide. False after an
 * error that is tolerated. */
static bool check(void *p, size_t n)
{
    const int byte = 1 + atomic_fetch_add(&seed, 1) % 250;
    const size_t some = n < 256 ? n : 256;
    unsigned char host[256];
    int rc;

    for (int end = 0; end < 2; end++) {
        rc = api_fill((char *)p + (end ? n - some : 0), byte, some);
        if (rc) {
            cuda_failed("fill", rc);
            return false;
        }
    }
    for (int end = 0; end < 2; end++) {
        memset(host, 0, sizeof(host));
        rc = api_read(host, (char *)p + (end ? n - some : 0), some);
        if (rc) {
            cuda_failed("read", rc);
            return false;
        }
        for (size_t i = 0; i < some; i++) {
            if (host[i] != byte) {
                printf("wrong data: byte %zu of %zu is %d, not %d\n", end ? n - some + i : i, n, host[i], byte);
                fflush(stdout);
                _exit(4);
            }
        }
    }
    return true;
}

static void *get(size_t n)
{
    void *p = NULL;
    int rc = api_alloc(&p, n);

    if (rc) {
        cuda_failed("alloc", rc);
        return NULL;
    }
    check(p, n);
    return p;
}

static void put(void *p)
{
    int rc = p ? api_free(p) : 0;

    if (rc)
        cuda_failed("free", rc);
}

static void churn(long n, size_t size)
{
    void *window[WINDOW] = {NULL};

    for (long i = 0; i < n; i++) {
        put(window[i % WINDOW]);
        window[i % WINDOW] = get(size - size / 3 * (size_t)(i % 3) / 2);
    }
    for (int i = 0; i < WINDOW; i++)
        put(window[i]);
}

static void contents(size_t size)
{
    unsigned char *host = calloc(size, 1);
    bool same = true;
    void *p = NULL;
    int rc = api_alloc(&p, size);

    if (!host)
        die("calloc");
    if (!rc)
        rc = api_read(host, p, size);
    if (rc)
        cuda_failed("contents", rc);
    for (size_t i = 1; i < size; i++)
        same = same && host[i] == host[0];
    printf(same ? "contents 0x%02x\n" : "contents mixed\n", host[0]);
    free(host);
    put(p);
}

static void pinned(long n, size_t size)
{
#if defined(API_RUNTIME)
    void *p[64];

    for (int round = 0; round < 2; round++) {
        for (long k = 0; k < n && k < 64; k++)
            if (cudaMallocHost(&p[k], size))
                exit(3);
        for (long k = 0; k < n && k < 64; k++)
            if (cudaFreeHost(p[k]))
                exit(3);
    }
#else
    (void)n, (void)size;
#endif
}

struct churner {
    pthread_t id;
    long n;
    size_t size;
};

static void *churner_main(void *arg)
{
    const struct churner *c = (const struct churner *)arg;

    churn(c->n, c->size);
    return NULL;
}

/* Only the allocator's own calls can be cancelled here: what becomes of the simulated GPU is not the question. */
static void *victim_main(void *started)
{
    void *p = NULL;
    int before;

    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    for (;;) {
        if (api_alloc(&p, 4096) == 0) {
            atomic_store((atomic_bool *)started, true);
            pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &before);
            api_free(p);
            if (api_alloc(&p, 1000) == 0)
                api_free(p);
            pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
        }
        pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &before);
        pthread_testcancel();
        pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    }
    return NULL;
}

static void cancel(long n)
{
    atomic_bool started;
    pthread_t id;

    for (long i = 0; i < n; i++) {
        atomic_store(&started, false);
        if (pthread_create(&id, NULL, victim_main, &started))
            die("pthread_create");
        while (!atomic_load(&started))
            sched_yield();
        usleep((useconds_t)(i * 37 % 300));
        pthread_cancel(id);
        pthread_join(id, NULL);
    }
}

static void threads(long t, long n, size_t size)
{
    struct churner c[64];

    t = t > 64 ? 64 : t;
    for (long i = 0; i < t; i++) {
        c[i].n = n;
        c[i].size = size;
        if (pthread_create(&c[i].id, NULL, churner_main, &c[i]))
            die("pthread_create");
    }
    for (long i = 0; i < t; i++)
        pthread_join(c[i].id, NULL);
}

static void fds_print(long from)
{
    char path[300], to[300];
    struct dirent *entry;
    DIR *dir = opendir("/proc/self/fd");

    while (dir && (entry = readdir(dir))) {
        ssize_t n;

        if (atol(entry->d_name) < from || entry->d_name[0] == '.')
            continue;
        snprintf(path, sizeof(path), "/proc/self/fd/%s", entry->d_name);
        n = readlink(path, to, sizeof(to) - 1);
        printf("fd %s %.*s\n", entry->d_name, (int)(n > 0 ? n : 0), to);
    }
    if (dir)
        closedir(dir);
}

static void tids_print(void)
{
    struct dirent *entry;
    DIR *dir = opendir("/proc/self/task");
    int n = 0;

    while (dir && (entry = readdir(dir)))
        n += entry->d_name[0] != '.';
    if (dir)
        closedir(dir);
    printf("threads %d\n", n);
}

static void on_xfsz(int sig)
{
    xfsz++;
}

/* The program waits for the work of other threads by the lines that they write; the test's time limit ends a wait in
 * vain. */
static long written(const char *path, const char *word)
{
    FILE *file = fopen(path, "re");
    char line[4096];
    long n = 0;

    while (file && fgets(line, sizeof(line), file))
        n += strstr(line, word) != NULL;
    if (file)
        fclose(file);
    return n;
}

static void nofile(long n)
{
    struct rlimit limit = {(rlim_t)n, (rlim_t)n};

    if (setrlimit(RLIMIT_NOFILE, &limit))
        die("setrlimit");
}

/* Write into each, so that a trace line that went astray would show beside it. */
static void occupy(long n, const char *file)
{
    for (int fd = -1; fd < n;) {
        fd = open(file, O_RDWR | O_CREAT | O_APPEND, 0666);
        if (fd < 0 || write(fd, "mine\n", 5) != 5)
            die(file);
    }
}

/* Requests and frees. False: the command is none of these. */
static bool memory_command(const struct words *w)
{
    int rc;

    if (IS("alloc")) {
        for (long k = 0; k < w->n[1] && live.n < LIVE_MAX; k++)
            live.p[live.n++] = get((size_t)w->n[2]);
    } else if (IS("free")) {
        for (long k = 0; k < w->n[1] && live.n; k++)
            put(live.p[--live.n]);
    } else if (IS("churn")) {
        churn(w->n[1], (size_t)w->n[2]);
    } else if (IS("pinned")) {
        pinned(w->n[1], (size_t)w->n[2]);
    } else if (IS("threads")) {
        threads(w->n[1], w->n[2], (size_t)w->n[3]);
    } else if (IS("cancel")) {
        cancel(w->n[1]);
    } else if (IS("capture")) {
        rc = api_capture();
        if (rc)
            cuda_failed("capture", rc);
    } else if (IS("reset")) {
        rc = api_reset();
        if (rc)
            cuda_failed("reset", rc);
        live.n = 0;
    } else if (IS("overrun")) {
        if (live.n == LIVE_MAX)
            die("overrun");
        live.p[live.n] = get((size_t)w->n[2]);
        api_fill((char *)live.p[live.n++] + w->n[2], 7, (size_t)w->n[1]);
    } else if (IS("contents")) {
        contents((size_t)w->n[1]);
    } else {
        return false;
    }
    return true;
}

static bool process_command(const struct words *w)
{
    if (IS("tolerate")) {
        tolerant = true;
    } else if (IS("occupy")) {
        occupy(w->n[1], w->field[2]);
    } else if (IS("fds")) {
        fds_print(w->n[1]);
    } else if (IS("written")) {
        while (written(w->field[1], w->field[2]) < w->n[3])
            usleep(2000);
    } else if (IS("fptraps")) {
        feenableexcept(FE_ALL_EXCEPT);
        fesetround(FE_UPWARD);
    } else if (IS("xfsz")) {
        signal(SIGXFSZ, on_xfsz);
    } else if (IS("nofile")) {
        nofile(w->n[1]);
    } else if (IS("unlink")) {
        if (unlink(w->field[1]))
            die(w->field[1]);
    } else if (IS("tids")) {
        tids_print();
    } else if (IS("setenv")) {
        setenv(w->field[1], w->field[2], 1);
#ifdef API_PROC
    } else if (IS("lookup")) {
        api_lookup(w->field[1], (int)w->n[2], (cuuint64_t)w->n[3]);
#endif
    } else {
        return false;
    }
    return true;
}

static void commands(int argc, char **argv)
{
    struct words split, *const w = &split;

    for (int i = 0; i < argc; i++) {
        words_split(w, argv[i]);
        if (IS("fork{")) {
            i += words_child(argc - i - 1, argv + i + 1, false, commands);
        } else if (IS("exec")) {
            fflush(stdout);
            execv("/proc/self/exe", argv + i);
            die("execv");
        } else if (!words_common(w) && !memory_command(w) && !process_command(w)) {
            errno = EINVAL;
            die(w->text);
        }
    }
}

static int run(int argc, char **argv)
{
    sigset_t pending;
    int rc;

    /* Looking things up needs no GPU. */
    rc = argc > 1 && strncmp(argv[1], "lookup", 6) == 0 ? 0 : api_init();
    if (rc)
        cuda_failed("init", rc);
    commands(argc - 1, argv + 1);
    sigpending(&pending);
    if (xfsz || sigismember(&pending, SIGXFSZ) == 1)
        printf("SIGXFSZ was delivered\n");
    if (tolerant)
        printf("errors %d\n", errors);
    return 0;
}

#ifdef PLUGIN
__attribute__((visibility("default"))) int plugin_run(int argc, char **argv);

int plugin_run(int argc, char **argv)
#else
int main(int argc, char **argv)
#endif
{
    return run(argc, argv);
}
