/* SPDX-License-Identifier: Apache-2.0 */
/*
 * report.c - a program that runs out of memory, gets signals and waits, for the tests of what the library says of that.
 * Its arguments are commands: those of words.h, and
 *
 *   alloc:SIZE     one allocation, kept; prints its error if there is one
 *   many:N:SIZE    N of them, kept
 *   free:I         free the I-th that succeeded, from 0
 *   churn:N:SIZE   N times: allocate and free
 *   async:N:SIZE   the same by cudaFreeAsync, with a device that is idle each time; print how many were refused
 *   pin:SIZE unpin:I pinchurn:N:SIZE   as alloc, free and churn, of pinned memory
 *   pinsmall:STACK:SIZE    allocate and free pinned memory in a thread with such a stack; print the errors
 *   pinflags:SIZE:FLAGS    one allocation by cudaHostAlloc, kept
 *   write:I        write each page of the I-th one, and print the sum of one byte of each
 *   pinforks:N:I   N times, while threads allocate and free pinned memory, fork a child that frees the I-th one; print
 *                  how many have ended
 *   policyof:I     print the memory policy of its addresses: mode and nodes
 *   policy:MODE:MASK   set_mempolicy, with the modes and nodes of the kernel
 *   setenv:NAME:VALUE
 *   device:N       from here on
 *   other:SIZE     memory that is not pooled, kept; managed:SIZE pitch:WIDTH:HEIGHT, too
 *   limit          print what cudaMemGetInfo says
 *   last           print the runtime's last error, peeked at, got, and got again
 *   begin end      a relaxed capture
 *   reset          cudaDeviceReset
 *   handler:SIG ignore:SIG      handle or ignore a signal from here on
 *   raise:SIG      send it to this process
 *   caught:SIG     print how often our handler was called, and whose handler it is: ours, default, ignored, other's
 *   _fork{ ... }   fork by the system call itself: no handler of pthread_atfork runs
 *   mask:SIG       block it in this thread
 *   ready          create the file "ready" in the working folder
 *   await:FILE     until there is such a file
 *   open:FD:FILE   close FD and create FILE, which gets the number
 *   append:FD:FILE the same, to be appended to
 *   sigpipe        one that is blocked and pending
 *   pending:SIG    print whether it is
 *
 * Exit code 0; 5 for a word that is none and other errors.
 */
#include "words.h"

#include <cuda_runtime_api.h>

#define BLOCKS_MAX 4096

static struct {
    void *p[BLOCKS_MAX];
    int n;
} live, pinned;
static volatile sig_atomic_t caught;
static size_t sizes[BLOCKS_MAX]; /* of pinned memory */
static cudaStream_t stream;

static void get(size_t size)
{
    void *p = NULL;
    const int rc = (int)cudaMalloc(&p, size);

    if (rc)
        printf("alloc %d\n", rc);
    else if (live.n < BLOCKS_MAX)
        live.p[live.n++] = p;
}

static _Atomic(bool) busy;

static void *pin_often(void *arg)
{
    void *p;

    while (busy)
        if (cudaMallocHost(&p, 4096) == cudaSuccess)
            cudaFreeHost(p);
    return NULL;
}

static void pin_forks(long n, void *p)
{
    /* The runtime gives up before it calls the driver. */
    void *const driver = dlopen("libcuda.so.1", RTLD_NOW);
    int (*const give_back)(void *) = (int (*)(void *))dlsym(driver, "cuMemFreeHost");
    pthread_t threads[3];
    int status, ended = 0;

    busy = true;
    for (int i = 0; i < 3; i++)
        pthread_create(&threads[i], NULL, pin_often, NULL);
    for (long i = 0; i < n; i++) {
        const pid_t child = fork();

        if (!child)
            _exit(give_back(p) == 0);
        ended += waitpid(child, &status, 0) == child && status == 0;
    }
    busy = false;
    join_all(threads, 3);
    printf("children ended: %d\n", ended);
}

static void *pin_once(void *arg)
{
    void *p = NULL;
    const int rc = (int)cudaMallocHost(&p, *(const size_t *)arg);

    printf("pinsmall %d %d\n", rc, (int)cudaFreeHost(p));
    return NULL;
}

static void pin_small(size_t stack, size_t size)
{
    pthread_attr_t attr;
    pthread_t thread;

    pthread_attr_init(&attr);
    if (pthread_attr_setstacksize(&attr, stack))
        die("stack");
    if (pthread_create(&thread, &attr, pin_once, &size) == 0)
        pthread_join(thread, NULL);
}

static bool pinned_command(const struct words *w)
{
    void *p;

    if (IS("pin") || IS("pinflags")) {
        const int rc = (int)(IS("pin") ? cudaMallocHost(&p, (size_t)w->n[1])
                                       : cudaHostAlloc(&p, (size_t)w->n[1], (unsigned int)w->n[2]));

        if (rc)
            printf("pin %d\n", rc);
        else if (pinned.n < BLOCKS_MAX) {
            sizes[pinned.n] = (size_t)w->n[1];
            pinned.p[pinned.n++] = p;
        }
    } else if (IS("pinsmall")) {
        pin_small((size_t)w->n[1], (size_t)w->n[2]);
    } else if (IS("unpin")) {
        printf("unpin %d\n", (int)cudaFreeHost(pinned.p[w->n[1]]));
    } else if (IS("write")) {
        unsigned char *const bytes = pinned.p[w->n[1]];
        unsigned long sum = 0;

        for (size_t i = 0; i < sizes[w->n[1]]; i += 4096)
            bytes[i] = 1;
        for (size_t i = 0; i < sizes[w->n[1]]; i += 4096)
            sum += bytes[i];
        printf("write %lu\n", sum);
    } else if (IS("policy")) {
        const unsigned long nodes = (unsigned long)w->n[2];

        if (syscall(SYS_set_mempolicy, w->n[1], &nodes, 8 * sizeof(nodes)))
            printf("policy: %s\n", strerror(errno));
    } else if (IS("pinforks")) {
        pin_forks(w->n[1], pinned.p[w->n[2]]);
    } else if (IS("policyof")) {
        unsigned long nodes[16] = {0};
        int mode = -1;

        syscall(SYS_get_mempolicy, &mode, nodes, 1024ul, pinned.p[w->n[1]], 2ul /* MPOL_F_ADDR */);
        printf("policy of it: %d %lu\n", mode, nodes[0]);
    } else if (IS("setenv")) {
        setenv(w->field[1], w->field[2], 1);
    } else if (IS("pinchurn")) {
        for (long i = 0; i < w->n[1]; i++)
            if (cudaMallocHost(&p, (size_t)w->n[2]) == cudaSuccess)
                cudaFreeHost(p);
    } else {
        return false;
    }
    return true;
}

static void on_signal(int sig)
{
    caught++;
}

static void handle(int sig, void (*handler)(int))
{
    struct sigaction action = {.sa_handler = handler};

    sigaction(sig, &action, NULL);
}

static void caught_print(int sig)
{
    struct sigaction now;

    sigaction(sig, NULL, &now);
    printf("caught %d %s\n", (int)caught,
           now.sa_handler == on_signal ? "ours"
           : now.sa_handler == SIG_DFL ? "default"
           : now.sa_handler == SIG_IGN ? "ignored"
                                       : "other's");
}

static bool memory_command(const struct words *w)
{
    size_t avail = 0, total = 0;
    cudaGraph_t graph;
    int refused = 0;
    void *p;

    if (IS("alloc")) {
        get((size_t)w->n[1]);
    } else if (IS("many")) {
        for (long i = 0; i < w->n[1]; i++)
            get((size_t)w->n[2]);
    } else if (IS("free")) {
        cudaFree(live.p[w->n[1]]);
        live.p[w->n[1]] = NULL;
    } else if (IS("churn")) {
        for (long i = 0; i < w->n[1]; i++)
            if (cudaMalloc(&p, (size_t)w->n[2]) == cudaSuccess)
                cudaFree(p);
    } else if (IS("async")) {
        for (long i = 0; i < w->n[1]; i++) {
            refused += cudaMalloc(&p, (size_t)w->n[2]) || cudaFreeAsync(p, NULL);
            cudaStreamSynchronize(NULL);
        }
        printf("async %d\n", refused);
    } else if (IS("device")) {
        printf("device %d\n", (int)cudaSetDevice((int)w->n[1]));
    } else if (IS("other")) {
        printf("other %d\n", (int)cudaMallocAsync(&p, (size_t)w->n[1], NULL));
        cudaStreamSynchronize(NULL);
    } else if (IS("managed")) {
        printf("managed %d\n", (int)cudaMallocManaged(&p, (size_t)w->n[1], cudaMemAttachGlobal));
    } else if (IS("pitch")) {
        printf("pitch %d\n", (int)cudaMallocPitch(&p, &total, (size_t)w->n[1], (size_t)w->n[2]));
    } else if (IS("limit")) {
        cudaMemGetInfo(&avail, &total);
        printf("free %zu total %zu\n", avail, total);
    } else if (IS("last")) {
        const int peeked = (int)cudaPeekAtLastError(), got = (int)cudaGetLastError();

        printf("last %d %d %d\n", peeked, got, (int)cudaGetLastError());
    } else if (IS("reset")) {
        cudaDeviceReset();
    } else if (IS("begin")) {
        cudaStreamCreate(&stream);
        printf("begin %d\n", (int)cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    } else if (IS("end")) {
        printf("end %d\n", (int)cudaStreamEndCapture(stream, &graph));
    } else {
        return false;
    }
    return true;
}

static bool signal_command(const struct words *w)
{
    const int sig = (int)w->n[1];
    sigset_t set;

    sigemptyset(&set);
    if (IS("sigpipe") || IS("mask")) {
        sigaddset(&set, IS("mask") ? sig : SIGPIPE);
        pthread_sigmask(SIG_BLOCK, &set, NULL);
        if (IS("sigpipe"))
            raise(SIGPIPE);
    } else if (IS("pending")) {
        sigpending(&set);
        printf("pending %d\n", sigismember(&set, sig));
    } else if (IS("handler")) {
        handle(sig, on_signal);
    } else if (IS("ignore")) {
        handle(sig, SIG_IGN);
    } else if (IS("raise")) {
        kill(getpid(), sig);
    } else if (IS("caught")) {
        caught_print(sig);
    } else {
        return false;
    }
    return true;
}

static bool file_command(const struct words *w)
{
    const int fd = (int)w->n[1];

    if (IS("open") || IS("append")) {
        close(fd);
        if (open(w->field[2], O_CREAT | O_RDWR | (IS("append") ? O_APPEND : 0), 0666) != fd)
            die(w->field[2]);
    } else if (IS("ready")) {
        close(open("ready", O_CREAT | O_WRONLY, 0666));
    } else if (IS("await")) {
        while (access(w->field[1], F_OK))
            sleep_ms(2);
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
        if (IS("fork{") || IS("_fork{")) {
            i += words_child(argc - i - 1, argv + i + 1, IS("_fork{"), commands);
        } else if (!words_common(w) && !memory_command(w) && !pinned_command(w) && !signal_command(w) &&
                   !file_command(w)) {
            printf("no such word: %s\n", w->text);
            exit(5);
        }
        fflush(stdout);
    }
}

int main(int argc, char **argv)
{
    commands(argc - 1, argv + 1);
    return 0;
}
