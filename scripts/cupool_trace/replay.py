# SPDX-License-Identifier: Apache-2.0
"""Live segments and blocks of each device, followed through one file's events.

What it is: Replay (the state after each event, and counters), Rank (one file, read to its end) and load (all files).
What it is not: it keeps no events; memory is bounded by what is live. What cannot be, such as two live blocks that overlap,
goes to the file's problems and the replay goes on.
"""
from __future__ import annotations

import bisect
import heapq
import sys
from array import array
from typing import Callable, Iterator, Optional

from .reader import KEEP, CannotRead, Event, Problems, Reader, STATS, in_time_order

GRANULE = 512  # blocks are multiples of this


def block_of(ev: Event) -> int:
    """What an alloc event's request took: `n`, which was asked for, rounded up, unless it says otherwise."""
    n: int = ev["n"]
    return max(ev.get("block", 0), (n + GRANULE - 1) // GRANULE * GRANULE)


KEEP_SEQUENCE = 1 << 18  # segments per device that are compared between ranks


class Ranges:
    """Address ranges [start, end) that do not overlap, each with its size as traced and the line that made it."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._of: dict[int, tuple[int, int, int]] = {}  # start: end, n, line

    def __len__(self) -> int:
        return len(self._starts)

    def add(self, start: int, end: int, n: int, line: int) -> None:
        bisect.insort(self._starts, start)
        self._of[start] = (end, n, line)

    def get(self, start: int) -> Optional[tuple[int, int, int]]:
        return self._of.get(start)

    def pop(self, start: int) -> tuple[int, int, int]:
        del self._starts[bisect.bisect_left(self._starts, start)]
        return self._of.pop(start)

    def items(self) -> Iterator[tuple[int, int, int]]:
        """Start, end and size as traced of each, by address."""
        for start in self._starts:
            end, n, _ = self._of[start]
            yield start, end, n

    def containing(self, p: int) -> Optional[int]:
        """The start of the range that p lies in."""
        i = bisect.bisect_right(self._starts, p) - 1
        return self._starts[i] if i >= 0 and p < self._of[self._starts[i]][0] else None

    def overlapping(self, start: int, end: int) -> list[int]:
        """The starts of all ranges that share a byte with [start, end)."""
        i = bisect.bisect_right(self._starts, start) - 1
        if i < 0 or self._of[self._starts[i]][0] <= start:
            i += 1
        return self._starts[i:bisect.bisect_left(self._starts, end, lo=i)]


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


class Replay:
    """Follows live segments and blocks through one file's events, in order; what cannot be is a problem."""

    def __init__(self, problems: Problems) -> None:
        self.devices: dict[int, Device] = {}
        self.last_t = 0
        self.events = 0
        self._add = problems.add
        self._on: dict[str, Callable[[int, Event, Device], None]] = {
            "segment_alloc": self._segment_alloc, "segment_free": self._segment_free, "trim": self._trim, "oom": self._oom,
            "device": self._device, "policy": self._policy, "ipc": self._ipc, "alloc": self._alloc, "free_requested": self._free_requested,
            "stats": self._stats,
        }

    def apply(self, line: int, ev: Event) -> None:
        self.events += 1
        self.last_t = max(self.last_t, ev["t"])
        handler = self._on.get(ev["e"])
        if handler:
            dev = self.devices.get(ev["d"])
            if dev is None:
                dev = self.devices[ev["d"]] = Device()
            handler(line, ev, dev)

    def _segment_alloc(self, line: int, ev: Event, dev: Device) -> None:
        p, n = int(ev["p"], 16), ev["n"]
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
            b_end, _, _ = dev.blocks.pop(b)
            dev.live -= b_end - b
        if inside and not died:
            self._add(line, f"segment_free {ev['p']} {n}: {len(inside)} live blocks in it, the first at {inside[0]:#x}")

    def _alloc(self, line: int, ev: Event, dev: Device) -> None:
        p, n = int(ev["p"], 16), ev["n"]
        end = p + block_of(ev)
        seg = dev.segments.containing(p)
        if seg is None or dev.segments.get(seg)[0] < p + n:  # type: ignore[index]
            self._add(line, f"alloc {ev['p']} {n}: not inside a live segment")
        for old in dev.blocks.overlapping(p, end):
            old_end, old_n, old_line = dev.blocks.pop(old)
            dev.live -= old_end - old
            self._add(line, f"alloc {ev['p']} {n}: overlaps the live block {old:#x} {old_n} of line {old_line} (reused too early)")
        dev.blocks.add(p, end, n, line)
        dev.allocs += 1
        dev.live += end - p
        dev.peak_live = max(dev.peak_live, dev.live)

    def _free_requested(self, line: int, ev: Event, dev: Device) -> None:
        p, n = int(ev["p"], 16), ev["n"]
        dev.frees += 1
        if dev.blocks.get(p) is None:
            self._add(line, f"free_requested {ev['p']} {n}: no live block starts there")
            return
        end, known_n, known_line = dev.blocks.pop(p)
        dev.live -= end - p
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
