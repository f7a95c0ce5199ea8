# SPDX-License-Identifier: Apache-2.0
"""The frames of one trace: addresses with numbers, the objects that they lie in, and their names.

Here: Frames, filled by the events `object` and `frame`, and by symbols.py with functions and lines. Not here: which stacks there
are (callers), and who finds functions and lines. It fails on nothing: a frame of which nothing is known has a name as well.
"""
from __future__ import annotations

import os
import re
from typing import NamedTuple, Optional

from .schema import Event

UNKNOWN = "unknown"  # the frame that has no number, or whose number has no name
_PARTS = re.compile(r"(.*)(\+0x[0-9a-f]+)(?: \((.*)\))?")


class Place(NamedTuple):
    """A line of a program, as the debugging information has it. A function without a line has an empty file."""
    function: str
    file: str
    line: int


def split_frame(at: str) -> tuple[str, str, str]:
    """A frame's object, its offset there and its function; "" for an unknown part."""
    parts = _PARTS.fullmatch(at)
    return (parts[1], parts[2], parts[3] or "") if parts else (at, "", "")


def frame_name(at: Optional[str]) -> str:
    """A frame's object and function; its object and offset where the function is not known."""
    if at is None:
        return UNKNOWN
    where, _, function = split_frame(at)
    return f"{where} ({function})" if function else at


class Frames:
    """Each frame of a file by its number."""

    def __init__(self) -> None:
        self.at: dict[int, str] = {}  # object and offset, as the trace has them
        self.lies: dict[int, tuple[int, int]] = {}  # the number of the object, and the address
        self.objects: dict[int, Event] = {}
        self.places: dict[int, list[Place]] = {}  # the lines of a frame, a function that was inlined before the one that it was inlined into

    def frame(self, ev: Event) -> None:
        self.at[ev["f"]] = ev["at"]
        if "o" in ev:
            self.lies[ev["f"]] = ev["o"], int(ev["p"], 16)

    def object(self, ev: Event) -> None:
        self.objects[ev["o"]] = ev

    def names(self, number: int) -> tuple[str, ...]:
        """A frame in words: one name, or more if functions were inlined there, the innermost first."""
        at = self.at.get(number)
        places = self.places.get(number)
        if not places or at is None:
            return (frame_name(at),)
        where = split_frame(at)[0]
        return tuple(f"{p.function} ({f'{os.path.basename(p.file)}:{p.line}' if p.file else where})" for p in places)
