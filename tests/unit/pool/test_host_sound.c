/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_host_sound.c - host_pool_check finds what is broken, on books that the test falsifies (falsify.h): each number
 * of each structure by itself, and more at once where one of them alone would be noticed by another part of the check.
 * Other tests rely on it. The rows are in host_sound.txt.
 */
#include "host_env.h"

#include "falsify.h"
#include "record.h"

static struct host_stats sound_stats;
static struct falsify_places of_host_pool, of_host_segment, of_host_block, of_host_list, of_host_family, of_host_shard,
    of_host_magazine, of_host_token;

static const char *check(void)
{
    static char text[256];
    int rc;

    text[0] = '\0';
    rc = host_pool_check(fake.pool, text, sizeof(text));
    assert_int_equal(rc, text[0] ? -EINVAL : 0);
    return rc ? text : NULL;
}

/* Each check adds the shards' counts to these. */
static void restored(void)
{
    fake.pool->stats = sound_stats;
}

/* Some of its blocks. */
static struct {
    struct host_block *live, *ready, *out; /* out: the only one, because which bucket a block is in is chance */
} some;

static struct host_block *block_at(uint64_t addr)
{
    const struct host_segment *segment = host_table_find(fake.pool, addr);

    return segment->starts[(addr - segment->addr) / HOST_GRANULE];
}

/* Before threads contend: a block beyond the bound, blocks of slabs and others, ranges, what is waiting or ready. Then
 * every list of a shard gets blocks. */
static void prepare(void)
{
    uint64_t small[20], whole[6], large[4], least[3];

    fake.pool->limit = 1;
    (void)get(3 * MIB);
    fake.pool->limit = 0;
    get_all(small, 20, 4 * KIB);
    get_all(whole, 6, MIB);
    some.live = block_at(get(600)); /* in another page, the rest of which is a range */
    get_all(least, 3, 1);           /* the first class */
    put_all(small, 14, 4 * KIB);
    put_all(least, 2, 1);
    put_all(whole, 2, MIB);
    assert_true(host_tokens_ask(fake.pool, 2));
    host_fake_launch(&fake);
    small[0] = get(4 * KIB); /* the others are ready */
    (void)get(1);
    put_all(small + 14, 3, 4 * KIB);
    put_all(whole + 2, 3, MIB);
    atomic_store(&fake.pool->sharded, true);
    fake.alone = false;
    get_all(small, 6, 4 * KIB);
    get_all(large, 4, 200 * KIB);
    put_all(small, 6, 4 * KIB);
    put_all(large, 3, 200 * KIB);
    some.ready = some.live->segment->family->ready[host_class_of(4 * KIB)].first;
    some.out = block_at(large[3]);
}

static void list_places(struct host_list *list, size_t count, const char *name)
{
    for (size_t i = 0; i < count; i++)
        if (list[i].first)
            falsify_place(&of_host_list, &list[i], "%s", name);
}

static void describe(void)
{
    static const char *const states[] = {"nowhere", "front", "range", "live", "waiting", "ready", "lent"};
    static const char *const lents[] = {" ready", " out", " freed", " kept"};
    unsigned int n;

    falsify_place(&of_host_pool, fake.pool, "pool");
    for (n = 0; n < fake.pool->table_count; n++) {
        struct host_segment *segment = fake.pool->table[n];
        unsigned int m = 0;

        falsify_place(&of_host_segment, segment, "%u", n);
        record_add("%u: %zu KiB%s%s, stamp %u, %u live\n", n, segment->size / KIB, segment->starts ? ", slab" : "",
                   segment->passing ? ", passing" : "", (unsigned int)segment->stamp, segment->live);
        for (struct host_block *block = segment->first; block; block = block->after, m++) {
            falsify_place(&of_host_block, block, "%u.%u", n, m);
            record_add("%u.%u: %s%s, %zu granules, class %u, stamp %u\n", n, m, states[block->state],
                       block->state == HOST_LENT ? lents[block->lent] : "", block->size / HOST_GRANULE,
                       block->state == HOST_FRONT ? 0 : block->class,
                       block->state >= HOST_WAITING && block->state <= HOST_READY ? (unsigned int)block->stamp : 0);
        }
    }
    n = 0;
    for (struct host_family *family = fake.pool->families; family; family = family->next) {
        falsify_place(&of_host_family, family, "f%u", n++);
        list_places(family->waiting, HOST_CLASSES, "waiting");
        list_places(family->ready, HOST_CLASSES, "ready");
        list_places(family->bins, HOST_BINS, "bin");
    }
    n = 0;
    for (struct host_token *token = fake.pool->tokens.first; token; token = token->next) {
        falsify_place(&of_host_token, token, "token%u", n);
        record_add("token%u: %u\n", n++, (unsigned int)token->epoch);
    }
    record_add("epoch %u, recorded %u, done %u\n", (unsigned int)fake.pool->tokens.epoch,
               (unsigned int)fake.pool->tokens.recorded, (unsigned int)fake.pool->tokens.done);
    for (n = 0; n < HOST_SHARDS; n++) {
        struct host_shard *shard = &fake.pool->shards[n];

        falsify_place(&of_host_shard, shard, "s%u", n);
        list_places(&shard->freed, 1, "freed");
        list_places(&shard->kept, 1, "kept");
        list_places(shard->buckets, HOST_SHARD_BUCKETS, "bucket");
        for (unsigned int i = 0; i < HOST_MAGAZINES; i++)
            if (shard->magazines[i].count || n < 2) {
                falsify_place(&of_host_magazine, &shard->magazines[i], "s%u.%u", n, i);
                list_places(&shard->magazines[i].list, 1, "magazine");
            }
        if (shard->out)
            record_add("s%u: %u out, %u freed, %u kept, ready %u %u %u %u\n", n, shard->out, shard->freed_count,
                       shard->kept_count, shard->magazines[0].count, shard->magazines[1].count,
                       shard->magazines[2].count, shard->magazines[3].count);
    }
}

/* clang-format off */
static const struct falsify_member members[] = {
    WRONG(host_pool, table_count, "-1"), WRONG(host_pool, tokens.done, "+1 -1 0"),
    WRONG(host_pool, tokens.epoch, "+1 -1"), WRONG(host_pool, stats.live, "+1 -1"),
    WRONG(host_pool, stats.blocks, "+1 -1"), WRONG(host_pool, stats.waiting, "+1 -1"),
    WRONG(host_pool, stats.passing, "+1 -1"), WRONG(host_pool, stats.held, "+1 -1"),
    WRONG(host_pool, stats.idle, "+1 -1"), WRONG(host_pool, stats.segments, "+1 -1"),
    WRONG(host_segment, addr, "+512 -512 ~"), WRONG(host_segment, size, "+512 -512"), WRONG(host_segment, first, "0"),
    WRONG(host_segment, starts, "0"), WRONG(host_segment, stamp, "+1 -1 0"), WRONG(host_segment, live, "+1 -1"),
    WRONG(host_segment, passing, "0 1"),
    WRONG(host_block, addr, "+512 -512 ~"), WRONG(host_block, size, "+512 -512 0"),
    WRONG(host_block, requested, "+1 -1 0 +512 -512"), WRONG(host_block, stamp, "+1 -1 +9 0"),
    WRONG(host_block, segment, "0 ~"), WRONG(host_block, before, "0 ~"), WRONG(host_block, after, "0"),
    WRONG(host_block, prev, "0 ~"), WRONG(host_block, next, "0 ~"), WRONG(host_block, state, "0 1 2 3 4 5 6"),
    WRONG(host_block, lent, "0 1 2 3"), WRONG(host_block, shard, "+1"), WRONG(host_block, class, "+1 -1"),
    WRONG(host_list, first, "0 ~"), WRONG(host_list, last, "0 ~"),
    WRONG(host_family, bin_set[0], "0 +1 -9223372036854775808"), WRONG(host_family, bin_set[1], "0 +1"),
    WRONG(host_shard, live, "+1"), WRONG(host_shard, blocks, "+1"), WRONG(host_shard, out, "+1 -1"),
    WRONG(host_shard, freed_count, "+1 -1"), WRONG(host_shard, kept_count, "+1 -1"),
    WRONG(host_magazine, count, "+1 -1"),
    WRONG(host_token, epoch, "+1 -1 0 ~"), WRONG(host_token, next, "0 ~"), WRONG(host_token, gone, "0 1"),
};
/* clang-format on */

static void falsify_tokens(void)
{
    struct host_tokens *is = &fake.pool->tokens;
    struct host_token *last = of_host_token.at[of_host_token.count - 1].at;

    for (uint64_t recorded = is->recorded - 1; recorded <= is->epoch; recorded++)
        for (uint64_t done = is->done; done <= is->epoch; done++) {
            FALSIFY(is->recorded, recorded);
            FALSIFY(is->done, done);
            falsify_row("recorded %u, done %u", (unsigned int)recorded, (unsigned int)done);
        }
    FALSIFY(last->epoch, is->epoch);
    FALSIFY(is->recorded, is->epoch);
    falsify_row("a token of the current epoch");
}

/* The block begins so many bytes later, and the one before it ends there. */
static void begin_move(struct host_block *block, size_t more)
{
    struct host_block **starts = block->segment->starts;
    const size_t at = (block->addr - block->segment->addr) / HOST_GRANULE;

    FALSIFY(starts[at], NULL);
    FALSIFY(starts[at + more / HOST_GRANULE], block);
    FALSIFY(block->before->size, block->before->size + more);
    FALSIFY(block->addr, block->addr + more);
    FALSIFY(block->size, block->size - more);
}

static void falsify_blocks(void)
{
    struct host_segment *slab = some.live->segment;
    struct host_block *last;
    const size_t granules = HOST_SLAB / HOST_GRANULE;
    const size_t at[] = {0, (some.live->addr - slab->addr) / HOST_GRANULE, granules / 2, granules - 1};

    for (size_t i = 0; i < sizeof(at) / sizeof(at[0]); i++) {
        FALSIFY(slab->starts[at[i]], slab->starts[at[i]] ? NULL : some.live);
        falsify_row("start %zu", at[i]);
    }
    begin_move(some.out, HOST_GRANULE);
    FALSIFY(some.out->requested, some.out->size);
    falsify_row("a block is not aligned");
    for (last = slab->first; last->after;)
        last = last->after;
    FALSIFY(last->size, last->size + HOST_GRANULE);
    FALSIFY(slab->size, slab->size + HOST_GRANULE);
    falsify_row("a slab is too large");
    FALSIFY(some.live->state, HOST_LENT);
    FALSIFY(some.live->lent, HOST_LENT_OUT);
    falsify_row("a live block is lent, on no list");
    FALSIFY(some.ready->stamp, fake.pool->tokens.epoch + 1);
    FALSIFY(slab->stamp, fake.pool->tokens.epoch + 1);
    falsify_row("a block is ready that was freed later");
}

static void falsify_lists(void)
{
    struct host_shard *shard = of_host_shard.at[0].at;
    struct host_list *waiting = of_host_list.at[0].at, *bucket = shard->buckets;
    const size_t others[] = {0, 1, 2, HOST_SHARD_BUCKETS - 1};

    FALSIFY(waiting->first, NULL);
    FALSIFY(waiting->last, NULL);
    falsify_row("what is waiting is on no list");
    while (!bucket->first)
        bucket++;
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        FALSIFY(bucket->first, NULL);
        FALSIFY(bucket->last, NULL);
        FALSIFY(shard->buckets[others[i]].first, some.out);
        FALSIFY(shard->buckets[others[i]].last, some.out);
        falsify_row("what is out is in bucket %zu", others[i]);
    }
}

/* Each segment beside the one before it, and a granule nearer. */
static void falsify_table(void)
{
    for (size_t i = 1; i < of_host_segment.count; i++)
        for (size_t over = 0; over <= HOST_GRANULE; over += HOST_GRANULE) {
            const struct host_segment *before = of_host_segment.at[i - 1].at;
            struct host_segment *segment = of_host_segment.at[i].at;
            const uint64_t away = segment->addr - before->addr - before->size + over;

            FALSIFY(segment->addr, segment->addr - away);
            for (struct host_block *block = segment->first; block; block = block->after)
                FALSIFY(block->addr, block->addr - away);
            falsify_row("%zu is %s the one before it", i, over ? "in" : "beside");
        }
}

CASE(test_each_number)
{
    prepare();
    assert_sound();
    sound_stats = fake.pool->stats;
    falsify_begin(check, restored);
    record_begin("pool/host_sound");
    describe();
    FALSIFY_EACH(members);
    falsify_tokens();
    falsify_blocks();
    falsify_lists();
    falsify_table();
    assert_true(record_end());
}

extern _Thread_local void (*lock_hook)(struct lock *lock); /* of checked_lock.h */
static struct lock *held;

/* Another thread releases it as soon as this one waits for it. */
static void release_held(struct lock *lock)
{
    if (lock == held)
        lock_give(lock);
}

CASE(test_waits_for_shards)
{
    held = &fake.pool->shards[1].lock;
    lock_take(held);
    lock_hook = release_held;
    assert_sound();
    lock_hook = NULL;
}
