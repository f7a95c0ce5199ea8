# SPDX-License-Identifier: Apache-2.0
"""cupool-trace check: is the trace what docs/trace.md says, and do ranks agree?

Rules for one line are in schema and reader, rules for live memory in replay; here are those for whole files and between files.
"""
from __future__ import annotations

import argparse
import json
import operator
import sys
from typing import Iterator, Optional, Sequence

from .comms import comms_missing, ranks_missing
from .options import positive
from .physical import Follow
from .replay import Rank, load
from .text import count_of, human_size, human_span

HELP = "is the trace valid, and do ranks agree"
DESCRIPTION = """\
Checks every line against docs/trace.md, replays segments and blocks (what is freed was live and of that size, nothing live
overlaps, blocks lie in segments: a block that was reused too early shows here), registrations (what is deregistered was
registered, with a communicator that lives), and physical memory (what is released or mapped was created, what is unmapped was
mapped, in reserved addresses), and compares ranks: settings must be the same; a rank number that occurs twice is a warning, and so
is a rank that NCCL's communicators have and no trace tells of; the first segment in which two ranks differ in size is information.
A killed process's trace is valid unless --complete is given. Segments that live at the end are counted, and allowed."""

# Settings that change what a rank writes, not what it does: often set for one rank alone.
OUTPUT_ONLY = {"CUPOOL_TRACE_FILE", "CUPOOL_TRACE_LIMIT", "CUPOOL_STATS", "CUPOOL_STATS_FILE", "CUPOOL_TRACE_STACKS", "CUPOOL_LOG_LEVEL",
               "CUPOOL_RANK"}

APART = 60  # seconds between two ranks of one job, at most


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--complete", action="store_true", help="a trace without its end, or with lines dropped, is a problem")
    parser.add_argument("--ranks", type=positive, metavar="N", help="the job had so many; one without a trace is an error")


def check_one(rank: Rank) -> list[str]:
    """Look at the file as a whole, after its last line. Returns warnings, which are about odd but allowed contents."""
    warnings = []
    if rank.header and rank.header.get("events") == "segment" and rank.traces_allocs:
        rank.problems.add(1, "allocation events, but the header says events are segment only")
    if rank.reader.dropped:
        warnings.append("lines were dropped, so other problems may only mean that their counterpart is missing")
    if not rank.reader.complete:
        return warnings
    host = rank.replay.host
    for key, n in {"segments_alloc": host.segments_alloc, "segments_free": host.segments_free}.items():
        if host.stats and host.stats[key] + (host.lost if key == "segments_free" else 0) != n:
            warnings.append(f"pinned memory: host_stats says {key} {host.stats[key]}, {n} events were seen")
    for d, dev in sorted(rank.replay.devices.items()):
        if dev.stats is None:
            if dev.pooled:
                warnings.append(f"device {d} has no stats line")
            continue
        counted = {"segments_alloc": dev.segments_alloc, "segments_free": dev.segments_free}
        if rank.traces_allocs:
            counted.update(allocs=dev.allocs, frees=dev.frees)
        for key, n in counted.items():
            if dev.stats[key] != n:
                warnings.append(f"device {d}: stats says {key} {dev.stats[key]}, {n} events were seen")
    return warnings


def check_missing(ranks: list[Rank], expected: Optional[int]) -> tuple[list[str], list[str], list[str]]:
    """The ranks whose traces are missing. Returns errors, warnings, information."""
    known = {r.rank for r in ranks if r.rank is not None}
    comms = list(comms_missing((r.replay.comms for r in ranks), all(r.reader.complete for r in ranks)))
    numbers = ranks_missing(known, expected or max(known, default=-1) + 1)
    # One file may be all that was asked for. Ranks that use no GPU leave none.
    alone = len(ranks) < 2
    errors = [numbers] if numbers and expected else []
    infos = [numbers] if numbers and not expected and not alone else []
    return errors, [] if alone else comms, [*infos, *(comms if alone else [])]


def check_ranks(ranks: list[Rank]) -> tuple[list[str], list[str], list[str]]:
    """Compare ranks. Returns errors, warnings, information."""
    errors: list[str] = []
    warnings: list[str] = []
    infos: list[str] = []
    seen: dict[int, Rank] = {}
    for r in ranks:
        if r.rank is not None and r.rank in seen:
            warnings.append(f"rank {r.rank} occurs twice: {seen[r.rank].path} and {r.path}")
        elif r.rank is not None:
            seen[r.rank] = r
    warnings.extend(of_other_runs(ranks))
    with_header = [r for r in ranks if r.header]
    for r in with_header[1:]:
        first = with_header[0]
        for key in ("cupool", "version", "events"):
            if r.header.get(key) != first.header.get(key):
                errors.append(f"{r.path}: {key} is {r.header.get(key)!r}, in {first.path} {first.header.get(key)!r}")
        mine, theirs = r.header.get("settings", {}), first.header.get("settings", {})
        for key in sorted((mine.keys() | theirs.keys()) - OUTPUT_ONLY):
            if mine.get(key) != theirs.get(key):
                errors.append(f"{r.path}: {key} is {mine.get(key)!r}, in {first.path} {theirs.get(key)!r}")
    for r in ranks[1:]:
        infos.extend(divergence(ranks[0], r))
    if len(ranks) > 1 and not infos:
        infos.append(f"all {len(ranks)} files took segments of the same sizes in the same order")
    return errors, warnings, infos


def of_other_runs(ranks: list[Rank]) -> Iterator[str]:
    """Ranks run at the same time. One that had ended long before another began is a file that an earlier job has left."""
    known = [r for r in ranks if r.rank is not None and "t0_unix_ns" in r.header]
    if not known:
        return
    newest = max(known, key=lambda r: r.header["t0_unix_ns"])  # type: ignore[no-any-return]
    for r in known:
        apart = (newest.header["t0_unix_ns"] - r.header["t0_unix_ns"] - r.replay.last_t) / 1e9
        if apart > APART:
            yield f"{r.name} ended {human_span(apart)} before {newest.name} began: of another run?"


def first_difference(a: Sequence[int], b: Sequence[int]) -> int:
    """The index of the first that differs; the length of the shorter one if there is none."""
    return next((k for k, (m, n) in enumerate(zip(a, b)) if m != n), min(len(a), len(b)))


def divergence(a: Rank, b: Rank) -> Iterator[str]:
    """Where two ranks first took segments of different sizes. Their k-th devices are compared: device numbers differ."""
    if a.reader.omitted or b.reader.omitted:
        yield f"{a.name} and {b.name}: segments are not compared, as events were left out"
        return
    da, db = sorted(a.replay.devices.items()), sorted(b.replay.devices.items())
    if len(da) != len(db):
        yield f"{a.name} used {count_of(len(da), 'device')}, {b.name} {len(db)}"
    for (i, x), (j, y) in zip(da, db):
        names = f"{a.name} device {i} and {b.name} device {j}"
        sx, sy = x.sequence, y.sequence
        at = first_difference(sx, sy)
        if at < min(len(sx), len(sy)):
            yield f"{names} diverge at segment {at} (counted from 0): {human_size(sx[at])} and {human_size(sy[at])}"
        elif x.segments_alloc != y.segments_alloc:
            yield f"{names} agree in their first {at} segments, then one goes on: {x.segments_alloc} and {y.segments_alloc} in all"


def is_fine(rank: Rank, complete: bool) -> bool:
    return rank.problems.count == 0 and (rank.reader.complete or not complete)


def run(args: argparse.Namespace) -> int:
    ranks, unreadable = load(args.files, Follow)
    each = [check_one(r) for r in ranks]
    errors, warnings, infos = map(operator.add, check_ranks(ranks), check_missing(ranks, args.ranks))
    bad = bool(errors or unreadable) or not all(is_fine(r, args.complete) for r in ranks)
    status = 2 if unreadable else 1 if bad else 0
    if args.json:
        json.dump({"ok": not bad, "files": [{
            "path": r.path, "rank": r.rank, "ok": is_fine(r, args.complete), "complete": r.reader.complete, "state": r.reader.state,
            "lines": r.reader.lines, "segments_live": r.live_at_end()[0], "blocks_live": r.live_at_end()[1],
            "problem_count": r.problems.count, "problems": [{"line": n, "text": t} for n, t in r.problems.kept], "warnings": w,
        } for r, w in zip(ranks, each)], "errors": errors, "warnings": warnings, "information": infos}, sys.stdout, indent=1)
        print()
        return status
    for r, w in zip(ranks, each):
        for n, text in r.problems.kept:
            print(f"{r.path}:{n}: {text}")
        if r.problems.count > len(r.problems.kept):
            print(f"{r.path}: {r.problems.count - len(r.problems.kept)} more problems")
        for text in w:
            print(f"{r.path}: warning: {text}")
        segments, blocks = r.live_at_end()
        live = count_of(segments, "segment") + (f" and {count_of(blocks, 'block')}" if r.traces_allocs else "")
        verdict = count_of(r.problems.count, "problem") if r.problems.count else "ok" if is_fine(r, args.complete) else "not complete"
        print(f"{r.path}: {verdict}; {r.reader.state}; {count_of(r.reader.lines, 'line')}; {live} live at its end")
    for kind, texts in (("", errors), ("warning: ", warnings), ("information: ", infos)):
        for text in texts:
            print(kind + text)
    return status
