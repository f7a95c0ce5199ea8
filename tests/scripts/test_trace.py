# SPDX-License-Identifier: Apache-2.0
"""Tests of cupool-trace, run as users run it: as a program, on small traces written here.

Not here: whether the library writes such traces; tests/behaviour runs `cupool-trace check` on real ones.
"""
from __future__ import annotations

import copy
import gzip
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import unittest
import unittest.mock
from pathlib import Path
from typing import Any, Optional

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import tool  # noqa: E402
from cupool_trace import reader, replay, summary  # noqa: E402
from tool import TOOL  # noqa: E402

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
             "comm_init", "comm_destroy", "register", "deregister"):
        out["d"] = 0
    if e in ("segment_alloc", "segment_free"):
        out["b"] = "cuda"
        out["us"] = 100
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


class CheckOneFile(Case):
    def test_good_is_fine_and_silent(self) -> None:
        out = self.check(good(), 0, r"ok; complete; 17 lines; 1 segment and 2 blocks live at its end")
        self.assertEqual(len(out.splitlines()), 1, out)

    def broken(self, at: int, change: Event, *expected: str) -> None:
        """The good trace with one event's keys changed (None: removed) has exactly the expected problems."""
        events = good()
        for k, v in change.items():
            if v is None:
                del events[at][k]
            else:
                events[at][k] = v
        out = self.check(events, 1, *expected)
        self.assertEqual(len(re.findall(r"jsonl:\d+: ", out)), len(expected), out)

    def test_header(self) -> None:
        self.check(good()[1:], 1, r":1: the header is missing")
        self.broken(0, {"cupool": 2}, r":1: format 2 is unknown")
        for key, _, _ in header_keys():
            with self.subTest(key=key):
                self.broken(0, {key: None}, rf":1: header: {key} is missing")
        self.broken(0, {"rank": "three"}, r":1: header: rank is 'three', not a number or null")
        self.broken(0, {"settings": []}, r":1: header: settings is \[\], not an object")
        self.check(good()[:5] + [header()] + good()[5:], 1, r":6: a second header")
        self.check(b"", 1, r":0: the file is empty")
        self.check(text(good())[:30], 1, r":1: the header is cut")

    def test_header_null_rank(self) -> None:
        self.check([header(None), *good()[1:]], 0)

    def test_every_required_key_and_type(self) -> None:
        for at, event in enumerate(good()[1:], 1):
            for key in event:
                # Optional: e has its own test; the thread of the last lines, and us of segment_free (written before the call).
                optional = (key == "tid" and event["e"] in ("stats", "end")) or (key == "us" and event["e"] == "segment_free")
                with self.subTest(event=event["e"], key=key):
                    if key == "e":
                        self.broken_at_least(at, key, None, rf":{at + 1}: a second header, or an event without a name")
                        self.broken_at_least(at, key, 7, rf":{at + 1}: e is not a string")
                        continue
                    if not optional:
                        self.broken_at_least(at, key, None, rf":{at + 1}: {event['e']}: {key} is missing")
                    self.broken_at_least(at, key, [], rf":{at + 1}: {event['e']}: {key} is \[\], not ")
                    if isinstance(event[key], int):
                        self.broken_at_least(at, key, True, rf":{at + 1}: {event['e']}: {key} is True, not ")

    def broken_at_least(self, at: int, key: str, value: Any, expected: str) -> None:
        events = good()
        if value is None:
            del events[at][key]
        else:
            events[at][key] = value
        # In process, because this runs some two hundred times.
        self.assertRegex("\n".join(f":{n}: {t}" for n, t in problems_of(self.write(events))), expected)

    def test_values(self) -> None:
        self.broken(11, {"ok": 2}, r":12: ipc: ok is 2, not 0 or 1")
        self.broken(11, {"p": "7f00"}, r":12: ipc: p is '7f00', not a hexadecimal string")
        self.broken(4, {"f": 7}, r":5: alloc: f is 7, not a list of frames' numbers")
        self.check([header(), {"t": 1, "e": "frame", "tid": 42, "f": [1], "p": "0x1", "at": "app"}, ev(2, "end", dropped=0)], 1,
                   r":2: frame: f is \[1\], not a frame's number")
        self.broken(13, {"n": -1}, r":14: trim: n is -1, not a number of bytes")
        self.check([header(), ev(1, "segment_alloc", p=BASE, n=0), ev(2, "end", dropped=0)], 1, "n is 0")

    def test_unknown_events_and_keys_are_ignored(self) -> None:
        events = good()
        events[3]["stream"] = {"x": 1}
        events.insert(4, {"t": 1, "e": "of_a_later_version", "tid": [], "us": "?"})
        self.check(events, 0)

    def test_not_json(self) -> None:
        lines = text(good()).splitlines(keepends=True)
        lines[4:4] = [b"garbage\n", b"[1]\n", b"\xff\xfe\n", b"[" * 100000 + b"\n"]
        out = self.check(b"".join(lines), 1, ":5: not a JSON object", ":6: not", ":7: not", ":8: not")
        self.assertIn("4 problems", out)

    def test_very_long_line(self) -> None:
        lines = text(good()).splitlines(keepends=True)
        lines.insert(4, b"x" * (3 << 20) + b"\n")
        self.check(b"".join(lines), 1, "not a JSON object")

    def test_time_within_a_thread(self) -> None:
        self.broken(4, {"t": 205}, r":5: alloc: time goes back by 5 ns within thread 42")

    def test_threads_may_be_out_of_order(self) -> None:
        p = BASE + 512
        self.check([
            header(),
            # Another thread got the block (t = 40) that this one freed (t = 30), and the memory for it, but wrote first.
            ev(10, "segment_alloc", p=BASE, n=2 * MIB), ev(20, "alloc", p=p, n=512),
            ev(40, "alloc", p=p, n=512, tid=7), ev(30, "free_requested", p=p, n=512),
            ev(60, "alloc", p=BASE + 2 * MIB, n=512, tid=7), ev(50, "segment_alloc", p=BASE + 2 * MIB, n=2 * MIB),
            ev(70, "end", dropped=0)], 0)

    def test_segments(self) -> None:
        a = BASE
        seg = ev(10, "segment_alloc", p=a, n=4 * MIB)
        end = ev(90, "end", dropped=0)
        self.check([header(), seg, ev(20, "segment_free", p=a + MIB, n=MIB), end], 1,
                   r":3: segment_free .*: no live segment starts")
        self.check([header(), seg, ev(20, "segment_free", p=a, n=2 * MIB), end], 1, r":3: .*: the segment of line 2 has 4194304")
        self.check([header(), seg, ev(20, "segment_free", p=a, n=4 * MIB), ev(30, "segment_free", p=a, n=4 * MIB), end], 1,
                   r":4: segment_free .*: no live segment starts")
        for p, n in ((a, 4 * MIB), (a + 2 * MIB, 2 * MIB), (a - 2 * MIB, 4 * MIB), (a - 2 * MIB, 8 * MIB), (a + 2 * MIB, 8 * MIB)):
            with self.subTest(p=p - a, n=n):
                self.check([header(), seg, ev(20, "segment_alloc", p=p, n=n), end], 1,
                           r":3: .*overlaps the live segment .* of line 2")
        # Neighbours, and the same address on another device, are fine.
        self.check([header(), seg, ev(20, "segment_alloc", p=a + 4 * MIB, n=MIB), ev(30, "segment_alloc", p=a - MIB, n=MIB),
                    ev(40, "segment_alloc", p=a, n=MIB, d=1), end], 0)

    def test_segment_freed_with_live_blocks(self) -> None:
        start = [header(), ev(10, "segment_alloc", p=BASE, n=2 * MIB), ev(20, "alloc", p=BASE + 512, n=512)]
        free = ev(30, "segment_free", p=BASE, n=2 * MIB)
        end = ev(90, "end", dropped=0)
        self.check([*start, free, end], 1, r":4: segment_free .*: 1 live blocks in it")
        self.check([*start, {**free, "why": "context"}, end], 0, "0 segments and 0 blocks live")

    def test_early_reuse(self) -> None:
        start = [header(), ev(10, "segment_alloc", p=BASE, n=2 * MIB), ev(20, "alloc", p=BASE + 4096, n=1000)]
        end = ev(90, "end", dropped=0)
        # 1000 bytes are two granules, so its last 24 bytes belong to the block as well.
        for p, n in ((4096, 1000), (4096 + 512, 512), (4096 + 1008, 16), (4096 - 512, 513), (0, 2 * MIB)):
            with self.subTest(p=p, n=n):
                self.check([*start, ev(30, "alloc", p=BASE + p, n=n), end], 1,
                           r":4: alloc .*: overlaps the live block 0x7f0000001000 1000 of line 3 \(reused too early\)")
        self.check([*start, ev(30, "alloc", p=BASE + 4096 + 1024, n=1), ev(40, "alloc", p=BASE + 4096 - 512, n=512), end], 0)

    def test_alloc_outside_segments(self) -> None:
        start = [header(), ev(10, "segment_alloc", p=BASE, n=2 * MIB)]
        end = ev(90, "end", dropped=0)
        for p, n in ((-512, 512), (2 * MIB, 512), (2 * MIB - 512, 1024)):
            with self.subTest(p=p, n=n):
                self.check([*start, ev(20, "alloc", p=BASE + p, n=n), end], 1, r":3: alloc .*: not inside a live segment")
        self.check([*start, ev(15, "segment_free", p=BASE, n=2 * MIB), ev(20, "alloc", p=BASE, n=512), end], 1, "not inside a live")
        self.check([*start, ev(20, "alloc", p=BASE + 2 * MIB - 512, n=512), end], 0)

    def test_frees(self) -> None:
        start = [header(), ev(10, "segment_alloc", p=BASE, n=2 * MIB), ev(20, "alloc", p=BASE, n=1024)]
        end = ev(90, "end", dropped=0)
        free = ev(30, "free_requested", p=BASE, n=1024)
        self.check([*start, {**free, "p": hex(BASE + 512)}, end], 1, r":4: free_requested .*: no live block starts there")
        self.check([*start, free, {**free, "t": 40}, end], 1, r":5: free_requested .*: no live block starts there")
        self.check([*start, {**free, "n": 512}, end], 1, r":4: free_requested .*: the block of line 3 has 1024 bytes")

    def test_after_the_end(self) -> None:
        self.check([*good(), ev(500, "trim", n=1, why="limit")], 1, r":18: the end line is not the last one")

    def test_allocs_not_announced(self) -> None:
        self.broken(0, {"events": "segment"}, r":1: allocation events, but the header says")

    def test_stats_against_events(self) -> None:
        events = good()
        events[-2]["segments_alloc"] = 5
        self.check(events, 0, r"warning: device 0: stats says segments_alloc 5, 2 events were seen")
        del events[-2]
        self.check(events, 0, r"warning: device 0 has no stats line")

    def test_many_problems_are_counted_not_listed(self) -> None:
        events = [header(), *(ev(i, "free_requested", p=BASE, n=512) for i in range(500))]
        out = self.check(events, 1, r"400 more problems", r"500 problems")
        self.assertLess(len(out.splitlines()), 110)


class Incomplete(Case):
    def test_killed(self) -> None:
        self.check(good()[:-2], 0, r"ok; killed or still running \(no end line\); 15 lines")
        self.assertEqual(self.run_tool("check", "--complete", self.write(good()[:-2])).returncode, 1)
        self.assertEqual(self.run_tool("check", "--complete", self.write(good())).returncode, 0)

    def test_cut_anywhere_in_the_last_line(self) -> None:
        whole = text(good()[:9])
        last = len(text(good()[8:9]))
        for missing in (2, last // 2, last - 1):
            self.check(whole[:-missing], 0, r"killed or still running \(no end line, last line cut\)")
        # Only the newline is missing: the event is whole, and counts.
        self.check(whole[:-1], 0, r"killed or still running \(no end line\); 9 lines; 2 segments")

    def test_complete_is_asked_for(self) -> None:
        path = self.write(good()[:-1])
        done = self.run_tool("check", "--complete", path)
        self.assertEqual(done.returncode, 1)
        self.assertIn("t.jsonl: not complete; killed or still running", done.stdout)
        file, = json.loads(self.run_tool("check", "--complete", "--json", path).stdout)["files"]
        self.assertEqual((file["ok"], file["problem_count"]), (False, 0))

    def test_dropped(self) -> None:
        events = good()
        events[-1]["dropped"] = 3
        self.check(events, 0, "3 lines were dropped", "warning: lines were dropped")

    def test_summary_of_killed_counts_events(self) -> None:
        path = self.write(good()[:-2])
        dev = self.summary(path)["ranks"][0]["devices"]["0"]
        self.assertEqual((dev["from_stats"], dev["requests"], dev["hits"], dev["misses"]), (False, 4, 2, 2))
        self.assertEqual((dev["peak_live"], dev["peak_held"]), (64 * MIB + 1536, 66 * MIB))
        out = self.run_tool("summary", path).stdout
        self.assertRegex(out, r"killed or still running")
        self.assertRegex(out, r"~4 +~2 +~2 +~50.0%")
        self.assertIn("no stats line; requests counted from events", out)

    def test_summary_of_killed_without_allocation_events(self) -> None:
        events = [e for e in good()[:-2] if e.get("e") not in ("alloc", "free_requested", "free_completed")]
        events[0]["events"] = "segment"
        path = self.write(events)
        dev = self.summary(path)["ranks"][0]["devices"]["0"]
        self.assertEqual((dev["requests"], dev["hits"], dev["hit_rate"], dev["peak_live"]), (None, None, None, None))
        self.assertEqual(dev["peak_held"], 66 * MIB)
        self.assertIn("requests and hits are unknown", self.run_tool("summary", path).stdout)

    def test_stats_while_it_runs(self) -> None:
        """The last line of a device counts: at the end that one, else as of then."""
        early = stats(290, allocs=3, hits=1, misses=2, frees=1, segments_alloc=2, why="timer")
        whole = good()[:13] + [early] + good()[13:]
        self.check(whole, 0, "ok; complete")
        self.assertNotIn("warning", self.check(whole, 0))
        dev = self.summary(self.write(whole))["ranks"][0]["devices"]["0"]
        self.assertEqual((dev["stats_at"], dev["requests"], dev["hits"]), (None, 4, 2))
        path = self.write(whole[:-2])
        dev = self.summary(path)["ranks"][0]["devices"]["0"]
        self.assertEqual((dev["from_stats"], dev["stats_at"], dev["requests"], dev["hits"]), (True, 290 / 1e9, 3, 1))
        self.assertRegex(self.run_tool("summary", path).stdout, r"~3 +~1 +~2 +~33.3%")

    def test_why_there_was_no_memory(self) -> None:
        events = good()
        events[14]["why"] = "pieces"
        path = self.write(events)
        self.assertEqual(self.summary(path)["ranks"][0]["devices"]["0"]["oom_moments"][0]["why"], "pieces")
        self.assertIn("live; why: pieces", self.run_tool("summary", path).stdout)

    def test_really_killed(self) -> None:
        path = str(self.dir / "k.jsonl")
        writer = ("import os,sys,time\nf=os.open(sys.argv[1],os.O_WRONLY|os.O_CREAT)\nos.write(f,sys.stdin.buffer.read())\n"
                  "print(1,flush=True)\ntime.sleep(60)")
        with subprocess.Popen([sys.executable, "-c", writer, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
            assert child.stdin and child.stdout
            child.stdin.write(text(good()[:9]))
            child.stdin.close()
            child.stdout.readline()
            child.send_signal(signal.SIGKILL)
        self.assertIn("killed or still running", self.run_tool("check", path).stdout)


class Summary(Case):
    def test_figures(self) -> None:
        got = self.summary(self.write(good()))
        rank = got["ranks"][0]
        self.assertEqual((rank["rank"], rank["host"], rank["pid"], rank["exe"], rank["complete"]), (0, "a", 42, "app", True))
        dev = rank["devices"]["0"]
        expected = {"from_stats": True, "requests": 4, "hits": 2, "misses": 2, "hit_rate": 0.5, "peak_live": 64 * MIB + 1536,
                    "peak_held": 66 * MIB, "held_at_end": 2 * MIB, "segments_alloc": 2, "segments_free": 1, "segments_live": 1,
                    "driver_calls": 3, "driver_us": 450.5, "segment_us": 100, "saved_us": 200, "live_at_end": 1536,
                    "cached_at_end": 2 * MIB - 1536, "waste": 2 * MIB - 1536, "rounding": 0, "oom": 1, "trims": 1, "trimmed": 64 * MIB, "ipc_ok": 0, "ipc_refused": 1}
        self.assertEqual({k: dev[k] for k in expected}, expected)
        alike = ("hits", "saved_us", "peak_live", "peak_held", "waste", "driver_calls")
        self.assertEqual({k: dev["backends"]["cuda"][k] for k in alike}, {k: dev[k] for k in alike})
        self.assertEqual([s["n"] for s in dev["largest_segments"]], [64 * MIB, 2 * MIB])
        self.assertEqual(dev["policy"], [{"t": 100, "free": "ordered", "why": "default"}])
        self.assertEqual(dev["oom_moments"], [{"t": 300, "n": 900 * MIB, "held": 2 * MIB, "live": 1536}])

    def test_text(self) -> None:
        out = self.run_tool("summary", self.write(good())).stdout
        for pattern in (r"^0 +a +42 +app +complete", r"^0 +0 +cuda +ordered +4 +2 +2 +50.0% +~200 us +64.0 MiB +66.0 MiB +2.0 MiB +2 +3 +450 us +1 +1$",
                        r"about 200 us saved: 2 hits at 100.0 us each, the median of what it took to get a segment from cuda",
                        r"2.0 MiB wasted when most was held; when most was live, 0 B of it was rounding; 1.5 KiB live and 2.0 MiB cached at the end",
                        r"out of memory at 0.000 s: 900.0 MiB asked for, 2.0 MiB held, 1.5 KiB live",
                        r"1 request for an IPC handle refused",
                        r"largest segments 64.0 MiB, 2.0 MiB; 1 live at the end \(2.0 MiB\)", r"1 trim gave back 64.0 MiB"):
            self.assertRegex(out, re.compile(pattern, re.M))
        self.assertNotIn("~", out.replace("~200 us", ""))

    def test_time_saved_is_measured_or_not_said(self) -> None:
        """Only from what segments took: other times there say nothing of it."""
        events = good()
        events[2]["us"], events[8]["us"], events[12]["us"], events[13]["us"] = 30, 50, 7000, 9000
        dev = self.summary(self.write(events))["ranks"][0]["devices"]["0"]
        self.assertEqual((dev["segment_us"], dev["saved_us"]), (30, 60))
        events = [e for e in good() if e.get("e") != "segment_alloc"]
        path = self.write(events)
        dev = self.summary(path)["ranks"][0]["devices"]["0"]
        self.assertEqual((dev["hits"], dev["segment_us"], dev["saved_us"]), (2, None, None))
        out = self.run_tool("summary", path).stdout
        self.assertNotIn("saved:", out)
        self.assertRegex(out, r"50.0% +- +64.0 MiB")

    def test_ranks_that_did_alike_saved_alike(self) -> None:
        """However long one of their few calls took: the first, which waits for the driver to start, or one among 16 at a time."""
        paths = []
        for rank in range(16):
            events = good()
            events[0]["rank"], events[2]["us"], events[8]["us"] = rank, 4000 * rank + 43726.9, 20 + rank
            paths.append(self.write([events[0], *events[1:]], f"{rank}.jsonl"))
        got = self.summary(*paths)
        self.assertEqual({r["devices"]["0"]["saved_us"] for r in got["ranks"]}, {2 * 35.0})
        self.assertEqual(got["total"]["saved_us"], 16 * 2 * 35.0)

    def test_waste_needs_allocation_events(self) -> None:
        """Of segments alone it is not known; the hits are, from the stats line, and with them the time saved."""
        events = [e for e in good() if e.get("e") not in ("alloc", "free_requested", "free_completed")]
        events[0]["events"] = "segment"
        path = self.write(events)
        dev = self.summary(path)["ranks"][0]["devices"]["0"]
        self.assertEqual([dev[k] for k in ("waste", "rounding", "live_at_end", "cached_at_end")], [None] * 4)
        self.assertEqual((dev["held_at_end"], dev["saved_us"]), (2 * MIB, 200))
        self.assertNotIn("wasted", self.run_tool("summary", path).stdout)

    def test_waste(self) -> None:
        """The segment that made held greatest was got for a block that comes after it, and perhaps after one of another thread."""
        a, b = BASE, BASE + 4 * MIB
        start = [header(), ev(1, "segment_alloc", p=a, n=4 * MIB), ev(2, "alloc", p=a, n=MIB + 1), ev(3, "segment_alloc", p=b, n=4 * MIB)]
        for more, waste in (([], 7 * MIB - 512), ([ev(4, "alloc", p=b, n=3 * MIB)], 4 * MIB - 512),
                            ([ev(4, "alloc", p=a + 2 * MIB, n=MIB, tid=7), ev(5, "alloc", p=b, n=3 * MIB)], 3 * MIB - 512),
                            ([ev(4, "alloc", p=b, n=3 * MIB), ev(5, "alloc", p=a + 2 * MIB, n=MIB)], 4 * MIB - 512)):
            dev = self.summary(self.write([*start, *more, ev(9, "end", dropped=0)]))["ranks"][0]["devices"]["0"]
            self.assertEqual((dev["waste"], dev["rounding"]), (waste, 511))

    def test_backends(self) -> None:
        """Each one's figures are those of a trace with its events alone."""
        for seed in range(10):
            r = random.Random(seed)
            events: list[Event] = [header()]
            segments: dict[int, tuple[int, str]] = {}
            live: dict[int, tuple[int, int]] = {}  # block: its request, its segment
            owner = {}
            for t in range(1, 400):
                x, k = r.random(), 64 * MIB * r.randrange(8) + BASE
                if k not in segments:
                    n, backend = MIB * r.randrange(1, 9), r.choice(["cuda", "nccl"]) if segments else "cuda"
                    segments[k] = n, backend
                    one = ev(t, "segment_alloc", p=k, n=n, b=backend, us=r.randrange(100))
                elif x < 0.05 and not any(at == k for _, at in live.values()):
                    backend = segments.pop(k)[1]
                    one = ev(t, "segment_free", p=k, n=n_of[k], b=backend)
                elif live and x < 0.4:
                    p = r.choice(list(live))
                    n, k = live.pop(p)
                    backend = segments[k][1]
                    one = ev(t, "free_requested", p=p, n=n)
                else:
                    p, n = k + 65536 * r.randrange(16), r.randrange(1, 60000)
                    if p in live:
                        continue
                    live[p] = n, k
                    backend = segments[k][1]
                    one = ev(t, "alloc", p=p, n=n)
                n_of = {at: size for at, (size, _) in segments.items()}
                events.append(one)
                owner[id(one)] = backend
            dev = self.figures(events)
            self.assertEqual(list(dev["backends"]), ["cuda", "nccl"])
            for backend, found in dev["backends"].items():
                alone = self.figures([header(), *(e for e in events[1:] if owner[id(e)] == backend)])
                self.assertEqual(found, alone["backends"][backend])
                self.assertEqual(found, {k: alone[k] for k in found})
            for key in ("requests", "segments_alloc", "segments_free", "driver_calls", "held_at_end", "live_at_end", "saved_us"):
                self.assertAlmostEqual(dev[key], sum(f[key] for f in dev["backends"].values()), 2)

    def figures(self, events: list[Event]) -> Event:
        rank = replay.Rank(self.write(events))
        self.assertEqual(rank.problems.kept, [])
        return summary.device_summary(rank, rank.replay.devices[0])

    def test_backends_are_rows(self) -> None:
        events = good()
        events[8]["b"] = events[12]["b"] = "nccl"
        out = self.run_tool("summary", self.write(events)).stdout
        for pattern in (r"^0 +0 +all +ordered +4 +2 +2 ", r"^0 +0 +cuda +~3 +~2 +~1 +~66.7% +~200 us +1.5 KiB +2.0 MiB +2.0 MiB +1 +1 +100 us$",
                        r"^0 +0 +nccl +~1 +~0 +~1 +~0.0% +~0 us +64.0 MiB +64.0 MiB +0 B +1 +2 +350 us$"):
            self.assertRegex(out, re.compile(pattern, re.M))
        self.assertIn("2 hits at 100.0 us each, the median of what it took to get a segment from cuda", out)

    def test_out_of_memory_says_what_was_free(self) -> None:
        events = good()
        events[14].update(why="pieces", idle=0, pending=512, holes=3 * MIB, largest=MIB, device_free=5 * MIB, device_total=80 * MIB)
        path = self.write(events)
        moment, = self.summary(path)["ranks"][0]["devices"]["0"]["oom_moments"]
        self.assertEqual(moment, {"t": 300, "n": 900 * MIB, "held": 2 * MIB, "live": 1536, "idle": 0, "pending": 512, "holes": 3 * MIB,
                                  "largest": MIB, "device_free": 5 * MIB, "why": "pieces"})
        self.assertIn("live; free: 5.0 MiB on the device, 3.0 MiB between live blocks, 512 B kept back, 1.0 MiB in the largest piece; why: pieces",
                      self.run_tool("summary", path).stdout)
        self.broken_values(events)

    def broken_values(self, events: list[Event]) -> None:
        events[14]["holes"] = "many"
        self.check(events, 1, r":15: oom: holes is 'many', not a number of bytes")

    def test_segments_that_died_with_their_context_were_no_driver_call(self) -> None:
        events = good()
        events[12]["why"] = "context"
        self.assertEqual(self.summary(self.write(events))["ranks"][0]["devices"]["0"]["driver_calls"], 2)

    def called(self) -> list[Event]:
        """Three places in the program; the peak is when c has just got its block, and then others come and go."""
        a, b = BASE, BASE + 64 * MIB
        return [
            header(),
            ev(1, "segment_alloc", p=a, n=64 * MIB), ev(2, "segment_alloc", p=b, n=64 * MIB),
            {"t": 3, "e": "frame", "tid": 42, "f": 5, "p": "0x10", "at": "libx.so+0x10 (make)"},
            ev(4, "alloc", p=a, n=MIB, f=[5]),
            {"t": 5, "e": "frame", "tid": 42, "f": 6, "p": "0x18", "at": "libx.so+0x18 (make)"},
            ev(6, "alloc", p=a + MIB, n=2 * MIB, f=[6]),  # the same function, another line of it
            {"t": 7, "e": "frame", "tid": 42, "f": 7, "p": "0x20", "at": "app+0x20"},
            ev(8, "alloc", p=b, n=8 * MIB, f=[7]), ev(9, "alloc", p=b + 8 * MIB, n=1000, f=[0]), ev(10, "alloc", p=b + 16 * MIB, n=512),
            ev(11, "free_requested", p=a, n=MIB), ev(12, "free_requested", p=b, n=8 * MIB),
            ev(13, "alloc", p=a, n=MIB, f=[5]),
            ev(14, "segment_free", p=b, n=64 * MIB, why="context"),
            ev(20, "end", dropped=0)]

    def test_callers(self) -> None:
        path = self.write(self.called())
        expected = [{"caller": "app+0x20", "stack": ["app+0x20"], "live_at_peak": 8 * MIB, "live_at_end": 0, "requests": 1},
                    {"caller": "libx.so (make)", "stack": ["libx.so (make)"], "live_at_peak": 3 * MIB, "live_at_end": 3 * MIB, "requests": 3},
                    {"caller": "unknown", "stack": ["unknown"], "live_at_peak": 1024, "live_at_end": 0, "requests": 1}]
        self.assertEqual(self.summary(path)["ranks"][0]["devices"]["0"]["callers"], expected)
        out = self.run_tool("summary", path).stdout
        self.assertIn("rank 0 device 0: 3 callers, by what they held when most was live\n", out)
        for pattern in (r"^app\+0x20 +8.0 MiB +0 B +1$", r"^libx.so \(make\) +3.0 MiB +3.0 MiB +3$", r"^unknown +1.0 KiB +0 B +1$"):
            self.assertRegex(out, re.compile(pattern, re.M))
        # Without stacks nothing is said of them.
        self.assertNotIn("caller", self.run_tool("summary", self.write(good())).stdout)

    def test_ranks_of_one_gpu(self) -> None:
        def rank(number: int, uuid: str) -> str:
            return self.write([header(rank=number), ev(1, "device", d=0, name="GPU", uuid=uuid), *good()[1:]], f"r{number}.jsonl")

        paths = [rank(0, "11-aa"), rank(1, "22-bb"), rank(2, "11-aa")]
        out = self.run_tool("summary", *paths).stdout
        self.assertIn("rank 0 device 0: GPU, 11-aa, which is rank 2 device 0 too\n", out)
        self.assertIn("rank 1 device 0: GPU, 22-bb\n", out)
        self.assertEqual([r["devices"]["0"]["uuid"] for r in json.loads(self.run_tool("summary", "--json", *paths).stdout)["ranks"]], ["11-aa", "22-bb", "11-aa"])

    def test_callers_behind_an_allocator(self) -> None:
        """All requests come from one place there, so it is those who called it that are told apart, by what only they have."""
        names = {1: "pool.so+0x1", 2: "ops.so+0x2", 3: "ops.so+0x3", 4: "app+0x4", 5: "app+0x5", 6: "blas.so+0x6"}
        stacks = [[1, 2, 4], [1, 2, 5], [1, 3, 5], [1, 3, 5], [6, 3, 5], [1, 2]]
        events = [header(), *({"t": 1, "e": "frame", "tid": 42, "f": f, "p": "0x1", "at": at} for f, at in names.items()),
                  ev(2, "segment_alloc", p=BASE, n=64 * MIB), *(ev(3 + i, "alloc", p=BASE + i * MIB, n=MIB, f=f) for i, f in enumerate(stacks))]
        with unittest.mock.patch.object(replay, "MOST_STACKS", 4):
            rank = replay.Rank(self.write(events))
        few = summary.callers(rank, rank.replay.devices[0])
        self.assertEqual([(c["caller"], c["requests"]) for c in few][:2], [("pool.so+0x1 for ops.so+0x3", 2), ("blas.so+0x6", 1)])
        self.assertIn(("unknown", 1), [(c["caller"], c["requests"]) for c in few])
        every = self.summary(self.write(events))["ranks"][0]["devices"]["0"]["callers"]
        self.assertEqual({c["caller"]: c["live_at_peak"] // MIB for c in every}, {
            "pool.so+0x1 for app+0x4": 1, "pool.so+0x1 for app+0x5": 1, "pool.so+0x1 for ops.so+0x3": 2, "blas.so+0x6": 1,
            "pool.so+0x1 for ops.so+0x2": 1})
        self.assertEqual([c["stack"] for c in every if c["caller"] == "pool.so+0x1 for app+0x5"], [["pool.so+0x1", "ops.so+0x2", "app+0x5"]])

    def test_callers_whenever_the_peak_is(self) -> None:
        """Against what adding up at every moment finds."""
        for seed in range(20):
            r = random.Random(seed)
            events: list[Event] = [header(), ev(1, "segment_alloc", p=BASE, n=64 * MIB)]
            live: dict[int, tuple[int, int]] = {}
            most, held = 0, [0] * 4
            requests = [0] * 4
            for t in range(2, 300):
                p = BASE + 65536 * r.randrange(40)
                if p in live:
                    events.append(ev(t, "free_requested", p=p, n=live.pop(p)[0]))
                    continue
                n, f = 512 * r.randrange(1, 129), r.randrange(1, 4)
                live[p] = n, f
                requests[f] += 1
                events.append(ev(t, "alloc", p=p, n=n, f=[f, 1]))
                if sum(size for size, _ in live.values()) > most:
                    most = sum(size for size, _ in live.values())
                    held = [sum(size for size, who in live.values() if who == f) for f in range(4)]
            events[1:1] = [{"t": 0, "e": "frame", "tid": 42, "f": f, "p": "0x1", "at": str(f)} for f in range(1, 4)]
            rank = replay.Rank(self.write(events))
            dev = summary.device_summary(rank, rank.replay.devices[0])
            self.assertEqual(dev["peak_live"], most)
            self.assertEqual({c["caller"]: (c["live_at_peak"], c["requests"]) for c in dev["callers"]}, {str(f): (held[f], requests[f]) for f in range(1, 4)})

    def test_registrations(self) -> None:
        """Memory that two communicators have counts once, and goes with the last of them, undone or ended."""
        at = {"p": BASE, "n": 2 * MIB, "us": 1.5, "ok": 1, "d": 0}
        more = {**at, "p": BASE + 2 * MIB, "n": 4 * MIB}
        nccl = dict.fromkeys(reader.NCCL, 0)
        events = [header(), ev(1, "comm_init", d=0, comm="0x1", rank=0, ranks=2, nccl=22809), ev(1, "comm_init", d=0, comm="0x2", rank=0, ranks=2, nccl=22809),
                  ev(2, "register", comm="0x1", **at), ev(3, "register", comm="0x2", **at), ev(4, "register", comm="0x2", **more),
                  ev(5, "register", comm="0x1", **{**more, "ok": 0}), ev(6, "deregister", comm="0x1", **at)]
        end = [ev(7, "comm_destroy", d=0, comm="0x2", ok=0), ev(8, "nccl", **{**nccl, "ops": 9, "mixed": 2, "quarantined": MIB}), ev(9, "end", dropped=0)]
        keys = ("registrations", "deregistrations", "registrations_refused", "communicators", "peak_registered", "registered_at_end")
        path = self.write([*events, *end])
        for content, left in ((events, 6 * MIB), ([*events, *end], 0)):
            rank, = self.summary(self.write(content))["ranks"]
            self.assertEqual([rank["devices"]["0"][k] for k in keys], [3, 1, 1, 2, 6 * MIB, left])
        self.assertEqual(rank["nccl"]["ops"], 9)
        done = self.run_tool("summary", path)
        self.assertIn("registered with 2 NCCL communicators: 6.0 MiB at most, 0 B at the end; 3 registrations, 1 undone, 1 refused", done.stdout)
        self.assertIn("rank 0: 9 NCCL operations; 2 with one buffer in registered memory and one outside\n", done.stdout)
        self.assertIn("rank 0: 1.0 MiB can never go back", done.stdout)
        self.assertNotIn("registered with", self.run_tool("summary", self.write(good())).stdout)
        # The pool had no part in it, so nothing of it is missing, and there is nothing to say of it.
        self.assertNotIn("no stats line", done.stdout + self.check([*events, *end], 0))
        # Memory that is registered anew with what lies beside it overlaps what it was registered with before.
        anew = [ev(5, "register", comm="0x2", **{**at, "p": BASE - MIB, "n": 4 * MIB}), ev(6, "deregister", comm="0x2", **{**at, "p": BASE - MIB, "n": 4 * MIB})]
        for content, most, left in (([*events, anew[0]], 7 * MIB, 7 * MIB), ([*events, *anew], 7 * MIB, 6 * MIB), ([*events, *anew, *end], 7 * MIB, 0)):
            rank, = self.summary(self.write(content))["ranks"]
            self.assertEqual([rank["devices"]["0"][k] for k in keys[-2:]], [most, left])
        self.assertNotRegex(done.stdout, r"requests +hits")

    def test_two_ranks_two_devices_and_totals(self) -> None:
        second = copy.deepcopy(good())
        second[0].update(rank=1, local_rank=1, pid=43)
        other = [{**e, "d": 1} if "d" in e else e for e in good()[1:-1]]
        second[1:1] = other
        a, b = self.write(second, "b.jsonl"), self.write(good(), "a.jsonl")
        got = self.summary(a, b)
        self.assertEqual([r["rank"] for r in got["ranks"]], [0, 1])
        self.assertEqual(list(got["ranks"][1]["devices"]), ["0", "1"])
        self.assertEqual((got["total"]["requests"], got["total"]["hit_rate"], got["total"]["peak_held"]), (12, 0.5, 66 * MIB))
        self.assertRegex(self.run_tool("summary", a, b).stdout, re.compile(r"^all +12 +6 +6 +50.0% +~600 us", re.M))

    def test_problems_are_mentioned(self) -> None:
        done = self.run_tool("summary", self.write(good()[1:]))
        self.assertEqual(done.returncode, 1)
        self.assertIn("1 problem; see cupool-trace check", done.stdout)

    def test_no_event_at_all(self) -> None:
        done = self.run_tool("summary", self.write([header(None)]))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("pid 42: no event on any device", done.stdout)


class SeveralRanks(Case):
    def two(self, change: Any) -> "subprocess.CompletedProcess[str]":
        second = good()
        second[0].update(rank=1, local_rank=1, pid=43)
        change(second)
        return self.run_tool("check", self.write(good(), "r0.jsonl"), self.write(second, "r1.jsonl"))

    def test_equal(self) -> None:
        done = self.two(lambda s: None)
        self.assertEqual(done.returncode, 0)
        self.assertIn("information: all 2 files took segments of the same sizes in the same order", done.stdout)

    def test_device_numbers_may_differ(self) -> None:
        done = self.two(lambda s: [e.update(d=1) for e in s if "d" in e])
        self.assertEqual(done.returncode, 0)
        self.assertIn("all 2 files took", done.stdout)

    def test_diverging_is_information(self) -> None:
        def change(s: list[Event]) -> None:
            for i in (8, 12):
                s[i]["n"] = 66 * MIB
        done = self.two(change)
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn("information: rank 0 device 0 and rank 1 device 0 diverge at segment 1 (counted from 0): "
                      "64.0 MiB and 66.0 MiB", done.stdout)

    def test_one_stops_earlier(self) -> None:
        done = self.two(lambda s: s.__delitem__(slice(8, None)))
        self.assertEqual(done.returncode, 0)
        self.assertIn("agree in their first 1 segments, then one goes on: 2 and 1 in all", done.stdout)

    def test_settings_differ(self) -> None:
        done = self.two(lambda s: s[0]["settings"].update(CUPOOL_FREE="strict"))
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stdout, r"r1.jsonl: CUPOOL_FREE is 'strict', in .*r0.jsonl 'auto'")
        self.assertEqual(self.two(lambda s: s[0].update(version="0.2.0")).returncode, 1)
        # Where a rank writes and how much it says may differ.
        self.assertEqual(self.two(lambda s: s[0]["settings"].update(CUPOOL_TRACE_FILE="x", CUPOOL_STATS="exit")).returncode, 0)

    def test_same_rank_twice_is_a_warning(self) -> None:
        done = self.two(lambda s: s[0].update(rank=0))
        self.assertEqual(done.returncode, 0)
        self.assertRegex(done.stdout, r"warning: rank 0 occurs twice: .*r0.jsonl and .*r1.jsonl")

    def test_unknown_ranks_are_no_duplicates(self) -> None:
        done = self.run_tool("check", self.write([header(None)], "a"), self.write([header(None)], "b"))
        self.assertNotIn("twice", done.stdout)

    def test_json(self) -> None:
        bad = good()
        bad[0]["rank"] = 1
        del bad[2]
        done = self.run_tool("check", "--json", self.write(good(), "a"), self.write(bad, "b"))
        self.assertEqual(done.returncode, 1)
        got = json.loads(done.stdout)
        self.assertFalse(got["ok"])
        self.assertEqual([f["ok"] for f in got["files"]], [True, False])
        self.assertEqual(got["files"][1]["problems"][0]["line"], 3)
        self.assertEqual(got["files"][1]["problem_count"], 3)


def comm(t: int, e: str, **keys: Any) -> Event:
    return ev(t, e, comm="0xc1", **keys)


def registered(rank: "int | None", ranks: int, *more: Event) -> "list[Event]":
    """A process of a job with NCCL: one communicator, one segment that is registered with it."""
    a = BASE
    return [
        {**header(rank), "pid": 42 + (rank or 0)},
        comm(100, "comm_init", rank=rank or 0, ranks=ranks, nccl=22809),
        ev(110, "segment_alloc", p=a, n=2 * MIB, b="nccl"),
        comm(120, "register", p=a, n=2 * MIB, us=7.5, ok=1),
        *more,
        comm(200, "deregister", p=a, n=2 * MIB, us=5.5, ok=1),
        comm(210, "comm_destroy", ok=1),
        stats(300, held=2 * MIB, peak_held=2 * MIB, segments_alloc=1),
        {"t": 310, "e": "nccl", "ops": 9, "mixed": 1, "outside": 2, "unsafe": 3, "registered": 1, "deregistered": 1, "renewed": 4, "failed": 0,
         "comms": 0, "segments": 1, "parked": 0, "quarantined": 0},
        ev(320, "end", dropped=0),
    ]


class Registrations(Case):
    def test_fine(self) -> None:
        out = self.check(registered(0, 1), 0, "ok; complete")
        self.assertNotIn("missing", out)

    def test_no_pool_on_the_device(self) -> None:
        """What the program took from NCCL itself: there are no counters of a pool."""
        out = self.check([e for e in registered(0, 1) if e.get("e") not in ("segment_alloc", "stats")], 0)
        self.assertNotIn("warning", out)

    def test_contradictions(self) -> None:
        p = dict(p=BASE, n=2 * MIB, us=1)
        for event, expected in (
                (comm(150, "deregister", ok=1, **{**p, "p": BASE + MIB}), r":5: deregister .*: not registered with 0xc1"),
                (comm(150, "deregister", ok=1, **p), r":6: deregister .*: not registered with 0xc1"),
                (ev(150, "register", comm="0xc2", ok=1, **p), r":5: register .*: there is no communicator 0xc2"),
                (ev(150, "comm_destroy", comm="0xc2", ok=1), r":5: comm_destroy: there is no communicator 0xc2"),
                (ev(150, "comm_init", comm="0xc2", rank=4, ranks=4, nccl=22809), r":5: comm_init: rank 4 of 4")):
            self.check(registered(0, 1, event), 1, expected)
        # What NCCL refused has changed nothing; the same again has a registration of its own.
        self.check(registered(0, 1, comm(150, "deregister", ok=0, **p), comm(151, "register", ok=0, **p)), 0)
        self.check(registered(0, 1, comm(150, "register", ok=1, **p), comm(160, "deregister", ok=1, **p)), 0)
        self.check(registered(0, 1, comm(150, "deregister", ok=1, **p), comm(151, "register", ok=0, **p)), 1, r":7: deregister .*: not registered")
        # A communicator that was forgotten and made again at its address begins with none.
        self.check(registered(0, 1, comm(150, "comm_init", rank=0, ranks=1, nccl=22809)), 1, r":6: deregister .*: not registered")

    def many(self, status: int, ranks: "list[int]", size: int = 4, cut: bool = False, args: "tuple[str, ...]" = ()) -> str:
        paths = []
        for rank in ranks:
            events = registered(rank, size)
            paths.append(self.write(events[:4] if cut else events, f"r{rank}.jsonl"))
        done = self.run_tool("check", *args, *paths)
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        return done.stdout

    def test_missing_ranks(self) -> None:
        self.assertNotIn("missing", self.many(0, [0, 1, 2, 3]))
        for cut in (False, True):
            self.assertIn("warning: 1 communicator of 4 ranks: rank 3 missing", self.many(0, [0, 1, 2], cut=cut))
        self.assertIn("warning: 1 communicator of 4 ranks: ranks 1 and 3 missing", self.many(0, [0, 2]))
        alone = self.many(0, [0])
        self.assertIn("information: 1 communicator of 4 ranks: ranks 1, 2 and 3 missing", alone)
        self.assertNotIn("warning", alone)
        big = (1 << 64) - 1
        self.assertIn(f"ranks 1, 3, 4, 5, 6, 7, 8, 9 and {big - 10} more missing", self.many(0, [0, 2], big))

    def test_a_rank_that_made_fewer(self) -> None:
        second = comm(150, "comm_init", rank=0, ranks=2, nccl=22809)
        again = registered(0, 2, comm(130, "deregister", p=BASE, n=2 * MIB, us=1, ok=1), comm(131, "comm_destroy", ok=1), second,
                           comm(160, "register", p=BASE, n=2 * MIB, us=1, ok=1))
        first, other = self.write(again, "r0.jsonl"), registered(1, 2)
        self.assertIn("warning: 2 communicators of 2 ranks: rank 1 missing", self.run_tool("check", first, self.write(other, "r1.jsonl")).stdout)
        # One that was killed may have been about to.
        self.assertNotIn("missing", self.run_tool("check", first, self.write(other[:4], "r1.jsonl")).stdout)

    def test_expected_ranks(self) -> None:
        self.many(0, [0, 1, 2, 3], args=("--ranks", "4"))
        self.assertRegex(self.many(1, [0, 1, 3], args=("--ranks", "4")), "(?m)^rank 2 of 4: no trace given$")
        self.assertRegex(self.many(1, [0], args=("--ranks", "3")), "(?m)^ranks 1 and 2 of 3: no trace given$")
        self.assertIn("information: rank 2 of 4: no trace given", self.many(0, [0, 1, 3]))
        self.assertEqual(self.run_tool("check", "--ranks", "0", self.write(good())).returncode, 2)

    def test_merge(self) -> None:
        """A communicator's rank is not the process's."""
        done = self.run_tool("merge", self.write([{**e, "rank": 1} if e.get("e") == "comm_init" else e for e in registered(0, 2)]))
        inits = [e for e in map(json.loads, done.stdout.splitlines()) if e.get("e") == "comm_init"]
        self.assertEqual([(e["rank"], e["comm_rank"], e["ranks"]) for e in inits], [(0, 1, 2)])


class Inputs(Case):
    def test_gzip(self) -> None:
        packed = gzip.compress(text(good()))
        self.check(packed, 0, "ok; complete; 17 lines")
        self.assertEqual(self.run_tool("check", "-", stdin=packed).returncode, 0)

    def test_gzip_cut(self) -> None:
        events = good()[:9] + [ev(1000 + i, "trim", n=i * 7919 % 10007, why="oom") for i in range(2000)]
        packed = gzip.compress(text(events))
        self.check(packed[:len(packed) // 2], 0, r"killed or still running \(no end line, last line cut\)")
        done = self.run_tool("check", self.write(packed[:100] + b"\0" * 50 + packed[150:]))
        self.assertNotEqual(done.returncode, 0)

    def test_standard_input(self) -> None:
        self.assertEqual(self.run_tool("check", "-", stdin=text(good())).returncode, 0)
        self.assertEqual(self.run_tool("check", "-", "-", stdin=text(good())).returncode, 2)

    def test_cannot_read(self) -> None:
        for command in ("check", "summary"):
            with self.subTest(command=command):
                done = self.run_tool(command, str(self.dir / "none"), self.write(good()))
                self.assertEqual(done.returncode, 2)
                self.assertRegex(done.stderr, r"cupool-trace: .*none: No such file")
                self.assertIn("complete", done.stdout)  # the other file is still reported
                empty = self.dir / "empty"
                empty.mkdir(exist_ok=True)
                done = self.run_tool(command, str(empty))
                self.assertEqual((done.returncode, done.stdout), (2, ""))
                self.assertIn("no *.jsonl or *.jsonl.gz in it", done.stderr)
                done = self.run_tool(command, sys.executable)
                self.assertEqual(done.returncode, 2)
                self.assertIn("not a cupool trace", done.stderr)
                self.assertEqual(self.run_tool(command, self.write(b"just a text")).returncode, 2)

    def test_folder(self) -> None:
        """It stands for the traces in it."""
        for rank in range(2):
            self.write([header(rank), *good()[1:]], f"{rank}.jsonl")
        (self.dir / "2.jsonl.gz").write_bytes(gzip.compress(text([header(2), *good()[1:]])))
        self.write(b"not a trace", "notes.txt")
        self.assertEqual([r["rank"] for r in self.summary(str(self.dir))["ranks"]], [0, 1, 2])

    def test_what_merge_wrote_is_no_trace(self) -> None:
        merged = self.run_tool("merge", self.write(good()))
        done = self.run_tool("summary", self.write(merged.stdout.encode(), "merged.jsonl"))
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertIn("merged.jsonl: written by merge; read the traces", done.stderr)

    def test_usage(self) -> None:
        self.assertEqual(self.run_tool().returncode, 2)
        self.assertEqual(self.run_tool("nonsense").returncode, 2)
        self.assertEqual(self.run_tool("check").returncode, 2)
        for args in (["--help"], ["check", "--help"], ["summary", "--help"], ["--version"]):
            done = self.run_tool(*args)
            self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_version_is_the_projects(self) -> None:
        found = re.search(r"version: '([^']+)'", (ROOT / "meson.build").read_text())
        assert found
        self.assertEqual(self.run_tool("--version").stdout.strip(), f"cupool-trace {found[1]}")

    def test_through_a_link_and_installed(self) -> None:
        (self.dir / "bin").mkdir()
        (self.dir / "share" / "cupool").mkdir(parents=True)
        (self.dir / "bin" / "cupool-trace").write_bytes(TOOL.read_bytes())
        (self.dir / "share" / "cupool" / "cupool_trace").symlink_to(ROOT / "scripts" / "cupool_trace")
        (self.dir / "link").symlink_to(self.dir / "bin" / "cupool-trace")
        done = subprocess.run([sys.executable, self.dir / "link", "check", self.write(good())], capture_output=True, cwd="/")
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_every_module_is_installed(self) -> None:
        listed = re.findall(r"cupool_trace/(\w+\.py)", (ROOT / "scripts" / "meson.build").read_text())
        self.assertEqual(sorted(listed), sorted(p.name for p in (ROOT / "scripts" / "cupool_trace").glob("*.py")))

    def test_broken_pipe_is_quiet(self) -> None:
        events = [header(), *(ev(i, "free_requested", p=BASE, n=512) for i in range(500))]
        path = self.write(events)
        read, write = os.pipe()
        os.close(read)
        try:
            done = subprocess.run([sys.executable, str(TOOL), "check", path], stdout=write, stderr=subprocess.PIPE)
        finally:
            os.close(write)
        self.assertEqual((done.returncode, done.stderr), (128 + signal.SIGPIPE, b""))

    def test_interrupt_is_quiet(self) -> None:
        with subprocess.Popen([sys.executable, str(TOOL), "check", "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE) as child:
            assert child.stdin and child.stderr
            # Once more than a pipe holds is gone, the reader is at work.
            child.stdin.write(text([header()]) + text([ev(1, "trim", n=1, why="oom")] * 4000))
            child.stdin.flush()
            child.send_signal(signal.SIGINT)
            # Closed by us only after its death: otherwise the end of input could come first.
            self.assertEqual(child.wait(timeout=30), 130)
            self.assertEqual(child.stderr.read(), b"")
            child.stdin.close()


def one_by_one(path: Path) -> "list[reader.Entry]":
    return list(reader.Reader(str(path), reader.Problems()).events())


class Parts(unittest.TestCase):
    """What the commands are made of, where a trace of a size that shows a mistake would take long."""

    def test_counters(self) -> None:
        """The event `stats` has the traced rows of the library's list, and what went past the pool."""
        rows = re.findall(r"^COUNTER\((\w+), ([01])\)", (ROOT / "pool/counters.def").read_text(encoding="utf-8"), re.M)
        self.assertEqual({name for name, traced in rows if traced == "1"} | {"bypassed"}, {*reader.STATS, "bound"})  # not in older traces

    def test_ranges(self) -> None:
        """Against a list that is searched from its beginning to its end. Lists of eight are split and emptied all the time."""
        with unittest.mock.patch.object(replay, "LONG", 8):
            for seed in range(20):
                r = random.Random(seed)
                ranges, known = replay.Ranges(), {}  # start: end
                for k in range(400):
                    start = r.randrange(1000)
                    end = start + r.randrange(1, r.choice([20, 400]))
                    met = sorted(s for s, e in known.items() if s < end and e > start)
                    self.assertEqual(ranges.overlapping(start, end), met)
                    self.assertEqual(ranges.end_of(start), max((e for s, e in known.items() if s <= start < e), default=0))
                    if met or r.random() < (0.9 if k % 200 < 120 else 0.1):
                        self.assertEqual(ranges.add(start, end, k, k), not met)
                        if not met:
                            known[start] = end
                    elif known:
                        gone = r.choice(list(known))
                        self.assertEqual(ranges.pop(gone)[0], known.pop(gone))
                        self.assertNotIn(gone, ranges)
                    self.assertEqual([(s, e) for s, e, _ in ranges.items()], sorted(known.items()))
                    self.assertEqual(len(ranges), len(known))

    def test_segment_at(self) -> None:
        """Against all segments, which are so small that several share what is remembered of their neighbourhood."""
        with unittest.mock.patch.object(replay, "MOST_PAGES", 3):
            for seed in range(20):
                r = random.Random(seed)
                device = replay.Device()
                known: dict[int, int] = {}  # start: end
                for k in range(1000):
                    start = r.choice([0, BASE]) + (r.randrange(16) << replay.PAGE - 2)
                    if r.random() < 0.1:
                        if start in known:
                            device.end_segment(start)
                            del known[start]
                        else:
                            end = start + (r.randrange(1, 12) << replay.PAGE - 2)
                            if device.segments.add(start, end, end - start, k):
                                known[start] = end
                    p, n = start + r.randrange(-1000, 1 << replay.PAGE), r.randrange(1, 1 << replay.PAGE)
                    found = device.segment_at(max(0, p), n)
                    expected = [e for s, e in known.items() if s <= max(0, p) and max(0, p) + n <= e]
                    self.assertEqual([found[0]] if found else [], expected)

    def test_order(self) -> None:
        """Whatever is out of place by less than the window finds its place, and a thread's events stay in their order."""
        for seed in range(50):
            r = random.Random(seed)
            window = r.randrange(1, 40)
            events = [{"t": t // 3, "tid": 0} for t in range(500)]
            # By places that are off by less than the window.
            lines = sorted(range(500), key=lambda i: i + r.random() * (window - 1))
            entries: list[reader.Entry] = [(events[i]["t"], line, events[i]) for line, i in enumerate(lines)]
            got = list(reader.in_time_order(entries, window))
            self.assertEqual([e["t"] for _, _, e in got], [e["t"] for e in events])
            for (_, a, x), (_, b, y) in zip(got, got[1:]):
                self.assertTrue(x["t"] < y["t"] or a < b)

    def test_a_thread_keeps_its_order(self) -> None:
        """Also one whose time goes back, which is a problem each time; what another thread did meanwhile is none."""
        with tempfile.TemporaryDirectory() as folder:
            for seed in range(20):
                r = random.Random(seed)
                events = [header(), *(ev(r.randrange(1, 100), r.choice(["alloc", "free_completed", "trim"]), p=BASE, n=512, why="oom", tid=r.randrange(3))
                                      for _ in range(300))]
                path = Path(folder) / "t.jsonl"
                # Blanks or none: both ways through a line.
                path.write_text("".join(json.dumps(e, separators=(",", r.choice([":", ": "]))) + "\n" for e in events))
                problems = reader.Problems()
                one = reader.Reader(str(path), problems)
                got = list(reader.in_time_order(one.events(), r.randrange(1, 40)))
                self.assertEqual(sorted(line for _, line, _ in got), list(range(2, 302)))
                for tid in range(3):
                    mine = [line for _, line, e in got if e["tid"] == tid]
                    self.assertEqual(mine, sorted(mine))
                own = [[e["t"] for e in events[1:] if e["tid"] == tid] for tid in range(3)]
                self.assertEqual(problems.count, sum(b < a for t in own for a, b in zip(t, t[1:])))
                self.assertEqual(one.last_t, max(map(max, own)))
                # What nobody wants is checked all the same, and nothing else is missing then.
                fewer_problems = reader.Problems()
                fewer = reader.Reader(str(path), fewer_problems, frozenset(["free_completed"]))
                self.assertEqual([(t, line) for t, line, _ in fewer.events()], [(t, line) for t, line, e in one_by_one(path) if e["e"] != "free_completed"])
                self.assertEqual((fewer_problems.kept, fewer_problems.count, fewer.last_t), (problems.kept, problems.count, one.last_t))
                self.assertEqual(fewer.left_out, sum(e.get("e") == "free_completed" for e in events))


class Size(Case):
    def test_memory_does_not_grow_with_the_trace(self) -> None:
        measure = ("import resource,subprocess,sys\n"
                   "c=subprocess.run([sys.executable,*sys.argv[1:]],stdout=subprocess.DEVNULL).returncode\n"
                   "print(c,resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)")
        used = []
        for count in (20_000, 200_000):
            path = self.dir / f"{count}.jsonl"
            with path.open("w") as f:
                f.write(json.dumps(header()) + "\n" + json.dumps(ev(0, "segment_alloc", p=BASE, n=64 * MIB)) + "\n")
                for i in range(count // 2):
                    # Sixteen blocks live at a time, each address reused again and again.
                    p = hex(BASE + 512 + 4096 * (i % 16))
                    if i >= 16:
                        f.write(f'{{"t":{10 * i},"e":"free_requested","tid":42,"d":0,"p":"{p}","n":4096}}\n')
                    f.write(f'{{"t":{10 * i + 5},"e":"alloc","tid":42,"d":0,"p":"{p}","n":4096}}\n')
            done = subprocess.run([sys.executable, "-c", measure, str(TOOL), "check", str(path)], capture_output=True, text=True)
            status, kib = map(int, done.stdout.split())
            self.assertEqual(status, 0)
            used.append(kib)
        self.assertLess(used[1], used[0] + 8 * 1024, used)


def header_keys() -> Any:
    return reader.HEADER


def problems_of(path: str) -> "list[tuple[int, str]]":
    return replay.Rank(path).problems.kept


if __name__ == "__main__":
    unittest.main()
