# SPDX-License-Identifier: Apache-2.0
"""Measures that replay counts with: bytes that ranges cover, memory that is registered with NCCL, and how long calls took.

Here: small containers in bounded memory. Not here: it knows no events, and finds no faults.
"""
from __future__ import annotations

import bisect
from typing import Optional


class Covered:
    """How many bytes lie in at least one of several ranges, which may overlap."""

    def __init__(self) -> None:
        self.bytes = 0
        self._edges = [0]  # where the number of ranges changes, by address
        self._counts = [0]  # so many ranges cover the bytes from an edge to the next one

    def change(self, start: int, end: int, by: int) -> None:
        """One range more (by = 1), or one of those that were added is gone (-1)."""
        first, last = self._edge(start), self._edge(end)
        for i in range(first, last):
            before, after = self._counts[i], self._counts[i] + by
            self._counts[i] = after
            if (before == 0) != (after == 0):
                self.bytes += by * (self._edges[i + 1] - self._edges[i])
        for i in sorted({first, last}, reverse=True):  # an edge with one number on both sides is none any more
            if i and self._counts[i] == self._counts[i - 1]:
                del self._edges[i], self._counts[i]

    def _edge(self, at: int) -> int:
        i = bisect.bisect_left(self._edges, at)
        if i == len(self._edges) or self._edges[i] != at:
            self._edges.insert(i, at)
            self._counts.insert(i, self._counts[i - 1])
        return i


class Registered:
    """Memory of one device that is registered with NCCL's communicators. Bytes that several have, or that a registration made anew
    has once more, are counted once."""

    def __init__(self) -> None:
        self.peak = self.registered = self.deregistered = self.refused = self.comms = 0
        self._of: dict[tuple[int, int], set[str]] = {}  # address and size: its communicators
        self._covered = Covered()

    @property
    def bytes(self) -> int:
        return self._covered.bytes

    def add(self, p: int, n: int, comm: str) -> None:
        self.registered += 1
        if (p, n) not in self._of:
            self._of[p, n] = set()
            self._covered.change(p, p + n, 1)
            self.peak = max(self.peak, self.bytes)
        self._of[p, n].add(comm)

    def remove(self, p: int, n: int, comm: str) -> None:
        self.deregistered += 1
        self._leave(p, n, comm)

    def end(self, comm: str) -> None:
        """The communicator has ended, and its registrations with it."""
        for p, n in [at for at, comms in self._of.items() if comm in comms]:
            self._leave(p, n, comm)

    def _leave(self, p: int, n: int, comm: str) -> None:
        comms = self._of.get((p, n), set())
        comms.discard(comm)
        if not comms and self._of.pop((p, n), None) is not None:
            self._covered.change(p, p + n, -1)


class Durations:
    """How long calls took, each to three digits, so that the memory for any number of them is bounded."""

    def __init__(self) -> None:
        self._counts: dict[float, int] = {}

    def add(self, us: float) -> None:
        us = float(f"{us:.3g}")
        self._counts[us] = self._counts.get(us, 0) + 1

    def add_all(self, other: Durations) -> None:
        for us, count in other._counts.items():
            self._counts[us] = self._counts.get(us, 0) + count

    def copy(self) -> Durations:
        out = Durations()
        out._counts = dict(self._counts)
        return out

    @property
    def median(self) -> Optional[float]:
        """The lower one of two; None without a call."""
        left = (sum(self._counts.values()) + 1) // 2
        for us in sorted(self._counts):
            left -= self._counts[us]
            if left <= 0:
                return us
        return None
