# SPDX-License-Identifier: Apache-2.0
"""The pool of pinned host memory of a process (CUPOOL_HOST_POOL=1), followed through its events.

Here: Host (the allocations of the driver that the pool holds, and counters). Not here: device memory; see replay.
Contradictions go to the file's problems.
"""
from __future__ import annotations

from typing import Callable, Optional

from .ranges import Ranges
from .reader import KEEP
from .schema import HOST_STATS, Event


class Host:
    """Bytes of pinned memory by the device whose context owns it, and counters taken from events."""

    def __init__(self, add: Callable[[int, str], None]) -> None:
        self.segments = Ranges()  # a segment's `more` is its device
        self.held: dict[int, int] = {}  # by device
        self.peak_held = 0
        self.segments_alloc = self.segments_free = self.lost = 0
        self.driver_us = 0.0
        self.stats: Optional[Event] = None
        self.stats_at: Optional[int] = None  # when, if that was not at the end
        self.oom = 0
        self.oom_moments: list[Event] = []
        self._add = add

    def _change(self, d: int, n: int) -> None:
        self.held[d] = max(0, self.held.get(d, 0) + n)
        self.peak_held = max(self.peak_held, sum(self.held.values()))

    def _drop(self, p: int) -> None:
        gone = self.segments.take(p)
        if gone:
            self._change(gone[3], -gone[1])

    def alloc(self, line: int, ev: Event) -> None:
        p, n = int(ev["p"], 16), ev["n"]
        for old in self.segments.overlapping(p, p + n):
            known = self.segments.get(old)
            self._add(line, f"host_alloc {ev['p']} {n}: overlaps the live segment {old:#x} {known[1] if known else 0}")
            self._drop(old)
        self.segments.add(p, p + n, n, line, ev["d"])
        self.segments_alloc += 1
        self.driver_us += ev["us"]
        self._change(ev["d"], n)

    def free(self, line: int, ev: Event) -> None:
        p, n = int(ev["p"], 16), ev["n"]
        self.segments_free += 1
        self.lost += ev.get("why") == "lost"
        self.driver_us += ev["us"]
        known = self.segments.get(p)
        if known is None:
            self._add(line, f"host_free {ev['p']} {n}: no live segment starts there")
            self._change(ev["d"], -n)
            return
        if known[1] != n:
            self._add(line, f"host_free {ev['p']} {n}: the segment of line {known[2]} has {known[1]} bytes")
        self._drop(p)

    def told(self, line: int, ev: Event) -> None:
        """A device's contexts own so many bytes after events were left out; which segments these are is not known."""
        for start, _, _ in list(self.segments.items()):
            if self.segments.more(start) == ev["d"]:
                self.segments.take(start)
        self._change(ev["d"], ev["n"] - self.held.get(ev["d"], 0))

    def refused(self, line: int, ev: Event) -> None:
        """The program got the out-of-memory error for pinned memory."""
        self.oom += 1
        if len(self.oom_moments) < KEEP:
            self.oom_moments.append({k: ev[k] for k in ("t", "n", "held", "live", "idle", "waiting", "why")})

    def count(self, line: int, ev: Event) -> None:
        self.stats = {k: ev[k] for k in HOST_STATS}
        self.stats_at = ev["t"] if "why" in ev else None

    @property
    def used(self) -> bool:
        return bool(self.stats or self.segments_alloc or self.segments_free or self.held or self.oom)

    def figures(self) -> Optional[Event]:
        """None: no pinned memory was pooled. Requests, hits and live bytes are those of the last host_stats, None without."""
        if not self.used:
            return None
        s = self.stats
        tried = s["hits"] + s["misses"] if s else 0
        keys = ("hits", "misses", "failed", "peak_live", "live", "waiting", "bound", "refused")
        return {
            "stats_at": None if self.stats_at is None else self.stats_at / 1e9,
            "requests": s["allocs"] if s else None, **{k: s[k] if s else None for k in keys},
            "hit_rate": round(s["hits"] / tried, 6) if s and tried else None,
            "held_at_end": sum(self.held.values()), "peak_held": max(self.peak_held, s["peak_held"] if s else 0),
            "segments_alloc": self.segments_alloc, "segments_free": self.segments_free,
            "driver_calls": self.segments_alloc + self.segments_free - self.lost, "driver_us": round(self.driver_us, 3),
            "oom": self.oom, "oom_moments": self.oom_moments,
        }
