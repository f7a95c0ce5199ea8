# SPDX-License-Identifier: Apache-2.0
"""What a file's `gap` events say: the library has left events out, because the file reached its limit, because there were too
many at a time, or because they could not be written (docs/trace.md).
"""
from __future__ import annotations

from typing import Any

LEFT_OUT = ("segments", "blocks", "others")  # of a `gap`: how many events of which kinds are not in the file


class Omitted:
    """All gaps of one file."""

    def __init__(self) -> None:
        self.events = self.blocks = self.bytes = 0
        self.why: list[str] = []
        self.since = 0
        self.open = False  # as far as is known: the last one goes on

    def add(self, gap: dict[str, Any]) -> None:
        if not self.why:
            self.since = gap["since"]
        if gap["why"] not in self.why:
            self.why.append(gap["why"])
        self.events += sum(gap[k] for k in LEFT_OUT)
        self.blocks += gap["blocks"]
        self.bytes += gap["bytes"]
        self.open = gap["open"] == 1

    def __bool__(self) -> bool:
        return bool(self.why)

    def __str__(self) -> str:
        # A killed process does not come to say how many.
        n = "" if self.open or not self.events else f"{self.events} "
        return f"{n}events were left out from {self.since / 1e9:.3f} s on ({', '.join(self.why):.80})"
