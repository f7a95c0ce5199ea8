# SPDX-License-Identifier: Apache-2.0
"""Callers: the stacks by which a program asked for memory of one device, the bytes of each, and their names.

Not here: which frames there are; see the event `frame` and Replay.
"""
from __future__ import annotations

import os
import re
from typing import Iterable, Optional

Stack = tuple[int, ...]  # the numbers of frames, innermost first


class Caller:
    """A way through the program by which it asked for memory of one device."""

    __slots__ = ("stack", "requests", "live", "_at_peak", "_peaks")

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.requests = self.live = self._at_peak = self._peaks = 0

    def change(self, n: int, peaks: int) -> None:
        """n bytes more are live, after so many peaks of the device. The live bytes at the last peak are noted only when they change."""
        if self._peaks != peaks:
            self._peaks, self._at_peak = peaks, self.live
        self.live += n

    def at_peak(self, peaks: int) -> int:
        return self._at_peak if self._peaks == peaks else self.live


UNKNOWN = "unknown"  # the frame that has no number, or whose number has no name
_PARTS = re.compile(r"(.*)(\+0x[0-9a-f]+)(?: \((.*)\))?")


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


Names = tuple[str, ...]  # of a stack's frames, innermost first


def names_of(stack: Stack, frames: dict[int, str]) -> Names:
    return tuple(frame_name(frames.get(number)) for number in stack) or (UNKNOWN,)


def caller_names(stacks: Iterable[Names]) -> dict[Names, str]:
    """A name for each of these stacks: its innermost frame, and if others begin with that too, the first frame in which it differs."""
    every = sorted(set(stacks))
    alike = [0, *(len(os.path.commonprefix([a, b])) for a, b in zip(every, every[1:])), 0]
    out: dict[Names, str] = {}
    for i, names in enumerate(every):
        part = min(max(alike[i], alike[i + 1]), len(names) - 1)
        out[names] = f"{names[0]} for {names[part]}" if part else names[0]
    return out
