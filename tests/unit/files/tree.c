/* SPDX-License-Identifier: Apache-2.0 */
/* tree.c - see tree.h. No locks: one thread. */
#include "tree.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "report/stats_page_layout.h"

#define FDS 300

static bool before[FDS];

void tree_file(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");

    if (!file || fputs(text, file) < 0 || fclose(file))
        exit(99);
}

static int entry_remove(const char *path, const struct stat *st, int type, struct FTW *at)
{
    (void)st, (void)type, (void)at;
    return remove(path);
}

void tree_start(void)
{
    if ((nftw("d", entry_remove, 8, FTW_DEPTH | FTW_PHYS) && errno != ENOENT) || mkdir("d", 0755))
        exit(99);
    for (int i = 0; i < FDS; i++)
        before[i] = fcntl(i, F_GETFD) >= 0;
    errno = TREE_ERRNO;
}

static void half_print(const char *data, size_t len, size_t at)
{
    struct stats_page_half half;

    if (len < at + sizeof(half)) {
        printf("    half: missing\n");
        return;
    }
    memcpy(&half, data + at, sizeof(half));
    printf("    half: crc %s, count %u, seq %d, unix %d, uptime %d, ended %u\n",
           half.count <= STATS_PAGE_SLOTS && half.crc == stats_page_crc(&half) ? "right" : "wrong", half.count,
           (int)half.seq, (int)(half.unix_ns % 1000000000), (int)half.uptime_ns, half.ended);
    for (unsigned int i = 0; i < half.count; i++)
        if (i < 2 || i + 1 == half.count)
            printf("    slot: device %d, allocs %d, hits %d, live %d, bypassed %d\n", (int)half.slots[i].device,
                   (int)half.slots[i].stats.allocs, (int)half.slots[i].stats.hits, (int)half.slots[i].stats.peak_live,
                   (int)half.slots[i].bypassed);
}

static void page_print(const char *data, size_t len)
{
    struct stats_page_header header = {0};

    memcpy(&header, data, len < sizeof(header) ? len : sizeof(header));
    printf(
        "    magic %.8s, version %u, sizes %u %u %u, slots %u, counters %u, pid %d, rank %d, local rank %d, unix %d\n",
        header.magic, header.version, header.header_size, header.half_size, header.slot_size, header.slots,
        header.counters, header.pid, header.rank, header.local_rank, (int)(header.start_unix_ns % 1000000000));
    printf("    library %s, host %s, exe %s, names %s\n", header.library, header.host, header.exe, header.names);
    half_print(data, len, STATS_PAGE_HEADER_SIZE);
    half_print(data, len, STATS_PAGE_HEADER_SIZE + STATS_PAGE_HALF_SIZE);
}

static void file_print(const char *path)
{
    static char data[1 << 20];
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    const ssize_t len = read(fd, data, sizeof(data) - 1);
    const bool locked = flock(fd, LOCK_EX | LOCK_NB) != 0;

    close(fd);
    data[len > 0 ? len : 0] = '\0';
    printf("  %s%s:", path + 2, locked ? ", locked" : "");
    if (len > STATS_PAGE_HEADER_SIZE && memchr(data, '\0', STATS_PAGE_HEADER_SIZE)) {
        printf(" %zd bytes\n", len);
        page_print(data, (size_t)len);
        return;
    }
    putchar('\n');
    for (char *line = data; *line;) {
        const size_t end = strcspn(line, "\n");
        const bool whole = line[end] != '\0';
        const char *from, *to;

        line[end] = '\0';
        /* The settings between these two change with the list. */
        from = strstr(line, "\"CUPOOL_BACKEND\"");
        to = strstr(line, "\"CUPOOL_CTL\"");
        if (from && to)
            printf("    %.*s...%s%s\n", (int)(from - line), line, to, whole ? "" : " (no end)");
        else
            printf("    %s%s\n", line, whole ? "" : " (no end)");
        line += end + whole;
    }
}

static int name_compare(const void *a, const void *b)
{
    return strcmp(a, b);
}

static void folder_print(void)
{
    static char names[1100][40];
    DIR *dir = opendir("d");
    size_t count = 0;

    for (struct dirent *entry = dir ? readdir(dir) : NULL; entry && count < 1100; entry = readdir(dir))
        if (entry->d_name[0] != '.')
            snprintf(names[count++], sizeof(names[0]), "d/%.37s", entry->d_name);
    if (dir)
        closedir(dir);
    qsort(names, count, sizeof(names[0]), name_compare);
    for (size_t i = 0; i < count; i++) {
        char to[64] = "";
        struct stat st;

        if (count > 20 && i >= 3 && i + 3 < count)
            continue;
        lstat(names[i], &st);
        if (S_ISREG(st.st_mode))
            file_print(names[i]);
        else
            printf("  %s: %s%s\n", names[i] + 2, S_ISLNK(st.st_mode) ? "link to " : "other",
                   readlink(names[i], to, sizeof(to) - 1) > 0 ? to : "");
    }
    if (count > 20)
        printf("  %zu in all\n", count);
}

void tree_errno(const char *what)
{
    if (errno != TREE_ERRNO)
        printf("  errno after %s: %s\n", what, strerror(errno));
}

void tree_print(void)
{
    sigset_t mask;
    int state;

    tree_errno("all");
    folder_print();
    for (int i = 0; i < FDS; i++)
        if (fcntl(i, F_GETFD) >= 0 && !before[i])
            printf("  descriptor%s, flags %x %x\n", i < 200 ? " below 200" : "", fcntl(i, F_GETFD),
                   fcntl(i, F_GETFL) & (O_ACCMODE | O_APPEND | O_NONBLOCK));
    pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &state);
    if (state != PTHREAD_CANCEL_ENABLE)
        printf("  cancellation is disabled\n");
    pthread_sigmask(SIG_BLOCK, NULL, &mask);
    for (int i = 1; i < 32; i++)
        if (sigismember(&mask, i) == 1)
            printf("  signal %d is blocked\n", i);
}
