# SPDX-License-Identifier: Apache-2.0
"""Tests of cupool-replay and of `cupool-trace replay`: sums by hand, a second implementation of the model of PyTorch's
allocator, and programs that ran with the library on the simulated GPU, whose own counters the replay has to meet.

Not here: whether the allocator is good (tests/bench/footprint says), or right (tests/unit).
"""

import bisect
import gzip
import json
import os
import random
import subprocess
import sys
import unittest
from pathlib import Path
from typing import Any, Optional

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "e2e"), str(ROOT / "scripts")]

from cupool_trace.replay import Rank  # noqa: E402
from cupool_trace.summary import device_summary  # noqa: E402
from e2e import MIB, Case, app, tool  # noqa: E402

PROGRAM = os.environ["REPLAY_PROGRAM"]
GIB = 1 << 30
ALLOCS = {"CUPOOL_TRACE_EVENTS": "segment,alloc"}
SAME = ("hits", "misses", "oom", "peak_live", "peak_held", "live", "held", "segments_alloc", "segments_free", "bypassed")


def replay(lines: str, *options: str, rc: int = 0) -> "subprocess.CompletedProcess[str]":
    done = subprocess.run([PROGRAM, *options], input=lines, capture_output=True, text=True, timeout=120)
    assert done.returncode == rc, (done.returncode, done.stderr, done.stdout)
    return done


def devices(lines: str, *options: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(replay(lines, *options).stdout)["devices"]
    return found


def one(lines: str, *options: str) -> dict[str, Any]:
    found = devices(lines, *options)
    assert len(found) == 1, found
    return found[0]


def a(*sizes: int) -> str:
    return "".join(f"a {i} {n}\n" for i, n in enumerate(sizes))


class Program(unittest.TestCase):
    """cupool-replay by itself."""

    def expect(self, result: dict[str, Any], **wanted: Any) -> None:
        self.assertEqual({k: result[k] for k in wanted}, wanted)

    def test_pool(self) -> None:
        """Three small requests share a segment, the large one has its own; the freed block is handed out again."""
        self.expect(one(a(1000, 512, 1) + "f 1\na 9 300\n" + f"a 10 {5 * MIB}\nf 10\n# end\n\n"),
                    requests=5, frees=2, refused=0, hits=3, misses=2, segments_alloc=2, segments_free=0, peak_live_requested=1301 + 5 * MIB,
                    peak_live=2048 + 5 * MIB, live=2048, live_requested=1301, held=8 * MIB, peak_held=8 * MIB, peak_used=8 * MIB,
                    waste=round(8 * MIB / (1301 + 5 * MIB), 4), oom=0, bypassed=0)

    def test_capacity(self) -> None:
        """A request that does not fit is refused, and its free has no effect."""
        self.expect(one(a(6 * MIB, 6 * MIB, 2 * MIB) + "f 1\nf 2\nf 0\n", "--capacity", "10M"),
                    requests=3, refused=1, frees=2, oom=1, bypassed=1, peak_held=8 * MIB, live=0)
        # Less than capacity / 128 would be left: what is idle goes back with its free.
        self.expect(one(a(6 * MIB) + "f 0\n", "--capacity", "6M"), segments_free=1, held=0)

    def test_limit(self) -> None:
        """Beyond the limit, requests go to the driver: they are served, and count in what is taken from the device."""
        self.expect(one(a(6 * MIB, 6 * MIB) + "f 0\nf 1\n", "--limit", "8M"),
                    refused=0, bypassed=1, oom=0, peak_held=6 * MIB, peak_used=12 * MIB, live_requested=0, peak_live_requested=12 * MIB)

    def test_decay(self) -> None:
        """Idle for more than the time: goes back. The clock starts with the first request."""
        lines = f"a 1 {4 * MIB} 0 5000000000\nf 1 6000000000\nt %d\n"
        self.expect(one(lines % 10_000_000_000), held=4 * MIB)
        self.expect(one(lines % 17_000_000_000), held=0, segments_free=1)
        self.expect(one(lines % 17_000_000_000, "--decay", "off"), held=4 * MIB)
        self.expect(one(lines % 6_870_000_000, "--decay", "1"), held=4 * MIB)
        self.expect(one(lines % 6_880_000_000, "--decay", "1"), held=0)
        self.expect(one(lines % 10**18), held=0)
        self.expect(one(f"a 1 {4 * MIB}\nf 1\n", "--decay", "0"), held=0)

    def test_break_max(self) -> None:
        """A free segment is broken into for a smaller request only within the budget."""
        lines = a(40 * MIB) + f"f 0\na 1 {22 * MIB}\n"
        self.expect(one(lines, "--break-max", "64M"), hits=1, held=40 * MIB)
        self.expect(one(lines, "--break-max", "20M"), hits=0, held=62 * MIB)
        self.expect(one(lines), hits=1)  # a part of the capacity
        self.expect(one(lines, "--capacity", "128M"), hits=0)

    def test_slack(self) -> None:
        """With CUPOOL_FREE=relaxed a block is handed out again when so much has been freed, and 64 MiB in any case; one that is
        larger than a quarter of that at once."""
        lines = "".join(f"a {i} {16 * MIB}\nf {i}\n" for i in range(8))
        self.expect(one(lines), misses=1, held=16 * MIB)
        self.expect(one(lines, "--slack", "10"), misses=5, hits=3, held=80 * MIB)
        many = "".join(f"a {100 + i} {16 * MIB}\n" for i in range(80)) + lines
        self.expect(one(many, "--slack", "10"), misses=88, held=1408 * MIB)
        self.expect(one(many, "--slack", "4"), misses=85, hits=3)
        self.expect(one("".join(f"a {i} {17 * MIB}\nf {i}\n" for i in range(8)), "--slack", "10"), misses=1, hits=7)

    def test_lag(self) -> None:
        """Where the device is behind, what goes back arrives later, and is waited for at the bound."""
        phases = [[(100 * phase + i, (10 + 6 * phase) * MIB) for i in range(60)] for phase in range(4)]
        lines = "".join("".join(f"a {i} {size}\n" for i, size in phase) + "".join(f"f {i}\n" for i, _ in phase) for phase in phases)
        prompt, behind, ends = one(lines), one(lines, "--lag", "1000"), one(lines, "--lag", "1")
        self.expect(prompt, bound=0)
        self.expect(ends, bound=0, peak_used=prompt["peak_used"], segments_free=prompt["segments_free"])
        self.assertGreater(behind["bound"], 0)
        self.assertLessEqual(behind["peak_used"], 60 * 28 * MIB * 11 // 10 + 64 * MIB)

    def test_devices_and_reset(self) -> None:
        lines = f"a 1 {4 * MIB} 0\na 2 {6 * MIB} 3\na 3 600 3\nr 3\nf 2\nf 3\na 4 {2 * MIB} 3\n"
        for model in ("cupool", "pytorch", "driver"):
            zero, three = devices(lines, "--model", model)
            self.assertEqual((zero["device"], three["device"]), (0, 3))
            self.expect(three, live_requested=2 * MIB, requests=3, frees=0, peak_live_requested=6 * MIB + 600)
            self.assertEqual(three["segments_alloc"] - three["segments_free"], 1)
            self.assertGreaterEqual(three["peak_held"], 8 * MIB)
            self.expect(zero, live_requested=4 * MIB)

    def test_pytorch_sizes(self) -> None:
        for size, held in ((1, 2 * MIB), (MIB, 2 * MIB), (MIB + 1, 20 * MIB), (10 * MIB - 512, 20 * MIB), (10 * MIB, 10 * MIB),
                           (10 * MIB + 1, 12 * MIB), (33 * MIB, 34 * MIB)):
            self.expect(one(a(size), "--model", "pytorch"), held=held, misses=1)
        # The rest of a large block is split off if it is more than 1 MiB; the rest of a small one, in units of 512.
        self.expect(one(a(19 * MIB), "--model", "pytorch"), live=20 * MIB)
        self.expect(one(a(19 * MIB - 512), "--model", "pytorch"), live=19 * MIB - 512)
        self.expect(one(a(9 * MIB, 9 * MIB), "--model", "pytorch"), misses=1, live=18 * MIB)
        self.expect(one(a(9 * MIB, 10 * MIB, MIB + 512), "--model", "pytorch"), misses=2)
        self.expect(one(a(*[700] * 2048), "--model", "pytorch"), misses=1, held=2 * MIB)
        self.expect(one(a(*[700] * 2049), "--model", "pytorch"), misses=2)
        # Out of memory: only segments that are free as a whole go back.
        lines = a(12 * MIB, 12 * MIB, 512) + f"f 0\na 7 2000000\nf 1\na 8 {14 * MIB}\n"
        self.expect(one(lines, "--model", "pytorch", "--capacity", "28M"), segments_free=1, oom=0, refused=0, held=28 * MIB)

    def test_driver(self) -> None:
        self.expect(one(a(*[512] * 4097), "--model", "driver"), segments_alloc=2)
        self.expect(one(a(2 * MIB + 1, 2 * MIB - 1) + "f 0\nf 1\n", "--model", "driver"),
                    peak_held=6 * MIB, held=0, segments_alloc=2, segments_free=2)

    def test_bad_input(self) -> None:
        for lines, says in (("a 1\n", "line 1: a has 2 to 4 numbers"), ("f 1\nb 2\n", "line 2"), ("a 1 2 3 4 5\n", "one too many"),
                            ("a 1 x\n", "not a number"), ("a 1 5 64\n", "devices"), ("a 1 0\n", "0 bytes"), ("a1 5\n", "line 1"),
                            ("a 1 -5\n", "not a number"), ("t\n", "line 1")):
            with self.subTest(lines):
                done = replay(lines, rc=1)
                self.assertIn(says, done.stderr)
                self.assertEqual((done.stdout, len(done.stderr.splitlines())), ("", 1))
        for options in (["--capacity", "0"], ["--capacity", "9X"], ["--model", "rmm"], ["--min", "0"], ["--min", "9", "--max", "8"],
                        ["--decay", "soon"], ["more"], ["--limit"], ["--print"], ["--random", "0"]):
            with self.subTest(options=options):
                self.assertEqual(replay("", *options, rc=2).stdout, "")
        self.assertEqual(replay("", "more", rc=2).stderr, "cupool-replay: not understood: more; it reads standard input, cupool-trace replay reads traces\n")
        for options in ([], ["--help"], ["--version"], ["--random", "5", "--print"]):
            with open("/dev/full", "wb") as full:
                done = subprocess.run([PROGRAM, *options], stdin=subprocess.DEVNULL, stdout=full, stderr=subprocess.PIPE, text=True)
            self.assertEqual((done.returncode, done.stderr), (1, "cupool-replay: standard output: not all of it could be written\n"))
        # Odd, but what a cut trace looks like.
        self.assertEqual(json.loads(replay("f 0x7\na 7 600\na 7 700\n").stdout)["unknown"], 2)
        self.assertEqual(devices(""), [])

    def test_random(self) -> None:
        mix = ["--random", "3000", "--live", "300M", "--max", "32M", "--min", "1K"]
        for more in ([], ["--uniform"], ["--seed", "7"]):
            lines = replay("", *mix, *more, "--print").stdout
            # The cap refuses large ones more often than small ones; without it the sizes are as they should be.
            free = replay("", *mix, "--live", "79G", *more, "--print").stdout
            sizes = [int(line.split()[2]) for line in free.splitlines() if line[0] == "a"]
            self.assertEqual(len(sizes), 3000)
            self.assertTrue(all(1024 <= n <= 32 * MIB for n in sizes))
            below = sum(n < 181 << 10 for n in sizes) / 3000  # the geometric middle of both ends
            self.assertTrue(below < 0.02 if "--uniform" in more else 0.46 < below < 0.54, below)
            for model in ("cupool", "pytorch", "driver"):
                direct = replay("", *mix, *more, "--model", model).stdout
                self.assertEqual(direct, replay(lines, "--model", model).stdout)
                peak = json.loads(direct)["devices"][0]["peak_live_requested"]
                self.assertTrue(200 * MIB < peak < 300 * MIB, peak)
        # No cap in the way, so the first steps are 73 to 27.
        lines = replay("", "--random", "20000", "--max", "300", "--print").stdout.splitlines()[:20000]
        self.assertTrue(0.72 < sum(line[0] == "a" for line in lines) / len(lines) < 0.74)

    def test_pytorch_against_another_implementation(self) -> None:
        for seed in range(8):
            rng = random.Random(seed)
            capacity = (200, 10_000)[seed % 2]
            other = PyTorch(capacity * MIB)
            lines, live = [], []
            for i in range(1500):
                if live and rng.random() < (0.3 if other.live < 150 * MIB else 0.6):
                    k = live.pop(rng.randrange(len(live)))
                    lines.append(f"f {k}\n")
                    other.free(k)
                else:
                    n = int(2 ** rng.uniform(3, 25))
                    lines.append(f"a {i} {n}\n")
                    if other.alloc(i, n):
                        live.append(i)
            self.expect(one("".join(lines), "--model", "pytorch", "--capacity", f"{capacity}M"),
                        held=other.held, peak_held=other.peak, misses=other.segments, live=other.live, oom=other.oom)
            self.assertEqual(other.oom > 0, capacity == 200)


class PyTorch:
    """The rules once more, with sorted lists, for one address space that is never used twice."""

    def __init__(self, capacity: int) -> None:
        self.capacity, self.held, self.peak, self.segments, self.live, self.oom = capacity, 0, 0, 0, 0, 0
        self.free_blocks: dict[bool, list[tuple[int, int]]] = {True: [], False: []}  # small: size, address
        self.segment_of: dict[int, tuple[int, int, bool]] = {}  # of a free or live block's address: start, size, small
        self.blocks: dict[int, tuple[int, int]] = {}
        self.next = 0

    def alloc(self, k: int, n: int) -> bool:
        n = max(512, (n + 511) // 512 * 512)
        small = n <= MIB
        pool = self.free_blocks[small]
        i = bisect.bisect_left(pool, (n, 0))
        if i < len(pool):
            size, at = pool.pop(i)
        else:
            size = 2 * MIB if small else 20 * MIB if n < 10 * MIB else (n + 2 * MIB - 1) // (2 * MIB) * 2 * MIB
            if self.held + size > self.capacity:
                for kind, blocks in self.free_blocks.items():
                    whole = [(s, p) for s, p in blocks if self.segment_of[p][:2] == (p, s)]
                    self.free_blocks[kind] = [b for b in blocks if b not in whole]
                    self.held -= sum(s for s, _ in whole)
                pool = self.free_blocks[small]
            if self.held + size > self.capacity:
                self.oom += 1
                return False
            at, self.next = self.next, self.next + size + MIB
            self.segment_of[at] = (at, size, small)
            self.held += size
            self.segments += 1
            self.peak = max(self.peak, self.held)
        if size - n >= 512 if small else size - n > MIB:
            self.segment_of[at + n] = self.segment_of[at]
            bisect.insort(pool, (size - n, at + n))
            size = n
        self.live += size
        self.blocks[k] = (size, at)
        return True

    def free(self, k: int) -> None:
        size, at = self.blocks.pop(k)
        self.live -= size
        pool = self.free_blocks[self.segment_of[at][2]]
        for s, p in list(pool):
            if self.segment_of[p][0] == self.segment_of[at][0] and p in (at + size, at - s):
                pool.remove((s, p))
                at, size = min(at, p), size + s
        bisect.insort(pool, (size, at))


class Trace(Case):
    """cupool-trace replay on what the library wrote."""

    def tool(self, *args: object, rc: int = 0, stdin: Optional[bytes] = None) -> "subprocess.CompletedProcess[str]":
        result = tool.run("replay", "--program", PROGRAM, *args, stdin=stdin, seconds=120)
        self.assertEqual(result.returncode, rc, result.stdout + result.stderr)
        self.assertNotIn("Traceback", result.stderr)
        return result

    def device(self, *args: object) -> dict[str, Any]:
        files = json.loads(self.tool("--json", *args).stdout)["files"]
        self.assertEqual(len(files), 1)
        self.assertEqual(list(files[0]["devices"]), ["0"])
        found: dict[str, Any] = files[0]["devices"]["0"]
        return {**found, "notes": files[0]["notes"]}

    def run_app(self, *words: str, **env: Optional[str]) -> Any:
        return self.one_trace(self.go(app("static"), *words, **{**ALLOCS, **env}))

    def test_agrees_with_the_library(self) -> None:
        """Single threaded: every counter is the library's own."""
        rng = random.Random(5)
        mixed = [w for i in range(120) for w in (f"alloc:{rng.randint(1, 4)}:{int(2 ** rng.uniform(4, 24))}", f"free:{rng.randint(0, 4)}")]
        sizes = [w for i in range(60) for w in (f"churn:{rng.randint(7, 14)}:{int(2 ** rng.uniform(8, 25))}",)]
        for words, memory, env in (
                (mixed, "8G", {}),
                (sizes, "8G", {}),
                (mixed + sizes, "8G", {"CUPOOL_DECAY": "0"}),
                (sizes, "8G", {"CUPOOL_DECAY": "off", "CUPOOL_FREE": "strict"}),
                (["tolerate", *mixed, *sizes], "96M", {}),
                ([*sizes, "alloc:5:100"], "8G", {"CUPOOL_DEBUG": "guard"}),
        ):
            with self.subTest(memory=memory, env=env):
                trace = self.run_app(*words, SIMGPU_MEMORY=memory, **env)
                stats = trace.of("stats")[0]
                self.assertGreater(stats["segments_alloc"], 15)
                found = self.device(trace.path)  # the trace says how much memory the device has
                rank = Rank(str(trace.path))
                events = rank.replay.devices[0]
                events.stats = None  # what summary says without it
                told = device_summary(rank, events)
                self.assertEqual({k: told[k] for k in ("requests", "peak_live", "live_at_end", "peak_held", "held_at_end", "cached_at_end")},
                                 {"requests": stats["allocs"], "peak_live": stats["peak_live"], "live_at_end": stats["live"],
                                  "peak_held": stats["peak_held"], "held_at_end": stats["held"], "cached_at_end": stats["held"] - stats["live"]})
                self.assertEqual((told["segments_alloc"], told["segments_free"]), (stats["segments_alloc"], stats["segments_free"]))
                self.assertEqual((told["hits"], told["misses"]), (stats["hits"], stats["misses"]))
                self.assertLessEqual(told["waste"], stats["peak_held"])
                again = found["runs"]["replayed"]
                # Memory that arrives while a full device is asked is found by the pool or by the driver: a hit, or a miss
                # and another segment, for which one may have gone.
                same = [k for k in SAME if memory != "96M" or k not in ("hits", "misses", "segments_alloc", "segments_free")]
                self.assertEqual(again["hits"] + again["misses"], stats["hits"] + stats["misses"])
                self.assertEqual(again["segments_alloc"] - again["segments_free"], stats["segments_alloc"] - stats["segments_free"])
                self.assertEqual({k: again[k] for k in same}, {k: stats[k] for k in same})
                self.assertEqual({k: found["traced"][k] for k in same if k not in ("live", "oom")},
                                 {k: stats[k] for k in same if k not in ("live", "oom")})
                self.assertEqual(again["requests"] - again["refused"], stats["allocs"])
                self.assertEqual(found["notes"], [])
                if memory == "96M":
                    self.assertGreater(stats["oom"], 0)

    def test_clock(self) -> None:
        """Memory that went back by the clock goes back in the replay, whose ticks begin a little earlier or later: at
        most one tick of an eighth of a second, which the last request leaves to it."""
        trace = self.run_app("alloc:1:5000000", "free:1", 'written:t.jsonl:"trim":1', "sleep:250", "alloc:1:9000000", CUPOOL_DECAY="1", CUPOOL_TRACE_FILE="t.jsonl")
        self.assertEqual([e["why"] for e in trace.of("trim")], ["decay"])
        runs = self.device(trace.path, "--capacity", "8G", "--set", "CUPOOL_DECAY=off")["runs"]
        self.assertEqual(runs["replayed"]["peak_held"], 10 * MIB)
        self.assertEqual(runs["CUPOOL_DECAY=off"]["peak_held"], 16 * MIB)

    def test_reset(self) -> None:
        """A device reset takes everything: what comes after starts anew."""
        trace = self.run_app("alloc:3:5000000", "reset", "alloc:2:5000000", "free:1", "churn:20:3000")
        found = self.device(trace.path, "--capacity", "8G")
        again, stats = found["runs"]["replayed"], trace.of("stats")[0]
        keys = ("segments_alloc", "segments_free", "hits", "misses", "held", "live")
        self.assertEqual({k: again[k] for k in keys}, {k: stats[k] for k in keys})
        self.assertEqual(found["traced"]["peak_live_requested"], 15_000_000)
        self.assertEqual(again["peak_live_requested"], 15_000_000)

    def test_other_settings(self) -> None:
        trace = self.run_app("alloc:5:5000000", "free:5", "alloc:5:9000000")
        found = self.device(trace.path, "--set", "CUPOOL_LIMIT=20M", "--set", "CUPOOL_DECAY=off")
        limited = found["runs"]["CUPOOL_LIMIT=20M CUPOOL_DECAY=off"]
        self.assertLessEqual(limited["peak_held"], 20 * MIB)
        self.assertEqual((limited["bypassed"], limited["refused"]), (2 + 3, 0))
        self.assertEqual(found["runs"]["replayed"]["peak_held"], found["traced"]["peak_held"])
        self.assertGreater(found["traced"]["peak_held"], 20 * MIB)
        off = self.device(trace.path, "--set", "CUPOOL_ENABLE=0")["runs"]
        self.assertEqual(off["CUPOOL_ENABLE=0"], off["model: driver"])
        again = self.run_app("alloc:1:8000000", "free:1", "alloc:1:8000000", "free:1")
        relaxed = self.device(again.path, "--set", "CUPOOL_FREE=relaxed", "--set", "CUPOOL_SLACK=5")["runs"]
        self.assertEqual(relaxed["CUPOOL_FREE=relaxed CUPOOL_SLACK=5"]["hits"], 0)
        self.assertEqual(relaxed["replayed"]["hits"], 1)
        for bad in ("CUPOOL_LIMIT=many", "CUPOOL_LIMIT", "LIMIT=3", "CUPOOL_HOOK=runtime", "CUPOOL_DECAY=-1"):
            done = self.tool(trace.path, "--set", bad, rc=2)
            self.assertEqual((len(done.stderr.splitlines()), done.stdout), (1, ""))

    def test_table(self) -> None:
        trace = self.run_app("alloc:3:5000000", "free:1", RANK="2", LOCAL_RANK="0")
        out = self.tool(trace.path).stdout
        self.assertRegex(out, r"(?m)^2 +0 +as traced +3 +0\.0% +14\.3 MiB +18\.0 MiB +1\.258 +3 ")
        self.assertRegex(out, r"(?m)^2 +0 +replayed +3 +0\.0% +14\.3 MiB +18\.0 MiB +1\.258 +3 ")
        self.assertRegex(out, r"(?m)^2 +0 +model: pytorch +3 .* 20\.0 MiB +1\.398 +1 ")
        self.assertRegex(out, r"(?m)^2 +0 +model: driver +3 .* 18\.0 MiB ")
        self.assertRegex(out, r"(?m)^devices of [\d.]+ [GM]iB$")
        old = b"\n".join(line for line in trace.path.read_bytes().split(b"\n") if b'"device"' not in line)
        self.assertIn("devices of 80.0 GiB, as neither the trace nor --capacity says otherwise", self.tool("-", stdin=old).stdout)
        # From standard input, compressed; and a killed process's, which has no stats.
        cut = b"\n".join(trace.path.read_bytes().split(b"\n")[:-3]) + b"\n"
        self.assertNotIn(b'"stats"', cut)
        self.assertRegex(self.tool("-", stdin=gzip.compress(cut)).stdout, r"(?m)^2 +0 +as traced +- +- +14\.3 MiB")

    def test_threads(self) -> None:
        """Several threads: close, and never a problem."""
        trace = self.run_app("threads:4:300:3000000")
        found = self.device(trace.path, "--capacity", "8G")
        self.assertEqual(found["runs"]["replayed"]["requests"], 1200)
        self.assertEqual(found["runs"]["replayed"]["live_requested"], 0)
        self.assertLess(found["runs"]["replayed"]["peak_held"], 2 * found["traced"]["peak_held"])

    def test_no_allocation_events(self) -> None:
        trace = self.one_trace(self.go(app("static"), "alloc:3:5000000"))
        done = self.tool(trace.path, rc=2)
        self.assertEqual(len(done.stderr.splitlines()), 1)
        self.assertRegex(done.stderr, r"no allocation events.*CUPOOL_TRACE_EVENTS=segment,alloc")
        self.assertEqual(done.stdout, "")
        empty = self.tmp / "empty"
        empty.write_bytes(b"")
        for path in (empty, self.tmp / "nowhere", self.tmp):
            self.assertEqual(len(self.tool(path, rc=2).stderr.splitlines()), 1)

    def test_rmm(self) -> None:
        rows = ["Thread,Time,Action,Pointer,Size,Stream", "1,23:59:59.500000,allocate,0x7f0000000000,5000000,0x0",
                "1,23:59:59:900000,free,0x7f0000000000,5000000,0x0", "2,00:00:20.000000,allocate,0x7f0000000000,9000000,0x2",
                "2,00:00:21.000000,allocate failure,(nil),99999999999999,0x2", "2,00:00:22,allocate,0x7f0001000000,100,0x2"]
        path = self.tmp / "log.dev3.csv"
        path.write_text("\n".join(rows) + "\n")
        files = json.loads(self.tool("--json", path, "--set", "CUPOOL_DECAY=off").stdout)["files"]
        found = files[0]["devices"]["3"]
        self.assertIsNone(found["traced"])
        again = found["runs"]["replayed"]
        self.assertEqual((again["requests"], again["refused"], again["frees"], again["peak_live_requested"]), (4, 1, 1, 9000100))
        self.assertEqual((again["peak_held"], again["segments_free"]), (12 * MIB, 1))  # ten seconds passed after midnight
        self.assertEqual(found["runs"]["CUPOOL_DECAY=off"]["peak_held"], 18 * MIB)
        piped = json.loads(self.tool("--json", "-", stdin=path.read_bytes()).stdout)["files"][0]["devices"]["0"]
        self.assertEqual({**piped["runs"]["replayed"], "device": 3}, again)
        for bad in ("1,noon,allocate,0x1,5,0", "1,00:00:00.0,allocate,here,5,0", "1,00:00"):
            path.write_text("\n".join([*rows, bad]) + "\n")
            self.assertRegex(self.tool(path, rc=2).stderr, r"log.dev3.csv:7: not a line of RMM's log")
