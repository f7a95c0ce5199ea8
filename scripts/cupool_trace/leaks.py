# SPDX-License-Identifier: Apache-2.0
"""cupool-trace leaks: what was never freed, by the stack that asked for it.

Here: the blocks that are live at the end of each trace. Not here: a judge; memory that a program keeps until its end,
and memory of a killed process, is listed too.
"""
from __future__ import annotations

import argparse
import collections
import json
import sys

from . import symbols
from .asked_in import NO_RANGE, ranges_of
from .callers import Names, names_of
from .frames import UNKNOWN
from .options import positive
from .reader import CannotRead
from .replay import Rank, load
from .schema import Event
from .text import count_of, human_size, table

HELP = "what was never freed, by stack"
DESCRIPTION = """\
Lists the blocks that are live at the end of the traces, added up over all ranks by the stack that asked for them; the most bytes
first, each stack with its frames, innermost first. Needs CUPOOL_TRACE_EVENTS=segment,alloc, and CUPOOL_TRACE_STACKS=1 for the
stacks, with functions and lines where the files that ran, or their debugging information, are here. With cupool-run --nvtx each
stack says in which ranges of NVTX its blocks were asked for. A process that was killed, or frees nothing at its end, leaves all that
it had. That something is left is no error: the exit status is 0."""
RANGES = 3  # of a stack, the most frequent ones; --json has all


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--top", type=positive, metavar="N", default=20, help="so many stacks (default 20); --json has all")
    symbols.add_arguments(parser)


def ranges_in(r: Rank) -> "dict[tuple[int, int], str] | None":
    """Of each block that is live at the end; None: the trace has no ranges, or cannot be read again."""
    if not r.follows_blocks or not r.replay.has_ranges or r.path == "-":
        return None
    try:
        return ranges_of(r.path, {(d, start) for d, dev in r.replay.devices.items() for start, _, _ in dev.blocks.items()})
    except CannotRead as e:  # the file was there a moment ago
        print(f"cupool-trace: {e}", file=sys.stderr)
        return None


def in_ranges(ranges: "collections.Counter[str]") -> str:
    """In words; empty if nothing is known."""
    if not any(ranges):
        return ""
    said = [f"{name or 'no range'} ({count_of(n, 'block')})" for name, n in ranges.most_common(RANGES)]
    return "    asked for in " + ", ".join(said) + (f", {len(ranges) - RANGES} others" if len(ranges) > RANGES else "")


def left_of(ranks: list[Rank]) -> list[Event]:
    """Each stack with its blocks that are live at the end."""
    out: dict[Names, Event] = {}
    for r in ranks:
        ranges = ranges_in(r)
        for d, dev in r.replay.devices.items():
            for start, end, _ in dev.blocks.items() if r.follows_blocks else ():
                caller = dev.blocks.more(start)
                names = names_of(caller.stack, r.replay.frames) if caller else (UNKNOWN,)
                o = out.setdefault(names, {"stack": names, "bytes": 0, "blocks": 0, "ranks": set(), "ranges": collections.Counter()})
                o["bytes"] += end - start
                o["blocks"] += 1
                o["ranks"].add(r.path)
                if ranges is not None:
                    o["ranges"][ranges.get((d, start), NO_RANGE)] += 1
    return sorted(({**o, "ranks": len(o["ranks"])} for o in out.values()), key=lambda o: (-o["bytes"], o["stack"]))


def run(args: argparse.Namespace) -> int:
    ranks, unreadable = load(args.files)
    status = 2 if unreadable else 1 if any(r.problems.count for r in ranks) else 0
    symbols.name_ranks(ranks, args)
    left = left_of(ranks)
    if args.json:
        json.dump({"stacks": left, "bytes": sum(o["bytes"] for o in left), "blocks": sum(o["blocks"] for o in left)}, sys.stdout, indent=1)
        print()
        return status
    for r in ranks:
        if not r.follows_blocks:
            why = f": {r.reader.omitted}" if r.traces_allocs else "; CUPOOL_TRACE_EVENTS=segment,alloc does"
            print(f"cupool-trace: {r.path}: it does not tell which blocks are live{why}", file=sys.stderr)
    if not left:
        if not any(r.follows_blocks for r in ranks):
            return status  # they tell nothing of it, which was said
        print("nothing is left, as far as the traces tell")
        return status
    print(f"{human_size(sum(o['bytes'] for o in left))} in {count_of(sum(o['blocks'] for o in left), 'block')} never freed, by "
          f"{count_of(len(left), 'stack')}" + (f"; the first {args.top}" if len(left) > args.top else ""))
    for o in left[:args.top]:
        print()
        print(table([human_size(o["bytes"]), count_of(o["blocks"], "block"), count_of(o["ranks"], "rank")], [], left=3))
        print("\n".join([*(f"    {name}" for name in o["stack"]), *filter(None, [in_ranges(o["ranges"])])]))
    return status
