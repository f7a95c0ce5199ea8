# SPDX-License-Identifier: Apache-2.0
"""The hand-written mutants: ways to break the library, and which test notices. scripts/mutate --written runs them.

Mutant(name, tests, edits): tests are names as in `meson test --list`, each with an optional " / " and an argument for it; all
of them have to fail. An edit is (old, new): old occurs exactly once in all of pool/, nccl_reg/ and shim/, whatever its white
space; where that needs too long a text, (old, new, function) names the function that it is in. Files are never named, so code
can move. Keep old short, so that an edit nearby does not break it. For what is a matter of chance, times says how often the
tests may be tried.
"""
from __future__ import annotations

from typing import NamedTuple


class Mutant(NamedTuple):
    name: str
    tests: "list[str]"
    edits: "list[tuple[str, ...]]"
    times: int = 1


MUTANTS = [
    # --- the order of frees ---
    Mutant("ordered: the device does not wait", ["order static ordered / nonblocking", "examples / Same.test_pipeline"], [
        ("is_enough ? driver->cuCtxWaitEvent(context_handle(context), event) :", "is_enough ? CUDA_SUCCESS :")]),
    Mutant("ordered: nothing is recorded", ["order static ordered / nonblocking"], [
        ("result = context->driver->cuCtxRecordEvent(context_handle(context), *ret_event);", ";")]),
    Mutant("strict: the host does not wait", ["order static strict / nonblocking"], [
        ("result = context->driver->cuCtxSynchronize();", ";")]),
    Mutant("strict is treated as ordered", ["settings"], [
        ("policy->strict = wanted == FREE_STRICT ||", "policy->strict =")]),
    Mutant("a block is published before it is ordered", ["threads"], [
        ("rc = pool->config.order->order(pool->config.arg, POOL_ORDER_FREE); block_publish(pool, block, rc);",
         "block_publish(pool, block, 0); rc = pool->config.order->order(pool->config.arg, POOL_ORDER_FREE);")]),
    Mutant("a block is published although ordering failed", ["order"], [
        ("if (rc == 0) { count_up(&magazine->order);", "if (rc <= 0) { count_up(&magazine->order);")]),
    Mutant("kept blocks are taken off the list without the lock", ["threads"], [
        ("magazine_visit(magazine); ret_deferred[i] = magazine->deferred; if (magazine->deferred) atomic_fetch_sub(&pool->shown.deferring, 1); magazine->deferred = NULL; magazine->deferred_count = magazine->deferred_large = 0; "
         "size_set(&magazine->deferred_bytes, 0); magazine_unlock(magazine);",
         "ret_deferred[i] = magazine->deferred; magazine->deferred = NULL; magazine->deferred_count = 0; size_set(&magazine->deferred_bytes, 0);")], 10),
    Mutant("relaxed: what waits for company is handed out", ["order", "stamp relaxed"], [
        ("handed_sub(magazine, block->size); magazine_defer(pool, magazine, block); }",
         "handed_sub(magazine, block->size); if (!magazine_put(magazine, block)) magazine_defer(pool, magazine, block); }")]),
    Mutant("what is kept back while an order is under way is published by it", ["order"], [
        ("block_publish(pool, block, rc); } release_some(pool);",
         "block_publish(pool, block, rc); if (rc == 0) { struct block *lists[MAGAZINES]; deferred_take(pool, NULL, lists); "
         "for (unsigned int i = 0; i < MAGAZINES; i++) list_publish(pool, &pool->magazines[i], lists[i], 0); } } release_some(pool);")]),
    Mutant("the runtime is told the driver's own functions while ours are being found", ["hang / Hang.test_many_threads"], [
        ("if (!lock_take_within(&real.lock, FILL_WAIT_NS)) { atomic_store(&real.tried, true); return NULL; }",
         "if (!lock_try(&real.lock)) return NULL;")], 60),
    Mutant("a magazine that a segment's end has emptied counts as one that keeps something", ["life"], [
        ("if (some && !magazine->deferred) atomic_fetch_sub(&pool->shown.deferring, 1);", "")]),
    Mutant("a magazine that was emptied counts as one that keeps something", ["magazine", "order"], [
        ("if (magazine->deferred) atomic_fetch_sub(&pool->shown.deferring, 1);", "")]),
    Mutant("the runtime's functions are looked for in the middle of a request", ["hang / Hang.test_a_constructor_that_waits_for_a_thread"], [
        ("driver_fill(handle); next_fill();", "driver_fill(handle); (void)next_fill;")]),
    Mutant("exit ends no further than a cancelled thread", ["hang / Hang.test_exit_by_a_cancelled_thread"], [
        ("pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel); pthread_timedjoin_np",
         "pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &cancel); pthread_timedjoin_np")]),
    Mutant("a value that is too long is copied", ["settings"], [
        ("if (strlen(text) >= CONF_TEXT_MAX)", "if (false)")]),
    Mutant("guard bytes: cudaFreeAsync waits", ["hang / Hang.test_guard_bytes_wait_only_where_a_free_does"], [
        ("/* may_wait: */ release == pool_free", "/* may_wait: */ true")]),
    Mutant("guard bytes: not looked at where a free does not wait", ["hang / Hang.test_guard_bytes_are_looked_at_where_a_free_does_not_wait"], [
        ("if (entry.addr) guard_check(&entry, may_wait ? 0 : now_ns()", "if (entry.addr && may_wait) guard_check(&entry, may_wait ? 0 : now_ns()")]),
    Mutant("guard bytes: those of a context that has gone are looked at", ["contents / Debug"], [
        ("context_events.pool_ending(context);", "")]),
    Mutant("an error that waits in the context is not returned by cudaFree", [
        "faults / Faults.test_an_error_of_the_context_is_seen_at_the_free"], [
        ("release_some(pool); return rc == -EBUSY ? 0 : rc;", "release_some(pool); return 0;")]),

    Mutant("auto: a copy to the host is no debt", ["auto_host static auto / d2h"], [
        ("|| *ret_seq != atomic_load_explicit(&policy->synced_seq, memory_order_relaxed);", ";")]),

    # --- captures ---
    Mutant("a free in a capture is ordered", ["capture static ordered / freed_during"], [
        ("beside_capture = capture_active(); if (!beside_capture && !wait)", "beside_capture = false; if (!wait)")]),
    Mutant("the gate closes only after a capture has begun", ["capture_beside static ordered / under_load"], [
        ("capture_active_now(); atomic_fetch_add(&capture_count, 1);", "capture_active_now();"),
        ("if (!success) { atomic_fetch_sub(&capture_count, 1);", "if (!success) { ;"),
        ("capture->context = driver ? context_stream(driver, stream) : own;", "capture->context = own; atomic_fetch_add(&capture_count, 1);")], 10),
    Mutant("a capture does not wait for calls in flight", ["capture_beside static ordered / under_load"], [
        ("order_drain(own);", "")], 20),
    Mutant("a call in flight is not seen to be", ["capture_beside static ordered / under_load"], [
        ("return atomic_load(&slot->seq) & 1;", "return !slot;")], 20),
    Mutant("a free follows an order that began before it", ["combiner"], [
        (">= seen + 1 + (seen & 1))", ">= seen)")], 5),
    Mutant("a free follows an order that failed", ["combiner"], [
        ("if (!result) atomic_store_explicit(&slot->done,", "atomic_store_explicit(&slot->done,")]),
    Mutant("what the lead ordered is not asked about", ["combiner"], [
        ("batch_wait(context, own, 0);", ";")]),
    Mutant("what others ordered last is not asked about", ["combiner"], [
        ("batch_wait(context, atomic_load(&combiner->done), limit);", "(void)atomic_load(&combiner->done);")]),
    Mutant("a turn that records nothing hides one that has", ["combiner"], [
        ("return combiner; }", "atomic_store(&context->batches[thread_slot_get() % SLOTS].seq, atomic_load(&combiner->seq)); return combiner; }"),
        ("if (at >= seq && (", "if (at == seq && (")]),
    Mutant("frees depend on the one that leads", ["combiner"], [
        ("i < COMBINER_POLLS || now_ns() < limit; i++", "1; i++")]),
    Mutant("who waits on the host leads", ["combiner"], [
        ("if (wait && slot == combiner)", "if (0)")]),
    Mutant("a stream that is destroyed keeps the gate closed", ["faults / Faults.test_without_faults"], [
        ("(destroyed || !capture_active_on(stream))", "(!destroyed && !capture_active_on(stream))")]),
    Mutant("a capture that does not begin keeps the gate closed", ["faults / Faults.test_without_faults"], [
        ("if (!success) { atomic_fetch_sub(&capture_count, 1);", "if (!success) { ;")]),
    Mutant("a thread takes the gate with it", ["teardown static preloaded / thread_end_while_capturing"], [
        ("captures_remove(is_of_dead_thread, NULL);", "")]),
    Mutant("a context that is reset keeps the gate closed", ["teardown static preloaded / reset_while_capturing"], [
        ("capture_forget(handle, atomic_load(&context->captures));", ""),
        ("if (capture_active()) captures_ask();", "")]),
    Mutant("segments are given back in a capture", ["order"], [
        ("if (frozen && (!may_wait ||", "if (false && (!may_wait ||")]),
    Mutant("cudaFreeAsync in the capture of its stream succeeds", ["faults / Faults.test_without_faults"], [
        ("return SERVE_INVALID; return serve_free_later(addr, stream);", "; return serve_free_later(addr, stream);")]),

    # --- errors ---
    Mutant("the last error is lost", ["free_errors shared preloaded / interior", "free_errors shared preloaded / twice"], [
        ("return BYPASS(real_runtime(cudaFree, caller)((void *)NOWHERE));", "return cudaErrorInvalidValue;")]),
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
    Mutant("cudaMalloc of 0 bytes is pooled", ["faults / Faults.test_without_faults"], [
        ("if (!size || process_is_passive())", "if (process_is_passive())")]),
    Mutant("cudaMalloc of NULL crashes", ["basic shared preloaded"], [
        ("switch (ptr ? serve_alloc(size, CALLER, &addr) : SERVE_FORWARD)", "switch (serve_alloc(size, CALLER, &addr))")]),

    Mutant("a block whose free was refused in a host function is handed out", ["free_errors shared preloaded"], [
        ("is_sticky(result) || is_refused(context, result) ?", "is_sticky(result) ?")]),
    Mutant("a capture of a thread without a context waits for nobody", ["capture shared preloaded"], [
        ("!handle && (context = context_next(&i, CONTEXT_ALL))", "false")], 5),
    Mutant("a capture waits for a free that waits for it", ["capture_beside static preloaded"], [
        ("if (now_ns() >= *limit) break;", "")]),
    Mutant("auto: a copy into host memory that is called one of device memory is not seen", ["auto_host static auto"], [
        ("copy, (w, to, from)) WATCH_STREAM(cuMemcpyPeerAsync,", "nothing, (w)) WATCH_STREAM(cuMemcpyPeerAsync,")]),
    Mutant("auto: memory that is mapped for another device is not seen", ["auto_peer static auto"], [
        ('policy_strict(POLICY_ALL, "memory of other devices");', ";")]),
    Mutant("auto: a copy between devices in a graph made by hand is not seen", ["auto_peer static auto"], [
        ("(node, graph, nodes, count, copy, context), graph_copy, (w, copy))", "(node, graph, nodes, count, copy, context), graph_host_work, (w))")]),
    Mutant("auto: a node of any type that touches host memory is not seen", ["auto_graph static auto"], [
        ("hazard_graph_set(parameters->memset.dst);", ";")]),
    Mutant("auto: a host function as a node of any type is not seen", ["auto_graph static auto"], [
        ("case CU_GRAPH_NODE_TYPE_EMPTY:", "case CU_GRAPH_NODE_TYPE_EMPTY: case CU_GRAPH_NODE_TYPE_HOST:")]),
    Mutant("auto: a fill in a graph made by hand is not seen", ["auto_graph static auto"], [
        ("graph_set, (w, parameters)) WATCH_CALL(cuGraphAddHostNode", "nothing, (w)) WATCH_CALL(cuGraphAddHostNode")]),
    Mutant("auto: a fill that is changed in a graph is not seen", ["auto_graph static auto"], [
        ("(node, parameters), graph_set, (w, parameters))", "(node, parameters), nothing, (w))")]),
    Mutant("auto: a fill that is changed in an executable graph is not seen", ["auto_graph static auto"], [
        ("graph_set, (w, parameters)) WATCH_CALL(cuGraphNodeSetParams,", "nothing, (w)) WATCH_CALL(cuGraphNodeSetParams,")]),
    Mutant("auto: a copy between devices as a node of any type is not seen", ["auto_peer static auto"], [
        ("ends_before(w, ENDS(&parameters->memcpy.copyParams));", ";")]),
    Mutant("auto: a node that is made to copy between devices is not seen", ["auto_peer static auto"], [
        ("(node, copy), graph_copy, (w, copy)", "(node, copy), graph_host_work, (w)")]),
    Mutant("auto: a batch of copies between devices is not seen", ["auto_peer static auto"], [
        ("(count, operations, flags, stream), copy_batch, (w, operations, count)", "(count, operations, flags, stream), host_work, (w)")]),
    Mutant("auto: a batch of copies to the host is not seen", ["auto_host static auto"], [
        ("hazard_host_work(w->stream);", ";", "copy_batch_after")]),
    Mutant("auto: a driver's pool that another device may use is not seen", ["auto_peer static auto"], [
        ("(pool, access, count), access, (w, 0, access, count)", "(pool, access, count), nothing, (w)")]),
    Mutant("auto: a batch node's copies between devices are not seen", ["auto_later static auto"], [
        ("hazard_foreign_accesses(copies->to, copies->from, copies->count, w->stream);", ";")]),
    Mutant("auto: a later kind of node is taken for one that touches no host memory", ["auto_later static auto"], [
        ("case CU_GRAPH_NODE_TYPE_CONDITIONAL: return true; default: return false;",
         "case CU_GRAPH_NODE_TYPE_CONDITIONAL: return true; default: return (int)type > 13;")]),
    Mutant("auto: what others share changes nothing", ["auto_shared static auto"], [
        ("policy_strict(POLICY_ALL, why);", ";", "strict_then_after")]),
    Mutant("auto: every pool of the driver's is taken for the host's", ["auto_shared static auto"], [
        ("return type == CU_MEM_ALLOCATION_TYPE_MANAGED || is_host_location(location->type);",
         "return type == CU_MEM_ALLOCATION_TYPE_MANAGED || location->type;")]),
    Mutant("auto: memory that is not the pool's can be exported unseen", ["auto_shared static auto"], [
        ("driver ? strict_device_of(driver, addr) : -1;", "-1;")]),
    Mutant("auto: a fill of the device's own memory before the first request makes it strict", ["auto_shared static auto"], [
        ("known = driver->cuCtxGetDevice(&device) == CUDA_SUCCESS;", "known = false;")]),
    Mutant("auto: a strict device says nothing if that was before its first request", ["settings"], [
        ('log_write(LOG_INFO, "device %d: frees wait on the host: %s", device, why);', ";")]),
    Mutant("a green context that has gone stays exempt", ["contexts static preloaded"], [
        ("context = leaving(handle); return after_leaving(context, real_next(cuGreenCtxDestroy)(green));",
         "context = NULL; return after_leaving(context, real_next(cuGreenCtxDestroy)(green));")]),
    Mutant("what was freed before a capture is not asked for", ["oom static relaxed"], [
        ("if (current_device(&device)) device_publish(device);", "(void)device;")]),
    Mutant("a context that is refused is not asked for again", ["rows driver"], [
        ('(serve_release(device, "oom") || serve_arrivals() != retry->arrivals)', "serve_arrivals() != retry->arrivals")]),
    Mutant("a stream of another device is not waited for", ["auto_peer static auto"], [
        ("if (result || !is_foreign(context, handle) || !driver->cuStreamQuery) return", "return")]),
    # --- blocks and segments ---
    Mutant("a split is off by one granule", ["pool", "random"], [
        (": block->addr + size; rest->prev", ": block->addr + size - POOL_GRANULE; rest->prev")]),
    Mutant("a merge takes the wrong neighbour", ["random"], [
        ("if (is_free(block->next)) block_merge_next(pool, block);", "if (block->next) block_merge_next(pool, block);")]),
    Mutant("a merge forgets who follows", ["pool", "random"], [
        ("block->next = next->next; if (block->next) block->next->prev = block;", "block->next = next->next;")]),
    Mutant("the map keeps a block that was freed", ["pool"], [
        ("map_block_set(block->addr, NULL); atomic_store_explicit", "atomic_store_explicit")]),
    Mutant("what was freed last is not looked for", ["pool"], [
        ("if (!block) { coalesce_all(pool); block", "if (!block) { block")]),
    Mutant("a small request joins what all freed last", ["sizes"], [
        ("if (size > CLOSE_MAX) coalesce(pool, cached_grab(magazine, LARGE_SETS, HASH_SETS,", "coalesce(pool, cached_grab(magazine, 0, LIST_SETS,")]),
    Mutant("a large request does not join what is large and freed last", ["sizes"], [
        ("coalesce_own_large(pool); if (!refused)", "if (!refused)")]),
    Mutant("a small request that nothing serves joins all rather than the next larger one", ["sizes"], [
        ("if (!block && size <= CLOSE_MAX && coalesce_larger(pool, magazine, size))", "if (0)")]),
    Mutant("a large request overlooks small ones in its segment", ["sizes"], [
        ("magazine->has_holes ? LIST_SETS : LARGE_SETS,", "LARGE_SETS,")]),
    Mutant("a request between close and large sizes does not join what was freed last", ["shards"], [
        ("if (size > CLOSE_MAX) coalesce(", "if (size > LARGE_MIN) coalesce(")]),
    Mutant("a magazine joins what is of others' segments", ["threads"], [
        ("if (!all && block->segment->owner != owner)", "if (!all && !block->segment->owner != !owner)")], 20),
    Mutant("all locks are one", ["threads"], [
        ("for (unsigned int i = 0; i < count; i++) magazine_visit(&pool->magazines[i]);", ""),
        ("for (unsigned int i = 0; i < count; i++) magazine_unlock(&pool->magazines[i]);", "(void)count;")], 20),
    Mutant("small requests without a hit take the common lock", ["shards"], [
        ("magazine_carve(pool, magazine, size, requested, ret_addr);", "false;")]),
    Mutant("all segments are the first magazine's", ["shards"], [
        ("segment->shared ? magazine_own(pool) : NULL;", "segment->shared ? pool->magazines : NULL;"),]),
    Mutant("what is free in others' segments is overlooked", ["shards"], [
        ("block = bins_find(&pool->magazines[(index + i) % count].bins, size, 0, all);", "block = NULL;")]),
    Mutant("segments stay with whose they were", ["shards"], [
        ("return segment->size - segment->used >= segment->size / MOVE_PART;", "return !segment;")]),
    Mutant("a segment changes its owner for next to nothing", ["shards"], [
        ("return segment->size - segment->used >= segment->size / MOVE_PART;", "return segment != NULL;")]),
    Mutant("a segment that moves stays on the books", ["shards"], [
        ("book(&from->live, -segment->used); book(&to->books.live, segment->used);", "")]),
    Mutant("an idle segment that moves stays on the books", ["shards"], [
        ("book(&from->idle, -segment->size); book(&to->books.idle, segment->size);", "(void)from;")]),
    Mutant("descriptors stay with those who merge", ["shards"], [
        ("if (++spares->count > 2 * SPARES_CHUNK)", "if (++spares->count > 200 * SPARES_CHUNK)")]),
    Mutant("descriptors that others had too many of are not used", ["shards"], [
        ("move(&pool->spares_common, spares);", "")]),
    Mutant("what waits for company counts for the peak", ["magazine"], [
        ("handed_sub(magazine, block->size); magazine_defer(", "magazine_defer(")]),
    Mutant("small sizes are not close", ["sizes"], [
        ("return (((last >> shift) + 1) << shift) * POOL_GRANULE;", "return (last + 1) * POOL_GRANULE;")]),
    Mutant("strays have no end", ["sizes"], [
        ("(stray && magazine->strays_count >= STRAY_MAX)", "false")]),
    Mutant("who looks moves the slack", ["magazine"], [
        ("stats_copy(pool, ret_stats); ret", "if (taken) pool->stats.peak_live = (size_t)handed_most(pool); stats_copy(pool, ret_stats); ret")]),
    Mutant("what was asked for is joined before anybody looks", ["magazine"], [
        ("if (flush_if_due(pool, size) && magazines_take(pool, NULL, requested, ret_addr)) return 0;", "flush_if_due(pool);")]),
    Mutant("hits do not count for the peak", ["magazine"], [
        ("if (handed > balance(&magazine->handed_most))", "if (0)")]),
    Mutant("who frees in his own is visited by all", ["magazine"], [
        ("const bool abandoned = size_value(&magazine->frees_seen) == frees;", "const bool abandoned = true;")]),
    Mutant("what was freed last is not given back", ["pool"], [
        ("coalesce_all(pool); for (segment = idle_bytes(pool) ? pool->segments : NULL;", "for (segment = pool->segments;")]),
    Mutant("what was freed last is handed out for any size", ["sizes"], [
        ("if (!block || block->size != size)", "if (!block)")]),
    Mutant("a magazine takes what is withdrawn", ["magazine"], [
        ("magazine->cached_count >= CACHED_MAX || block->segment->withdrawn ||", "magazine->cached_count >= CACHED_MAX ||")]),
    Mutant("what others freed last is not looked for", ["magazine"], [
        ("handed_collect(pool, magazine); magazine->has_holes = false; coalesce(", "if (i) continue; handed_collect(pool, magazine); magazine->has_holes = false; coalesce(")]),
    Mutant("the slack is each magazine's", ["magazine"], [
        ("return size_value(&pool->shown.budget) / (sharers ? sharers : 1);", "return size_value(&pool->shown.budget) + 0 * sharers;")]),
    Mutant("as much waits as there is place for afterwards", ["magazine"], [
        ("#define DEFERRED_MAX (CACHED_MAX / 4)", "#define DEFERRED_MAX CACHED_MAX")]),
    Mutant("a request joins what others freed last", ["magazine"], [
        ("return found || magazines_take(pool, magazine, requested, ret_addr) ?", "return found ?")]),
    Mutant("large blocks wait for company", ["order"], [
        ("takes <= room / BATCH_PART &&", "")]),
    Mutant("what ended threads kept is nobody's business", ["magazine"], [
        ("(i != probe || !is_abandoned(magazine)))", "probe < MAGAZINES)")]),
    Mutant("what others keep too much of is nobody's business", ["magazine"], [
        ("size_value(&magazine->deferred_bytes) <= budget_share(pool) && (i != probe ||", "(i != probe ||")]),
    Mutant("the map keeps a segment that was given back", ["pool"], [
        ("segment->next->prev = segment->prev; map_segment_remove(segment->addr, segment->size);",
         "segment->next->prev = segment->prev;")]),
    Mutant("blocks are aligned to 256 bytes", ["pool", "basic static preloaded / alignment"], [
        ("#define SHARED_SKIP ((size_t)POOL_GRANULE)", "#define SHARED_SKIP ((size_t)POOL_GRANULE / 2)")]),
    Mutant("small blocks start where a segment starts", ["pool"], [
        ("#define SHARED_SKIP ((size_t)POOL_GRANULE)", "#define SHARED_SKIP ((size_t)0)")]),
    Mutant("a block is handed out that is too small", ["bins", "pool"], [
        ("if (block->size < size || (!shared", "if ((!shared")]),
    Mutant("segments are broken without a budget", ["break"], [
        ("(block->size / BREAK_RATIO <= size && segment_exposes(segment, size) <= room)", "block->size / BREAK_RATIO <= size")]),
    Mutant("holes of packed segments are handed out without a budget", ["break"], [
        ("return all || segment_exposes(segment, size) <= room;", "return true;")]),
    Mutant("large segments are broken as readily as those for two", ["bins"], [
        ("room /= BREAK_PART;", "")]),
    Mutant("packing has no bound", ["bound"], [
        ("max = max < bound ? max : bound;", "")]),
    Mutant("the bound has no margin for small blocks", ["bound"], [
        ("return (native / BOUND_PART + pool->config.bound_min) / 16 * 15;", "return native / BOUND_PART + pool->config.bound_min + ((size_t)4 << 20);")]),
    Mutant("the largest block is what a packed segment keeps", ["break"], [
        ("native_size(block->size) < least)", "native_size(block->size) < segment->size)")]),
    Mutant("a block that was the smallest of its segment still exposes it", ["break"], [
        ("if (segment->exposed) exposed_lessen(pool, segment);", "")]),
    Mutant("large blocks take all of what may be exposed", ["break"], [
        ("max -= size > PACK_SMALLEST ? max / 4 : 0;", "")]),
    Mutant("blocks that leave little share a segment", ["break"], [
        ("native_size(size) - size >= PACK_LEAVES", "native_size(size) > size")]),
    Mutant("a program that frees nothing has its blocks packed", ["break"], [
        ("pool->freed < PACK_FREED ||", "")]),
    Mutant("a program that exports its blocks has them packed", ["break"], [
        ("max = pool->packs_never ? 0 : max;", "")]),
    Mutant("the second of two blocks lies beside the first", ["break"], [
        ("const bool at_end = segment->exposed && block->prev && !block->next && block->size > size;", "const bool at_end = false;")]),
    Mutant("a segment for two is asked for again where it was refused", ["break"], [
        ("rc = grow(pool, size, requested, /* alone: */ true, ret_addr);", "rc = grow(pool, size, requested, false, ret_addr);")]),
    Mutant("as many large blocks wait for company as small ones", ["magazine"], [
        ("(size < LARGE_MIN || magazine->deferred_large < DEFERRED_LARGE_MAX) &&", "")]),
    Mutant("the budget is not given back by merging", ["break"], [
        ("if (block->segment->exposed && is_whole(block)) exposed_set(pool, block->segment, 0);", "")]),
    Mutant("what a large block leaves of its segment is handed out", ["pool", "random"], [
        ("return block->prev && !block->segment->shared && !block->segment->exposed;", "return false;")]),
    Mutant("small requests go to idle segments", ["bins"], [
        ("if (size < POOL_SEGMENT_UNIT) return false;", "")]),
    Mutant("a growing pool hands nothing back", ["excess"], [
        ("for (segment = has_arrived && !pool->releasing ? pool->idle_first : NULL; segment; segment = next) {", "for (segment = NULL; segment; segment = next) {")]),
    Mutant("a growing pool hands everything back", ["excess", "random"], [
        ("if (held <= max) break; if (held - max < segment->size / TOLERANCE_PART && held - max <= excess && held <= bound) continue;", "")]),
    Mutant("a growing pool hands back what has just become idle", ["excess"], [
        ("for (segment = has_arrived && !pool->releasing ? pool->idle_first : NULL; segment; segment = next) {",
         "for (segment = has_arrived && !pool->releasing ? pool->idle_last : NULL; segment; segment = next) {"),
        ("next = segment->idle_next; if (held", "next = segment->idle_prev; if (held")]),
    Mutant("a growing pool hands much back for little", ["excess"], [
        ("if (held - max < segment->size / TOLERANCE_PART && held - max <= excess && held <= bound) continue;", "")]),
    Mutant("a growing pool tolerates much beside a large segment", ["excess"], [
        ("&& held - max <= excess && held <= bound) continue;", "&& held <= bound) continue;")]),
    Mutant("a growing pool hands back more and more that does not arrive", ["excess"], [
        ("has_arrived = arrived(pool, &arriving);", "has_arrived = arrived(pool, &arriving) || true;")]),
    Mutant("a growing pool hands back what stands in for the slack", ["excess"], [
        ("return peak + *ret_excess + budget_of(pool) +", "return peak + *ret_excess +")]),
    Mutant("the bound: nobody waits for it", ["bound static ordered / append"], [
        ("if (!is_beyond) return false;", "return false;")]),
    Mutant("the bound: what is on its way back does not count", ["bound static ordered / append"], [
        ("SIZE_MAX / 2 && pool->stats.held + arriving +", "SIZE_MAX / 2 && pool->stats.held +"),
        ("is_beyond = pool->stats.held + arriving +", "is_beyond = pool->stats.held +")]),
    Mutant("the bound: a request does not wait for its own frees", ["bound static ordered / append"], [
        ("if (config->backend->reclaim) config->backend->reclaim(config->arg); lock_take(", "lock_take("),
        ("if (release_excess(pool, size, /* second: */ true, &alone) && config->backend->reclaim) config->backend->reclaim(",
         "if (false) config->backend->reclaim(")]),
    Mutant("cudaMemGetInfo waits for the device", ["waits static ordered / memory_info"], [
        ("context_unpin(context)) arrivals_collect(context, 0); }", "context_unpin(context)) order_wait(context); }")]),
    Mutant("a fill is not put in order", ["fill"], [
        ("return !rc && filled ? order->filled(pool->config.arg) : rc;", "return rc;")]),
    Mutant("idle memory does not go back beside a capture", ["oom static preloaded / beside_capture"], [
        ("return atomic_load(&context->defers) && !context_events.registers() &&", "return false && !context_events.registers() &&")]),
    Mutant("a program that repeats itself goes on asking the driver", ["excess"], [
        ("else ghosts->credit += size;", "")]),
    Mutant("a pool that holds more for old sizes goes on with it", ["excess"], [
        ("ghosts->credit -= ghosts->credit < size ? ghosts->credit : size;", "")]),
    Mutant("any size that comes again makes the pool hold more", ["excess"], [
        ("if (ghosts->streak < STREAK_MAX) ghosts->streak++; else", "")]),
    Mutant("the list of idle segments keeps one that is in use", ["random"], [
        ("*(segment->idle_next ? &segment->idle_next->idle_prev : &pool->idle_last) = segment->idle_prev;", "")]),
    Mutant("a segment with a live block is given back", ["pool", "random"], [
        ("if (segment->used) return false;", "")]),

    # --- out of memory, limits, figures ---
    Mutant("out of memory: what was kept back stays there", ["ladder"], [
        ("order_and_publish(pool, NULL, POOL_ORDER_DEVICE); if (take(", "; if (take(")]),
    Mutant("out of memory: nothing is given back", ["oom static preloaded / reshaped"], [
        ('released = pool_trim(pool, "oom");', "released = 0;")]),
    Mutant("out of memory: another thread's release is not waited for", ["ladder"], [
        ("(pool->releasing || atomic_load(&pool->shown.ordering)) &&", "atomic_load(&pool->shown.ordering) &&"),
        ("more = idle_bytes(pool) || pool->releasing ||", "more = idle_bytes(pool) ||")]),
    Mutant("out of memory: a trim does not wait for another thread's", ["decay"], [
        ("return releases_wait(pool) ? released +", "return false ? released +")]),
    Mutant("out of memory: what another thread is ordering is not waited for", ["ladder"], [
        ("(pool->releasing || atomic_load(&pool->shown.ordering)) &&", "pool->releasing &&"),
        ("pool->releasing || atomic_load(&pool->shown.ordering) ||", "pool->releasing ||")]),
    Mutant("who looks changes where memory lies", ["magazine"], [
        ("stats_copy(pool, ret_stats); ret", "if (taken) coalesce_all(pool); stats_copy(pool, ret_stats); ret")]),
    Mutant("growth that was refused first counts twice", ["excess"], [
        ("bool entered; int rc; lock_take(&pool->lock); segment_size",
         "bool entered; int rc; release_excess(pool, size, false, &alone); lock_take(&pool->lock); segment_size"),
        ("if (release_excess(pool, size, /* second: */ false, &alone)) {", "if (false) {")]),
    Mutant("out of memory: other contexts keep what they do not need", ["faults / Faults.test_without_faults"], [
        ("if (other == except) continue;", "if (other) continue;")]),
    Mutant("out of memory: calls that are not pooled fail at once", ["pressure static preloaded"], [
        ("return retry_is_worth_it(retry, result) && serve_give_back(retry->arrivals);", "return false;")]),
    Mutant("the limit does not hold", ["ladder", "settings"], [
        ("fits = !limit || ", "fits = true || ")]),
    Mutant("several threads pass the limit together", ["ladder"], [
        ("pool->stats.held + pool->growing <= limit - size", "pool->stats.held <= limit - size")]),
    Mutant("free memory is what the driver says", ["meminfo static preloaded", "meminfo shared preloaded"], [
        ("const uint64_t idle = serve_idle_bytes();", "const uint64_t idle = 0;")]),

    # --- contexts and processes ---
    Mutant("the context of a free is not made current", ["contexts static strict / race_across"], [
        ("if (!result && current != handle) {", "if (!result && !handle) {")]),
    Mutant("the caller's context is not put back", ["contexts static strict"], [
        ("visit->pushed = result == CUDA_SUCCESS;", "")]),
    Mutant("a destroyed context keeps its pool", ["contexts static preloaded", "teardown static preloaded / looked_up_destroy"], [
        ("leaving(handle);", "NULL;", "destroy")]),
    Mutant("a reset device keeps its pool", ["catch"], [
        ("leaving_primary(device);", "NULL;", "primary_reset"),
        ("const bool alone = !process_is_passive() && !process_hooks_driver();", "const bool alone = false;")]),
    Mutant("a released primary context keeps its pool", ["contexts static preloaded / primary_release"], [
        ("entry_gone(context, !active || (id && id != context->id));", "entry_gone(context, false);")]),
    Mutant("a forked child goes on where its parent was", ["trace / Processes"], [
        ("atomic_store(&process_state, PROCESS_PASSIVE); process_events.forked();", ""), ("return getpid() != starter;", "return false;")]),

    # --- whose call it is ---
    Mutant("NCCL's own memory is pooled", ["catch"], [
        ("if (caller_is_outside(caller_of(caller))) return SERVE_BYPASS;", "")]),
    Mutant("a request that is passed on is pooled further down", ["catch"], [
        ("error = BYPASS(real_runtime(cudaMalloc, CALLER)(ptr, size));", "error = real_runtime(cudaMalloc, CALLER)(ptr, size);")]),
    Mutant("cuGetProcAddress answers with the driver's functions", ["catch"], [
        ("return symbol == REAL_COUNT ? function : hooks[symbol];", "return symbol || hooks[0] ? function : NULL;")]),
    Mutant("dlsym answers for RTLD_NEXT", ["next preloaded"], [
        ("if (!name || handle == RTLD_NEXT || handle == RTLD_DEFAULT ||", "if (!name || handle == RTLD_DEFAULT ||")]),
    Mutant("an IPC handle of a shared segment is made", ["ipc static preloaded / small"], [
        ("== 0 && base == segment));", "== 0));")]),

    # --- settings and the trace ---
    Mutant("CUPOOL_ENABLE=0 is ignored", ["settings"], [
        ("(now == PROCESS_NEW && !conf_get()->enable.number)", "false")]),
    Mutant("CUPOOL_HOOK=runtime is ignored", ["catch"], [
        ("return conf->enable.number && conf->hook.number == HOOK_AUTO;", "return conf->enable.number;")]),
    Mutant("sizes are thousands", ["settings"], [
        ("scale = 1ull << (10 * (unit - units + 1));", "scale = 1000ull << (10 * (unit - units));")]),
    Mutant("a size with anything behind it is accepted", ["fuzz_settings_random"], [
        ("if (*text || whole > ", "if (whole > ")]),
    Mutant("a file name may be a byte too long", ["fuzz_settings_random"], [
        ("if (*at + n >= len) return -ENAMETOOLONG;", "if (*at + n > len) return -ENAMETOOLONG;")]),
    Mutant("a file of somebody's is renamed", ["files / InTheWay.test_somebodys_file"], [
        ("strncmp(start, try->kind->magic, strlen(try->kind->magic)) != 0", "false")]),
    Mutant("an earlier run's file keeps the name", ["files / Runs.test_the_newest_has_the_name"], [
        ("return move_away(try) ? AGAIN : TAKEN;", "return TAKEN;")]),
    Mutant("a running process's file is renamed", ["files / AtOnce"], [
        ("if (flock(fd, LOCK_EX | LOCK_NB)) {", "if (false) {")]),
    Mutant("a renamed file takes another's place", ["files / Runs.test_the_newest_has_the_name"], [
        ("RENAME_NOREPLACE) == 0", "0u) == 0")]),
    Mutant("a forked child keeps the lock of a trace", ["files / Runs.test_a_child_does_not_keep_it"], [
        ("file_close(trace.fd, &trace.file, /* done: */ false);", ";")]),
    Mutant("a pipe is waited for", ["files / InTheWay.test_no_files"], [
        ("const char *why = special(path);", "const char *why = NULL; (void)special;")]),
    Mutant("trace: what is left out is not counted", ["gap", "gaps / Limit"], [
        ("gap->events[kind] += events;", "")]),
    Mutant("trace: after a gap it is not told what is held", ["gaps / Limit"], [
        ("tally < tallies + tally_count; tally++) {", "tally < tallies; tally++) {")]),
    Mutant("trace: a gap goes on for ever", ["gap"], [
        ("gap->credit >= FULL / 2", "false")]),
    Mutant("trace: a file without a header", ["trace / Full.test_no_room_for_the_header"], [
        ("if (!header_write(&launch)) give_up(); else if", "header_write(&launch); if")]),
    Mutant("statistics: nobody learns what passes the pool by", ["stats / NotPooled"], [
        ("atomic_fetch_add_explicit(&taken[kind].calls, 1, memory_order_relaxed);", "")]),
    Mutant("a segment's end is traced after it has gone", ["order"], [
        ("""if (config->observer && config->observer->segment_free)
         config->observer->segment_free(config->arg, segment->kind, segment->addr, segment->size);
         config->backend->free(config->arg, segment->kind, segment->addr, segment->size);""",
         """config->backend->free(config->arg, segment->kind, segment->addr, segment->size);
         if (config->observer && config->observer->segment_free)
         config->observer->segment_free(config->arg, segment->kind, segment->addr, segment->size);""")]),
    Mutant("trace: nothing is written behind", ["trace / Ends.test_killed_later"], [
        ("rc = pthread_create(&thread, NULL, writer, NULL);", "rc = EAGAIN; thread = 0;")]),
    Mutant("trace: a record is taken before it is complete", ["records"], [
        ("if (!is_complete(record, number) && !(wait", "if (false && !(wait")]),
    Mutant("trace: a record that is being written is not waited for", ["records"], [
        ("&& !(wait && complete_wait(record, number)))", ")")]),
    Mutant("trace: a record that nobody finishes is waited for again and again", ["records"], [
        ("times.stuck = number + 1;", "return false;")]),
    Mutant("trace: a record that is not taken yet is overwritten", ["records"], [
        ("memory_order_acquire)) >= (int64_t)RECORDS)", "memory_order_acquire)) > (int64_t)RECORDS)")]),
    Mutant("trace: what is recorded meanwhile is taken, too", ["records"], [
        ("number < times.end &&", "number < atomic_load(&ring.head) &&")]),
    Mutant("trace: the lines of a thread go back", ["records"], [
        ("if (times.last[i].tid == tid && t < times.last[i].t) t =", "if (false) t =")]),
    Mutant("trace: the counter's rate is taken once", ["records"], [
        ("if ((passed >= RATE_NS || !times.rated)", "if (!times.rated"),
        ("times.rated = passed >= RATE_NS;", "times.rate *= 1.1; times.rated = true;")]),
    Mutant("allocations are not written before a segment's end", ["trace / Ends"], [
        ('flush(/* wait: */ true); t = event->clock ?', 't = event->clock ?'),
        ("rc = pthread_create(&thread, NULL, writer, NULL);", "rc = EAGAIN; thread = 0;")]),

    # --- reports ---
    Mutant("holes are counted by blocks", ["survey"], [
        ("ranges += !range;", "ranges += 1;")]),
    Mutant("out of memory: others include the pool", ["oom_report / Numbers"], [
        ("p->others = p->total - p->free - p->pool.held;", "p->others = p->total - p->free;")]),
    Mutant("out of memory: the driver is asked while a stream captures", ["oom_report / Numbers"], [
        ("if (!capture_active() && driver->", "if (driver->")]),
    Mutant("statistics replace a handler of the program", ["stats / Signal"], [
        ("is_default(&now) && sigaction(sig, &ours, &now) == 0 && is_default(&now)", "sigaction(sig, &ours, &now) == 0")]),
    Mutant("statistics: a signal wakes nobody", ["stats / Signal"], [
        ("background_wake();", "", "on_signal")]),
    Mutant("statistics: a forked child keeps the handler", ["stats / Signal"], [
        ("stats_forget();", "")]),
    Mutant("the page has one half", ["live / Reader"], [
        ("(off_t)(half->seq % 2) * HALF_SIZE", "0")]),
    Mutant("the page goes to whatever has its descriptor", ["live / Never"], [
        ("if (file_state(fd, &page.file) != -EBADF) while", "while")]),

    # --- NCCL ---
    Mutant("NCCL: a registration serves both kinds", ["nccl_reg", "nccl / Kinds.test_with_care"], [
        ("if (record && record->handle && comm->info.careful) safe &=", "if (false) safe &=")]),
    Mutant("NCCL: force and 1 are the same", ["nccl / Kinds.test_without_care"], [
        ("return conf_get()->registration.number != REGISTER_FORCE && version >=", "return version >=")]),
    Mutant("NCCL: a registration is made anew under work that uses it", ["nccl_reg"], [
        ("|| !device_is_done(reg, comm)) return false;", ") return false;")]),
    Mutant("NCCL: operations beside work that does not end wait as long each time", ["nccl_reg"], [
        ("reg_now_ns() < comm->rests ? 0 : OP_WAIT_MS;", "OP_WAIT_MS;")]),
    Mutant("NCCL: after one wait in vain operations do not wait as before", ["nccl_reg"], [
        ("if (done) comm->rests = 0;", "if (done) ;")]),
    Mutant("NCCL: a communicator goes under a question", ["nccl_reg"], [
        ("if (!call_begin(comm)) return -EPIPE; rc = reg->ops->ask(&comm->info, key); call_end(comm);", "rc = reg->ops->ask(&comm->info, key);")]),
    Mutant("NCCL: a driver that cannot be asked is taken to be done", ["nccl / Registered.test_before_cuda_12_5"], [
        ("if (result || context_enter(context, &visit)) return false; least", "if (result || context_enter(context, &visit)) return true; least")]),
    Mutant("NCCL: the end of a communicator does not wait for another thread's capture", ["nccl / Registered.test_an_end_beside_another_threads_capture"], [
        ("if (!capturing || now_ns() >= captured || !context_stays(context)) break;", "break;")]),
    Mutant("guard bytes: one context that is at work hides what was written in others", ["hang / Hang.test_guard_bytes_of_another_device"], [
        ("if (copy[i].context == context) copy[i].context = NULL;", "copy[i].context = NULL;")]),
    Mutant("NCCL: a communicator that could not shrink is used", ["nccl_rows / Rows.test_ends"], [
        ("nccl_after(parent, used, result); return result;",
         "nccl_after(parent, used, result); if (flags & NCCL_SHRINK_ABORT) nccl_comm_ended(parent, NCCL_END_CLOSE, result); return result;")]),
    Mutant("NCCL: a collective that came first is taken to have been one that maps", ["nccl_reg", "nccl / Kinds.test_collectives_that_use_no_registration"], [
        ("reg_sent_mark(comm, record); return safe; }", "if (!record->used) reg_sent_mark(comm, record); return safe; }")]),
    Mutant("NCCL: what a group has asked for is forgotten with the old registration", ["nccl_reg"], [
        ("if (record->group != reg_group()) record->group = 0;", "record->group = 0;")]),
    Mutant("NCCL: what came before a group is taken for a part of it", ["nccl_reg"], [
        ("if (!record->sent && (!record->group || record->group == reg_group()))",
         "if (!is_sent(record) || record->group == reg_group())")]),
    Mutant("NCCL: of several registrations the first alone is undone", ["nccl_reg"], [
        ("for (unsigned int i = record->wide ? record->widened : 0;", "for (unsigned int i = record->wide ? 1 : 0;")]),
    Mutant("NCCL: what has been sent is not known where nothing is left to be done", ["nccl_reg"], [
        ("prepared = (unsigned int)!reg_kinds_matter(comm, record) << NCCL_REG_POINT_TO_POINT |",
         "prepared = 1u << NCCL_REG_POINT_TO_POINT |")]),
    Mutant("NCCL: a communicator that was not revoked stays closed", ["nccl_rows / Rows.test_ends"], [
        ("nccl_reg_comm_reopen(nccl_registry(), comm);", ";")]),
    Mutant("NCCL: a communicator that a group is to end has gone before", ["nccl_rows / Rows.test_ends"], [
        ("struct ending *one = nccl_reg_group_depth() ? malloc(sizeof(*one)) : NULL;", "struct ending *one = NULL;")]),
    Mutant("NCCL: a call that is no operation does not use its communicator", ["nccl_rows / Rows.test_used"], [
        ("nccl_reg_before_call(nccl_registry(), comm, &used);", ";")]),
    Mutant("NCCL: a group's operations find nothing registered", ["nccl_reg"], [
        ("if (reg_group_uses(comm) || !reg_is_ready", "if (!reg_is_ready")]),
    Mutant("NCCL: a communicator that was finalized is forgotten", ["nccl_rows / Rows.test_ends"], [
        ("how == NCCL_END_FINALIZE ? nccl_reg_comm_finalize(nccl_registry(), comm) :", "")]),
    Mutant("NCCL: a communicator that was finalized goes twice", ["nccl_rows / Rows.test_ends"], [
        ("return finalized ? -EALREADY : 0;", "(void)finalized; return 0;")]),
    Mutant("NCCL: the end of a communicator waits for the device", ["nccl / Registered.test_end_beside_other_work", "nccl / Registered.test_an_end_beside_a_capture"], [
        ("return context_wait_device_for(info->device, ms) ? 0 : -EBUSY;", "return context_wait_device(info->device) ? 0 : -EBUSY;")]),
    Mutant("NCCL: memory that waits to go is freed again", ["nccl_rows / Rows.test_groups_and_memory"], [
        ("rc == -EALREADY ? ncclUnhandledCudaError : rc ? next(ptr) : freed", "rc ? next(ptr) : freed")]),
    Mutant("windows: an answer that never came is taken for one", ["window"], [
        ("if (!result && memcmp(&all[rank], mine, sizeof(*mine)) != 0) rc = -EIO;", "(void)rank;"),
        ("rc = all[i].problem > PROBLEM_MAX ? -EIO : -(int)all[i].problem;", "rc = all[i].problem > PROBLEM_MAX ? 0 : -(int)all[i].problem;"),
        ("if (!rc && !nccl_comm_is_open(comm)) rc = -EIO;", "")]),
    Mutant("windows: a registration is taken for one", ["window"], [
        ("return (char *)window + 1;", "return window;")]),
    Mutant("NCCL: a communicator goes with registrations", ["nccl_reg", "nccl / Registered.test_threads"], [
        ("rc = comm_detach_all(reg, found, comm);", "rc = 0;")]),
    Mutant("NCCL: a communicator that is aborted is talked to", ["nccl_reg"], [
        ("if (may_call) return comm_leave", "if (true) return comm_leave")]),
    Mutant("NCCL: beside a capture nobody waits for work before registered memory goes", ["nccl_used / Used.test_freed_beside_a_capture"], [
        ("if (beside_capture && context->driver->cuThreadExchangeStreamCaptureMode) result = order_beside_capture(context);", "", "order_wait")]),
    Mutant("a context that may be about to end is not waited for", ["api / Beside.test_releases_of_the_context"], [
        ("return true; limit = now_ns() + CONTEXT_LEAVING_WAIT_NS;", "return true; limit = 0;")]),
    Mutant("NCCL: a communicator begins while others rest for a segment", ["nccl_reg"], [
        ("if (made) calls_wait(&reg->detaching, ~0u);", "(void)made;")]),
    Mutant("NCCL: memory goes although its owner does", ["nccl_reg"], [
        ("return !segment->owner || !reg->ops->hold || reg->ops->hold(segment->owner);", "(void)reg; return segment != NULL;")]),
    Mutant("NCCL: what one owner has is lost with another", ["nccl_reg"], [
        ("(any ? !segment->owner : segment->owner != owner)", "(any && !segment->owner)")]),
    Mutant("NCCL: a communicator that cannot be talked to is forgotten before its end", ["nccl_reg"], [
        ("} else if (!rc) {", "} else {")]),
    Mutant("windows: ranks do not compare where their buffers lie", ["window"], [
        ("rc = all[i].start == all[0].start &&", "rc =")]),
    Mutant("windows: what a window holds goes before it", ["window"], [
        ("nccl_user_registered(comm, name_of(window), whole.addr, whole.size);", ";")]),
    Mutant("windows: a rank that has nothing to offer keeps that to itself", ["window"], [
        (": -(int)all[i].problem;", ": -(int)mine->problem;")]),
    Mutant("cupool_trim leaves what could not go before", ["window"], [
        ("return released + context_events.retry_parked(device);", "return released;")]),
    Mutant("NCCL: one that is about to be added is taken for one that is gone", ["nccl_life"], [
        ("if (!atomic_load(&comm->key) && atomic_load(&comm->known)) {", "if (reg) {")]),
    Mutant("NCCL: a thread goes on with a communicator that was given up", ["nccl_reg"], [
        ("return atomic_compare_exchange_strong(&comm->calls, &none, CALL_INSIDE);",
         "atomic_store(&comm->calls, none); return true;")]),
    Mutant("NCCL: the memory of a communicator that is being aborted goes", ["nccl_reg"], [
        ("return comm_is_closed(comm) ? !record || !record->handle : reg_is_ready(reg, comm, key);", "return true;")]),
    Mutant("NCCL: an operation waits for the device", ["nccl_reg", "nccl / Kinds.test_nobody_waits"], [
        ("if (!record->front || record->widened == WIDES ||", "if (true ||")]),
    Mutant("NCCL: what a graph has made NCCL register goes", ["nccl / Registered.test_graphs_without_us"], [
        ("if (capture_history_saw(addr) && graphs_register())", "if (false)")]),
    Mutant("NCCL: a segment goes while it is registered", ["nccl / Registered.test_memory_that_goes"], [
        ("if (context_events.segment_removing(addr, put, context)) put(context, addr, size);",
         "put(context, addr, size);")]),
    Mutant("NCCL: a segment goes although it could not be deregistered", ["nccl_reg", "nccl / Wrong.test_deregistration_fails"], [
        ("gone = gone && !segment->quarantined;", "")]),
    Mutant("NCCL: a segment goes within an operation", ["nccl_reg"], [
        ("if (atomic_load(&comm->users) || (record", "if ((record")]),
    Mutant("NCCL: a segment goes within a group", ["nccl_reg"], [
        ("if (reg_group()) return false; atomic_fetch_add", "atomic_fetch_add")]),
    Mutant("NCCL: a segment that a graph uses goes", ["nccl_reg"], [
        ("record->pinned |= op->captured;", "")]),
    Mutant("NCCL: a communicator that is not ready is used", ["nccl_reg"], [
        ("memory_order_acquire) && reg_is_ready(reg, comm, key)) catch_up(reg, comm, key);",
         "memory_order_acquire)) catch_up(reg, comm, key);")]),
    Mutant("NCCL: what a group has queued has been used", ["nccl_reg"], [
        ("(!record->group || record->group == reg_group())", "!record->group")]),
    Mutant("NCCL: memory goes under work that uses it", ["nccl / Registered.test_memory_that_goes_under_work"], [
        ("if ((kind == MEMORY_NCCL || context_events.registers()) && order_wait(context))", "if (false)")]),
    Mutant("NCCL: memory that comes later is not registered", ["nccl_reg", "nccl / Registered.test_threads"], [
        ("if (atomic_load_explicit(&comm->seen, memory_order_relaxed) != atomic_load_explicit(&reg->changes, memory_order_acquire) && reg_is_ready", "if (!comm->seen && reg_is_ready"),
        ("if (op->captured || atomic_load_explicit(&comm->seen, memory_order_relaxed) != atomic_load_explicit(&reg->changes, memory_order_acquire))", "if (op->captured)")]),
    Mutant("NCCL: what the program takes from NCCL is not registered", ["nccl / Registered.test_threads"], [
        ("nccl_user_memory((uintptr_t)*ptr, size);", ";")]),
    Mutant("NCCL: the program's own registration is forgotten", ["nccl_reg"], [
        ("found->users_own[found->user_count++] =", "found->users_own[found->user_count] =")]),
    Mutant("NCCL: the driver gives what NCCL refuses", ["nccl / Wrong.test_memory_is_refused_later"], [
        ("if (rc == -ENOMEM && context_backed_by_nccl(context))", "if (false)")]),
    Mutant("NCCL: operations partly outside are not counted", ["nccl_reg", "nccl_rows / Rows.test_extents"], [
        ("comm->counters.mixed += inside && outside;", "")]),
    Mutant("NCCL: the program's own objects decide nothing", ["nccl / Registered.test_a_plugin_that_brings_its_own"], [
        ("copy = copy_of(loaded_handle(info.dli_fname)); return copy ? copy : copy_of(loaded_handle(\"libnccl.so.2\"));", "; return copy;")]),

    # --- memory past the pool that is registered once it is used ---
    Mutant("used memory: it is freed while it is registered", ["nccl_used / Used.test_reused"], [
        ("if (nccl_segment_remove(addr, release, NULL)) release(", "release(")]),
    Mutant("used memory: it is freed under work that uses it", ["nccl_used / Used.test_under_work"], [
        ("if (!(wait ? context_wait_device(device) :", "if (!(wait ? true :")]),
    Mutant("used memory: a thread that settles takes over what another is freeing", ["nccl_used / Used.test_under_work"], [
        ("if (copy.state == STATE_USED) direct_set(&direct.memory, entry, STATE_GOING);", "if (copy.state == STATE_USED) entry_set(entry, STATE_DEFERRED);"),
        ("freed_retry(device);", "freed_retry(-1);")], 40),
    Mutant("used memory: a refused request does not wait for what another thread lets go", ["nccl_used / Used.test_going"], [
        ("atomic_load(&retrying) && !retries &&", "false &&")]),
    Mutant("used memory: it is unmapped while it is registered", ["nccl_used / Used.test_mapped"], [
        ("if (nccl_segment_remove(entry->addr, unmapped_gone, NULL)) unmapped_gone(", "unmapped_gone(")]),
    Mutant("used memory: another thread's call decides whether it is deregistered", ["nccl_used / Used.test_unmapped_beside_others"], [
        ("is_unmapped(entry->addr) && i < UNMAP_TRIES &&", "false &&")], 20),
    Mutant("used memory: what others have given is taken for the program's own", ["nccl_used / Used.test_never"], [
        ("if (is_on()) entry_forget(&direct.physical, handle);", "")]),
    Mutant("used memory: what is kept outlives its context", ["nccl_used / Used.test_context_gone"], [
        ("context_events.context_ended(context);", "")]),
    Mutant("used memory: it is freed twice", ["nccl_used / Used.test_freed_when_it_cannot_go"], [
        ("if (copy.state != STATE_USED) return true;", "if (copy.state != STATE_USED) return false;")]),
    Mutant("places: what a registration's use was is remembered after it was made anew", ["nccl_reg"], [
        ("lookup_clear(&comm->lookup); if (reg->ops->attach(", "if (reg->ops->attach(")]),
    Mutant("places: a registration is remembered after it was undone", ["nccl_reg"], [
        ("lookup_clear(&comm->lookup); rc = reg->ops->detach(", "rc = reg->ops->detach("),
        ("lookup_clear(&comm->lookup); free(record->wide);", "free(record->wide);")]),
    Mutant("places: a buffer that begins in one ends in it", ["nccl_reg"], [
        ("&& size <= RANGE_SIZE - addr % RANGE_SIZE", "")]),
    Mutant("places: one that is registered in part is registered", ["nccl_reg"], [
        ("if (holds(record, addr >> RANGE_SHIFT << RANGE_SHIFT, RANGE_SIZE))", "")]),
    Mutant("places: an operation begins while a segment goes", ["nccl_reg"], [
        ("if (!atomic_load(&reg->detaching) && atomic_load_explicit(&found->key", "if (atomic_load_explicit(&found->key")]),
    Mutant("places: an operation in steady state is in nobody's way", ["nccl_reg"], [
        ("*ret_used = op_begin(found); if (", "if ("),
        ("pthread_mutex_lock(&found->lock); if (atomic_load_explicit(&found->key, memory_order_relaxed) == comm) rc = reg_prepare",
         "*ret_used = op_begin(found); pthread_mutex_lock(&found->lock); "
         "if (atomic_load_explicit(&found->key, memory_order_relaxed) == comm) rc = reg_prepare")]),
    Mutant("places: operations in steady state are not counted", ["nccl_reg"], [
        ("sum.ops += atomic_load(&comm->ops);", ";")]),
    Mutant("places: what could not be made anew is registered", ["nccl_reg"], [
        ("if (!record || !record->handle) {", "if (!record) {", "reg_prepare")]),
    Mutant("places: a graph's operation is like others", ["nccl_reg"], [
        ("if (op->captured || atomic_load_explicit(&comm->seen", "if (atomic_load_explicit(&comm->seen")]),
    Mutant("used memory: a graph keeps it", ["nccl_reg"], [
        ("record->pinned && !segment->own", "record->pinned")]),

    # --- cupool.h ---
    Mutant("allocation events: what a free waits in is not seen", ["hang / Hang.test_what_a_free_waits_in_is_seen"], [
        ("trace_block(TRACE_BLOCK_FREE_REQUESTED, &event); } rc = release_checked(release, addr);",
         "} rc = release_checked(release, addr); if (size) trace_block(TRACE_BLOCK_FREE_REQUESTED, &event);")]),

    Mutant("cupool.h: after a switch of the backend what is free serves requests", ["kinds", "api / Backend.test_there_and_back"], [
        ("if (segment->kind != kind)", "if (false)")]),
    Mutant("cupool.h: a segment that came during a switch serves requests", ["kinds"], [
        ("if (segment->kind != pool_kind_get(pool)) segment_withdraw(pool, segment);", "")]),
    Mutant("cupool.h: memory goes back to where it comes from now", ["api / Backend.test_there_and_back"], [
        ("= kind == MEMORY_NCCL ? memory_put_nccl : memory_put;", "= context_backed_by_nccl(arg) ? memory_put_nccl : memory_put;")]),
    Mutant("cupool.h: trim gives back in a group", ["api / Trim.test_not_in_a_group"], [
        ("return nccl_reg_group_depth() ? 0 :", "return")]),
    Mutant("cupool.h: what a newer program asks for is not cleared", ["api / Stats.test_other_versions_of_the_struct"], [
        ("memset(stats, 0, size);", "")]),
    Mutant("cupool.h: a forked child is told that it is served", ["api / Without"], [
        ("return process_state_get() == PROCESS_NEW &&", "return")]),
    Mutant("cupool.h: a mark is written as it is", ["api / Mark.test_texts"], [
        ("""c == '"' || c == '\\\\' ? "\\\\" : "",""", '"",')]),
    Mutant("cupool.h: a mark is any bytes", ["api / Mark.test_no_text_at_all"], [
        ("(text[1] < forms[i].low || text[1] > forms[i].high)", "false")]),
    # --- physical memory in the trace ---
    Mutant("physical memory: a mapping is not told", ["vmm / Calls.test_every_call_is_there"], [
        ("direct_mapped(ptr, size, offset, handle); if (took(&call, result))",
         "direct_mapped(ptr, size, offset, handle); if (false)")]),
    Mutant("physical memory: what was given up is told too late", ["vmm / Calls.test_threads"], [
        ("call->t = taken ? now : call->start;", "call->t = now;")], 5),
    Mutant("physical memory: what failed is not told", ["vmm / Calls.test_errors"], [
        ("if (!call->start)", "if (!call->start || result)")]),
    Mutant("physical memory: idle memory is not given back for it", ["vmm / Calls.test_idle_memory_is_there_for_it"], [
        ("return !process_is_inside() && retry_again(retry, result);", "return false;")]),
    Mutant("physical memory: idle memory is given back from inside of NCCL", ["nccl / Wrong.test_deregistration_fails"], [
        ("return !process_is_inside() && retry_again(retry, result);", "return retry_again(retry, result);")]),
    Mutant("physical memory: dlsym finds the driver's", ["vmm / Calls.test_every_call_is_there"], [
        ("GUARD(cuMemRelease,", "DRIVER(cuMemRelease,")]),
    Mutant("physical memory: a program that pools nothing has no trace", ["vmm / Calls.test_every_call_is_there"], [
        ("serve_begin();", ";", "call_ended")]),
    Mutant("physical memory: the library's own calls are taken for NCCL's", ["vmm / Whose.test_nccl"], [
        ("if (process_is_inside())", "if (false)")]),
    Mutant("physical memory: a child writes into its parent's trace", ["vmm / Files.test_a_child"], [
        ("(now == PROCESS_ACTIVE ? !process_is_foreign() : now == PROCESS_NEW)", "true"),
        ("atomic_store(&trace_prospect, TRACE_NONE); atomic_store(&trace_allocs_wanted, false); if (trace.fd >= 0) file_close(trace.fd, &trace.file, /* done: */ false); trace.fd = -1;",
         "atomic_store(&trace_allocs_wanted, false);")]),
    Mutant("physical memory: half of the calls are told of with CUPOOL_HOOK=runtime", ["vmm / Files.test_only_the_runtime_is_caught"], [
        ("process_hooks_driver() && (now == PROCESS_ACTIVE", "(now == PROCESS_ACTIVE")]),

    # --- what outsiders' mutants lived through ---
    Mutant("green contexts are pooled", ["contexts static preloaded"], [
        ("context_exempt(*context); atomic_store(&green_exempt, true);", "atomic_store(&green_exempt, true);")]),
    Mutant("a green context has a policy of its own", ["auto_host alone auto"], [
        ("return context && context->pool ? context : NULL;", "return context;")]),
    Mutant("memory that was freed on a green context's stream is not used again", ["contexts static preloaded"], [
        ("if (other) return other->pool != NULL;", "if (other) return true;")]),
    Mutant("where ranks agree: the reserve depends on the device", ["api / Alike"], [
        ("< context->capacity / RESERVE_PART) && !nccl_ranks_agree();", "< context->capacity / RESERVE_PART);")]),
    Mutant("where ranks agree: what goes back depends on time", ["api / Alike"], [
        ("if (age && atomic_load(&context->defers) && !nccl_ranks_agree()) {", "if (age && atomic_load(&context->defers)) {")]),
    Mutant("where ranks agree: a growing pool hands back", ["api / Alike"], [
        (".excess_min = idle_bound(EXCESS_MIN, as->defers),", ".excess_min = as->defers ? EXCESS_MIN : SIZE_MAX / 2,")]),
    Mutant("where ranks agree: there is a bound", ["api / Alike"], [
        (".bound_min = idle_bound(BOUND_MIN, as->defers)};", ".bound_min = as->defers ? BOUND_MIN : SIZE_MAX / 2};")]),
    Mutant("ranks need not agree without an NCCL", ["api / Alike"], [
        ("return conf_get()->backend.number == BACKEND_NCCL || atomic_load_explicit(&state.backing", "return atomic_load_explicit(&state.backing")]),
    Mutant("ranks need not agree after a switch", ["api / Alike"], [
        ("conf_get()->backend.number == BACKEND_NCCL || atomic_load_explicit(&state.backing, memory_order_relaxed) ||", "conf_get()->backend.number == BACKEND_NCCL ||")]),
    Mutant("ranks need not agree on what is registered", ["api / Alike"], [
        ("memory_order_relaxed) || (CUPOOL_NCCL_HOOKS && conf_get()->registration.number != REGISTER_OFF);", "memory_order_relaxed);")]),
    Mutant("ranks agree where nothing is registered", ["api / Alike"], [
        ("(CUPOOL_NCCL_HOOKS && conf_get()->registration.number != REGISTER_OFF);", "(conf_get()->registration.number != REGISTER_OFF);")]),
    Mutant("memory of NCCL that was born in a capture was there before", ["capture_history"], [
        ("return atomic_load(&capture_total) - capture_active();", "return atomic_load(&capture_total);")]),
    Mutant("memory of NCCL is as old as what was at its address before", ["capture_history"], [
        ("if (found) *found = (struct entry){.addr", "if (found && found->addr != addr) *found = (struct entry){.addr")]),
    Mutant("used memory: a part of what is mapped is taken for all", ["nccl_used / Used.test_parts"], [
        ("whole = physical && offset == 0 && physical->size == size;", "whole = physical && offset == 0;")]),
    Mutant("used memory: the driver is not asked for the size", ["nccl_used / Used.test_parts"], [
        ("(entry->context ? size >= entry->size : size == entry->size) &&", "")]),
    Mutant("used memory: another device's is registered", ["nccl_used / Used.test_parts"], [("where == device &&", "")]),
    Mutant("used memory: what lies in a new allocation is still there", ["nccl_used / Used.test_freed_unseen"], [
        ("return i < table->count && table->entries[i].addr - addr < size ? &table->entries[i] : NULL;", "return NULL;")]),
    Mutant("used memory: peers map cudaMalloc's", ["nccl_used / Used.test_as_the_pool_does"], [
        (".plain = owner != NULL, .own = true", ".plain = false, .own = true")]),
    Mutant("NCCL: the program's own memory has a front", ["nccl / Kinds.test_of_the_programs_own"], [
        ("&& addr - start == front ? front : 0;", "? front : 0;")]),
    Mutant("NCCL: cudaMalloc's memory backs the pool", ["nccl / Wrong.test_nccl_has_no_memory_of_its_own"], [
        ("else if (!nccl_memory_is_shareable((uintptr_t)ptr))", "else if (false)")]),
    Mutant("memory past the pool is not disowned", ["passthrough static preloaded"], [
        ("pool_disown(addr, size); caller = serve_caller(caller);", "caller = serve_caller(caller);")]),
    Mutant("memory past the pool is disowned in part", ["passthrough static preloaded"], [
        ("for (uint64_t at = addr; at < addr + size; at += POOL_SEGMENT_UNIT) {", "for (uint64_t at = addr; at == addr; at += POOL_SEGMENT_UNIT) {")]),
    Mutant("free memory may be more than all", ["meminfo static preloaded"], [
        ("*free = total && *free + idle > *total ? *total : *free + idle;", "*free = total ? *free + idle : *free + idle;")]),
    Mutant("free memory is that of one context", ["meminfo static preloaded"], [
        ("idle += stats.idle + arrivals_outstanding(context);", "idle = stats.idle + arrivals_outstanding(context);")]),
    Mutant("free memory is that of all devices", ["meminfo static preloaded"], [
        ("uint64_t idle = 0; for (unsigned int i = 0; (context = context_next(&i, device));", "uint64_t idle = 0; (void)device; for (unsigned int i = 0; (context = context_next(&i, CONTEXT_ALL));")]),
    Mutant("free memory does not count what is kept", ["meminfo static preloaded"], [
        ("{ pool_flush(context->pool); pool_stats_get(context->pool, &stats); idle +=", "{ pool_stats_get(context->pool, &stats); idle +=")]),
    Mutant("free memory counts what is idle twice", ["meminfo shared preloaded"], [
        ("error = BYPASS(real_runtime(cudaMemGetInfo, CALLER)(free, total));", "error = real_runtime(cudaMemGetInfo, CALLER)(free, total);")]),
    Mutant("no large blocks share a segment", ["stats / Packed"], [(".break_max = as->capacity / SHARED_PART,", ".break_max = 0,")]),
    Mutant("a small device has its segments packed like a large one", ["stats / Packed"], [
        (".break_max = as->capacity / SHARED_PART,", ".break_max = as->capacity,")]),
    Mutant("what may be exposed is as much on a full device", ["stats / Packed"], [(".capacity = as->capacity, .excess_min", ".capacity = 0, .excess_min")]),
    Mutant("the clock outlives the program's threads", ["ends / Ends.test_the_last_thread"], [
        ("if (is_left_alone()) break;", "")]),
    Mutant("the trace's writer outlives the program's threads", ["ends / Ends.test_the_last_thread"], [
        ("trace_write_end();", "")]),
    Mutant("exit handlers of the last thread are passed through", ["ends / Ends.test_the_last_thread"], [
        ("process_bypass_end(); /* the program's", "; /* the program's")]),
    Mutant("the driver says what freed memory was", ["driver static preloaded"], [
        ("return serve_is_freed(ptr, caller) ? NOWHERE : ptr;", "return serve_is_freed(ptr, caller) ? ptr : ptr;")]),
]
