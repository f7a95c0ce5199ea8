# SPDX-License-Identifier: Apache-2.0
"""cupool-trace merge: the traces of several ranks and hosts as one stream, by time.

Here: a merge of streams, for programs; of each file as many events are in memory as sorting needs. Not here: a judge
of clocks; it believes each header's.
"""
from __future__ import annotations

import argparse
import heapq
import json
from typing import Iterator

from .output import CannotWrite, add_argument, guarded, text_output
from .reader import WINDOW
from .schema import Event
from .source import Source, Sources, known_keys

HELP = "several traces as one stream by time"
DESCRIPTION = """\
Writes JSON Lines. The first line has "merged":1, "t0_unix_ns" (the earliest of the files') and "files" (their headers); every
other line is an event as in docs/trace.md, with rank, host and pid before the rest, and t since that t0_unix_ns. The last line
is the event "merged": for each file how it ended, how many lines it has and how many were wrong; a stream without it was cut.
Hosts are apart by as much as their wall clocks were when the processes began; within a file t is exact. It is not a trace that
the other commands read: thread numbers and addresses of different processes are unrelated."""
JSON = False

MOST_HELD = 16 * WINDOW  # twice that are in memory, some 200 MB
LEAST_WINDOW = 1 << 9


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_argument(parser)


def compact(o: Event) -> str:
    return json.dumps(o, separators=(",", ":"), allow_nan=False) + "\n"


def line_of(whose: Event, t: int, ev: Event) -> str:
    if ev["e"] == "comm_init":  # its rank is not the process's
        ev = {**ev, "comm_rank": ev["rank"]}
    try:
        return compact({**whose, **ev, "t": t, **whose})
    except (ValueError, RecursionError):  # the value of an unknown key is no JSON, or is too deep
        return compact({**whose, **known_keys(ev), "t": t})


def header_of(s: Source) -> Event:
    out = {"path": s.path, **s.header}
    try:
        compact(out)
    except (ValueError, RecursionError):
        return {"path": s.path, "rank": s.rank}
    return out


def window_of(files: int) -> int:
    """Over how many events of each file they are sorted. All files are open at once here, and there may be thousands."""
    return max(LEAST_WINDOW, min(WINDOW, MOST_HELD // files))


def by_time(sources: Sources) -> Iterator[tuple[int, int, Source, Event]]:
    def of(number: int, s: Source, offset: int) -> Iterator[tuple[int, int, Source, Event]]:
        for t, ev in s.events(window):
            # The number decides between equal times, so that events are never compared and every run gives the same.
            yield t + offset, number, s, ev

    window = window_of(max(1, len(sources.files)))
    return heapq.merge(*(of(i, s, sources.offset(s)) for i, s in enumerate(sources.files)), key=lambda x: x[:2])


def convert(args: argparse.Namespace) -> int:
    sources = Sources(args.files)
    for s in sources.files:
        if s.t0 is None and len(sources.files) > 1:
            raise CannotWrite(f"{s.path}: its header has no t0_unix_ns, so its place among the others is unknown")
    whose = {s: {"rank": s.rank, "host": s.header.get("host"), "pid": s.header.get("pid")} for s in sources.files}
    with text_output(args.output, args.files) as f:
        f.write(compact({"merged": 1, "t0_unix_ns": sources.base, "files": [header_of(s) for s in sources.files]}))
        t = 0
        for t, _, s, ev in by_time(sources):
            f.write(line_of(whose[s], t, ev))
        f.write(compact({"t": t, "e": "merged", "files": [
            {"path": s.path, "rank": s.rank, "state": s.reader.state, "complete": s.reader.complete, "lines": s.reader.lines,
             "problems": s.problems.count} for s in sources.files]}))
    return sources.finish()


def run(args: argparse.Namespace) -> int:
    return guarded(args.output, lambda: convert(args))
