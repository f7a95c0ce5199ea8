# SPDX-License-Identifier: Apache-2.0
"""Live segments and blocks of each device, followed through one file's events.

Here: Replay (the state after each event, and counters), Rank (one file, read to its end) and load (all files).
Not here: it keeps no events; memory is bounded by the number of live ranges. Contradictions, such as two live blocks that overlap,
go to the file's problems and the replay goes on.
"""
from __future__ import annotations

import heapq
import sys
from array import array
from typing import Callable, Optional, Union

from . import apart, blocks
from .brief import Brief, BriefReader, brief, windows
from .callers import Caller, Stack
from .comms import Comms
from .frames import Frames
from .host import Host
from .measures import Durations, Registered
from .ranges import Range, Ranges
from .reader import KEEP, CannotRead, Entry, Problems
from .schema import NCCL, OOM_FREE, STATS, VMM_STATS, Event
from .siblings import once

KEEP_SEQUENCE = 1 << 18  # segments per device that are compared between ranks
PAGE = 21  # bits of an address within 2 MiB; segments are multiples of that, so addresses so near to each other mostly lie in one segment
MOST_PAGES = 1 << 16  # of which the segment is remembered
MOST_STACKS = 1 << 14  # of a device that are told apart


class Part:
    """Memory of one device: all of it, or that of one backend. Bytes, and counters taken from events."""

    # A Device has these too, and so many attributes in all that Python would find none of them quickly in a dict.
    __slots__ = ("held", "peak_held", "live", "peak_live", "asked", "asked_at_peak", "live_at_peak_held", "segments_alloc", "segments_free",
                 "allocs", "frees", "driver_calls", "driver_us", "got", "peaks", "newest")

    def __init__(self) -> None:
        self.held = self.peak_held = self.live = self.peak_live = 0
        self.asked = self.asked_at_peak = 0  # requested bytes of the live blocks, now and at the peak
        self.live_at_peak_held = 0
        self.segments_alloc = self.segments_free = self.allocs = self.frees = 0
        self.driver_calls = 0
        self.driver_us = 0.0
        self.got = Durations()  # of the calls that brought a segment
        self.peaks = 0  # how often live memory was more than ever before
        self.newest: Optional[tuple[int, int]] = None  # begin and end of the segment that made held greatest, until it has a block

    def get(self, p: int, n: int, us: float) -> None:
        """A segment came."""
        self.segments_alloc += 1
        self.driver_calls += 1
        self.driver_us += us
        self.got.add(us)
        self.held += n
        if self.held > self.peak_held:
            self.peak_held = self.held
            self.live_at_peak_held = self.live
            self.newest = p, p + n

    def give(self, us: float, died: bool) -> None:
        """A segment went. died: its context took it along, so the driver was not called."""
        self.segments_free += 1
        if not died:
            self.driver_calls += 1
            self.driver_us += us

    def begin(self, p: int, size: int, n: int) -> None:
        """A block of `size` was handed out for a request of `n`."""
        self.allocs += 1
        self.asked += n
        self.live = live = self.live + size
        if live > self.peak_live:
            self.peak_live = live
            self.asked_at_peak = self.asked
            self.peaks += 1
        # A segment is got for a block that comes after it, so the live bytes at the time when most was held are known only then.
        if self.newest and self.newest[0] <= p < self.newest[1]:
            self.live_at_peak_held = live
            self.newest = None


class Device(Part):
    """One device of one process: live ranges, and counters taken from events."""

    def __init__(self) -> None:
        super().__init__()
        self.segments, self.blocks = Ranges(), Ranges()  # a segment's `more` is its backend, a block's its Caller
        self.trims = self.trimmed = self.oom = self.ipc_ok = self.ipc_refused = 0
        self.registered = Registered()
        self.oom_moments: list[Event] = []
        self.policy: list[Event] = []
        self.name: Optional[str] = None
        self.uuid: Optional[str] = None
        self.total: Optional[int] = None  # bytes that the device has
        self.stats: Optional[Event] = None
        self.stats_at: Optional[int] = None  # when, if that was not at the end
        self.largest: list[tuple[int, int, str]] = []  # heap of n, -t, p
        self.unseen = 0  # segments that are there and that no event has told of, less those that are told of and are not
        self.sequence = array("q")  # sizes of segments in the order they were got
        self.callers: dict[Stack, Caller] = {}
        self.inside: dict[int, int] = {}  # by address: the end of the live segment that it lies in, where that was looked up
        self._segment_of: dict[int, int] = {}  # by page: the start of the segment that an address there was last found in
        self._backend: Optional[str] = None  # the only one so far
        self.parts: dict[str, Part] = {}  # of each backend, once there are several
        self._part_of: dict[int, Part] = {}  # then: of each live block
        self._unseen: dict[str, int] = {}

    @property
    def pooled(self) -> bool:
        """The pool did something there, not only NCCL with memory of the program's own."""
        return bool(self.stats or self.policy or self.name is not None or self.segments_alloc or self.segments_free or self.allocs or self.frees
                    or self.trims or self.oom or self.ipc_ok or self.ipc_refused)

    @property
    def backends(self) -> dict[str, Part]:
        """The memory of each backend. A single backend has all of it, so nothing is counted twice then."""
        return self.parts or ({} if self._backend is None else {self._backend: self})

    def part(self, backend: str) -> Optional[Part]:
        """The counters of one backend beside those of the device; None while it is the only backend."""
        if not self.parts:
            if self._backend is None or self._backend == backend:
                self._backend = backend
                return None
            only = Part()
            for k in Part.__slots__:
                setattr(only, k, getattr(self, k))
            only.got = self.got.copy()
            self.parts[self._backend] = only
            self._part_of = {start: only for start, _, _ in self.blocks.items()}
        return self.parts.setdefault(backend, Part())

    def end_segment(self, p: int) -> Optional[Range]:
        gone = self.segments.take(p)
        self.inside.clear()
        if gone:
            self.held -= gone[1]
            if self.parts:
                self.parts[gone[3]].held -= gone[1]
        return gone

    def change(self, backend: str, n: int) -> None:
        """So many bytes more of a backend are held."""
        part = self.part(backend)
        self.held += n
        if part:
            part.held += n
        for each in (self, part) if part else (self,):
            if each.held > each.peak_held:
                each.peak_held, each.live_at_peak_held = each.held, each.live

    def told(self, backend: str, held: int, segments: int) -> None:
        """A backend holds so many bytes and segments after events were left out. Known segments may be gone, and others there."""
        part = self.part(backend)
        self.change(backend, held - (part or self).held)
        known = [start for start, _, _ in self.segments.items() if self.segments.more(start) == backend]
        if not segments:
            for start in known:
                self.forget_segment(start)
        # Of another backend's there are as many as before.
        others = sum(self._unseen.values()) - self._unseen.get(backend, 0)
        self._unseen[backend] = segments - (len(known) if segments else 0)
        self.unseen = others + self._unseen[backend]

    def forget_segment(self, p: int) -> Optional[Range]:
        """A segment is gone without an event. The held bytes are known from elsewhere."""
        gone = self.segments.take(p)
        self.inside.clear()
        if gone:
            for b in self.blocks.overlapping(p, gone[0]):
                self.end_block(b)
        return gone

    @property
    def segments_live(self) -> int:
        return max(0, len(self.segments) + self.unseen)

    def segment_at(self, p: int, n: int) -> Optional[Range]:
        """The segment that n bytes from p on lie in."""
        page = p >> PAGE
        start = self._segment_of.get(page, 0)
        known = self.segments.get(start)
        if known and start <= p and p + n <= known[0]:
            return known
        start = self.segments.start_of(p)
        if len(self._segment_of) >= MOST_PAGES:
            self._segment_of.clear()
        self._segment_of[page] = start
        known = self.segments.get(start)
        return known if known and p + n <= known[0] else None

    def begin_block(self, p: int, size: int, n: int, line: int, segment: Optional[Range], stack: Optional[Stack], now: int) -> bool:
        """False: it would overlap another."""
        who = self.caller(stack) if stack else None
        if not self.blocks.add(p, p + size, n, line, who, now):
            return False
        if who:
            who.requests += 1
            who.change(size, self.peaks)
        self.begin(p, size, n)
        if self.parts and segment:
            self._part_of[p] = part = self.parts[segment[3]]
            part.begin(p, size, n)
        return True

    def caller(self, stack: Stack) -> Caller:
        who = self.callers.get(stack)
        if who is None:
            if len(self.callers) >= MOST_STACKS:
                stack = ()
            who = self.callers.setdefault(stack, Caller(stack))
        return who

    def end_block(self, p: int) -> Optional[Range]:
        gone = self.blocks.take(p)
        if gone:
            end, n, _, who, _ = gone
            size = end - p
            self.live -= size
            self.asked -= n
            if who:
                who.change(-size, self.peaks)
            if self.parts:
                part = self._part_of.pop(p, None)
                if part:
                    part.live -= size
                    part.asked -= n
        return gone


class Replay:
    """Follows live segments and blocks through one file's events, in order; contradictions become problems."""

    def __init__(self, problems: Problems) -> None:
        self.devices: dict[int, Device] = {}
        self.frames = Frames()
        self.last_t = 0
        self.events = 0
        self.comms = Comms(problems.add)
        self.host = Host(self._add)
        self.gapped = False  # events were left out: later ones may contradict earlier ones
        self._problems = problems
        self._on: dict[str, Callable[[int, Event, Device], None]] = {
            "segment_alloc": self._segment_alloc, "segment_free": self._segment_free, "trim": self._trim, "oom": self._oom,
            "device": self._device, "policy": self._policy, "ipc": self._ipc, "alloc": self._block, "free_requested": self._block,
            "stats": self._stats, "comm_init": self._comm_init, "comm_destroy": self._comm_destroy,
            "register": self._register, "deregister": self._deregister, "held": self._held,
        }
        self._others: dict[str, Callable[[int, Event], None]] = {"frame": self._frame, "object": self._object, "nccl": self._nccl, "gap": self._gap, "host_alloc": self.host.alloc, "host_free": self.host.free,
                                                                "host_held": self.host.told, "host_oom": self.host.refused, "host_stats": self.host.count, "vmm_stats": self._vmm, "range_begin": self._range}  # events of no one device
        self.has_ranges = False  # of NVTX
        self.kept: Optional[Event] = None  # virtual memory that is kept, as of the last such event
        self.nccl: Optional[Event] = None  # the findings of the process's operations, as of the last such event

    def _add(self, line: int, text: str) -> None:
        if not self.gapped:
            self._problems.add(line, text)

    def apply(self, line: int, ev: Event) -> None:
        self.events += 1
        t = ev["t"]
        if t > self.last_t:
            self.last_t = t
        handler = self._on.get(ev["e"])
        if handler:
            handler(line, ev, self.devices.get(ev["d"]) or self._new(ev["d"]))
        elif ev["e"] in self._others:
            self._others[ev["e"]](line, ev)

    def run(self, entries: list[Entry]) -> None:
        """Many events, in order."""
        at = 0
        while at < len(entries):
            t, line, ev = entries[at]
            if type(ev) is not tuple:
                self.apply(line, ev)
                at += 1
                continue
            done = self.blocks(entries, at)
            if done == at:  # it contradicts an earlier one, or more is to be done for it
                self.block(t, line, ev)
                done += 1
            self.events += done - at
            at = done

    def blocks(self, entries: list[Entry], at: int) -> int:
        """As many simple events of blocks as there are; returns where the next one is."""
        d: int = entries[at][2][0]
        return blocks.follow(d, self.devices.get(d) or self._new(d), entries, at, [], [])

    def block(self, t: int, line: int, ev: Brief) -> None:
        """An event of a block. That it was one more is for the caller to know."""
        d, p, size, n, stack, at = ev
        dev = self.devices.get(d) or self._new(d)
        if not size:
            dev.frees += 1
            gone = dev.end_block(p)
            if gone is None:
                self._add(line, f"free_requested {at} {n}: no live block starts there")
            elif gone[1] != n:
                self._add(line, f"free_requested {at} {n}: the block of line {gone[2]} has {gone[1]} bytes")
            return
        segment = dev.segment_at(p, n)
        if segment is None:
            self._add(line, f"alloc {at} {n}: not inside a live segment")
        if not dev.begin_block(p, size, n, line, segment, stack, t):
            for old in dev.blocks.overlapping(p, p + size):
                _, old_n, old_line, *_ = dev.end_block(old)  # type: ignore[misc]
                self._add(line, f"alloc {at} {n}: overlaps the live block {old:#x} {old_n} of line {old_line} (reused too early)")
            dev.begin_block(p, size, n, line, segment, stack, t)

    def _new(self, d: int) -> Device:
        self.devices[d] = dev = Device()
        return dev

    def _frame(self, line: int, ev: Event) -> None:
        self.frames.frame(ev)

    def _object(self, line: int, ev: Event) -> None:
        self.frames.object(ev)

    def _nccl(self, line: int, ev: Event) -> None:
        self.nccl = {k: ev[k] for k in NCCL}

    def _vmm(self, line: int, ev: Event) -> None:
        self.kept = {k: ev[k] for k in VMM_STATS}

    def _gap(self, line: int, ev: Event) -> None:
        self.gapped = True

    def _held(self, line: int, ev: Event, dev: Device) -> None:
        dev.told(ev["b"], ev["n"], ev["segments"])

    def _segment_alloc(self, line: int, ev: Event, dev: Device) -> None:
        p, n = int(ev["p"], 16), ev["n"]
        part = dev.part(ev["b"])
        if not dev.segments.add(p, p + n, n, line, ev["b"], ev["t"]):
            for old in dev.segments.overlapping(p, p + n):
                if self.gapped:
                    dev.forget_segment(old)
                    dev.unseen += 1
                    continue
                _, old_n, old_line, *_ = dev.end_segment(old)  # type: ignore[misc]
                self._add(line, f"segment_alloc {ev['p']} {n}: overlaps the live segment {old:#x} {old_n} of line {old_line}")
            dev.segments.add(p, p + n, n, line, ev["b"], ev["t"])
        for each in (dev, part) if part else (dev,):
            each.get(p, n, ev["us"])
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
        part = dev.part(ev["b"])
        for each in (dev, part) if part else (dev,):
            each.give(ev.get("us", 0), died)
        if self.gapped:
            if dev.forget_segment(p) is None:
                dev.unseen -= 1
            dev.change(ev["b"], -n)
            return
        gone = dev.end_segment(p)
        if gone is None:
            self._add(line, f"segment_free {ev['p']} {n}: no live segment starts there")
            return
        end, known_n, known_line, *_ = gone
        if known_n != n:
            self._add(line, f"segment_free {ev['p']} {n}: the segment of line {known_line} has {known_n} bytes")
        inside = dev.blocks.overlapping(p, end)
        for b in inside:
            dev.end_block(b)
        if inside and not died:
            self._add(line, f"segment_free {ev['p']} {n}: {len(inside)} live blocks in it, the first at {inside[0]:#x}")

    def _block(self, line: int, ev: Event, dev: Device) -> None:
        self.block(ev["t"], line, brief(ev))

    def _trim(self, line: int, ev: Event, dev: Device) -> None:
        dev.trims += 1
        dev.trimmed += ev["n"]
        dev.driver_us += ev.get("us", 0)

    def _oom(self, line: int, ev: Event, dev: Device) -> None:
        dev.oom += 1
        if len(dev.oom_moments) < KEEP:
            dev.oom_moments.append({k: ev[k] for k in ("t", "n", "held", "live", *OOM_FREE, "why") if k in ev})

    def _device(self, line: int, ev: Event, dev: Device) -> None:
        dev.name, dev.uuid, dev.total = ev["name"], ev["uuid"], ev.get("total")

    def _policy(self, line: int, ev: Event, dev: Device) -> None:
        if len(dev.policy) < KEEP:
            dev.policy.append({k: ev[k] for k in ("t", "free", "why")})

    def _ipc(self, line: int, ev: Event, dev: Device) -> None:
        if ev["ok"]:
            dev.ipc_ok += 1
        else:
            dev.ipc_refused += 1

    def _comm_init(self, line: int, ev: Event, dev: Device) -> None:
        dev.registered.comms += 1
        self.comms.made(line, ev)

    def _comm_destroy(self, line: int, ev: Event, dev: Device) -> None:
        dev.registered.end(ev["comm"])
        self.comms.ended(line, ev)

    def _register(self, line: int, ev: Event, dev: Device) -> None:
        if ev["ok"]:
            dev.registered.add(int(ev["p"], 16), ev["n"], ev["comm"])
        else:
            dev.registered.refused += 1
        self.comms.register(line, ev)

    def _deregister(self, line: int, ev: Event, dev: Device) -> None:
        if ev["ok"]:
            dev.registered.remove(int(ev["p"], 16), ev["n"], ev["comm"])
        else:
            dev.registered.refused += 1
        self.comms.deregister(line, ev)

    def _range(self, line: int, ev: Event) -> None:
        self.has_ranges = True

    def _stats(self, line: int, ev: Event, dev: Device) -> None:
        dev.stats = {k: ev[k] for k in STATS}
        dev.stats_at = ev["t"] if "why" in ev else None


class Rank:
    """One file, read to its end, by `follow`: a kind of Replay that may note more than the counters."""

    def __init__(self, path: str, follow: Callable[[Problems], Replay] = Replay) -> None:
        self.problems = Problems()
        self.replay = follow(self.problems)
        self.reader = BriefReader(path, self.problems)
        for entries in windows(self.reader.batches()):
            self.replay.run(entries)
        self.replay.events += self.reader.left_out
        self.replay.last_t = self.reader.last_t
        self.path = path
        self.header = self.reader.header
        self.rank: Optional[int] = self.header.get("rank")
        # A header without `events` (because it is missing) is no reason to believe that no allocation was traced.
        self.traces_allocs = "alloc" in self.header.get("events", "").split(",") or any(
            d.allocs for d in self.replay.devices.values())
        # After the first gap nobody knows which blocks are live.
        self.follows_blocks = self.traces_allocs and not self.reader.omitted
        self.names_host = False

    @property
    def name(self) -> str:
        return self.reader.name + (f" on {self.header['host']}" if self.names_host else "")

    def live_at_end(self) -> tuple[int, int]:
        devices = self.replay.devices.values()
        return sum(d.segments_live for d in devices), sum(len(d.blocks) for d in devices)


def load(paths: list[str], follow: Callable[[Problems], Replay] = Replay) -> tuple[list[Rank], int]:
    """Read all files, sorted by rank. Those that cannot be read are named on stderr; the other value is their number."""
    def read(path: str) -> Union[Rank, str]:
        try:
            return Rank(path, follow)
        except CannotRead as e:
            return str(e)

    ranks, unreadable = [], 0
    for got in apart.each(paths, read):
        if isinstance(got, Rank):
            ranks.append(got)
        else:
            unreadable += 1
            print(f"cupool-trace: {got}", file=sys.stderr)
    ranks.sort(key=lambda r: (*r.reader.order, r.path))
    ranks = once(ranks)
    name_hosts(ranks)
    return ranks, unreadable


def name_hosts(ranks: list[Rank]) -> None:
    """Processes of one name on several hosts, as ranks of two runs or pids without a rank, are told apart by their hosts."""
    of: dict[str, set[Any]] = {}
    for r in ranks:
        of.setdefault(r.name, set()).add(r.header.get("host"))
    for r in ranks:
        r.names_host = "host" in r.header and len(of[r.reader.name]) > 1
