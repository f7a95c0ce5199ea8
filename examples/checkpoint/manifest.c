/* SPDX-License-Identifier: Apache-2.0 */
/*
 * manifest.c - which checkpoints there are: a folder with a manifest is one, a folder without is none.
 *
 * Here: the manifest has the header's checksum of each rank's shard and one of itself. It is written under
 * another name, synchronised and renamed, so it is complete or absent. To remove a checkpoint is to remove its manifest
 * first.
 *
 * Not here: a look into the shards; shard.c verifies them.
 *
 * Threads: see checkpoint.h.
 */
#include "checkpoint.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NAME "manifest"

void manifest_folder(char *path, const char *dir, int step)
{
    char name[32];

    (void)snprintf(name, sizeof(name), "step-%08d", step);
    files_path(path, dir, name);
}

/* The text without its last line, which has a checksum. NULL: no memory. */
static char *text_of(int step, int of_ranks, const uint64_t *checksums)
{
    size_t room = 64 + 40 * (size_t)of_ranks, n;
    char *text = (char *)malloc(room);

    if (!text)
        return NULL;
    n = (size_t)snprintf(text, room, "step %d ranks %d\n", step, of_ranks);
    for (int i = 0; i < of_ranks; i++)
        n += (size_t)snprintf(text + n, room - n, "shard-%d %016" PRIx64 "\n", i, checksums[i]);
    return text;
}

int manifest_write(const char *dir, int step, const uint64_t *checksums, struct trouble *trouble)
{
    char folder[PATH_ROOM], path[PATH_ROOM], made[PATH_ROOM], *text = text_of(step, ranks, checksums), end[32];
    size_t size = text ? strlen(text) : 0;
    int fd, error;

    if (!text)
        ranks_fail(__FILE__, __LINE__, "malloc", "out of memory");
    manifest_folder(folder, dir, step);
    files_path(path, folder, NAME);
    files_path(made, folder, NAME ".new");
    (void)snprintf(end, sizeof(end), "end %016" PRIx64 "\n", files_checksum(text, size));
    error = files_open(&fd, made, trouble);
    if (!error) {
        error = files_write(fd, made, text, size, 0, trouble);
        if (!error)
            error = files_write(fd, made, end, strlen(end), (off_t)size, trouble);
        if (!error)
            error = files_sync(fd, made, trouble);
        (void)close(fd);
    }
    free(text);
    if (!error)
        error = files_rename(made, path, trouble);
    if (!error)
        error = files_folder_sync(folder, trouble);
    if (!error)
        error = files_folder_sync(dir, trouble); /* in which the folder is */
    return error;
}

/* The checksums of all ranks' shards in a manifest, or NULL. */
static uint64_t *checksums_read(FILE *file, int step, int *of_ranks)
{
    uint64_t *sums = NULL;
    int found;

    if (fscanf(file, "step %d ranks %d\n", &found, of_ranks) == 2 && found == step && *of_ranks > 0 &&
        *of_ranks < 1 << 20)
        sums = (uint64_t *)calloc((size_t)*of_ranks, sizeof(*sums));
    for (int i = 0; sums && i < *of_ranks; i++)
        if (fscanf(file, "shard-%d %" SCNx64 "\n", &found, &sums[i]) != 2 || found != i) {
            free(sums);
            sums = NULL;
        }
    return sums;
}

/* 0 if the manifest is there and right, and of shards with these checksums (NULL: any). */
static int manifest_read(const char *dir, int step, const uint64_t *checksums, int *of_ranks)
{
    char folder[PATH_ROOM], path[PATH_ROOM], *text = NULL;
    uint64_t *sums, end;
    int error = -1;
    FILE *file;

    manifest_folder(folder, dir, step);
    files_path(path, folder, NAME);
    file = fopen(path, "re");
    if (!file)
        return -1;
    sums = checksums_read(file, step, of_ranks);
    if (sums && fscanf(file, "end %" SCNx64, &end) == 1 && (text = text_of(step, *of_ranks, sums)) &&
        files_checksum(text, strlen(text)) == end)
        error = 0;
    if (!error && checksums && memcmp(checksums, sums, (size_t)*of_ranks * sizeof(*sums)) != 0)
        error = -1;
    free(text);
    free(sums);
    (void)fclose(file);
    return error;
}

int manifest_has(const char *dir, int step, const uint64_t *checksums)
{
    int of_ranks;

    return manifest_read(dir, step, checksums, &of_ranks) == 0;
}

/* Steps that have a folder, each handed to a function. */
static void each_folder(const char *dir, void (*call)(const char *dir, int step, void *arg), void *arg)
{
    DIR *stream = opendir(dir);
    struct dirent *entry;

    while (stream && (entry = readdir(stream))) {
        char name[32], *end;
        long step = strncmp(entry->d_name, "step-", 5) == 0 ? strtol(entry->d_name + 5, &end, 10) : -1;

        (void)snprintf(name, sizeof(name), "step-%08ld", step);
        if (step >= 0 && step < 1 << 30 && strcmp(name, entry->d_name) == 0)
            call(dir, (int)step, arg);
    }
    if (stream)
        (void)closedir(stream);
}

struct search {
    int before, found, of_ranks;
};

static void newest_look(const char *dir, int step, void *arg)
{
    struct search *s = (struct search *)arg;
    int of_ranks;

    if (step >= s->before || step <= s->found || manifest_read(dir, step, NULL, &of_ranks))
        return;
    s->found = step;
    s->of_ranks = of_ranks;
}

int manifest_newest(const char *dir, int before, int *of_ranks)
{
    struct search s = {before, -1, 0};

    each_folder(dir, newest_look, &s);
    *of_ranks = s.of_ranks;
    return s.found;
}

void manifest_remove(const char *dir, int step)
{
    char folder[PATH_ROOM], path[PATH_ROOM];
    struct dirent *entry;
    DIR *stream;

    manifest_folder(folder, dir, step);
    files_path(path, folder, NAME);
    files_remove(path);
    stream = opendir(folder);
    while (stream && (entry = readdir(stream)))
        if (entry->d_name[0] != '.') {
            files_path(path, folder, entry->d_name);
            files_remove(path);
        }
    if (stream)
        (void)closedir(stream);
    files_remove(folder);
}

static void prune_look(const char *dir, int step, void *arg)
{
    const int *oldest = (const int *)arg;
    int of_ranks;

    if (step < *oldest || manifest_read(dir, step, NULL, &of_ranks))
        manifest_remove(dir, step);
}

void manifest_prune(const char *dir, int keep)
{
    int oldest = 1 << 30, of_ranks;

    for (int i = 0; i < keep; i++) {
        int found = manifest_newest(dir, oldest, &of_ranks);

        if (found < 0)
            break;
        oldest = found;
    }
    each_folder(dir, prune_look, &oldest);
}
