/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_ipc_table.c - the books of exported blocks when they are full, and of many blocks with several holders; that
 * nobody waits for them while a descriptor is closed. shim/context/ipc_table.c alone; what importers do with the books
 * is tested end to end.
 *
 * The source is included, for its buckets (every free looks into one while any block is exported), and for its lock.
 */
#include "cases.h"
#include <stdlib.h>

#include "base/descriptor.h"
#include "base/ipc_socket.h"

static void watched_leave(struct ipc_descriptor *descriptor);
static void watched_drop(int fd);
static void *counted_malloc(size_t size);
static void *counted_calloc(size_t count, size_t size);
static void counted_free(void *record);

#define ipc_leave watched_leave
#define file_drop watched_drop
#define malloc    counted_malloc
#define calloc    counted_calloc
#define free      counted_free
#include "context/ipc_table.c" /* NOLINT(bugprone-suspicious-include): as said above */
#undef ipc_leave
#undef file_drop
#undef malloc
#undef calloc
#undef free

static unsigned int closed, locked, uncounted, records;
static bool no_memory;

static void *counted_malloc(size_t size)
{
    records++;
    return malloc(size);
}

static void *counted_calloc(size_t count, size_t size)
{
    if (no_memory)
        return NULL;
    records++;
    return calloc(count, size);
}

static void counted_free(void *record)
{
    records -= record != NULL;
    free(record);
}

/* A close that gives up GPU memory takes the driver as long as several opens. */
static void close_look(void)
{
    if (pthread_mutex_trylock(&table.lock) == 0)
        pthread_mutex_unlock(&table.lock);
    else
        locked++;
    closed++;
}

static bool all(const struct context *owner, int device)
{
    return true;
}

static void watched_leave(struct ipc_descriptor *descriptor)
{
    struct ipc_table_counts counts;

    if (descriptor->fd < 0)
        return;
    close_look();
    ipc_table_count(all, 0, &counts);
    uncounted +=
        !ipc_table_any() || !counts.blocks; /* then a pause takes memory for its own that is not given up yet */
    ipc_leave(descriptor);
}

static void watched_drop(int fd)
{
    close_look();
    file_drop(fd);
}

#define SEGMENT UINT64_C(0x7f0000000000)
#define BLOCK   UINT64_C(512)

static struct ipc_name names[IPC_BLOCKS_MAX + 1];

/* From its first making on the lock checks its use. */
__attribute__((constructor)) static void lock_make(void)
{
    ipc_table_forget();
}

static int add(uint64_t block, size_t described)
{
    const struct ipc_segment segment = {.addr = SEGMENT, .size = described, .how = IPC_NATIVE, .fd = -1};

    return ipc_table_add(NULL, SEGMENT + block * BLOCK, BLOCK, &segment, &names[block]);
}

static unsigned int longest_bucket(void)
{
    unsigned int longest = 0;

    for (unsigned int i = 0; i < BUCKETS; i++) {
        unsigned int count = 0;

        for (const struct block *block = table.by_addr[i]; block; block = block->next_addr)
            count++;
        longest = count > longest ? count : longest;
    }
    return longest;
}

/* -EAGAIN would have the caller describe the segment and try again, for ever. */
UNIT_CASE(test_the_books_are_full)
{
    assert_int_equal(add(0, 0), -EAGAIN); /* a segment that is not in the books, and is not described */
    for (uint64_t i = 0; i < IPC_BLOCKS_MAX; i++)
        assert_int_equal(add(i, i ? 0 : IPC_BLOCKS_MAX * BLOCK), 0);
    assert_int_equal(add(IPC_BLOCKS_MAX, 0), -ENOMEM);
    assert_int_equal(add(IPC_BLOCKS_MAX, IPC_BLOCKS_MAX * BLOCK), -ENOMEM);
    assert_int_equal(add(7, 0), 0); /* it is there */
    assert_true(longest_bucket() <= 8);
    assert_int_equal(ipc_table_free(SEGMENT), IPC_FREE_NOW);
    assert_int_equal(add(IPC_BLOCKS_MAX, 0), 0);
    ipc_table_segment_gone(SEGMENT);
    assert_false(ipc_table_any());
}

/* Nor would it help to describe a segment that is in the books. */
UNIT_CASE(test_no_host_memory)
{
    assert_int_equal(add(0, 2 * BLOCK), 0);
    no_memory = true;
    assert_int_equal(add(1, 0), -ENOMEM);
    no_memory = false;
    assert_int_equal(add(1, 0), 0);
    ipc_table_segment_gone(SEGMENT);
}

static bool has_owner(const struct context *owner, int device)
{
    return owner && device == 3;
}

/* A segment goes with the blocks of whatever context. */
UNIT_CASE(test_a_segment_is_gone)
{
    const struct ipc_segment segment = {.addr = SEGMENT, .size = 2 * BLOCK, .how = IPC_NATIVE, .fd = -1};
    const struct context *owner = (const void *)&segment;
    struct ipc_table_counts counts;

    assert_int_equal(ipc_table_add(owner, SEGMENT, BLOCK, &segment, &names[0]), 0);
    ipc_table_count(has_owner, 3, &counts);
    assert_int_equal(counts.blocks, 0);
    ipc_table_count(has_owner, 4, &counts);
    assert_int_equal(counts.blocks, 1);
    ipc_table_segment_gone(SEGMENT + 2 * BLOCK);
    assert_true(ipc_table_any());
    ipc_table_segment_gone(SEGMENT);
    assert_false(ipc_table_any());
}

static void grant_to(struct ipc_holder *holder, unsigned int block)
{
    struct ipc_request request;
    struct ipc_grant granted;
    int fd;

    ipc_request_make(&request, IPC_OPEN, block, &names[block]);
    ipc_table_grant(holder, &request, &granted, &fd);
    assert_int_equal(granted.status, IPC_GRANTED);
    assert_int_equal(fd, -1);
}

/* Each holder's grants are its own, in whatever order they are taken back, and whether the block is still there. */
UNIT_CASE(test_each_holder_gives_back_its_own)
{
    struct ipc_holder one = {0}, two = {0};
    struct ipc_table_counts counts;
    uint64_t addr;

    for (unsigned int i = 0; i < 4; i++)
        assert_int_equal(add(i, 4 * BLOCK), 0);
    for (unsigned int i = 0; i < 4; i++) {
        grant_to(&one, i);
        grant_to(&two, i);
    }
    grant_to(&one, 2);
    for (unsigned int i = 0; i < 3; i++) /* the last, the first, the one in the middle */
        assert_true(ipc_table_close(&two, &names[(3 + i) % 4]));
    assert_false(ipc_table_close(&two, &names[3]));
    assert_int_equal(ipc_table_free(SEGMENT + 2 * BLOCK), IPC_FREE_PARKED);
    assert_true(ipc_table_close(&one, &names[2]));
    ipc_table_end(&two);
    assert_null(two.first);
    assert_false(ipc_table_released(&addr));
    assert_true(ipc_table_close(&one, &names[2]));
    assert_true(ipc_table_released(&addr));
    assert_int_equal(addr, SEGMENT + 2 * BLOCK);
    assert_true(ipc_table_take(addr));
    ipc_table_count(NULL, 0, &counts);
    assert_int_equal(counts.held, 3);
    ipc_table_segment_gone(SEGMENT);
    assert_true(ipc_table_close(&one, &names[1]));
    assert_false(ipc_table_close(&one, &names[1]));
    ipc_table_end(&one);
    assert_null(one.first);
    assert_int_equal(records, 0);
}

/* The answer to a request for this name. *ret_fd: the descriptor that comes along. */
static struct ipc_grant asked(struct ipc_holder *holder, const struct ipc_name *name, int *ret_fd)
{
    struct ipc_request request;
    struct ipc_grant granted;

    ipc_request_make(&request, IPC_OPEN, 77, name);
    memset(&granted, 0x5a, sizeof(granted));
    ipc_table_grant(holder, &request, &granted, ret_fd);
    assert_int_equal(granted.number, 77);
    assert_true(ipc_grant_read(&granted, sizeof(granted), *ret_fd >= 0, &granted));
    return granted;
}

/* All that the importer learns of a block, by whichever way its memory comes. */
UNIT_CASE(test_what_is_granted)
{
    struct ipc_segment as = {.addr = SEGMENT, .size = 8 * BLOCK, .front = 3 * BLOCK, .how = IPC_NATIVE, .fd = -1};
    struct ipc_holder holder = {0};
    struct ipc_grant first, second, other;
    struct stat wanted, got;
    int fd;

    memset(as.card, 1, sizeof(as.card));
    memset(as.handle, 2, sizeof(as.handle));
    assert_int_equal(ipc_table_add(NULL, SEGMENT + 2 * BLOCK, 100, &as, &names[0]), 0);
    assert_int_equal(ipc_table_add(NULL, SEGMENT + 5 * BLOCK, 200, &as, &names[1]), 0);
    first = asked(&holder, &names[0], &fd);
    second = asked(&holder, &names[1], &fd);
    assert_int_equal(fd, -1);
    assert_int_equal(first.how, IPC_NATIVE);
    assert_int_equal(first.segment_size, 11 * BLOCK);
    assert_int_equal(first.offset, 5 * BLOCK);
    assert_int_equal(first.size, 100);
    assert_memory_equal(first.card, as.card, sizeof(as.card));
    assert_memory_equal(first.handle, as.handle, sizeof(as.handle));
    assert_int_equal(second.offset, 8 * BLOCK);
    assert_int_equal(second.size, 200);
    assert_true(ipc_name_equal(&first.segment, &second.segment));
    assert_false(ipc_name_equal(&names[0], &names[1]));

    as = (struct ipc_segment){.addr = SEGMENT + 8 * BLOCK, .size = BLOCK, .how = IPC_DESCRIPTOR};
    as.fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    assert_int_equal(ipc_table_add(NULL, as.addr, BLOCK, &as, &names[2]), 0);
    other = asked(&holder, &names[2], &fd);
    assert_int_equal(other.how, IPC_DESCRIPTOR);
    assert_false(ipc_name_equal(&first.segment, &other.segment));
    assert_int_equal(fstat(as.fd, &wanted) | fstat(fd, &got), 0);
    assert_int_equal(got.st_ino, wanted.st_ino);
    assert_int_equal(fcntl(fd, F_GETFD), FD_CLOEXEC);
    close(fd);
    close(as.fd); /* by the program: there is nothing that could be granted */
    assert_int_equal(asked(&holder, &names[2], &fd).status, IPC_FULL);
    assert_int_equal(asked(&holder, &(struct ipc_name){{1}}, &fd).status, IPC_GONE);
    ipc_table_end(&holder);
    ipc_table_segment_gone(SEGMENT + 8 * BLOCK);
    assert_true(ipc_table_has_segment(SEGMENT));
    assert_false(ipc_table_has_segment(SEGMENT + 8 * BLOCK));
    ipc_table_segment_gone(SEGMENT);
    assert_false(ipc_table_any());
}

/* One holder gets a block so often, and one that is freed never. */
UNIT_CASE(test_how_often_it_is_granted)
{
    struct ipc_holder one = {0}, two = {0};
    struct ipc_name name;
    int fd;

    assert_int_equal(add(0, BLOCK), 0);
    for (unsigned int i = 0; i < 4096; i++)
        assert_int_equal(asked(&one, &names[0], &fd).status, IPC_GRANTED);
    assert_int_equal(asked(&one, &names[0], &fd).status, IPC_FULL);
    assert_int_equal(asked(&two, &names[0], &fd).status, IPC_GRANTED);
    assert_true(ipc_table_close(&one, &names[0]));
    assert_int_equal(asked(&one, &names[0], &fd).status, IPC_GRANTED);
    assert_true(ipc_table_name(SEGMENT, &name));
    assert_false(ipc_table_parked(SEGMENT));
    assert_int_equal(ipc_table_free(SEGMENT), IPC_FREE_PARKED);
    assert_int_equal(ipc_table_free(SEGMENT), IPC_FREE_AGAIN);
    assert_true(ipc_table_parked(SEGMENT));
    assert_false(ipc_table_parked(SEGMENT + BLOCK));
    assert_false(ipc_table_name(SEGMENT, &name));
    assert_int_equal(add(0, BLOCK), -EBUSY);
    assert_int_equal(asked(&two, &names[0], &fd).status, IPC_GONE);
    ipc_table_end(&one);
    assert_false(ipc_table_take(SEGMENT));
    ipc_table_end(&two);
    assert_true(ipc_table_take(SEGMENT));
    assert_false(ipc_table_any());
}

/* With a context its blocks go, and nobody else's. */
UNIT_CASE(test_a_context_is_gone)
{
    const struct context *const owners[] = {(const struct context *)names, (const struct context *)&names[1]};
    struct ipc_table_counts counts;

    for (unsigned int i = 0; i < 6; i++) {
        const struct ipc_segment segment = {
            .addr = SEGMENT + i / 2 * 2 * BLOCK, .size = 2 * BLOCK, .how = IPC_NATIVE, .fd = -1};

        assert_int_equal(ipc_table_add(owners[i / 2 % 2], SEGMENT + i * BLOCK, BLOCK, &segment, &names[i]), 0);
    }
    ipc_table_context_gone(owners[0]);
    ipc_table_count(NULL, 0, &counts);
    assert_int_equal(counts.blocks, 2);
    assert_true(ipc_table_has_segment(SEGMENT + 2 * BLOCK));
    assert_false(ipc_table_has_segment(SEGMENT));
    assert_false(ipc_table_has_segment(SEGMENT + 4 * BLOCK));
    assert_true(ipc_table_name(SEGMENT + 3 * BLOCK, &names[0]));
    ipc_table_context_gone(owners[0]);
    assert_true(ipc_table_any());
    ipc_table_context_gone(owners[1]);
    assert_false(ipc_table_any());
}

/* Enter a block of a segment with a descriptor; its number. */
static int add_described(uint64_t block)
{
    const struct ipc_segment segment = {
        .addr = SEGMENT, .size = 4 * BLOCK, .how = IPC_DESCRIPTOR, .fd = open("/dev/null", O_RDONLY | O_CLOEXEC)};

    assert_true(segment.fd >= 0);
    assert_int_equal(ipc_table_add(NULL, SEGMENT + block * BLOCK, BLOCK, &segment, &names[block]), 0);
    return segment.fd;
}

static void assert_closed(int fd, unsigned int count)
{
    assert_int_equal(fcntl(fd, F_GETFD), -1);
    assert_int_equal(closed, count);
    assert_int_equal(locked, 0);
    assert_int_equal(uncounted, 0);
    assert_null(table.leaving);
}

UNIT_CASE(test_nobody_waits_for_a_close)
{
    struct ipc_holder one = {0};
    struct ipc_request request;
    struct ipc_grant granted;
    int fd, spare, copy;

    closed = 0;
    fd = add_described(0);
    spare = add_described(1); /* another thread has described the segment, too */
    assert_closed(spare, 1);
    assert_int_equal(ipc_table_free(SEGMENT + BLOCK), IPC_FREE_NOW);
    assert_int_equal(closed, 1); /* the segment has a block */
    assert_int_equal(ipc_table_free(SEGMENT), IPC_FREE_NOW);
    assert_closed(fd, 2);
    assert_false(ipc_table_any());
    fd = add_described(0);
    ipc_request_make(&request, IPC_OPEN, 1, &names[0]);
    ipc_table_grant(&one, &request, &granted, &copy);
    assert_int_equal(granted.status, IPC_GRANTED);
    close(copy);
    assert_int_equal(ipc_table_free(SEGMENT), IPC_FREE_PARKED);
    ipc_table_end(&one);
    assert_int_equal(closed, 2);
    assert_true(ipc_table_take(SEGMENT));
    assert_closed(fd, 3);
    fd = add_described(0);
    add_described(1);
    ipc_table_segment_gone(SEGMENT);
    assert_closed(fd, 5);
    assert_false(ipc_table_any());
}

/* Neither sent nor closed, although it is of the same inode as ours. */
UNIT_CASE(test_a_number_that_has_become_the_programs)
{
    struct ipc_holder one = {0};
    struct ipc_request request;
    struct ipc_grant granted;
    struct ipc_segment segment = {
        .addr = SEGMENT, .size = BLOCK, .how = IPC_DESCRIPTOR, .fd = open("/dev/null", O_RDONLY | O_CLOEXEC)};
    const int other = open("/dev/null", O_RDONLY | O_CLOEXEC);
    int copy;

    file_mark(segment.fd, 1);
    assert_int_equal(ipc_table_add(NULL, SEGMENT, BLOCK, &segment, &names[0]), 0);
    ipc_request_make(&request, IPC_OPEN, 1, &names[0]);
    ipc_table_grant(&one, &request, &granted, &copy);
    assert_int_equal(granted.status, IPC_GRANTED);
    assert_int_equal(close(copy), 0);
    assert_int_equal(dup2(other, segment.fd), segment.fd);
    for (int marked = 0; marked < 2; marked++) {
        if (marked)
            file_mark(other, 2); /* as another one of ours */
        ipc_table_grant(&one, &request, &granted, &copy);
        assert_int_equal(granted.status, IPC_FULL);
        assert_int_equal(copy, -1);
    }
    ipc_table_end(&one);
    ipc_table_segment_gone(SEGMENT);
    assert_int_not_equal(fcntl(segment.fd, F_GETFD), -1);
    close(segment.fd);
    close(other);
}

/* A child of fork while another thread of the parent closes a descriptor. */
UNIT_CASE(test_a_child_closes_what_is_about_to_go)
{
    struct leaving leaving = {0};
    int fd = add_described(0);

    pthread_mutex_lock(&table.lock);
    block_remove(block_at(SEGMENT), &leaving);
    pthread_mutex_unlock(&table.lock);
    closed = 0;
    ipc_table_forget();
    assert_closed(fd, 1);
    assert_false(ipc_table_any());
    free(leaving.segments);
}

/* One more than a holder gets: the descriptor that was to go with it does not stay open. */
UNIT_CASE(test_granted_too_often)
{
    struct ipc_holder one = {0};
    unsigned int before;
    int fd;

    add_described(0);
    for (unsigned int i = 0; i < HOLDS_MAX; i++) {
        assert_int_equal(asked(&one, &names[0], &fd).status, IPC_GRANTED);
        assert_int_equal(close(fd), 0);
    }
    before = closed;
    assert_int_equal(asked(&one, &names[0], &fd).status, IPC_FULL);
    assert_int_equal(fd, -1);
    assert_int_equal(closed, before + 1);
    ipc_table_end(&one);
    ipc_table_segment_gone(SEGMENT);
}
