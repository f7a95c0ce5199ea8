# SPDX-License-Identifier: Apache-2.0
"""Mutants of shim/context/: pinned memory."""
from __future__ import annotations

from mutant import Mutant

MUTANTS = [
    Mutant("pinned memory: a free puts nothing in order", ["pinned shared pooled auto", "pinned shared pooled ordered", "shim_host_memory"], [
        ("rc = order_pool(context, POOL_ORDER_FREE);", "rc = 0;")]),
    Mutant("pinned memory: a free in a capture waits for nothing", ["pinned shared pooled ordered / later_after_a_capture"], [
        ("rc = order_pool(context, POOL_ORDER_FREE);", "rc = capture_active_now() ? 0 : order_pool(context, POOL_ORDER_FREE);")]),
    Mutant("pinned memory: relaxed frees are put in order", ["shim_host_memory"], [
        ("if (conf_get()->free.number == FREE_RELAXED && !policy_is_strict(&context->policy)) return 0;", "")]),
    Mutant("pinned memory: a free beside a call that may end its context waits for nothing", ["shim_pinned_free"], [
        ("if (!context_pin_staying_once(context)) return 0; rc =", "if (!context_pin(context)) return 0; rc =")]),
    Mutant("pinned memory: a free in a context that has failed gets the current one's answer", ["shim_pinned_free"], [
        ("ret_failed->context = context; (void)context_enter(context, &ret_failed->visit);", "context_unpin(context);")]),
    Mutant("pinned memory: each free waits for a call that may end its context", ["shim_pinned_free"], [
        ("if (!context_pin_staying_once(context)) return 0; rc =",
         "while (!context_pin(context)) if (context_is_leaving(context)) return 0; rc =")]),
    Mutant("pinned memory: a free that has failed keeps the context from its end while it asks for the error", ["shim_pinned_free"], [
        ("context_unpin(context); } void serve_host_failed_end", "} void serve_host_failed_end")]),
    Mutant("pinned memory: the work of a context that has ended is not over", ["shim_host_memory"], [
        ("return atomic_load(&host.lives[entry]) != token->events[entry].life;", "return 0;")]),
    Mutant("pinned memory: an event is asked about beside a capture", ["shim_host_memory"], [
        ("captures = capture_active();", "captures = false;", "query_one")]),
    Mutant("pinned memory: the pool's frees in the driver do not count", ["shim_host_memory"], [
        ("const bool closed = free_gate_close(context); const CUresult result = host_populated(addr)",
         "const bool closed = false; const CUresult result = host_populated(addr)")]),
    Mutant("pinned memory: the pool's frees in the driver open the gate that the thread has closed before", ["shim_host_memory"], [
        ("if (closed) free_gate_open(context); return result; } /* The driver's calls", "free_gate_open(context); (void)closed; return result; } /* The driver's calls")]),
    Mutant("pinned memory: a token's event is recorded beside a free in the driver", ["shim_host_memory"], [
        ("if (!capture_active() && free_gate_enter(context)) { result = event_record(", "if (!capture_active() && (free_gate_enter(context), 1)) { result = event_record(")]),
    Mutant("pinned memory: idle memory asks beside a free in the driver", ["shim_host_memory"], [
        ("if (!free_gate_enter(context)) return false; token = token_take();", "(void)free_gate_enter(context); token = token_take();")]),
    Mutant("pinned memory: the gate of a free in the driver is not left after a record", ["shim_host_memory"], [
        ("result = event_record(context, entry, token); free_gate_leave(context);", "result = event_record(context, entry, token);")]),
    Mutant("pinned memory: the gate of a free in the driver is not left by idle memory", ["shim_host_memory"], [
        ("token_give(token); free_gate_leave(context); return result", "token_give(token); return result")]),
    Mutant("pinned memory: a request waits for other contexts' work", ["shim_host_memory"], [
        ("while ((rc = query_entry(token, entry)) == 0 &&", "(void)entry; while ((rc = query(arg, value)) == 0 &&")]),
    Mutant("pinned memory: populated memory does not go beside work", ["shim_host_populate"], [
        ("if (!capture_active_now() && (may_wait || is_idle(", "if (!capture_active_now() && ((may_wait && !host_populated(addr)) || is_idle(")]),
    Mutant("pinned memory: work of a context without a pool is waited for", ["sweep_pinned"], [
        ("atomic_store_explicit(&token->events[i].over, true, memory_order_relaxed); if (!atomic_load(&context->handle)",
         "if (!atomic_load(&context->handle)")]),
    Mutant("pinned memory: the driver's memory is taken for the pool's", ["sweep_pinned"], [
        ("host_pool_disown(pool, addr, size);", "(void)size;")]),
    Mutant("pinned memory: a forbidden question changes errno", ["shim_host_populate"], [
        ("errno = saved;", "(void)saved;", "numa_key")]),
    Mutant("pinned memory: the pool asks the driver while a stream captures", ["shim_host_memory"], [
        ("if (capture_active_now()) return -EAGAIN; if (!host_populate(", "if (!host_populate(")]),
    Mutant("pinned memory: a token leaves out a context that may end", ["shim_host_memory"], [
        ("if (!context_pin(context)) return -EBUSY; /* a call of", "if (!context_pin(context)) continue; /* a call of")]),
    Mutant("pinned memory that goes back has no event", ["pinned / Events"], [
        ("if (result != CUDA_ERROR_NOT_READY) host_observe_freed(", "if (0) host_observe_freed(")]),
    Mutant("pinned memory that is given back has the time of its call's end", ["shim_host_memory"], [
        ("trace_segment_at(since, &segment,", "trace_segment_at(now_ns(), &segment,")]),
    Mutant("pinned memory of any node and policy is shared", ["pinned / Machine"], [
        ("numa = numa_key()", "numa = 0")]),
    Mutant("pinned memory: policies differ by their nodes alone", ["pinned / Machine.test_policies_are_kept_apart"], [
        ("number = 0xcbf29ce484222325u ^ (uint64_t)mode;", "number = 0xcbf29ce484222325u;")]),
    Mutant("pinned memory: with a policy, the node of the thread counts", ["pinned / Machine.test_nodes_are_kept_apart"], [
        ("|| mode == MPOL_DEFAULT) return own_node", "|| mode <= MPOL_BIND) return own_node")]),
    Mutant("pinned memory goes back beside work of its context", ["shim_host_memory"], [
        ("if (!capture_active_now() && (may_wait || is_idle(context, entry_of(context)))) {", "if (!capture_active_now()) {")]),
    Mutant("pinned memory of NCCL's own is pooled", ["callers / Callers.test_pinned_memory"], [
        ("!conf_get()->host_pool.number || caller_is_outside(caller_of(serve_caller(caller))))", "!conf_get()->host_pool.number)")]),
    Mutant("a request waits for its own context's work with a limit", ["shim_host_memory"], [
        ("token->count > 1 ? now_ns() + ORDER_OTHERS_WAIT_NS", "token->count > 0 ? now_ns() + ORDER_OTHERS_WAIT_NS")]),
    Mutant("pinned memory of a context that has ended has no event", ["pinned / Events.test_a_context_takes_its_memory_along"], [
        (".lost = host_observe_lost};", ".lost = NULL};")]),
    Mutant("pinned memory: populated memory stays when its context ends", ["populate / Populate.test_a_context_takes_it_along"], [
        ("host_populated_owner_gone((uintptr_t)context);", "")]),
    Mutant("pinned memory: all populated memory goes when a context ends", ["shim_host_populate"], [
        ("if (range.owner == owner) munmap(", "if (range.owner) munmap(")]),
]
