/* SPDX-License-Identifier: Apache-2.0 */
/* writer.c - see writer.h. No locks but the file's. */
#include "trace/writer.h"

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "base/log.h"
#include "base/own_thread.h"
#include "trace/records.h"
#include "trace/trace_file.h"

/* The writer's sleep in nanoseconds while there are records, and after a long time without any. */
#define NAP_NS     1000000
#define NAP_MAX_NS 16000000

static atomic_bool writer_runs, writer_stops;

/* The thread that turns records into lines, so that the threads that allocate need not. */
static void *writer(void *arg)
{
    struct timespec nap = {.tv_nsec = NAP_NS};

    (void)arg;
    while (!atomic_load(&writer_stops)) {
        const unsigned int fill = records_fill();
        bool any = false;
        int cancel;

        nap.tv_nsec = fill ? NAP_NS : nap.tv_nsec < NAP_MAX_NS ? nap.tv_nsec * 2 : nap.tv_nsec;
        if (fill && trace_file_lock(&cancel)) {
            any = trace_file_is_open() && trace_file_flush(/* wait: */ false);
            trace_file_unlock(cancel);
        }
        if (!any || fill < RECORDS_PART / 4)
            nanosleep(&nap, NULL);
    }
    return NULL;
}

void trace_write_behind(void)
{
    static atomic_flag started = ATOMIC_FLAG_INIT;
    pthread_t thread;
    int rc;

    if (!trace_allocs() || atomic_flag_test_and_set(&started))
        return;
    rc = own_thread_start("cupool-trace", writer, &thread, NULL);
    if (rc) {
        log_write(LOG_INFO, "no thread to be had (error %d): allocation events are written when they are many", rc);
        return;
    }
    atomic_store(&writer_runs, true);
    pthread_detach(thread);
}

bool trace_writes_behind(void)
{
    return atomic_load(&writer_runs);
}

void trace_write_end(void)
{
    atomic_store(&writer_stops, true);
}
