# SPDX-License-Identifier: Apache-2.0
"""A trace of any length in a bounded amount of data: what a picture of it needs.

Here: Thinned (values over time in buckets), Largest (the boxes of the address-by-time map), and Recorder, a Follow that
fills them. Peaks are never lost: a bucket keeps the least and the greatest value in it. Not here: it draws nothing, and
it keeps no events. Everything is exact until its limit is reached; what had to be merged then can be told.
"""
from __future__ import annotations

import bisect
import heapq
from typing import Any, Callable, Optional

from . import blocks
from .bands import Bands
from .brief import Brief
from .physical import Follow
from .ranges import Range, Ranges
from .reader import Entry, Problems
from .reasons import sentence
from .replay import Device
from .schema import Event
from .text import human_size

REGISTRATIONS = 8  # of one segment that are told, each communicator's last; others are counted

REGISTERED = frozenset(["register", "deregister", "comm_destroy"])
SAMPLED = REGISTERED | {"alloc", "free_requested", "segment_alloc", "segment_free", "held",
                        "host_alloc", "host_free", "host_held"}  # they change curves

# Curves over time.
QUANTITIES = ("held", "live", "cached", "registered", "host", "past")
LIVE, CACHED = 1, 2


def quantities(dev: Device, host: int, past: int, live: int) -> tuple[int, int, int, int, int, int]:
    """host: pinned memory that contexts of the device own; past: physical memory that is not the pool's."""
    return dev.held, live, max(0, dev.held - live), dev.registered.bytes, host, past


class Thinned:
    """A list ordered by time with at most `limit` items, one per bucket of 2**shift ns; merge(a, b) adds item b to a.

    An item is a list that begins with its time. Buckets are as wide as they must be: 1 ns, so exact, at first.
    """

    def __init__(self, limit: int, merge: Callable[[list[Any], list[Any]], None]) -> None:
        self.limit = limit
        self.shift = 0
        self.items: list[list[Any]] = []
        self._merge = merge

    @property
    def edge(self) -> int:
        """The end of the last bucket: an item before it is merged."""
        last: int = self.items[-1][0]
        return ((last >> self.shift) + 1) << self.shift

    def add(self, item: list[Any]) -> None:
        items = self.items
        # Time may go back where lines of threads are further apart than the reader's window.
        if items and item[0] >> self.shift <= items[-1][0] >> self.shift:
            self._merge(items[-1], item)
            return
        items.append(item)
        if len(items) > self.limit:
            self.fit(max(1, self.limit // 2))

    def fit(self, limit: int) -> None:
        """Widen the buckets until there are at most `limit`."""
        while len(self.items) > limit:
            self.shift += 1
            fewer = [self.items[0]]
            for item in self.items[1:]:
                if item[0] >> self.shift == fewer[-1][0] >> self.shift:
                    self._merge(fewer[-1], item)
                else:
                    fewer.append(item)
            self.items = fewer


def merge_values(into: list[Any], other: list[Any]) -> None:
    """Items [time, then for each quantity least, greatest, last]."""
    for i in range(1, len(into), 3):
        if other[i] < into[i]:
            into[i] = other[i]
        if other[i + 1] > into[i + 1]:
            into[i + 1] = other[i + 1]
        into[i + 2] = other[i + 2]


def merge_marks(into: list[Any], other: list[Any]) -> None:
    """Items [time, count, size, text]: the text stays that of the largest."""
    into[1] += other[1]
    if other[2] > into[2]:
        into[2:] = other[2:]


class Registrations:
    """With which communicators a segment was registered, from when to when (None: to its end, or the trace's)."""

    __slots__ = ("of", "others")

    def __init__(self) -> None:
        self.of: dict[str, tuple[int, Optional[int]]] = {}
        self.others = 0

    def begin(self, comm: str, t: int) -> None:
        if comm in self.of or len(self.of) < REGISTRATIONS:
            self.of[comm] = t, None
        else:
            self.others += 1

    def end(self, comm: str, t: int) -> None:
        t0, t1 = self.of.get(comm, (0, 0))
        if t1 is None:
            self.of[comm] = t0, t


class Box:
    """A range of addresses for a time: a segment or a block. t1 is None if it was live at the end.

    us: how long the driver took. more: a segment's backend, a block's Caller. why: the reason of its end. registered: how it was. None:
    unknown, or not at all.
    """

    __slots__ = ("p", "n", "t0", "t1", "us", "more", "why", "registered")

    def __init__(self, p: int, n: int, t0: int, t1: Optional[int], us: Optional[float], more: Any, why: Optional[str],
                 registered: Optional[Registrations]) -> None:
        self.p, self.n, self.t0, self.t1, self.us, self.more, self.why, self.registered = p, n, t0, t1, us, more, why, registered


class Merged:
    """Boxes too many to be kept, added up by where they lay and when they began: at most `limit` cells.

    A cell is [first begin, last end, lowest address, highest end, count, bytes in all, largest].
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.cells: dict[tuple[int, int], list[int]] = {}
        self.count = 0
        self._p_shift, self._t_shift = 21, 10

    def add(self, box: Box, end: int) -> None:
        self.add_one(box.p, box.n, box.t0, end if box.t1 is None else box.t1)

    def add_one(self, p: int, n: int, t0: int, t1: int) -> None:
        self.count += 1
        c = self.cells.get((p >> self._p_shift, t0 >> self._t_shift))
        if c is None:
            self.cells[p >> self._p_shift, t0 >> self._t_shift] = [t0, t1, p, p + n, 1, n, n]
            if len(self.cells) > self.limit:
                self.fit(max(1, self.limit // 2))
            return
        # As _put does, without a list: there are millions of them.
        if t0 < c[0]:
            c[0] = t0
        if t1 > c[1]:
            c[1] = t1
        if p < c[2]:
            c[2] = p
        if p + n > c[3]:
            c[3] = p + n
        c[4] += 1
        c[5] += n
        if n > c[6]:
            c[6] = n

    def _put(self, c: list[int]) -> None:
        key = (c[2] >> self._p_shift, c[0] >> self._t_shift)
        into = self.cells.get(key)
        if into is None:
            self.cells[key] = c
            return
        into[0], into[1] = min(into[0], c[0]), max(into[1], c[1])
        into[2], into[3] = min(into[2], c[2]), max(into[3], c[3])
        into[4] += c[4]
        into[5] += c[5]
        into[6] = max(into[6], c[6])

    def fit(self, limit: int) -> None:
        while len(self.cells) > limit:
            # Time first: there is far more of it than of addresses.
            if self._t_shift < 2 * self._p_shift:
                self._t_shift += 1
            else:
                self._p_shift += 1
            old, self.cells = self.cells, {}
            for c in old.values():
                self._put(c)


class Largest:
    """The `limit` largest boxes by `size`, each as it was; the others are merged."""

    def __init__(self, limit: int, size: Callable[[Box, int], tuple[int, int]]) -> None:
        self.limit = limit
        self.rest = Merged(max(16, limit // 5))
        self._size = size
        self._heap: list[tuple[tuple[int, int], int, Box]] = []
        self._count = 0

    def add(self, box: Box, now: int) -> None:
        self._count += 1  # unique, so boxes themselves are never compared
        entry = (self._size(box, now), -self._count, box)
        if len(self._heap) < self.limit:
            heapq.heappush(self._heap, entry)
        else:
            self.rest.add(heapq.heappushpop(self._heap, entry)[2], now)

    def add_ended(self, ended: list[blocks.Ended], begin: int, end: int) -> None:
        """Blocks that ended and were there between begin and end, by their area. Most are too small to be made a Box for."""
        for t, p, (_, n, _, who, since) in ended:
            if t < begin or since > end:
                continue
            t1 = t if t > since else since
            if len(self._heap) == self.limit and n * (t1 - since) < self._heap[0][0][0]:
                self._count += 1
                self.rest.add_one(p, n, since, t1)
            else:
                self.add(Box(p, n, since, t1, None, who, None, None), t)

    def fit(self, limit: int, now: int) -> None:
        while len(self._heap) > limit:
            self.rest.add(heapq.heappop(self._heap)[2], now)
        self.rest.fit(max(16, limit // 5))

    @property
    def boxes(self) -> list[Box]:
        return sorted((b for _, _, b in self._heap), key=lambda b: (b.t0, b.p))


def by_bytes(box: Box, now: int) -> tuple[int, int]:
    return box.n, (now if box.t1 is None else box.t1) - box.t0


def by_area(box: Box, now: int) -> tuple[int, int]:
    """For blocks: those that are large on the map, not the thousandth buffer that lived for a moment."""
    return box.n * ((now if box.t1 is None else box.t1) - box.t0), box.n


class Lifetimes(Ranges):
    """Ranges that hand a Box to `into` whenever one goes."""

    def __init__(self, recorder: Recorder, into: Largest) -> None:
        super().__init__()
        self._recorder = recorder
        self._into = into
        self._us: dict[int, float] = {}  # how long the driver took for a segment
        self._registered: dict[int, Registrations] = {}  # by the start of the segment

    def add(self, start: int, end: int, n: int, line: int, more: Any = None, since: int = 0) -> bool:
        if not super().add(start, end, n, line, more, since):
            return False
        if "us" in self._recorder.event:
            self._us[start] = self._recorder.event["us"]
        return True

    def take(self, start: int) -> Optional[Range]:
        gone = super().take(start)
        if gone is None:
            return None
        r = self._recorder
        t0, us = gone[4], self._us.pop(start, None) if self._us else None
        registered = self._registered.pop(start, None) if self._registered else None
        if r.now >= r.begin and t0 <= r.end:
            self._into.add(Box(start, gone[1], t0, max(t0, r.now), us, gone[3], r.event.get("why"), registered), r.now)
        return gone

    def note(self, ev: Event, comm: str) -> None:
        """A registration with a communicator begins or ends, or all of them do."""
        e, now = ev["e"], self._recorder.now
        if e == "comm_destroy":
            for known in self._registered.values():
                known.end(comm, now)
        elif ev["ok"]:
            p = int(ev["p"], 16)
            if p < self.end_of(p):
                known = self._registered.setdefault(self.start_of(p), Registrations())
                (known.begin if e == "register" else known.end)(comm, now)

    def still_there(self, now: int) -> None:
        for start, (_, n, _, more, t0) in self.of.items():
            if t0 <= self._recorder.end:
                self._into.add(Box(start, n, t0, None, self._us.get(start), more, None, self._registered.get(start)), max(t0, now))


class Limits:
    """How much is kept of each device."""

    def __init__(self, points: int, segments: int, blocks: int, marks: int, calls: int, ranges: int) -> None:
        self.points, self.segments, self.blocks, self.marks = max(64, points), max(64, segments), max(64, blocks), max(16, marks)
        self.calls = max(32, calls)  # frames of a flame graph
        self.ranges = max(64, ranges)  # of NVTX, of a process


class Track:
    """The record of one device of one process."""

    def __init__(self, limits: Limits) -> None:
        self.values = Thinned(limits.points, merge_values)
        self.segments = Largest(limits.segments, by_bytes)
        self.blocks = Largest(limits.blocks, by_area)
        self.marks: dict[str, Thinned] = {}
        self.peaks = [(-1, 0)] * len(QUANTITIES)  # value, and when it was first reached

    def merge(self, times: list[int], lives: list[int], first: int, end: int, held: int) -> None:
        """More samples of the last bucket, in which only live and so cached memory changed."""
        part = lives[first:end]
        low, high = min(part), max(part)
        merge_values(self.values.items[-1], [0, *(held,) * 3, low, high, part[-1], *(max(0, held - live) for live in (high, low, part[-1])),
                                             *self.values.items[-1][10:]])
        for i, value, live in ((LIVE, high, high), (CACHED, max(0, held - low), low)):
            if value > self.peaks[i][0]:
                self.peaks[i] = value, times[first + part.index(live)]

    def fit(self, limits: Limits, now: int) -> None:
        self.values.fit(limits.points)
        self.segments.fit(limits.segments, now)
        self.blocks.fit(limits.blocks, now)
        for marks in self.marks.values():
            marks.fit(limits.marks)


MOVES = ("pause", "resume")  # drawn as trims are: memory goes to the driver or comes from it


def mark_of(ev: Event) -> Optional[tuple[int, str]]:
    """Size and text of an event that is shown by itself; None for all others."""
    e = ev["e"]
    if e == "oom":
        return ev["n"], (f"out of memory: {human_size(ev['n'])} asked for, {human_size(ev['held'])} held, "
                         f"{human_size(ev['live'])} live")
    if e == "trim":
        return ev["n"], f"trim gave back {human_size(ev['n'])}: {sentence('trim', ev['why'])}"
    if e in MOVES:
        return ev["n"], f"{e}: {human_size(ev['n'])} {'to' if e == 'pause' else 'from'} the driver, {human_size(ev['copied'])} copied"
    if e == "policy":
        return 0, f"{ev['free']}: {ev['why']}"  # plot.mark_text makes it a sentence
    if e == "ipc":
        return 1 - ev["ok"], f"IPC handle of {ev['p']} {'passed on' if ev['ok'] else 'refused'}"
    if e == "ask":
        return ev["n"], (f"{ev['asked']} processes on the card asked for {human_size(ev['n'])}: {ev['answered']} answered, "
                         f"{human_size(ev['given'])} given")
    return None


def process_mark(ev: Event) -> tuple[str, str]:
    """Kind and text of an event that is shown on all devices of its process; two empty strings for all others."""
    if ev["e"] == "mark":
        return "mark", ev["text"]
    if ev["e"] == "gap":
        return "gap", gap_text(ev)
    return "", ""


def gap_text(ev: Event) -> str:
    if ev["open"]:
        return f"events are left out: {sentence('gap', ev['why'])}"
    return f"since {ev['since'] / 1e9:.3f} s events were left out: {sentence('gap', ev['why'])}"


class Recorder(Follow):
    """A Follow that also keeps a Track for each device, of the time from `begin` to `end` (ns)."""

    def __init__(self, problems: Problems, limits: Limits, begin: int, end: int) -> None:
        super().__init__(problems)
        self.tracks: dict[int, Track] = {}
        self.bands = Bands(limits.ranges, begin, end)
        self.begin, self.end = begin, end
        self.now = 0
        self.event: Event = {}
        self._limits = limits
        self._comms: dict[str, str] = {}  # communicators and their names
        self._before: dict[int, tuple[int, ...]] = {}  # values at `begin`, as far as is known
        self.past: dict[int, int] = {}  # physical memory past the pool, by device

    def apply(self, line: int, ev: Event) -> None:
        self.now, self.event = ev["t"], ev
        d = ev.get("d")
        if d is None or ev["e"] == "mem_create":  # no memory of the pool
            super().apply(line, ev)
            if ev["e"] in self.physical.events:
                self._past_sampled()
            self.bands.apply(ev)
            kind, text = process_mark(ev)
            if kind:  # of the process, so of all its devices
                for each in self.tracks:
                    self.mark(each, kind, ev["t"], 0, text)
            return
        self._track(d)
        super().apply(line, ev)
        e = ev["e"]
        if e in SAMPLED:
            if e in REGISTERED:
                self._note(self.devices[d], ev)
            self._sampled(d)
        elif e == "comm_init":
            self._comms[ev["comm"]] = f"{ev['comm']} (rank {ev.get('rank')!s:.9} of {ev['ranks']})"
        elif e != "free_completed":
            mark = mark_of(ev)
            if mark:
                self.mark(d, "trim" if e in MOVES else e, ev["t"], *mark)

    def block(self, t: int, line: int, ev: Brief) -> None:
        self.now, self.event = t, {}
        self._track(ev[0])
        super().block(t, line, ev)
        self._sampled(ev[0])

    def blocks(self, entries: list[Entry], at: int) -> int:
        d: int = entries[at][2][0]
        track, dev = self._track(d), self.devices[d]
        lives: list[int] = []
        ended: list[blocks.Ended] = []
        done = blocks.follow(d, dev, entries, at, lives, ended)
        track.blocks.add_ended(ended, self.begin, self.end)
        times = [entries[i][0] for i in range(at, done)]
        first, last = bisect.bisect_left(times, self.begin), bisect.bisect_right(times, self.end)
        host, past = self.host.held.get(d, 0), self.past.get(d, 0)
        if first:
            self._before[d] = quantities(dev, host, past, lives[first - 1])
        if first < last and d in self._before:
            self._sample(track, self.begin, self._before.pop(d))
        while first < last:
            self._sample(track, times[first], quantities(dev, host, past, lives[first]))
            # Those of the same bucket, at once: nothing but live memory changes.
            end = bisect.bisect_left(times, track.values.edge, first, last)
            if end > first + 1:
                track.merge(times, lives, first + 1, end, dev.held)
            first = max(end, first + 1)
        return done

    def _track(self, d: int) -> Track:
        track = self.tracks.get(d)
        if track is None:
            track = self.tracks[d] = Track(self._limits)
            dev = self.devices[d] = Device()
            dev.segments, dev.blocks = Lifetimes(self, track.segments), Lifetimes(self, track.blocks)
        return track

    def _past_sampled(self) -> None:
        """The event does not say which device's memory came or went."""
        for d in self.physical.devices:
            if d is not None and self.physical.past(d) != self.past.get(d, 0):
                self.past[d] = self.physical.past(d)
                self._track(d)
                self._sampled(d)

    def _sampled(self, d: int) -> None:
        """A curve of the device may have changed."""
        now = quantities(self.devices[d], self.host.held.get(d, 0), self.past.get(d, 0), self.devices[d].live)
        if self.now < self.begin:
            self._before[d] = now
        elif self.now <= self.end:
            if d in self._before:
                self._sample(self.tracks[d], self.begin, self._before.pop(d))
            self._sample(self.tracks[d], self.now, now)

    def _note(self, dev: Device, ev: Event) -> None:
        assert isinstance(dev.segments, Lifetimes)
        comm: str = ev["comm"]
        dev.segments.note(ev, self._comms.get(comm, comm))
        if ev["e"] == "comm_destroy":
            self._comms.pop(comm, None)

    def _sample(self, track: Track, t: int, values: tuple[int, ...]) -> None:
        item = [t]
        for i, v in enumerate(values):
            item += (v, v, v)
            if v > track.peaks[i][0]:
                track.peaks[i] = (v, t)
        track.values.add(item)

    def mark(self, d: int, kind: str, t: int, n: int, text: str) -> None:
        if not self.begin <= t <= self.end:
            return
        marks = self.tracks[d].marks
        if kind not in marks:
            marks[kind] = Thinned(self._limits.marks, merge_marks)
        marks[kind].add([t, 1, n, text[:300]])  # a reason of any length would be no mark

    def finish(self) -> None:
        """After the last event: live ranges stay live."""
        self.bands.close(None, self.last_t)
        for d, track in self.tracks.items():
            if d in self._before:
                self._sample(track, self.begin, self._before.pop(d))
            for ranges in (self.devices[d].segments, self.devices[d].blocks):
                assert isinstance(ranges, Lifetimes)
                ranges.still_there(self.last_t)
