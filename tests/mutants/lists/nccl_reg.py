# SPDX-License-Identifier: Apache-2.0
"""Mutants of nccl_reg/: which memory is registered with which communicator."""
from __future__ import annotations

from mutant import Mutant

MUTANTS = [
    # --- NCCL ---
    Mutant("NCCL: a registration serves both kinds", ["nccl_reg", "nccl / Kinds.test_with_care"], [
        ("if (record && record->handle && comm->info.careful) safe &=", "if (false) safe &=")]),
    Mutant("NCCL: a registration is made anew under work that uses it", ["nccl_reg"], [
        ("|| !device_is_done(reg, comm)) return false;", ") return false;")]),
    Mutant("NCCL: operations beside work that does not end wait as long each time", ["nccl_reg"], [
        ("reg_now_ns() < comm->rests ? 0 : OP_WAIT_MS;", "OP_WAIT_MS;")]),
    Mutant("NCCL: after one wait in vain operations do not wait as before", ["nccl_reg"], [
        ("if (done) comm->rests = 0;", "if (done) ;")]),
    Mutant("NCCL: a communicator goes under a question", ["nccl_reg"], [
        ("if (!call_begin(comm)) return -EPIPE; rc = reg->ops->ask(&comm->info, key); call_end(comm);", "rc = reg->ops->ask(&comm->info, key);")]),
    Mutant("NCCL: a collective that came first is taken to have been one that maps", ["nccl_reg", "nccl / Kinds.test_collectives_that_use_no_registration"], [
        ("reg_sent_mark(comm, record); return safe; }", "if (!record->used) reg_sent_mark(comm, record); return safe; }")]),
    Mutant("NCCL: what a group has asked for is forgotten with the old registration", ["nccl_reg"], [
        ("if (record->group != reg_group()) record->group = 0;", "record->group = 0;")]),
    Mutant("NCCL: what came before a group is taken for a part of it", ["nccl_reg"], [
        ("if (!record->sent && (!record->group || record->group == reg_group()))",
         "if ((!record->sent && !record->group) || record->group == reg_group())")]),
    Mutant("NCCL: of several registrations the first alone is undone", ["nccl_reg"], [
        ("for (unsigned int i = record->wide ? record->widened : 0;", "for (unsigned int i = record->wide ? 1 : 0;")]),
    Mutant("NCCL: what has been sent is not known where nothing is left to be done", ["nccl_reg"], [
        ("prepared = (unsigned int)!reg_kinds_matter(comm, record) << NCCL_REG_POINT_TO_POINT |",
         "prepared = 1u << NCCL_REG_POINT_TO_POINT |")]),
    Mutant("NCCL: a group's operations find nothing registered", ["nccl_reg"], [
        ("if (reg_group_uses(comm) || !reg_is_ready", "if (!reg_is_ready")]),
    Mutant("NCCL: a communicator that was finalized goes twice", ["nccl_rows / Rows.test_ends"], [
        ("return finalized ? -EALREADY : 0;", "(void)finalized; return 0;")]),
    Mutant("NCCL: a context goes with registrations of communicators that stay", ["nccl_reg", "nccl / Registered.test_memory_of_a_context_that_ends"], [
        ("if (done) segment_detach(reg, &segment);", "(void)done;")]),
    Mutant("NCCL: memory of a context that is about to go is registered again", ["nccl_reg"], [
        ("if (segment->leaving || segment->ending ||", "if (segment->leaving ||")]),
    Mutant("NCCL: memory of a context that has stayed is not registered again", ["nccl_reg"], [
        ("reg->segments[i].ending = false;", ";")]),
    Mutant("NCCL: a finalization that was refused counts", ["nccl_rows / Rows.test_ends"], [
        ("if (undone) nccl_reg_comm_gone(reg, comm);", "(void)undone;")]),
    Mutant("NCCL: an end that was refused counts", ["nccl_rows / Rows.test_ends"], [
        ("if (how != NCCL_END_SILENT && result == ncclInvalidArgument)", "if (how == NCCL_END_CLOSE && result == ncclInvalidArgument)")]),
    Mutant("NCCL: a communicator goes with registrations", ["nccl_reg", "nccl / Registered.test_threads"], [
        ("rc = comm_detach_all(reg, found, comm);", "rc = 0;")]),
    Mutant("NCCL: a communicator that is aborted is talked to", ["nccl_reg"], [
        ("if (may_call) return comm_leave", "if (true) return comm_leave")]),
    Mutant("NCCL: statistics do not wait for the registry", ["nccl_waits"], [
        ("const uint64_t limit = reg_now_ns() + STATS_WAIT_NS;", "const uint64_t limit = 0;")]),
    Mutant("NCCL: a communicator begins while others rest for a segment", ["nccl_waits"], [
        ("if (made) calls_wait(&reg->detaching, ~0u);", "(void)made;")]),
    Mutant("NCCL: memory goes although its owner does", ["nccl_reg"], [
        ("return !segment->owner || !reg->ops->hold || reg->ops->hold(segment->owner);", "(void)reg; return segment != NULL;")]),
    Mutant("NCCL: what one owner has is lost with another", ["nccl_reg"], [
        ("(any ? !segment->owner : segment->owner != owner)", "(any && !segment->owner)")]),
    Mutant("NCCL: a communicator that cannot be talked to is forgotten before its end", ["nccl_reg"], [
        ("} else if (!rc) {", "} else {")]),
    Mutant("NCCL: one that is about to be added is taken for one that is gone", ["nccl_locks"], [
        ("if (!atomic_load(&comm->key) && atomic_load(&comm->known)) {", "if (reg) {")]),
    Mutant("NCCL: a thread goes on with a communicator that was given up", ["nccl_reg"], [
        ("return atomic_compare_exchange_strong(&comm->calls, &none, CALL_INSIDE);",
         "atomic_store(&comm->calls, none); return true;")]),
    Mutant("NCCL: the memory of a communicator that is being aborted goes", ["nccl_reg"], [
        ("if (comm_is_closed(comm)) return !record || !record->handle;", "if (comm_is_closed(comm)) return true;")]),
    Mutant("NCCL: an operation waits for the device", ["nccl_reg", "nccl / Kinds.test_nobody_waits"], [
        ("if (!record->front || record->widened == WIDES ||", "if (true ||")]),
    Mutant("NCCL: a segment goes although it could not be deregistered", ["nccl_reg", "nccl / Wrong.test_deregistration_fails"], [
        ("gone = gone && !segment->quarantined;", "")]),
    Mutant("NCCL: a segment goes within an operation", ["nccl_reg"], [
        ("if (atomic_load(&comm->users) || (record", "if ((record")]),
    Mutant("NCCL: a segment goes within a group", ["nccl_reg"], [
        ("if (reg_group()) return false; atomic_fetch_add", "atomic_fetch_add")]),
    Mutant("NCCL: a segment that a graph uses goes", ["nccl_reg"], [
        ("record->pinned |= op->captured;", "")]),
    Mutant("NCCL: a segment goes that a graph uses without a registration of ours", ["nccl_locks", "nccl / Registered.test_graphs_whose_memory_nccl_does_not_let_us_register"], [
        ("if (record) record->pinned |=", "if (record && record->handle) record->pinned |=")]),
    Mutant("NCCL: a communicator that is not ready is used", ["nccl_reg"], [
        ("memory_order_acquire) && reg_is_ready(reg, comm, key)) catch_up(reg, comm, key);",
         "memory_order_acquire)) catch_up(reg, comm, key);")]),
    Mutant("NCCL: what a group has queued has been used", ["nccl_reg"], [
        ("(!record->group || record->group == reg_group())", "!record->group")]),
    Mutant("NCCL: memory that comes later is not registered", ["nccl_reg", "nccl / Registered.test_threads"], [
        ("if (atomic_load_explicit(&comm->seen, memory_order_relaxed) != atomic_load_explicit(&reg->changes, memory_order_acquire) && reg_is_ready", "if (!comm->seen && reg_is_ready"),
        ("if (op->captured || atomic_load_explicit(&comm->seen, memory_order_relaxed) != atomic_load_explicit(&reg->changes, memory_order_acquire))", "if (op->captured)")]),
    Mutant("NCCL: the program's own registration is forgotten", ["nccl_reg"], [
        ("found->users_own[found->user_count++] =", "found->users_own[found->user_count] =")]),
    Mutant("NCCL: operations partly outside are not counted", ["nccl_reg", "nccl_rows / Rows.test_extents"], [
        ("comm->counters.mixed += inside && outside;", "")]),

    # --- memory past the pool that is registered once it is used ---
    Mutant("places: what a registration's use was is remembered after it was made anew", ["nccl_snapshot"], [
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

    Mutant("a deregistration that failed is tried again when the owner ends", ["nccl_reg"], [
        ("segment->owner != owner || segment->claimed || segment->quarantined", "segment->owner != owner || segment->claimed")]),
    Mutant("the entry of a communicator that is gone is cleared twice", ["nccl_locks"], [
        ("if (!atomic_load(&comm->key) && atomic_load(&comm->known)) { reg_counters_add", "if (!atomic_load(&comm->key)) { reg_counters_add")]),
    Mutant("NCCL: a communicator in the place of another rests because that one has waited in vain", ["nccl_waits"], [
        ("made->rests = 0;", "")]),
    Mutant("NCCL: an operation whose communicator has gone uses its entry for ever", ["nccl_locks"], [
        ("if (rc < 0) { nccl_reg_after_op(*ret_used); *ret_used = NULL; }", "if (rc < 0) *ret_used = NULL;")]),
    Mutant("NCCL: an operation undoes the pin of a captured one", ["nccl_locks"], [
        ("record->pinned |= op->captured;", "record->pinned = op->captured;")]),
    Mutant("NCCL: memory of an owner that stays is not registered again", ["nccl_reg"], [
        ("reg->segments[i].ending = false; atomic_fetch_add(&reg->changes, 1);", "reg->segments[i].ending = false;")]),
    Mutant("NCCL: a communicator whose group goes on counts as one that blocks", ["nccl_reg"], [
        ("if (goes_on) { atomic_store(&comm->nonblocking, true); work_goes_on(comm); }", "(void)goes_on;")]),
    Mutant("NCCL: a communicator goes although a second thread has closed it, too", ["nccl_snapshot"], [
        ("undone = atomic_load(&found->finalized) && atomic_load(&found->calls) / CALLS_CLOSED == 1;", "undone = atomic_load(&found->finalized);")]),
    Mutant("NCCL: a user's registration of a part of a segment does not keep it", ["nccl_locks"], [
        ("if (comm->users_own[i].addr < end_of(addr, size) && addr < end_of(comm->users_own[i].addr, comm->users_own[i].size))", "if (comm->users_own[i].addr <= addr && end_of(addr, size) <= end_of(comm->users_own[i].addr, comm->users_own[i].size))")]),
    Mutant("NCCL: a release asks for the state of a communicator", ["nccl_rows / Rows.test_polls"], [
        ("return !atomic_load(&comm->nonblocking) || atomic_load(&comm->work) & WORK_IDLE;", "return reg_is_ready(reg, comm, atomic_load(&comm->key));"),
        ("static bool comm_permits(const struct nccl_reg_comm *comm,", "static bool comm_permits(const struct nccl_reg *reg, struct nccl_reg_comm *comm,"),
        ("comm_permits(comm, segment)) { comm->next_held", "comm_permits(reg, comm, segment)) { comm->next_held")]),
    Mutant("NCCL: memory goes while work of its communicator goes on", ["nccl_reg", "nccl_rows / Rows.test_polls"], [
        ("return !atomic_load(&comm->nonblocking) || atomic_load(&comm->work) & WORK_IDLE;", "return true;")]),
    Mutant("NCCL: an answer from before work began counts", ["nccl_reg", "nccl_rows / Rows.test_polls"], [
        ("atomic_fetch_add(&comm->work, WORK_BEGUN);", "")]),
    Mutant("NCCL: work that goes on after a call is not known", ["nccl_rows / Rows.test_polls"], [
        ("atomic_store(&found->nonblocking, true); work_goes_on(found);", "atomic_store(&found->nonblocking, true);")]),
    Mutant("NCCL: work that goes on after a group is not known", ["nccl_reg"], [
        ("atomic_store(&comm->nonblocking, true); work_goes_on(comm);", "atomic_store(&comm->nonblocking, true);")]),
    Mutant("NCCL: an answer about a communicator that had this place counts", ["nccl_reg"], [
        ("made->rests = 0; work_goes_on(made);", "made->rests = 0;")]),
    Mutant("NCCL: an error is the end of all work", ["nccl_reg"], [
        ("if (state) work_goes_on(comm); else", "if (state && state != -5) work_goes_on(comm); else")]),
    Mutant("NCCL: the program's question waits for a call of another thread", ["nccl_waits"], [
        ("if (found) work_seen(found, begun, state);", "if (found) { pthread_mutex_lock(&found->lock); work_seen(found, begun, state); pthread_mutex_unlock(&found->lock); }")]),
]
