# SPDX-License-Identifier: Apache-2.0
"""From a file to validated events, in the order in which they happened.

What it is: Reader (one file, read once, line by line) and in_time_order (undoes the small disorder between threads), with
the table of what docs/trace.md says each event has. What it is not: it gives no meaning to events; see replay.
"""
from __future__ import annotations

import gzip
import heapq
import io
import json
import re
import sys
import zlib
from typing import Any, BinaryIO, Callable, Iterable, Iterator

FORMAT = 1
MAX_LINE = 1 << 20  # a longer line is no event; keeps a file without newlines out of memory
WINDOW = 1 << 14  # events held back to be sorted by time; threads overtake each other by far less
KEEP = 100  # of problems and of moments worth listing, per file; all are counted

Event = dict[str, Any]


class CannotRead(Exception):
    """A file that is not there, not readable, or no trace at all."""


# The library writes numbers of 64 bits; JSON knows larger ones, with which nobody could calculate.
TOP = 1 << 64


def _is_int(v: Any) -> bool:
    return type(v) is int and -TOP < v < TOP  # not isinstance: true is no number here


def _is_size(v: Any) -> bool:
    return type(v) is int and 0 <= v < TOP


def _is_number(v: Any) -> bool:
    return type(v) in (int, float) and 0 <= v < TOP


def _is_str(v: Any) -> bool:
    return isinstance(v, str)


_ADDRESS = re.compile(r"0x[0-9a-fA-F]{1,16}")


def _is_address(v: Any) -> bool:
    return isinstance(v, str) and _ADDRESS.fullmatch(v) is not None


def _or_null(test: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda v: v is None or test(v)


# What a key must be wherever it occurs, and how to say that. `live`, `held` and the counters of `stats` are sizes.
TYPES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "t": (_is_size, "nanoseconds"), "tid": (_is_int, "a number"), "d": (_is_size, "a device number"),
    "p": (_is_address, "a hexadecimal string"), "n": (_is_size, "a number of bytes"), "b": (_is_str, "a string"),
    "block": (_is_size, "a number of bytes"), "total": (_is_size, "a number of bytes"),
    "name": (_is_str, "a string"), "uuid": (_is_str, "a string"),
    "us": (_is_number, "microseconds"), "why": (_is_str, "a string"), "free": (_is_str, "a string"),
    "ok": (lambda v: _is_int(v) and v in (0, 1), "0 or 1"),
}
_COUNT = (_is_size, "a count")

STATS = ("allocs hits misses frees bypassed live held peak_live peak_held segments_alloc segments_free oom order kept").split()

# Required keys beside t and e. segment_free is written before the driver is called, so it may lack `us`.
REQUIRED: dict[str, list[str]] = {
    "segment_alloc": ["tid", "d", "p", "n", "b", "us"],
    "segment_free": ["tid", "d", "p", "n", "b"],
    "trim": ["tid", "d", "n", "why"],
    "oom": ["tid", "d", "n", "held", "live"],
    "device": ["tid", "d", "name", "uuid"],
    "policy": ["tid", "d", "free", "why"],
    "ipc": ["tid", "d", "p", "ok"],
    "alloc": ["tid", "d", "p", "n"],
    "free_requested": ["tid", "d", "p", "n"],
    "free_completed": ["tid", "d", "p", "n"],
    "stats": ["d", *STATS],
    "end": ["dropped"],
}
_CHECKS = {e: [(k, *TYPES.get(k, _COUNT)) for k in ["t", *keys]] for e, keys in REQUIRED.items()}
_OPTIONAL = [(k, *TYPES[k]) for k in ("tid", "us", "block", "total")]

HEADER: list[tuple[str, Callable[[Any], bool], str]] = [
    ("version", _is_str, "a string"), ("host", _is_str, "a string"), ("pid", _is_int, "a number"),
    ("rank", _or_null(_is_size), "a number or null"), ("local_rank", _or_null(_is_size), "a number or null"),
    ("exe", _is_str, "a string"), ("t0_unix_ns", _is_int, "nanoseconds"), ("events", _is_str, "a string"),
    ("settings", lambda v: isinstance(v, dict), "an object"),
]


class Problems:
    """What is wrong with one file: the first KEEP are kept, all are counted."""

    def __init__(self) -> None:
        self.count = 0
        self.kept: list[tuple[int, str]] = []

    def add(self, line: int, text: str) -> None:
        self.count += 1
        if len(self.kept) < KEEP:
            self.kept.append((line, text))


class Reader:
    """One file, read once: iterate events() for (line number, event), each with its required keys and their types right.

    Whatever else stands in the file goes to `problems` and is skipped. A cut last line is no problem: the process was killed.
    """

    def __init__(self, path: str, problems: Problems) -> None:
        self.path = path
        self.problems = problems
        self.header: Event = {}
        self.lines = 0
        self.cut = False
        self.ended = False
        self.dropped = 0

    def _open(self) -> BinaryIO:
        # The content, not the name, says whether it is compressed: standard input has no name.
        raw: Any = sys.stdin.buffer if self.path == "-" else open(self.path, "rb")
        if not hasattr(raw, "peek"):
            raw = io.BufferedReader(raw)
        if raw.peek(2)[:2] == b"\x1f\x8b":
            return gzip.GzipFile(fileobj=raw)  # type: ignore[return-value]
        return raw  # type: ignore[no-any-return]

    def _raw_lines(self) -> Iterator[bytes]:
        try:
            with self._open() as f:
                while True:
                    try:
                        raw = f.readline(MAX_LINE)
                    except EOFError:  # the compressed file itself is cut
                        self.cut = True
                        return
                    if not raw:
                        return
                    self.lines += 1
                    yield raw
        except (OSError, zlib.error) as e:
            raise CannotRead(f"{self.path}: {getattr(e, 'strerror', None) or e}") from e

    def _objects(self) -> Iterator[Event]:
        """Every line that is a JSON object."""
        for raw in self._raw_lines():
            try:
                o = json.loads(raw)
            except (ValueError, RecursionError):
                if raw.startswith(b"{") and not raw.endswith(b"\n") and len(raw) < MAX_LINE:
                    self.cut = True
                    return
                o = None
            if isinstance(o, dict):
                yield o
            elif self.lines == 1:
                raise CannotRead(f"{self.path}: not a cupool trace")
            else:
                self.problems.add(self.lines, "not a JSON object")

    def _read_header(self, o: Event) -> None:
        self.header = o
        if o.get("cupool") != FORMAT:
            self.problems.add(1, f"format {o.get('cupool')!r} is unknown to this program, which knows {FORMAT}")
        for key, good, what in HEADER:
            if key not in o:
                self.problems.add(1, f"header: {key} is missing")
            elif not good(o[key]):
                self.problems.add(1, f"header: {key} is {o[key]!r:.80}, not {what}")
                del o[key]  # nobody after us has to look again

    def _valid(self, ev: Event) -> bool:
        name = ev["e"]
        for key, good, what in _CHECKS.get(name, ()):
            if key not in ev:
                self.problems.add(self.lines, f"{name}: {key} is missing")
                return False
            if not good(ev[key]):
                self.problems.add(self.lines, f"{name}: {key} is {ev[key]!r:.80}, not {what}")
                return False
        for key, good, what in _OPTIONAL:
            if key in ev and not good(ev[key]):
                self.problems.add(self.lines, f"{name}: {key} is {ev[key]!r:.80}, not {what}")
                return False
        if ev.get("n") == 0 and name in ("segment_alloc", "segment_free", "alloc"):
            self.problems.add(self.lines, f"{name}: n is 0")
            return False
        return True

    def events(self) -> Iterator[tuple[int, Event]]:
        last: dict[Any, int] = {}  # time of each thread's last event
        add = self.problems.add
        after_end = False
        for o in self._objects():
            line = self.lines
            if "e" not in o:
                if line == 1:
                    self._read_header(o)
                else:
                    add(line, "a second header, or an event without a name")
                continue
            if line == 1:
                add(1, "the header is missing")
            if self.ended and not after_end:
                after_end = True
                add(line, "the end line is not the last one")
            if not isinstance(o["e"], str):
                add(line, "e is not a string")
                continue
            if o["e"] not in REQUIRED:
                continue  # a later version's
            if not self._valid(o):
                continue
            tid, t = o.get("tid"), o["t"]
            if tid is not None:
                if t < last.get(tid, 0):
                    add(line, f"{o['e']}: time goes back by {last[tid] - t} ns within thread {tid}")
                last[tid] = t
            if o["e"] == "end":
                self.ended = True
                self.dropped = o["dropped"]
            yield line, o
        if self.lines == 0:
            add(0, "the file is empty")
        elif not self.header and self.lines == 1 and self.cut:
            add(1, "the header is cut")

    @property
    def name(self) -> str:
        """How to call the process, once the header was read."""
        if self.header.get("rank") is not None:
            return f"rank {self.header['rank']}"
        return f"pid {self.header['pid']}" if "pid" in self.header else self.path

    @property
    def order(self) -> tuple[bool, int, str]:
        """By what files are sorted: rank, those without one last."""
        rank = self.header.get("rank")
        return rank is None, rank or 0, str(self.header.get("host"))

    @property
    def complete(self) -> bool:
        return self.ended and not self.cut and not self.dropped

    @property
    def state(self) -> str:
        if self.ended:
            return f"{self.dropped} lines were dropped" if self.dropped else "cut after the end" if self.cut else "complete"
        return "killed or still running (no end line" + (", last line cut)" if self.cut else ")")


def in_time_order(events: Iterable[tuple[int, Event]], window: int = WINDOW) -> Iterator[tuple[int, Event]]:
    """Sort by time within a window; events of one thread never change places.

    A thread takes the time of an event before it waits for the file, so lines of several threads are slightly out of order.
    """
    heap: list[tuple[int, int, Event]] = []
    last: dict[Any, int] = {}
    for line, ev in events:
        tid = ev.get("tid")
        t = max(ev["t"], last.get(tid, 0))
        last[tid] = t
        # The line number is unique, so events themselves are never compared.
        if len(heap) < window:
            heapq.heappush(heap, (t, line, ev))
        else:
            _, line, ev = heapq.heappushpop(heap, (t, line, ev))
            yield line, ev
    while heap:
        _, line, ev = heapq.heappop(heap)
        yield line, ev
