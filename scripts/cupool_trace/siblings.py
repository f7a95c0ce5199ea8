# SPDX-License-Identifier: Apache-2.0
"""Traces beside those that are read: the library numbers the files of earlier runs, and of processes that ran at the same
time under one name (NAME.1, NAME.2). A user who names one of them should hear of the others, and of a trace that was named twice.
"""
from __future__ import annotations

import os
import re
import sys
from typing import Any, Iterable, Protocol, TypeVar


class HasHeader(Protocol):
    path: str
    header: "dict[str, Any]"


Read = TypeVar("Read", bound=HasHeader)

SHOWN = 4  # files that are named
_NUMBERED = re.compile(r"(.+?)(?:\.[0-9]{1,3})?(?:\.gz)?")
_START = (b'{"cupool":', b"\x1f\x8b")  # of a trace, and of a packed one


def _base(name: str) -> str:
    found = _NUMBERED.fullmatch(name)
    return found[1] if found else name


def _is_trace(path: str) -> bool:
    try:
        # A pipe of such a name is not waited for.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as f:
            return f.read(len(_START[0])).startswith(_START)
    except OSError:
        return False


def _age(path: str) -> float:
    try:
        return -os.path.getmtime(path)
    except OSError:
        return 0


def unread(paths: Iterable[str]) -> list[str]:
    """The traces that share a name with one of these files, but for a number; the newest first."""
    read = {os.path.realpath(p) for p in paths if p != "-" and os.path.isfile(p)}
    wanted: dict[str, set[str]] = {}  # by folder
    for path in read:
        folder, name = os.path.split(path)
        wanted.setdefault(folder, set()).add(_base(name))
    found = []
    for folder, bases in wanted.items():
        try:
            names = os.listdir(folder)
        except OSError:
            continue
        beside = (os.path.join(folder, name) for name in names if _base(name) in bases)
        found += [path for path in beside if path not in read and os.path.isfile(path) and _is_trace(path)]
    return sorted(found, key=lambda path: (_age(path), path))


def tell(paths: list[str]) -> None:
    """One line on stderr, if there are any."""
    found = [os.path.relpath(path) if path.startswith(os.getcwd() + os.sep) else path for path in unread(paths)]
    if found:
        more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
        print(f"cupool-trace: not read: {', '.join(found[:SHOWN])}{more} (earlier runs, or other processes of one name)", file=sys.stderr)


def once(files: "list[Read]") -> "list[Read]":
    """Each trace once, and a line on stderr for one that was given again, under whatever name."""
    seen: "dict[tuple[Any, ...], str]" = {}
    out = []
    for f in files:
        process = tuple(f.header.get(k) for k in ("host", "pid", "t0_unix_ns", "rank"))
        if process in seen:
            print(f"cupool-trace: {f.path}: the trace {seen[process]} again (of one process, by host, pid and start): counted once", file=sys.stderr)
            continue
        if None not in process[:3]:
            seen[process] = f.path
        out.append(f)
    return out
