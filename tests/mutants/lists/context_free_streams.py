# SPDX-License-Identifier: Apache-2.0
"""Mutants of shim/context/free_streams.c, and of what the pool makes of it: memory that was freed on streams."""
from __future__ import annotations

from mutant import Mutant

MUTANTS = [
    Mutant("an event that has not been reached counts as reached", ["shim_free_streams"], [
        ("ended = driver->cuEventQuery(events[i]) == CUDA_SUCCESS;", "(void)driver->cuEventQuery(events[i]);")]),
    Mutant("a stream that cannot be asked is forgotten", ["shim_free_streams"], [
        ("at->recording++; else streams->unknown = true;", "at->recording++;")]),
    Mutant("an event that could not be recorded counts as recorded", ["shim_free_streams"], [
        ("streams->unknown |= !recorded;", "(void)recorded;")]),
    Mutant("a destroyed stream's event is recorded on the next one with its handle", ["shim_free_streams"], [
        ("if (at) at->gone = true;", "(void)at;")]),
    Mutant("an event that is being recorded counts as recorded", ["shim_free_streams"], [
        ("ended = !streams->unknown && !is_recording(streams);", "ended = !streams->unknown;")]),
    Mutant("an entry whose event is being recorded becomes another stream's", ["shim_free_streams"], [
        ("if (streams->adds == mark && !is_recording(streams)) {", "if (streams->adds == mark) {")]),
    Mutant("the per-thread streams of all threads are one", ["shim_free_streams"], [
        ("stream == CU_STREAM_PER_THREAD ? order_thread_get() : 0;", "0;")]),
    Mutant("of per-thread streams nothing is known", ["freed_async static preloaded / freed_per_thread"], [
        ("*ret_is_own = !result && handle ==", "*ret_is_own = !result && stream != CU_STREAM_PER_THREAD && handle ==")]),
    Mutant("two threads make one stream's event", ["shim_free_streams"], [
        ("} else if (at && !atomic_load(&at->event)) {", "} else if (0) {")]),
    Mutant("events are recorded beside a free in the driver", ["shim_free_streams"], [
        ("(stream != CU_STREAM_LEGACY || !capture_active()) && !atomic_load(&context->freeing);",
         "(stream != CU_STREAM_LEGACY || !capture_active());")]),
    Mutant("events are recorded on the legacy stream beside a capture", ["shim_free_streams"], [
        ("(stream != CU_STREAM_LEGACY || !capture_active()) && !atomic", "!atomic")]),
    Mutant("no event is recorded beside a capture", ["freed_async static preloaded / freed_beside_capture"], [
        ("(stream != CU_STREAM_LEGACY || !capture_active()) && !atomic", "!capture_active() && !atomic")]),
    Mutant("an answer for earlier streams makes later ones known", ["shim_free_streams"], [
        ("if (streams->adds == mark && !is_recording(streams)) {", "if (mark <= streams->adds && !is_recording(streams)) {")]),
    Mutant("the end of all work says nothing of unknown streams", ["shim_free_streams"], [
        ("free_streams_idle(&context->free_streams, mark);", "(void)mark;")]),
    Mutant("deferred blocks of any kind go by the streams' word", ["shim_free_streams"], [
        ("ret_of->async = ret_of->async && magazine->deferred_async == magazine->deferred_count;", "")]),
    Mutant("blocks that were put back go by the streams' word", ["shim_free_streams"], [
        ("magazine->deferred_async += of->async;", "magazine->deferred_async++;")]),
    Mutant("the question after a wait is that for all work", ["shim_free_streams"], [
        ("if (atomic_load(&pool->shown.deferring) && !freed_async_ended(pool) &&", "if (atomic_load(&pool->shown.deferring) &&")]),
    Mutant("a stream of another device is asked itself", ["freed_async static preloaded / behind_another_devices_legacy_stream"], [
        ("result = stream_wait(context, context_find(handle), stream);", "result = driver->cuStreamQuery(stream);")]),
    Mutant("an event is recorded beside another device's free in the driver", ["shim_lookup"], [
        ("other && atomic_load(&other->freeing)", "false")]),
    Mutant("an event on another device's stream stays for good", ["shim_lookup"], [
        ("driver->cuEventDestroy_v2(event); return result;", "return result;")]),
    Mutant("deferred blocks are ordered before idle memory goes", ["freed_async static ordered / freed_while_idle"], [
        ("if (!released && atomic_load(&pool->shown.deferring)) {", "if (atomic_load(&pool->shown.deferring)) {")]),
    Mutant("the next context in the entry has the events of the one before", ["shim_free_streams"], [
        ("atomic_store(&streams->at[i].event, NULL);", "(void)i;")]),
    Mutant("the streams' mark is read after the answer", ["shim_free_streams"], [
        ("free_streams_idle(&context->free_streams, mark); return result;", "(void)mark; free_streams_idle(&context->free_streams, free_streams_mark(&context->free_streams)); return result;")]),
]
