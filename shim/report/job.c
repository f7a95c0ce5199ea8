/* SPDX-License-Identifier: Apache-2.0 */
/* job.c - see job.h. No locks. */
#include "report/job.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/array.h"
#include "report/stats_page_layout.h"

#define SUFFIX ".page"

struct rows {
    struct job_row *rows;
    size_t count, room;
};

/* The job's folder; NULL: there is no job. *ret_launcher: the process that cupool-run became. */
static const char *folder(long *ret_launcher)
{
    const char *job = getenv("_CUPOOL_JOB");
    char *end = NULL;

    *ret_launcher = job ? strtol(job, &end, 10) : 0;
    return end && end[0] == ':' && end[1] == '/' ? end + 1 : NULL;
}

bool job_is_elsewhere(const char *pattern)
{
    long launcher;
    const char *path = folder(&launcher);

    return path && strncmp(pattern, path, strlen(path)) == 0 && access(path, W_OK) != 0;
}

static struct job_row *row_add(struct rows *rows)
{
    struct job_row *grown = array_grown(rows->rows, rows->count, &rows->room, sizeof(*grown));

    if (!grown)
        return NULL;
    rows->rows = grown;
    return memset(&rows->rows[rows->count++], 0, sizeof(struct job_row));
}

/* The newer half that is complete; NULL: none. */
static const struct stats_page_half *half_latest(const struct stats_page_half halves[2])
{
    const struct stats_page_half *latest = NULL;

    for (int i = 0; i < 2; i++)
        if (halves[i].count <= STATS_PAGE_SLOTS && halves[i].crc == stats_page_crc(&halves[i]) &&
            (!latest || halves[i].seq > latest->seq))
            latest = &halves[i];
    return latest;
}

static bool read_at(int fd, void *data, size_t len, off_t at)
{
    return pread(fd, data, len, at) == (ssize_t)len;
}

static void page_read(int fd, struct rows *rows)
{
    static struct stats_page_half halves[2]; /* static because a stack may be small */
    static struct stats_page_header header;
    const struct stats_page_half *half;

    if (!read_at(fd, &header, sizeof(header), 0) || memcmp(header.magic, STATS_PAGE_MAGIC, sizeof(header.magic)) != 0 ||
        header.version != STATS_PAGE_VERSION || header.slot_size != sizeof(struct stats_page_slot) ||
        !read_at(fd, &halves[0], sizeof(halves[0]), STATS_PAGE_HEADER_SIZE) ||
        !read_at(fd, &halves[1], sizeof(halves[1]), STATS_PAGE_HEADER_SIZE + STATS_PAGE_HALF_SIZE))
        return;
    half = half_latest(halves);
    for (uint32_t i = 0; half && i < half->count; i++) {
        const struct stats_page_slot *slot = &half->slots[i];
        struct job_row *row;

        if (slot->device == STATS_PAGE_HOST) /* the table is of device memory */
            continue;
        row = row_add(rows);
        if (!row)
            return;
        snprintf(row->host, sizeof(row->host), "%.63s", header.host);
        row->rank = header.rank;
        row->device = (int)slot->device;
        row->ended = half->ended;
        row->allocs = slot->stats.allocs;
        row->hits = slot->stats.hits;
        row->driver_ns = slot->stats.driver_ns;
        row->peak_live = slot->stats.peak_live;
        row->peak_held = slot->stats.peak_held;
    }
}

static int compare(const void *a, const void *b)
{
    const struct job_row *one = a, *two = b;

    if (one->rank != two->rank)
        return one->rank < two->rank ? -1 : 1;
    return one->device - two->device;
}

static void sum_add(struct rows *rows)
{
    struct job_row sum = {.host = "all", .rank = -1, .device = -1, .ended = true}, *last;

    for (size_t i = 0; i < rows->count; i++) {
        const struct job_row *row = &rows->rows[i];

        sum.ended &= row->ended;
        sum.allocs += row->allocs;
        sum.hits += row->hits;
        sum.driver_ns += row->driver_ns;
        sum.peak_live += row->peak_live;
        sum.peak_held += row->peak_held;
    }
    last = row_add(rows);
    if (last)
        *last = sum;
}

/* Read the pages in the folder, and remove them. */
static void pages_take(DIR *dir, struct rows *rows)
{
    const size_t suffix = strlen(SUFFIX);
    struct dirent *entry;

    while ((entry = readdir(dir))) {
        const size_t len = strlen(entry->d_name);
        int fd;

        if (len <= suffix || strcmp(entry->d_name + len - suffix, SUFFIX) != 0)
            continue;
        fd = openat(dirfd(dir), entry->d_name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
        if (fd < 0)
            continue;
        page_read(fd, rows);
        close(fd);
        unlinkat(dirfd(dir), entry->d_name, 0);
    }
}

bool job_take(struct job_row **ret_rows, size_t *ret_count)
{
    struct rows rows = {0};
    long launcher;
    const char *path = folder(&launcher);
    /* Ranks that cupool-run has started come here, too, and are not the launcher. */
    DIR *dir = path && launcher == getpid() ? opendir(path) : NULL;

    if (!dir)
        return false;
    pages_take(dir, &rows);
    closedir(dir);
    rmdir(path); /* fails if there is anything else in it */
    if (!rows.count) {
        free(rows.rows);
        return false;
    }
    qsort(rows.rows, rows.count, sizeof(rows.rows[0]), compare);
    sum_add(&rows);
    *ret_rows = rows.rows;
    *ret_count = rows.count;
    return true;
}
