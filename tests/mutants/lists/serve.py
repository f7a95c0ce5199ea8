# SPDX-License-Identifier: Apache-2.0
"""Mutants of shim/serve/: the decision for each request and each free."""
from __future__ import annotations

from mutant import Mutant

MUTANTS = [
    Mutant("a refused request waits for each busy device", ["shim_retry"], [
        ("arrivals_share_begin(ARRIVALS_OTHERS_NS);", "arrivals_share_end();")]),
    Mutant("a refused request waits for a device before the others give back", ["shim_retry"], [
        ("arrivals_share_begin(0); any = give_back_anywhere(before, wanted);", "any = false;")]),
    Mutant("a refused request does not wait for busy devices", ["shim_retry"], [
        ("arrivals_share_begin(ARRIVALS_OTHERS_NS); any |= give_back_anywhere(before, wanted);", "")]),
    Mutant("destructors behind the library's are served", ["shim_vmm_kept"], [("process_end();", ";", "finish")]),
    Mutant("a free that fails returns the current context's error", ["world / Errors.test_frees_by_a_thread_in_another_context"], [
        ("(void)context_enter(ret_failed->context, &ret_failed->visit);", "ret_failed->visit = (struct visit){0};")]),
    Mutant("contexts: a free beside an ending context makes calls in it", ["shim_ending"], [
        ("rc = release == release_free ? pool_free_later(addr) : release(addr, freed);", "rc = release(addr, freed);")]),
    Mutant("ipc: a block that another process holds changes what ranks register", ["ipc_beside / Exporter.test_where_ranks_have_to_agree"], [
        ("process_hooks_driver() && !nccl_ranks_agree();", "process_hooks_driver();", "tickets_are_made")]),
    Mutant("the handle of a range that NCCL asks for makes the device strict", ["callers"], [
        ("if (!process_is_passive() && caller_of(caller) != CALLER_INSIDE)", "if (!process_is_passive())", "serve_rdma_prepared")]),
    Mutant("ipc: what a reset has ended stays held", ["ipc / Held.test_the_importer_resets_its_device"], [
        ("if (ipc_import_any()) ipc_import_settle();", "")]),
    Mutant("a thread that makes a ticket may be cancelled", ["cancelled / Cancelled.test_with_the_defaults"], [
        ("pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel); rc = block_ticket",
         "pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &cancel); rc = block_ticket")]),
    Mutant("a block of the pool that the runtime gets for a refused request is taken for the driver's",
           ["shim_retry_often", "capture_beside shared preloaded / all_but_a_half"], [
        ("const bool is_late = request == REQUEST_LATE;", "const bool is_late = false;")]),
    Mutant("a request is the pool's to serve after its bypassed call has failed", ["shim_retry_often"], [
        ("request = REQUEST_NONE; return !process_is_passive()", "return !process_is_passive()")]),
    # --- pinned memory ---
    Mutant("pinned memory is freed although the current context has ended", ["pinned shared pooled auto"], [
        ("if (over) return SERVE_OVER; if (rc) return SERVE_INVALID;", "if (rc) return SERVE_INVALID;")]),
    Mutant("pinned memory is pooled where nothing is", ["pinned / Debug"], [
        ("process_start(); if (guard_on() && guard_own()) return SERVE_FORWARD; if (!host_memory_pool()",
         "process_start(); if (!host_memory_pool()")]),
    Mutant("pinned memory is not pooled with guard bytes", ["pinned / Debug"], [
        ("process_start(); if (guard_on() && guard_own()) return SERVE_FORWARD; if (!host_memory_pool()",
         "process_start(); if (guard_on()) return SERVE_FORWARD; if (!host_memory_pool()")]),
    Mutant("pinned memory: a child's free is the pool's", ["pinned / Fork.test_a_child_of_threads"], [
        ("if (!pool || process_is_passive()) return SERVE_FORWARD;", "if (!pool) return SERVE_FORWARD;")]),
    Mutant("pinned memory: a free whose order fails frees nothing", ["pinned / Events.test_a_wait_that_fails"], [
        ("(host_memory_order(context) && context_failed(context))", "host_memory_order(context)")]),
    Mutant("pinned memory: the ranks of a host do not share the limit", ["pinned / Machine.test_limit_of_a_cgroup"], [
        ("memory / 8 / machine_ranks()", "memory / 8")]),
    Mutant("pinned memory: the setting of the limit has no effect", ["pinned / Machine.test_limit_of_the_setting"], [
        ("const uint64_t set = conf_get()->host_limit.number,", "const uint64_t set = 0,")]),
    Mutant("pinned memory never becomes old", ["shim_host_memory", "pinned / Decay"], [
        ("(void)host_pool_decay(host_memory_pool(), LOOKS - 1);", "")]),
    Mutant("pinned memory goes back long before its time", ["shim_host_memory"], [
        ("(void)host_pool_decay(host_memory_pool(), LOOKS - 1);", "(void)host_pool_decay(host_memory_pool(), 1);")]),

    # --- the order of frees ---
    Mutant("a free in a host function that needs no call of the driver is made", ["free_errors static relaxed"], [
        ("if (!thread_may_free(addr, &verdict) && (verdict != SERVE_OVER || release == release_free)) return verdict;",
         "verdict = SERVE_DONE; (void)verdict;")]),
    Mutant("a free in a context that has ended is made", ["contexts static preloaded / free_after_end"], [
        ("*ret_over = current_is_over(driver, current, &asked);", "*ret_over = false; asked = true; (void)current_is_over;")]),
    Mutant("a context that has ended is not asked about after a free beside a capture", ["shim_refused"], [
        ("answered = asked && !*ret_over;", "answered = !*ret_over;")]),
    Mutant("a context that its thread has ended is not begun anew", ["contexts shared preloaded / free_after_end"], [
        ("if (verdict == SERVE_OVER) return free_anew(ptr, CALLER);",
         "if (verdict == SERVE_OVER) return cudaErrorContextIsDestroyed; (void)free_anew;")]),
    Mutant("guard bytes: cudaFreeAsync waits", ["hang / Hang.test_guard_bytes_wait_only_where_a_free_does"], [
        ("/* may_wait: */ release == release_free", "/* may_wait: */ true")]),

    # --- errors ---
    Mutant("a second free of a segment that is on its way back reaches the driver",
           ["free_errors shared preloaded / twice_exported"], [("return free_elsewhere(addr);", "return SERVE_FORWARD;")]),
    Mutant("memory at the address of a segment that has gone back is not freed",
           ["free_errors shared preloaded / twice_exported"], [
               ("return id && id_of(driver, addr) == id;", "return id;")]),
    Mutant("a thread without a context gets one beside a capture", ["capture_beside shared preloaded / beside_global_free"], [
        ("return !serve_had_context && !capture_active();", "return !serve_had_context;")]),
    Mutant("cudaMalloc of 0 bytes is pooled", ["faults / Faults.test_without_faults"], [
        ("if (!size || process_is_passive())", "if (process_is_passive())")]),
    Mutant("what was freed before a capture is not asked for", ["oom static relaxed"], [
        ("device_publish(CONTEXT_ALL);", ";")]),

    # --- whose call it is ---
    Mutant("NCCL's own memory is pooled", ["callers"], [
        ("nccl_works(); return SERVE_BYPASS; }", "nccl_works(); }")]),
    Mutant("an IPC handle of a shared segment is made", ["ipc / Bytes.test_both_ways"], [
        ("== 0 && base == segment));", "== 0));")]),

    Mutant("a free of what another process holds does not wait beside the end of some context", ["shim_memory"], [
        ("struct pool *pool = may == FREE_NOW ? pool_of(addr) : NULL;", "struct pool *pool = atomic_load(&contexts_closing) ? NULL : pool_of(addr);")]),
    Mutant("ipc: the free of a held block does not wait", ["ipc / Held.test_the_free_waits"], [
        ("if (is == IPC_FREE_PARKED && waits && !", "if (false && waits && !")]),
    Mutant("ipc: the free of a held block passes over an error", ["ipc_beside / Exporter.test_an_error_of_the_device"], [
        ("*ret_verdict = SERVE_FAILED;", ";")]),
    Mutant("ipc: a block that nobody holds any more stays", ["ipc / Held.test_until_it_is_closed", "ipc / Held.test_until_the_importer_is_gone"], [
        ("free_with(parked_release, addr, 0);", "(void)parked_release;")]),
    Mutant("ipc: a freed block that is held is there for the program", ["ipc / Held.test_until_it_is_closed"], [
        ("|| (ipc_table_any() && ipc_table_parked(*ret_base)))", ")"), ("pool_is_live(addr) && !(ipc_table_any() && ipc_table_parked(addr))", "pool_is_live(addr)")]),
    Mutant("ipc: a process opens its own block", ["ipc / Bytes.test_whoever_opens_its_own"], [
        ("else if (ipc_server_is(&ticket.station))", "else if (false)")]),
    Mutant("switch: a process imports its own block", ["switch / Wrong.test_tickets"], [
        ("if (!ipc_ticket_read(bytes, &ticket) || ipc_server_is(&ticket.station))", "if (!ipc_ticket_read(bytes, &ticket))")]),
    Mutant("switch: a block with others in its segment is exported", ["switch / Wrong.test_blocks_that_share_a_segment"], [
        ("block == segment && size >= POOL_SEGMENT_UNIT && length - size < POOL_SEGMENT_UNIT;", "size >= POOL_SEGMENT_UNIT;")]),
    Mutant("switch: an export of paused memory asks the driver", ["switch / Beside.test_an_export_while_the_device_is_paused"], [
        ("if (pool_is_suspended(pool)) /* the driver knows of no memory there */ return -EBUSY;", "")]),
    Mutant("switch: a small block is exported", ["switch / Wrong.test_blocks_that_are_not_exported"], [
        ("block == segment && size >= POOL_SEGMENT_UNIT &&", "block == segment &&")]),
    Mutant("switch: later blocks share segments, too", ["switch / Wrong.test_blocks_that_share_a_segment"], [
        ("pool_pack_never(pool); /* so that later blocks have their own */ if", "if")]),

    # --- reports ---
    Mutant("statistics: a forked child keeps the handler", ["stats / Signal"], [
        ("stats_forget();", "")]),

    # --- NCCL ---
    Mutant("NCCL: the driver gives what NCCL refuses", ["nccl / Wrong.test_memory_is_refused_later"], [
        ("if (rc == -ENOMEM && context_backed_by_nccl(context))", "if (false)")]),

    # --- cupool.h ---
    Mutant("allocation events: what a free waits in is not seen", ["hang / Hang.test_what_a_free_waits_in_is_seen"], [
        ("trace_block(TRACE_BLOCK_FREE_REQUESTED, &event); } rc = release_checked(release, addr, freed);",
         "} rc = release_checked(release, addr, freed); if (size) trace_block(TRACE_BLOCK_FREE_REQUESTED, &event);")]),

    # --- that no test had noticed once ---
    Mutant("a direct allocation is not disowned", ["passthrough static preloaded"], [
        ("pool_disown(addr, size); if (!caller_is_outside(", "if (!caller_is_outside(")]),

    Mutant("a thread without a context gets one during a capture", ["shim_refused"], [
        ("return !serve_had_context && !capture_active();", "return !serve_had_context;")]),
    Mutant("other processes are not asked for what the limit has refused", ["shim_refused"], [
        ("request = rc == -ENOMEM ? REQUEST_ASKED : REQUEST_EARLY;", "request = REQUEST_ASKED;")]),
    Mutant("a request for more than the device has empties its pools", ["shim_retry"], [
        ("process_has_begun() && !is_hopeless_here(wanted, often) && context_trim(before)", "process_has_begun() && context_trim(before)")]),
    Mutant("a request for another device's memory empties the pools of those that it does not fit", ["shim_retry"], [
        ("if (!wanted) return serve_give_back_on(CONTEXT_ALL,", "return serve_give_back_on(CONTEXT_ALL,")]),
    Mutant("memory for a device that it does not fit empties its pools", ["shim_retry"], [
        ("return driver_answers() && !is_hopeless(device, wanted, often) && context_trim_on(", "return driver_answers() && context_trim_on(")]),
    Mutant("a parked block whose context goes is released again and again", ["shim_memory"], [
        ("ipc_table_take(addr); /* if its context is gone */", "")]),
    Mutant("pinned memory: the end of one context makes another one's events anew", ["shim_host_memory"], [
        ("while (atomic_load(&contexts.entries[i]) != context) i++; return i;", "return i;")]),
    Mutant("pinned memory that cannot be put in order goes to the driver", ["shim_host_memory"], [
        ("rc == -EINVAL ? SERVE_INVALID : rc == -ENOENT ? SERVE_FORWARD : SERVE_FAILED", "rc == -EINVAL ? SERVE_INVALID : SERVE_FORWARD")]),
    Mutant("ipc: the library does not start with an open", ["ipc_beside / Importer.test_an_open_comes_first"], [
        ("if (process_state_get() == PROCESS_NEW) process_start();", "", "serve_ipc_open")]),
    Mutant("NCCL: nothing is said of memory that NCCL has not made", ["nccl / Registered.test_past_the_limit"], [
        ("BACKEND_NCCL && !process_is_passive()", "BACKEND_NCCL && process_is_passive()")]),
    Mutant("a free on a stream asks the driver in a call of the library's own", ["shim_refused"], [
        ("process_is_passive() ? NULL : context_pool_at(addr);", "context_pool_at(addr);", "serve_free_later")]),
    Mutant("a thread whose context has ended is not given another one by a free", ["contexts shared preloaded / thread_after_a_context"], [
        ("answered = false; serve_had_context = false;", "answered = false;", "serve_context_ended")]),
    Mutant("an exported block that was freed has an IPC handle still", ["ipc shared preloaded / wrong"], [
        ("if (serve_is_freed(addr, caller)) return SERVE_IPC_REFUSED;", "")]),
    Mutant("a segment on its way back is memory that the program knows", ["ipc shared preloaded / wrong"], [
        ("serve_watches(caller) && returning_is(real_driver_get(), addr);", "false;")]),
]
