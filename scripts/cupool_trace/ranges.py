# SPDX-License-Identifier: Apache-2.0
"""Address ranges that do not overlap: segments, or blocks, of one device.

Not here: counters of bytes; see replay.
"""
from __future__ import annotations

import bisect
from typing import Any, Iterator, Optional

LONG = 1 << 10  # starts in one list; to insert into a list takes as long as it is
Range = tuple[int, int, int, Any, int]  # end, size as traced, the line that made it, whatever else is to be known of it, since when it is there


class Ranges:
    """Address ranges [start, end) that do not overlap.

    Programs use the same addresses again and again. So a range that goes leaves its room, from its start to some end, to the next one
    that starts there; a range that fits into that room is known to overlap no other without a search. Rooms do not overlap either.
    """

    def __init__(self) -> None:
        self.of: dict[int, Range] = {}  # by their starts
        self.rooms: dict[int, int] = {}  # start: end; of ranges that are there, and of some that were
        self._lists: list[list[int]] = [[]]  # all starts of rooms in order, in lists none of which is empty, unless it is the only one
        self._firsts: list[int] = []  # the first of each list but the first one

    def __len__(self) -> int:
        return len(self.of)

    def __contains__(self, start: int) -> bool:
        return start in self.of

    def add(self, start: int, end: int, n: int, line: int, more: Any = None, since: int = 0) -> bool:
        """False: another range has a byte of this one (overlapping() says which), so nothing was added."""
        of = self.of
        if start in of or (self.rooms.get(start, 0) < end and not self.make_room(start, end)):
            return False
        of[start] = (end, n, line, more, since)
        return True

    def make_room(self, start: int, end: int) -> bool:
        if len(self.rooms) > 2 * len(self.of) + LONG:
            self._forget_rooms()
        met = self._rooms_in(start, end)
        if any(s in self.of and self.of[s][0] > start for s in met):
            return False
        for s in met:
            if s < start:
                self.rooms[s] = start  # as much as it has a use for
            elif s > start:
                self._remove_room(s)
        if start not in self.rooms:
            self._insert_room(start)
        self.rooms[start] = end
        return True

    def _insert_room(self, start: int) -> None:
        at = bisect.bisect_right(self._firsts, start)
        starts = self._lists[at]
        bisect.insort_right(starts, start)
        if len(starts) > LONG:
            half = starts[LONG // 2:]
            del starts[LONG // 2:]
            self._lists.insert(at + 1, half)
            self._firsts.insert(at, half[0])

    def _remove_room(self, start: int) -> None:
        at = bisect.bisect_right(self._firsts, start)
        starts = self._lists[at]
        del starts[bisect.bisect_left(starts, start)]
        if starts:
            if at:
                self._firsts[at - 1] = starts[0]
        elif self._firsts:
            del self._lists[at]
            del self._firsts[max(0, at - 1)]
        del self.rooms[start]

    def _forget_rooms(self) -> None:
        """Forget the rooms of ranges that went: they are so many that they would take more memory than the ranges."""
        starts = [s for each in self._lists for s in each if s in self.of]
        self.rooms = {s: self.rooms[s] for s in starts}
        self._lists = [starts[i:i + LONG // 2] for i in range(0, len(starts), LONG // 2)] or [[]]
        self._firsts = [each[0] for each in self._lists[1:]]

    def get(self, start: int) -> Optional[Range]:
        return self.of.get(start)

    def more(self, start: int) -> Any:
        known = self.of.get(start)
        return known[3] if known else None

    def take(self, start: int) -> Optional[Range]:
        """The range that starts there, which is gone then; None: none does."""
        return self.of.pop(start, None)

    def pop(self, start: int) -> Range:
        """Take a range that is known to be there."""
        gone = self.take(start)
        assert gone
        return gone

    def items(self) -> Iterator[tuple[int, int, int]]:
        """Start, end and size as traced of each, by address."""
        for starts in self._lists:
            for start in starts:
                if start in self.of:
                    end, n, *_ = self.of[start]
                    yield start, end, n

    def start_of(self, p: int) -> int:
        """The start of the range that p lies in, if it lies in one; otherwise any number."""
        starts = self._lists[bisect.bisect_right(self._firsts, p)]
        i = bisect.bisect_right(starts, p)
        return starts[i - 1] if i else 0  # a list begins at or before any address that is looked up in it, unless it is the first

    def end_of(self, p: int) -> int:
        """The end of the range that p lies in; 0 if it lies in none."""
        found = self.of.get(self.start_of(p))
        return found[0] if found and p < found[0] else 0

    def overlapping(self, start: int, end: int) -> list[int]:
        """The starts of all ranges that share a byte with [start, end)."""
        return [s for s in self._rooms_in(start, end) if s in self.of and self.of[s][0] > start]

    def _rooms_in(self, start: int, end: int) -> list[int]:
        """The starts of all rooms that share a byte with [start, end)."""
        at = bisect.bisect_right(self._firsts, start)
        starts = self._lists[at]
        i = bisect.bisect_right(starts, start) - 1
        if i < 0 or self.rooms[starts[i]] <= start:
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
