/* SPDX-License-Identifier: Apache-2.0 */
/*
 * capture_gate.c - see capture_gate.h.
 *
 * Locking: gate.lock guards the list of captures and the two fields that keep the driver from being asked about a
 * stream while the program destroys it; a leaf, never held over a CUDA call.
 */
#include "context/capture_gate.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "clock.h"
#include "context/registry.h"
#include "real/real.h"

/* The shortest time, in nanoseconds, between two rounds in which the driver is asked about captures, and the number of
 * streams in one round. */
#define ASK_NS  10000000
#define ASK_MAX 16

/* A capturing stream. The per-thread stream has one handle for all threads, so the thread is part of its name. */
struct capture {
    CUcontext context;
    CUstream stream;
    pid_t thread;        /* 0: any thread */
    unsigned int number; /* capture_total when the capture had begun */
    struct capture *next;
};

atomic_uint capture_count, capture_total;

static struct {
    pthread_mutex_t lock;  /* guards list, asking and pauses */
    pthread_cond_t rested; /* asking has become false */
    struct capture *list;
    bool asking;         /* a thread asks the driver about the listed streams */
    unsigned int pauses; /* calls in flight that may destroy a stream: no thread begins to ask */
} gate = {.lock = PTHREAD_MUTEX_INITIALIZER, .rested = PTHREAD_COND_INITIALIZER};

/* Remove the captures from the list for which wanted returns true; each decrements capture_count. */
static void captures_remove(bool (*wanted)(const struct capture *capture, const void *arg), const void *arg)
{
    struct capture **link, *found;

    pthread_mutex_lock(&gate.lock);
    for (link = &gate.list; *link;) {
        found = *link;
        if (!wanted(found, arg)) {
            link = &found->next;
            continue;
        }
        *link = found->next;
        free(found);
        atomic_fetch_sub(&capture_count, 1);
    }
    pthread_mutex_unlock(&gate.lock);
}

/* The handle of a stream or context may be reused before we hear that its former owner is gone. */
static bool is_older(const struct capture *capture, const struct capture *wanted)
{
    return (int)(wanted->number - capture->number) >= 0;
}

static bool is_of_context(const struct capture *capture, const void *arg)
{
    const struct capture *wanted = arg;

    return capture->context == wanted->context && is_older(capture, wanted);
}

/* The capture of a per-thread stream ends with its thread. */
static bool is_of_dead_thread(const struct capture *capture, const void *arg)
{
    const int saved = errno;
    const bool is = capture->thread && syscall(SYS_tgkill, getpid(), capture->thread, 0) != 0;

    errno = saved;
    return is;
}

static bool is_same_stream(const struct capture *capture, const void *arg)
{
    const struct capture *wanted = arg;

    return capture->stream == wanted->stream && capture->thread == wanted->thread && is_older(capture, wanted);
}

/* Copies of up to ASK_MAX captures whose stream handles mean the same on every thread, for this thread to ask about. 0:
 * there is none, or a stream may be about to be destroyed. */
static unsigned int asks_begin(struct capture ret_copies[ASK_MAX])
{
    unsigned int count = 0;

    pthread_mutex_lock(&gate.lock);
    for (const struct capture *capture = gate.pauses || gate.asking ? NULL : gate.list; capture && count < ASK_MAX;
         capture = capture->next)
        if (!capture->thread)
            ret_copies[count++] = *capture;
    gate.asking |= count != 0;
    pthread_mutex_unlock(&gate.lock);
    return count;
}

static void asks_end(void)
{
    pthread_mutex_lock(&gate.lock);
    gate.asking = false;
    pthread_cond_broadcast(&gate.rested);
    pthread_mutex_unlock(&gate.lock);
}

/* Drop captures that ended without a call of our hooks. Asking the driver disturbs no capture, but takes time. */
static void captures_ask(void)
{
    static _Atomic(uint64_t) asked;
    uint64_t before = atomic_load_explicit(&asked, memory_order_relaxed);
    const struct real_driver *driver = real_driver_get();
    const uint64_t now = now_ns();
    struct capture copies[ASK_MAX];
    bool over[ASK_MAX];
    unsigned int count;

    if (!driver || !driver->cuStreamIsCapturing || now - before < ASK_NS ||
        !atomic_compare_exchange_strong(&asked, &before, now) || !(count = asks_begin(copies)))
        return;
    for (unsigned int i = 0; i < count; i++) {
        CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
        const CUresult result = driver->cuStreamIsCapturing(copies[i].stream, &status);

        over[i] =
            result == CUDA_SUCCESS ? status == CU_STREAM_CAPTURE_STATUS_NONE : result == CUDA_ERROR_INVALID_HANDLE;
    }
    asks_end();
    for (unsigned int i = 0; i < count; i++)
        if (over[i])
            captures_remove(is_same_stream, &copies[i]);
}

void capture_asks_pause(void)
{
    int cancel;

    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
    pthread_mutex_lock(&gate.lock);
    gate.pauses++;
    while (gate.asking)
        pthread_cond_wait(&gate.rested, &gate.lock);
    pthread_mutex_unlock(&gate.lock);
    pthread_setcancelstate(cancel, NULL);
}

void capture_asks_resume(void)
{
    pthread_mutex_lock(&gate.lock);
    gate.pauses--;
    pthread_mutex_unlock(&gate.lock);
}

bool capture_active_now(void)
{
    if (!capture_active())
        return false;
    captures_remove(is_of_dead_thread, NULL);
    if (capture_active())
        captures_ask();
    return capture_active();
}

static pid_t capture_thread(CUstream stream)
{
    return stream == CU_STREAM_PER_THREAD ? (pid_t)syscall(SYS_gettid) : 0;
}

void capture_forget(CUcontext handle, unsigned int before)
{
    if (handle && capture_active())
        captures_remove(is_of_context, &(struct capture){.context = handle, .number = before});
}

CUcontext capture_close(CUstream stream)
{
    const struct real_driver *driver = real_driver_get();

    capture_active_now();
    atomic_fetch_add(&capture_count, 1);
    atomic_fetch_add(&capture_total, 1);
    return driver ? context_stream(driver, stream) : NULL;
}

void capture_begun(CUcontext own, CUstream stream, bool success)
{
    struct capture *capture = success ? malloc(sizeof(*capture)) : NULL;
    const struct real_driver *driver = success && !own ? real_driver_get() : NULL;

    if (!success) {
        atomic_fetch_sub(&capture_count, 1);
    } else if (capture) {
        capture->context = driver ? context_stream(driver, stream) : own;
        capture->stream = stream;
        capture->thread = capture_thread(stream);
        capture->number = atomic_load(&capture_total);
        pthread_mutex_lock(&gate.lock);
        capture->next = gate.list;
        gate.list = capture;
        pthread_mutex_unlock(&gate.lock);
    } /* without memory for the entry the gate stays closed for good: frees wait on the host, nothing breaks */
}

bool capture_active_on(CUstream stream)
{
    const struct real_driver *driver = capture_active() ? real_driver_get() : NULL;
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    CUresult result;

    if (!driver || !driver->cuStreamIsCapturing)
        return false;
    result = driver->cuStreamIsCapturing(stream, &status);
    if (result) /* asked again, because a free on the stream would be refused */
        result = driver->cuStreamIsCapturing(stream, &status);
    return result || status != CU_STREAM_CAPTURE_STATUS_NONE;
}

void capture_check(CUstream stream, bool destroyed, unsigned int before)
{
    const struct capture ended = {.stream = stream, .thread = capture_thread(stream), .number = before};

    if (capture_active() && (destroyed || !capture_active_on(stream)))
        captures_remove(is_same_stream, &ended);
}
