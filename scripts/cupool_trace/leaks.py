# SPDX-License-Identifier: Apache-2.0
"""cupool-trace leaks: what was never freed, by the stack that asked for it.

Here: the blocks that are live at the end of each trace. Not here: a judge; memory that a program keeps until its end,
and memory of a killed process, is listed too.
"""
from __future__ import annotations

import argparse
import json
import sys

from . import symbols
from .callers import Names, names_of
from .check import positive
from .frames import UNKNOWN
from .replay import Rank, load
from .schema import Event
from .text import count_of, human_size, table

HELP = "what was never freed, by stack"
DESCRIPTION = """\
Lists the blocks that are live at the end of the traces, added up over all ranks by the stack that asked for them; the most bytes
first, each stack with its frames, innermost first. Needs CUPOOL_TRACE_EVENTS=segment,alloc, and CUPOOL_TRACE_STACKS=1 for the
stacks, with functions and lines where the files that ran, or their debugging information, are here. A process that was killed, or frees nothing at its end, leaves all that it had. That something is left is no error: the
exit status is 0."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--top", type=positive, metavar="N", default=20, help="so many stacks (default 20); --json has all")
    symbols.add_arguments(parser)


def left_of(ranks: list[Rank]) -> list[Event]:
    """Each stack with its blocks that are live at the end."""
    out: dict[Names, Event] = {}
    for r in ranks:
        for dev in r.replay.devices.values():
            for start, end, _ in dev.blocks.items() if r.follows_blocks else ():
                caller = dev.blocks.more(start)
                names = names_of(caller.stack, r.replay.frames) if caller else (UNKNOWN,)
                o = out.setdefault(names, {"stack": names, "bytes": 0, "blocks": 0, "ranks": set()})
                o["bytes"] += end - start
                o["blocks"] += 1
                o["ranks"].add(r.path)
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
            print(f"cupool-trace: {r.path}: it does not tell which blocks are live; CUPOOL_TRACE_EVENTS=segment,alloc does", file=sys.stderr)
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
        print("\n".join(f"    {name}" for name in o["stack"]))
    return status
