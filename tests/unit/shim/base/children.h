/* SPDX-License-Identifier: Apache-2.0 */
/* children.h - a function in a child process, and how many descriptors are open. */
#ifndef CUPOOL_TESTS_CHILDREN_H
#define CUPOOL_TESTS_CHILDREN_H

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

static inline unsigned int descriptors(void)
{
    unsigned int count = 0;

    for (int fd = 0; fd < 400; fd++)
        count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

/* The byte that a child returns. */
static inline int child_of(unsigned char (*function)(void))
{
    int status = -1;
    const pid_t pid = fork();

    if (pid == 0)
        _exit(function());
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

#endif
