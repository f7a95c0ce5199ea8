# SPDX-License-Identifier: Apache-2.0
"""Reads the traces that libcupool.so writes (docs/trace.md). Standard library only; run it through cupool-trace.

Layers, each using only those before it: schema (the keys of events), reader (file -> events), ranges and callers (live
addresses, and the stacks that hold them), replay (events -> live ranges and counters), text (figures -> tables), source
(several files, event by event), lives (events -> steps without contradictions), output (where a conversion goes),
one module per command, cli (the table of commands). To add a command: a module with HELP, DESCRIPTION, add_arguments(parser)
and run(args), and a row in cli.COMMANDS; FILES and JSON, if it has them, say what files it takes and whether it has --json.
Commands that need whole files use replay.load; those that need single events source.Sources.
"""
import re
from pathlib import Path


def _version() -> str:
    """The version that meson.build names: installed, it is in the file `version` beside this package."""
    folder = Path(__file__).resolve().parent.parent
    try:
        return (folder / "version").read_text(encoding="utf-8").strip()
    except OSError:
        pass
    try:
        found = re.search(r"(?m)^  version: '([\d.]+)'", (folder.parent / "meson.build").read_text(encoding="utf-8"))
    except OSError:
        found = None
    return found[1] if found else "unknown"


VERSION = _version()
