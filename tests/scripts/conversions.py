# SPDX-License-Identifier: Apache-2.0
"""Made-up runs of a pool for the tests of cupool-trace's conversions, and a test case that converts."""

import collections
import contextlib
import copy
import io
import random
import subprocess
import sys
from pathlib import Path
from typing import Any, Iterable, Optional, cast

from made_traces import BASE, MIB, TOOL, Case, Event, ev, header, stats

from cupool_trace.cli import main

TRACES = Path(__file__).resolve().parent / "traces"
T0 = 1700000000000000000
COMMANDS = ("to-csv", "to-rmm", "to-perfetto", "to-pytorch", "merge")


def granules(n: int) -> int:
    return (n + 511) // 512 * 512


class Run:
    """A run of a pool, made up: events as the library writes them, and what is true of it at its end."""

    def __init__(self, seed: int = 1, rank: Optional[int] = 0, steps: int = 400, devices: Iterable[int] = (0,),
                 **more: Any) -> None:
        r = random.Random(seed)
        self.events = [header(rank, **more)]
        self.segments: dict[int, dict[int, int]] = {d: {} for d in devices}
        self.blocks: dict[int, dict[int, int]] = {d: {} for d in devices}
        self.peak_live, self.peak_held = {d: 0 for d in devices}, {d: 0 for d in devices}
        self.counts: "collections.Counter[tuple[str, int]]" = collections.Counter()
        self.t = 1000
        for d in devices:
            self.add("policy", d=d, free="ordered", why="default")
        for _ in range(steps):
            self.step(r, r.choice(list(devices)))
        for d in devices:
            self.events.append(stats(self.t, d=d, allocs=self.counts["alloc", d], frees=self.counts["free_requested", d],
                                     segments_alloc=self.counts["segment_alloc", d], segments_free=self.counts["segment_free", d],
                                     oom=self.counts["oom", d], live=self.live(d), held=self.held(d),
                                     peak_live=self.peak_live[d], peak_held=self.peak_held[d]))
        self.events.append({"t": self.t + 1, "e": "end", "dropped": 0})

    def live(self, d: int) -> int:
        return sum(map(granules, self.blocks[d].values()))

    def held(self, d: int) -> int:
        return sum(self.segments[d].values())

    def add(self, e: str, d: int, **keys: Any) -> None:
        self.events.append(ev(self.t, e, d=d, **keys))
        self.counts[e, d] += 1
        self.t += 1500

    def step(self, r: random.Random, d: int) -> None:
        segments, blocks = self.segments[d], self.blocks[d]
        self.t += r.randrange(1, 5_000_000)
        tid = r.choice([42, 43, 77])
        what = r.random()
        p = BASE + r.randrange(64) * 4 * MIB
        if what < 0.1 and p not in segments:
            segments[p] = 4 * MIB if r.random() < 0.5 else 2 * MIB
            self.add("segment_alloc", d, p=p, n=segments[p], us=r.randrange(1, 5000) / 10, tid=tid)
            self.peak_held[d] = max(self.peak_held[d], self.held(d))
        elif what < 0.13 and segments:
            p = r.choice(sorted(segments))
            inside = [b for b in blocks if p <= b < p + segments[p]]
            died = bool(inside)
            for b in inside:
                del blocks[b]
            self.add("segment_free", d, p=p, n=segments.pop(p), tid=tid, **({"why": "context"} if died else {}))
            if not died:
                del self.events[-1]["us"]  # as the library does
                self.add("trim", d, n=1, why="decay", tid=tid, us=3)
        elif what < 0.15:
            self.add("oom", d, n=900 * MIB, held=self.held(d), live=self.live(d), tid=tid)
        elif what < 0.6 and segments:
            start = r.choice(sorted(segments))
            p = start + r.randrange(segments[start] // 512) * 512
            n = r.randrange(1, 200_000)
            if p + granules(n) <= start + segments[start] and not any(
                    b < p + granules(n) and p < b + granules(m) for b, m in blocks.items()):
                blocks[p] = n
                self.add("alloc", d, p=p, n=n, tid=tid)
                self.peak_live[d] = max(self.peak_live[d], self.live(d))
        elif blocks:
            p = r.choice(sorted(blocks))
            n = blocks.pop(p)
            self.add("free_requested", d, p=p, n=n, tid=tid)
            self.add("free_completed", d, p=p, n=n, tid=tid)


def of(events: list[Event], *names: str) -> list[Event]:
    return [e for e in events if e.get("e") in names]


def without_allocs(events: list[Event]) -> list[Event]:
    out = [copy.deepcopy(e) for e in events if e.get("e") not in ("alloc", "free_requested", "free_completed")]
    out[0]["events"] = "segment"
    return out


class ConvertCase(Case):
    def convert(self, command: str, *args: str, status: int = 0, stdin: Optional[bytes] = None) -> bytes:
        """Returns its standard output; self.err has its standard error. In this process unless it reads, as it runs so often."""
        if stdin is None:
            out = io.TextIOWrapper(io.BytesIO())
            err = io.StringIO()
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                try:
                    got: Any = main([command, *args])
                except SystemExit as e:  # wrong usage, or help
                    got = e.code
                out.flush()
            self.err, data = err.getvalue(), cast(io.BytesIO, out.buffer).getvalue()
        else:
            done = subprocess.run([sys.executable, str(TOOL), command, *args], input=stdin, capture_output=True, timeout=120)
            self.err, got, data = done.stderr.decode(), done.returncode, done.stdout
        self.assertEqual(got, status, self.err)
        return data

    def rank(self, rank: int, **more: Any) -> str:
        return self.write(Run(seed=rank + 1, rank=rank, pid=100 + rank, **more).events, f"r{rank}.jsonl")
