# SPDX-License-Identifier: Apache-2.0
"""Tests of cupool-trace's conversions, whatever the format, and of those to CSV and to RMM's log."""

import collections
import csv
import gzip
import io
import json
import os
import random
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any, Callable
from unittest import mock

import test_trace_fuzz
from conversions import COMMANDS, T0, TRACES, ConvertCase, Run, without_allocs
from formats import RmmLog, Snapshot, Timeline
from made_traces import BASE, MIB, TOOL, ev, good, header, peak_kib, text, write_long

from cupool_trace import source


class ToCsv(ConvertCase):
    HEADER = ("rank,host,pid,unix_ns,t,e,tid,d,p,n,b,us,why,free,ok,name,uuid,dropped,allocs,hits,misses,frees,bypassed,live,held,"
              "peak_live,peak_held,segments_alloc,segments_free,oom,order,kept,block,f,at,h,offset,by,result,text,comm,since,segments,blocks,others,bytes,open,"
              "bound,count,idle,pending,holes,largest,device_free,ranks,asked,answered,given,o,bias,id,path,mode,copied")

    def rows(self, out: bytes) -> list[dict[str, str]]:
        self.assertEqual(out.decode().split("\n", 1)[0], self.HEADER)
        return list(csv.DictReader(io.StringIO(out.decode(), newline=""), strict=True))

    def test_every_event_is_a_row_with_all_it_has(self) -> None:
        events = good()
        events.insert(1, ev(50, "device", d=0, name='a "GPU",\nin two lines', uuid="GPU-1"))
        rows = self.rows(self.convert("to-csv", self.write(events)))
        self.assertEqual(len(rows), len(events) - 1)
        for row, event in zip(rows, events[1:]):
            self.assertEqual({k: v for k, v in row.items() if v and k not in ("rank", "host", "pid", "unix_ns")},
                             {k: str(v) for k, v in event.items()})
            self.assertEqual((row["rank"], row["host"], row["pid"]), ("0", "a", "42"))
            self.assertEqual(int(row["unix_ns"]), T0 + event["t"])

    def test_callers(self) -> None:
        events = [header(), {"t": 1, "e": "frame", "tid": 42, "f": 3, "p": "0x10", "at": "app+0x10"},
                  ev(2, "alloc", p=BASE, n=3 * MIB, block=4 * MIB, f=[3, 12]), ev(3, "end", dropped=0)]
        frame, alloc, _ = self.rows(self.convert("to-csv", self.write(events)))
        self.assertEqual((frame["f"], frame["at"], alloc["f"], alloc["block"]), ("3", "app+0x10", "3 12", str(4 * MIB)))

    def test_ranks_and_order(self) -> None:
        b, a = self.rank(1), self.rank(0)
        rows = self.rows(self.convert("to-csv", b, a))
        self.assertEqual([r["rank"] for r in rows], sorted(r["rank"] for r in rows))
        for rank in "01":
            times = [int(r["t"]) for r in rows if r["rank"] == rank]
            self.assertTrue(times and times == sorted(times))

    def test_what_nobody_knows_is_left_out(self) -> None:
        events = [header(None), {**ev(1, "alloc", p=BASE, n=1), "name": {"x": 1}, "why": [1], "later": "y"}, ev(2, "of_a_later_version")]
        row, = self.rows(self.convert("to-csv", self.write(events)))
        self.assertEqual((row["name"], row["why"], row["rank"]), ("", "", ""))


class ToRmm(ConvertCase):
    def log(self, *args: str, status: int = 0) -> RmmLog:
        return RmmLog(self.convert("to-rmm", *args, status=status))

    def test_what_the_library_counted(self) -> None:
        """A trace that the library wrote, whose stats line says what it did."""
        path = TRACES / "allocs.jsonl"
        counted = next(json.loads(x) for x in path.read_text().splitlines() if '"stats"' in x)
        log = self.log(str(path))
        self.assertEqual((log.counts["allocate"], log.counts["free"], log.counts["allocate failure"]),
                         (counted["allocs"], counted["frees"], counted["oom"]))
        self.assertGreater(counted["frees"], 10)
        log = self.log("--segments", str(path))
        self.assertEqual((log.counts["allocate"], log.counts["free"]), (counted["segments_alloc"], counted["segments_free"]))
        self.assertEqual((sum(log.live.values()), log.peak), (counted["held"], counted["peak_held"]))

    def test_balance(self) -> None:
        for seed in range(5):
            run = Run(seed=seed)
            path = self.write(run.events)
            log = self.log(path)
            self.assertEqual(log.live, run.blocks[0])
            self.assertEqual(log.counts["allocate"], run.counts["alloc", 0])
            self.assertEqual(log.counts["allocate failure"], run.counts["oom", 0])
            self.assertEqual(self.log("--segments", path).live, run.segments[0])
            self.assertTrue(run.blocks[0] and run.segments[0])
            for more in ([], ["--segments"]):
                log = self.log("--balance", *more, path)
                self.assertEqual((log.live, log.counts["allocate"]), ({}, log.counts["free"]))

    def test_line_by_line(self) -> None:
        out = self.convert("to-rmm", self.write(good()[:7] + [ev(300, "oom", n=5, held=0, live=0)])).decode()
        self.assertEqual(out.splitlines()[1:], ["42,22:13:20.000000,allocate,0x7f0000000200,1000,0",
                                                "42,22:13:20.000000,allocate,0x7f0000000600,512,0",
                                                "42,22:13:20.000000,free,0x7f0000000200,1000,0",
                                                "42,22:13:20.000000,allocate failure,(nil),5,0"])

    def test_segment_events_only(self) -> None:
        path = self.write(without_allocs(good()))
        self.assertEqual(self.convert("to-rmm", path, status=2), b"")
        self.assertEqual(len(self.err.splitlines()), 1)
        self.assertRegex(self.err, r"t\.jsonl: has segment events only: .*CUPOOL_TRACE_EVENTS=segment,alloc.*--segments")
        self.assertEqual(self.log("--segments", path).counts, {"allocate": 2, "free": 1, "allocate failure": 1})
        # A header that does not say so is no reason to write an empty log.
        events = without_allocs(good())
        del events[0]["events"]
        self.convert("to-rmm", self.write(events), status=2)
        self.assertIn("segment events only", self.err)

    def test_one_log_is_one_device(self) -> None:
        run = Run(devices=(0, 3))
        path = self.write(run.events)
        out = self.dir / "out.csv"
        self.convert("to-rmm", "-o", str(out), path, status=2)
        self.assertRegex(self.err, "rank 0 device [03] would go where rank 0 device [03] goes")
        self.assertFalse(out.exists())
        for d in (0, 3):
            self.assertEqual(self.log("--device", str(d), path).live, run.blocks[d])
        self.convert("to-rmm", "-o", str(self.dir / "r%r.d%d.csv"), path, self.rank(1))
        self.assertEqual(sorted(p.name for p in self.dir.glob("*.csv")), ["r0.d0.csv", "r0.d3.csv", "r1.d0.csv"])
        self.assertEqual(RmmLog((self.dir / "r0.d3.csv").read_bytes()).live, run.blocks[3])
        self.assertEqual(RmmLog((self.dir / "r1.d0.csv").read_bytes()).live, Run(seed=2).blocks[0])
        self.convert("to-rmm", path, self.rank(0), status=2)

    def test_nothing(self) -> None:
        self.assertEqual(self.log("--device", "7", self.write(good())).counts, {})
        self.assertIn("nothing to convert on device 7", self.err)

    def test_contradictions_do_not_reach_the_log(self) -> None:
        start = good()[:5]
        for more in ([ev(230, "free_requested", p=BASE, n=512)], [ev(230, "alloc", p=BASE + 512, n=100)],
                     [ev(230, "segment_free", p=BASE, n=2 * MIB)]):
            log = self.log(self.write([*start, *more, ev(500, "end", dropped=0)]), status=1)
            self.assertRegex(self.err, "1 event that contradict")
            self.assertGreaterEqual(log.counts["allocate"], 2)


class Everywhere(ConvertCase):
    """Rules that hold for every conversion."""

    def test_plain_gzip_and_standard_input_are_the_same(self) -> None:
        path = self.write(Run().events)
        plain = Path(path).read_bytes()
        packed = self.write(gzip.compress(plain), "t.gz")
        for command in COMMANDS:
            with self.subTest(command=command):
                expected = self.convert(command, path)
                self.assertEqual(self.convert(command, packed).replace(b"t.gz", b"t.jsonl"), expected)
                if command != "merge":
                    self.assertEqual(self.convert(command, "-", stdin=plain), expected)

    def test_a_cut_file_is_converted_up_to_there(self) -> None:
        events = Run().events
        whole, cut = text(events[:200]), text(events[:201])[:-9]
        for command in COMMANDS:
            with self.subTest(command=command):
                expected = self.convert(command, self.write(whole))
                self.assertIn("rank 0: killed, still running, or its disk was full (no end line)", self.err)
                got = self.convert(command, self.write(cut))
                self.assertIn("rank 0: killed, still running, or its disk was full (no end line, last line cut)", self.err)
                # Some say in their output, too, how it ended, and so differ there.
                end = {"merge": -1, "to-perfetto": -2}.get(command)
                self.assertEqual(got.splitlines()[:end], expected.splitlines()[:end])
                # A damaged compressed file, too: it cannot be read further.
                packed = gzip.compress(text(events))
                self.convert(command, self.write(packed[:len(packed) // 2] + b"\0" * 40 + packed[len(packed) // 2 + 40:]), status=2)

    def test_unreadable_files_are_named_and_the_others_converted(self) -> None:
        path = self.write(good())
        for command in COMMANDS:
            with self.subTest(command=command):
                self.assertGreater(len(self.convert(command, str(self.dir / "none"), path, status=2)), 300)
                self.assertRegex(self.err, "none: No such file")

    def test_problems_are_mentioned(self) -> None:
        lines = text(good()).splitlines(keepends=True)
        lines.insert(5, b"garbage\n")
        path = self.write(b"".join(lines))
        for command in COMMANDS:
            with self.subTest(command=command):
                self.convert(command, path, status=1)
                self.assertRegex(self.err, r"t\.jsonl: 1 problem; see cupool-trace check")

    def test_output_files(self) -> None:
        path = self.write(good())
        out = self.dir / "out"
        for command in COMMANDS:
            with self.subTest(command=command):
                out.write_bytes(b"precious")
                self.assertEqual(self.convert(command, "-o", str(out), path), b"")
                self.assertEqual(out.read_bytes(), self.convert(command, path))
                # Never half a file, never the input, nothing left behind.
                before = Path(path).read_bytes()
                (self.dir / "link").symlink_to(path)
                for target in (path, str(self.dir / "link")):
                    self.convert(command, "-o", target, path, status=2)
                    self.assertIn("is what is to be read", self.err)
                (self.dir / "link").unlink()
                self.assertEqual(Path(path).read_bytes(), before)
                self.convert(command, "-o", str(self.dir / "none" / "x"), path, status=2)
                self.assertIn("No such file", self.err)
                self.assertEqual(sorted(p.name for p in self.dir.iterdir()), ["out", "t.jsonl"])
                with open("/dev/full", "wb") as full:
                    done = subprocess.run([sys.executable, str(TOOL), command, path], stdout=full, stderr=subprocess.PIPE)
                self.assertEqual((done.returncode, done.stderr), (2, b"cupool-trace: standard output: No space left on device\n"))

    def test_a_failed_conversion_leaves_the_old_file(self) -> None:
        out = self.dir / "out"
        out.write_bytes(b"precious")
        self.convert("to-rmm", "-o", str(out), self.write(Run(devices=(0, 1)).events), status=2)
        self.assertEqual(out.read_bytes(), b"precious")
        self.assertEqual(sorted(p.name for p in self.dir.iterdir()), ["out", "t.jsonl"])

    def test_no_event_at_all(self) -> None:
        path = self.write([header(None), {"t": 1, "e": "end", "dropped": 0}])
        self.assertEqual(len(self.convert("to-csv", path).splitlines()), 2)
        self.assertEqual(RmmLog(self.convert("to-rmm", path)).counts, {})
        self.assertEqual(len(Timeline(self.convert("to-perfetto", path)).marks), 1)
        self.assertEqual(Snapshot(self.convert("to-pytorch", path)).traces, [])

    def test_usage(self) -> None:
        for command in (*COMMANDS, "diff"):
            self.assertTrue(self.convert(command, "--help"))
            self.convert(command, status=2)
        for command in COMMANDS:
            self.convert(command, "--json", self.write(good()), status=2)

    def test_progress_only_for_a_person(self) -> None:
        err = io.StringIO()
        with mock.patch.object(sys, "stderr", err), mock.patch("time.monotonic", side_effect=iter(range(100))):
            for terminal in (False, True):
                with mock.patch.object(err, "isatty", lambda: terminal):
                    progress = source.Progress()
                    for _ in range(5):
                        progress.add(1_000_000)
                    progress.done()
                if not terminal:
                    self.assertEqual(err.getvalue(), "")
        self.assertRegex(err.getvalue(), r"^\r2\.0 million events, 2 s .*\r\033\[K$")

    def test_memory_does_not_grow_with_the_trace(self) -> None:
        used: dict[str, list[int]] = {c: [] for c in COMMANDS}
        for count in (20_000, 70_000):
            path = self.dir / f"{count}.jsonl"
            write_long(path, count, 10_000)
            for command in COMMANDS:
                more = ["--max-entries", "1000"] if command == "to-pytorch" else []
                used[command].append(peak_kib(command, *more, path))
        for command, (small, large) in used.items():
            self.assertLess(large, small + 4 * 1024, command)  # less than 84 bytes for each event more


class Damaged(unittest.TestCase):
    """For every damage of a trace the output is right in its format, or there is none."""

    COUNT = 100 * int(os.environ.get("TEST_RUNS", "1"))

    def test_damaged_traces(self) -> None:
        r = random.Random(2)
        readers: dict[str, Callable[[bytes], Any]] = {
            "to-csv": lambda out: list(csv.DictReader(io.StringIO(out.decode(), newline=""))), "to-rmm": RmmLog,
            "to-perfetto": Timeline, "to-pytorch": Snapshot,
            "merge": lambda out: [json.loads(x, parse_constant=test_trace_fuzz.not_json) for x in out.splitlines()],
            "diff": lambda out: json.loads(out, parse_constant=test_trace_fuzz.not_json)}
        written: "collections.Counter[str]" = collections.Counter()
        with tempfile.TemporaryDirectory() as tmp:
            out = Path(tmp) / "out"
            for i in range(self.COUNT):
                command = list(readers)[i % len(readers)]
                paths = [Path(tmp) / f"{k}.jsonl" for k in range(2 if command == "diff" or i % 4 == 0 else 1)]
                for path in paths:
                    path.write_bytes(test_trace_fuzz.damaged(r))
                more = ["--json"] if command == "diff" else ["-o", str(out)]
                if command == "to-rmm":
                    more += ["--segments", "--device", "0"] if i % 5 else ["--device", "0", "--balance"]
                out.unlink(missing_ok=True)
                status, text_out, err = test_trace_fuzz.run([command, *more, *map(str, paths)], ("utf-8", "ascii")[i % 2])
                where = f"damage {i}, {command}: {text_out[:2000]} {err}"
                self.assertIn(status, (0, 1, 2), where)
                self.assertTrue(status == 0 or err.strip(), f"exit status {status}, and not a word: {where}")
                data = text_out.encode() if command == "diff" else out.read_bytes() if out.exists() else b""
                if data:
                    written[command] += 1
                    try:
                        readers[command](data)
                    except Exception as e:
                        raise AssertionError(f"{where}\n{paths[0].read_bytes()[:3000]!r}") from e
        self.assertTrue(all(written[c] > self.COUNT // 20 for c in readers), written)
