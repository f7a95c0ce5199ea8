# SPDX-License-Identifier: Apache-2.0
"""cupool-trace diff: what changed from one run to another.

Here: the figures of summary, twice, and where the sequences of segments part. Not here: a judge; check is for what
must not differ between the ranks of one run.
"""
from __future__ import annotations

import argparse
import json
import sys
from typing import Any, Callable, Iterator, Optional

from .check import first_difference
from .reader import files_of
from .replay import KEEP_SEQUENCE, Device, Rank, load
from .schema import Event
from .summary import device_summary
from .text import count_of, human_size, human_time, table

HELP = "what changed between two runs"
DESCRIPTION = """\
Compares run A with run B, rank by rank and device by device: peaks, requests, hits, driver calls and the time in them, moments
out of memory, and the first segment in whose size they differ, which is where their demands part. Each run is a trace, or a
folder with a trace for each rank (*.jsonl, *.jsonl.gz). Devices are compared by their order, as their numbers may differ; ranks
by their number, those without one by the order of their files. Only figures that differ are printed; - means that a trace
cannot tell. To differ is no error: the exit status is 0."""
FILES = {"nargs": 2, "metavar": "RUN", "help": "run A, then run B: a trace (- is standard input), or a folder of traces"}

# Figure of summary, its name, how to print it.
FIGURES: list[tuple[str, str, Callable[[Any], str]]] = [
    ("requests", "requests", str), ("hits", "hits", str), ("misses", "misses", str), ("bypassed", "bypassed", str),
    ("peak_live", "peak live", human_size), ("peak_held", "peak held", human_size), ("held_at_end", "held at end", human_size),
    ("segments_alloc", "segments", str), ("driver_calls", "driver calls", str), ("driver_us", "in driver", human_time),
    ("oom", "oom", str), ("trims", "trims", str), ("trimmed", "trimmed", human_size)]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    pass


Pair = tuple[Optional[Rank], Optional[Rank]]


def pair_ranks(a: list[Rank], b: list[Rank]) -> Iterator[Pair]:
    """Pairs of ranks with equal numbers; then the first remaining one of each side, and so on."""
    def keyed(ranks: list[Rank]) -> dict[tuple[int, int], Rank]:
        out: dict[tuple[int, int], Rank] = {}
        for r in ranks:
            rank, nth = -1 if r.rank is None else r.rank, 0
            while (rank, nth) in out:  # a restarted rank has two files
                nth += 1
            out[rank, nth] = r
        return out

    of_a, of_b = keyed(a), keyed(b)
    if len(a) == len(b) == 1:  # whatever their ranks: the user named these two
        yield a[0], b[0]
        return
    for key in sorted(of_a.keys() | of_b.keys(), key=lambda k: (k[0] < 0, k)):
        yield of_a.get(key), of_b.get(key)


def segments_part(x: Optional[Device], y: Optional[Device]) -> Optional[Event]:
    """Where the sequences of segments part: the number of the first that differs, its size in both (None: there is none)."""
    sx, sy = (x.sequence if x else []), (y.sequence if y else [])
    at = first_difference(sx, sy)
    if at == len(sx) == len(sy):
        return None
    return {"index": at, "a": sx[at] if at < len(sx) else None, "b": sy[at] if at < len(sy) else None}


def compare(a: Optional[Rank], b: Optional[Rank]) -> Iterator[Event]:
    """One object for each device of a pair of ranks."""
    da, db = (sorted(r.replay.devices.items()) if r else [] for r in (a, b))
    for k in range(max(len(da), len(db))):
        (i, x), (j, y) = da[k] if k < len(da) else (None, None), db[k] if k < len(db) else (None, None)
        fa, fb = device_summary(a, x) if a and x else {}, device_summary(b, y) if b and y else {}
        figures = {}
        for key, _, _ in FIGURES:
            va, vb = fa.get(key), fb.get(key)
            figures[key] = {"a": va, "b": vb, "change": None if va is None or vb is None else round(vb - va, 3)}
        compared = [d.segments_alloc <= KEEP_SEQUENCE for d in (x, y) if d]
        whole = not any(r.reader.omitted for r in (a, b) if r)
        yield {"a": {"rank": a.rank, "device": i} if a and x else None, "b": {"rank": b.rank, "device": j} if b and y else None,
               "figures": figures, "segments_part": segments_part(x, y) if whole else None, "all_segments_compared": whole and all(compared)}


def who(r: Optional[Rank], device: Optional[int]) -> str:
    return "nothing" if r is None or device is None else f"{r.name} device {device}"


def notes(name: str, o: Event, whole: bool) -> Iterator[str]:
    part = o["segments_part"]
    if part is None and not whole:
        yield f"{name}: segments are not compared, as events were left out"
    elif part is None:
        yield (f"{name}: segments of the same sizes in the same order" +
               ("" if o["all_segments_compared"] else f", as far as compared (the first {KEEP_SEQUENCE})"))
    elif part["a"] is None or part["b"] is None:
        yield f"{name}: the same {count_of(part['index'], 'segment')}, then only {'B' if part['a'] is None else 'A'} goes on"
    else:
        yield (f"{name}: segments part at number {part['index']} (counted from 0): {human_size(part['a'])} in A, "
               f"{human_size(part['b'])} in B")


def rows_of(name: str, o: Event) -> Iterator[list[str]]:
    for key, title, show in FIGURES:
        f = o["figures"][key]
        if f["a"] == f["b"]:
            continue
        a, b = ("-" if f[k] is None else show(f[k]) for k in "ab")
        change = ""
        if f["change"]:
            change = ("+" if f["change"] > 0 else "-") + show(abs(f["change"]))
            change += f" ({100 * f['change'] / f['a']:+.1f}%)" if f["a"] else ""
        yield [name, title, a, b, change]


def run(args: argparse.Namespace) -> int:
    loaded = []
    status = 0
    for path in args.files:
        paths = files_of(path)
        if not paths:
            print(f"cupool-trace: {path}: no *.jsonl or *.jsonl.gz in it", file=sys.stderr)
        ranks, unreadable = load(paths)
        status = max(status, 2 if unreadable or not paths else 1 if any(r.problems.count for r in ranks) else 0)
        loaded.append(ranks)
        for r in ranks:
            if r.problems.count:
                print(f"cupool-trace: {r.path}: {count_of(r.problems.count, 'problem')}; see cupool-trace check", file=sys.stderr)
            if not r.reader.complete:
                print(f"cupool-trace: {r.path}: {r.name}: {r.reader.state}", file=sys.stderr)
    results = [(a, b, o) for a, b in pair_ranks(*loaded) for o in compare(a, b)]
    if args.json:
        json.dump({"a": args.files[0], "b": args.files[1], "devices": [o for _, _, o in results]}, sys.stdout, indent=1)
        print()
        return status
    if not all(loaded):
        return status  # of a run nothing could be read, which was said
    rows: list[list[str]] = []
    said: list[str] = []
    for a, b, o in results:
        names = [who(r, o[k] and o[k]["device"]) for r, k in ((a, "a"), (b, "b"))]
        name = names[0] if names[0] == names[1] else f"{names[0]} -> {names[1]}"
        rows.extend(rows_of(name, o))
        said.extend(notes(name, o, not any(r.reader.omitted for r in (a, b) if r)))
    if rows:
        print(table(["rank and device", "figure", "A", "B", "change"], rows, left=2))
        print()
    print("\n".join(said) if said else "no event on any device")
    return status
