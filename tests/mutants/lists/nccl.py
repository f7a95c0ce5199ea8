# SPDX-License-Identifier: Apache-2.0
"""Mutants of shim/nccl/: communicators and their registrations."""
from __future__ import annotations

from mutant import Mutant

MUTANTS = [
    Mutant("a communicator's memory may go while its ranks agree about a window", ["shim_nccl_memory"], [
        ("used = nccl_use_begin(comm, NULL); nccl_visit_begin(&visit); rc = agree(", "used = NULL; nccl_visit_begin(&visit); rc = agree(")]),
    # --- NCCL ---
    Mutant("NCCL: cuMemFree gives up mapped memory", ["nccl_used"], [
        ("if (entry && !entry->context) /* mapped memory: the driver does not free it by cuMemFree */ entry = NULL;", "")]),
    Mutant("NCCL: a communicator that was not revoked stays closed", ["nccl_rows / Rows.test_ends"], [
        ("nccl_reg_comm_reopen(nccl_registry(), comm);", ";")]),
    Mutant("NCCL: a communicator whose state it does not say is at work for ever", ["shim_nccl_memory"], [
        ("return !result && !now ? 0 : !result && now == ncclInProgress ?", "return !result && !now ? 0 : now == ncclInProgress ?")]),
    Mutant("NCCL: a communicator that a group is to end has gone before", ["nccl_rows / Rows.test_ends"], [
        ("struct ending *one = nccl_reg_group_depth() ? malloc(sizeof(*one)) : NULL;", "struct ending *one = NULL;")]),
    Mutant("NCCL: a call that is no operation does not use its communicator", ["nccl_rows / Rows.test_used"], [
        ("nccl_reg_before_call(nccl_registry(), comm, &used);", ";")]),
    Mutant("NCCL: a communicator that was finalized is forgotten", ["nccl_rows / Rows.test_ends"], [
        ("how == NCCL_END_FINALIZE ? nccl_reg_comm_finalize(nccl_registry(), comm) :", "")]),
    Mutant("NCCL: the end of a communicator waits for the device", ["nccl / Registered.test_end_beside_other_work", "nccl / Registered.test_an_end_beside_a_capture"], [
        ("return context_wait_device_for(info->device, ms) ? 0 : -EBUSY;", "return context_wait_device(info->device) ? 0 : -EBUSY;")]),
    Mutant("NCCL: memory that waits to go is freed again", ["nccl_rows / Rows.test_groups_and_memory"], [
        ("rc == -EALREADY ? ncclUnhandledCudaError : rc ? next(ptr) : freed", "rc ? next(ptr) : freed")]),
    Mutant("windows: an answer that never came is taken for one", ["window"], [
        ("if (result || memcmp(&all[rank], mine, sizeof(*mine)) != 0) rc = -EIO;", "(void)rank; if (result) rc = -EIO;"),
        ("rc = all[i].problem > PROBLEM_MAX ? -EIO : -(int)all[i].problem;", "rc = all[i].problem > PROBLEM_MAX ? 0 : -(int)all[i].problem;"),
        ("if (!rc && !nccl_comm_is_open(comm)) rc = -EIO;", "")]),
    Mutant("windows: a registration is taken for one", ["window"], [
        ("return (char *)window + 1;", "return window;")]),
    Mutant("windows: ranks do not compare where their buffers lie", ["window"], [
        ("rc = all[i].start == all[0].start &&", "rc =")]),
    Mutant("windows: ranks do not compare how large their segments are", ["window"], [
        ("&& all[i].size == all[0].size ? 0 : -EXDEV;", "? 0 : -EXDEV;")]),
    Mutant("windows: a buffer may reach beyond its segment", ["window"], [
        ("size > whole - (addr - start))", "size > whole)")]),
    Mutant("windows: what a window holds goes before it", ["window"], [
        ("nccl_user_registered(comm, name_of(window), whole.addr, whole.size);", ";")]),
    Mutant("windows: one that NCCL refuses to undo is forgotten", ["shim_nccl_calls", "window"], [
        ("if (!rc) /* if NCCL refuses, the window may still be there */ nccl_user_deregistered(", "nccl_user_deregistered(")]),
    Mutant("windows: one that has gone is undone again", ["window"], [
        ("rc = nccl_user_known(comm, name_of(window)) ? 0 : -EINVAL;", "rc = 0;")]),
    Mutant("windows: a rank that has nothing to offer keeps that to itself", ["window"], [
        (": -(int)all[i].problem;", ": -(int)mine->problem;")]),

    # --- memory past the pool that is registered once it is used ---
    Mutant("used memory: it is freed while it is registered", ["nccl_used / Used.test_reused"], [
        ("if (nccl_segment_remove(entry->addr, release, entry->context)) release(", "release(")]),
    Mutant("used memory: it is freed under work that uses it", ["nccl_used / Used.test_under_work"], [
        ("if (!(wait ? context_wait_device(entry->device) :", "if (!(wait ? true :")]),
    Mutant("used memory: what a group has kept is freed under later work", ["shim_nccl_direct"], [
        ("frees = false; return true;", "return true;")]),
    Mutant("used memory: a free that need not wait waits", ["shim_nccl_direct"], [
        ("frees = wait;", "frees = true;")]),
    Mutant("used memory: a thread that frees takes over memory that another is freeing", ["nccl_used / Used.test_under_work"], [
        ("if (copy.state == STATE_USED) direct_set(&direct.memory, entry, STATE_GOING);", "if (copy.state == STATE_USED) direct_set(&direct.memory, entry, STATE_DEFERRED);"),
        ("freed_retry(device);", "freed_retry(-1);")], 40),
    Mutant("used memory: a refused request does not wait for what another thread lets go", ["nccl_used / Used.test_slowly_going"], [
        ("atomic_load(&retrying) && !retries &&", "false &&")]),
    Mutant("used memory: it is unmapped while it is registered", ["nccl_used / Used.test_mapped"], [
        ("if (nccl_segment_remove(entry->addr, unmapped_gone, NULL)) unmapped_gone(", "unmapped_gone(")]),
    Mutant("used memory: after an unmapping that the driver refuses it is not registered any more",
           ["shim_nccl_direct", "nccl_used / Used.test_unmapping_refused"], [
        ("if (!done && !direct_overlapping(", "if (false && !direct_overlapping(")]),
    Mutant("used memory: what is unmapped comes back", ["shim_nccl_direct"], [
        ("if (!done && !direct_overlapping(", "(void)done; if (!direct_overlapping(")]),
    Mutant("used memory: an unmapping waits for what never ends", ["shim_nccl_direct"], [
        ("if (!wait_to_unmap(entry->device, *ms))", "if (!context_wait_device(entry->device))")]),
    Mutant("used memory: an unmapping waits in vain for each part", ["shim_nccl_direct"], [
        ("if (!wait_to_unmap(entry->device, *ms)) *ms = 0;", "wait_to_unmap(entry->device, *ms);")]),
    Mutant("used memory: each unmapping waits for a capture", ["shim_nccl_direct"], [
        ("capture_active_now() && atomic_load(&waited) == total;", "false;")]),
    Mutant("used memory: an unmapping waits for the first capture alone", ["shim_nccl_direct"], [
        ("capture_active_now() && atomic_load(&waited) == total;", "capture_active_now() && atomic_load(&waited);")]),
    Mutant("used memory: no unmapping waits after one that waited in vain", ["shim_nccl_direct"], [
        ("capture_active_now() && atomic_load(&waited) == total;", "atomic_load(&waited) == total;")]),
    Mutant("memory of the pool is not registered where some was unmapped in a group", ["shim_nccl_direct"], [
        ("nccl_retry_parked(device); rc = nccl_reg_segment_add(", "rc = nccl_reg_segment_add(")]),
    Mutant("used memory: other memory is freed that has come to its address", ["shim_nccl_direct"], [
        ("found = entry && entry->state == state;", "(void)state; found = entry;")]),
    Mutant("used memory: another thread's call decides whether it is deregistered", ["nccl_used / Used.test_unmapped_beside_others"], [
        ("is_unmapped(entry->addr) && i < UNMAP_TRIES &&", "false &&")], 20),
    Mutant("an allocation is registered for a buffer that goes beyond it", ["nccl_used / Used.test_less_than_the_buffer"], [
        ("size <= entry->size - (addr - entry->addr)", "size <= entry->size")]),
    Mutant("memory that a free in a group has left is freed although other memory is there",
           ["nccl_used / Used.test_freed_later_and_before_that_unseen"], [
        ("if (entry->state == STATE_GOING) { nccl_segment_lost(", "if (0) { nccl_segment_lost(")]),
    Mutant("used memory: what others have given is taken for the program's own", ["nccl_used / Used.test_never"], [
        ("if (is_on()) entry_forget(&direct.physical, handle, STATE_UNUSED);", "")]),
    Mutant("used memory: it is freed twice", ["nccl_used / Used.test_freed_when_it_cannot_go"], [
        ("if (copy.state != STATE_USED) return true;", "if (copy.state != STATE_USED) return false;")]),

    # --- that no test had noticed once ---
    Mutant("used memory: a part of what is mapped is taken for all", ["nccl_used / Used.test_parts"], [
        ("whole = physical && physical->size == size;", "whole = physical;")]),
    Mutant("used memory: the driver is not asked for the size", ["nccl_used / Used.test_parts"], [
        ("(entry->context ? size >= entry->size : size == entry->size) &&", "")]),
    Mutant("used memory: another device's is registered", ["nccl_used / Used.test_parts"], [("where == device &&", "")]),
    Mutant("used memory: what lies in a new allocation is still there", ["nccl_used / Used.test_freed_unseen"], [
        ("return i < table->count && table->entries[i].addr - addr < size ? &table->entries[i] : NULL;", "return NULL;")]),
    Mutant("used memory: peers map cudaMalloc's", ["nccl_used / Used.test_as_the_pool_does"], [
        (".plain = owner != NULL, .own = true", ".plain = false, .own = true")]),
    Mutant("an abort that NCCL refuses leaves the communicator open", ["shim_refused"], [
        ("how != NCCL_END_SILENT && result == ncclInvalidArgument", "result == ncclInvalidArgument")]),
    Mutant("the time of a registration is a moment", ["nccl / Registered.test_threads"], [
        ('trace_call("register", info, comm, addr, size, now_ns() - start, result);', 'trace_call("register", info, comm, addr, size, now_ns(), result);')]),
    Mutant("memory of a context that ends stays registered", ["nccl / Registered.test_memory_of_a_context_that_ends"], [
        ("if (context && context->pool && !context->primary) context_events.context_ends(context);", "")]),
    Mutant("a deregistration that fails is not told", ["nccl / Wrong.test_deregistration_fails"], [
        ('if (result) log_once(LOG_WARN, "NCCL did not deregister', 'if (false) log_once(LOG_WARN, "NCCL did not deregister')]),
    Mutant("NCCL: a communicator made in a group is asked at the end of an inner one", ["nccl_rows / Rows.test_made"], [
        ("made_in_group = made_in_group && nccl_reg_group_depth();", "made_in_group = false;")]),
    Mutant("NCCL: a communicator that a group ends is gone at the end of an inner one", ["nccl_rows / Rows.test_ends"], [
        ("while (ending && !nccl_reg_group_depth())", "while (ending)")]),
    Mutant("used memory: it is waited for while this thread's group is open", ["shim_nccl_direct"], [
        ("i < UNMAP_TRIES && !nccl_reg_group_depth(); i++", "i < UNMAP_TRIES; i++")]),
    Mutant("use: memory whose unmapping was refused hides what was mapped there since", ["shim_nccl_direct"], [
        ("if (!done && !direct_overlapping(&direct.memory, copy.addr, copy.size))", "if (!done)")]),
    Mutant("windows: one is made of a communicator that was aborted meanwhile", ["shim_nccl_calls"], [
        ("if (!rc && !nccl_comm_is_open(comm)) rc = -EIO;", "")]),
    Mutant("NCCL: a communicator is closed although its destruction was refused", ["shim_nccl_calls"], [
        ("if (how != NCCL_END_SILENT && result == ncclInvalidArgument) {", "if (how == NCCL_END_FINALIZE && result == ncclInvalidArgument) {")]),
    Mutant("NCCL: it looks up what a rank gives that sends nothing, whatever it is",
           ["nccl_rows / Rows.test_what_ranks_give_that_send_nothing", "nccl / Registered.test_what_ranks_give_that_send_nothing"], [
        ("addr - start <= whole && size <= whole - (addr - start) ? from : to;", "addr - start <= whole && size <= whole - (addr - start) ? from : from;")]),
    Mutant("NCCL: it never looks up what a rank gives that sends nothing",
           ["nccl_rows / Rows.test_what_ranks_give_that_send_nothing", "nccl / Registered.test_memory_to_send_that_is_outside_on_all_ranks"], [
        ("addr - start <= whole && size <= whole - (addr - start) ? from : to;", "addr - start <= whole && size <= whole - (addr - start) ? to : to;")]),
    Mutant("NCCL: memory that is too short for a broadcast stays what NCCL looks up", ["nccl_rows / Rows.test_what_ranks_give_that_send_nothing"], [
        ("addr - start <= whole && size <= whole - (addr - start) ?", "addr - start <= whole ?")]),
    Mutant("use: what a broadcast sends is registered at the root alone", ["nccl / Registered.test_what_ranks_give_that_send_nothing"], [
        ("COLLECTIVE, SENT(from, to), MINE, to, MINE)", "COLLECTIVE, SENT(from, to), ROOT(MINE), to, MINE)")]),
    Mutant("NCCL: a question that was refused has an answer", ["nccl_rows / Rows.test_polls"], [
        ("nccl_poll_end(comm, begun, result ? result : *error);", "nccl_poll_end(comm, begun, *error);")]),
]
