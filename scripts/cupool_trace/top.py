# SPDX-License-Identifier: Apache-2.0
"""cupool-trace top: what running processes hold now.

Here: Follower (a growing trace file, read as far as it goes), figures (the one place where numbers come from) and their
table on a terminal. Not here: a connection to the program; it reads files and cannot disturb anybody.
"""
from __future__ import annotations

import argparse
import glob
import json
import math
import os
import shutil
import socket
import sys
import time
from collections import deque
from typing import Any, Iterator, Optional

from .reader import MAX_LINE, WINDOW, CannotRead, Entry, Problems, Reader, in_time_order, whole_lines
from .replay import Replay
from .schema import Event
from .text import count_of, human_size, table

HELP = "what running processes hold now"
DESCRIPTION = """\
Shows, per rank and device, what is held and (with CUPOOL_TRACE_EVENTS=segment,alloc) live, how many segments that is, driver calls per second, and
the last event, and follows the files as they grow. FILE may be a directory: then all traces in it, also those that come
later. A file's past is read first, which takes a while if it is long ("reading" says how far). Without a terminal, or with
--once, tables are printed one after the other. Ctrl-C ends it. calls/s is the mean of the last 10 seconds of a process that runs
(of its whole life, if that is shorter), by its events' own times, so it does not depend on when somebody looks; of a process that
has ended it is the mean of its whole run.
States: running, ended (its last line says so), gone (killed; known only on this host), silent (on another host, no end line)."""

COLUMNS = ["rank", "device", "host", "pid", "program", "state", "held", "live", "peak held", "segments", "calls/s", "oom", "pinned", "last event", "ago"]
SORTS = ("held", "live", "segments", "rate", "ago", "rank")
CALLS = ("segment_alloc", "segment_free")  # unless it died with its context
RECENT = 10_000_000_000  # ns, of which calls/s is the mean
MS = 1_000_000  # ns
LAG = 50_000_000  # ns; an event may stand in the file so much after one of another thread that came later


def add_arguments(parser: argparse.ArgumentParser) -> None:
    def seconds(text: str) -> float:
        value = float(text)
        if not 0.05 <= value <= 86400:
            raise argparse.ArgumentTypeError("must be from 0.05 to 86400 seconds")
        return value

    parser.add_argument("-i", "--interval", metavar="S", type=seconds, default=1.0, help="seconds between two tables (default 1)")
    parser.add_argument("-s", "--sort", choices=SORTS, default="held", help="what comes first: the most of this, or the lowest rank (default held)")
    parser.add_argument("--once", action="store_true", help="one table of the files as they are now")


class Growing(Reader):
    """A Reader that can be asked again: events() goes on where the last one ended, at the end of the last whole line."""

    AHEAD = False

    def __init__(self, path: str, problems: Problems) -> None:
        super().__init__(path, problems)
        self.at = 0
        self.size = 0
        self.until = 0.0  # when to stop, however much there is
        self.packed: Optional[bool] = None

    def _blocks(self) -> Iterator[bytes]:
        if self.packed is None and self.path != "-":
            self.packed = self._magic() == b"\x1f\x8b"
        if self.packed or self.path == "-":
            # A packed file does not grow any more; standard input can be read only once.
            if self.at == 0:
                self.at = 1
                yield from super()._blocks()
            return
        try:
            with open(self.path, "rb") as f:
                self.size = os.fstat(f.fileno()).st_size
                f.seek(self.at)
                for block in whole_lines(f):
                    # Half a line will be whole later; only one that is longer than any event is passed on in pieces.
                    if not block.endswith(b"\n") and len(block) < MAX_LINE:
                        return
                    self.at += len(block)
                    yield block
                    if time.monotonic() > self.until:
                        return
        except OSError as e:
            raise CannotRead(f"{self.path}: {e.strerror or e}") from e

    def _magic(self) -> Optional[bytes]:
        try:
            with open(self.path, "rb") as f:
                return f.read(2)
        except OSError as e:
            raise CannotRead(f"{self.path}: {e.strerror or e}") from e


class Follower:
    """One trace and its state so far. Memory is bounded by the number of live ranges, as in Replay."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._begin()

    def _begin(self) -> None:
        self.problems = Problems()
        self.reader = Growing(self.path, self.problems)
        self.replay = Replay(self.problems)
        self.last: dict[int, Event] = {}  # device: its last event
        self._calls: dict[int, deque[tuple[int, int]]] = {}  # by device: time and number of the driver calls of RECENT
        self._waiting: list[Entry] = []
        self._newest = 0

    def poll(self, until: float) -> None:
        """Read new lines, but not beyond `until` (monotonic)."""
        if self.path != "-" and self._is_another_file():
            self._begin()
        self.reader.until = until
        fresh = 0
        for entry in self.reader.events():
            fresh += 1
            self._waiting.append(entry)
            self._newest = max(self._newest, entry[0])
            if len(self._waiting) >= 2 * WINDOW:
                self._apply(WINDOW)
        if self.reader.lines == 0:
            self.problems.count = 0  # the header is being written: that is not yet a problem
            self.problems.kept.clear()
        # The newest wait for those of other threads, unless nothing more comes.
        self._apply(0 if fresh == 0 or self.reader.ended or self.now(time.time_ns()) > self._newest + LAG else None)

    def now(self, unix_ns: int) -> int:
        """So many nanoseconds after its header it is, by this host's clock; never before its newest event."""
        t0 = self.reader.header.get("t0_unix_ns")
        return self._newest if t0 is None else max(self._newest, unix_ns - t0)

    def settle(self) -> None:
        """Take the lines read so far as the whole trace."""
        self._apply(0)

    def _is_another_file(self) -> bool:
        """Somebody removed the trace, and a new run wrote one of the same name."""
        try:
            return not self.reader.packed and os.path.getsize(self.path) < self.reader.at
        except OSError:
            return False  # reading it will say why

    def _apply(self, keep: Optional[int]) -> None:
        """All but the newest `keep` events; None: but the newest LAG."""
        if not self._waiting:
            return
        ordered = list(in_time_order(self._waiting))
        if keep is None:
            edge = self._newest - LAG
            keep = next((len(ordered) - i for i, (t, _, _) in enumerate(ordered) if t > edge), 0)
            keep = min(keep, WINDOW)
        done = len(ordered) - keep
        for _, line, ev in ordered[:done]:
            self.replay.apply(line, ev)
            if "d" in ev:
                self.last[ev["d"]] = ev
                if ev["e"] in CALLS and ev.get("why") != "context":
                    self._called(ev)
        self._waiting = ordered[done:]

    def _called(self, ev: Event) -> None:
        """The driver was called. Calls older than RECENT are forgotten, and calls of one millisecond are one entry."""
        calls = self._calls.setdefault(ev["d"], deque())
        at = ev["t"] // MS * MS
        if calls and calls[-1][0] >= at:
            calls[-1] = calls[-1][0], calls[-1][1] + 1
        else:
            calls.append((at, 1))
        while calls[0][0] < at - RECENT:
            calls.popleft()

    def rate(self, d: int, state: str, unix_ns: int) -> float:
        """Driver calls per second."""
        if state not in ("running", "silent"):
            run = self.replay.last_t
            return self.replay.devices[d].driver_calls / run * 1e9 if run else 0.0
        now = self.now(unix_ns)
        recent = sum(n for at, n in self._calls.get(d, ()) if at >= now - RECENT)
        return recent / min(RECENT, now) * 1e9 if now else 0.0

    @property
    def behind(self) -> Optional[float]:
        """How much has been read, as a part; None if all."""
        size, at = self.reader.size, self.reader.at
        return at / size if size and size - at > MAX_LINE else None

    def state(self) -> str:
        if self.behind is not None:
            return f"reading {100 * self.behind:.0f}%"
        if self.reader.ended:
            return "ended"
        header = self.reader.header
        pid = header.get("pid")
        if header.get("host") != socket.gethostname() or not isinstance(pid, int) or not 0 < pid < 1 << 31:
            return "silent"
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return "gone"
        except PermissionError:
            pass  # it is there and another's
        return "running"


def figures(follower: Follower, now_unix_ns: int) -> list[Event]:
    """The state of one process at this moment, a row for each device. All numbers that are shown come from here."""
    header, replay = follower.reader.header, follower.replay
    allocs = "alloc" in header.get("events", "").split(",") or any(dev.allocs for dev in replay.devices.values())
    allocs = allocs and not follower.reader.omitted
    state = follower.state()
    rows = []
    for d, dev in sorted(replay.devices.items()):
        last = follower.last.get(d)
        ago = None
        if last is not None and "t0_unix_ns" in header:
            ago = max(0.0, (now_unix_ns - header["t0_unix_ns"] - last["t"]) / 1e9)
        rows.append({
            "path": follower.path, "rank": header.get("rank"), "device": d, "host": header.get("host"), "pid": header.get("pid"),
            "exe": header.get("exe"), "state": state, "held": dev.held, "live": dev.live if allocs else None, "peak_held": dev.peak_held,
            "segments": dev.segments_live, "driver_calls": dev.driver_calls, "calls_per_s": round(follower.rate(d, state, now_unix_ns), 3), "oom": dev.oom,
            "pinned": replay.host.held.get(d, 0),
            "last_event": last["e"] if last else None, "last_event_ago_s": None if ago is None else round(ago, 3),
            "problems": follower.problems.count})
    return rows


def sort_rows(rows: list[Event], by: str) -> list[Event]:
    rows = sorted(rows, key=lambda r: (r["rank"] is None, r["rank"] or 0, str(r["host"]), r["path"], r["device"]))
    key = {"held": "held", "live": "live", "segments": "segments", "rate": "calls_per_s", "ago": "last_event_ago_s"}.get(by)
    if key:
        rows.sort(key=lambda r: -1 if r[key] is None else r[key], reverse=by != "ago")
    return rows


def ago_text(s: Optional[float]) -> str:
    if s is None:
        return "-"
    return f"{s:.1f} s" if s < 100 else f"{s / 60:.0f} min" if s < 6000 else f"{s / 3600:.0f} h" if s < 360000 else f"{s / 86400:.0f} d"


def plain(text: Any) -> str:
    """A name as it can stand in a table: a trace must not be able to command the terminal."""
    return "".join(c if c.isprintable() else "?" for c in str("-" if text is None else text))[:32]


def as_table(rows: list[Event]) -> str:
    cells = [[plain(r["rank"]), str(r["device"]), plain(r["host"]), plain(r["pid"]), plain(r["exe"]), r["state"], human_size(r["held"]),
              human_size(r["live"]), human_size(r["peak_held"]), str(r["segments"]), f"{r['calls_per_s']:.1f}", str(r["oom"]),
              human_size(r["pinned"] or None), plain(r["last_event"]), ago_text(r["last_event_ago_s"])] for r in rows]
    return table(COLUMNS, cells, left=6)


class Sources:
    """The files to follow: those that were named, and whatever traces are in directories that were."""

    def __init__(self, paths: list[str]) -> None:
        self.directories = [p for p in paths if p != "-" and os.path.isdir(p)]
        self.followers = {p: Follower(p) for p in paths if p not in self.directories}
        self._named = set(self.followers)
        self._no_traces: dict[str, int] = {}  # path: size at which it was none
        self.messages: list[str] = []  # files that cannot be read

    def _look(self) -> None:
        for directory in self.directories:
            for path in sorted(glob.glob(os.path.join(glob.escape(directory), "*.jsonl*"))):
                # An empty file may become one.
                if path not in self.followers and os.path.isfile(path) and os.path.getsize(path) > self._no_traces.get(path, 0):
                    self.followers[path] = Follower(path)

    def poll(self, until: float) -> None:
        self._look()
        for n, (path, follower) in enumerate(list(self.followers.items())):
            now = time.monotonic()
            # The time that is left is shared by the files that still come.
            share = max(0.02, (until - now) / (len(self.followers) - n)) if until < math.inf else math.inf
            try:
                follower.poll(now + share)
                if not follower.reader.header and path not in self._named and follower.reader.lines:
                    raise CannotRead(f"{path}: not a cupool trace")
            except CannotRead as e:
                del self.followers[path]
                if path in self._named:
                    self.messages.append(f"cupool-trace: {e}")
                elif os.path.exists(path):
                    self._no_traces[path] = os.path.getsize(path)

    def rows(self, by: str) -> list[Event]:
        now = time.time_ns()
        return sort_rows([row for f in self.followers.values() for row in figures(f, now)], by)


def head(sources: Sources, rows: list[Event]) -> str:
    # Ranks may share a device, so this is what all of them hold and not how full any device is.
    held = sum(r["held"] for r in rows)
    return (f"{time.strftime('%H:%M:%S')}  {count_of(len(sources.followers), 'trace')}, {count_of(len(rows), 'row')}, "
            f"{human_size(held)} held in all")


def fit(text: str, width: int, height: int) -> list[str]:
    lines = [line[:width] for line in text.split("\n")]
    if len(lines) > height:
        lines = [*lines[:height - 1], f"... {len(lines) - height + 1} more"[:width]]
    return lines


def once(sources: Sources, args: argparse.Namespace) -> int:
    sources.poll(math.inf)
    for follower in sources.followers.values():
        follower.settle()
    rows = sources.rows(args.sort)
    for message in sources.messages:
        print(message, file=sys.stderr)
    if args.json:
        json.dump({"rows": rows}, sys.stdout, indent=1)
        print()
    elif rows:
        print(as_table(rows))
    else:
        print("no event on any device")
    return 2 if sources.messages else 0


def run(args: argparse.Namespace) -> int:
    if args.json and not args.once:
        print("cupool-trace: top --json needs --once", file=sys.stderr)
        return 2
    sources = Sources(args.files)
    if args.once:
        return once(sources, args)
    screen = sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    if screen:
        sys.stdout.write("\x1b[?1049h\x1b[?25l")  # another screen, so that the shell's is as before afterwards; no cursor
    try:
        while True:
            began = time.monotonic()
            sources.poll(began + args.interval)
            rows = sources.rows(args.sort)
            text = head(sources, rows) + "\n\n" + (as_table(rows) if rows else "no event on any device yet")
            if not sources.followers and not sources.directories:
                return 2
            if screen:
                size = shutil.get_terminal_size()
                # Over the old lines, one by one: clearing first would flicker.
                sys.stdout.write("\x1b[H" + "".join(f"{line}\x1b[K\n" for line in fit(text, size.columns, size.lines - 1)) + "\x1b[J")
            else:
                print(text + "\n")
            sys.stdout.flush()
            time.sleep(max(0.0, began + args.interval - time.monotonic()))
    finally:
        if screen:
            sys.stdout.write("\x1b[?25h\x1b[?1049l")
            sys.stdout.flush()
        # Now, because they would spoil the screen before.
        for message in sources.messages:
            print(message, file=sys.stderr)
