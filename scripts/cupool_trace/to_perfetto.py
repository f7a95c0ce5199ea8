# SPDX-License-Identifier: Apache-2.0
"""cupool-trace to-perfetto: a timeline for ui.perfetto.dev and chrome://tracing (the trace-event format, JSON).

Here: counters, slices and marks, thinned out where there are too many to look at. Not here: every event; to-csv is.
"""
from __future__ import annotations

import argparse
import json
import sys
from typing import Any, Optional, TextIO

from . import symbols
from .callers import names_of
from .frames import Frames
from .options import nanoseconds
from .output import add_argument, guarded, text_output
from .physical import Follow
from .replay import Device
from .schema import Event
from .source import Source, Sources, known_keys
from .text import human_size, policy_text

HELP = "a timeline for Perfetto and Chrome"
DESCRIPTION = """\
Writes trace-event JSON: a process for each rank; for each device counters of bytes live (in blocks handed out, if the trace has
allocation events), cached (held, not live) and held (got from the driver), of physical memory that was taken past the
pool, of pinned host memory, and of what is registered with at least one communicator of NCCL; a slice on its thread for each driver call whose
duration is in the trace, and for each registration and its undoing; a slice for each range of NVTX; a mark for each
trim, oom, policy, request to other processes, mark of the program, and the end, also the sudden one. With CUPOOL_TRACE_STACKS=1 there is one more mark at each device's peak of live memory, with the callers that had most of it then.
Counters are coalesced: of each --every microseconds of a device three moments remain: when live was highest, when held was
highest, and the last. So no peak is lost, and no dip is to be trusted. Without --every it is 100 us, doubled whenever another
50000 moments of a device were written: a long trace gives a file of bounded size, coarser towards its end. Slices are all drawn
up to 100000 of a rank; then only those of at least 1 us, after 100000 more 2 us, and so on. Marks are drawn up to 100000 of a
rank. What was left out is said on stderr and in the file."""
JSON = False

FIRST_EVERY = 100_000  # ns
MOMENTS = 50_000
SLICES = 100_000
MARKS = 100_000
HOLDERS = 20  # callers that the mark of a peak names
MARKED = ("trim", "oom", "policy", "ask", "mark", "gap", "end")
RANGES = ("range_begin", "range_end")
COUNTED = ("segment_alloc", "segment_free", "alloc", "free_requested", "held")
REGISTERED = ("register", "deregister", "comm_destroy")
# Events that become slices, and the library whose call each is.
SLICED = {"segment_alloc": "driver", "segment_free": "driver", "host_alloc": "driver", "host_free": "driver",
          "register": "NCCL", "deregister": "NCCL"}
HOST = ("host_alloc", "host_free", "host_held")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_argument(parser)
    symbols.add_arguments(parser)
    parser.add_argument("--every", type=nanoseconds, metavar="US", help="coalesce counters to this many microseconds; 0: not at all")


class Timeline:
    """The file. Times are nanoseconds here, and microseconds there."""

    def __init__(self, f: TextIO) -> None:
        self._f = f
        self._separator = ""
        f.write('{"displayTimeUnit":"ms","traceEvents":[\n')

    def put(self, ph: str, name: str, pid: int, tid: int, t: int, args: Event, **more: Any) -> None:
        # ts is written by hand: as a float it would lose nanoseconds after a few months, and be 1e+16 at last.
        fields = json.dumps({"ph": ph, "name": name, "pid": pid, "tid": tid, **more, "args": args}, separators=(",", ":"))
        self._f.write(f'{self._separator}{{"ts":{microseconds(t)},{fields[1:]}')
        self._separator = ",\n"

    def end(self, notes: Event) -> None:
        self._f.write('\n],"otherData":' + json.dumps(notes) + "}\n")


def microseconds(ns: int) -> str:
    sign, ns = ("-", -ns) if ns < 0 else ("", ns)
    return f"{sign}{ns // 1000}.{ns % 1000:03d}"


Moment = tuple[int, int, int]  # time, held, live


class Counters:
    """The counters of one device: of each interval those moments that the description promises."""

    def __init__(self, timeline: Timeline, pid: int, device: int, t0: int, every: Optional[int],
                 what: str = "driver", value: str = "held") -> None:
        self._timeline, self._pid, self._t0, self._what, self._value = timeline, pid, t0, what, value
        self._name = f"device {device}"
        self._adapt = every is None
        self._every = FIRST_EVERY if every is None else every
        self._interval = -1
        self._last: Optional[Moment] = None
        self._most_live: Moment = (0, 0, 0)
        self._most_held: Moment = (0, 0, 0)
        self._written = self.held = 0
        self.live_known = False

    def add(self, t: int, held: int, live: int) -> None:
        now = (t, held, live)
        self.held = held
        interval = t // self._every if self._every else t
        if self._last is None or interval != self._interval:
            self.flush()
            self._interval = interval
            self._most_live = self._most_held = now
        else:
            if held >= self._most_held[1]:
                self._most_held = now
            if live >= self._most_live[2]:
                self._most_live = now
        self._last = now

    def flush(self) -> None:
        if self._last is None:
            return
        for t, held, live in sorted({self._most_live, self._most_held, self._last}):
            self._written += 1
            # Two events, because viewers stack the values of one: live and cached are parts of held.
            if self.live_known:
                self._put("pool", t, {"live": live, "cached": held - live})
            self._put(self._what, t, {self._value: held})
        self._last = None
        if self._adapt and self._written >= MOMENTS:
            self._written = 0
            self._every *= 2

    def _put(self, what: str, t: int, values: dict[str, int]) -> None:
        self._timeline.put("C", f"{self._name} {what}", self._pid, 0, self._t0 + t, values)


class Process:
    """One rank on the timeline."""

    def __init__(self, timeline: Timeline, source: Source, pid: int, t0: int, every: Optional[int]) -> None:
        self._timeline, self._source, self._pid, self._t0, self._every = timeline, source, pid, t0, every
        self._replay = Follow(source.problems)
        self._counters: dict[int, Counters] = {}
        self._others: dict[tuple[str, int], Counters] = {}  # by their quantity and the device
        self._threads: dict[Any, list[int]] = {}  # thread: its number here, and the end of its last slice
        self._slices = 0
        self._shortest = 0.0
        self._marks = self._slices_of_ranges = 0
        self._open: dict[Any, int] = {}  # pushed ranges of NVTX, by the thread
        self._started: dict[int, str] = {}  # started ones, which another thread may end
        self._peaks: dict[int, tuple[int, int]] = {}  # of devices: which peak of live memory was the last, and when
        self.left_out = {"slices": 0, "marks": 0, "ranges": 0}

    def run(self) -> None:
        put, pid = self._timeline.put, self._pid
        # Viewers sort processes by number unless told otherwise, and take process 0 for the idle one.
        put("M", "process_name", pid, 0, 0, {"name": self._source.full_name})
        put("M", "process_sort_index", pid, 0, 0, {"sort_index": pid})
        for t, ev in self._source.events():
            self._replay.apply(0, ev)
            if "us" in ev:
                self._slice(t, ev)
            if ev["e"] in MARKED:
                self._mark(t, ev)
            elif ev["e"] in RANGES:
                self._range(t, ev)
            elif ev["e"] in self._replay.physical.events:
                for d, taken in self._replay.physical.devices.items():
                    if d is not None:  # the host's
                        self._count_other(t, d, "physical", "held", taken.now)
            elif ev["e"] in REGISTERED:
                self._count_other(t, ev["d"], "NCCL", "registered", self._replay.devices[ev["d"]].registered.bytes)
            elif ev["e"] in HOST:
                self._count_other(t, ev["d"], "pinned host memory", "held", self._replay.host.held[ev["d"]])
            elif ev["e"] in COUNTED:
                self._count(t, ev["d"], self._replay.devices[ev["d"]])
        for counters in [*self._counters.values(), *self._others.values()]:
            counters.flush()
        if not self._source.reader.ended:
            self._put_mark(self._source.last_t, self._source.reader.state, None, {})

    @property
    def frames(self) -> Frames:
        return self._replay.frames

    def mark_peaks(self) -> None:
        """When the names of frames are known."""
        for d, (_, t) in self._peaks.items():
            dev = self._replay.devices[d]
            held: dict[str, int] = {}
            for stack, caller in dev.callers.items():
                name = " < ".join(names_of(stack, self.frames))
                held[name] = held.get(name, 0) + caller.at_peak(dev.peaks)
            most = sorted((-n, name) for name, n in held.items() if n)[:HOLDERS]
            if most:
                self._timeline.put("i", f"device {d}: peak of live memory, {human_size(dev.peak_live)}", self._pid, self._thread(None)[0], self._t0 + t,
                                   {name: human_size(-n) for n, name in most}, s="p", cat="peak")

    def _count(self, t: int, d: int, dev: Device) -> None:
        if dev.peaks != self._peaks.get(d, (0, 0))[0]:
            self._peaks[d] = dev.peaks, t
        counters = self._counters.get(d)
        if counters is None:
            counters = self._counters[d] = Counters(self._timeline, self._pid, d, self._t0, self._every)
            counters.live_known = self._source.announces_allocs
        counters.add(t, dev.held, min(dev.live, dev.held))

    def _count_other(self, t: int, d: int, what: str, value: str, now: int) -> None:
        """Only when it has changed, as many events change nothing."""
        counters = self._others.get((what, d))
        if now == (counters.held if counters else 0):
            return
        if counters is None:
            counters = self._others[what, d] = Counters(self._timeline, self._pid, d, self._t0, self._every, what, value)
        counters.add(t, now, 0)

    def _thread(self, tid: Any) -> list[int]:
        """Threads get numbers of ours: two processes on two hosts may well use the same ones, which viewers take for one thread."""
        thread = self._threads.get(tid)
        if thread is None:
            number = self._pid * 1_000_000 + len(self._threads)
            thread = self._threads[tid] = [number, -1]
            name = "process" if tid is None else f"thread {tid}"
            self._timeline.put("M", "thread_name", self._pid, number, 0, {"name": name})
        return thread

    def _slice(self, t: int, ev: Event) -> None:
        whose = SLICED.get(ev["e"])
        if whose is None:
            return
        if ev["us"] < self._shortest:
            self.left_out["slices"] += 1
            return
        thread = self._thread(ev["tid"])
        # The event was written when the call had returned; host_free has the time of its beginning. Rounding must not make two
        # calls of a thread overlap.
        if ev["e"] == "host_free":
            t += round(ev["us"] * 1000)
        start = max(t - round(ev["us"] * 1000), thread[1], 0)
        thread[1] = t
        name = f"{ev['e']} {human_size(ev['n'])}"
        details = {"device": ev["d"], "bytes": ev["n"], "address": ev["p"]}
        if whose == "NCCL":
            name += "" if ev["ok"] else " refused"
            details["communicator"] = ev["comm"]
        self._timeline.put("X", name, self._pid, thread[0], self._t0 + start, details, cat=whose, dur=(t - start) / 1000)
        self._slices += 1
        if self._slices >= SLICES:
            self._slices = 0
            self._shortest = max(1.0, 2 * self._shortest)

    def _range(self, t: int, ev: Event) -> None:
        tid, number = ev["tid"], ev["range"]
        begins = ev["e"] == "range_begin"
        details = {"domain": ev["domain"]} if ev["domain"] else {}
        if self._slices_of_ranges >= SLICES:
            self.left_out["ranges"] += 1
        elif number and begins:
            self._started[number] = ev["text"]
            self._put_range("b", ev["text"], t, tid, details, number)
        elif number and number in self._started:
            self._put_range("e", self._started.pop(number), t, tid, details, number)
        elif not number and begins:
            self._open[tid] = self._open.get(tid, 0) + 1
            self._put_range("B", ev["text"], t, tid, details)
        elif not number and self._open.get(tid):
            self._open[tid] -= 1
            self._put_range("E", "", t, tid, {})

    def _put_range(self, ph: str, name: str, t: int, tid: Any, details: Event, number: int = 0) -> None:
        self._slices_of_ranges += ph in "Bb"
        more = {"id": f"{self._pid}.{number}"} if number else {}
        self._timeline.put(ph, name, self._pid, self._thread(tid)[0], self._t0 + t, details, cat="NVTX", **more)

    def _close_ranges(self, t: int) -> None:
        """Where events are left out, ends may be among them."""
        for tid, count in self._open.items():
            for _ in range(count):
                self._put_range("E", "", t, tid, {})
        self._open.clear()

    def _mark(self, t: int, ev: Event) -> None:
        name = ev["e"]
        if name in ("trim", "oom", "ask"):
            name += f" {human_size(ev['n'])}"
        elif name == "policy":
            name += f" {policy_text(self._source.reader.header, ev['free'])}"
        elif name == "gap":
            self._close_ranges(t)
            name = f"events left out ({ev['why']:.20})"
        elif name == "mark":
            name = ev["text"] or name
        details = {k: v for k, v in known_keys(ev).items() if k not in ("t", "e", "tid")}
        self._put_mark(t, name, ev.get("tid"), details)

    def _put_mark(self, t: int, name: str, tid: Any, args: Event) -> None:
        if self._marks >= MARKS:
            self.left_out["marks"] += 1
            return
        self._marks += 1
        self._timeline.put("i", name, self._pid, self._thread(tid)[0], self._t0 + t, args, s="p")


def convert(args: argparse.Namespace) -> int:
    sources = Sources(args.files)
    left_out: dict[str, dict[str, int]] = {}
    with text_output(args.output, args.files) as f:
        timeline = Timeline(f)
        processes = [Process(timeline, source, pid, sources.offset(source), args.every) for pid, source in enumerate(sources.files, 1)]
        for process in processes:
            process.run()
        symbols.name_frames([process.frames for process in processes], args, sources.base)
        for process, source in zip(processes, sources.files):
            process.mark_peaks()
            if any(process.left_out.values()):
                left_out[source.full_name] = process.left_out
        timeline.end({"made by": "cupool-trace to-perfetto", "time 0, ns since 1970": str(sources.base), "left out": left_out})
    status = sources.finish()
    for who, what in left_out.items():
        said = ", ".join(f"{n} {k}" for k, n in what.items() if n)
        print(f"cupool-trace: {who}: left out for size: {said}", file=sys.stderr)
    return status


def run(args: argparse.Namespace) -> int:
    return guarded(args.output, lambda: convert(args))
