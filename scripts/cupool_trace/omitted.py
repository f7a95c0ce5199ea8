# SPDX-License-Identifier: Apache-2.0
"""The gaps of a file, from its `gap` events: the library has left events out, because the file reached its limit, because there were too
many at a time, or because they could not be written (docs/trace.md).
"""
from __future__ import annotations

from typing import Any

LEFT_OUT = ("segments", "blocks", "others")  # of a `gap`: how many events of which kinds are not in the file


class Omitted:
    """All gaps of one file; false: there is none. `known` is all of it, of plain values, as a child process hands it over."""

    def __init__(self, known: dict[str, Any]) -> None:
        self.known = known

    def add(self, gap: dict[str, Any]) -> None:
        if not self.known:
            self.known.update(events=0, why=[], since=gap["since"])
        if gap["why"] not in self.known["why"]:
            self.known["why"].append(gap["why"])
        self.known["events"] += sum(gap[k] for k in LEFT_OUT)
        self.known["open"] = gap["open"] == 1

    def __bool__(self) -> bool:
        return bool(self.known)

    def __str__(self) -> str:
        # A killed process does not come to say how many.
        n = "" if self.known["open"] or not self.known["events"] else f"{self.known['events']} "
        return f"{n}events were left out from {self.known['since'] / 1e9:.3f} s on ({', '.join(self.known['why']):.80})"
