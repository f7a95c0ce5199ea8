# SPDX-License-Identifier: Apache-2.0
"""Tests of cupool-trace merge and diff."""

import json
import unittest

from conversions import T0, ConvertCase, Run
from made_traces import MIB, Event, good, text

from cupool_trace import merge


class Merge(ConvertCase):
    def lines(self, *paths: str, status: int = 0) -> tuple[Event, list[Event], Event]:
        first, *events, last = map(json.loads, self.convert("merge", *paths, status=status).splitlines())
        self.assertEqual((first["merged"], last["e"]), (1, "merged"))
        return first, events, last

    def test_all_events_on_one_clock(self) -> None:
        runs = [Run(seed=i, rank=i, pid=100 + i, host=f"h{i}", t0_unix_ns=T0 + (7 - i) * 12_345_678).events for i in range(4)]
        first, events, last = self.lines(*(self.write(r, f"{i}.jsonl") for i, r in enumerate(runs)))
        base = T0 + 4 * 12_345_678
        self.assertEqual(first["t0_unix_ns"], base)
        self.assertEqual([f["rank"] for f in first["files"]], [0, 1, 2, 3])
        self.assertEqual([e["t"] for e in events], sorted(e["t"] for e in events))
        for i, r in enumerate(runs):
            mine = [e for e in events if e["rank"] == i]
            self.assertEqual({(e["host"], e["pid"]) for e in mine}, {(f"h{i}", 100 + i)})
            t0 = r[0]["t0_unix_ns"]
            self.assertEqual([{k: v for k, v in e.items() if k not in ("rank", "host", "pid")} for e in mine],
                             [{**e, "t": e["t"] + t0 - base} for e in r[1:]])
        # Really interleaved, not one after the other.
        changes = sum(a["rank"] != b["rank"] for a, b in zip(events, events[1:]))
        self.assertGreater(changes, 100)
        self.assertTrue(all(f["complete"] and f["problems"] == 0 for f in last["files"]))

    def test_equal_times_and_one_host_killed(self) -> None:
        a, b = good(), good()[:-1]
        b[0].update(rank=1)
        _, events, last = self.lines(self.write(b, "b"), self.write(a, "a"))
        self.assertEqual([e["rank"] for e in events[:4]], [0, 1, 0, 1])
        self.assertEqual([(f["rank"], f["complete"]) for f in last["files"]], [(0, True), (1, False)])
        self.assertIn("rank 1: killed, still running, or its disk was full", self.err)

    def test_what_is_no_json_is_left_out(self) -> None:
        lines = text(good()).splitlines(keepends=True)
        lines[4] = lines[4].replace(b'"n"', b'"x": NaN, "n"')
        lines[5] = lines[5].replace(b'"n"', b'"later": [1], "n"')
        out = self.convert("merge", self.write(b"".join(lines)))
        self.assertNotIn(b"NaN", out)
        self.assertEqual(json.loads(out.splitlines()[4])["n"], 512)
        self.assertEqual(json.loads(out.splitlines()[5])["later"], [1])

    def test_many_files(self) -> None:
        for files in (1, 10, 100, 1000):
            self.assertLessEqual(files * merge.window_of(files), max(16 << 13, files << 9))
            self.assertGreaterEqual(merge.window_of(files), 1 << 9)
        paths = [self.write(Run(seed=i, rank=i, steps=20).events, f"{i}.jsonl") for i in range(60)]
        _, events, last = self.lines(*paths)
        self.assertEqual([e["t"] for e in events], sorted(e["t"] for e in events))
        self.assertEqual(len(events), sum(f["lines"] - 1 for f in last["files"]))

    def test_no_clock(self) -> None:
        events = good()
        del events[0]["t0_unix_ns"]
        a = self.write(events, "a")
        self.convert("merge", a, self.write(good(), "b"), status=2)
        self.assertRegex(self.err, "a: its header has no t0_unix_ns")
        self.lines(a, status=1)  # alone it needs none; but the header is wrong


class Diff(ConvertCase):
    def diff(self, a: str, b: str, status: int = 0) -> list[Event]:
        result: list[Event] = json.loads(self.convert("diff", "--json", a, b, status=status))["devices"]
        return result

    def other(self) -> list[Event]:
        events = good()
        for i in (8, 12):
            events[i]["n"] = 66 * MIB
        events[9]["n"] = events[10]["n"] = 66 * MIB
        events[-2].update(hits=3, misses=1, peak_held=68 * MIB, peak_live=66 * MIB + 1536, oom=0)
        del events[-3]
        return events

    def test_figures_and_where_segments_part(self) -> None:
        a, b = self.write(good(), "a"), self.write(self.other(), "b")
        one, = self.diff(a, b)
        f = one["figures"]
        for key, va, vb in (("peak_held", 66 * MIB, 68 * MIB), ("peak_live", 64 * MIB + 1536, 66 * MIB + 1536), ("hits", 2, 3),
                            ("oom", 1, 0), ("driver_calls", 3, 3), ("requests", 4, 4)):
            self.assertEqual(f[key], {"a": va, "b": vb, "change": vb - va})
        self.assertEqual(one["segments_part"], {"index": 1, "a": 64 * MIB, "b": 66 * MIB})
        out = self.convert("diff", a, b).decode()
        self.assertRegex(out, r"rank 0 device 0 +peak held +66\.0 MiB +68\.0 MiB +\+2\.0 MiB \(\+3\.0%\)")
        self.assertRegex(out, r"rank 0 device 0 +oom +1 +0 +-1 \(-100\.0%\)")
        self.assertIn("segments part at number 1 (counted from 0): 64.0 MiB in A, 66.0 MiB in B", out)
        self.assertNotIn("driver calls", out)
        backwards, = self.diff(b, a)
        self.assertEqual(backwards["figures"]["peak_held"]["change"], -2 * MIB)

    def test_equal(self) -> None:
        a, b = self.write(good(), "a"), self.write(good(), "b")
        one, = self.diff(a, b)
        self.assertIsNone(one["segments_part"])
        self.assertEqual(self.convert("diff", a, b).decode(), "rank 0 device 0: segments of the same sizes in the same order\n")

    def test_one_goes_on(self) -> None:
        a, b = self.write(good(), "a"), self.write(good()[:8], "b")
        one, = self.diff(a, b)
        self.assertEqual(one["segments_part"], {"index": 1, "a": 64 * MIB, "b": None})
        self.assertEqual(one["figures"]["bypassed"], {"a": 0, "b": None, "change": None})  # killed: nobody counted
        self.assertIn("the same 1 segment, then only A goes on", self.convert("diff", a, b).decode())
        self.assertIn("killed", self.err)

    def test_folders_of_ranks(self) -> None:
        for name, ranks in (("a", (0, 1)), ("b", (1, 2))):
            (self.dir / name).mkdir()
            for r in ranks:
                self.write(Run(seed=r, rank=r).events, f"{name}/r{r}.jsonl")
            (self.dir / name / "notes.txt").write_text("not a trace")
        (self.dir / "a" / "r1.jsonl").rename(self.dir / "a" / "x.jsonl.gz")  # the content decides
        got = self.diff(str(self.dir / "a"), str(self.dir / "b"))
        self.assertEqual([(o["a"] and o["a"]["rank"], o["b"] and o["b"]["rank"]) for o in got], [(0, None), (1, 1), (None, 2)])
        self.assertIsNone(got[1]["segments_part"])
        self.assertEqual(got[0]["figures"]["peak_held"]["b"], None)
        out = self.convert("diff", str(self.dir / "a"), str(self.dir / "b")).decode()
        self.assertIn("rank 0 device 0 -> nothing", out)
        (self.dir / "empty").mkdir()
        self.convert("diff", str(self.dir / "a"), str(self.dir / "empty"), status=2)
        self.assertIn("empty: no *.jsonl", self.err)

    def test_two_runs_of_different_ranks(self) -> None:
        one, = self.diff(self.rank(3), self.rank(5))
        self.assertEqual((one["a"]["rank"], one["b"]["rank"]), (3, 5))

    def test_problems_and_usage(self) -> None:
        a = self.write(good())
        self.diff(a, self.write(good()[1:], "b"), status=1)
        self.diff(a, str(self.dir / "none"), status=2)
        self.assertEqual(self.convert("diff", str(self.dir / "none"), a, status=2), b"")
        for paths in ((a,), (a, a, a), ("-", "-")):
            self.convert("diff", *paths, status=2)
