# SPDX-License-Identifier: Apache-2.0
"""Mutants of shim/hooks/: the lists of hooks."""
from __future__ import annotations

import re
from pathlib import Path

from mutant import Mutant


def blind(condition: str) -> "list[tuple[str, ...]]":
    """The edits by which rows of watch.def of which the condition is false have no effects, and stay hooks."""
    return [("if (w->on) \\ before_effect;", f"if (w->on && {condition}) \\\n before_effect;"),
            ("if (w->on && !result) \\ after_effect;", f"if (w->on && !result && {condition}) \\\n after_effect;")]


def all_but(*symbols: str) -> str:
    return f'!__builtin_strstr("|{"|".join(symbols)}|", "|" #symbol "|")'


# Each row of watch.def that has an effect, in its order.
WATCHED = (Path(__file__).resolve().parents[3] / "shim" / "hooks" / "watch.def").read_text()
ROWS = [row[1] for row in re.finditer(r"^WATCH_\w+\((\w+),.*?\)$", WATCHED, re.M | re.S) if "nothing, (w)" not in row[0]]

MUTANTS = [
    # --- rows without their effects: each, and sixteen at once ---
    *(Mutant(f"auto: {symbol} is not looked at", [f"rows driver / {symbol}"], blind(all_but(symbol))) for symbol in ROWS),
    *(Mutant(f"auto: sixteen rows from {ROWS[i]} on are not looked at", [f"rows driver / {ROWS[i]}"], blind(all_but(*ROWS[i:i + 16])))
      for i in range(0, len(ROWS), 16)),
    Mutant("auto: no per-thread form is looked at", ["rows driver / cuMemcpyAsync_ptsz", "rows driver / cuMemcpy_ptds"],
           blind('!__builtin_strstr(#symbol, "_pt")')),
    Mutant("auto: memory of another process that is opened is not seen", ["rows driver / cuIpcOpenMemHandle_v2"], [
        ("policy_strict(POLICY_ALL, \"memory of another process\");", "", "handle_open")]),

    # --- captures that close no gate, and an end that leaves it closed ---
    *(Mutant(f"{symbol} closes no gate", [f"rows driver / {symbol}"], [
        (f"CAPTURE_BEGIN({symbol},", f"CAPTURE_END({symbol},")]) for symbol in (
            "cuStreamBeginCapture", "cuStreamBeginCapture_v2", "cuStreamBeginCaptureToGraph", "cuStreamBeginRecaptureToGraph")),
    *(Mutant(f"{symbol} closes no gate", [f"rows shared / {symbol}"], [
        (f"RUNTIME_CAPTURE_BEGIN({symbol},", f"RUNTIME_CAPTURE_END({symbol},")]) for symbol in (
            "cudaStreamBeginCapture", "cudaStreamBeginCaptureToGraph", "cudaStreamBeginRecaptureToGraph")),
    Mutant("captures of per-thread streams close no gate", ["rows driver / cuStreamBeginCapture_ptsz"], [
        ("\\ CAPTURE(symbol##_ptsz, parameters, arguments, or_per_thread(stream), begin)",
         "\\\n    CAPTURE(symbol##_ptsz, parameters, arguments, or_per_thread(stream), end)")]),
    Mutant("captures of the runtime's per-thread streams close no gate", ["rows shared / cudaStreamBeginCapture_ptsz"], [
        ("RUNTIME_CAPTURE(symbol##_ptsz, parameters, arguments, or_per_thread(stream), begin)",
         "RUNTIME_CAPTURE(symbol##_ptsz, parameters, arguments, or_per_thread(stream), end)")]),
    Mutant("a capture of the per-thread stream is one of the legacy stream", ["rows driver / cuStreamBeginCapture_ptsz"], [
        ("\\ CAPTURE(symbol##_ptsz, parameters, arguments, or_per_thread(stream), begin)",
         "\\\n    CAPTURE(symbol##_ptsz, parameters, arguments, or_legacy(stream), begin)")]),
    Mutant("the end of a capture leaves the gate closed", ["rows driver / cuStreamEndCapture"], [
        ("CAPTURE_END(cuStreamEndCapture, (CUstream stream, CUgraph *graph), (stream, graph))",
         "WATCH_STREAM(cuStreamEndCapture, (CUstream stream, CUgraph *graph), (stream, graph), nothing, (w))")]),
    Mutant("the end of a capture by the runtime leaves the gate closed", ["rows shared / cudaStreamEndCapture"], [
        ("RUNTIME_CAPTURE_END(cudaStreamEndCapture,", "RUNTIME_CAPTURE_BEGIN(cudaStreamEndCapture,")]),
    Mutant("the end of the per-thread stream's capture leaves the gate closed", ["rows driver / cuStreamEndCapture_ptsz"], [
        ("\\ CAPTURE(symbol##_ptsz, parameters, arguments, or_per_thread(stream), end)",
         "\\\n    CAPTURE(symbol##_ptsz, parameters, arguments, or_legacy(stream), end)")]),

    # --- extents of NCCL's operations ---
    *(Mutant(f"NCCL: {name}", ["nccl_rows / Rows.test_extents"], [(old, new)]) for name, old, new in (
        ("a reduce-scatter reads one rank's share", "COLLECTIVE, from, ALL, to, MINE)", "COLLECTIVE, from, MINE, to, MINE)"),
        ("an all-gather writes one rank's share", "COLLECTIVE, from, MINE, to, ALL)", "COLLECTIVE, from, MINE, to, MINE)"),
        ("an all-to-all reads one rank's share", "from, ALL, to, ALL)", "from, MINE, to, ALL)"),
        ("an all-to-all writes one rank's share", "from, ALL, to, ALL)", "from, ALL, to, MINE)"),
        ("a gather writes one rank's share", "to, ROOT(ALL))", "to, ROOT(MINE))"),
        ("a gather writes at every rank", "to, ROOT(ALL))", "to, ALL)"),
        ("a scatter reads one rank's share", "from, ROOT(ALL), to", "from, ROOT(MINE), to"),
        ("a scatter reads at every rank", "from, ROOT(ALL), to", "from, ALL, to"),
        ("a reduce writes at every rank", "to, ROOT(MINE))", "to, MINE)"),
        ("a broadcast looks up what every rank gives", "SENT(from, to), MINE, to", "from, MINE, to"))),

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
