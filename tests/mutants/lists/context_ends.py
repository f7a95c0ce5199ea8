# SPDX-License-Identifier: Apache-2.0
"""Mutants of shim/context/: what happens beside another thread's call that may end a context."""
from __future__ import annotations

from mutant import Mutant

MUTANTS = [
    Mutant("waits for frees: contexts that end are waited for where the thread has freed nothing", ["shim_frees"], [
        ("if (!(others_limit || has_own(context)) || !context_pin_staying_once(context))",
         "if (!context_pin_staying_once(context))")]),
    Mutant("waits for frees: contexts that end are waited for again and again", ["shim_frees"], [
        ("if (atomic_load(&context->waited_for)) return atomic_load(&context->leaving);", "")]),
    Mutant("waits for frees: the second call that may end a context is not waited for", ["shim_frees"], [
        ("if (!atomic_fetch_add(&context->leaving, 1)) atomic_store(&context->waited_for, false);",
         "atomic_fetch_add(&context->leaving, 1);")]),
    Mutant("waits for frees: slots of an earlier context of the entry count", ["shim_frees"], [
        ("== thread && atomic_load(&context->slots[i].event);", "== thread;")]),
    Mutant("waits for frees: frees in slots of their own are not waited for", ["shim_frees"], [
        ("thread && !found && i < SLOTS", "thread && !found && i < 0", "has_own")]),
    Mutant("strict: each device has a second of its own", ["shim_strict"], [
        ("limit = limit ? limit : now_ns() + ORDER_OTHERS_WAIT_NS;", "limit = now_ns() + ORDER_OTHERS_WAIT_NS;")]),
    Mutant("strict: work that a thread has waited for in vain is over for all", ["shim_strict"], [
        ("if (late) in_vain |= 1ull << device; else atomic_store(", "(void)in_vain; atomic_store(")]),
    Mutant("strict: a thread waits for that work again and again", ["shim_strict"], [
        ("is_in_vain(device) ? now_ns() : limit", "limit")]),
    Mutant("an object goes: a thread waits again for work that it has waited for in vain", ["shim_strict"], [
        ("!policy_is_quiesced(device) && !is_in_vain(device)", "!policy_is_quiesced(device)")]),
    Mutant("an address of a context that has ended is the pool's", ["shim_lookup"], [
        ("if (atomic_load(&context->ending) || (is_decided_on", "if ((is_decided_on", "context_pool_at")]),
    Mutant("an address that the driver gives away before a context has ended is the pool's", ["shim_lookup"], [
        ("(is_decided_on(context) && is_given_away(pool, context, addr))", "false", "context_pool_at")]),
    Mutant("virtual memory of a pool with segments of both kinds counts as given away", ["shim_lookup"], [
        ("pool_kind_get(pool) == BACKEND_CUDA && !atomic_load(&context->mixed);", "pool_kind_get(pool) == BACKEND_CUDA;")]),
    Mutant("a range of a context that has ended is the pool's", ["shim_lookup"], [
        ("if (!context_pool_at(addr))", "if (!pool_of(addr))", "serve_range")]),
    Mutant("virtual memory at an address of a context that has ended is not unmapped", ["shim_lookup"], [
        ("((context_pool_at(ptr) &&", "((pool_of(ptr) &&")]),
    Mutant("an IPC handle at an address of a context that has ended is refused", ["shim_lookup"], [
        ("process_is_passive() ? NULL : context_pool_at(addr); uint64_t imported;",
         "process_is_passive() ? NULL : pool_of(addr); uint64_t imported;", "serve_ipc_get")]),
    Mutant("free memory: deferred blocks are asked about beside a call that may end their context", ["shim_memory"], [
        ("if (leaving) { idle +=", "if (false) { idle +=", "context_idle_bytes")]),
    Mutant("free memory: deferred blocks do not count beside a call that may end their context", ["shim_memory"], [
        ("return survey.idle + survey.pending +", "return survey.idle +", "natively_free")]),
    Mutant("free memory: deferred blocks are used beside a call that may end their context", ["shim_memory"], [
        ("*ret_used = survey.held - survey.idle - survey.pending;", "*ret_used = survey.held - survey.idle;")]),
    Mutant("free memory: a context that has ended counts", ["shim_memory"], [
        ("if (!atomic_load(&context->ending) && !atomic_load(&context->undecided) &&",
         "if (!atomic_load(&context->undecided) &&", "pin_pool")]),
    Mutant("free memory: a context that nobody knows to be there counts", ["shim_memory"], [
        ("&& !atomic_load(&context->undecided) && atomic_load(&context->handle)", "&& atomic_load(&context->handle)",
         "pin_pool")]),
    Mutant("free memory: a release of a primary context is not waited for", ["shim_memory"], [
        ("if (!*ret_leaving || !context->primary) return true;", "return true;", "pin_counted")]),
    Mutant("free memory: a destruction is waited for", ["shim_memory", "waits static preloaded / beside_an_end"], [
        ("if (!*ret_leaving || !context->primary) return true;", "if (!*ret_leaving) return true;", "pin_counted")]),
    Mutant("free memory: a primary context whose release takes long does not count", ["shim_memory"], [
        ("return !*ret_leaving || pin_pool(context);", "return !*ret_leaving;", "pin_counted")]),
    Mutant("free memory: what is counted can be destroyed meanwhile", ["shim_lookup"], [
        ("context->pool) return true; pins_remove(context);", "context->pool) { pins_remove(context); return true; } pins_remove(context);",
         "pin_pool")]),
    Mutant("a refused request waits for the end of a context that holds no idle memory", ["shim_memory"], [
        ("gives = natively_free(context, &used) != 0;", "gives = true; (void)natively_free; (void)used;")]),
    Mutant("contexts that may be ending are waited for again and again", ["shim_memory"], [
        ("if (gives && context_pin_staying_once(context))", "if (gives && context_pin_staying(context))")]),
    Mutant("a thread that has given back a reference which was not the last one asks the driver anew", ["shim_ending"], [
        ("if (gone) context_events.ending_over();", "(void)gone; context_events.ending_over();")]),
    Mutant("a thread that may have ended its context does not ask the driver anew", ["shim_ending"], [
        ("atomic_store(&context->undecided, true); return true;", "atomic_store(&context->undecided, true); return false;")]),
    Mutant("a host address of a context that has ended is the device's", ["shim_reach"], [
        ("if (!addr || context_pool_at(addr)) return false;", "if (!addr || pool_of(addr)) return false;", "is_host")]),
    Mutant("a copy at an address of a context that has ended reaches that one's device", ["shim_reach"], [
        ("pool = context_pool_at(addr); handle = context_stream", "pool = pool_of(addr); handle = context_stream")]),
    Mutant("a free on a stream at an address of a context that has ended fails in a capture", ["shim_lookup"], [
        ("const bool ours = context_pool_at(addr) &&", "const bool ours = pool_of(addr) &&")]),
    Mutant("a free on a stream at an address of a context that has ended waits for the stream", ["shim_lookup"], [
        ("process_is_passive() ? NULL : context_pool_at(addr); enum serve_verdict verdict;",
         "process_is_passive() ? NULL : pool_of(addr); enum serve_verdict verdict;", "serve_free_later")]),
    Mutant("a free at an address that the driver gives away before a context has ended frees the pool's block", ["shim_lookup"], [
        ("if (!context_endings && !context_pool_at(addr)) {", "if (false) {", "pin_beside_end")]),
    Mutant("a thread asks the driver inside its own call that ends a context", ["shim_ending"], [
        ("if (!context_endings && !context_pool_at(addr)) {", "if (!context_pool_at(addr)) {", "pin_beside_end")]),
    Mutant("NCCL's memory at an address of a context that has ended stays registered", ["shim_nccl_direct"], [
        ("return context_pool_at((uintptr_t)ptr) ? next(ptr)", "return pool_of((uintptr_t)ptr) ? next(ptr)")]),
    Mutant("use: memory goes through the stream of a context that may be ending", ["shim_nccl_direct"], [
        ("if (!context_pin(context)) {", "if (false) {", "release_later")]),
    Mutant("use: memory that could not go beside a call that may end its context is lost", ["shim_nccl_direct"], [
        ("{ entry_becomes(addr, STATE_GOING, STATE_DEFERRED); return; }", "return;", "release_later")]),
    Mutant("use: memory that the driver refused to free is not registered any more", ["shim_nccl_direct"], [
        ("else if (copy.state == STATE_UNUSED) entry_leaves(entry);", "else if (copy.state == STATE_UNUSED) direct_delete(&direct.memory, entry);")]),
    Mutant("use: what a stream was refused to free is not registered any more", ["shim_nccl_direct"], [
        ("result = ((__typeof__(&cuMemFreeAsync))real_find(symbol))(ptr, stream); direct_freed(ptr, result == CUDA_SUCCESS);",
         "result = ((__typeof__(&cuMemFreeAsync))real_find(symbol))(ptr, stream);")]),
    Mutant("use: memory that its context took along comes back", ["shim_nccl_direct"], [
        ("direct_delete_of(&direct.leaving, context);", "")]),
    Mutant("a free that has failed keeps the context from its end while it asks for the error", ["shim_pins"], [
        ("pin_end(own); } void serve_failed_end", "} void serve_failed_end")]),
    Mutant("the next context in the entry has the ranges and buffers of a pause of the one before", ["shim_pause"], [
        ("nccl_given_ended(context); pause_copies_ended(context);", "nccl_given_ended(context);")]),
    Mutant("a new primary context is taken for the one whose handle it has", ["shim_ending"], [
        ("gone = !active || (id && id != context->id);", "gone = !active; (void)id;")]),
    Mutant("the byte that a context kept is the next one's", ["shim_context"], [
        ("atomic_store(&context->kept_byte, 0); atomic_store(&context->defers", "atomic_store(&context->defers")]),
    Mutant("a new context waits for what the one before had given back", ["shim_context"], [
        ("atomic_store(&context->arrived, atomic_load(&context->given));", "")]),
    Mutant("a call's error is the current context's, whosever memory it named", ["shim_order"], [
        ("order_failed(context, driver->cuMemGetInfo_v2(&free, &total));", "(void)free; (void)total; order_failed(context, result);")]),
]
