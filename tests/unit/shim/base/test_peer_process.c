/* SPDX-License-Identifier: Apache-2.0 */
/* test_peer_process.c - whether another process lives, as shim/base/peer_process.c says: one that is killed, one
 * without its first thread, one whose number another namespace has. */
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "base/peer_process.h"
#include "cases.h"
#include "children.h"
#include "clock.h"

static void *thread_stays(void *arg)
{
    pause();
    return arg;
}

/* A process whose first thread ends before another one. */
static pid_t process_without_first(void)
{
    const pid_t pid = fork();
    pthread_t thread;

    if (pid == 0) {
        pthread_create(&thread, NULL, thread_stays, NULL);
        syscall(SYS_exit, 0);
    }
    return pid;
}

static char state_of(pid_t pid)
{
    char path[32], text[256] = "";
    const int fd = (snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid), open(path, O_RDONLY | O_CLOEXEC));

    assert_true(read(fd, text, sizeof(text) - 1) > 0);
    close(fd);
    return strrchr(text, ')')[2];
}

UNIT_CASE(test_process_without_its_first_thread)
{
    const pid_t pid = process_without_first();
    const struct peer_process process = peer_process_of(pid);

    while (state_of(pid) != 'Z')
        nap_ns(1000000);
    assert_true(peer_process_lives(&process));
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    assert_false(peer_process_lives(&process));
}

UNIT_CASE(test_process)
{
    struct peer_process own = peer_process_of(getpid()), other;
    int status;
    pid_t pid;

    assert_int_equal(own.pid, getpid());
    assert_true(own.start && peer_process_lives(&own));
    own.start++;
    assert_false(peer_process_lives(&own)); /* a later process has the number */
    own.start = 0;
    assert_true(peer_process_lives(&own)); /* it is not known when it began */
    own.stack = own.stack ? own.stack + 1 : 0;
    assert_int_equal(peer_process_lives(&own), own.stack == 0); /* another program */
    pid = fork();
    if (pid == 0)
        _exit(pause());
    other = peer_process_of(pid);
    assert_true(peer_process_lives(&other));
    kill(pid, SIGKILL);
    while (peer_process_lives(&other)) /* then it is a zombie: nobody has waited for it */
        nap_ns(1000000);
    waitpid(pid, &status, 0);
    assert_false(peer_process_lives(&other));
    other = peer_process_of(pid);
    assert_int_equal(other.start + other.stack, 0);
}

static unsigned char look_with_standard_input_closed(void)
{
    const unsigned int before = (close(STDIN_FILENO), descriptors());

    return peer_process_of(getpid()).start && descriptors() == before;
}

UNIT_CASE(test_process_without_standard_input)
{
    assert_int_equal(child_of(look_with_standard_input_closed), 1);
}

static int outside; /* this process's number */

/* In a namespace of processes whose /proc is the outer one's: nobody has the number there, whoever has it here. 2: such
 * a namespace is not to be had. */
static unsigned char look_from_inside(void)
{
    struct peer_process other;
    int status = -1;
    pid_t pid;

    if (unshare(CLONE_NEWPID) && unshare(CLONE_NEWUSER | CLONE_NEWPID))
        return 2;
    pid = fork();
    if (pid < 0)
        return 2;
    if (pid == 0) {
        other = peer_process_of(outside);
        _exit(other.start || peer_process_lives(&other));
    }
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? (unsigned char)WEXITSTATUS(status) : 3;
}

UNIT_CASE(test_process_by_another_number)
{
    int rc;

    outside = getpid();
    rc = child_of(look_from_inside);
    if (rc == 2)
        skip();
    assert_int_equal(rc, 0);
}
