# SPDX-License-Identifier: Apache-2.0
"""Traces written here for the tests of cupool-trace, and a test case that runs the tool on them as users run it.

Whether the library writes such traces is not tested here; tests/behaviour runs `cupool-trace check` on real ones.
"""

import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any, Optional

import tool
from tool import ROOT, TOOL  # noqa: F401

from cupool_trace import replay

MIB = 1 << 20
BASE = 0x7F0000000000
Event = dict[str, Any]


def header(rank: Optional[int] = 0, **more: Any) -> Event:
    return {"cupool": 1, "version": "0.1.0", "host": "a", "pid": 42, "rank": rank, "local_rank": rank, "rank_from": "torchrun",
            "exe": "app", "t0_unix_ns": 1700000000000000000, "events": "segment,alloc",
            "settings": {"CUPOOL_FREE": "auto", "CUPOOL_LIMIT": "0"}, **more}


def ev(t: int, e: str, **keys: Any) -> Event:
    out: Event = {"t": t, "e": e, "tid": 42}
    if "p" in keys:
        keys["p"] = hex(keys["p"])
    if e in ("segment_alloc", "segment_free", "alloc", "free_requested", "free_completed", "trim", "oom", "policy", "ipc", "stats",
             "comm_init", "comm_destroy", "register", "deregister", "host_alloc", "host_free"):
        out["d"] = 0
    if e in ("segment_alloc", "segment_free"):
        out["b"] = "cuda"
        out["us"] = 100
    if e in ("host_alloc", "host_free", "host_stats"):
        out["b"] = "host"
    return {**out, **keys}


def stats(t: int, **more: Any) -> Event:
    names = "allocs hits misses frees bypassed live held peak_live peak_held segments_alloc segments_free oom order kept".split()
    return ev(t, "stats", **{**dict.fromkeys(names, 0), **more})


def good() -> list[Event]:
    """A whole life: two segments, three requests, one trim, everything that a trace can hold."""
    a, b = BASE, BASE + 64 * MIB
    return [
        header(),
        ev(100, "policy", free="ordered", why="default"),
        ev(200, "segment_alloc", p=a, n=2 * MIB),
        ev(210, "alloc", p=a + 512, n=1000),  # two granules
        ev(220, "alloc", p=a + 1536, n=512),
        ev(230, "free_requested", p=a + 512, n=1000),
        ev(230, "free_completed", p=a + 512, n=1000),
        ev(240, "alloc", p=a + 512, n=1024),
        ev(250, "segment_alloc", p=b, n=64 * MIB, us=250.5),
        ev(260, "alloc", p=b, n=64 * MIB),
        ev(270, "free_requested", p=b, n=64 * MIB),
        ev(280, "ipc", p=a + 512, ok=0),
        ev(290, "segment_free", p=b, n=64 * MIB),
        ev(291, "trim", n=64 * MIB, why="oom"),
        ev(300, "oom", n=900 * MIB, held=2 * MIB, live=1536),
        stats(400, allocs=4, hits=2, misses=2, frees=2, live=1536, held=2 * MIB, peak_live=64 * MIB + 1536, peak_held=66 * MIB,
              segments_alloc=2, segments_free=1, oom=1, order=2),
        ev(410, "end", dropped=0),
    ]


def text(events: list[Event]) -> bytes:
    return b"".join(json.dumps(e).encode() + b"\n" for e in events)


class Case(unittest.TestCase):
    def setUp(self) -> None:
        tmp = tempfile.TemporaryDirectory()
        self.addCleanup(tmp.cleanup)
        self.dir = Path(tmp.name)

    def write(self, content: "list[Event] | bytes", name: str = "t.jsonl") -> str:
        path = self.dir / name
        path.write_bytes(content if isinstance(content, bytes) else text(content))
        return str(path)

    def run_tool(self, *args: str, stdin: Optional[bytes] = None) -> "subprocess.CompletedProcess[str]":
        result = tool.run(*args, stdin=stdin)
        self.assertNotIn("Traceback", result.stderr)
        return result

    def check(self, content: "list[Event] | bytes", status: int, *expected: str) -> str:
        done = self.run_tool("check", self.write(content))
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        for pattern in expected:
            self.assertRegex(done.stdout, pattern)
        return done.stdout

    def summary(self, *paths: str) -> dict[str, Any]:
        done = self.run_tool("summary", "--json", *paths)
        self.assertIn(done.returncode, (0, 1), done.stderr)
        result: dict[str, Any] = json.loads(done.stdout)
        return result


def problems_of(path: str) -> "list[tuple[int, str]]":
    return replay.Rank(path).problems.kept


MEASURE = ("import resource,subprocess,sys\n"
           "c=subprocess.run([sys.executable,*sys.argv[1:]],stdout=subprocess.DEVNULL).returncode\n"
           "print(c,resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)")


def write_long(path: Path, count: int, step: int) -> None:
    """A trace of so many events, step nanoseconds apart."""
    with path.open("w") as f:
        f.write(json.dumps(header()) + "\n" + json.dumps(ev(0, "segment_alloc", p=BASE, n=64 * MIB)) + "\n")
        for i in range(count // 2):
            # Sixteen blocks live at a time, each address reused again and again.
            p = hex(BASE + 512 + 4096 * (i % 16))
            if i >= 16:
                f.write(f'{{"t":{step * i},"e":"free_requested","tid":42,"d":0,"p":"{p}","n":4096}}\n')
            f.write(f'{{"t":{step * i + 5},"e":"alloc","tid":42,"d":0,"p":"{p}","n":4096}}\n')


def peak_kib(*args: object) -> int:
    """Runs the tool, which has to succeed, and returns the most memory that it had."""
    done = subprocess.run([sys.executable, "-c", MEASURE, str(TOOL), *map(str, args)], capture_output=True, text=True)
    status, kib = map(int, done.stdout.split())
    assert status == 0, done.stderr
    return kib
