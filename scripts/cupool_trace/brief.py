# SPDX-License-Identifier: Apache-2.0
"""From a file to the events that live ranges are followed by, quickly.

Here: BriefReader, a Reader that makes no dict for an event of a block, and windows, which puts its batches in order. Not here: what an
event means; see replay. Which lines are right, and which problem others are, Reader decides: it gets every line that is not simple.

Programs use the same addresses, sizes and stacks again and again, so the text of a line behind its time is looked up among those that
came before. A free that is completed at once takes two lines, which are one match of the regular expression and one event. Where most
texts are new, the next lines are taken apart without a look at what came before.
"""
from __future__ import annotations

import operator
import re
from typing import Any, Iterator, Optional

from .reader import LINE, WINDOW, Entry, Problems, Reader
from .schema import Event

GRANULE = 512  # blocks are multiples of this
MOST_KNOWN = 1 << 15  # texts that are remembered
LONGEST_PAUSE = 63  # blocks of lines, after one of which most texts were new
ALLOC, REQUESTED, COMPLETED = "alloc", "free_requested", "free_completed"
UNWANTED = frozenset([COMPLETED])  # nothing changes by it: it is checked and counted

# An event of a block: device, address, size of the block (0: its free), bytes that were requested, the frames of the caller, and the
# address as the trace has it. Its time is that of its Entry.
Brief = tuple[int, int, int, int, Optional[tuple[int, ...]], str]
# By the text: the clock of the thread; a Brief, or any other event without its time, or None if it is unwanted.
Known = tuple[list[int], Any]

# The two lines of a free, or an event, or any other line.
_LINES = re.compile(rf'(?:{{"t":([1-9][0-9]{{0,18}}),"e":"(?:{REQUESTED}(.*}})\n{{"t":([1-9][0-9]{{0,18}}),"e":"{COMPLETED}\2|([a-z].*))|(.*))\n')
_PARTS = re.compile(r'([a-z_]+","tid":[0-9]+,"d":[0-9]+),"p":"(0x[0-9a-fA-F]{1,16})","n":([1-9][0-9]{0,18})(}|,.*)')
_FREE = re.compile(r'(","tid":[0-9]+,"d":[0-9]+),"p":"(0x[0-9a-fA-F]{1,16})","n":([1-9][0-9]{0,18})}')


def block_size(n: int, more: Event) -> int:
    """The size of the block for a request of n bytes: n rounded up, unless the event's other keys say otherwise."""
    size = (n + GRANULE - 1) // GRANULE * GRANULE
    block: int = more.get("block", 0)
    return block if block > size else size


def brief(ev: Event) -> Brief:
    """A Brief of an event of a block, free_completed excepted."""
    p, n = ev["p"], ev["n"]
    if ev["e"] == REQUESTED:
        return ev["d"], int(p, 16), 0, n, None, p
    return ev["d"], int(p, 16), block_size(n, ev), n, tuple(ev.get("f", ())) or None, p


class BriefReader(Reader):
    """A Reader for Replay.run: frees' completions are left out, events of blocks are a Brief each."""

    def __init__(self, path: str, problems: Problems) -> None:
        super().__init__(path, problems, UNWANTED)
        self._known: dict[str, Known] = {}  # by the text behind "e":"
        self._frees: dict[str, Known] = {}  # by the text that both lines have
        self._learnt = 0  # texts

    def another(self) -> Reader:
        return BriefReader(self.path, Problems())

    def _learn(self, line: int, text: str) -> Optional[Known]:
        """Of a line. None: only a look at all of it can tell. The first line is the header, and after the last one nothing is right."""
        parts = _PARTS.fullmatch(text) if line > 1 and not self.ended else None
        kind = parts and (self._kinds.get(parts[1]) or self._kind(parts[1]))
        if not parts or not kind:
            return None
        e, tid, d, clock, wanted = kind
        _, p, n, rest = parts.groups()
        tail = self._tails[e].get(rest)
        if tail is None:
            tail = self._tail(e, rest)
            if tail is None:
                return None
        if not wanted:
            known: Known = clock, None
        elif e == REQUESTED:
            known = clock, (d, int(p, 16), 0, int(n), None, p)
        elif e == ALLOC:
            known = clock, (d, int(p, 16), block_size(int(n), tail), int(n), tuple(tail["f"]) if tail.get("f") else None, p)
        else:
            known = clock, {"e": e, "tid": tid, "d": d, "p": p, "n": int(n), **tail}
        self._learnt += 1
        if len(self._known) >= MOST_KNOWN:
            self._known.clear()
        self._known[text] = known
        return known

    def _learn_free(self, line: int, text: str) -> Optional[Known]:
        """Of both lines of a free."""
        parts = _FREE.fullmatch(text) if line > 1 and not self.ended else None
        kind = parts and self._kind(REQUESTED + parts[1])
        if not parts or not kind:
            return None
        self._learnt += 2
        if len(self._frees) >= MOST_KNOWN:
            self._frees.clear()
        self._frees[text] = known = kind[3], (kind[2], int(parts[2], 16), 0, int(parts[3]), None, parts[2])
        return known

    def _batches(self) -> Iterator[list[Entry]]:
        skip = pause = 0  # blocks of lines that go by parts: still, and the next time
        for block in self._blocks():
            batch: list[Entry] = []
            if skip and block.endswith(b"\n"):
                skip -= 1
                self._by_parts(block.decode("latin-1"), batch)
            else:
                learnt, line = self._learnt, self.lines
                self._by_text(block, batch)
                pause = min(2 * pause + 1, LONGEST_PAUSE) if 2 * (self._learnt - learnt) > self.lines - line else 0
                skip = pause
            yield batch
        self._at_end()

    def _by_text(self, block: bytes, batch: list[Entry]) -> None:
        """Lines that are looked up by their texts."""
        known, frees = (self._known, self._frees) if not self.ended else ({}, {})
        line, whole = self.lines, block.endswith(b"\n")
        # As Latin-1 every byte is a character, so that a line that does not match can be had back as it was.
        text = block.decode("latin-1")
        for t_, free, then_, what, other in _LINES.findall(text) if whole else (("", "", "", "", text),):
            line += 1
            if free:
                found = frees.get(free) or self._learn_free(line, free)
                t, then = int(t_), int(then_)
                if found and found[0][1] <= t <= then:
                    clock, value = found
                    clock[0] = clock[1] = then
                    batch.append((t, line, value))
                    self.left_out += 1
                else:
                    self._one(line, f'{{"t":{t_},"e":"{REQUESTED}{free}', True, batch)
                    self._one(line + 1, f'{{"t":{then_},"e":"{COMPLETED}{free}', True, batch)
                line += 1
                continue
            found = (known.get(what) or self._learn(line, what)) if what else None
            t = int(t_) if found else 0
            if not found or t < found[0][1]:
                self._one(line, f'{{"t":{t_},"e":"{what}' if what else other, whole, batch)
                if self.ended:
                    known, frees = {}, {}
                continue
            clock, value = found
            clock[0] = clock[1] = t
            if value is None:
                self.left_out += 1
            else:
                batch.append((t, line, value if type(value) is tuple else {"t": t, **value}))
        self.lines = line

    def _by_parts(self, text: str, batch: list[Entry]) -> None:
        """Lines whose texts would not be found."""
        kinds, tails = self._kinds if not self.ended else {}, self._tails
        line = self.lines
        for t_, what, p, n, rest, other in LINE.findall(text):
            line += 1
            kind = kinds.get(what)
            tail = tails[kind[0]].get(rest) if kind else None
            if tail is None and self._learned(line, what, rest):
                kind = kinds[what]
                tail = tails[kind[0]][rest]
            t = int(t_) if kind else 0
            if tail is None or not kind or t < kind[3][1]:
                self._one(line, f'{{"t":{t_},"e":"{what},"p":"{p}","n":{n}{rest}' if what else other, True, batch)
                if self.ended:
                    kinds = {}
                continue
            e, tid, d, clock, wanted = kind
            clock[0] = clock[1] = t
            if not wanted:
                self.left_out += 1
            elif e == REQUESTED:
                batch.append((t, line, (d, int(p, 16), 0, int(n), None, p)))
            elif e == ALLOC:
                size = int(n)
                batch.append((t, line, (d, int(p, 16), block_size(size, tail), size, tuple(tail["f"]) if tail.get("f") else None, p)))
            else:
                batch.append((t, line, {"t": t, "e": e, "tid": tid, "d": d, "p": p, "n": int(n), **tail}))
        self.lines = line


def windows(batches: Iterator[list[Entry]], window: int = WINDOW) -> Iterator[list[Entry]]:
    """in_time_order, of many events at a time."""
    waiting: list[Entry] = []
    for batch in batches:
        waiting += batch
        while len(waiting) >= 2 * window:
            part = sorted(waiting[:2 * window], key=operator.itemgetter(0))  # equal times stay in the order of their lines
            yield part[:window]
            waiting[:2 * window] = part[window:]
    waiting.sort(key=operator.itemgetter(0))
    yield waiting
