/* SPDX-License-Identifier: Apache-2.0 */
/*
 * before_listen.c - listen for all libraries of a program: first runs the command BEFORE_LISTEN, which finds a socket
 * that has a name and does not listen yet.
 *
 * Threads: any. No locks.
 */
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/socket.h>

__attribute__((visibility("default"))) int listen(int fd, int backlog)
{
    const __typeof__(&listen) next = (__typeof__(&listen))dlsym(RTLD_NEXT, "listen");
    const char *command = getenv("BEFORE_LISTEN");

    if (command && system(command)) /* NOLINT(cert-env33-c): the test's own */
        return -1;
    return next(fd, backlog);
}
