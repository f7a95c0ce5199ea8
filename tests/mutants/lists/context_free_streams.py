# SPDX-License-Identifier: Apache-2.0
"""Mutants of shim/context/free_streams.c, and of what the pool makes of it: memory that was freed on streams."""
from __future__ import annotations

from mutant import Mutant

MUTANTS = [
    Mutant("an event that has not been reached counts as reached", ["shim_free_streams"], [
        ("(!events[i] || driver->cuEventQuery(events[i]) == CUDA_SUCCESS);", "(!events[i] || driver->cuEventQuery(events[i]) != CUDA_ERROR_UNKNOWN);")]),
    Mutant("one stream too many takes another one's entry", ["shim_free_streams"], [
        ("if (!is_used(at)) unused = unused ? unused : at; else if", "if (!unused) unused = at; if")]),
    Mutant("an event that could not be recorded counts as recorded", ["shim_free_streams"], [
        ("return result ? 0 : freed;", "return freed;")]),
    Mutant("a destroyed stream's event is recorded on the next one with its handle", ["shim_free_streams"], [
        ("streams->at[i].gone = true;", "(void)i;")]),
    Mutant("an event that is being recorded counts as recorded", ["shim_free_streams"], [
        ("return at->ended < *ret_closed && !at->recording[*ret_closed % 2];", "return at->ended < *ret_closed;")]),
    Mutant("a stream has one event, which a busy one never reaches", ["shim_free_streams"], [
        ("part = at ? at->generation % 2 : 0;", "part = 0;"), ("*ret_event = atomic_load(&at->event[*ret_closed % 2]);", "*ret_event = atomic_load(&at->event[0]);"),
        ("mark->at->recording[mark->generation % 2]--;", "mark->at->recording[0]--;"), ("at->used[closed % 2] = false;", "at->used[0] = false;")]),
    Mutant("a stream that takes long holds up what others free", ["shim_free_streams", "freed_async static preloaded / beside_a_stream_that_takes_long"], [
        ("reached[i] = reached[i] && (!events[i] ||", "reached[i] = reached[i] && (!i || reached[i - 1]) && (!events[i] ||")]),
    Mutant("a stream's free goes by another stream's event", ["shim_free_streams"], [
        ("block->freed <= ended[block->freed % POOL_PLACES]", "block->freed <= ended[2]")]),
    Mutant("blocks that are left after a question hide where they were freed", ["shim_free_streams"], [
        ("if (freed_is_marked(block->freed)) places = deferred_async_note(magazine, places, block->freed);", "")]),
    Mutant("the newest generation is never closed", ["shim_free_streams"], [
        ("if (at->ended == at->generation - 1 && is_used(at))", "if (at->generation == 1 && is_used(at))")]),
    Mutant("the newest generation is closed before the one before has ended", ["shim_free_streams"], [
        ("if (at->ended == at->generation - 1 && is_used(at))", "if (is_used(at))")]),
    Mutant("nobody asks for entries that could be given back", ["shim_free_streams"], [
        ("(void)order_freed_async_ended(context, ended); event =", "event =")]),
    Mutant("an entry stays its stream's for good", ["shim_free_streams"], [
        ("at->used[closed % 2] = false;", "")]),
    Mutant("an answer that comes late forgets the events of the next generation", ["shim_free_streams"], [
        ("if (at->ended >= closed) return;", "")]),
    Mutant("the per-thread streams of all threads are one", ["shim_free_streams"], [
        ("stream == CU_STREAM_PER_THREAD ? order_thread_get() : 0;", "0;")]),
    Mutant("of per-thread streams nothing is known", ["freed_async static preloaded / freed_per_thread"], [
        ("*ret_is_own = !result && handle ==", "*ret_is_own = !result && stream != CU_STREAM_PER_THREAD && handle ==")]),
    Mutant("two threads make one stream's event", ["shim_free_streams"], [
        ("if (at && at->recording[part] && !atomic_load(&at->event[part]))", "if (0)")]),
    Mutant("events are recorded beside a free in the driver", ["shim_free_streams"], [
        ("(stream == CU_STREAM_LEGACY && capture_active()) || !free_gate_enter(context))",
         "(stream == CU_STREAM_LEGACY && capture_active()) || (!free_gate_enter(context) && !++context->inside))")]),
    Mutant("events are recorded on the legacy stream beside a capture", ["shim_free_streams"], [
        ("(stream == CU_STREAM_LEGACY && capture_active()) || !free_gate", "!free_gate")]),
    Mutant("no event is recorded beside a capture", ["freed_async static preloaded / freed_beside_capture"], [
        ("(stream == CU_STREAM_LEGACY && capture_active()) || !free_gate", "capture_active() || !free_gate")]),
    Mutant("deferred blocks of any kind go by the streams' word", ["shim_free_streams"], [
        ("if (freed_is_marked(block->freed) && block->freed <=", "if (block->freed <=")]),
    Mutant("blocks that were put back go by the streams' word", ["shim_free_streams"], [
        ("magazine_defer_again(pool, magazine, block); } else if", "block->freed = 1; magazine_defer_again(pool, magazine, block); } else if")]),
    Mutant("blocks that were put back do not go by the streams' word", ["shim_free_streams"], [
        ("magazine_defer_again(pool, magazine, block); } else if", "block->freed = 0; magazine_defer_again(pool, magazine, block); } else if")]),
    Mutant("blocks of later generations go by the streams' word", ["shim_free_streams"], [
        ("if (freed_is_marked(block->freed) && block->freed <= ended[block->freed % POOL_PLACES]) {", "if (freed_is_marked(block->freed)) {")]),
    Mutant("a later block hides an earlier one", ["shim_free_streams"], [
        ("if (!(places & place) || freed < *first)", "")]),
    Mutant("the question after a wait is that for all work", ["shim_free_streams"], [
        ("publish_async(pool); /* Asked", "/* Asked")]),
    Mutant("a stream of another device is asked itself", ["freed_async static preloaded / behind_another_devices_legacy_stream"], [
        ("result = stream_wait(context, context_find(handle), stream);", "result = driver->cuStreamQuery(stream);")]),
    Mutant("an event is recorded beside another device's free in the driver", ["shim_lookup"], [
        ("; !free_gate_enter(other); i++", "; !free_gate_enter(other) && !++other->inside; i++")]),
    Mutant("an event on another device's stream stays for good", ["shim_lookup"], [
        ("if (!result && free_gate_enter(other)) {", "if (false) {")]),
    Mutant("an event goes that another device's stream has not come to", ["shim_lookup"], [
        ("if (!result && free_gate_enter(other)) {", "if (free_gate_enter(other)) {")]),
    Mutant("a stream of another device is waited for once more after a free in the driver", ["shim_lookup"], [
        ("for (unsigned int i = 0; (result = context_event_ask(context, event)) == CUDA_ERROR_NOT_READY && now_ns() < limit;",
         "for (uint64_t i = 0, end = now_ns() + FOREIGN_WAIT_NS; (result = context_event_ask(context, event)) == CUDA_ERROR_NOT_READY && now_ns() < end;", "stream_wait")]),
    Mutant("deferred blocks are ordered before idle memory goes", ["freed_async static ordered / freed_while_idle"], [
        ("if (!released && atomic_load(&pool->shown.deferring)) {", "if (atomic_load(&pool->shown.deferring)) {")]),
    Mutant("a request that natively is refused orders what cudaFreeAsync has freed",
           ["deferred", "freed_async static preloaded / refused_behind_own_free"], [("|| !all_marked(lists)))", "|| !!all_marked))")]),
    Mutant("a request that is refused orders nothing beside what cudaFreeAsync has freed", ["order"], [
        ("if (!freed_is_marked(block->freed)) return false;", "if (!block->size) return false;")]),
    Mutant("the next context in the entry has the events of the one before", ["shim_free_streams"], [
        ("atomic_store(&at->event[part], NULL);", "(void)part;")]),
]
