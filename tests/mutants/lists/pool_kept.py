# SPDX-License-Identifier: Apache-2.0
"""Mutants of pool/: the pools of pinned memory and of virtual memory that the program has unmapped."""
from __future__ import annotations

from mutant import Mutant

MUTANTS = [
    Mutant("pinned memory: work that ends after the last try does not serve the request", ["host_combiner"], [
        ("return outcome == NEITHER ? try_once(r, refused) : outcome;", "return outcome;")]),
    Mutant("pinned memory: a segment without a family is entered", ["host_pool"], [
        ("(is_slab && !rest) || !segment->family || host_table_add", "(is_slab && !rest) || host_table_add")]),
    Mutant("pinned memory: what cannot be entered stays with the pool", ["host_pool"], [
        ("if (rc) (void)host_segment_give(pool, segment, true);", "")]),
    Mutant("pinned memory: a shard gives back what it has handed out", ["host_shards"], [
        ("if (shard->out >= HOST_SHARD_OUT) out_give_back", "if (shard->out < HOST_SHARD_OUT) out_give_back")]),
    Mutant("virtual memory: nobody is told of a deferred unmap", ["vmm_cache"], [
        ("end(cache, served ? b : NULL);", "end(cache, NULL);", "vmm_cache_unmap")]),
    Mutant("virtual memory: a handle's release is told of while the memory is mapped", ["vmm_cache"], [
        ("b && b->state != VMM_PLAIN ? &cache->accounts", "b ? &cache->accounts")]),
    Mutant("pinned memory: a passing block that a capture has kept ages", ["host_bound"], [
        ("(pool->tick - segment->idle_tick < age && !segment->passing)", "pool->tick - segment->idle_tick < age")]),
    Mutant("pinned memory: a refused request takes those beside it out of the peak", ["host_bound"], [
        ("pool->native_peak >= r->pending + surely ? less : surely;", "surely;")]),
    Mutant("virtual memory: addresses of a mapping that stays are freed", ["vmm_cache"], [
        ("if (!b->own_range && !kept)", "if (b->has_range && !b->own_range)")]),
    Mutant("virtual memory: a buffer of another alignment is handed out", ["vmm_cache"], [
        ("(key ? key_equal(&b->key, key) : b->align == align)) break; return b; } bool vmm_cache_reserve", "(key ? key_equal(&b->key, key) : 1)) break; return b; } bool vmm_cache_reserve")]),
    Mutant("virtual memory: memory of other properties is handed out", ["vmm_cache"], [
        ("return memcmp(a, b, sizeof(*a)) == 0;", "return 1;")]),
    Mutant("virtual memory: a buffer of another size is handed out", ["vmm_random", "vmm_kept / AsNatively.test_random_programs"], [
        ("if (b->size == size && (key ? key_equal", "if (b->size >= size && (key ? key_equal"),
        ("return &cache->classes[hash_of(size) >> 58];", "return &cache->classes[0];")]),
    Mutant("virtual memory: what a thread leaves behind stays", ["vmm_cache", "vmm_kept / Kept.test_addresses_that_the_program_keeps"], [
        ("if (b->thread == thread && b->addr != addr && b->handle != handle)", "if (0)")]),
    Mutant("virtual memory: a mapping in a kept range is not undone first", ["vmm_cache", "vmm_random"], [
        ("} else { settle_in(cache, addr, size); b = vmm_handle_ready(cache, handle);", "} else { b = vmm_handle_ready(cache, handle);")]),
    Mutant("virtual memory: statistics wait for the lock without a limit", ["vmm_trim"], [
        ("const bool taken = lock_take_within(&cache->lock, STATS_WAIT_NS);",
         "const bool taken = true; lock_take(&cache->lock);")]),
    Mutant("virtual memory: a range may go while its memory is waited for", ["vmm_trim"], [
        ("vmm_both_ready(cache, addr, handle, &range, &memory);",
         "range = vmm_range_ready(cache, addr); memory = vmm_handle_ready(cache, handle);")]),
    Mutant("virtual memory: memory that is mapped twice is kept", ["vmm_cache"], [
        ("if (memory) vmm_forget(cache, memory);", "")]),
    Mutant("virtual memory: a handle that was released can be mapped", ["vmm_cache"], [
        ("if (b && (vmm_is_deferred(b) || !b->own_refs))", "if (b && vmm_is_deferred(b))")]),
    Mutant("virtual memory: access is left out that the driver has not", ["vmm_trim", "vmm_random"], [
        ("served = has && has->flags == access[i].flags;", "served = 1; has = has ? has : b->access;")]),
    Mutant("virtual memory: access of an earlier user shows", ["vmm_cache", "vmm_kept / AsNatively.test_every_word"], [
        ("b->own_map = true; b->fresh = false; b->given = 0;", "b->own_map = true; b->fresh = false;")]),
    Mutant("virtual memory: access of an earlier user stays when the buffer is forgotten", ["vmm_random"], [
        ("return b->own_map && b->given !=", "return 0 && b->given !=")]),
    Mutant("virtual memory: a buffer of unknown access is kept", ["vmm_trim"], [
        ("while (!known && size && (b = vmm_in_ready", "while (0 && (b = vmm_in_ready")]),
    Mutant("virtual memory: a retained handle does not count", ["vmm_cache", "vmm_random"], [
        ("b->refs++; b->own_refs++;", "")]),
    Mutant("virtual memory: calls are deferred while a stream captures", ["vmm_trim"], [
        ("served = exact && may_serve;", "served = exact;")]),
    Mutant("virtual memory: a handle's deferred release is forgotten with its mapping", ["vmm_trim", "vmm_random"], [
        ("if (b && b->own_map && b->size == size && b->refs > b->own_refs) {", "if (0) {")]),
    Mutant("virtual memory: nobody is told of memory whose addresses the program keeps", ["vmm_trim", "vmm_kept / Kept.test_the_last_one_goes_in_time"], [
        ("b && b->state != VMM_PLAIN ? &cache->accounts", "b && b->state == VMM_IDLE ? &cache->accounts")]),
    Mutant("virtual memory: a wait lasts until no memory goes back any more", ["vmm_trim"], [
        ("(first = TAILQ_FIRST(&cache->busy)) && first->turn <= last; i++)", "(first = TAILQ_FIRST(&cache->busy)); i++)")]),
    Mutant("virtual memory: no bound", ["vmm_trim"], [
        ("if (wanted + account->kept > peak + peak / 10 + cache->least)", "if (0)")]),
    Mutant("virtual memory: what has just become idle goes first", ["vmm_trim"], [
        ("!vmm_owns_memory(b) && b->since <= before &&", "!vmm_owns_memory(b) &&")]),
    Mutant("virtual memory: memory goes back that the program has", ["vmm_trim"], [
        ("if (!vmm_owns_memory(b) && b->since", "if (b->since")]),
    Mutant("virtual memory: addresses go back while they are mapped", ["vmm_trim"], [
        ("if (!b->own_range && !kept)", "if (b->has_range && !b->own_range)"),
        ("kept = cache->ops->unmap(cache->arg, b->addr, b->size) != 0;", "")]),
    Mutant("virtual memory: a buffer is taken while another thread gives it back", ["vmm_random"], [
        ("(b = vmm_range_at(cache, addr)) && b->busy; i++)", "(b = vmm_range_at(cache, addr)) && 0; i++)"),
        ("(b = vmm_handle_at(cache, handle)) && b->busy; i++)", "(b = vmm_handle_at(cache, handle)) && 0; i++)")], 3),
    Mutant("virtual memory: the address of a range that goes back is still known", ["vmm_random"], [
        ("if (!b->own_range) vmm_range_remove(cache, b); if (b->has_memory && !b->own_refs)", "if (b->has_memory && !b->own_refs)")]),
    Mutant("pinned memory from the driver is not reported", ["host_pool"], [
        ("if (pool->ops->got) pool->ops->got(", "if (0) pool->ops->got(")]),
    Mutant("pinned memory from the driver is reported before what it overlaps", ["host_pool"], [
        ("host_pool_disown(pool, *ret_addr, size); if (pool->ops->got) pool->ops->got(pool->arg, key, *ret_addr, size, ns);",
         "if (pool->ops->got) pool->ops->got(pool->arg, key, *ret_addr, size, ns); host_pool_disown(pool, *ret_addr, size);")]),

    Mutant("pinned memory goes back for a request that it would serve", ["host_bound"], [
        ("|| serves(segment, need)) continue;", "|| (0 && serves(segment, need))) continue;")]),
    Mutant("pinned memory is handed out before its work is over", ["host_pool", "host_random", "pinned static pooled ordered"], [
        ("over = pool->ops->query(pool->arg, token->token) == 1;", "over = pool->ops->query(pool->arg, token->token) >= 0;")]),
    Mutant("virtual memory: a buffer of another alignment is taken for one that was begun", ["vmm_cache"], [
        ("!b->own_range && b->align == align))", "!b->own_range))")]),
    Mutant("virtual memory: of several kept buffers one is settled", ["vmm_cache"], [
        ("size = end - addr < size ? size - (size_t)(end - addr) : 0;", "size = 0;")]),
    Mutant("virtual memory: addresses are freed whatever their number", ["vmm_cache"], [
        ("b->own_range && b->size == size && may_serve;", "b->own_range && may_serve;")]),
    Mutant("virtual memory: an unmap that the driver refuses makes a buffer unknown", ["vmm_cache"], [
        ("/* Several mappings at once, or the driver refuses. */ settle_in(cache, addr, size);", "")]),
    Mutant("pinned memory: work behind a free of this tick counts as over", ["host_bound"], [
        ("(void)idle_find(pool, 0, NULL, NULL, &stamp);", "(void)idle_find(pool, 1, NULL, NULL, &stamp);")]),
    Mutant("virtual memory: addresses that the program has are freed", ["vmm_cache"], [
        ("if (!b->own_range && !kept)", "if (!kept)")]),
    Mutant("virtual memory: access for no location is granted", ["vmm_cache"], [
        ("b->size == size && may_serve && count;", "b->size == size && may_serve;")]),
    Mutant("an idle segment that cannot go back serves no smaller request", ["order"], [
        ("if (!room) return true;", "", "may_serve")]),
]
