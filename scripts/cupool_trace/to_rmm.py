# SPDX-License-Identifier: Apache-2.0
"""cupool-trace to-rmm: the log that RMM's REPLAY_BENCHMARK plays to its own memory resources.

Here: requests in the words of RMM's log. Not here: a replay of this pool; RMM decides itself where blocks go, and
times are only for people, as the replay goes as fast as it can.
"""
from __future__ import annotations

import argparse
import contextlib
import sys
from typing import TextIO

from .lives import ALLOC, FREE, SEGMENT_ALLOC, SEGMENT_FREE, Lives
from .output import CannotWrite, add_argument, guarded, text_output
from .schema import Event
from .source import Source, Sources

HELP = "a log for RMM's replay benchmark"
DESCRIPTION = """\
Writes CSV with the header Thread,Time,Action,Pointer,Size,Stream and the actions allocate, free and allocate failure, as RMM's
logging resource does. REPLAY_BENCHMARK -f FILE -r pool (arena, binning, cuda, managed) then shows how RMM would have fared.
The replay knows blocks by their address only, and one device. So one file is one device of one rank: choose with --device, or
write several with %r (rank, or pid) and %d (device) in the name of -o. Sizes are what the program asked for. Every free has
its allocation before it; frees of what is unknown are left out."""
JSON = False

HEADER = "Thread,Time,Action,Pointer,Size,Stream\n"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_argument(parser, "; %%r becomes the rank, %%d the device")
    parser.add_argument("--device", type=int, metavar="N", help="this device only")
    parser.add_argument("--segments", action="store_true", help="what was got from the driver, not what the program asked for")
    parser.add_argument("--balance", action="store_true", help="free at the end what lives then, so that the replay can repeat")


class Logs:
    """The open files: one for each rank and device, if their names tell them apart."""

    def __init__(self, args: argparse.Namespace, stack: contextlib.ExitStack) -> None:
        self._args = args
        self._stack = stack
        self._open: dict[str, TextIO] = {}
        self._of: dict[tuple[Source, int], TextIO] = {}
        self._whose: dict[str, str] = {}

    def of(self, source: Source, device: int) -> TextIO:
        log = self._of.get((source, device))
        if log is None:
            who = f"{source.name} device {device}"
            rank = f"pid{source.header.get('pid', 'x')}" if source.rank is None else str(source.rank)
            path = (self._args.output or "-").replace("%r", rank).replace("%d", str(device))
            if path in self._whose:
                raise CannotWrite(f"{who} would go where {self._whose[path]} goes: choose with --device, or write %r and %d "
                                  "into the name of -o")
            self._whose[path] = who
            log = self._of[source, device] = self._stack.enter_context(text_output(path, self._args.files))
            log.write(HEADER)
        return log


    def at_least_one(self) -> None:
        """A trace without requests is a log without lines, where that log has a name."""
        if self._of:
            return
        print("cupool-trace: nothing to convert" + ("" if self._args.device is None else f" on device {self._args.device}"),
              file=sys.stderr)
        if "%" not in (self._args.output or "-"):
            self._stack.enter_context(text_output(self._args.output, self._args.files)).write(HEADER)


def clock(t: int) -> str:
    us = t // 1000
    return f"{us // 3_600_000_000 % 24:02d}:{us // 60_000_000 % 60:02d}:{us // 1_000_000 % 60:02d}.{us % 1_000_000:06d}"


def thread_of(ev: Event) -> int:
    tid: int = ev.get("tid", 0)
    return max(0, tid)


def write_rank(source: Source, args: argparse.Namespace, logs: Logs) -> None:
    lives = Lives(whole=args.segments, loose=True)
    words = {SEGMENT_ALLOC: "allocate", SEGMENT_FREE: "free"} if args.segments else {ALLOC: "allocate", FREE: "free"}
    t0 = source.t0 or 0
    thread, at, segments, blocks = 0, clock(t0), 0, 0
    for t, ev in source.events():
        segments += ev["e"] == "segment_alloc"
        blocks += ev["e"] == "alloc"
        if args.device is not None and ev.get("d") != args.device:
            continue
        steps = lives.feed(ev)
        if steps:
            thread, at = thread_of(ev), clock(t0 + t)
            for step, p, n in steps:
                if step in words:
                    logs.of(source, ev["d"]).write(f"{thread},{at},{words[step]},{p:#x},{n},0\n")
        elif ev["e"] == "oom":
            # The replay passes over it, but the log's reader should hear of it.
            logs.of(source, ev["d"]).write(f"{thread_of(ev)},{clock(t0 + t)},allocate failure,(nil),{ev['n']},0\n")
    if args.balance:
        for d, live in (lives.segments if args.segments else lives.blocks).items():
            for p, _, n in live.items():
                logs.of(source, d).write(f"{thread},{at},free,{p:#x},{n},0\n")
    source.contradictions = lives.contradictions
    if segments and not blocks and not args.segments and "events" not in source.header:
        raise only_segments(source)


def only_segments(source: Source) -> CannotWrite:
    return CannotWrite(f"{source.path}: has segment events only: record with CUPOOL_TRACE_EVENTS=segment,alloc, or convert "
                       "segments with --segments")


def convert(args: argparse.Namespace) -> int:
    sources = Sources(args.files)
    for s in sources.files:
        if not args.segments and not s.announces_allocs:
            raise only_segments(s)
    with contextlib.ExitStack() as stack:
        logs = Logs(args, stack)
        for s in sources.files:
            write_rank(s, args, logs)
        logs.at_least_one()
    return sources.finish()


def run(args: argparse.Namespace) -> int:
    return guarded(args.output, lambda: convert(args))
