/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shard.c - a rank's part of a checkpoint: a file that is complete under its own name, or not there.
 *
 * Here: tensors are written as they come, by several threads. The header, which has their checksums, comes last;
 * then the file is synchronised and gets its name, and its folder is synchronised.
 *
 * Not here: a checkpoint. That takes the shards of all ranks (manifest.c).
 *
 * Threads: see checkpoint.h.
 */
#include "checkpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PAGE  4096u
#define MAGIC "cupool-example1" /* 15 bytes, and a zero */

_Static_assert(sizeof(struct shard_header) <= PAGE, "a header has a page");

void shard_name(char *path, const char *folder, int of_rank)
{
    char name[32];

    (void)snprintf(name, sizeof(name), "shard-%d", of_rank);
    files_path(path, folder, name);
}

static uint64_t header_checksum(const struct shard_header *h)
{
    return files_checksum(h, offsetof(struct shard_header, checksum));
}

int shard_begin(struct shard *s, const char *folder, const struct state *state, int step, struct trouble *trouble)
{
    uint64_t at = PAGE;

    memset(&s->header, 0, sizeof(s->header));
    memcpy(s->header.magic, MAGIC, sizeof(MAGIC));
    s->header.step = (uint32_t)step;
    s->header.rank = (uint32_t)rank;
    s->header.ranks = (uint32_t)ranks;
    s->header.tensors = (uint32_t)state->tensors;
    for (int i = 0; i < state->tensors; i++) {
        s->header.tensor[i].at = at;
        s->header.tensor[i].size = state->tensor[i].size;
        at += (state->tensor[i].size + PAGE - 1) / PAGE * PAGE;
    }
    (void)snprintf(s->folder, sizeof(s->folder), "%s", folder);
    shard_name(s->path, folder, rank);
    if (snprintf(s->made, sizeof(s->made), "%s.new", s->path) >= (int)sizeof(s->made))
        ranks_fail(__FILE__, __LINE__, s->path, strerror(ENAMETOOLONG));
    return files_open(&s->fd, s->made, trouble);
}

int shard_write(struct shard *s, int i, const void *bytes, struct trouble *trouble)
{
    double start = ranks_now();
    int error;

    s->header.tensor[i].checksum = files_checksum(bytes, s->header.tensor[i].size);
    save_add(CHECKSUMS, start);
    start = ranks_now();
    error = files_write(s->fd, s->made, bytes, s->header.tensor[i].size, (off_t)s->header.tensor[i].at, trouble);
    save_add(WRITES, start);
    return error;
}

int shard_finish(struct shard *s, struct trouble *trouble)
{
    double start = ranks_now();
    char page[PAGE] = {0};
    int error;

    s->header.checksum = header_checksum(&s->header);
    memcpy(page, &s->header, sizeof(s->header));
    error = files_write(s->fd, s->made, page, sizeof(page), 0, trouble);
    if (!error)
        error = files_sync(s->fd, s->made, trouble);
    if (close(s->fd) && !error) {
        error = trouble->error = errno;
        (void)snprintf(trouble->why, sizeof(trouble->why), "close %s: %s", s->made, strerror(error));
    }
    s->fd = -1;
    if (!error)
        error = files_rename(s->made, s->path, trouble);
    if (!error)
        error = files_folder_sync(s->folder, trouble);
    save_add(SYNCS, start);
    return error;
}

void shard_abandon(struct shard *s)
{
    if (s->fd >= 0)
        (void)close(s->fd);
    s->fd = -1;
    files_remove(s->made);
    files_remove(s->path);
}

static int wrong(const char *path, const char *why, struct trouble *trouble)
{
    trouble->error = EINVAL;
    (void)snprintf(trouble->why, sizeof(trouble->why), "%s: %s", path, why);
    return EINVAL;
}

/* All of it, or an error in words. */
static int read_at(int fd, const char *path, void *bytes, size_t size, off_t at, struct trouble *trouble)
{
    char *to = (char *)bytes;

    while (size > 0) {
        ssize_t n = pread(fd, to, size, at);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return wrong(path, n < 0 ? strerror(errno) : "ends too early", trouble);
        to += n;
        at += n;
        size -= (size_t)n;
    }
    return 0;
}

static int header_read(int fd, const char *path, int of_rank, int of_ranks, struct shard_header *h,
                       struct trouble *trouble)
{
    if (read_at(fd, path, h, sizeof(*h), 0, trouble))
        return EINVAL;
    if (memcmp(h->magic, MAGIC, sizeof(MAGIC)) != 0 || h->checksum != header_checksum(h) || h->tensors > TENSORS_MAX)
        return wrong(path, "its header is damaged", trouble);
    if (h->rank != (uint32_t)of_rank || h->ranks != (uint32_t)of_ranks)
        return wrong(path, "is another rank's", trouble);
    return 0;
}

static int tensor_load(int fd, const char *path, const struct shard_header *h, int i, struct state *load,
                       struct trouble *trouble)
{
    size_t size = h->tensor[i].size;
    void *bytes = malloc(size);
    int error;

    if (!bytes)
        return wrong(path, "no memory to read it", trouble);
    error = read_at(fd, path, bytes, size, (off_t)h->tensor[i].at, trouble);
    if (!error && files_checksum(bytes, size) != h->tensor[i].checksum)
        error = wrong(path, "a tensor is damaged", trouble);
    if (!error && load && load->tensor[i].size != size)
        error = wrong(path, "its tensors have other sizes", trouble);
    if (!error && load)
        CUDA(cudaMemcpy(load->tensor[i].device, bytes, size, cudaMemcpyHostToDevice));
    free(bytes);
    return error;
}

int shard_load(const char *folder, int of_rank, int of_ranks, struct state *load, uint64_t *checksum,
               struct trouble *trouble)
{
    struct shard_header h;
    char path[PATH_ROOM];
    int fd, error;

    shard_name(path, folder, of_rank);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return wrong(path, strerror(errno), trouble);
    error = header_read(fd, path, of_rank, of_ranks, &h, trouble);
    if (!error && load && load->tensors != (int)h.tensors)
        error = wrong(path, "has another number of tensors", trouble);
    for (int i = 0; !error && i < (int)h.tensors; i++)
        error = tensor_load(fd, path, &h, i, load, trouble);
    *checksum = error ? 0 : h.checksum;
    (void)close(fd);
    return error;
}
