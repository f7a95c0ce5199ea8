# SPDX-License-Identifier: Apache-2.0
"""Mutants of shim/context/free_streams.c, and of what the pool makes of it: memory that was freed on streams."""
from __future__ import annotations

from mutant import Mutant

MUTANTS = [
    Mutant("a stream that works counts as idle", ["shim_free_streams"], [
        ("ended = driver->cuStreamQuery(asked[i]) == CUDA_SUCCESS;", "(void)driver->cuStreamQuery(asked[i]);")]),
    Mutant("a stream that cannot be asked is forgotten", ["shim_free_streams"], [
        ("if (!is_own || i == FREE_STREAMS_MAX)", "if (i == FREE_STREAMS_MAX)")]),
    Mutant("a seventeenth stream is forgotten", ["shim_free_streams"], [
        ("if (!is_own || i == FREE_STREAMS_MAX) streams->unknown = true;", "if (!is_own) streams->unknown = true;"),
        ("else if (i == streams->count)", "else if (i == streams->count && i < FREE_STREAMS_MAX)")]),
    Mutant("a destroyed stream is forgotten", ["shim_free_streams"], [
        ("streams->streams[i] = streams->streams[--streams->count]; streams->unknown = true;",
         "streams->streams[i] = streams->streams[--streams->count];")]),
    Mutant("a destroyed stream is asked", ["shim_free_streams"], [
        ("if (i < streams->count) {", "if (0) {", "free_streams_gone")]),
    Mutant("streams are asked beside a free in the driver", ["shim_free_streams"], [
        ("if (!context->driver->cuStreamQuery || atomic_load(&context->freeing))", "if (!context->driver->cuStreamQuery)")]),
    Mutant("streams are asked in a capture", ["shim_free_streams"], [
        ("if (!capture_active()) {", "if (1) {", "order_freed_async_ended")]),
    Mutant("an answer for earlier streams makes later ones known", ["shim_free_streams"], [
        ("if (streams->adds == mark) {", "if (mark <= streams->adds) {", "free_streams_idle")]),
    Mutant("the end of all work says nothing of unknown streams", ["shim_free_streams"], [
        ("free_streams_idle(&context->free_streams, mark);", "(void)mark;")]),
    Mutant("deferred blocks of any kind go by the streams' word", ["shim_free_streams"], [
        ("ret_of->async = ret_of->async && magazine->deferred_async == magazine->deferred_count;", "")]),
    Mutant("blocks that were put back go by the streams' word", ["shim_free_streams"], [
        ("magazine->deferred_async += of->async;", "magazine->deferred_async++;")]),
    Mutant("the question after a wait is that for all work", ["shim_free_streams"], [
        ("if (atomic_load(&pool->shown.deferring) && !freed_async_ended(pool) &&", "if (atomic_load(&pool->shown.deferring) &&")]),
    Mutant("deferred blocks are ordered before idle memory goes", ["freed_async static ordered / freed_while_idle"], [
        ("if (!released && atomic_load(&pool->shown.deferring)) {", "if (atomic_load(&pool->shown.deferring)) {")]),
]
