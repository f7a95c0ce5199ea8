# SPDX-License-Identifier: Apache-2.0
"""Files that are read event by event, in step with others if need be.

Here: Source (one file, its header known before its first event is asked for, its clock placed among the others'), and
what every conversion says at its end. Not here: it follows no memory; see lives.
"""
from __future__ import annotations

import sys
import time
from typing import Iterator, Optional

from .reader import WINDOW, CannotRead, Entry, Problems, Reader, in_time_order
from .schema import REQUIRED, Event, optional_keys
from .siblings import once
from .text import count_of

# The keys of each event whose values the reader has looked at. Others may hold anything, also what no format can.
KNOWN = {e: list(dict.fromkeys(["t", "e", "tid", *keys, *optional_keys(e)])) for e, keys in REQUIRED.items()}
PROGRESS_EVERY = 1 << 16  # events


class Progress:
    """On stderr, for a person who waits: nothing if it is no terminal, nothing for work of less than a second."""

    def __init__(self) -> None:
        self._on = sys.stderr.isatty()
        self._start = self._last = time.monotonic()
        self._events = 0
        self._shown = False

    def add(self, events: int) -> None:
        self._events += events
        now = time.monotonic()
        if self._on and now - self._last > 1:
            self._last = now
            self._shown = True
            print(f"\r{self._events / 1e6:.1f} million events, {now - self._start:.0f} s ", end="", file=sys.stderr, flush=True)

    def done(self) -> None:
        if self._shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


class Source:
    """One file that is being read."""

    def __init__(self, path: str, progress: Progress) -> None:
        self.path = path
        self.problems = Problems()
        self.reader = Reader(path, self.problems)
        self.failed = False
        self.contradictions = 0  # counted by the command that follows the events
        self.last_t = 0
        self._progress = progress
        self._rest = self.reader.events()
        self._first = next(self._rest, None)  # brings the header
        self.header = self.reader.header
        self.rank: Optional[int] = self.header.get("rank")
        self.t0: Optional[int] = self.header.get("t0_unix_ns")

    @property
    def name(self) -> str:
        return self.reader.name

    @property
    def full_name(self) -> str:
        """The rank alone does not say which of two runs, or of two attempts, it was."""
        more = [f"{k} {self.header[k]}" for k in ("host", "pid") if k in self.header]
        return f"{self.name} ({', '.join(more)})" if more else self.name

    @property
    def announces_allocs(self) -> bool:
        """True also without a header: that is no reason to believe that no allocation was traced."""
        return "events" not in self.header or "alloc" in self.header["events"].split(",")

    def events(self, window: int = WINDOW) -> Iterator[tuple[int, Event]]:
        """Each event and its time, which never goes back. Can be asked for once."""
        last = 0
        for at, (t, _, ev) in enumerate(in_time_order(self._all(), window), 1):
            if t > last:
                last = t
            if at % PROGRESS_EVERY == 0:
                self._progress.add(PROGRESS_EVERY)
            yield last, ev
        self.last_t = last

    def _all(self) -> Iterator[Entry]:
        if self._first is None:
            return
        yield self._first
        try:
            yield from self._rest
        except CannotRead as e:  # it could be read up to here, and that is converted
            self.failed = True
            print(f"cupool-trace: {e}", file=sys.stderr)


def why_of(ev: Event) -> Optional[str]:
    """Only some events must have a reason, so the reader did not look at that of the others."""
    why = ev.get("why")
    return why if isinstance(why, str) else None


def known_keys(ev: Event) -> Event:
    out = {k: ev[k] for k in KNOWN[ev["e"]] if k in ev}
    why = why_of(ev)
    return out if why is None else {**out, "why": why}


class Sources:
    """All files of one conversion, by rank. Those that cannot be read are named on stderr."""

    def __init__(self, paths: list[str]) -> None:
        self.progress = Progress()
        self.unreadable = 0
        self.files: list[Source] = []
        for path in paths:
            try:
                self.files.append(Source(path, self.progress))
            except CannotRead as e:
                self.unreadable += 1
                print(f"cupool-trace: {e}", file=sys.stderr)
        self.files.sort(key=lambda s: (*s.reader.order, s.path))
        self.files = once(self.files)
        self.base = min((s.t0 for s in self.files if s.t0 is not None), default=0)

    def offset(self, source: Source) -> int:
        """The offset that makes a file's times comparable with those of the other files."""
        if source.t0 is not None:
            return source.t0 - self.base
        if len(self.files) > 1:
            print(f"cupool-trace: {source.path}: its header has no clock; taken to begin with the first file", file=sys.stderr)
        return 0

    def finish(self) -> int:
        """Print warnings for the result's user. Returns the exit status."""
        self.progress.done()
        status = 2 if self.unreadable else 0
        for s in self.files:
            for count, what in ((s.problems.count, "problem"), (s.contradictions, "event")):
                if count:
                    status = max(status, 1)
                    text = count_of(count, what) + (" that contradict earlier ones, left out" if what == "event" else "")
                    print(f"cupool-trace: {s.path}: {text}; see cupool-trace check", file=sys.stderr)
            if s.failed:
                status = 2
            elif not s.reader.complete:
                print(f"cupool-trace: {s.path}: {'' if s.name == s.path else s.name + ': '}{s.reader.state}", file=sys.stderr)
        return status
