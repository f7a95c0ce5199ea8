/* SPDX-License-Identifier: Apache-2.0 */
/*
 * words.h - a program whose arguments are commands, done in order: each is a word, with numbers or names after colons.
 * For app.c and report.c, which have these commands in common:
 *
 *   sleep:MS         so long, whatever signals come
 *   fork{ ... }      a child does the calls between; the parent waits and prints how it ended
 *   kill exit:N _exit:N abort
 *   closefrom:FD     close every descriptor from FD on
 *   fsize:N          limit the size of files that we write; -1 lifts it
 *   chdir:DIR pid
 *
 * An error ends the program with 5, and a line on stdout.
 */
#ifndef E2E_WORDS_H
#define E2E_WORDS_H

#include <sys/resource.h>

#include "../program.h"

/* A command and its arguments; those left out are empty, and 0. */
struct words {
    char text[4096], *field[4];
    long n[4];
};

static void words_split(struct words *w, const char *argument)
{
    snprintf(w->text, sizeof(w->text), "%s", argument);
    w->field[0] = w->text;
    for (int f = 1; f < 4; f++) {
        w->field[f] = w->field[f - 1] + strcspn(w->field[f - 1], ":");
        if (*w->field[f])
            *w->field[f]++ = '\0';
        w->n[f] = strtol(w->field[f], NULL, 0);
    }
}

static void die(const char *what)
{
    printf("%s: %s\n", what, strerror(errno));
    fflush(stdout);
    exit(5);
}

static void sleep_ms(long ms)
{
    struct timespec left = {ms / 1000, ms % 1000 * 1000000};

    while (nanosleep(&left, &left) && errno == EINTR)
        ;
}

/* The commands up to the closing brace in a child; bare: made by the system call itself, so that no handler of
 * pthread_atfork runs. Returns the number of words that were used. */
static int words_child(int argc, char **argv, bool bare, void (*commands)(int argc, char **argv))
{
    int n = 0, status = 0;
    pid_t pid;

    while (n < argc && strcmp(argv[n], "}") != 0)
        n++;
    fflush(stdout);
    pid = bare ? (pid_t)syscall(SYS_clone, (long)SIGCHLD, 0l, 0l, 0l, 0l) : fork();
    if (pid < 0)
        die("fork");
    if (!pid) {
        commands(n, argv);
        exit(0);
    }
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            die("waitpid");
    printf("child ended: %s %d\n", WIFSIGNALED(status) ? "signal" : "exit",
           WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    return n + 1;
}

static void fsize(long n)
{
    struct rlimit limit;

    getrlimit(RLIMIT_FSIZE, &limit);
    limit.rlim_cur = n < 0 ? limit.rlim_max : (rlim_t)n;
    if (setrlimit(RLIMIT_FSIZE, &limit))
        die("setrlimit");
}

/* The system call: glibc's wrapper is younger than some systems that this is built on. */
static void close_from(int first)
{
    if (syscall(SYS_close_range, (unsigned int)first, ~0u, 0u))
        for (int fd = first; fd < 2048; fd++)
            close(fd);
}

/* Is the command, w, this one? */
#define IS(name) (strcmp(w->field[0], (name)) == 0)

/* One of the common commands. False: it is none of them. */
static bool words_common(const struct words *w)
{
    if (IS("exit"))
        exit((int)w->n[1]);
    if (IS("kill") || IS("_exit") || IS("abort"))
        fflush(stdout);
    if (IS("kill"))
        raise(SIGKILL);
    else if (IS("_exit"))
        _exit((int)w->n[1]);
    else if (IS("abort"))
        abort();
    else if (IS("closefrom"))
        close_from((int)w->n[1]);
    else if (IS("sleep"))
        sleep_ms(w->n[1]);
    else if (IS("fsize"))
        fsize(w->n[1]);
    else if (IS("pid"))
        printf("pid %d\n", (int)getpid());
    else if (IS("chdir") && chdir(w->field[1]))
        die(w->field[1]);
    else
        return IS("chdir");
    return true;
}

#endif
