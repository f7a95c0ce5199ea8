/* SPDX-License-Identifier: Apache-2.0 */
/*
 * report.c - a program that runs out of memory, gets signals and waits, for the tests of what the library says of that.
 * Its arguments are commands, done in order:
 *
 *   alloc:SIZE     one allocation, kept; prints its error if there is one
 *   many:N:SIZE    N of them, kept
 *   free:I         free the I-th that succeeded, from 0
 *   churn:N:SIZE   N times: allocate and free
 *   device:N       from here on
 *   other:SIZE     memory that is not pooled, kept; managed:SIZE pitch:WIDTH:HEIGHT, too
 *   limit          print what cudaMemGetInfo says
 *   last           print the runtime's last error, peeked at, got, and got again
 *   begin end      a relaxed capture
 *   reset          cudaDeviceReset
 *   handler:SIG ignore:SIG      handle or ignore a signal from here on
 *   raise:SIG      send it to this process
 *   caught:SIG     print how often our handler was called, and whose handler it is: ours, default, ignored, other's
 *   fork{ ... }    a child does what is between; the parent waits and prints how it ended
 *   _fork{ ... }   the same by the system call itself: no handler of pthread_atfork runs
 *   mask:SIG       block it in this thread
 *   ready          create the file "ready" in the working folder
 *   await:FILE     until there is such a file
 *   sleep:MS       so long, whatever signals come
 *   fsize:N        limit the size of files
 *   open:FD:FILE   close FD and create FILE, which gets the number
 *   append:FD:FILE the same, to be appended to
 *   sigpipe        one that is blocked and pending
 *   pending:SIG    print whether it is
 *   closefrom:FD kill _exit:N pid chdir:DIR
 *
 * Exit code 0; 5 for a word that is none.
 */
#include <cuda_runtime_api.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define BLOCKS_MAX 4096

static struct {
    void *p[BLOCKS_MAX];
    int n;
} live;
static volatile sig_atomic_t caught;
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

static void on_signal(int sig)
{
    (void)sig;
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

static void sleep_ms(long ms)
{
    struct timespec left = {ms / 1000, ms % 1000 * 1000000};

    while (nanosleep(&left, &left) && errno == EINTR)
        ;
}

static int commands(int argc, char **argv);

/* Returns how many words were used. */
static int in_child(int argc, char **argv, bool bare)
{
    int n = 0, status = 0;
    pid_t pid;

    while (n < argc && strcmp(argv[n], "}") != 0)
        n++;
    fflush(stdout);
    pid = bare ? (pid_t)syscall(SYS_clone, (long)SIGCHLD, 0l, 0l, 0l, 0l) : fork();
    if (!pid)
        exit(commands(n, argv));
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    printf("child ended: %s %d\n", WIFSIGNALED(status) ? "signal" : "exit",
           WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    return n + 1;
}

static int memory_command(const char *word, const long n[3])
{
    size_t avail = 0, total = 0;
    cudaGraph_t graph;
    void *p;

#define IS(name) (strcmp(word, name) == 0)
    if (IS("alloc")) {
        get((size_t)n[1]);
    } else if (IS("many")) {
        for (long i = 0; i < n[1]; i++)
            get((size_t)n[2]);
    } else if (IS("free")) {
        cudaFree(live.p[n[1]]);
        live.p[n[1]] = NULL;
    } else if (IS("churn")) {
        for (long i = 0; i < n[1]; i++)
            if (cudaMalloc(&p, (size_t)n[2]) == cudaSuccess)
                cudaFree(p);
    } else if (IS("device")) {
        printf("device %d\n", (int)cudaSetDevice((int)n[1]));
    } else if (IS("other")) {
        printf("other %d\n", (int)cudaMallocAsync(&p, (size_t)n[1], NULL));
        cudaStreamSynchronize(NULL);
    } else if (IS("managed")) {
        printf("managed %d\n", (int)cudaMallocManaged(&p, (size_t)n[1], cudaMemAttachGlobal));
    } else if (IS("pitch")) {
        printf("pitch %d\n", (int)cudaMallocPitch(&p, &total, (size_t)n[1], (size_t)n[2]));
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
        return 5;
    }
    return 0;
}

static int commands(int argc, char **argv)
{
    for (int i = 0; i < argc; i++) {
        char word[4096], *field[3] = {word};
        long n[3] = {0};

        snprintf(word, sizeof(word), "%s", argv[i]);
        for (int f = 1; f < 3; f++) {
            field[f] = field[f - 1] + strcspn(field[f - 1], ":");
            if (*field[f])
                *field[f]++ = '\0';
            n[f] = strtol(field[f], NULL, 0);
        }
        if (IS("open") || IS("append")) {
            const int fd = (int)n[1];

            close(fd);
            if (open(field[2], O_CREAT | O_RDWR | (IS("append") ? O_APPEND : 0), 0666) != fd)
                return 5;
        } else if (IS("sigpipe")) {
            sigset_t set;

            sigemptyset(&set);
            sigaddset(&set, SIGPIPE);
            pthread_sigmask(SIG_BLOCK, &set, NULL);
            raise(SIGPIPE);
        } else if (IS("pending")) {
            sigset_t set;

            sigpending(&set);
            printf("pending %d\n", sigismember(&set, (int)n[1]));
        } else if (IS("handler")) {
            handle((int)n[1], on_signal);
        } else if (IS("ignore")) {
            handle((int)n[1], SIG_IGN);
        } else if (IS("raise")) {
            kill(getpid(), (int)n[1]);
        } else if (IS("caught")) {
            caught_print((int)n[1]);
        } else if (IS("mask")) {
            sigset_t set;

            sigemptyset(&set);
            sigaddset(&set, (int)n[1]);
            pthread_sigmask(SIG_BLOCK, &set, NULL);
        } else if (IS("fork{") || IS("_fork{")) {
            i += in_child(argc - i - 1, argv + i + 1, IS("_fork{"));
        } else if (IS("ready")) {
            close(open("ready", O_CREAT | O_WRONLY, 0666));
        } else if (IS("await")) {
            while (access(field[1], F_OK))
                sleep_ms(2);
        } else if (IS("sleep")) {
            sleep_ms(n[1]);
        } else if (IS("closefrom")) {
            if (syscall(SYS_close_range, (unsigned int)n[1], ~0u, 0u))
                for (int fd = (int)n[1]; fd < 2048; fd++)
                    close(fd);
        } else if (IS("fsize")) {
            struct rlimit limit;

            getrlimit(RLIMIT_FSIZE, &limit);
            limit.rlim_cur = (rlim_t)n[1];
            setrlimit(RLIMIT_FSIZE, &limit);
        } else if (IS("kill")) {
            fflush(stdout);
            raise(SIGKILL);
        } else if (IS("_exit")) {
            fflush(stdout);
            _exit((int)n[1]);
        } else if (IS("pid")) {
            printf("pid %d\n", (int)getpid());
        } else if (IS("chdir")) {
            if (chdir(field[1]))
                return 5;
        } else if (memory_command(word, n)) {
            printf("no such word: %s\n", word);
            return 5;
        }
        fflush(stdout);
    }
    return 0;
}

int main(int argc, char **argv)
{
    return commands(argc - 1, argv + 1);
}
