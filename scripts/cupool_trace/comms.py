# SPDX-License-Identifier: Apache-2.0
"""NCCL communicators and what is registered with them, followed through one file's events; and between files, which ranks of
communicators no file tells of.

What it is not: NCCL's view. Only programs with CUPOOL_REGISTER write these events.
"""
from __future__ import annotations

from collections import Counter
from typing import Any, Callable, Iterable, Iterator, Optional

from .reader import Event
from .text import count_of, human_size

EVENTS = ("comm_init", "comm_destroy", "register", "deregister", "nccl")
TOTALS = ("ops", "mixed", "outside", "unsafe", "renewed")
SHOWN = 8  # missing ranks that are named


class Comms:
    """Of one process. `made` counts communicators by their number of ranks and this process's rank in them."""

    def __init__(self, add: Callable[[int, str], None]) -> None:
        self.made: Counter[tuple[int, int]] = Counter()
        self.versions: set[int] = set()
        self.registered = self.deregistered = self.failed = 0
        self.bytes = self.peak_bytes = 0  # of memory that is registered with at least one communicator
        self.totals: Optional[Event] = None
        self._live: dict[str, Counter[str]] = {}  # by communicator, how often each address is registered
        self._sizes: dict[str, list[int]] = {}  # of each address: its registrations, and its bytes
        self._add = add
        self._on: dict[str, Callable[[int, Event], None]] = {
            "comm_init": self._init, "comm_destroy": self._destroy, "register": self._register, "deregister": self._deregister,
            "nccl": self._totals,
        }

    def apply(self, line: int, ev: Event) -> None:
        self._on[ev["e"]](line, ev)

    def _init(self, line: int, ev: Event) -> None:
        if ev["rank"] >= ev["ranks"]:
            self._add(line, f"comm_init: rank {ev['rank']} of {ev['ranks']}")
            return
        self._forget(ev["comm"])  # it ended without our hearing of it, and its address is used again
        self._live[ev["comm"]] = Counter()
        self.made[ev["ranks"], ev["rank"]] += 1
        self.versions.add(ev["nccl"])

    def _destroy(self, line: int, ev: Event) -> None:
        if ev["comm"] not in self._live:
            self._add(line, f"comm_destroy: there is no communicator {ev['comm']}")
        self._forget(ev["comm"])

    def _register(self, line: int, ev: Event) -> None:
        if ev["comm"] not in self._live:
            self._add(line, f"register {ev['p']} {ev['n']}: there is no communicator {ev['comm']}")
            return
        if not ev["ok"]:
            self.failed += 1
            return
        self.registered += 1
        self._live[ev["comm"]][ev["p"]] += 1
        size = self._sizes.setdefault(ev["p"], [0, ev["n"]])
        if not size[0]:
            self.bytes += size[1]
            self.peak_bytes = max(self.peak_bytes, self.bytes)
        size[0] += 1

    def _deregister(self, line: int, ev: Event) -> None:
        registered = self._live.get(ev["comm"], Counter())
        if not registered[ev["p"]]:
            self._add(line, f"deregister {ev['p']} {ev['n']}: not registered with {ev['comm']}")
        elif not ev["ok"]:
            self.failed += 1  # and it stays
        else:
            self.deregistered += 1
            registered[ev["p"]] -= 1
            self._release(ev["p"], 1)

    def _release(self, p: str, times: int) -> None:
        size = self._sizes[p]
        size[0] -= times
        if not size[0]:
            self.bytes -= size[1]
            del self._sizes[p]

    def _forget(self, comm: str) -> None:
        for p, times in self._live.pop(comm, Counter()).items():
            if times:
                self._release(p, times)

    def _totals(self, line: int, ev: Event) -> None:
        self.totals = {k: ev[k] for k in TOTALS}

    def figures(self) -> Optional[Event]:
        """For a summary; None: no event of NCCL was there."""
        if not self.made and self.totals is None:
            return None
        return {"comms": sum(self.made.values()), "comm_ranks": sorted({ranks for ranks, _ in self.made}),
                "versions": [version_name(v) for v in sorted(self.versions)], "registered": self.registered,
                "deregistered": self.deregistered, "failed": self.failed, "peak_bytes": self.peak_bytes, "totals": self.totals}


def version_name(code: int) -> str:
    """NCCL's own number, as it is spelt."""
    return f"{code // 10000}.{code // 100 % 100}.{code % 100}" if code >= 10000 else f"{code // 1000}.{code // 100 % 10}.{code % 100}"


def comms_notes(name: str, f: Event) -> Iterator[str]:
    sizes = ", ".join(map(str, f["comm_ranks"]))
    yield (f"{name}: NCCL {', '.join(f['versions']) or '?'}: {count_of(f['comms'], 'communicator')}"
           + (f" of {sizes} ranks" if sizes else "") + f", {count_of(f['registered'], 'registration')}, {f['deregistered']} undone, "
           f"{f['failed']} failed; at most {human_size(f['peak_bytes'])} registered at a time")
    if f["totals"]:
        t = f["totals"]
        yield (f"{name}: NCCL: {count_of(t['ops'], 'operation')}: {t['outside']} on memory that is not registered, {t['mixed']} on both kinds, "
               f"{t['unsafe']} unsafe; {count_of(t['renewed'], 'registration')} renewed")


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
        made.update(comms.made)
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
