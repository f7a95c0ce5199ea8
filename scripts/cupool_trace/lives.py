# SPDX-License-Identifier: Apache-2.0
"""Events -> memory that was got and given back, without contradictions.

Here: Lives, for formats whose readers fall over what cannot be: a block outside any segment, a free of nothing, two
blocks in one place. Not here: a judge; it leaves out or completes, and counts. What was wrong is for replay and check.
"""
from __future__ import annotations

from .ranges import Ranges
from .brief import block_size
from .schema import Event
from .source import why_of

TOP = 1 << 63  # addresses and sizes from here on are none of a device, and do not fit into other formats' signed numbers

ALLOC, FREE, SEGMENT_ALLOC, SEGMENT_FREE = range(4)
Step = tuple[int, int, int]  # which of those, address, bytes


class Lives:
    """One process's live segments and blocks. Feed it every event; each step that it returns is possible after those before it.
    Of a block, `more` is the frames that asked for it.

    whole: each segment is one block of its size, for traces without allocation events.
    loose: blocks need no segment, for formats that know none.
    """

    def __init__(self, whole: bool = False, loose: bool = False) -> None:
        self.segments: dict[int, Ranges] = {}
        self.blocks: dict[int, Ranges] = {}
        self.contradictions = 0
        self._gapped = False  # events were left out, which contradicts those after it
        self._whole = whole
        self._loose = loose
        self._on = {"segment_alloc": self._segment_alloc, "segment_free": self._segment_free}
        if not whole:
            # The program may use a block again once free_requested was written, so that is when it is gone.
            self._on.update({"alloc": self._alloc, "free_requested": self._free})

    def feed(self, ev: Event) -> list[Step]:
        if ev["e"] == "gap":
            self._gapped = True
        handler = self._on.get(ev["e"])
        if not handler:
            return []
        p, n, d = int(ev["p"], 16), ev["n"], ev["d"]
        if p + n > TOP:
            self._contradicted()
            return []
        if d not in self.segments:
            self.segments[d], self.blocks[d] = Ranges(), Ranges()
        return handler(self.segments[d], self.blocks[d], p, n, ev)

    def _contradicted(self) -> None:
        self.contradictions += not self._gapped

    def _segment_alloc(self, segments: Ranges, blocks: Ranges, p: int, n: int, ev: Event) -> list[Step]:
        steps: list[Step] = []
        if not segments.add(p, p + n, n, 0):
            for old in segments.overlapping(p, p + n):
                self._contradicted()
                steps += self._end_segment(segments, blocks, old)
            segments.add(p, p + n, n, 0)
        steps.append((SEGMENT_ALLOC, p, n))
        if self._whole:
            blocks.add(p, p + n, n, 0)
            steps.append((ALLOC, p, n))
        return steps

    def _segment_free(self, segments: Ranges, blocks: Ranges, p: int, n: int, ev: Event) -> list[Step]:
        if p not in segments:
            self._contradicted()
            return []
        # Blocks may die with their context; otherwise they were to be freed before.
        if not self._whole and why_of(ev) != "context" and blocks.overlapping(p, segments.get(p)[0]):  # type: ignore[index]
            self._contradicted()
        return self._end_segment(segments, blocks, p)

    def _end_segment(self, segments: Ranges, blocks: Ranges, p: int) -> list[Step]:
        end, n, *_ = segments.pop(p)
        return [*((FREE, b, blocks.pop(b)[1]) for b in blocks.overlapping(p, end)), (SEGMENT_FREE, p, n)]

    def _alloc(self, segments: Ranges, blocks: Ranges, p: int, n: int, ev: Event) -> list[Step]:
        end = p + block_size(n, ev)
        if not self._loose:
            segment_end = segments.end_of(p)
            if segment_end < p + n:
                self._contradicted()
                return []
            end = min(end, segment_end)
        steps: list[Step] = []
        frames = ev.get("f")
        if not blocks.add(p, end, n, 0, frames):
            for old in blocks.overlapping(p, end):
                self._contradicted()
                steps.append((FREE, old, blocks.pop(old)[1]))
            blocks.add(p, end, n, 0, frames)
        steps.append((ALLOC, p, n))
        return steps

    def _free(self, segments: Ranges, blocks: Ranges, p: int, n: int, ev: Event) -> list[Step]:
        if p not in blocks:
            self._contradicted()
            return []
        return [(FREE, p, blocks.pop(p)[1])]
