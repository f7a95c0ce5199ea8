/* SPDX-License-Identifier: Apache-2.0 */
/* process.c - see process.h. */
#include "base/process.h"

#include <errno.h>
#include <pthread.h>
#include <unistd.h>

#include "base/conf_report.h"
#include "base/log.h"

atomic_int process_state;
__thread unsigned int process_depth __attribute__((tls_model("initial-exec")));

static atomic_bool ending;
static pid_t starter; /* the process that started the library */

bool process_may_start(void)
{
    return conf_get()->enable.number && process_events.is_first();
}

bool process_hooks_driver(void)
{
    return process_may_start() && conf_get()->hook.number == HOOK_AUTO;
}

bool process_has_begun(void)
{
    return process_state_get() == PROCESS_ACTIVE;
}

bool process_serves(void)
{
    if (process_has_begun())
        return !atomic_load(&ending) && !process_is_foreign();
    return process_state_get() == PROCESS_NEW && process_may_start();
}

bool process_traces(void)
{
    const int now = process_state_get();

    return process_hooks_driver() && (now == PROCESS_ACTIVE ? !process_is_foreign() : now == PROCESS_NEW);
}

bool process_is_foreign(void)
{
    return getpid() != starter;
}

static void forked_child(void)
{
    /* CUDA does not work in a child of a process that has used it; the pool and the file belong to the parent. */
    atomic_store(&process_state, PROCESS_PASSIVE);
    process_events.forked();
}

static void start(void)
{
    const int saved = errno;

    starter = getpid();
    conf_report();
    process_events.started();
    pthread_atfork(NULL, NULL, forked_child);
    log_write(LOG_INFO, "cupool " CUPOOL_VERSION " is active");
    atomic_store(&process_state, PROCESS_ACTIVE);
    errno = saved;
}

void process_start(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, start);
}

void process_end(void)
{
    atomic_store(&ending, true);
}
