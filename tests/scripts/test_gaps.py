# SPDX-License-Identifier: Apache-2.0
"""Traces that do not tell all: files that were not read, and events that the library left out (`gap`)."""

import csv
import gzip
import io
import json
import os
import subprocess
import sys
import unittest
from typing import Any

from made_traces import BASE, MIB, TOOL, Case, Event, ev, good, header, stats

DAY = 86_400_000_000_000


class Siblings(Case):
    """Earlier runs' files have a number behind the name."""

    def said(self, *args: str) -> str:
        done = self.run_tool(*args)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stderr

    def test_every_reader_says_it(self) -> None:
        path, old = self.write(good()), self.write(good(), "t.jsonl.1")
        other = self.write(good(), "u.jsonl")
        line = f"cupool-trace: not read: {old} (earlier runs, or other processes of one name)\n"
        for command, *more in (["summary"], ["check"], ["plot", "-o", str(self.dir / "o.html")], ["top", "--once"], ["merge"], ["to-csv"],
                               ["to-rmm"], ["to-perfetto"], ["to-pytorch", "-o", str(self.dir / "o.pickle")]):
            with self.subTest(command):
                self.assertEqual(self.said(command, *more, path), line)
        self.assertEqual(self.said("diff", path, other), line)
        self.assertEqual(self.said("diff", path, old), "")

    def test_which(self) -> None:
        """Both ways, packed or not, the newest first; nothing that is no trace or that is read."""
        path = self.write(good())
        for i in range(1, 8):
            os.utime(self.write(good(), f"t.jsonl.{i}"), (i, i))
        self.write(gzip.compress(b"{}"), "t.jsonl.9.gz")
        self.write(b"somebody's", "t.jsonl.10")
        self.write(good(), "other.jsonl.1")
        (self.dir / "t.jsonl.11").mkdir()
        os.mkfifo(self.dir / "t.jsonl.12")
        err = self.said("summary", path)
        self.assertIn(", ".join(["not read: " + str(self.dir / "t.jsonl.9.gz"), *(str(self.dir / f"t.jsonl.{i}") for i in (7, 6, 5))]) + " and 4 more (", err)
        self.assertIn(f"not read: {self.dir / 't.jsonl.9.gz'}, {path}, {self.dir / 't.jsonl.7'},", self.said("summary", str(self.dir / "t.jsonl.3")))
        self.assertEqual(len(err.splitlines()), 1)

    def test_folders(self) -> None:
        self.write(good())
        old = self.write(good(), "t.jsonl.1")
        self.assertIn(f"not read: {old} (", self.said("summary", str(self.dir)))
        self.assertEqual(self.said("top", "--once", str(self.dir)), "")


class Runs(Case):
    def test_ranks_of_another_run(self) -> None:
        """Yesterday's job had more ranks, so not all of its files were replaced."""
        old = [header(1, t0_unix_ns=header()["t0_unix_ns"] - DAY), *good()[1:]]
        a, b = self.write(good(), "0.jsonl"), self.write(old, "1.jsonl")
        said = "rank 1 ended 24.0 hours before rank 0 began: of another run?"
        self.assertIn(f"warning: {said}", self.run_tool("check", a, b).stdout)
        self.assertIn(f"\n{said}\n", self.run_tool("summary", a, b).stdout)
        late = self.write([header(1, t0_unix_ns=header()["t0_unix_ns"] + 100), *good()[1:]], "2.jsonl")
        for command in ("check", "summary"):
            self.assertNotIn("another run", self.run_tool(command, a, late).stdout)


def gap(t: int, since: int, why: str = "rate", left: int = 0, goes_on: int = 0, **more: int) -> Event:
    return {"t": t, "e": "gap", "why": why, "since": since, "segments": left, "blocks": 0, "others": 0, "bytes": 100 * left, "open": goes_on, **more}


def held(t: int, n: int, segments: int, d: int = 0, b: str = "cuda") -> Event:
    return {"t": t, "e": "held", "d": d, "b": b, "n": n, "segments": segments}


def with_gap() -> "list[Event]":
    """Of three segments, the second is given back unseen, and the third is got so, where the first one's neighbour was."""
    a, b, c = BASE, BASE + 64 * MIB, BASE + 128 * MIB
    return [
        header(events="segment"),
        ev(100, "segment_alloc", p=a, n=2 * MIB),
        ev(110, "segment_alloc", p=b, n=4 * MIB),
        gap(120, 120, left=1, goes_on=1), held(120, 2 * MIB, 1),
        gap(1000, 120, left=3), held(1000, 34 * MIB, 2),
        ev(1010, "segment_alloc", p=b + 2 * MIB, n=8 * MIB),  # over what is gone
        ev(1020, "segment_free", p=c, n=32 * MIB),  # nobody has seen it come
        ev(1030, "segment_free", p=a, n=2 * MIB),
        stats(2000, allocs=8, hits=1, misses=7, frees=7, live=8 * MIB, held=8 * MIB, peak_live=42 * MIB, peak_held=42 * MIB, segments_alloc=7,
              segments_free=6),
        ev(2010, "end", dropped=0),
    ]


LEFT_OUT = "4 events were left out from 0.000 s on (rate)"


class Gaps(Case):
    def test_check(self) -> None:
        self.check(with_gap(), 0, rf"t\.jsonl: ok; ended; {LEFT_OUT.replace('(', '.').replace(')', '.')}; 12 lines; 1 segment live at its end")
        self.assertEqual(self.run_tool("check", "--complete", self.write(with_gap())).returncode, 1)

    def test_what_a_gap_does_not_excuse(self) -> None:
        """Before it, and in its own lines."""
        events = with_gap()
        events.insert(1, ev(50, "segment_free", p=BASE, n=2 * MIB))
        self.check(events, 1, r":2: segment_free 0x7f0000000000 2097152: no live segment starts there")
        for at, change, said in ((3, {"segments": -1}, "gap: segments is -1"), (3, {"open": 2}, "gap: open is 2, not 0 or 1"),
                                 (3, {"since": "x"}, "gap: since is 'x', not a time in nanoseconds"), (4, {"n": None}, "held: n is None")):
            events = with_gap()
            events[at].update(change)
            self.check(events, 1, rf":{at + 1}: {said}")

    def test_ranks(self) -> None:
        a, b = self.write(with_gap(), "a.jsonl"), self.write([header(1, events="segment"), *with_gap()[1:]], "b.jsonl")
        done = self.run_tool("check", a, b)
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn("information: rank 0 and rank 1: segments are not compared, as events were left out\n", done.stdout)
        done = self.run_tool("diff", a, b)
        self.assertIn("rank 0 device 0 -> rank 1 device 0: segments are not compared, as events were left out", done.stdout)
        self.assertIn(LEFT_OUT, done.stderr)

    def test_summary(self) -> None:
        total = self.summary(self.write(with_gap()))
        f = total["ranks"][0]["devices"]["0"]
        self.assertEqual((f["held_at_end"], f["segments_live"], f["peak_held"], f["segments_alloc"], f["segments_free"]),
                         (8 * MIB, 1, 42 * MIB, 7, 6))
        self.assertIn(f"rank 0: {LEFT_OUT};", self.run_tool("summary", self.write(with_gap())).stdout)

    def test_killed(self) -> None:
        """Held is as of the last time that it was told, and how many events there would have been nobody knows."""
        path = self.write([*with_gap()[:5], gap(10_000, 120, left=9, goes_on=1), held(10_000, 70 * MIB, 3)])
        f = self.summary(path)["ranks"][0]["devices"]["0"]
        self.assertEqual((f["held_at_end"], f["segments_live"], f["peak_held"]), (70 * MIB, 3, 70 * MIB))
        self.assertIn("(no end line); events were left out from 0.000 s on (rate);", self.run_tool("check", path).stdout)
        [row] = json.loads(self.run_tool("top", "--once", "--json", path).stdout)["rows"]
        self.assertEqual((row["held"], row["segments"], row["problems"]), (70 * MIB, 3, 0))

    def test_backends_and_devices(self) -> None:
        events = [header(events="segment"), ev(100, "segment_alloc", p=BASE, n=2 * MIB), ev(110, "segment_alloc", p=BASE + 8 * MIB, n=4 * MIB, b="nccl"),
                  gap(120, 120, left=5), held(120, 2 * MIB, 1), held(120, 12 * MIB, 2, b="nccl"), held(120, MIB, 1, d=3),
                  ev(130, "segment_free", p=BASE + 8 * MIB, n=4 * MIB, b="nccl"), ev(140, "segment_alloc", p=BASE + 100 * MIB, n=MIB, d=3)]
        devices = self.summary(self.write(events))["ranks"][0]["devices"]
        self.assertEqual({d: (f["held_at_end"], f["segments_live"]) for d, f in devices.items()}, {"0": (10 * MIB, 2), "3": (2 * MIB, 2)})
        self.assertEqual({b: f["held_at_end"] for b, f in devices["0"]["backends"].items()}, {"cuda": 2 * MIB, "nccl": 8 * MIB})

    def limited(self) -> "list[Event]":
        """Allocation events up to a limit; then segments and blocks go and come unseen."""
        return [*good()[:6], gap(235, 235, "limit", 1, 1), held(235, 2 * MIB, 1), ev(291, "trim", n=64 * MIB, why="oom"),
                gap(390, 235, "limit", 3, blocks=4), held(390, 0, 0), *good()[-2:]]

    def test_blocks(self) -> None:
        """Which of them are live nobody knows, but for the counters."""
        path = self.write(self.limited())
        f = self.summary(path)["ranks"][0]["devices"]["0"]
        self.assertEqual((f["requests"], f["live_at_end"], f["held_at_end"], f["waste"], f["rounding"], f["segments_live"]),
                         (4, 1536, 0, None, None, 0))
        [row] = json.loads(self.run_tool("top", "--once", "--json", path).stdout)["rows"]
        self.assertEqual((row["live"], row["held"]), (None, 0))
        self.check(self.limited(), 0)

    def test_conversions(self) -> None:
        """They say it on stderr, and count nothing as a contradiction."""
        for events in (with_gap(), self.limited()):
            path = self.write(events)
            for command, *more in (["merge"], ["to-csv"], ["to-rmm", "--segments"], ["to-perfetto"], ["to-pytorch", "-o", str(self.dir / "o.pickle")]):
                with self.subTest(command):
                    done = self.run_tool(command, *more, path)
                    self.assertEqual((done.returncode, len(done.stderr.splitlines())), (0, 1), done.stderr)
                    self.assertRegex(done.stderr, r"rank 0: ended; \d events were left out from 0.000 s on \((rate|limit)\)\n")
        rows = list(csv.DictReader(io.StringIO(self.run_tool("to-csv", self.write(with_gap())).stdout)))
        self.assertEqual([(r["why"], r["since"], r["segments"], r["open"]) for r in rows if r["e"] == "gap"], [("rate", "120", "1", "1"), ("rate", "120", "3", "0")])

    def test_perfetto(self) -> None:
        events = json.loads(self.run_tool("to-perfetto", "--every", "0", self.write(with_gap())).stdout)["traceEvents"]
        self.assertEqual([e["args"]["held"] // MIB for e in events if e["ph"] == "C"], [2, 6, 2, 34, 42, 10, 8])
        self.assertEqual(len([e for e in events if e["name"] == "events left out (rate)"]), 2)

    def test_plot(self) -> None:
        for name in ("o.html", "o.svg", "o.png"):
            done = self.run_tool("plot", "-o", str(self.dir / name), self.write(with_gap()))
            self.assertEqual(done.returncode, 0, done.stderr + done.stdout)
        self.assertIn("events left out", (self.dir / "o.svg").read_text())
        page = (self.dir / "o.html").read_text()
        self.assertIn(LEFT_OUT, page)
        self.assertIn('"gap",1,"events are left out: there were too many at once"', page)

    def test_read_ahead(self) -> None:
        """Of a long file a child process reads the lines: it has to tell of gaps, too."""
        path = self.write([*with_gap()[:-2], *(ev(1100 + i, "mark", text="x" * 400) for i in range(12000)), *with_gap()[-2:]])
        self.assertIn(f"rank 0: {LEFT_OUT};", self.run_tool("summary", path).stdout)


class Errors(Case):
    """Half a line in the middle, where a disk was full."""

    def torn(self, *after: Event, line: bytes = b'{"t":130,"e":"segment_alloc","tid":42,"d":0,"p":"0x7f00') -> bytes:
        lines = [json.dumps(e, separators=(",", ":")).encode() for e in (*with_gap()[:3], *after, *with_gap()[-2:])]
        return b"\n".join([*lines[:3], line, *lines[3:], b""])

    def test_half_a_line_is_explained(self) -> None:
        """Wherever the line ends, since a disk is full at any byte."""
        whole = b'{"t":130,"e":"segment_alloc"'
        for n in (1, 2, 4, 5, 6, 9, len(whole)):
            with self.subTest(n=n):
                self.check(self.torn(gap(140, 131, "error"), held(140, 8 * MIB, 4), line=whole[:n]), 0)

    def test_half_a_line_alone(self) -> None:
        said = r":4: not a JSON object"
        self.check(self.torn(), 1, said)
        self.check(self.torn(gap(140, 131, "rate"), held(140, 8 * MIB, 4)), 1, said)
        self.check(self.torn(ev(135, "mark", text="x"), gap(140, 131, "error"), held(140, 8 * MIB, 4)), 1, said)
        self.check(self.torn(gap(140, 131, "error"), line=b"nonsense"), 1, said)
        self.check(self.torn(gap(140, 131, "error"), line=b""), 1, said)


class Offline(Case):
    def test_replay_says_it(self) -> None:
        program = os.path.join(os.environ.get("BUILDDIR", "build"), "scripts", "replay", "cupool-replay")
        if not os.path.exists(program):
            self.skipTest("cupool-replay is not built")
        done: "subprocess.CompletedProcess[Any]" = subprocess.run([sys.executable, str(TOOL), "replay", "--program", program, self.write(good()[:6] + [
            gap(235, 235, "limit", 1, 1), *good()[-1:]])], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("events were left out from 0.000 s on (limit); the replay has only", done.stdout)
