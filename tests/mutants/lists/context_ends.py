# SPDX-License-Identifier: Apache-2.0
"""Mutants of shim/context/: what happens beside another thread's call that may end a context."""
from __future__ import annotations

from mutant import Mutant

MUTANTS = [
    Mutant("waits for frees: contexts that end are waited for where the thread has freed nothing", ["shim_frees"], [
        ("if (!(others_limit || has_own(context)) || !pin_waiting_once(context))", "if (!pin_waiting_once(context))")]),
    Mutant("waits for frees: contexts that end are waited for again and again", ["shim_frees"], [
        ("if (atomic_load(&context->waited_for)) return context_pin(context);", "")]),
    Mutant("waits for frees: the second call that may end a context is not waited for", ["shim_frees"], [
        ("if (!atomic_fetch_add(&context->leaving, 1)) atomic_store(&context->waited_for, false);",
         "atomic_fetch_add(&context->leaving, 1);")]),
    Mutant("waits for frees: slots of an earlier context of the entry count", ["shim_frees"], [
        ("== thread && atomic_load(&context->slots[i].event);", "== thread;")]),
    Mutant("waits for frees: frees in slots of their own are not waited for", ["shim_frees"], [
        ("thread && !found && i < SLOTS", "thread && !found && i < 0", "has_own")]),
    Mutant("strict: each device has a second of its own", ["shim_strict"], [
        ("limit = limit ? limit : now_ns() + ORDER_OTHERS_WAIT_NS;", "limit = now_ns() + ORDER_OTHERS_WAIT_NS;")]),
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
]
