# SPDX-License-Identifier: Apache-2.0
"""Tests of cupool-trace check, run as users run it: as a program, on small traces written here."""

import json
import re
import signal
import subprocess
import sys
import unittest
from typing import Any

from made_traces import BASE, MIB, Case, Event, ev, good, header, problems_of, stats, text

from cupool_trace.schema import HEADER


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
        for key, _, _ in HEADER:
            with self.subTest(key=key):
                self.broken(0, {key: None}, rf":1: header: {key} is missing")
        self.broken(0, {"rank": "three"}, r":1: header: rank is 'three', not a number or null")
        self.broken(0, {"settings": []}, r":1: header: settings is \[\], not an object")
        self.check(good()[:5] + [header()] + good()[5:], 1, r":6: a second header: two traces in one file")
        self.check(b"", 1, r":0: the file is empty")
        self.check(text(good())[:30], 1, r":1: the header is cut")

    def test_absurd_time(self) -> None:
        """A negative one, written without its sign. One that can be is no fault."""
        for t, fault in (2**64 - 10**15, True), (10**19, True), (10**19 - 1, False):
            out = self.check([*good()[:-1], ev(t, "trim", n=MIB, why="oom"), {"t": t, "e": "end", "dropped": 0}], int(fault))
            self.assertEqual(len(re.findall(rf"(trim|end): t is {t}, not a time in nanoseconds", out)), 2 * fault, out)

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
        self.check(good()[:-2], 0, r"ok; killed, still running, or its disk was full \(no end line\); 15 lines")
        self.assertEqual(self.run_tool("check", "--complete", self.write(good()[:-2])).returncode, 1)
        self.assertEqual(self.run_tool("check", "--complete", self.write(good())).returncode, 0)

    def test_cut_anywhere_in_the_last_line(self) -> None:
        whole = text(good()[:9])
        last = len(text(good()[8:9]))
        for missing in (2, last // 2, last - 1):
            self.check(whole[:-missing], 0, r"killed, still running, or its disk was full \(no end line, last line cut\)")
        # Only the newline is missing: the event is whole, and counts.
        self.check(whole[:-1], 0, r"killed, still running, or its disk was full \(no end line\); 9 lines; 2 segments")

    def test_complete_is_asked_for(self) -> None:
        path = self.write(good()[:-1])
        done = self.run_tool("check", "--complete", path)
        self.assertEqual(done.returncode, 1)
        self.assertIn("t.jsonl: not complete; killed, still running, or its disk was full", done.stdout)
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
        self.assertRegex(out, r"killed, still running, or its disk was full")
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
        self.assertIn("live; why: the free memory would suffice, but lies between live blocks", self.run_tool("summary", path).stdout)

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
        self.assertIn("killed, still running, or its disk was full", self.run_tool("check", path).stdout)


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
        self.assertEqual(self.two(lambda s: s[0]["settings"].update(CUPOOL_RANK="7")).returncode, 0)

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
