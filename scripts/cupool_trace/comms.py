# SPDX-License-Identifier: Apache-2.0
"""NCCL communicators and their registrations: does each event of one file match those before it, and between files, which ranks of
communicators no file tells of?

Not here: NCCL's view. Only programs with CUPOOL_REGISTER write these events.
"""
from __future__ import annotations

from collections import Counter
from typing import Callable, Iterable, Iterator, Optional

from .schema import Event
from .text import count_of

SHOWN = 8  # missing ranks that are named


class Comms:
    """Of one process. `seen` counts communicators by their number of ranks and this process's rank in them."""

    def __init__(self, add: Callable[[int, str], None]) -> None:
        self.seen: Counter[tuple[int, int]] = Counter()
        self._live: dict[str, Counter[str]] = {}  # by communicator, how often each address is registered
        self._add = add

    def made(self, line: int, ev: Event) -> None:
        # One of this name may have ended without our hearing of it.
        self._live[ev["comm"]] = Counter()
        rank = ev.get("rank")
        if type(rank) is not int or not 0 <= rank < ev["ranks"]:
            self._add(line, f"comm_init: rank {rank!r:.80} of {ev['ranks']}")
        else:
            self.seen[ev["ranks"], rank] += 1

    def ended(self, line: int, ev: Event) -> None:
        if self._live.pop(ev["comm"], None) is None:
            self._add(line, f"comm_destroy: there is no communicator {ev['comm']}")

    def register(self, line: int, ev: Event) -> None:
        if ev["comm"] not in self._live:
            self._add(line, f"register {ev['p']} {ev['n']}: there is no communicator {ev['comm']}")
        elif ev["ok"]:
            self._live[ev["comm"]][ev["p"]] += 1

    def deregister(self, line: int, ev: Event) -> None:
        registered = self._live.get(ev["comm"], Counter())
        if not registered[ev["p"]]:
            self._add(line, f"deregister {ev['p']} {ev['n']}: not registered with {ev['comm']}")
        elif ev["ok"]:
            registered[ev["p"]] -= 1


def numbers(some: list[int], count: int) -> str:
    """Some of `count` ranks, in words."""
    names = [*map(str, some), *([f"{count - len(some)} more"] if count > len(some) else [])]
    return ("rank " if count == 1 else "ranks ") + (", ".join(names[:-1]) + " and " if len(names) > 1 else "") + names[-1]


def without(present: "set[int]", size: int) -> list[int]:
    """The first of the ranks that are not there. `size` comes from a file, and may be anything."""
    out: list[int] = []
    rank = 0
    while rank < size and len(out) < SHOWN:
        if rank not in present:
            out.append(rank)
        rank += 1
    return out


def comms_missing(files: Iterable[Comms], complete: bool) -> Iterator[str]:
    """Each communicator has each of its ranks once. So where all ranks' traces are there, each rank of those of one size occurs
    equally often; at least once, if not all are complete: who was killed did not come to all of his."""
    made: Counter[tuple[int, int]] = Counter()
    for comms in files:
        made.update(comms.seen)
    for size in sorted({ranks for ranks, _ in made}):
        times = {rank: n for (ranks, rank), n in made.items() if ranks == size}
        most = max(times.values())
        present = {rank for rank, n in times.items() if n == most or not complete}
        lacking = size - len(present)
        if lacking:
            yield (f"{count_of(most, 'communicator')} of {size} ranks: {numbers(without(present, size), lacking)} missing: no trace given, or "
                   "without cupool, or with other settings there; if memory is registered on one side alone, NCCL hangs or mixes data up")


def ranks_missing(present: "set[int]", size: int) -> Optional[str]:
    """Which of so many ranks have no trace, in words; None: all have."""
    inside = {r for r in present if r < size}
    lacking = size - len(inside)
    return f"{numbers(without(inside, size), lacking)} of {size}: no trace given" if lacking else None
