/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stats_file.c - see stats_file.h.
 *
 * Locking: page.lock guards the file and the buffers.
 */
#include "report/stats_file.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/conf.h"
#include "base/descriptor.h"
#include "base/launch.h"
#include "base/log.h"
#include "base/output_file.h"
#include "base/process.h"
#include "clock.h"
#include "context/counters.h"
#include "context/host_memory.h"
#include "report/job.h"
#include "report/stats_page_layout.h"

#define SLOTS     STATS_PAGE_SLOTS
#define PERIOD_NS 1000000000u

#define COUNTER(name, traced) " " #name
#define HOST_COUNTER(name)
#define HOST_OWN(name) " " #name
static const char names[] = "device"
#include "counters.def"
                            " bypassed"
#include "host_counters.def"
    ;
#undef COUNTER
#undef HOST_COUNTER
#undef HOST_OWN

_Static_assert(sizeof(names) <= sizeof(((struct stats_page_header *)0)->names), "they fit");

static struct {
    pthread_mutex_t lock; /* guards the members below, except atomics */
    struct stat file;     /* fstat of fd when it was opened, for file_state */
    char path[4096];
    struct stats_page_half half; /* the half that is being written */
    struct stats_page_header header;
    uint64_t start; /* in nanoseconds */
    atomic_int fd;  /* -1: not open */
    /* Used by the background thread alone. */
    uint64_t next;
} page = {.lock = PTHREAD_MUTEX_INITIALIZER, .fd = -1};

static void add(void *arg, int device, const struct pool_stats *stats, uint64_t bypassed)
{
    struct stats_page_half *half = arg;

    if (half->count < SLOTS)
        half->slots[half->count++] =
            (struct stats_page_slot){.device = (uint64_t)device, .stats = *stats, .bypassed = bypassed};
}

/* Pinned memory has the last slot in use, once there is some. */
static void add_host(struct stats_page_half *half)
{
    struct stats_page_slot *slot = &half->slots[half->count];
    struct host_stats host;

    if (half->count == SLOTS || !host_memory_stats(&host))
        return;
    *slot = (struct stats_page_slot){.device = STATS_PAGE_HOST};
#define HOST_COUNTER(name) slot->stats.name = host.name;
#define HOST_OWN(name)     slot->host.name = host.name;
#include "host_counters.def"
#undef HOST_COUNTER
#undef HOST_OWN
    half->count++;
}

/* Write all of data, or return false; with the lock. */
static bool put(const void *data, size_t len, off_t at)
{
    const int fd = atomic_load(&page.fd);
    struct file_quiet quiet;
    const char *rest = data;
    ssize_t n = 1;

    file_quiet_begin(&quiet);
    errno = EBADF;
    if (file_state(fd, &page.file) != -EBADF)
        while (len && ((n = pwrite(fd, rest, len, at)) > 0 || (n < 0 && errno == EINTR))) {
            n = n < 0 ? 0 : n;
            rest += n;
            at += n;
            len -= (size_t)n;
        }
    if (len)
        log_once(LOG_WARN, "cannot write the statistics file %.300s: %s", page.path, strerror(n ? errno : ENOSPC));
    file_quiet_end(&quiet, len != 0);
    return !len;
}

/* Write the current counters into the older half; with the lock. */
static bool update(bool ending)
{
    struct stats_page_half *half = &page.half;

    half->count = 0;
    context_stats_each(ending, add, half);
    add_host(half);
    half->seq++;
    half->unix_ns = clock_ns(CLOCK_REALTIME);
    half->uptime_ns = now_ns() - page.start;
    half->ended = ending;
    half->crc = stats_page_crc(half);
    return put(half, offsetof(struct stats_page_half, slots) + half->count * sizeof(half->slots[0]),
               STATS_PAGE_HEADER_SIZE + (off_t)(half->seq % 2) * STATS_PAGE_HALF_SIZE);
}

static void header_fill(const struct launch *launch)
{
    struct stats_page_header *header = &page.header;

    memcpy(header->magic, STATS_PAGE_MAGIC, sizeof(header->magic));
    header->version = STATS_PAGE_VERSION;
    header->header_size = STATS_PAGE_HEADER_SIZE;
    header->half_size = STATS_PAGE_HALF_SIZE;
    header->slot_size = sizeof(struct stats_page_slot);
    header->slots = SLOTS;
    header->counters = sizeof(struct stats_page_slot) / sizeof(uint64_t);
    header->pid = (int32_t)getpid();
    header->rank = launch->rank;
    header->local_rank = launch->local_rank;
    header->start_unix_ns = clock_ns(CLOCK_REALTIME);
    snprintf(header->library, sizeof(header->library), "%s", CUPOOL_VERSION);
    snprintf(header->host, sizeof(header->host), "%s", launch->host);
    snprintf(header->exe, sizeof(header->exe), "%s", launch->exe);
    memcpy(header->names, names, sizeof(names));
}

/* Create the file; with the lock. */
static void create(void)
{
    static const struct file_kind kind = {"statistics page", STATS_PAGE_MAGIC, "exists, and is no statistics page"};
    static char path[4096]; /* static because a thread's stack may be smaller */
    struct launch launch;
    int fd;

    if (job_is_elsewhere(conf_get()->stats_file.text))
        return;
    launch_detect(&launch);
    if (launch_expand(&launch, conf_get()->stats_file.text, path, sizeof(path))) {
        log_write(LOG_WARN, "no statistics page: CUPOOL_STATS_FILE is too long");
        return;
    }
    fd = file_create(path, &kind, 0, page.path, sizeof(page.path));
    if (fd < 0)
        return;
    fstat(fd, &page.file);
    atomic_store(&page.fd, fd);
    page.start = now_ns();
    header_fill(&launch);
    /* The whole size is written at once, so that no later update needs more disk space. The header comes last, because
     * it makes the file a statistics page. */
    page.half.seq = 1;
    if (!put(&page.half, sizeof(page.half), STATS_PAGE_HEADER_SIZE) ||
        !put(&page.half, sizeof(page.half), STATS_PAGE_HEADER_SIZE + STATS_PAGE_HALF_SIZE) || !update(false) ||
        !put(&page.header, sizeof(page.header), 0)) {
        if (file_state(fd, &page.file) == 0)
            unlink(page.path);
        file_close(fd, &page.file, /* done: */ true);
        atomic_store(&page.fd, -1);
    }
}

void stats_page_open(void)
{
    const char *pattern = conf_get()->stats_file.text;
    const int saved = errno;
    int cancel;

    if (!*pattern || strcmp(pattern, "off") == 0)
        return;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
    pthread_mutex_lock(&page.lock);
    create();
    pthread_mutex_unlock(&page.lock);
    pthread_setcancelstate(cancel, NULL);
    errno = saved;
}

uint64_t stats_page_due(uint64_t now)
{
    (void)now;
    return atomic_load(&page.fd) < 0 ? UINT64_MAX : page.next;
}

void stats_page_tick(uint64_t now)
{
    if (now < stats_page_due(now) || process_is_foreign() || pthread_mutex_trylock(&page.lock))
        return;
    if (atomic_load(&page.fd) >= 0)
        update(false);
    page.next = now + PERIOD_NS;
    pthread_mutex_unlock(&page.lock);
}

void stats_page_finish(void)
{
    const int saved = errno;

    if (atomic_load(&page.fd) < 0 || pthread_mutex_trylock(&page.lock))
        return;
    update(true);
    file_close(atomic_load(&page.fd), &page.file, /* done: */ true);
    atomic_store(&page.fd, -1);
    pthread_mutex_unlock(&page.lock);
    errno = saved;
}

void stats_page_forget(void)
{
    /* A thread of the parent may hold the lock for ever in this process, so this takes no lock. */
    if (atomic_load(&page.fd) >= 0)
        file_close(atomic_load(&page.fd), &page.file, /* done: */ false);
    atomic_store(&page.fd, -1);
}
