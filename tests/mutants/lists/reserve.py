# SPDX-License-Identifier: Apache-2.0
"""Mutants of what happens on a device that is nearly full: pool/ and shim/."""
from __future__ import annotations

from mutant import Mutant

MUTANTS = [
    Mutant("what goes back on a full device is not waited for", ["decay", "crowd auto"], [
        ("if (scarce) await_arrival(config);", "")]),
    Mutant("what goes back is waited for where there is enough", ["decay"], [
        ("if (scarce) await_arrival(config);", "await_arrival(config);")]),
    Mutant("a free waits though all has arrived", ["decay"], [
        ("!backend->collected(config->arg, &arriving) && arriving", "!backend->collected(config->arg, &arriving)")]),
    Mutant("the reserve does not know of memory in stream order", ["crowd auto", "crowd vmm relaxed"], [
        ("if (UNPOOLED_##kind != UNPOOLED_KINDS && !result) \\ device_free_taken(size); \\", "\\")]),
    Mutant("the reserve does not know of physical memory", ["crowd auto"], [
        ("if (!result && properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE) device_free_taken(size);", "")]),
    Mutant("the reserve does not know of other contexts' memory", ["crowd auto"], [
        ("atomic_store_explicit(&other->device_free, free, memory_order_relaxed);", "if (other == context) atomic_store_explicit(&other->device_free, free, memory_order_relaxed);")]),
    Mutant("a tick gives back no more on a full device", ["decay", "shim_memory"], [
        (".why = scarce ? \"reserve\" : \"decay\", .age = scarce ? 0 : age};", ".why = \"decay\", .age = age};")]),
    Mutant("a tick does not ask how much is left", ["shim_memory"], [
        ("if (stats.idle) device_free_look(context);", "")]),
    Mutant("a tick asks how much is left though nothing is idle", ["shim_memory"], [
        ("if (stats.idle) device_free_look(context);", "device_free_look(context);")]),
    Mutant("one's own frees are waited for although another thread has freed since", ["shim_segments"], [
        ("others_come(context, &others_ns, &limit);", "")]),
    Mutant("the stream is synchronised although another thread puts work on it", ["shim_segments"], [
        ("if (!atomic_load(&context->streaming)) result", "result")]),
    Mutant("work is put on the stream while it is synchronised", ["shim_segments"], [
        ("if (!atomic_load(&context->syncing) ||", "if (true ||")]),
    Mutant("two threads synchronise the stream at once", ["shim_segments"], [
        ("SYNCING_WAIT_NS; if (now_ns() >= limit) {", "SYNCING_WAIT_NS; if (true) {")]),
    Mutant("a thread that synchronises waits for ever for another", ["shim_segments"], [
        ("SYNCING_WAIT_NS; if (now_ns() >= limit) {", "SYNCING_WAIT_NS; if (false) {")]),
    Mutant("a thread waits for ever for those that synchronise the stream", ["shim_segments"], [
        ("(limit && now_ns() >= limit)) return;", "false) return;")]),
    Mutant("the reserve is made of memory that another device lacks", ["shim_memory"], [
        ("if (atomic_load_explicit(&context->free_unsure, memory_order_relaxed))", "if (0)")]),
    Mutant("the driver is asked at each free on a full device", ["shim_memory"], [
        ("atomic_store(&other->free_unsure, false);", "")]),
]
