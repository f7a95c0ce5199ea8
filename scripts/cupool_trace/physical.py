# SPDX-License-Identifier: Apache-2.0
"""Physical memory that a process takes past the pool, and where it maps it: NCCL's, PyTorch's expandable segments.

Here: Physical (the bytes taken after each event, by device and by taker) and Follow, a Replay that has one.
Not here: it knows nothing of segments and blocks. Memory of the pool that comes from NCCL shows here as well, by `cupool`.

An allocation lives as long as its handle is held or it is mapped somewhere. Handles of other processes' memory and of multicast
objects are followed too, but no memory is counted for them. Contradictions go to the file's problems.
"""
from __future__ import annotations

from typing import Callable, Optional

from .ranges import Ranges
from .reader import Problems
from .replay import Replay
from .schema import Event


class Taken:
    """Bytes that are taken, and the most that were."""

    __slots__ = ("now", "peak", "handles", "created", "refused")

    def __init__(self) -> None:
        self.now = self.peak = self.handles = self.created = self.refused = 0

    def change(self, n: int) -> None:
        self.now += n
        self.handles += 1 if n > 0 else -1
        self.peak = max(self.peak, self.now)
        self.created += n > 0

    def figures(self) -> Event:
        return {"now": self.now, "peak": self.peak, "handles": self.handles, "created": self.created, "refused": self.refused}


class Allocation:
    """The memory that a handle names. counts: the counters that its bytes are added to."""

    __slots__ = ("n", "line", "held", "maps", "counts")

    def __init__(self, n: int, line: int, counts: tuple[Taken, ...]) -> None:
        self.n, self.line, self.counts = n, line, counts
        self.held, self.maps = 1, 0


Device = Optional[int]  # None: the host's memory


def object_of(ev: Event) -> str:
    """The object that made the call: where it is, without the place in it."""
    at: str = ev["at"]
    return at.rpartition("+0x")[0] or at


class Physical:
    def __init__(self, add: Callable[[int, str], None]) -> None:
        self.devices: dict[Device, Taken] = {}
        self.callers: dict[tuple[Device, str, str], Taken] = {}  # device, who, object
        self.reserved = Ranges()
        self.mapped = Ranges()
        self._add = add
        self._allocations: dict[int, Allocation] = {}  # by handle
        self._handle_at: dict[int, int] = {}  # of mapped ranges, by their addresses
        self._on: dict[str, Callable[[int, Event], None]] = {
            "mem_create": self._create, "mem_import": self._import, "multicast_create": self._multicast,
            "mem_retain": self._retain, "mem_release": self._release, "mem_map": self._map, "mem_unmap": self._unmap,
            "address_reserve": self._reserve, "address_free": self._free,
        }
        self.events = frozenset(self._on)

    def apply(self, line: int, ev: Event) -> None:
        if ev["result"] == 0:
            self._on[ev["e"]](line, ev)
            return
        if ev["e"] == "mem_create":
            for taken in self._counts(ev):
                taken.refused += 1

    def _counts(self, ev: Event) -> tuple[Taken, ...]:
        d = ev.get("d")
        who = (d, ev["by"], object_of(ev))
        return self.devices.setdefault(d, Taken()), self.callers.setdefault(who, Taken())

    def _begin(self, line: int, ev: Event, n: int, counts: tuple[Taken, ...]) -> None:
        h = int(ev["h"], 16)
        known = self._allocations.pop(h, None)
        if known:
            self._add(line, f"{ev['e']} {ev['h']}: the handle of line {known.line} is still held, or mapped")
            self._count(known, -known.n)
        self._allocations[h] = new = Allocation(n, line, counts)
        self._count(new, n)

    def _count(self, what: Allocation, n: int) -> None:
        if n:
            for taken in what.counts:
                taken.change(n)

    def _settle(self, h: int) -> None:
        """Memory that is neither held nor mapped is gone."""
        what = self._allocations[h]
        if not what.held and not what.maps:
            self._count(self._allocations.pop(h), -what.n)

    def _create(self, line: int, ev: Event) -> None:
        self._begin(line, ev, ev["n"], self._counts(ev))

    def _multicast(self, line: int, ev: Event) -> None:
        self._begin(line, ev, 0, ())

    def _import(self, line: int, ev: Event) -> None:
        known = self._allocations.get(int(ev["h"], 16))
        if known:  # the process's own memory: it has one handle more
            known.held += 1
        else:
            self._begin(line, ev, 0, ())

    def _retain(self, line: int, ev: Event) -> None:
        known = self._allocations.get(int(ev["h"], 16))
        if known:
            known.held += 1
        else:
            self._add(line, f"mem_retain {ev['h']}: nobody has made it")

    def _release(self, line: int, ev: Event) -> None:
        h = int(ev["h"], 16)
        known = self._allocations.get(h)
        if not known:
            self._add(line, f"mem_release {ev['h']}: nobody has made it, or it is gone")
        elif not known.held:
            self._add(line, f"mem_release {ev['h']}: the handle of line {known.line} has been released already")
        else:
            known.held -= 1
            self._settle(h)

    def _drop(self, p: int) -> None:
        self.mapped.pop(p)
        h = self._handle_at.pop(p)
        known = self._allocations.get(h)
        if known and known.maps:  # if not: its handle was made anew, which was noted
            known.maps -= 1
            self._settle(h)

    def _map(self, line: int, ev: Event) -> None:
        p, n, h = int(ev["p"], 16), ev["n"], int(ev["h"], 16)
        what = f"mem_map {ev['p']} {n}"
        known = self._allocations.get(h)
        if not known:
            self._add(line, f"{what}: nobody has made the handle {ev['h']}, or it is gone")
        elif known.n and ev["offset"] + n > known.n:
            self._add(line, f"{what}: the handle of line {known.line} has {known.n} bytes")
        if self.reserved.end_of(p) < p + n:
            self._add(line, f"{what}: not inside reserved addresses")
        if n == 0:
            self._add(line, f"{what}: no bytes")
            return
        for old in self.mapped.overlapping(p, p + n):
            self._add(line, f"{what}: something is mapped at {old:#x} already")
            self._drop(old)
        self.mapped.add(p, p + n, n, line)
        self._handle_at[p] = h
        if known:
            known.maps += 1

    def _unmap(self, line: int, ev: Event) -> None:
        p, n = int(ev["p"], 16), ev["n"]
        inside = self.mapped.overlapping(p, p + n)
        ends = [known[0] for known in map(self.mapped.get, inside) if known]
        if not inside or inside[0] != p or ends[-1] != p + n or ends[:-1] != inside[1:]:
            self._add(line, f"mem_unmap {ev['p']} {n}: not what was mapped there")
        for old in inside:
            self._drop(old)

    def _reserve(self, line: int, ev: Event) -> None:
        p, n = int(ev["p"], 16), ev["n"]
        if n and not self.reserved.add(p, p + n, n, line):
            for old in self.reserved.overlapping(p, p + n):
                self.reserved.pop(old)
            self._add(line, f"address_reserve {ev['p']} {n}: some of it is reserved already")
            self.reserved.add(p, p + n, n, line)

    def _free(self, line: int, ev: Event) -> None:
        p, n = int(ev["p"], 16), ev["n"]
        known = self.reserved.get(p)
        if not known or known[1] != n:
            self._add(line, f"address_free {ev['p']} {n}: that has not been reserved")
        if known:
            self.reserved.pop(p)
            if self.mapped.overlapping(p, known[0]):
                self._add(line, f"address_free {ev['p']} {n}: something is mapped there")

    def past(self, d: Device) -> int:
        """Bytes of the device that are not the pool's."""
        return sum(taken.now for (at, by, _), taken in self.callers.items() if at == d and by != "cupool")

    def figures(self) -> list[Event]:
        """Of each device, with those who took it, the largest peak first."""
        out: list[Event] = []
        for d in sorted(self.devices, key=lambda d: (d is None, d or 0)):
            who = [{"by": by, "object": name, **taken.figures()} for (at, by, name), taken in self.callers.items() if at == d]
            who.sort(key=lambda o: (-o["peak"], o["by"], o["object"]))
            out.append({"device": d, **self.devices[d].figures(), "callers": who})
        return out


class Follow(Replay):
    """A Replay that follows physical memory too."""

    def __init__(self, problems: Problems) -> None:
        super().__init__(problems)
        self.physical = Physical(self._add)
        self._others.update(dict.fromkeys(self.physical.events, self.physical.apply))
