# SPDX-License-Identifier: Apache-2.0
"""cupool-trace plot: a picture of memory over time.

It makes the data of a page (page_data: everything that the page or picture.py draws, as plain JSON values), puts the page together
from the parts in page/, and writes one file. It draws nothing: page/ does that in the browser, picture.py for SVG and PNG.
"""
from __future__ import annotations

import argparse
import json
import os
import sys
from datetime import datetime, timezone
from typing import Any, Optional

from . import VERSION, defaults, flame, symbols
from .callers import names_of
from .frames import Frames
from .options import LATEST, seconds
from .overview import SHOWN, Row, out_of_line
from .picture import png, svg
from .record import QUANTITIES, Box, Largest, Limits, Recorder, Track
from .replay import Rank, load
from .schema import Event
from .summary import device_summary
from .text import count_of, policy_text

HELP = "draw memory over time: a page, SVG or PNG"
DESCRIPTION = """\
Writes one file that needs no other: OUT.html, a page to zoom and to point at (memory over time of each rank and device, segments
as a map of addresses by time, events), or OUT.svg or OUT.png, the same curves as a picture.
Live memory and the blocks within segments are known only with CUPOOL_TRACE_EVENTS=segment,alloc.
A long trace is reduced, and the page says how: curves keep the least and the greatest value of each interval, so no peak is lost;
the largest segments and blocks stay exact, the others are added up. With --from and --to, all of that goes to a shorter time."""

# Limits of a page, all devices together. The second figure is for one device: more would be slow to draw.
POINTS = (48_000, 32_768)
SEGMENTS = (60_000, 20_000)
BLOCKS = (80_000, 30_000)
MARKS = (3_000, 300)  # of each kind
CALLS = (30_000, 2_000)  # frames of flame graphs
RANGES = (40_000, 6_000)  # of NVTX
PAGE = 20_000_000  # bytes; long numbers and texts can make more of these than fit, and then each of them is less
HOLDERS = 8  # callers that are named at least, and at most of those that took memory past the pool
NAME = 300  # letters of a frame's; C++ has far longer ones
FIGURES = ("name", "uuid", "from_stats", "peak_held", "peak_live", "held_at_end", "segments_alloc", "requests", "hit_rate",
           "driver_calls", "oom", "callers")
# The parts of the page's script, in page/. They share one scope, and begin.js uses all others.
SCRIPTS = ("text.js", "view.js", "list.js", "callers.js", "canvas.js", "curves.js", "map.js", "ranks.js", "flame.js", "bands.js", "describe.js", "pointing.js", "begin.js")
GAP = 2 << 20  # addresses that are further apart than this are drawn as if they were not


def add_arguments(parser: argparse.ArgumentParser) -> None:
    def out(path: str) -> str:
        if not path.endswith((".html", ".svg", ".png")):
            raise argparse.ArgumentTypeError(f"{path}: must end in .html, .svg or .png")
        return path

    parser.add_argument("-o", "--output", metavar="OUT", required=True, type=out, help="OUT.html, OUT.svg or OUT.png")
    parser.add_argument("--from", dest="begin", metavar="S", type=seconds, default=0.0, help="seconds after the start of each trace")
    parser.add_argument("--to", dest="end", metavar="S", type=seconds, default=LATEST, help="likewise")
    symbols.add_arguments(parser)


def limits_for(devices: int, share: float = 1) -> Limits:
    """A `share`th of what a page may hold."""
    return Limits(*(int(min(most, all_together // max(1, devices)) / share)
                    for all_together, most in (POINTS, SEGMENTS, BLOCKS, MARKS, CALLS, RANGES)))


class Regions:
    """Addresses without the gaps between them, so that a map of them is not empty: pieces of [start, end)."""

    def __init__(self, ranges: list[tuple[int, int]]) -> None:
        self.pieces: list[list[int]] = []
        for p, end in sorted(ranges):
            if self.pieces and p <= self.pieces[-1][1] + GAP:
                self.pieces[-1][1] = max(self.pieces[-1][1], end)
            else:
                self.pieces.append([p, end])
        self._last = 0

    def locate(self, p: int) -> tuple[int, int]:
        """Which piece, and how far into it."""
        lo, hi = 0, len(self.pieces)
        while hi - lo > 1:
            mid = (lo + hi) // 2
            lo, hi = (mid, hi) if self.pieces[mid][0] <= p else (lo, mid)
        return lo, p - self.pieces[lo][0]


def boxes_data(boxes: list[Box], regions: Regions, segments: bool) -> Event:
    at = [regions.locate(b.p) for b in boxes]
    out: Event = {"t0": [b.t0 for b in boxes], "t1": [b.t1 for b in boxes], "region": [r for r, _ in at],
                  "offset": [o for _, o in at], "n": [b.n for b in boxes]}
    if segments:
        out["us"] = [b.us for b in boxes]
        out["why"] = {str(i): b.why for i, b in enumerate(boxes) if b.why is not None}
        out["registered"] = {str(i): {
            "of": [[comm[:NAME], *times] for comm, times in b.registered.of.items()], "others": b.registered.others}
                             for i, b in enumerate(boxes) if b.registered}
    return out


def callers_data(blocks: list[Box], frames: Frames, every: list[Event]) -> Event:
    """The caller of each block, as an index into callers; nothing if no block names one. every: all callers, as summary has them."""
    stacks = {who: names_of(who.stack, frames) for who in dict.fromkeys(b.more for b in blocks if b.more)}
    used = set(stacks.values())
    callers = [c for c in every if c["stack"] in used]
    if not callers:
        return {}
    index = {c["stack"]: i for i, c in enumerate(callers)}
    names = sorted({name for c in callers for name in c["stack"]})
    number = {name: i for i, name in enumerate(names)}
    return {"frames": [name[:NAME] for name in names], "callers": [c["caller"][:NAME] for c in callers],
            "stacks": [[number[name] for name in c["stack"]] for c in callers],
            "caller": [index[stacks[b.more]] if b.more else None for b in blocks]}


def merged_data(kept: Largest, regions: Regions) -> list[list[int]]:
    return [[t0, t1, *regions.locate(p), end - p, count, total, most]
            for t0, t1, p, end, count, total, most in sorted(kept.rest.cells.values())]


def track_data(rank: Rank, process: int, d: int, track: Track, summary: Event, calls: int) -> Event:
    dev = rank.replay.devices[d]
    segments, blocks = track.segments.boxes, track.blocks.boxes
    regions = Regions([(b.p, b.p + b.n) for b in segments + blocks]
                      + [(c[2], c[3]) for kept in (track.segments, track.blocks) for c in kept.rest.cells.values()])
    known = ["held", *(["live", "cached"] if rank.traces_allocs else []), *(["registered"] if dev.registered.registered else []),
             *(["host"] if d in rank.replay.host.held else []),
             *(["past"] if d in recorder_of(rank).past else [])]
    columns = list(zip(*track.values.items)) or [()] * (1 + 3 * len(QUANTITIES))
    series: Event = {"width_ns": 1 << track.values.shift, "t": columns[0]}
    for i, name in enumerate(QUANTITIES):
        if name in known:
            low, high, last = columns[1 + 3 * i:4 + 3 * i]
            # Most curves are exact, and then these are the same.
            series[name] = {"last": last, **({"min": low} if low != last else {}), **({"max": high} if high != last else {})}
    figures = {name: summary[name] for name in FIGURES}
    figures["callers"] = [{**{k: c[k] for k in ("live_at_peak", "live_at_end", "requests")}, "caller": c["caller"][:NAME]}
                          for c in summary["callers"][:max(HOLDERS, calls // 10)]]
    figures["physical"] = [{**c, "object": c["object"][:NAME]} for f in recorder_of(rank).physical.figures() if f["device"] == d
                           for c in f["callers"][:HOLDERS]]
    root = flame.tree(summary["callers"])
    return {
        **({"flame": flame.data(root, calls, NAME)} if root.bytes else {}),
        "process": process, "device": d, "figures": figures, "series": series, **({"total": dev.total} if dev.total else {}),
        "peaks": {name: {"n": n, "t": t} for name, (n, t) in zip(QUANTITIES, track.peaks) if name in known and n >= 0},
        # As text: JavaScript's numbers hold no 64 bits.
        "regions": [[hex(p), end - p] for p, end in regions.pieces],
        "segments": boxes_data(segments, regions, True),
        "blocks": {**boxes_data(blocks, regions, False), **callers_data(blocks, rank.replay.frames, summary["callers"])},
        "merged_segments": merged_data(track.segments, regions), "merged_blocks": merged_data(track.blocks, regions),
        "marks": sorted(([t, kind, count, mark_text(rank, kind, text)] for kind, marks in track.marks.items() for t, count, _, text in marks.items),
                        key=lambda m: (m[0], m[1])),
        "merged": merged_notes(track),
    }


def mark_text(rank: Rank, kind: str, text: str) -> str:
    if kind != "policy":
        return text
    free, _, why = text.partition(": ")
    return f"free policy {policy_text(rank.header, free)}: {why}"


def merged_notes(track: Track) -> list[str]:
    """Notes for the reader of a picture that is not exact; none if it is."""
    notes = []
    if track.values.shift:
        notes.append(f"curves: least and greatest value of every {time_text(1 << track.values.shift)}; peaks are exact")
    for kept, noun, largest in ((track.segments, "segment", "largest"), (track.blocks, "block", "largest (by size and time)")):
        if kept.rest.count:
            notes.append(f"{noun}s: the {len(kept.boxes)} {largest} are exact, {count_of(kept.rest.count, 'other')} "
                         f"merged into {count_of(len(kept.rest.cells), 'area')}")
    for kind, marks in sorted(track.marks.items()):
        if marks.shift:
            notes.append(f"{kind}: events within {time_text(1 << marks.shift)} are one mark, with their number")
    return notes


def time_text(ns: int) -> str:
    for unit, name in ((10**9, "s"), (10**6, "ms"), (10**3, "us")):
        if ns >= unit:
            return f"{ns / unit:.3g} {name}"
    return f"{ns} ns"


def recorder_of(rank: Rank) -> Recorder:
    assert isinstance(rank.replay, Recorder)
    return rank.replay


def finish(ranks: list[Rank]) -> None:
    """After the last event of all files, once."""
    for r in ranks:
        recorder = recorder_of(r)
        recorder.finish()
        for d in recorder.tracks:
            if r.reader.ended:
                recorder.mark(d, "end", recorder.last_t, 0, "the process ended")
            else:
                recorder.mark(d, "killed", recorder.last_t, 0, "the last event: the process was killed or still runs")


def started(t0: Optional[int]) -> Optional[str]:
    """As text: hosts and readers may be in different time zones."""
    try:
        return datetime.fromtimestamp(t0 // 10**9, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC") if t0 else None
    except (OverflowError, OSError, ValueError):  # a wrong clock is no reason to fail
        return None


def page_data(ranks: list[Rank], begin: int, end: int, limits: Limits) -> Event:
    """Everything that is drawn. Times are ns since the process's own start; `offset` is that start after the first one's.
    Items beyond the limits of a device are merged, for good."""
    starts = [r.header["t0_unix_ns"] for r in ranks if "t0_unix_ns" in r.header]
    first = min(starts, default=0)
    processes: list[Event] = []
    out: list[Event] = []
    rows: list[Row] = []
    places: dict[int, int] = {}  # of rows: where they are in out
    for r in ranks:
        recorder = recorder_of(r)
        for d in sorted(recorder.tracks):
            recorder.tracks[d].fit(limits, recorder.last_t)
            row = Row(r, d, device_summary(r, recorder.devices[d]))
            if recorder.devices[d].pooled:
                places[id(row)] = len(out)
                rows.append(row)
            out.append(track_data(r, len(processes), d, recorder.tracks[d], row.figures, limits.calls))
        recorder.bands.fit(limits.ranges)
        processes.append({
            **({"bands": recorder.bands.data(r.header.get("pid"))} if recorder.bands else {}),
            "name": r.name, "file": os.path.basename(r.path), "rank": r.rank,
            **{k: r.header.get(k) for k in ("host", "pid", "exe", "version")},
            "state": r.reader.state, "complete": r.reader.complete, "problems": r.problems.count, "lines": r.reader.lines,
            "events": recorder.events, "last_ns": recorder.last_t, "allocs": r.traces_allocs,
            "started": started(r.header.get("t0_unix_ns")), "offset_ns": r.header.get("t0_unix_ns", first) - first})
    unlike = [[places[id(row)], ", ".join(texts)[:NAME]] for row, texts in (out_of_line(rows) if len(rows) > 2 else [])[:SHOWN]]
    return {"made_by": f"cupool-trace {VERSION}", **settings_data(ranks), "begin_ns": begin, "end_ns": end, "processes": processes, "tracks": out, "unlike": unlike}


def settings_data(ranks: list[Rank]) -> Event:
    """Those that are not the default; nothing where the defaults are not known."""
    known = defaults.defaults(defaults.find_program())
    return {"settings": [s[:NAME] for s in defaults.changed((r.header for r in ranks), known)]} if known else {}


def part(name: str) -> str:
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "page", name), encoding="ascii") as f:
        return f.read()


def template() -> str:
    """The page without its data."""
    text = part("page.html")
    for mark, content in (("@STYLE@", part("style.css")), ("@SCRIPT@", "\n".join(part(name) for name in SCRIPTS))):
        before, found, after = text.partition(mark)
        assert found
        text = before + content + after
    return text


def html(data: Event) -> str:
    # Names come from the trace, which may be hostile: no part of a name may end the element that holds the data.
    text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    before, mark, after = template().partition("@DATA@")
    assert mark
    return before + text + after


def page(ranks: list[Rank], begin: int, end: int, devices: int) -> tuple[Event, bytes]:
    """The data and the page of it, of no more than PAGE bytes; more only where each of very many devices has its least."""
    share, limits = 1.0, limits_for(devices)
    while True:
        data = page_data(ranks, begin, end, limits)
        content = html(data).encode("ascii")
        share *= 1.1 * len(content) / PAGE
        less = limits_for(devices, share)
        if len(content) <= PAGE or vars(less) == vars(limits):
            return data, content
        limits = less


def write(path: str, content: bytes) -> None:
    """Whole or not at all: nobody should look at half a page."""
    part = f"{path}.{os.getpid()}.part"
    try:
        with open(part, "wb") as f:
            f.write(content)
        os.replace(part, path)
    except BaseException:
        if os.path.exists(part):
            os.unlink(part)
        raise


def run(args: argparse.Namespace) -> int:
    # While reading, no more is kept than one page can hold; a file has seldom more than one device.
    limits = limits_for(len(args.files))
    if args.begin >= args.end:
        print(f"cupool-trace: --from {args.begin:g} --to {args.end:g}: no time is between them", file=sys.stderr)
        return 2
    begin, end = int(args.begin * 1e9), int(args.end * 1e9)
    ranks, unreadable = load(args.files, lambda problems: Recorder(problems, limits, begin, end))
    if not ranks:
        return 2
    finish(ranks)
    symbols.name_ranks(ranks, args)
    devices = sum(len(recorder_of(r).tracks) for r in ranks)
    if args.output.endswith(".html"):
        data, content = page(ranks, begin, end, devices)
    else:
        data = page_data(ranks, begin, end, limits_for(devices))
        content = svg(data).encode() if args.output.endswith(".svg") else png(data)
    try:
        write(args.output, content)
    except OSError as e:
        print(f"cupool-trace: {args.output}: {e.strerror or e}", file=sys.stderr)
        return 2
    bad = sum(1 for p in data["processes"] if p["problems"])
    if args.json:
        json.dump(report(args.output, len(content), data), sys.stdout, indent=1)
        print()
    else:
        print(f"{args.output}: {count_of(len(ranks), 'file')}, {count_of(len(data['tracks']), 'device')}, "
              f"{len(content) / 1e6:.1f} MB" + (f"; problems in {bad}, see cupool-trace check" if bad else ""))
    return 2 if unreadable else 1 if bad else 0


def report(path: str, size: int, data: Event) -> dict[str, Any]:
    return {"output": path, "bytes": size, "devices": [{
        "file": data["processes"][t["process"]]["file"], "rank": data["processes"][t["process"]]["rank"], "device": t["device"],
        "peaks": t["peaks"], "merged": t["merged"]} for t in data["tracks"]]}
