# SPDX-License-Identifier: Apache-2.0
"""cupool-trace to-pytorch: a memory snapshot for https://pytorch.org/memory_viz and torch/cuda/_memory_viz.py.

Here: the history of each device as entries of a few bytes, and a writer of the part of pickle that a snapshot needs.
Not here: a use of the module pickle, which would want millions of entries as dictionaries, all at once.
"""
from __future__ import annotations

import argparse
import struct
import sys
from array import array
from typing import Any, BinaryIO, Iterator, Optional

from . import symbols
from .frames import UNKNOWN, Frames, split_frame
from .lives import ALLOC, FREE, SEGMENT_ALLOC, SEGMENT_FREE, TOP, Lives
from .options import natural
from .output import add_argument, binary_output, guarded
from .schema import Event
from .source import Source, Sources
from .text import count_of

HELP = "a snapshot for PyTorch's memory viewer"
DESCRIPTION = """\
Writes a pickle (protocol 4) as torch.cuda.memory._dump_snapshot() does: open it at https://pytorch.org/memory_viz (it stays in
the browser), or with python3 -m torch.cuda._memory_viz trace|segments|memory FILE. The views "Active Memory Timeline",
"Active Cached Segment Timeline" and "Allocator State History" work. With one rank its devices keep their numbers; with several,
each device of each rank becomes one of the viewer's devices, which stderr lists. With CUPOOL_TRACE_STACKS=1 allocations and blocks
have the frames that asked for them, innermost first, with functions and lines where these are to be found; the last frame of each entry, or the only one, names the rank. Without
allocation events each segment is shown as one block. The viewer is slow beyond half a million entries, so only the newest
--max-entries of each device are kept; the state at the end is whole in any case. What the device had free at an oom is not in a
trace, and is written as 0."""
JSON = False

OOM = 4
ACTIVE, INACTIVE = "active_allocated", "inactive"
NAMES = {ALLOC: "alloc", SEGMENT_ALLOC: "segment_alloc", SEGMENT_FREE: "segment_free", OOM: "oom"}
MAX_ENTRIES = 500_000
BATCH = 1000  # items that a pickle adds to a list at a time; the viewer's reader has them all on its stack
WORDS = ["action", "addr", "size", "stream", "frames", "time_us", "compile_context", "user_metadata", "N/A", "", "free_requested",
         "free_completed", *NAMES.values(), "address", "requested_size", "state", ACTIVE, INACTIVE]
SMALL = 2 << 20  # PyTorch calls segments up to this size small
MOST_DEVICES = 1024
MOST_STACKS, DEEPEST = 1 << 16, 64  # different ones of a rank, and frames of one; more are shown without, or cut


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_argument(parser)
    parser.add_argument("--max-entries", type=natural, default=MAX_ENTRIES, metavar="N",
                        help="keep the newest N entries of each device (default: %(default)s)")
    symbols.add_arguments(parser)


class Entries:
    """The newest entries of one device: what happened, address, bytes, time, the number of a stack. 29 bytes each."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.count = 0
        self._what, self._p, self._n, self._us, self.stacks = array("B"), array("q"), array("q"), array("q"), array("i")

    def add(self, what: int, p: int, n: int, us: int, stack: int = 0) -> None:
        if self.count < self._most:
            self._what.append(what)
            self._p.append(p)
            self._n.append(n)
            self._us.append(us)
            self.stacks.append(stack)
        elif self._most:
            at = self.count % self._most
            self._what[at], self._p[at], self._n[at], self._us[at], self.stacks[at] = what, p, n, us, stack
        self.count += 1

    @property
    def dropped(self) -> int:
        return self.count - len(self._what)

    def __iter__(self) -> Iterator[tuple[int, int, int, int, int]]:
        size = len(self._what)
        first = self.count % size if self.dropped and size else 0
        for i in range(size):
            at = (first + i) % size
            yield self._what[at], self._p[at], self._n[at], self._us[at], self.stacks[at]


LONG = struct.Struct("<BBq")  # opcode, length, value


class Pickle:
    """Writes protocol 4, with only the opcodes that the viewer's own reader knows."""

    def __init__(self, f: BinaryIO) -> None:
        self.write = f.write
        self._shared: dict[str, bytes] = {}
        self._count = 0
        self.write(b"\x80\x04")

    def share(self, v: Any) -> bytes:
        """Write a value that occurs often. The returned reference stands for it from then on; for a text also where of() meets it."""
        self.write(self.of(v) + b"\x94")
        got = b"h" + bytes((self._count,)) if self._count < 256 else b"j" + struct.pack("<I", self._count)
        self._count += 1
        if isinstance(v, str):
            self._shared[v] = got
        return got

    def of(self, v: Any) -> bytes:
        """A value of those kinds that occur here; bytes are a reference from share()."""
        if isinstance(v, bytes):
            return v
        if v is True or v is False:
            return b"\x88" if v else b"\x89"
        if isinstance(v, int):
            return b"K" + bytes((v,)) if 0 <= v < 256 else LONG.pack(0x8A, 8, v)
        if isinstance(v, str):
            # Half of a pair of surrogates is no character, and nothing that a browser could decode.
            data = v.encode(errors="backslashreplace")
            return self._shared.get(v) or b"X" + struct.pack("<I", len(data)) + data
        if isinstance(v, tuple):  # of two
            return b"".join(map(self.of, v)) + b"\x86"
        if isinstance(v, dict):
            return b"}(" + b"".join(self.of(x) for pair in v.items() for x in pair) + b"u"
        out = bytearray(b"]")
        for at in range(0, len(v), BATCH):
            out += b"(" + b"".join(map(self.of, v[at:at + BATCH])) + b"e"
        return bytes(out)

    def items(self, each: Iterator[bytes]) -> None:
        """Write a list of any length, whose items have this form already."""
        self.write(b"]")
        at = 0
        for item in each:
            if at % BATCH == 0:
                self.write(b"e(" if at else b"(")
            self.write(item)
            at += 1
        if at:
            self.write(b"e")


class Device:
    """One device of one rank: a device of the viewer."""

    def __init__(self, rank: Rank, number: int, most: int) -> None:
        self.name = f"{rank.source.name} device {number}"
        self.rank, self.number = rank, number
        self.entries = Entries(most)


class Stacks:
    """The callers of one rank. Number 0 is the unknown caller."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, ...], int] = {(): 0}
        self.frames = Frames()

    def number(self, frames: Optional[list[int]]) -> int:
        if not frames:
            return 0
        key = tuple(frames[:DEEPEST])
        if len(self._numbers) < MOST_STACKS:
            return self._numbers.setdefault(key, len(self._numbers))
        return self._numbers.get(key, 0)

    def of(self, numbers: set[int]) -> Iterator[tuple[int, list[dict[str, Any]]]]:
        """Those of these numbers, as the viewer has them."""
        for frames, number in self._numbers.items():
            if number in numbers:
                yield number, [one for f in frames for one in self._frame(f)]

    def _frame(self, number: int) -> list[dict[str, Any]]:
        # The offset is what addr2line wants, and tells two calls of one function apart.
        where, offset, function = split_frame(self.frames.at.get(number, UNKNOWN))
        places = self.frames.places.get(number)
        if not places:
            return [{"filename": where, "line": 0, "name": f"{function} {offset}".strip() or "?"}]
        return [{"filename": p.file or where, "line": p.line, "name": p.function if p.file else f"{p.function} {offset}"} for p in places]


class Rank:
    """One file, read to its end: entries, and the blocks that are live then."""

    def __init__(self, source: Source, most: int) -> None:
        self.source = source
        self.lives = Lives(whole=not source.announces_allocs)
        self.devices: dict[int, Device] = {}
        self.stacks = Stacks()
        t0 = source.t0 or 0
        for t, ev in source.events():
            steps = self.lives.feed(ev)
            if not steps and ev["e"] != "oom":
                if ev["e"] == "frame":
                    self.stacks.frames.frame(ev)
                elif ev["e"] == "object":
                    self.stacks.frames.object(ev)
                continue
            d: int = ev["d"]
            if d not in self.devices:
                self.devices[d] = Device(self, d, most)
            entries = self.devices[d].entries
            us = in_64_bits((t0 + t) // 1000)
            for what, p, n in steps:
                entries.add(what, p, n, us, self.stacks.number(ev.get("f")) if what == ALLOC else 0)
            if ev["e"] == "oom":
                entries.add(OOM, min(ev["held"], TOP - 1), min(ev["n"], TOP - 1), us)
        self.end_us = in_64_bits((t0 + source.last_t) // 1000)
        source.contradictions = self.lives.contradictions


def in_64_bits(v: int) -> int:
    return max(-TOP, min(v, TOP - 1))


def tile(start: int, end: int, live: list[tuple[int, int, int]]) -> Iterator[dict[str, Any]]:
    """The blocks of a segment from its first byte to its last: viewers add up their sizes to know where the next one is."""
    at = start
    for p, p_end, n in [*live, (end, end, 0)]:
        if at < p:
            yield {"address": at, "size": p - at, "requested_size": 0, "state": INACTIVE}
        if p < end:
            yield {"address": p, "size": p_end - p, "requested_size": n, "state": ACTIVE}
        at = p_end


class Snapshot:
    """The pickle."""

    def __init__(self, f: BinaryIO, ranks: list[Rank], most: int) -> None:
        self._ranks = ranks
        self._most = most
        self._pickle = Pickle(f)
        self._frames: dict[Rank, dict[int, bytes]] = {}  # by the numbers of stacks
        self.devices = [d for r in ranks for _, d in sorted(r.devices.items())]
        keep = len(ranks) == 1 and all(d.number < MOST_DEVICES for d in self.devices)
        self.index = {d: d.number if keep else i for i, d in enumerate(self.devices)}  # the viewer's number

    def write(self) -> None:
        p = self._pickle
        # Viewers pass over keys that they do not know. This one is first, so that all the others can refer to its contents.
        p.write(b"}(" + p.of("shared") + b"](")
        for word in WORDS:
            p.share(word)
        for r in self._ranks:
            self._frames[r] = self._share_frames(r)
        p.write(b"e")
        for key, value in (("allocator_settings", self._settings()), ("external_annotations", [])):
            p.write(p.of(key) + p.of(value))
        p.write(p.of("segments"))
        p.items(self._segments())
        p.write(p.of("device_traces") + b"](")
        at = {i: d for d, i in self.index.items()}
        for i in range(max(at, default=-1) + 1):
            p.items(self._trace(at[i]) if i in at else iter(()))
        p.write(b"eu.")

    def _share_frames(self, r: Rank) -> dict[int, bytes]:
        p = self._pickle
        # An empty stack would make the viewer explain at length why it is empty.
        rank = p.share({"filename": str(r.source.header.get("exe", "?")), "line": 0, "name": r.source.full_name})
        wanted = {stack for d in r.devices.values() for stack in d.entries.stacks}
        wanted.update(r.stacks.number(blocks.more(b)) for blocks in r.lives.blocks.values() for b, _, _ in blocks.items())
        known: dict[tuple[str, str, int], bytes] = {}
        out = {0: p.share([rank])}
        for number, frames in r.stacks.of(wanted - {0}):
            for f in frames:
                key = f["filename"], f["name"], f["line"]
                if key not in known:
                    known[key] = p.share(f)
            out[number] = p.share([*(known[f["filename"], f["name"], f["line"]] for f in frames), rank])
        return out

    def _settings(self) -> dict[str, Any]:
        """A tab of the viewer: a description of the snapshot, and the library's settings."""
        out: dict[str, Any] = {"made by": "cupool-trace to-pytorch", "trace_alloc_max_entries": self._most,
                               "trace_alloc_overflowed": any(d.entries.dropped for d in self.devices)}
        out.update({f"device {i}": d.name for d, i in self.index.items()})
        for r in self._ranks:
            prefix = f"{r.source.name} " if len(self._ranks) > 1 else ""
            out.update({prefix + k: v for k, v in r.source.header.get("settings", {}).items() if isinstance(v, str)})
        return out

    def _segments(self) -> Iterator[bytes]:
        for r in self._ranks:
            for d, segments in sorted(r.lives.segments.items()):
                blocks = r.lives.blocks[d]
                for start, end, n in segments.items():
                    live = [(b, *blocks.get(b)[:2]) for b in blocks.overlapping(start, end)]  # type: ignore[index]
                    yield self._segment(r, d, start, n, list(tile(start, end, live)))

    def _segment(self, r: Rank, d: int, start: int, n: int, blocks: list[dict[str, Any]]) -> bytes:
        active = [b for b in blocks if b["state"] == ACTIVE]
        size = sum(b["size"] for b in active)
        frames, of, asked = self._frames[r], r.stacks.number, r.lives.blocks[d].more
        return self._pickle.of({
            "device": self.index[r.devices[d]], "address": start, "total_size": n, "stream": 0, "is_expandable": False,
            "segment_type": "small" if n <= SMALL else "large", "segment_pool_id": (0, 0), "allocated_size": size,
            "active_size": size, "requested_size": sum(b["requested_size"] for b in active), "frames": frames[0],
            "blocks": [{**b, "frames": frames[of(asked(b["address"])) if b["state"] == ACTIVE else 0]} for b in blocks]})

    def _trace(self, device: Device) -> Iterator[bytes]:
        p = self._pickle
        frames = self._frames[device.rank]

        def start(action: str, note: str = "", stack: int = 0) -> bytes:
            same = {"action": action, "stream": 0, "frames": frames[stack], "compile_context": "N/A", "user_metadata": note}
            return p.of(same)[:-1]  # without the end of the dictionary

        starts = {what: [start(name)] for what, name in NAMES.items()}
        # The viewer makes one event of the two if they are neighbours, and fails on the first alone if it does not know the block.
        starts[FREE] = [start("free_requested"), start("free_completed")]
        addr, size, time_us = map(p.of, ("addr", "size", "time_us"))
        long = LONG.pack
        allocs = {stack: [start(NAMES[ALLOC], stack=stack)] for stack in frames}
        for what, a, n, us, stack in device.entries:
            rest = size + long(0x8A, 8, n) + time_us + long(0x8A, 8, us) + b"u"
            if what == OOM:
                yield start("oom", f"{a} bytes held by the pool") + p.of("device_free") + p.of(0) + rest
            else:
                where = addr + long(0x8A, 8, a)
                for s in starts[what] if what != ALLOC else allocs[stack]:
                    yield s + where + rest
        yield start("snapshot") + addr + p.of(0) + size + p.of(0) + time_us + p.of(device.rank.end_us) + b"u"


def convert(args: argparse.Namespace) -> int:
    with binary_output(args.output, args.files) as f:
        sources = Sources(args.files)
        ranks = [Rank(s, args.max_entries) for s in sources.files]
        symbols.name_frames([r.stacks.frames for r in ranks], args, sources.base)
        snapshot = Snapshot(f, ranks, args.max_entries)
        snapshot.write()
    status = sources.finish()
    for d in snapshot.devices:
        if len(sources.files) > 1 or snapshot.index[d] != d.number:
            print(f"cupool-trace: the viewer's device {snapshot.index[d]} is {d.name}", file=sys.stderr)
        if d.entries.dropped:
            print(f"cupool-trace: {d.name}: the oldest {d.entries.dropped} of {count_of(d.entries.count, 'entry', 'entries')} "
                  "were left out (--max-entries)", file=sys.stderr)
    return status


def run(args: argparse.Namespace) -> int:
    return guarded(args.output, lambda: convert(args))
