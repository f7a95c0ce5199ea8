# SPDX-License-Identifier: Apache-2.0
"""Callers: the stacks by which a program asked for memory of one device, the bytes of each, and their names.

Not here: the names of single frames (frames).
"""
from __future__ import annotations

import os
from typing import Iterable

from .frames import UNKNOWN, Frames

Stack = tuple[int, ...]  # the numbers of frames, innermost first


class Caller:
    """A way through the program by which it asked for memory of one device."""

    __slots__ = ("stack", "requests", "live", "live_before", "peaks")

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.requests = self.live = self.live_before = self.peaks = 0

    def change(self, n: int, peaks: int) -> None:
        """n bytes more are live, after so many peaks of the device. The live bytes at the last peak are noted only when they change (blocks.follow does it likewise)."""
        if self.peaks != peaks:
            self.peaks, self.live_before = peaks, self.live
        self.live += n

    def at_peak(self, peaks: int) -> int:
        return self.live_before if self.peaks == peaks else self.live


Names = tuple[str, ...]  # of a stack's frames, innermost first


def names_of(stack: Stack, frames: Frames) -> Names:
    return tuple(name for number in stack for name in frames.names(number)) or (UNKNOWN,)


def caller_names(stacks: Iterable[Names]) -> dict[Names, str]:
    """A name for each of these stacks: its innermost frame, and if others begin with that too, the first frame in which it differs."""
    every = sorted(set(stacks))
    alike = [0, *(len(os.path.commonprefix([a, b])) for a, b in zip(every, every[1:])), 0]
    out: dict[Names, str] = {}
    for i, names in enumerate(every):
        part = min(max(alike[i], alike[i + 1]), len(names) - 1)
        out[names] = f"{names[0]} for {names[part]}" if part else names[0]
    return out
