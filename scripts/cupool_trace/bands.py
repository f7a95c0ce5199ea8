# SPDX-License-Identifier: Apache-2.0
"""The ranges of NVTX of one process, in rows, for plot's page: those that a thread pushed lie below the one that they were pushed in.

Here: Bands, fed with range_begin and range_end; it keeps the longest ranges as they were, adds up the others, and counts all by name.
Not here: it draws nothing; page/bands.js does. Its memory is bounded, however many ranges, names and threads there are.
"""
from __future__ import annotations

import heapq
from typing import Any, Optional

from .schema import Event
from .text import count_of

ROWS = 24  # of a process; deeper ranges, and those of further threads, are counted only
NAMES = 1 << 12  # that are told apart
LISTED = 40  # names in the table
LETTERS = 300  # of a name's
OTHERS = "other names"
STARTED = -1  # in place of a thread: ranges that were started and may end in any order


class Open:
    """A range that has not ended. row: None if there is none left for it."""

    __slots__ = ("name", "t0", "row", "depth")

    def __init__(self, name: str, t0: int, row: Optional[int], depth: int) -> None:
        self.name, self.t0, self.row, self.depth = name, t0, row, depth


class Bands:
    """Ranges from `begin` to `end` (ns). At most `limit` are kept exactly."""

    def __init__(self, limit: int, begin: int, end: int) -> None:
        self.rows: list[tuple[int, int]] = []  # the thread and the depth of each
        self.count = self.hidden = 0  # ranges; those without a row
        self._limit, self._begin, self._end = limit, begin, end
        self._row_of: dict[tuple[int, int], int] = {}
        self._pushed: dict[int, list[tuple[str, Open]]] = {}  # by thread: domains and their ranges
        self._started: dict[int, Open] = {}  # by their numbers
        self._heap: list[tuple[int, int, int, Optional[int], str, int]] = []  # duration, -count; t0, t1, name, row
        self._rest: dict[tuple[int, int], list[int]] = {}  # by row and time: first begin, last end, count
        self._rest_count, self._shift = 0, 10
        self._names: dict[str, list[int]] = {}  # count, ns in all, the longest, when that began

    def __bool__(self) -> bool:
        return self.count > 0

    def apply(self, ev: Event) -> None:
        """Any event of no device."""
        if ev["e"] == "range_begin":
            self._start(ev)
        elif ev["e"] == "range_end":
            self._stop(ev["tid"], ev["domain"], ev["range"], ev["t"])
        elif ev["e"] == "gap":
            self.close(ev["t"])

    def _start(self, ev: Event) -> None:
        tid, number, t = ev["tid"], ev["range"], ev["t"]
        name = (ev["text"] if not ev["domain"] else f"{ev['domain']}: {ev['text']}")[:LETTERS]
        if number:
            taken = {o.depth for o in self._started.values()}
            depth = next(i for i in range(len(taken) + 1) if i not in taken)
            self._started[number] = Open(name, t, self._row(STARTED, depth), depth)
        else:
            stack = self._pushed.setdefault(tid, [])
            depth = stack[-1][1].depth + 1 if stack else 0
            stack.append((ev["domain"], Open(name, t, self._row(tid, depth), depth)))

    def _row(self, tid: int, depth: int) -> Optional[int]:
        key = tid, depth
        if key not in self._row_of and len(self.rows) < ROWS:
            self._row_of[key] = len(self.rows)
            self.rows.append(key)
        return self._row_of.get(key)

    def _stop(self, tid: int, domain: str, number: int, t: int) -> None:
        """An end without a beginning was before the trace."""
        if number:
            gone = self._started.pop(number, None)
        else:
            stack = self._pushed.get(tid, [])
            at = next((i for i in range(len(stack) - 1, -1, -1) if stack[i][0] == domain), None)  # each domain has a stack of its own
            gone = None if at is None else stack.pop(at)[1]
        if gone:
            self._ended(gone, t)

    def close(self, t: Optional[int], last: int = 0) -> None:
        """The ends of the open ranges are not known: events were left out, or (None) the trace ends, at `last`."""
        for gone in [o for stack in self._pushed.values() for _, o in stack] + list(self._started.values()):
            self._ended(gone, t, last)
        self._pushed.clear()
        self._started.clear()

    def _ended(self, gone: Open, t: Optional[int], last: int = 0) -> None:
        t0, t1 = gone.t0, max(gone.t0, last if t is None else t)
        if t1 < self._begin or t0 > self._end:
            return
        self.count += 1
        name = gone.name if gone.name in self._names or len(self._names) < NAMES else OTHERS
        known = self._names.setdefault(name, [0, 0, -1, 0])
        known[0] += 1
        known[1] += t1 - t0
        if t1 - t0 > known[2]:
            known[2:] = t1 - t0, t0
        if gone.row is None:
            self.hidden += 1
            return
        entry = (t1 - t0, -self.count, t0, None if t is None else t1, gone.name, gone.row)
        if len(self._heap) < self._limit:
            heapq.heappush(self._heap, entry)
        else:
            self._merge(heapq.heappushpop(self._heap, entry))

    def _merge(self, entry: "tuple[int, int, int, Optional[int], str, int]") -> None:
        duration, _, t0, _, _, row = entry
        self._rest_count += 1
        self._put(row, [t0, t0 + duration, 1])
        if len(self._rest) > max(16, self._limit // 2):
            self._widen(max(16, self._limit // 4))

    def _put(self, row: int, cell: list[int]) -> None:
        into = self._rest.setdefault((row, cell[0] >> self._shift), cell)
        if into is not cell:
            into[0], into[1], into[2] = min(into[0], cell[0]), max(into[1], cell[1]), into[2] + cell[2]

    def _widen(self, limit: int) -> None:
        while len(self._rest) > limit and self._shift < 64:
            self._shift += 1
            old, self._rest = self._rest, {}
            for (row, _), cell in old.items():
                self._put(row, cell)

    def fit(self, limit: int) -> None:
        self._limit = min(limit, self._limit)
        while len(self._heap) > limit:
            self._merge(heapq.heappop(self._heap))
        self._widen(max(16, limit // 4))

    @property
    def merged_note(self) -> Optional[str]:
        """The ranges that the page leaves out, in words; None: there are none."""
        notes = []
        if self._rest_count:
            notes.append(f"the {len(self._heap)} longest of {self.count} are exact, {count_of(self._rest_count, 'other')} "
                         f"merged into {count_of(len(self._rest), 'area')}")
        if self.hidden:
            notes.append(f"{self.hidden} are not drawn, deeper than {ROWS} rows or of further threads")
        return f"ranges: {'; '.join(notes)}" if notes else None

    def data(self, pid: Any) -> Event:
        """Columns of the ranges by their beginnings, and the table of names: the first are those with the most time."""
        kept = sorted(((t0, row, t1, name) for _, _, t0, t1, name, row in self._heap), key=lambda k: k[:2])
        names = sorted({name for *_, name in kept})
        number = {name: i for i, name in enumerate(names)}
        order = sorted(range(len(self.rows)), key=lambda i: (self.rows[i][0] == STARTED, self.rows[i][0] != pid, self.rows[i]))
        place = {row: i for i, row in enumerate(order)}
        listed = sorted(self._names.items(), key=lambda item: (-item[1][1], item[0]))
        return {
            "rows": [{"thread": "any thread" if tid == STARTED else "main thread" if tid == pid else f"thread {tid}", "depth": depth}
                     for tid, depth in (self.rows[i] for i in order)],
            "names": names, "t0": [k[0] for k in kept], "t1": [k[2] for k in kept], "name": [number[k[3]] for k in kept],
            "row": [place[k[1]] for k in kept],
            "merged": sorted([place[row], *cell] for (row, _), cell in self._rest.items()),
            "count": self.count, "note": self.merged_note,
            "by_name": [[name, *figures] for name, figures in listed[:LISTED]], "other_names": max(0, len(listed) - LISTED)}
