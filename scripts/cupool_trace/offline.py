# SPDX-License-Identifier: Apache-2.0
"""cupool-trace replay: what would other settings, or other allocators, have made of the requests in a trace?

Here: reads the requests of a trace (or of RMM's log), hands them to several cupool-replay processes at a time, one
for each question, and prints what they answer beside what the trace itself says. Not here: the allocator, which is in
cupool-replay, and not `replay`, the module that follows live ranges in a trace. Threads of one process are put in the order
of their times.
"""
from __future__ import annotations

import argparse
import bisect
import datetime
import gzip
import json
import os
import re
import shutil
import subprocess
import sys
from typing import Any, Iterator, Optional

from .reader import CannotRead, Entry, Problems, Reader, in_time_order
from .schema import STATS, Event
from .text import count_of, human_size, table

HELP = "what other settings would have done"
DESCRIPTION = """\
Runs the requests of each trace again, without a GPU, through the allocator of libcupool.so: with the settings that the trace
was made with, with those that --set changes, and through models of PyTorch's caching allocator and of the driver alone.
The trace needs allocation events (CUPOOL_TRACE_EVENTS=segment,alloc). Logs of RMM (CSV) are read too.
With CUPOOL_FREE=relaxed it is taken that the device never catches up with the program, which takes the most memory.
A replay knows nothing of captures, other processes, and requests that went to the driver unpooled; with several threads, and
where memory goes back by the clock, it is close to what happened, not the same.
Peak live is what the program asked for; peak held what that took from the device, ratio the one over the other."""

RMM_HEAD = "Thread,Time,Action,Pointer,Size,Stream"
DEFAULT_CAPACITY = "80G"
LARGEST, LATEST = 1 << 60, 1 << 60  # bytes, nanoseconds: larger figures of a broken trace mean nothing
NAMELESS = 1 << 63  # where no device's addresses are
BATCH = 4096  # lines that are handed over at once
GUARD, UNIT = 256, 512  # CUPOOL_DEBUG=guard makes a request so much larger at least, and a multiple (shim/report/guard.c)


class Unusable(Exception):
    """A file that can be read, but not be replayed."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", dest="changes",
                        help="a setting to change, such as CUPOOL_LIMIT=4G or CUPOOL_DECAY=off; may be repeated")
    parser.add_argument("--capacity", metavar="SIZE", help=f"memory of each device (what the trace says, else {DEFAULT_CAPACITY})")
    parser.add_argument("--program", metavar="FILE", help="cupool-replay, where it is not beside this program or in build/")


# --- settings ---

def size_of(text: str) -> Optional[int]:
    """As shim/base/conf.c reads it; None: not a size."""
    m = re.fullmatch(r"(\d{1,15})(?:\.(\d)\d*)?(?:([KMGT])I?)?B?", text, re.I | re.A)
    if not m:
        return None
    scale = 1 << 10 * (" KMGT".index((m[3] or " ").upper()))
    return int(m[1]) * scale + int(m[2] or 0) * scale // 10


def options_of(settings: dict[str, str]) -> list[str]:
    """The options of cupool-replay for a library's settings. Those that do not change where memory goes have none."""
    if settings.get("CUPOOL_ENABLE", "1").lower() in ("0", "off", "no", "false") or settings.get("CUPOOL_DEBUG") == "1":
        return ["--model", "driver"]
    limit, decay = size_of(settings.get("CUPOOL_LIMIT", "0")), settings.get("CUPOOL_DECAY", "10").lower()
    if limit is None:
        raise Unusable(f"CUPOOL_LIMIT={settings['CUPOOL_LIMIT']} is not accepted by the library")
    if decay != "off" and not re.fullmatch(r"[0-9]{1,9}", decay):
        raise Unusable(f"CUPOOL_DECAY={settings['CUPOOL_DECAY']} is not accepted by the library")
    options = ["--limit", str(limit), "--decay", decay]
    if settings.get("CUPOOL_FREE", "").lower() == "relaxed":
        slack = settings.get("CUPOOL_SLACK", "10")
        if not re.fullmatch(r"[0-9]{1,9}", slack):
            raise Unusable(f"CUPOOL_SLACK={slack} is not accepted by the library")
        options += ["--slack", str(min(int(slack), SLACK_MAX))]
    return options


SLACK_MAX = 1000  # percent; more is not used
MATTERS = ("CUPOOL_ENABLE", "CUPOOL_LIMIT", "CUPOOL_DECAY", "CUPOOL_DEBUG", "CUPOOL_FREE", "CUPOOL_SLACK")


def changes_of(texts: list[str]) -> dict[str, str]:
    changes = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or name not in MATTERS:
            raise Unusable(f"--set {text}: must be NAME=VALUE, and of the settings these change where memory goes: "
                           + ", ".join(MATTERS))
        if (name, value) == ("CUPOOL_DEBUG", "guard"):
            raise Unusable("--set CUPOOL_DEBUG=guard: cannot be replayed, only a trace that was made with it")
        changes[name] = value
    options_of(changes)
    return changes


# --- cupool-replay ---

def find_program(named: Optional[str]) -> str:
    """Beside cupool-trace where both are installed; in the source tree, in the folder that scripts/build uses."""
    here = os.path.dirname(os.path.realpath(sys.argv[0]))
    build = os.path.join(os.path.dirname(here), os.environ.get("BUILDDIR", "build"))
    for path in (named, os.path.join(here, "cupool-replay"),
                 os.path.join(build, "scripts", "replay", "cupool-replay")):
        if path and os.access(path, os.X_OK):
            return path
        if path == named and named:
            raise Unusable(f"--program {named}: cannot be run")
    found = shutil.which("cupool-replay")
    if not found:
        raise Unusable("cupool-replay is not there: it is built and installed with the library (scripts/build)")
    return found


class Run:
    """One cupool-replay process, and its questions."""

    def __init__(self, name: str, command: list[str]) -> None:
        self.name = name
        self.devices: dict[int, Event] = {}
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def feed(self, data: bytes) -> None:
        assert self._process.stdin
        try:
            self._process.stdin.write(data)
        except BrokenPipeError:
            pass  # it has said why on stderr; finish() sees that it failed

    def finish(self) -> None:
        try:
            out, _ = self._process.communicate()
        except BrokenPipeError:
            out = b""
        if self._process.returncode or not out:
            raise Unusable(f"cupool-replay ended with {self._process.returncode}")
        self.devices = {d["device"]: d for d in json.loads(out)["devices"]}

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


# --- requests ---

class Traced:
    """The figures of one device from the trace itself."""

    def __init__(self) -> None:
        self.held = self.peak_held = self.segments_alloc = self.segments_free = 0
        self.live = self.peak_live = 0  # bytes that were asked for
        self.segments: dict[int, int] = {}
        self.blocks: dict[int, int] = {}
        self.stats: Optional[Event] = None
        self.ipc = 0

    def result(self) -> Event:
        s = self.stats or {}
        return {"requests": s.get("allocs"), "peak_live_requested": self.peak_live, "peak_live": s.get("peak_live"),
                "peak_held": self.peak_held, "peak_used": self.peak_held,
                "waste": round(self.peak_held / self.peak_live, 4) if self.peak_live else 0, "hits": s.get("hits"),
                "misses": s.get("misses"), "bypassed": s.get("bypassed"), "oom": s.get("oom"),
                "segments_alloc": self.segments_alloc, "segments_free": self.segments_free, "held": self.held}


class Source:
    """A file as lines for cupool-replay; its other facts are in the members afterwards."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.rank: Optional[int] = None
        self.capacity: Optional[int] = None  # of its first device, if the file says it
        self.settings: dict[str, str] = {}
        self.devices: dict[int, Traced] = {}
        self.notes: list[str] = []
        self.requests = 0

    def device(self, d: int) -> Traced:
        if d not in self.devices:
            self.devices[d] = Traced()
        return self.devices[d]

    def prepare(self) -> None:
        """Read as far as the settings."""

    def lines(self) -> Iterator[str]:
        raise NotImplementedError

    def _alloc(self, d: int, p: int, n: int, t: int) -> str:
        dev = self.device(d)
        self.requests += 1
        dev.live += n - dev.blocks.pop(p, 0)
        dev.blocks[p] = n
        dev.peak_live = max(dev.peak_live, dev.live)
        return f"a {p:#x} {min(n, LARGEST)} {d} {min(t, LATEST)}\n"

    def _free(self, d: int, p: int, t: int) -> str:
        dev = self.device(d)
        dev.live -= dev.blocks.pop(p, 0)
        return f"f {p:#x} {min(t, LATEST)}\n"

    def _try(self, k: int, n: int, d: int, t: int) -> str:
        """A request that was refused, so nothing says when it would have been freed. Where it is served, it is so at once."""
        return f"a {NAMELESS + k:#x} {min(n, LARGEST) or 1} {d} {min(t, LATEST)}\nf {NAMELESS + k:#x}\n"


class TraceSource(Source):
    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.problems = Problems()
        self.reader = Reader(path, self.problems)
        self._events = in_time_order(self.reader.events())
        self._first: Optional[Entry] = None
        self._lost: dict[int, list[tuple[int, int]]] = {}  # segments that died with their context, until the next event
        self._guard = False
        self._refused = 0

    def prepare(self) -> None:
        self._first = next(self._events, None)  # the header comes with it
        header = self.reader.header
        self.rank = header.get("rank")
        self.settings = {k: v for k, v in header.get("settings", {}).items() if isinstance(v, str)}
        self._guard = self.settings.get("CUPOOL_DEBUG") == "guard"
        if self._first and self._first[2]["e"] == "device":
            self.capacity = self._first[2].get("total")
        if "alloc" not in header.get("events", "alloc").split(","):
            raise Unusable(f"{self.path}: no allocation events to replay; trace again with CUPOOL_TRACE_EVENTS=segment,alloc")

    def lines(self) -> Iterator[str]:
        if self._first:
            yield from self._lines_of(self._first[2])
        for _, _, ev in self._events:
            yield from self._lines_of(ev)
        yield from self._bury(0)
        if self.problems.count:
            self.notes.append(f"{count_of(self.problems.count, 'problem')} in it; see cupool-trace check")
        if self.reader.omitted:
            self.notes.append(f"{self.reader.omitted}; the replay has only the requests before that and what is in the file after it")
        if self.reader.dropped:
            self.notes.append(f"{count_of(self.reader.dropped, 'line')} of it were dropped")
        for d, dev in sorted(self.devices.items()):
            s = dev.stats or {}
            if s.get("bypassed", 0) > s.get("oom", 0):
                self.notes.append(f"device {d}: {count_of(s['bypassed'] - s['oom'], 'request')} went to the driver unpooled and "
                                  "cannot be replayed")
            if s.get("kept"):
                self.notes.append(f"device {d}: {count_of(s['kept'], 'free')} came during captures, in which a replay sees nothing "
                                  "special")
            if dev.ipc:
                self.notes.append(f"device {d}: memory was exported to other processes; in a replay it is reused")

    def _size(self, n: int) -> int:
        return (n + GUARD + UNIT - 1) // UNIT * UNIT if self._guard else n

    def _lines_of(self, ev: Event) -> Iterator[str]:
        name, t = ev["e"], ev["t"]
        if self._lost and not (name == "segment_free" and ev.get("why") == "context"):
            yield from self._bury(t)
        if name == "alloc":
            yield self._alloc(ev["d"], int(ev["p"], 16), self._size(ev["n"]), t)
        elif name == "free_requested":
            yield self._free(ev["d"], int(ev["p"], 16), t)
        elif name == "segment_alloc":
            dev, p = self.device(ev["d"]), int(ev["p"], 16)
            dev.segments[p] = ev["n"]
            dev.segments_alloc += 1
            dev.held += ev["n"]
            dev.peak_held = max(dev.peak_held, dev.held)
        elif name == "segment_free":
            dev, p = self.device(ev["d"]), int(ev["p"], 16)
            n = dev.segments.pop(p, None)
            dev.segments_free += 1
            dev.held -= n or 0
            if n and ev.get("why") == "context":
                self._lost.setdefault(ev["d"], []).append((p, p + n))
        elif name == "oom":
            self._refused += 1
            yield self._try(self._refused, self._size(ev["n"]), ev["d"], t)
        elif name == "ipc":
            self.device(ev["d"]).ipc += ev["ok"]
        elif name == "stats":
            self.device(ev["d"]).stats = {k: ev[k] for k in STATS}
        elif name == "end":
            yield f"t {min(t, LATEST)}\n"

    def _bury(self, t: int) -> Iterator[str]:
        """Blocks go with their segments; with a device's last segment its pool goes."""
        for d, ranges in self._lost.items():
            dev = self.devices[d]
            ranges.sort()
            starts = [start for start, _ in ranges]
            for p in list(dev.blocks):
                i = bisect.bisect_right(starts, p) - 1
                if i >= 0 and p < ranges[i][1]:
                    yield self._free(d, p, t)
            if not dev.segments:
                dev.live = 0
                yield f"r {d} {min(t, LATEST)}\n"
        self._lost = {}


class RmmSource(Source):
    """The log of RMM's logging adaptor. One device: its number, if any, is in the file's name."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        m = re.search(r"\.dev(\d{1,2})(?:\D|$)", os.path.basename(path))
        self._d = int(m[1]) if m else 0

    def _rows(self) -> Iterator[tuple[int, str]]:
        with open_bytes(self.path) as f:
            for number, raw in enumerate(f, 1):
                yield number, raw.decode("utf-8", "replace").rstrip("\r\n")

    def lines(self) -> Iterator[str]:
        last = day = failed = 0
        for number, row in self._rows():
            fields = row.split(",")
            if number == 1 or row in ("", RMM_HEAD):
                continue
            try:
                time, action, n = clock_of(fields[1]), fields[2], int(fields[4])
                p = 0 if fields[3] in ("(nil)", "0") else int(fields[3], 16)
            except (IndexError, ValueError):
                raise Unusable(f"{self.path}:{number}: not a line of RMM's log") from None
            if time + day < last - 43_200_000_000_000:  # midnight
                day += 86_400_000_000_000
            last = max(last, time + day)
            if action == "allocate" and n:
                yield self._alloc(self._d, p, n, last)
            elif action == "free" and p:
                yield self._free(self._d, p, last)
            elif action == "allocate failure" and n:
                failed += 1
                yield self._try(failed, n, self._d, last)


def clock_of(text: str) -> int:
    """HH:MM:SS.ffffff, or with a colon for the point, as nanoseconds; a full date in front is left out."""
    m = re.fullmatch(r"(?:.*[ T])?(\d+):(\d+):(\d+)(?:[.:](\d+))?", text)
    if not m:
        raise ValueError(text)
    seconds = datetime.timedelta(hours=int(m[1]), minutes=int(m[2]), seconds=int(m[3])).total_seconds()
    return int(seconds) * 1_000_000_000 + int((m[4] or "0").ljust(9, "0")[:9])


def open_bytes(path: str) -> Any:
    if path == "-":
        return sys.stdin.buffer
    f = open(path, "rb")
    if f.peek(2)[:2] == b"\x1f\x8b":
        return gzip.GzipFile(fileobj=f)
    return f


def source_of(path: str) -> Source:
    try:
        if path == "-":
            start = sys.stdin.buffer.peek(len(RMM_HEAD))  # type: ignore[attr-defined]
        else:
            with open_bytes(path) as f:
                start = f.read(len(RMM_HEAD))
    except IsADirectoryError:
        raise CannotRead(f"{path}: no *.jsonl or *.jsonl.gz in it") from None
    except (OSError, EOFError) as e:
        raise CannotRead(f"{path}: {getattr(e, 'strerror', None) or e}") from e
    return RmmSource(path) if start.startswith(RMM_HEAD.encode()) else TraceSource(path)


# --- the command ---

def replay_file(path: str, changes: dict[str, str], program: str, capacity: Optional[int]) -> tuple[Source, list[Run]]:
    source = source_of(path)
    source.prepare()
    source.capacity = capacity or source.capacity or size_of(DEFAULT_CAPACITY)
    common = [program, "--capacity", str(source.capacity)]
    runs: list[Run] = []
    try:
        runs.append(Run("replayed", common + options_of(source.settings)))
        if changes:
            runs.append(Run(" ".join(f"{k}={v}" for k, v in changes.items()), common + options_of({**source.settings, **changes})))
        runs.append(Run("model: pytorch", common + ["--model", "pytorch"]))
        runs.append(Run("model: driver", common + ["--model", "driver"]))
        batch: list[str] = []
        for line in source.lines():
            batch.append(line)
            if len(batch) >= BATCH:
                feed_all(runs, batch)
        feed_all(runs, batch)
        for run in runs:
            run.finish()
    except BaseException:
        for run in runs:
            run.kill()
        raise
    if not source.requests:
        raise Unusable(f"{path}: no allocation events to replay; trace again with CUPOOL_TRACE_EVENTS=segment,alloc")
    return source, runs


def feed_all(runs: list[Run], batch: list[str]) -> None:
    data = "".join(batch).encode()
    for run in runs:
        run.feed(data)
    batch.clear()


def row_of(names: list[str], f: Event) -> list[str]:
    def number(v: Optional[int]) -> str:
        return "-" if v is None else str(v)

    tried = (f["hits"] or 0) + (f["misses"] or 0)
    return [*names, number(f["requests"]), f"{100 * f['hits'] / tried:.1f}%" if tried and f["hits"] is not None else "-",
            human_size(f["peak_live_requested"]), human_size(f["peak_used"]), f"{f['waste']:.3f}", str(f["segments_alloc"]),
            str(f["segments_free"]), number(f["bypassed"]), number(f["oom"])]


def notes_of(source: Source, runs: list[Run]) -> Iterator[str]:
    who = "-" if source.rank is None else f"rank {source.rank}"
    yield from (f"{who}: {note}" for note in source.notes)
    if not isinstance(source, TraceSource):
        return
    for d, dev in sorted(source.devices.items()):
        again = runs[0].devices.get(d)
        if again and again["peak_held"] != dev.peak_held:
            yield (f"{who} device {d}: replayed, {human_size(again['peak_held'])} are held at the peak, and "
                   f"{human_size(dev.peak_held)} were: threads, the clock or captures; or --capacity is not the device's")


def run(args: argparse.Namespace) -> int:
    done: list[tuple[Source, list[Run]]] = []
    status = 0
    try:
        changes = changes_of(args.changes)
        program = find_program(args.program)
        capacity = size_of(args.capacity) if args.capacity else None
        if args.capacity and not capacity:
            raise Unusable(f"--capacity {args.capacity}: not a size")
    except Unusable as e:
        print(f"cupool-trace: {e}", file=sys.stderr)
        return 2
    for path in args.files:
        try:
            done.append(replay_file(path, changes, program, capacity))
        except (CannotRead, Unusable) as e:
            print(f"cupool-trace: {e}", file=sys.stderr)
            status = 2
    done.sort(key=lambda pair: (pair[0].rank is None, pair[0].rank or 0, pair[0].path))
    if args.json:
        json.dump({"files": [{
            "path": source.path, "rank": source.rank, "capacity": source.capacity, "settings": source.settings, "notes": list(notes_of(source, runs)),
            "devices": {str(d): {"traced": dev.result() if isinstance(source, TraceSource) else None,
                                 "runs": {r.name: r.devices[d] for r in runs if d in r.devices}}
                        for d, dev in sorted(source.devices.items())},
        } for source, runs in done]}, sys.stdout, indent=1)
        print()
        return status
    rows: list[list[str]] = []
    for source, runs in done:
        rank = "-" if source.rank is None else str(source.rank)
        for d, dev in sorted(source.devices.items()):
            if isinstance(source, TraceSource):
                rows.append(row_of([rank, str(d), "as traced"], dev.result()))
            rows.extend(row_of([rank, str(d), r.name], r.devices[d]) for r in runs if d in r.devices)
    if rows:
        print(table(["rank", "device", "what", "requests", "hit rate", "peak live", "peak held", "ratio", "segments", "given back",
                     "bypassed", "oom"], rows, left=3))
        for size in sorted({source.capacity for source, _ in done if source.capacity}):
            print(f"\ndevices of {human_size(size)}" + ("" if size != size_of(DEFAULT_CAPACITY) or args.capacity else
                                                      ", as neither the trace nor --capacity says otherwise"))
    for source, runs in done:
        for note in notes_of(source, runs):
            print(note)
    return status
