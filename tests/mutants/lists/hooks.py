# SPDX-License-Identifier: Apache-2.0
"""Mutants of shim/hooks/: the lists of hooks."""
from __future__ import annotations

from mutant import Mutant

MUTANTS = [
    # --- hazards that auto has to see ---
    Mutant("auto: a copy into host memory that is called one of device memory is not seen", ["auto_host static auto"], [
        ("copy, (w, to, from)) WATCH_STREAM(cuMemcpyPeerAsync,", "nothing, (w)) WATCH_STREAM(cuMemcpyPeerAsync,")]),
    Mutant("auto: a copy between devices in a graph made by hand is not seen", ["auto_peer static auto"], [
        ("(node, graph, nodes, count, copy, context), graph_copy, (w, copy))", "(node, graph, nodes, count, copy, context), graph_host_work, (w))")]),
    Mutant("auto: a fill in a graph made by hand is not seen", ["auto_graph static auto"], [
        ("graph_set, (w, parameters)) WATCH_CALL(cuGraphAddHostNode", "nothing, (w)) WATCH_CALL(cuGraphAddHostNode")]),
    Mutant("auto: a fill that is changed in a graph is not seen", ["auto_graph static auto"], [
        ("(node, parameters), graph_set, (w, parameters))", "(node, parameters), nothing, (w))")]),
    Mutant("auto: a fill that is changed in an executable graph is not seen", ["auto_graph static auto"], [
        ("graph_set, (w, parameters)) WATCH_CALL(cuGraphNodeSetParams,", "nothing, (w)) WATCH_CALL(cuGraphNodeSetParams,")]),
    Mutant("auto: a node that is made to copy between devices is not seen", ["auto_peer static auto"], [
        ("(node, copy), graph_copy, (w, copy)", "(node, copy), graph_host_work, (w)")]),
    Mutant("auto: a batch of copies between devices is not seen", ["auto_peer static auto"], [
        ("(count, operations, flags, stream), copy_batch, (w, operations, count)", "(count, operations, flags, stream), host_work, (w)")]),
    Mutant("auto: only the first copy of a batch is looked at", ["rows driver"], [
        ("copy_many, (w, to, from, count)) WATCH_STREAM(cuMemcpyWithAttributesAsync,",
         "copy_many, (w, to, from, 1)) WATCH_STREAM(cuMemcpyWithAttributesAsync,")]),
    Mutant("auto: only the first copy of a batch of three-dimensional ones is looked at", ["rows driver"], [
        ("hazard_foreign_accesses_3d(operations, count, w->stream);", "hazard_foreign_accesses_3d(operations, 1, w->stream);")]),
    Mutant("auto: a driver's pool that another device may use is not seen", ["auto_peer static auto"], [
        ("(pool, access, count), access, (w, 0, access, count)", "(pool, access, count), nothing, (w)")]),

    # --- physical memory in the trace ---
    Mutant("physical memory: dlsym finds the driver's", ["vmm / Calls.test_every_call_is_there"], [
        ("GUARD(cuMemRelease,", "DRIVER(cuMemRelease,")]),
]
