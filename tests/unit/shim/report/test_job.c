/* SPDX-License-Identifier: Apache-2.0 */
/* test_job.c - shim/report/job.c alone: which files count as pages of a job, which of a page's halves, and the table
 * made from them. That ranks write such pages, and that the launcher prints the table: tests/e2e/test_job.py. */
#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>

#include "cases.h"
#include "report/job.h"
#include "report/stats_page_layout.h"
#include "wrapped.h"

static char folder[64];
static struct job_row *rows;
static size_t count;
static int free_descriptor; /* the least but one, before the case */

struct page {
    char header[STATS_PAGE_HEADER_SIZE];
    union {
        struct stats_page_half half;
        char bytes[STATS_PAGE_HALF_SIZE];
    } halves[2];
};

/* A folder that stays open would be the first. */
static int second_free(void)
{
    const int first = dup(STDIN_FILENO), second = dup(STDIN_FILENO);

    close(first);
    close(second);
    return second;
}

static int begin(void **state)
{
    char job[96];

    strcpy(folder, "/tmp/cupool-test-XXXXXX");
    assert_non_null(mkdtemp(folder));
    snprintf(job, sizeof(job), "%d:%s", (int)getpid(), folder);
    setenv("_CUPOOL_JOB", job, 1);
    rows = NULL;
    count = 77;
    free_descriptor = second_free();
    return 0;
}

static int end(void **state)
{
    char command[96];

    free(rows);
    assert_int_equal(second_free(), free_descriptor);
    snprintf(command, sizeof(command), "rm -rf %s", folder);
    return system(command);
}

static void slot_fill(struct stats_page_slot *slot, uint64_t device, uint64_t n)
{
    *slot = (struct stats_page_slot){
        .device = device,
        .stats = {.allocs = n, .hits = n + 1, .driver_ns = n + 2, .peak_live = n + 3, .peak_held = n + 4}};
}

/* A page of one device; its older half, the first or second, has another one. */
static struct page page_older(unsigned int older, int rank, uint64_t device, uint64_t n)
{
    struct stats_page_header header = {.magic = STATS_PAGE_MAGIC,
                                       .version = STATS_PAGE_VERSION,
                                       .slot_size = sizeof(struct stats_page_slot),
                                       .rank = rank,
                                       .host = "node"};
    struct page page = {.header = ""};

    memcpy(page.header, &header, sizeof(header));
    for (unsigned int i = 0; i < 2; i++) {
        struct stats_page_half *half = &page.halves[i].half;

        half->count = 1;
        half->seq = i == older ? 6 : 7;
        half->ended = i != older;
        slot_fill(&half->slots[0], i == older ? 63 : device, n);
        half->crc = stats_page_crc(half);
    }
    return page;
}

static struct page page_of(int rank, uint64_t device, uint64_t n)
{
    return page_older(1, rank, device, n);
}

static const char *path_of(const char *name)
{
    static char path[PATH_MAX];

    snprintf(path, sizeof(path), "%s/%s", folder, name);
    return path;
}

static void put(const char *name, const void *data, size_t len)
{
    FILE *file = fopen(path_of(name), "w");

    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, len, file), len);
    assert_int_equal(fclose(file), 0);
}

static void row_is(const struct job_row *row, const char *host, int rank, int device, bool ended, uint64_t n,
                   uint64_t times)
{
    assert_string_equal(row->host, host);
    assert_int_equal(row->rank, rank);
    assert_int_equal(row->device, device);
    assert_int_equal(row->ended, ended);
    assert_int_equal(row->allocs, n);
    assert_int_equal(row->hits, n + times);
    assert_int_equal(row->driver_ns, n + 2 * times);
    assert_int_equal(row->peak_live, n + 3 * times);
    assert_int_equal(row->peak_held, n + 4 * times);
}

/* One change of a page; the file is always there, and then gone. */
static const struct change {
    const char *what;
    size_t at, len; /* so many bytes get 0xff; len 0: the file ends there */
    int device;     /* of its row; -1: it is no page */
} changes[] = {
    {"none", 0, 0, 3},
    {"whole", sizeof(struct page), 0, 3},
    {"magic", 0, 1, -1},
    {"end of the magic", 7, 1, -1},
    {"version", offsetof(struct stats_page_header, version), 1, -1},
    {"size of a slot", offsetof(struct stats_page_header, slot_size), 1, -1},
    {"newer half", offsetof(struct page, halves) + offsetof(struct stats_page_half, unix_ns), 1, 63},
    {"newer half's last slot", offsetof(struct page, halves) + offsetof(struct stats_page_half, slots[1]) - 1, 1, 63},
    {"behind the newer half's last slot", offsetof(struct page, halves) + offsetof(struct stats_page_half, slots[1]), 1,
     3},
    {"newer half's count", offsetof(struct page, halves) + offsetof(struct stats_page_half, count), 4, 63},
    {"older half", offsetof(struct page, halves[1]) + offsetof(struct stats_page_half, unix_ns), 1, 3},
    {"both halves", offsetof(struct page, halves), sizeof(((struct page *)NULL)->halves), -1},
    {"no older half", offsetof(struct page, halves[1]), 0, -1},
    {"a part of the newer half", offsetof(struct page, halves) + 100, 0, -1},
    {"a part of the header", sizeof(struct stats_page_header) - 1, 0, -1},
};

/* One page with the change and one that is whole. */
static void change_try(const struct change *change)
{
    const struct page other = page_of(9, 1, 500);
    struct page page = page_of(4, 3, 1000);

    memset((char *)&page + change->at, 0xff, change->len);
    mkdir(folder, 0700);
    put("x.page", &page, change->at && !change->len ? change->at : sizeof(page));
    put("y.page", &other, sizeof(other));
    assert_true(job_take(&rows, &count));
    if (count != (change->device < 0 ? 2 : 3))
        fail_msg("%s: %zu rows", change->what, count);
    if (change->device >= 0)
        row_is(&rows[0], "node", 4, change->device, change->device == 3, 1000, 1);
    row_is(&rows[count - 2], "node", 9, 1, true, 500, 1);
    assert_int_equal(access(folder, F_OK), -1); /* all was read and removed */
    free(rows);
    rows = NULL;
}

CASE_WITH(test_pages, begin, end)
{
    for (size_t i = 0; i < sizeof(changes) / sizeof(changes[0]); i++)
        change_try(&changes[i]);
}

/* All slots of a page are in use, the older half comes first, and the devices come in the order of their numbers. */
CASE_WITH(test_whole_page, begin, end)
{
    struct page page = page_older(0, 4, 0, 1000);
    struct stats_page_half *half = &page.halves[1].half;

    half->count = STATS_PAGE_SLOTS;
    for (unsigned int i = 0; i < STATS_PAGE_SLOTS; i++)
        slot_fill(&half->slots[i], (i * 13 + 5) % STATS_PAGE_SLOTS, 1000 + (i * 13 + 5) % STATS_PAGE_SLOTS);
    half->crc = stats_page_crc(half);
    put("x.page", &page, sizeof(page));
    assert_true(job_take(&rows, &count));
    assert_int_equal(count, STATS_PAGE_SLOTS + 1);
    for (unsigned int i = 0; i < STATS_PAGE_SLOTS; i++)
        row_is(&rows[i], "node", 4, (int)i, true, 1000 + i, 1);
}

/* More rows than fit at first, from pages of two devices and pinned memory, in any order of the names. */
CASE_WITH(test_many, begin, end)
{
    enum { RANKS = 70 };
    uint64_t sum = 0;
    char name[32];

    for (int rank = -1; rank < RANKS - 1; rank++) {
        struct page page = page_of(rank, 1, (uint64_t)rank * 10 + 10);
        struct stats_page_half *half = &page.halves[0].half;

        half->count = 3;
        slot_fill(&half->slots[1], STATS_PAGE_HOST, 1 << 30);
        slot_fill(&half->slots[2], 0, 5);
        half->ended = rank != 12;
        half->crc = stats_page_crc(half);
        snprintf(name, sizeof(name), "%d.page", (rank * 37 + 64) % 101);
        put(name, &page, sizeof(page));
        sum += (uint64_t)rank * 10 + 10 + 5;
    }
    assert_true(job_take(&rows, &count));
    assert_int_equal(count, 2 * RANKS + 1);
    for (int i = 0; i < RANKS; i++) {
        row_is(&rows[2 * i], "node", i - 1, 0, i != 13, 5, 1);
        row_is(&rows[2 * i + 1], "node", i - 1, 1, i != 13, (uint64_t)i * 10, 1);
    }
    row_is(&rows[2 * RANKS], "all", -1, -1, false, sum, 2 * RANKS);
}

static unsigned int grown, grown_most = 1000;

WRAPPED(void *, realloc, (void *old, size_t size))
{
    return grown++ < grown_most ? __real_realloc(old, size) : NULL;
}

/* Where there is no memory for more rows, those that fit are in the table; there is room for 64 at first, then 192. */
CASE_WITH(test_no_memory, begin, end)
{
    static const struct {
        unsigned int grown;
        int pages;
        size_t rows;
        bool has_sum;
    } expected[] = {{0, 3, 0, false}, {1, 63, 64, true}, {1, 64, 64, false}, {1, 70, 64, false}, {2, 70, 71, true}};
    char name[32];

    for (size_t i = 0; i < sizeof(expected) / sizeof(expected[0]); i++) {
        for (int rank = 0; rank < expected[i].pages; rank++) {
            const struct page page = page_of(rank, 1, 10);

            mkdir(folder, 0700);
            snprintf(name, sizeof(name), "%d.page", rank);
            put(name, &page, sizeof(page));
        }
        grown = 0;
        grown_most = expected[i].grown;
        assert_int_equal(job_take(&rows, &count), expected[i].rows > 0);
        if (!expected[i].rows)
            continue;
        assert_int_equal(count, expected[i].rows);
        assert_int_equal(strcmp(rows[count - 1].host, "all") == 0, expected[i].has_sum);
        free(rows);
        rows = NULL;
    }
    grown_most = 1000;
}

/* A file that is no page of the job stays, and so does the folder. */
CASE_WITH(test_others, begin, end)
{
    const struct page page = page_of(4, 3, 1000);
    struct stat st;

    put(".page", &page, sizeof(page));
    put("x.pages", &page, sizeof(page));
    put("x", &page, sizeof(page));
    assert_int_equal(symlink("x", path_of("link.page")), 0);
    assert_false(job_take(&rows, &count));
    assert_int_equal(count, 77);
    for (unsigned int i = 0; i < 4; i++)
        assert_int_equal(lstat(path_of((const char *const[]){".page", "x.pages", "x", "link.page"}[i]), &st), 0);
    /* Nobody writes into the pipe, and no one waits for that. */
    assert_int_equal(mkfifo(path_of("pipe.page"), 0600), 0);
    put("y.page", &page, sizeof(page));
    assert_true(job_take(&rows, &count));
    assert_int_equal(count, 2);
    row_is(&rows[1], "all", -1, -1, true, 1000, 1);
    assert_int_equal(lstat(path_of("y.page"), &st), -1);
    assert_int_equal(lstat(path_of("x"), &st), 0);
}

/* Whose folder it is, by the variable: before, this process's number, between, the folder. */
static const struct job {
    const char *before, *between;
    bool takes, elsewhere; /* elsewhere: once the folder is gone */
} jobs[] = {
    {"", ":", true, true},    {"0", ":", true, true},   {"1", ":", false, true},
    {"", "", false, false},   {"", "x:", false, false}, {"", ";", false, false},
    {"", ": ", false, false}, {"", ":.", false, false}, {NULL, "", false, false}, /* there is none */
};

CASE_WITH(test_variable, begin, end)
{
    const struct page page = page_of(4, 3, 1000);
    char text[128], pattern[128];

    for (size_t i = 0; i < sizeof(jobs) / sizeof(jobs[0]); i++) {
        const struct job *job = &jobs[i];

        unsetenv("_CUPOOL_JOB");
        if (job->before) {
            snprintf(text, sizeof(text), "%s%d%s%s", job->before, (int)getpid(), job->between, folder);
            setenv("_CUPOOL_JOB", text, 1);
        }
        mkdir(folder, 0700);
        put("x.page", &page, sizeof(page));
        snprintf(pattern, sizeof(pattern), "%s/%%r.page", folder);
        assert_false(job_is_elsewhere(pattern));
        assert_int_equal(job_take(&rows, &count), job->takes);
        free(rows);
        rows = NULL;
        unlink(path_of("x.page"));
        rmdir(folder);
        if (job_is_elsewhere(pattern) != job->elsewhere)
            fail_msg("%s%s", job->before, job->between);
        assert_false(job_is_elsewhere("/tmp/%r.page"));
    }
    /* A folder's name has to begin at the root. */
    snprintf(text, sizeof(text), "%d:%s", (int)getpid(), folder + 1);
    setenv("_CUPOOL_JOB", text, 1);
    assert_int_equal(chdir("/") | mkdir(folder, 0700), 0);
    put("x.page", &page, sizeof(page));
    assert_false(job_take(&rows, &count));
}
