# SPDX-License-Identifier: Apache-2.0
"""cupool-trace to-csv: one row an event, for spreadsheets and data frames.

Here: a change of form. Not here: it derives nothing: the table's reader has to add up live bytes.
"""
from __future__ import annotations

import argparse
import csv

from .output import add_argument, guarded, text_output
from .schema import STATS
from .source import Sources, known_keys

HELP = "events as a table"
DESCRIPTION = """\
Writes CSV: a header, then one row an event, rank by rank, within a rank by time. The columns are always the same and in the
same order; what an event does not have is empty. rank, host and pid are the file's, unix_ns is the event's time by the wall
clock, the others are the keys of docs/trace.md; several numbers in one cell have blanks between them. Events and keys that are
not described there are left out."""
JSON = False

KEYS = ["t", "e", "tid", "d", "p", "n", "b", "us", "why", "free", "ok", "name", "uuid", "dropped", *STATS, "block", "f", "at", "h", "offset", "by", "result", "text", "comm", "since", "segments", "blocks", "others", "bytes", "open",
        "bound", "count", "idle", "pending", "holes", "largest", "device_free", "ranks", "asked", "answered", "given", "o", "bias", "id", "path", "mode", "copied"]
COLUMNS = ["rank", "host", "pid", "unix_ns", *KEYS]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_argument(parser)


def convert(args: argparse.Namespace) -> int:
    sources = Sources(args.files)
    with text_output(args.output, args.files) as f:
        writer = csv.writer(f, lineterminator="\n")
        writer.writerow(COLUMNS)
        for s in sources.files:
            whose = [s.rank, *(s.header.get(k) for k in ("host", "pid"))]
            for _, ev in s.events():
                known = known_keys(ev)
                if isinstance(known.get("f"), list):
                    known["f"] = " ".join(map(str, known["f"]))
                writer.writerow([*whose, None if s.t0 is None else s.t0 + ev["t"], *map(known.get, KEYS)])
    return sources.finish()


def run(args: argparse.Namespace) -> int:
    return guarded(args.output, lambda: convert(args))
