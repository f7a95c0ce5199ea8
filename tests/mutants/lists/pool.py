# SPDX-License-Identifier: Apache-2.0
"""Mutants of pool/: segments, blocks, magazines, the map from addresses."""
from __future__ import annotations

from mutant import Mutant

MUTANTS = [
    Mutant("a pause does not wait for a fill under way", ["suspend"], [
        ("if (!rc && !fills_wait(pool)) {", "if (0) {")]),
    Mutant("a pause goes on beside a fill that lasts", ["suspend", "shim_pause"], [
        ("if (!rc && !fills_wait(pool)) {", "if (!rc) fills_wait(pool); if (0) {")]),
    Mutant("a pause that a fill has stopped leaves the pool suspended", ["suspend", "shim_pause"], [
        ("pool_resume_end(pool, /* resumed: */ true); rc = -ETIMEDOUT;", "rc = -ETIMEDOUT;")]),
    Mutant("a request of exactly the capacity is refused", ["ladder"], [
        ("requested > config->capacity)", "requested >= config->capacity)")]),
    Mutant("the block before an address does not begin at it", ["map", "pool"], [
        ("(addr / POOL_GRANULE) % SLOTS + 1; slots && i > 0", "(addr / POOL_GRANULE) % SLOTS; slots && i > 0")]),
    Mutant("statistics count an idle segment for each of its cached blocks", ["survey", "life"], [
        ("segment->size : 0; segment->cached = 0;", "segment->size : 0;")]),
    Mutant("pinned memory of a busy context keeps others' from going back", ["host_bound"], [
        ("const uint64_t its = segment->key.owner;", "const uint64_t its = owner = segment->key.owner;")]),
    Mutant("pinned memory whose context has ended while it went back is kept", ["host_bound"], [
        ("lost = rc == -EBUSY && segment->lost;", "lost = false;")]),
    Mutant("a refused pinned request waits for later work", ["host_bound"], [
        ("host_release(r->pool, SIZE_MAX, 0, false, &need) ? ROOM", "host_release(r->pool, SIZE_MAX, 0, true, &need) ? ROOM")]),
    Mutant("a passing block that was kept is spared for what it cannot serve", ["host_bound"], [
        ("return host_fits(segment->size, need->size);",
         "return segment->size >= need->size && segment->size <= need->size + need->size / HOST_FIT_PART;")]),
    Mutant("the bound asks about memory that is complete", ["host_bound"], [
        ("if (!refused) return !host_idle_is_complete(r->pool);", "if (!refused) return true;")]),
    Mutant("a refused pinned request waits long although little is idle", ["host_bound"], [
        ("host_idle_complete(r->pool) >= need_of(r, true) ||", "host_idle_complete(r->pool) > 0 ||")]),
    Mutant("a refused pinned request does not wait for enough memory that later work keeps", ["host_bound"], [
        ("host_idle_complete(r->pool) >= need_of(r, true) ||", "")]),
    Mutant("a refused pinned request does not wait for its thread's own free", ["host_combiner"], [
        ("|| host_last_free_unfinished(r->pool);", ";")]),
    Mutant("a pinned free that leaves its token to another thread is forgotten", ["host_combiner"], [
        ("last_free_leave(pool); return 0;", "(void)last_free_leave; return 0;")]),
    Mutant("host pool: memory that other contexts may use is complete after a wait for one", ["host_edges"], [
        ("over = !rc && pool->ops->query(pool->arg, token->token) == 1;", "over = !rc;")]),
    Mutant("host pool: a request waits again for a free that has been waited for in vain", ["host_edges"], [
        ("if (!rc || rc == -ETIMEDOUT) /* once", "if (!rc) /* once")]),
    Mutant("host pool: a request waits for nobody's work", ["host_edges"], [
        ("host_last_free_wait(pool, r->key.owner)", "host_last_free_wait(pool, 0)")]),
    Mutant("a refused pinned request takes no block that is much larger", ["host_bound"], [
        ("if (i != class && !any_larger && ", "if (i != class && ")]),
    Mutant("pinned requests under way do not raise the bound", ["host_bound"], [
        ("if (pool->stats.live + pool->pending > pool->native_peak) pool->native_peak = pool->stats.live + pool->pending;",
         "if (pool->stats.live > pool->native_peak) pool->native_peak = pool->stats.live;")]),
    Mutant("a refused pinned request raises the bound", ["host_bound"], [
        ("if (rc) request_failed(&r);", "if (rc && 0) request_failed(&r); request_pends(&r, 0);")]),

    Mutant("pinned: a token covers frees that come while it is recorded", ["host_random"], [
        ("epoch = atomic_fetch_add(&pool->tokens.epoch, 1);", "epoch = atomic_fetch_add(&pool->tokens.epoch, 1) + 1;")]),
    Mutant("pinned: each small free has a token", ["host_combiner"], [
        ("if (!is_due(&pool->tokens)) return 0;", "")]),
    Mutant("pinned: small frees have no token until a request needs one", ["host_combiner"], [
        ("if (!is_due(&pool->tokens)) return 0;", "if (size < HOST_TOKEN_BYTES) return 0;")]),
    Mutant("pinned: a free records beside the combiner", ["host_combiner"], [
        ("if (combiner_try(&pool->tokens)) return combine(pool);", "if (combiner_try(&pool->tokens) || 1) return combine(pool);")]),
    Mutant("pinned: the combiner leaves frees that came meanwhile without a token", ["host_combiner"], [
        ("if (!rc && is_due(tokens)) {", "if (0) {")]),
    Mutant("pinned: a request waits for a combiner that is held up", ["host_combiner"], [
        ("i < NEWS_LOOKS; i++, last = done)", "1; i++, last = done)")], 10),
    Mutant("pinned: a request that asked beside the combiner ends its part", ["host_combiner"], [
        ("if (combines) /* else beside one that is held up */ combiner_ends(tokens);", "combiner_ends(tokens);")]),
    Mutant("pinned: who has been beaten to a block asks the driver for memory", ["host_combiner"], [
        ("#define HOST_NEWS 4096", "#define HOST_NEWS 2")]),
    Mutant("pinned: a small request asks before it takes free memory of slabs", ["host_combiner"], [
        ("if (!block && size <= HOST_SMALL_MAX) block = slabs_take(", "if (!block && !*ret_stamp && size <= HOST_SMALL_MAX) block = slabs_take(")]),

    Mutant("pinned: a pair takes the pool's lock in spite of shards", ["host_shards"], [
        ("block = out_find(shard, addr); if (block) { out_remove(", "block = NULL; if (block) { out_remove(")]),
    Mutant("pinned: there are never shards", ["host_shards"], [
        ("memory_order_relaxed) + 1 >= HOST_CONTENDED)", "memory_order_relaxed) + 1 >= HOST_CONTENDED && 0)")]),
    Mutant("pinned: a block that a shard has freed serves before its work is over", ["host_shards", "host_random_shards"], [
        ("freed_remove(shard, block); give_back(pool, block, true); } return bytes;", "freed_remove(shard, block); give_back(pool, block, false); } return bytes;")]),
    Mutant("pinned: a second free of a shard's block is accepted", ["host_shards"], [
        ("return live; } void host_shards_flush", "return true; } void host_shards_flush")]),
    Mutant("pinned: what shards have not counted raises the bound", ["host_shards"], [
        ("return; if (!host_shards_sync(pool, patient)) return; if (", "return; if (")]),
    Mutant("pinned: statistics wait for a shard's lock without a limit", ["host_shards"], [
        ("host_native_peak_raise(pool, /* patient: */ false)", "host_native_peak_raise(pool, /* patient: */ true)")]),
    Mutant("pinned: shards keep idle memory", ["host_shards"], [
        ("host_shards_flush(pool, true); segment = idle_find(", "segment = idle_find(")]),
    Mutant("pinned: the driver serves before other threads' shards", ["host_shards"], [
        ("host_shards_flush(pool, true); family = ", "family = ")]),
    Mutant("pinned: memory beyond the bound stays in a shard", ["host_shards"], [
        ("if (block->segment->passing) return; class = host_class_of(size);", "class = host_class_of(size);")]),
    Mutant("pinned: a large block that a shard keeps serves before its work is over", ["host_shards", "host_random_shards"], [
        ("if (host_is_done(pool, block->stamp)) return block; *ret_stamp", "if (block->stamp) return block; *ret_stamp")]),
    Mutant("pinned: a large block that a shard keeps has the stamp of its last free but one", ["host_random_shards"], [
        ("block->stamp = host_stamp(pool); host_list_push(&shard->kept", "host_list_push(&shard->kept")]),
    Mutant("pinned: a shard does not ask about the large blocks that it keeps", ["host_shards"], [
        ("(stamp && host_tokens_ask(pool, stamp) &&", "(0 && stamp && host_tokens_ask(pool, stamp) &&")]),
    Mutant("pinned: a shard keeps all large blocks", ["host_shards"], [
        ("|| shard->kept_count > HOST_SHARD_KEPT; }", "; }")]),
    Mutant("pinned: what a shard has kept is waiting in the wrong order", ["host_random_shards"], [
        ("if (list->last && list->last->stamp > block->stamp)", "if (0)")]),
    Mutant("pinned: the driver serves before other threads' shards, large blocks", ["host_shards"], [
        ("if (shards) host_shards_flush(pool, true);", "")]),
    Mutant("pinned: a shard keeps all that is live", ["host_shards"], [
        ("if (shard->out >= HOST_SHARD_OUT) out_give_back(shard);", "")]),
    Mutant("pinned: a shard's memory survives its context", ["host_shards"], [
        ("if (block->state == HOST_LENT) (void)host_shard_recall(pool, block);", "")]),

    # --- the order of frees ---
    Mutant("a block is published before it is ordered", ["threads"], [
        ("rc = pool->config.order->order(pool->config.arg, POOL_ORDER_FREE); block_publish(pool, block, rc);",
         "block_publish(pool, block, 0); rc = pool->config.order->order(pool->config.arg, POOL_ORDER_FREE);")]),
    Mutant("a block is published although ordering failed", ["order"], [
        ("if (rc == 0) { count_up(&magazine->order);", "if (rc <= 0) { count_up(&magazine->order);")]),
    Mutant("deferred blocks are taken off the list without the lock", ["threads"], [
        ("magazine_visit(magazine); ret_deferred[i] = magazine->deferred; if (magazine->deferred) { any = true; atomic_fetch_sub(&pool->shown.deferring, 1); } magazine->deferred = NULL; magazine->deferred_count = magazine->deferred_large = 0; size_set(&magazine->deferred_async, 0); "
         "size_set(&magazine->deferred_bytes, 0); magazine_unlock(magazine);",
         "ret_deferred[i] = magazine->deferred; magazine->deferred = NULL; magazine->deferred_count = 0; size_set(&magazine->deferred_bytes, 0);")], 10),
    Mutant("relaxed: deferred blocks are handed out", ["order", "stamp relaxed"], [
        ("handed_sub(magazine, block->size); magazine_defer(pool, magazine, block, freed); }",
         "handed_sub(magazine, block->size); if (!magazine_put(magazine, block)) magazine_defer(pool, magazine, block, freed); }")]),
    Mutant("blocks deferred during an order are published by it", ["order"], [
        ("block_publish(pool, block, rc); } release_some(pool);",
         "block_publish(pool, block, rc); if (rc == 0) { struct block *lists[MAGAZINES] = {NULL}, *next; deferred_take(pool, NULL, lists); "
         "for (unsigned int i = 0; i < MAGAZINES; i++) for (; lists[i]; lists[i] = next) { next = lists[i]->link; magazine_put_or_coalesce(pool, &pool->magazines[i], lists[i], 0); } } } release_some(pool);")]),
    Mutant("a magazine that a segment's end has emptied counts as one with deferred blocks", ["life"], [
        ("if (some && !magazine->deferred) atomic_fetch_sub(&pool->shown.deferring, 1);", "")]),
    Mutant("a magazine that was emptied counts as one with deferred blocks", ["magazine", "order"], [
        ("if (magazine->deferred) { any = true; atomic_fetch_sub(&pool->shown.deferring, 1);", "if (magazine->deferred) {")]),
    Mutant("deferred frees of two threads count as the first one's own", ["order"], [
        ("if (block->freed_by != &magazine_index) return false;", "return block->freed_by == &magazine_index;")]),
    Mutant("what streams have freed does not wait to be published", ["deferred", "waits static preloaded / freed_by_stream"], [
        ("later_set(pool); return 0;", "return 0;")]),
    Mutant("a question in vain takes what streams have freed from its thread", ["deferred"], [
        ("if (atomic_load(&pool->shown.deferring) && config->order->order(config->arg, POOL_ORDER_ASK)) return;", "")]),
    Mutant("what streams have freed is forgotten after a question in vain", ["deferred"], [
        ("if (atomic_load(&pool->shown.ordering) || atomic_load(&pool->shown.deferring)) later_set(pool);", "")]),
    Mutant("a destroyed pool counts as one with blocks that streams have freed", ["deferred"], [
        ("lock_give(&pool->lock); later_clear(pool);", "lock_give(&pool->lock);")]),
    Mutant("a free that has waited beside a capture leaves deferred blocks alone",
           ["deferred", "oom static preloaded / freed_by_stream_beside_capture"], [
        ("(is_free && !atomic_load_explicit(&pool->shown.frees_fail, memory_order_relaxed))", "(is_free && false)")]),
    Mutant("frees that fail beside a capture take up all deferred blocks", ["deferred"], [
        ("(is_free && !atomic_load_explicit(&pool->shown.frees_fail, memory_order_relaxed))", "is_free")]),
    Mutant("after a free that failed beside a capture none publishes deferred blocks", ["deferred"], [
        ("atomic_store_explicit(&pool->shown.frees_fail, rc != 0,", "atomic_store_explicit(&pool->shown.frees_fail, true,")]),
    Mutant("relaxed: frees are deferred during a capture", ["shim_memory_calls"], [
        ("!pool->config.order->frozen(pool->config.arg) && block_defer(", "block_defer(")]),
    Mutant("the device waits for nothing after another call has taken the deferred blocks", ["order"], [
        ("size_set(&magazine->deferred_bytes, 0); magazine_unlock(magazine); } return any ? count : 0;", "return count;")]),
    Mutant("deferred frees in another magazine count as one's own", ["order"], [
        ("if (block->freed_by != &magazine_index) return false;", "return !lists[1];")]),
    Mutant("frees that could not be ordered count as another thread's", ["order"], [
        ("magazine_defer_again(pool, magazine, block); } else if", "block->freed_by = NULL; magazine_defer_again(pool, magazine, block); } else if")]),
    Mutant("frees that could not be ordered become the ordering thread's own", ["order"], [
        ("magazine_defer_again(pool, magazine, block); } else if", "magazine_defer(pool, magazine, block, block->freed); } else if")]),
    Mutant("an error that waits in the context is not returned by cudaFree", [
        "faults / Faults.test_an_error_of_the_context_is_seen_at_the_free"], [
        ("release_some(pool); return rc == -EBUSY ? 0 : rc;", "release_some(pool); return 0;")]),

    # --- captures ---
    Mutant("segments are given back in a capture", ["order"], [
        ("if (frozen && (!may_wait ||", "if (false && (!may_wait ||")]),
    Mutant("a small request that the driver refuses in a capture gets nothing of packed segments",
           ["order", "shim_retry_often", "capture_beside static preloaded / all_but_a_half"], [
        ("return rc ? take_hole(pool, size, requested, ret_addr) : 0;", "return rc;")]),
    Mutant("an interior pointer is freed", ["pool", "free_errors static preloaded / interior"], [
        ("*ret_block = slots && addr % POOL_GRANULE == 0 ?", "*ret_block = slots ?"),
        ("if (block->addr != addr) {", "if (false) {")]),
    Mutant("a block is freed twice", ["pool", "free_errors static preloaded / twice"], [
        ("if (!block || !atomic_compare_exchange_strong(&block->state, &live, BLOCK_PENDING)) return -EINVAL;",
         "if (!block || !atomic_compare_exchange_strong(&block->state, &live, BLOCK_PENDING)) return 0;")]),
    Mutant("a block that is not published yet is freed twice", ["threads"], [
        ("if (!block || !atomic_compare_exchange_strong(&block->state, &live, BLOCK_PENDING)) return -EINVAL;",
         "if (!block) return -EINVAL; if (!atomic_compare_exchange_strong(&block->state, &live, BLOCK_PENDING)) return 0;")], 10),
    Mutant("two threads free one block", ["threads"], [
        ("if (!block || !atomic_compare_exchange_strong(&block->state, &live, BLOCK_PENDING))",
         "if (!block || atomic_load(&block->state) != live || (atomic_store(&block->state, BLOCK_PENDING), false))")], 10),

    # --- blocks and segments ---
    Mutant("a split is off by one granule", ["pool", "random"], [
        (": block->addr + size; rest->prev", ": block->addr + size - POOL_GRANULE; rest->prev")]),
    Mutant("a merge takes the wrong neighbour", ["random"], [
        ("if (is_free(block->next)) block_merge_next(pool, block);", "if (block->next) block_merge_next(pool, block);")]),
    Mutant("a merge forgets the block that follows", ["pool", "random"], [
        ("block->next = next->next; if (block->next) block->next->prev = block;", "block->next = next->next;")]),
    Mutant("the map keeps a block that was freed", ["pool"], [
        ("map_block_set(block->addr, NULL); atomic_store_explicit", "atomic_store_explicit")]),
    Mutant("cached blocks are not looked for", ["pool"], [
        ("if (!block) { coalesce_all(pool); block", "if (!block) { block")]),
    Mutant("a small request coalesces all threads' cached blocks", ["sizes"], [
        ("if (size > CLOSE_MAX) coalesce(pool, cached_grab(magazine, LARGE_SETS, HASH_SETS,", "coalesce(pool, cached_grab(magazine, 0, LIST_SETS,")]),
    Mutant("a large request does not coalesce large cached blocks", ["sizes"], [
        ("coalesce_own_large(pool); if (!refused)", "if (!refused)")]),
    Mutant("a small request that nothing serves coalesces all rather than the next larger block", ["sizes"], [
        ("if (!block && size <= CLOSE_MAX && coalesce_larger(pool, magazine, size))", "if (0)")]),
    Mutant("a large request overlooks small ones in its segment", ["sizes"], [
        ("magazine->has_holes ? LIST_SETS : LARGE_SETS,", "LARGE_SETS,")]),
    Mutant("a request between close and large sizes does not coalesce cached blocks", ["shards"], [
        ("if (size > CLOSE_MAX) coalesce(", "if (size > LARGE_MIN) coalesce(")]),
    Mutant("a magazine coalesces blocks of others' segments", ["threads"], [
        ("if (!all && block->segment->owner != owner)", "if (!all && !block->segment->owner != !owner)")], 20),
    Mutant("all locks are one", ["threads"], [
        ("for (unsigned int i = 0; i < count; i++) magazine_visit(&pool->magazines[i]);", ""),
        ("for (unsigned int i = 0; i < count; i++) magazine_unlock(&pool->magazines[i]);", "(void)count;")], 20),
    Mutant("small requests without a hit take the common lock", ["shards"], [
        ("magazine_carve(pool, magazine, size, requested, ret_addr);", "false;")]),
    Mutant("all segments are the first magazine's", ["shards"], [
        ("segment->shared ? magazine_own(pool) : NULL;", "segment->shared ? pool->magazines : NULL;"),]),
    Mutant("what is free in others' segments is overlooked", ["shards"], [
        ("block = bins_find(&pool->magazines[(index + i) % count].bins, size, NULL, all);", "block = NULL;")]),
    Mutant("segments stay with whose they were", ["shards"], [
        ("return segment->size - segment->used >= segment->size / MOVE_PART;", "return !segment;")]),
    Mutant("a segment changes its owner for next to nothing", ["shards"], [
        ("return segment->size - segment->used >= segment->size / MOVE_PART;", "return segment != NULL;")]),
    Mutant("a segment that moves stays on the books", ["shards"], [
        ("book(&from->live, -segment->used); book(&to->books.live, segment->used);", "")]),
    Mutant("an idle segment that moves stays on the books", ["shards"], [
        ("book(&from->idle, -segment->size); book(&to->books.idle, segment->size);", "(void)from;")]),
    Mutant("descriptors stay with threads that merge", ["shards"], [
        ("if (++spares->count > 2 * SPARES_CHUNK)", "if (++spares->count > 200 * SPARES_CHUNK)")]),
    Mutant("descriptors that others had too many of are not used", ["shards"], [
        ("move(&pool->spares_common, spares);", "")]),
    Mutant("deferred blocks count for the peak", ["magazine"], [
        ("handed_sub(magazine, block->size); magazine_defer(", "magazine_defer(")]),
    Mutant("a block on its way to the pool counts no more", ["magazine"], [
        ("if (put) handed_sub(magazine, block->size); lock_give(&magazine->lock); if (!put) magazine_put_or_coalesce(pool, magazine, block, block->size);",
         "handed_sub(magazine, block->size); lock_give(&magazine->lock); if (!put) magazine_put_or_coalesce(pool, magazine, block, 0);")]),
    Mutant("small sizes are not close", ["sizes"], [
        ("return (((last >> shift) + 1) << shift) * POOL_GRANULE;", "return (last + 1) * POOL_GRANULE;")]),
    Mutant("strays have no end", ["sizes"], [
        ("if (magazine->strays_count >= STRAY_MAX)", "if (false)")]),
    Mutant("reading the statistics changes the deferred-free budget", ["magazine"], [
        ("stats_copy(pool, ret_stats, &handed); ret", "if (taken) pool->stats.peak_live = (size_t)handed_most(pool); stats_copy(pool, ret_stats, &handed); ret")]),
    Mutant("deferred blocks are coalesced before a request looks at them", ["magazine"], [
        ("if (flush_if_due(pool, size) && magazines_take(pool, NULL, requested, ret_addr)) return 0;", "flush_if_due(pool, size);")]),
    Mutant("hits do not count for the peak", ["magazine"], [
        ("if (handed > balance(&magazine->handed_most))", "if (0)")]),
    Mutant("an order takes blocks of magazines that are in use", ["deferred"], [
        ("const bool abandoned = size_value(&magazine->frees_seen) == frees;", "const bool abandoned = true;")]),
    Mutant("cached blocks are not given back", ["pool"], [
        ("coalesce_all(pool); for (segment = idle_bytes(pool) ? pool->segments : NULL;", "for (segment = pool->segments;")]),
    Mutant("cached blocks are handed out for any size", ["sizes"], [
        ("if (!block || block->size != size)", "if (!block)")]),
    Mutant("a magazine takes what is withdrawn", ["magazine"], [
        ("magazine->cached_count >= CACHED_MAX || block->segment->withdrawn)", "magazine->cached_count >= CACHED_MAX)")]),
    Mutant("other threads' cached blocks are not looked for", ["magazine"], [
        ("handed_collect(pool, magazine); magazine->has_holes = false; coalesce(", "if (i) continue; handed_collect(pool, magazine); magazine->has_holes = false; coalesce(")]),
    Mutant("frees are deferred although the driver has refused memory", ["deferred"], [
        ("atomic_store_explicit(&pool->shown.budget, 0, memory_order_relaxed); do rc = alloc_again(", "do rc = alloc_again(")]),
    Mutant("each magazine has all of the deferred-free budget", ["deferred"], [
        ("return size_value(&pool->shown.budget) / (sharers ? sharers : 1);", "return size_value(&pool->shown.budget) + 0 * sharers;")]),
    Mutant("a magazine defers as many blocks as it caches", ["deferred"], [
        ("#define DEFERRED_MAX (CACHED_MAX / 4)", "#define DEFERRED_MAX CACHED_MAX")]),
    Mutant("a request coalesces other threads' cached blocks", ["magazine"], [
        ("return found || magazines_take(pool, magazine, requested, ret_addr) ?", "return found ?")]),
    Mutant("large blocks are deferred", ["order"], [
        ("takes <= room / BATCH_PART &&", "")]),
    Mutant("no order takes the deferred blocks of ended threads", ["deferred"], [
        ("(i != probe || !is_abandoned(magazine)))", "probe < MAGAZINES)")]),
    Mutant("no order takes what other threads have deferred beyond their share", ["deferred"], [
        ("size_value(&magazine->deferred_bytes) <= budget_share(pool) && (i != probe ||", "(i != probe ||")]),
    Mutant("the map keeps a segment that was given back", ["pool"], [
        ("segment->next->prev = segment->prev; map_segment_remove(segment->addr, segment->size);",
         "segment->next->prev = segment->prev;")]),
    Mutant("blocks are aligned to 256 bytes", ["pool", "basic static preloaded / alignment"], [
        ("#define SHARED_SKIP ((size_t)POOL_GRANULE)", "#define SHARED_SKIP ((size_t)POOL_GRANULE / 2)")]),
    Mutant("small blocks start where a segment starts", ["pool"], [
        ("#define SHARED_SKIP ((size_t)POOL_GRANULE)", "#define SHARED_SKIP ((size_t)0)")]),
    Mutant("an idle segment goes on skipping what it skipped for small blocks", ["pool", "bound"], [
        ("if (segment->shared && is_whole(block)) skip_choose(block, size);",
         "if (segment->shared && is_whole(block) && !segment->skip) skip_choose(block, size);")]),
    Mutant("an idle segment that served larger blocks skips nothing for small ones", ["pool"], [
        ("if (segment->shared && is_whole(block)) skip_choose(block, size);",
         "if (segment->shared && is_whole(block) && (segment->skip || segment->got_for <= SKIP_MAX)) skip_choose(block, size);")]),
    Mutant("blocks of other sizes lie between cached ones", ["pool", "bound"], [
        ("if (size >= LARGE_MIN || streak_ends(pool, magazine, size))", "if (size >= LARGE_MIN)")]),
    Mutant("a nearly full card puts larger small blocks between cached ones", ["shards"], [
        ("return size >= GATHERS_MIN && size < LARGE_MIN &&", "return size >= GATHERS_MIN && size < 0 &&")]),
    Mutant("a nearly full card puts larger small blocks between deferred ones", ["shards"], [
        ("defers && !atomic_load_explicit(&pool->shown.nearly_full, memory_order_relaxed) &&", "defers &&")]),
    Mutant("cached blocks are coalesced before the program has gone on to other sizes", ["shards"], [
        ("#define STREAK 16u", "#define STREAK 3u")]),
    Mutant("a block is handed out that is too small", ["bins", "pool"], [
        ("if (block->size < size || (!shared", "if ((!shared")]),
    Mutant("a large segment counts only for the blocks that it has", ["break", "bins"], [
        ("return exposed && exposed < most && segment->size > EXPOSED_WHOLLY_FROM ? most : exposed;", "(void)most; return exposed;")]),
    Mutant("a large segment counts wholly towards the bound", ["bins"], [
        ("const size_t before = segment->exposed, more = segment_exposes(segment, size);",
         "const size_t before = segment->exposed, more = segment_wholly(segment, before + segment_exposes(segment, size)) - segment_wholly(segment, before);")]),
    Mutant("packed segments that are withdrawn count on the device", ["withdraw"], [
        ("pool->exposed_wholly -= segment_wholly(segment, segment->exposed);", "")]),
    Mutant("segments are broken without a budget", ["break"], [
        ("(block->size / BREAK_RATIO <= size && segment_fits(segment, size, room))", "block->size / BREAK_RATIO <= size")]),
    Mutant("holes of packed segments are handed out without a budget", ["break"], [
        ("return all || segment_fits(segment, size, room);", "return true;")]),
    Mutant("the smallest of several goes", ["excess", "policy"], [
        ("(time_to_use(pool, segment) + 1) * (segment->size / POOL_SEGMENT_UNIT);", "time_to_use(pool, segment) + 1;")]),
    Mutant("the segment idle longest goes", ["excess", "policy"], [
        ("return idle > segment->idle_for ? idle - segment->idle_for : segment->idle_for - idle;", "return idle;")]),
    Mutant("a segment that the driver gives anew has forgotten its times", ["policy"], [
        ("if (ghosts->entries[i].got_for == key) segment->listed = ghosts->entries[i].listed;", "(void)key; (void)i;")]),
    Mutant("the times of one size are those of another", ["policy"], [
        ("if (ghosts->entries[i].got_for == key) segment->listed", "segment->listed")]),
    Mutant("packing has no bound", ["bound"], [
        ("return more <= room->bound && ", "return ")]),
    Mutant("the bound has no margin for small blocks", ["bound"], [
        ("return (native / BOUND_PART + pool->config.bound_min) / 16 * 15;", "return native / BOUND_PART + pool->config.bound_min + ((size_t)4 << 20);")]),
    Mutant("the largest block is what a packed segment keeps", ["break"], [
        ("native_size(block->size) < least)", "native_size(block->size) < segment->size)")]),
    Mutant("a block that was the smallest of its segment still exposes it", ["break"], [
        ("if (segment->exposed) exposed_lessen(pool, segment);", "")]),
    Mutant("large blocks take all of what may be exposed", ["pairs", "break"], [
        ("max -= is_small ? 0 : max / 4;", "")]),
    Mutant("a program that repeats its steps has less room near the bound", ["bound"], [
        ("bound -= is_small || repeats ? 0 : bound / 4;", "bound -= is_small ? 0 : bound / 4;")]),
    Mutant("any program may use all of the room near the bound", ["snapshot"], [
        ("bound -= is_small || repeats ? 0 : bound / 4;", "")]),
    Mutant("the bound forgets what a refusal puts into holes", ["bound"], [
        ("max = repeats || max < bound ? max : bound;", "")]),
    Mutant("blocks that leave little share a segment", ["pairs"], [
        ("native_size(size) - size >= PACK_LEAVES", "native_size(size) > size")]),
    Mutant("a program that frees nothing has its blocks packed", ["pairs"], [
        ("|| pool->freed < PACK_FREED)", ")")]),
    Mutant("a program that exports its blocks has them packed", ["pairs"], [
        ("if (pool->packs_never) return (struct packing_room){0, 0};", "")]),
    Mutant("the second of two blocks lies beside the first", ["pairs"], [
        ("const bool at_end = segment->exposed && block->prev && !block->next && block->size > size;", "const bool at_end = false;")]),
    Mutant("a segment for two is asked for again where it was refused", ["pairs"], [
        ("before = given_back(pool); rc = grow(pool, size, requested, /* alone: */ true, ret_addr);", "before = given_back(pool); rc = grow(pool, size, requested, false, ret_addr);")]),
    Mutant("as many large blocks as small ones are deferred", ["magazine"], [
        ("(size < LARGE_MIN || magazine->deferred_large < DEFERRED_LARGE_MAX) &&", "")]),
    Mutant("the budget is not given back by merging", ["break"], [
        ("if (block->segment->exposed && is_whole(block)) exposed_set(pool, block->segment, 0);", "")]),
    Mutant("what a large block leaves of its segment is handed out", ["pool", "random"], [
        ("return block->prev && !block->segment->shared && !block->segment->exposed;", "return false;")]),
    Mutant("small requests go to idle segments", ["bins"], [
        ("if (size < POOL_SEGMENT_UNIT) return false;", "")]),
    Mutant("a growing pool hands nothing back", ["excess"], [
        ("if (has_arrived && !pool->releasing) excess_unlink", "if (false) excess_unlink")]),
    Mutant("a growing pool hands everything back", ["excess"], [
        ("while (held > may->max && (count", "while ((count"), ("i < count && held > may->max; i++", "i < count; i++"),
        ("|| is_tolerated(may, held, segment)) continue;", ") continue;"), ("if (is_tolerated(may, held, segment)) continue; held", "held")]),
    Mutant("a growing pool hands much back for little", ["policy"], [
        ("|| is_tolerated(may, held, segment)) continue;", ") continue;"), ("if (is_tolerated(may, held, segment)) continue; held", "held")]),
    Mutant("a growing pool hands more back than it must", ["excess", "policy"], [
        ("i < count && held > may->max; i++", "i < count; i++")]),
    Mutant("a growing pool looks only once", ["excess"], [
        ("while (held > may->max && (count", "if (held > may->max && (count")]),
    Mutant("a growing pool hands back what it may keep, once others have gone", ["policy"], [
        ("if (is_tolerated(may, held, segment)) continue; held", "held")]),
    Mutant("what stays takes the place of what goes", ["excess"], [
        ("|| is_tolerated(may, held, segment)) continue;", ") continue;"),
        ("if (is_tolerated(may, held, segment)) continue; held", "if (is_tolerated(may, held, segment)) return; held")]),
    Mutant("of many idle segments those chosen are the first ones", ["excess"], [
        ("if ((count == CHOSEN && unused <= chosen[CHOSEN - 1].unused) ||", "if (count == CHOSEN ||")]),
    Mutant("a growing pool tolerates much beside a large segment", ["policy"], [
        ("&& held - may->max <= may->excess && held <= may->bound;", "&& held <= may->bound;")]),
    Mutant("a growing pool hands back more and more that does not arrive", ["policy"], [
        ("has_arrived = arrived(pool, &arriving);", "has_arrived = arrived(pool, &arriving) || true;")]),
    Mutant("a growing pool hands back the deferred-free budget", ["policy"], [
        ("return peak + *ret_excess + budget_of(pool) / 4 * SLACK_QUARTERS +", "return peak + *ret_excess +")]),
    Mutant("a refused request lifts the bound for good", ["ladder"], [
        ("bound_refused(pool, &growth);", "")]),
    Mutant("a growing pool keeps as much idle as the whole deferred-free budget", ["policy"], [
        ("budget_of(pool) / 4 * SLACK_QUARTERS", "budget_of(pool)")]),
    Mutant("the bound: nobody waits for it", ["bound static ordered / append"], [
        ("if (!is_beyond) return false;", "return false;")]),
    Mutant("the bound: what is on its way back does not count", ["bound static ordered / append"], [
        ("SIZE_MAX / 2 && pool->stats.held + arriving +", "SIZE_MAX / 2 && pool->stats.held +"),
        ("is_beyond = pool->stats.held + arriving +", "is_beyond = pool->stats.held +")]),
    Mutant("the bound: a request does not wait for its own frees", ["bound static ordered / append"], [
        ("if (config->backend->reclaim) config->backend->reclaim(config->arg); lock_take(", "lock_take("),
        ("if (release_excess(pool, size, /* second: */ true, &growth) && config->backend->reclaim) config->backend->reclaim(",
         "if (false) config->backend->reclaim(")]),
    Mutant("a fill is not put in order", ["fill"], [
        ("if (!rc && filled) rc = order->filled(pool->config.arg);", "")]),
    Mutant("a fill is put in order like a free", ["idle filled"], [
        ("struct block *const *lists, unsigned int count)", "struct block *const *lists, unsigned int count, enum pool_order_how how)", "fill"),
        ("rc = order->filled(pool->config.arg);", "rc = order->order(pool->config.arg, how);"),
        ("fill(pool, lists, count);", "fill(pool, lists, count, how);")]),
    Mutant("a program that repeats itself goes on asking the driver", ["excess"], [
        ("else ghosts->credit += size;", "")]),
    Mutant("a pool that holds more for old sizes goes on with it", ["excess"], [
        ("ghosts->credit -= ghosts->credit < size ? ghosts->credit : size;", "")]),
    Mutant("any size that comes again makes the pool hold more", ["excess"], [
        ("if (ghosts->streak < STREAK_MAX) ghosts->streak++; else", "")]),
    Mutant("the list of idle segments keeps one that is in use", ["random"], [
        ("*(segment->idle_next ? &segment->idle_next->idle_prev : &pool->idle_last) = segment->idle_prev;", "")]),
    # --- suspended segments ---
    Mutant("pause: suspended segments go back while their memory is on its way", ["suspend"], [
        ("if (segment->suspended && pool->changing) return false;", "")]),
    Mutant("pause: after a resume that failed no segment goes back", ["suspend"], [
        ("pool->suspended = pool->suspended && !resumed; pool->changing = false;", "pool->suspended = pool->suspended && !resumed;")]),
    Mutant("pause: segments serve requests while their memory is away", ["suspend"], [
        ("segment_withdraw(pool, segment); segment->suspended = segment->serves_again = true;",
         "segment->suspended = segment->serves_again = true;")]),
    Mutant("pause: free neighbours are not merged afterwards", ["suspend"], [
        ("while (is_free(block) && is_free(block->next)) block_merge_unbinned(pool, block);", "")]),
    Mutant("pause: a packed segment is not limited afterwards", ["suspend"], [
        ("segment_expose(pool, segment, segment->exposed_before);", "")]),
    Mutant("pause: memory of others is taken away", ["suspend"], [
        ("else if (is_shared_out(pool, kind)) rc = -EBUSY;", "")]),
    Mutant("pause: memory that others got meanwhile is handed out again", ["suspend"], [
        ("segment->serves_again = false; if (segment->withdrawn) return;", "if (segment->withdrawn) return;")]),
    Mutant("pause: a resume that failed ends the pause", ["suspend"], [
        ("pool->suspended = pool->suspended && !resumed;", "pool->suspended = false;")]),
    Mutant("pause: paused bytes of a segment that went are counted", ["suspend"], [
        ("pool->stats.paused -= segment->suspended ? segment->size : 0;", "")]),
    Mutant("a segment with a live block is given back", ["pool", "random"], [
        ("if (segment->used) return false;", "")]),

    # --- out of memory, limits, figures ---
    Mutant("out of memory: deferred blocks stay deferred", ["ladder"], [
        ("order_and_publish(pool, NULL, POOL_ORDER_DEVICE); if (take(", "; if (take(")]),
    Mutant("out of memory: nothing is given back", ["ladder"], [
        ('released = released ? released : release_for(pool, size, "oom", patience);', "released = 0;"), ('released = release_idle(pool, "oom");', "released = 0;")]),
    Mutant("out of memory: another thread's release is not waited for", ["waits"], [
        ("(pool->releasing || atomic_load(&pool->shown.ordering)) &&", "atomic_load(&pool->shown.ordering) &&"),
        ("more = (idle_bytes(pool) || pool->releasing ||", "more = (idle_bytes(pool) ||")]),
    Mutant("out of memory: a trim does not wait for another thread's", ["waits"], [
        ("return releases_wait(pool, size, patience) ? released +", "return false ? released +")]),
    Mutant("out of memory: what another thread is ordering is not waited for", ["waits"], [
        ("(pool->releasing || atomic_load(&pool->shown.ordering)) &&", "pool->releasing &&"),
        ("pool->releasing || atomic_load(&pool->shown.ordering) ||", "pool->releasing ||")]),
    Mutant("out of memory: a batch counts when all of it has gone", ["waits"], [
        ("segment_gone(pool, segment, !next);", "if (!next) segment_gone(pool, segment, true);")]),
    Mutant("out of memory: a thread that gives memory back is waited for only briefly", ["waits"], [
        ("pool->putting || atomic_load(&pool->shown.asking)", "atomic_load(&pool->shown.asking)")]),
    Mutant("out of memory: a thread that asks is waited for only briefly", ["waits"], [
        ("pool->putting || atomic_load(&pool->shown.asking)", "pool->putting")]),
    Mutant("out of memory: a request waits for all that goes back", ["waits"], [
        ('release_for(pool, size, "oom", patience)', 'release_for(pool, 0, "oom", patience)')]),
    Mutant("reading the statistics changes where memory lies", ["magazine"], [
        ("stats_copy(pool, ret_stats, &handed); ret", "if (taken) coalesce_all(pool); stats_copy(pool, ret_stats, &handed); ret")]),
    Mutant("growth that was refused first counts twice", ["excess"], [
        ('#include "grow.h" #include <errno.h> #include "clock.h"', '#include "grow.h"\n#include <errno.h>\n#include "bound.h"\n#include "clock.h"'),
        ("bool entered; int rc; lock_take(&pool->lock); segment_size",
         "bool entered; int rc; release_excess(pool, size, false, &(struct growth){.alone = alone}); lock_take(&pool->lock); segment_size"),
        ("if (release_excess(pool, size, /* second: */ false, &growth)) {", "if (false) {")]),
    Mutant("the limit does not hold", ["ladder", "settings"], [
        ("fits = !limit || ", "fits = true || ")]),
    Mutant("several threads pass the limit together", ["ladder"], [
        ("pool->stats.held + pool->growing <= limit - size", "pool->stats.held <= limit - size")]),

    # --- settings and the trace ---
    Mutant("a segment's end is traced after it has gone", ["order"], [
        ("""if (config->observer && config->observer->segment_free)
         config->observer->segment_free(config->arg, segment->kind, segment->addr, segment->size);
         config->backend->free(config->arg, segment->kind, segment->addr, segment->size);""",
         """config->backend->free(config->arg, segment->kind, segment->addr, segment->size);
         if (config->observer && config->observer->segment_free)
         config->observer->segment_free(config->arg, segment->kind, segment->addr, segment->size);""")]),

    # --- reports ---
    Mutant("holes are counted by blocks", ["survey"], [
        ("ranges += !range;", "ranges += 1;")]),

    # --- cupool.h ---
    Mutant("cupool.h: after a switch of the backend what is free serves requests", ["kinds", "api / Backend.test_there_and_back"], [
        ("if (segment->kind != kind)", "if (false)")]),
    Mutant("cupool.h: a segment that came during a switch serves requests", ["kinds"], [
        ("if (segment->kind != pool_kind_get(pool)) segment_withdraw(pool, segment);", "")]),

    # --- that no test had noticed once ---
    Mutant("a direct allocation is disowned in part", ["passthrough static preloaded"], [
        ("for (uint64_t at = addr; at < addr + size; at += POOL_SEGMENT_UNIT) {", "for (uint64_t at = addr; at == addr; at += POOL_SEGMENT_UNIT) {")]),

    # --- neighbours ---
    Mutant("neighbours: others give before the pool's own idle memory goes", ["yield"], [
        ("if (rc == -ENOMEM) rc = alloc_ladder(", "if (rc == -ENOMEM && others_give(pool, size, &(struct pool_asking){0})) rc = grow(pool, size, requested, true, ret_addr); if (rc == -ENOMEM) rc = alloc_ladder("),
        ]),
    Mutant("neighbours: others give before a hole serves", ["yield"], [
        ("if (rc == -ENOMEM && take_hole(pool, size, requested, ret_addr) == 0) return 0; return rc;",
         "if (rc == -ENOMEM && others_give(pool, size, &(struct pool_asking){0})) rc = grow(pool, size, requested, true, ret_addr); if (rc == -ENOMEM && take_hole(pool, size, requested, ret_addr) == 0) return 0; return rc;")]),
    Mutant("neighbours: the request is not made again", ["yield", "neighbours / Turns"], [
        ("while (rc == -ENOMEM && others_give(pool, size, &asking));", "while (rc == -ENOMEM && others_give(pool, size, &asking) && false);")]),
    Mutant("neighbours: asked once alone", ["yield"], [
        ("while (rc == -ENOMEM && others_give(pool, size, &asking));", "while (rc == -ENOMEM && !asking.given && others_give(pool, size, &asking));")]),
    Mutant("neighbours: after them the pool's own memory is not looked at again", ["yield"], [
        ("do rc = alloc_again(pool, size, requested, &patience, ret_addr); while (rc == -ENOMEM && others_give(pool, size, &asking));",
         "rc = alloc_again(pool, size, requested, &patience, ret_addr); while (rc == -ENOMEM && others_give(pool, size, &asking)) rc = grow(pool, size, requested, true, ret_addr);")]),
    Mutant("neighbours: each question counts as a request that was helped", ["yield"], [
        ("pool->stats.helped += asking->given && !given;", "pool->stats.helped += asking->given; (void)given;")]),
    Mutant("neighbours: giving back waits for deferred blocks", ["yield"], [
        ("pool_flush(pool); if (frozen", "order_and_publish(pool, NULL, POOL_ORDER_DEVICE); if (frozen")]),
    Mutant("neighbours: during a capture memory goes back, whatever the backend says", ["yield"], [
        ("pool_flush(pool); if (frozen && (!config->backend->gives_frozen || !config->backend->gives_frozen(config->arg))) return 0;", "pool_flush(pool); (void)frozen;")]),
    Mutant("the time of the driver's calls is not added up", ["job / Job.test_a_row_for_each_rank_and_their_sum"], [
        ("pool->stats.driver_ns += ns; entered", "entered")]),
    Mutant("pinned: the byte behind a block belongs to it", ["host_pool"], [
        ("addr - block->addr < block->requested ? 0 : -EINVAL", "addr - block->addr <= block->requested ? 0 : -EINVAL")]),
    Mutant("kept virtual memory takes another one's retained handle for its own", ["vmm_cache"], [
        ("b->own_map && b->handle == handle", "b->own_map")]),
]
