# SPDX-License-Identifier: Apache-2.0
"""Live segments and blocks of each device, followed through one file's events.

What it is: Replay (the state after each event, and counters), Rank (one file, read to its end) and load (all files).
What it is not: it keeps no events; memory is bounded by what is live. What cannot be, such as two live blocks that overlap,
goes to the file's problems and the replay goes on.
"""
from __future__ import annotations

import bisect
import heapq
import re
import sys
from array import array
from typing import Callable, Iterator, Optional

from . import comms
from .reader import KEEP, CannotRead, Event, Problems, Reader, STATS, in_time_order

GRANULE = 512  # blocks are multiples of this


def block_of(ev: Event) -> int:
    """What an alloc event's request took: `n`, which was asked for, rounded up, unless it says otherwise."""
    n: int = (ev["n"] + GRANULE - 1) // GRANULE * GRANULE
    return max(ev["block"], n) if "block" in ev else n


KEEP_SEQUENCE = 1 << 18  # segments per device that are compared between ranks


LONG = 1 << 10  # starts in one list; to insert into a list takes as long as it is


class Ranges:
    """Address ranges [start, end) that do not overlap, each with its size as traced and the line that made it."""

    def __init__(self) -> None:
        self._lists: list[list[int]] = [[]]  # all starts in order, in lists none of which is empty, unless it is the only one
        self._firsts: list[int] = []  # the first of each list but the first one
        self._of: dict[int, tuple[int, int, int]] = {}  # start: end, n, line

    def __len__(self) -> int:
        return len(self._of)

    def __contains__(self, start: int) -> bool:
        return start in self._of

    def add(self, start: int, end: int, n: int, line: int) -> bool:
        """False: another range has a byte of this one (overlapping() says which), so nothing was added."""
        at = bisect.bisect_right(self._firsts, start)
        starts = self._lists[at]
        i = bisect.bisect_right(starts, start)
        if i and self._of[starts[i - 1]][0] > start:
            return False
        if i < len(starts):
            if starts[i] < end:
                return False
        elif at < len(self._firsts) and self._firsts[at] < end:
            return False
        starts.insert(i, start)
        self._of[start] = (end, n, line)
        if len(starts) > LONG:
            half = starts[LONG // 2:]
            del starts[LONG // 2:]
            self._lists.insert(at + 1, half)
            self._firsts.insert(at, half[0])
        return True

    def get(self, start: int) -> Optional[tuple[int, int, int]]:
        return self._of.get(start)

    def pop(self, start: int) -> tuple[int, int, int]:
        at = bisect.bisect_right(self._firsts, start)
        starts = self._lists[at]
        del starts[bisect.bisect_left(starts, start)]
        if starts:
            if at:
                self._firsts[at - 1] = starts[0]
        elif self._firsts:
            del self._lists[at]
            del self._firsts[max(0, at - 1)]
        return self._of.pop(start)

    def items(self) -> Iterator[tuple[int, int, int]]:
        """Start, end and size as traced of each, by address."""
        for starts in self._lists:
            for start in starts:
                end, n, _ = self._of[start]
                yield start, end, n

    def end_of(self, p: int) -> int:
        """The end of the range that p lies in; 0 if it lies in none."""
        starts = self._lists[bisect.bisect_right(self._firsts, p)]
        i = bisect.bisect_right(starts, p)
        if not i:
            return 0  # a list begins at or before what is looked up in it, unless it is the first
        end = self._of[starts[i - 1]][0]
        return end if p < end else 0

    def overlapping(self, start: int, end: int) -> list[int]:
        """The starts of all ranges that share a byte with [start, end)."""
        at = bisect.bisect_right(self._firsts, start)
        starts = self._lists[at]
        i = bisect.bisect_right(starts, start) - 1
        if i < 0 or self._of[starts[i]][0] <= start:
            i += 1
        found: list[int] = []
        while True:
            j = bisect.bisect_left(starts, end, i)
            if j > i:
                found += starts[i:j]
            at += 1
            if j < len(starts) or at == len(self._lists):
                return found
            starts, i = self._lists[at], 0


class Caller:
    """A place in the program that asked for memory of one device."""

    __slots__ = ("requests", "live", "_at_peak", "_peaks")

    def __init__(self) -> None:
        self.requests = self.live = self._at_peak = self._peaks = 0

    def change(self, n: int, peaks: int) -> None:
        """n bytes more are live, after so many peaks of the device. What was live at the last one is noted only when it changes."""
        if self._peaks != peaks:
            self._peaks, self._at_peak = peaks, self.live
        self.live += n

    def at_peak(self, peaks: int) -> int:
        return self._at_peak if self._peaks == peaks else self.live


def caller_of(ev: Event) -> Optional[int]:
    """The number of the frame that an alloc event came from; None without CUPOOL_TRACE_STACKS."""
    frames = ev.get("f")
    return frames[0] if frames else None


UNKNOWN = "unknown"  # the caller that has no number, or whose number has no name
_NAMED = re.compile(r"(.*)\+0x[0-9a-f]+ (\(.*\))")


def caller_name(at: Optional[str]) -> str:
    """A frame's object and function; its object and offset where the function is not known."""
    if at is None:
        return UNKNOWN
    named = _NAMED.fullmatch(at)
    return f"{named[1]} {named[2]}" if named else at


class Device:
    """What one process did on one device: live ranges, and counters taken from events."""

    def __init__(self) -> None:
        self.segments, self.blocks = Ranges(), Ranges()
        self.held = self.peak_held = self.live = self.peak_live = 0
        self.segments_alloc = self.segments_free = self.allocs = self.frees = 0
        self.driver_calls = 0
        self.driver_us = 0.0
        self.trims = self.trimmed = self.oom = self.ipc_ok = self.ipc_refused = 0
        self.oom_moments: list[Event] = []
        self.policy: list[Event] = []
        self.name: Optional[str] = None
        self.stats: Optional[Event] = None
        self.stats_at: Optional[int] = None  # when, if that was not at the end
        self.largest: list[tuple[int, int, str]] = []  # heap of n, -t, p
        self.sequence = array("q")  # sizes of segments in the order they were got
        self.peaks = 0  # how often live memory was more than ever before
        self.callers: dict[int, Caller] = {}  # by the number of their frame
        self._asked: dict[int, Caller] = {}  # who asked for a live block

    def begin_block(self, p: int, end: int, caller: Optional[int]) -> None:
        """One that is in blocks already."""
        self.allocs += 1
        if caller is not None:
            who = self.callers.get(caller)
            if who is None:
                who = self.callers[caller] = Caller()
            self._asked[p] = who
            who.requests += 1
            who.change(end - p, self.peaks)
        self.live += end - p
        if self.live > self.peak_live:
            self.peak_live = self.live
            self.peaks += 1

    def end_block(self, p: int) -> tuple[int, int]:
        """Its size as traced and its line."""
        end, n, line = self.blocks.pop(p)
        self.live -= end - p
        if self._asked:
            who = self._asked.pop(p, None)
            if who:
                who.change(p - end, self.peaks)
        return n, line


class Replay:
    """Follows live segments and blocks through one file's events, in order; what cannot be is a problem."""

    def __init__(self, problems: Problems) -> None:
        self.devices: dict[int, Device] = {}
        self.frames: dict[int, str] = {}  # number: object and offset
        self.last_t = 0
        self.events = 0
        self.comms = comms.Comms(problems.add)
        self._add = problems.add
        self._on: dict[str, Callable[[int, Event, Device], None]] = {
            "segment_alloc": self._segment_alloc, "segment_free": self._segment_free, "trim": self._trim, "oom": self._oom,
            "device": self._device, "policy": self._policy, "ipc": self._ipc, "alloc": self._alloc, "free_requested": self._free_requested,
            "stats": self._stats,
        }

    def apply(self, line: int, ev: Event) -> None:
        self.events += 1
        if ev["t"] > self.last_t:
            self.last_t = ev["t"]
        handler = self._on.get(ev["e"])
        if handler:
            dev = self.devices.get(ev["d"])
            if dev is None:
                dev = self.devices[ev["d"]] = Device()
            handler(line, ev, dev)
        elif ev["e"] == "frame":
            self.frames[ev["f"]] = ev["at"]
        elif ev["e"] in comms.EVENTS:
            self.comms.apply(line, ev)

    def _segment_alloc(self, line: int, ev: Event, dev: Device) -> None:
        p, n = int(ev["p"], 16), ev["n"]
        if not dev.segments.add(p, p + n, n, line):
            for old in dev.segments.overlapping(p, p + n):
                _, old_n, old_line = dev.segments.pop(old)
                dev.held -= old_n
                self._add(line, f"segment_alloc {ev['p']} {n}: overlaps the live segment {old:#x} {old_n} of line {old_line}")
            dev.segments.add(p, p + n, n, line)
        dev.segments_alloc += 1
        dev.held += n
        dev.peak_held = max(dev.peak_held, dev.held)
        dev.driver_calls += 1
        dev.driver_us += ev["us"]
        if len(dev.sequence) < KEEP_SEQUENCE:
            dev.sequence.append(min(n, (1 << 63) - 1))
        entry = (n, -ev["t"], ev["p"])
        if len(dev.largest) < 5:
            heapq.heappush(dev.largest, entry)
        else:
            heapq.heappushpop(dev.largest, entry)

    def _segment_free(self, line: int, ev: Event, dev: Device) -> None:
        p, n = int(ev["p"], 16), ev["n"]
        died = ev.get("why") == "context"
        dev.segments_free += 1
        if not died:
            dev.driver_calls += 1
            dev.driver_us += ev.get("us", 0)
        known = dev.segments.get(p)
        if known is None:
            self._add(line, f"segment_free {ev['p']} {n}: no live segment starts there")
            return
        end, known_n, known_line = dev.segments.pop(p)
        dev.held -= known_n
        if known_n != n:
            self._add(line, f"segment_free {ev['p']} {n}: the segment of line {known_line} has {known_n} bytes")
        inside = dev.blocks.overlapping(p, end)
        for b in inside:
            dev.end_block(b)
        if inside and not died:
            self._add(line, f"segment_free {ev['p']} {n}: {len(inside)} live blocks in it, the first at {inside[0]:#x}")

    def _alloc(self, line: int, ev: Event, dev: Device) -> None:
        p, n = int(ev["p"], 16), ev["n"]
        end = p + block_of(ev)
        if dev.segments.end_of(p) < p + n:
            self._add(line, f"alloc {ev['p']} {n}: not inside a live segment")
        if not dev.blocks.add(p, end, n, line):
            for old in dev.blocks.overlapping(p, end):
                old_n, old_line = dev.end_block(old)
                self._add(line, f"alloc {ev['p']} {n}: overlaps the live block {old:#x} {old_n} of line {old_line} (reused too early)")
            dev.blocks.add(p, end, n, line)
        dev.begin_block(p, end, caller_of(ev))

    def _free_requested(self, line: int, ev: Event, dev: Device) -> None:
        p, n = int(ev["p"], 16), ev["n"]
        dev.frees += 1
        if p not in dev.blocks:
            self._add(line, f"free_requested {ev['p']} {n}: no live block starts there")
            return
        known_n, known_line = dev.end_block(p)
        if known_n != n:
            self._add(line, f"free_requested {ev['p']} {n}: the block of line {known_line} has {known_n} bytes")

    def _trim(self, line: int, ev: Event, dev: Device) -> None:
        dev.trims += 1
        dev.trimmed += ev["n"]
        dev.driver_us += ev.get("us", 0)

    def _oom(self, line: int, ev: Event, dev: Device) -> None:
        dev.oom += 1
        if len(dev.oom_moments) < KEEP:
            dev.oom_moments.append({k: ev[k] for k in ("t", "n", "held", "live", "why") if k in ev})

    def _device(self, line: int, ev: Event, dev: Device) -> None:
        dev.name = ev["name"]

    def _policy(self, line: int, ev: Event, dev: Device) -> None:
        if len(dev.policy) < KEEP:
            dev.policy.append({k: ev[k] for k in ("t", "free", "why")})

    def _ipc(self, line: int, ev: Event, dev: Device) -> None:
        if ev["ok"]:
            dev.ipc_ok += 1
        else:
            dev.ipc_refused += 1

    def _stats(self, line: int, ev: Event, dev: Device) -> None:
        dev.stats = {k: ev[k] for k in STATS}
        dev.stats_at = ev["t"] if "why" in ev else None


class Rank:
    """One file, read to its end, by `follow`: a kind of Replay that may note more than the counters."""

    def __init__(self, path: str, follow: Callable[[Problems], Replay] = Replay) -> None:
        self.problems = Problems()
        self.reader = Reader(path, self.problems)
        self.replay = follow(self.problems)
        for line, ev in in_time_order(self.reader.events()):
            self.replay.apply(line, ev)
        self.path = path
        self.header = self.reader.header
        self.rank: Optional[int] = self.header.get("rank")
        # A header that does not say what is traced (because it is missing) is no reason to believe that nothing was.
        self.traces_allocs = "alloc" in self.header.get("events", "").split(",") or any(
            d.allocs for d in self.replay.devices.values())

    @property
    def name(self) -> str:
        return self.reader.name

    def live_at_end(self) -> tuple[int, int]:
        devices = self.replay.devices.values()
        return sum(len(d.segments) for d in devices), sum(len(d.blocks) for d in devices)


def load(paths: list[str], follow: Callable[[Problems], Replay] = Replay) -> tuple[list[Rank], int]:
    """Read all files, sorted by rank. Those that cannot be read are named on stderr; the other value is their number."""
    ranks, unreadable = [], 0
    for path in paths:
        try:
            ranks.append(Rank(path, follow))
        except CannotRead as e:
            unreadable += 1
            print(f"cupool-trace: {e}", file=sys.stderr)
    ranks.sort(key=lambda r: (*r.reader.order, r.path))
    return ranks, unreadable
