# SPDX-License-Identifier: Apache-2.0
"""The command line: the table of commands, and what happens around each of them."""
from __future__ import annotations

import argparse
import errno
import functools
import gc
import io
import os
import signal
import sys
from types import ModuleType
from typing import Iterator

from . import VERSION, check, diff, export, leaks, merge, offline, plot, siblings, summary, to_csv, to_perfetto, to_pytorch, to_rmm, top
from .reader import files_of

COMMANDS: dict[str, ModuleType] = {
    "summary": summary,
    "check": check,
    "leaks": leaks,
    "plot": plot,
    "top": top,
    "replay": offline,
    "export": export,
    "diff": diff,
    "merge": merge,
    "to-csv": to_csv,
    "to-perfetto": to_perfetto,
    "to-pytorch": to_pytorch,
    "to-rmm": to_rmm,
}

# The files that a command reads, and whether it has --json, unless its module says otherwise (FILES, JSON).
FILES = {"nargs": "+", "metavar": "FILE", "help": "a trace, plain or gzip, one per rank, or a folder of them; - is standard input"}
FOLDERS_THEMSELVES = ("top", "export", "diff")  # commands that look into folders themselves
JSON = True
NO_TRACES = ("export",)  # commands that read something else


@functools.lru_cache(None)
def parser_make() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="cupool-trace", description="Read the traces of libcupool.so.",
        epilog="cupool-trace COMMAND --help says more. Exit status: 0 fine, 1 problems found, 2 usage or cannot read.")
    parser.add_argument("--version", action="version", version=f"cupool-trace {VERSION}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, module in COMMANDS.items():
        sub = commands.add_parser(name, help=module.HELP, description=module.DESCRIPTION,
                                  formatter_class=argparse.RawDescriptionHelpFormatter)
        sub.add_argument("files", **getattr(module, "FILES", FILES))
        if getattr(module, "JSON", JSON):
            sub.add_argument("--json", action="store_true", help="print JSON")
        module.add_arguments(sub)
    return parser


def parse_args(argv: list[str]) -> argparse.Namespace:
    parser = parser_make()
    args = parser.parse_args(argv)
    if args.files.count("-") > 1:
        parser.error("standard input can be read only once")
    if "" in args.files:
        parser.error("the name of a file is empty")
    if args.command not in FOLDERS_THEMSELVES:
        args.files = list(all_of(args.files))
    return args


def all_of(paths: list[str]) -> Iterator[str]:
    """With the traces of a folder in its place. A folder that has none, or cannot be read, stays: opening it reports that."""
    for path in paths:
        try:
            yield from files_of(path) or [path]
        except OSError:
            yield path


def streams_open() -> None:
    """Give a standard stream that the starter has closed a descriptor that refuses (EBADF), in place of Python's None.

    Otherwise the first file that is opened would get its number.
    """
    for number, (name, mode, wrong) in enumerate((("stdin", "r", os.O_WRONLY), ("stdout", "w", os.O_RDONLY), ("stderr", "w", os.O_WRONLY))):
        if getattr(sys, name) is None:
            fd = os.open(os.devnull, wrong)
            if fd != number:
                os.dup2(fd, number)
                os.close(fd)
            setattr(sys, name, open(number, mode, closefd=False))


def main(argv: list[str]) -> int:
    streams_open()
    # Nothing here makes cycles; looking for them among the events that wait to be sorted took half of the time.
    gc.set_threshold(1 << 18)
    # Names in a trace may hold what this terminal cannot show; half of a pair of surrogates is no character anywhere.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        try:
            args = parse_args(argv)
        finally:
            sys.stdout.flush()  # --help and --version end here
        if args.command not in NO_TRACES:
            # A folder of `top` stands for all that is in it, numbered or not.
            siblings.tell(args.files if args.command == "top" else list(all_of(args.files)))
        status: int = COMMANDS[args.command].run(args)
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:
        # The reader has seen enough. Python flushes once more at exit, which must not complain either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except OSError as e:
        # Files that are read and written have their own messages; what has no name is standard output.
        if e.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EBADF) or e.filename is not None:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print(f"cupool-trace: standard output: {e.strerror}", file=sys.stderr)
        return 2
