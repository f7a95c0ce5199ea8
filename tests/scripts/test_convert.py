# SPDX-License-Identifier: Apache-2.0
"""Tests of cupool-trace's conversions, merge and diff: what they write is read here the way its real readers read it, by small
readers of its own for each format, and fails where those would.

Not here: the real readers themselves (RMM, Perfetto, PyTorch's viewer); what they need is written beside each small reader.
"""
from __future__ import annotations

import collections
import contextlib
import copy
import csv
import gzip
import io
import json
import os
import pickle
import pickletools
import pty
import random
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any, Callable, Iterable, Optional, cast
from unittest import mock

import test_trace_fuzz
from test_trace import BASE, MIB, TOOL, Case, Event, ev, good, header, stats, text

from cupool_trace import merge, source, to_perfetto, to_pytorch
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
        """What it writes to standard output; what it says is in self.err. In this process unless it reads, as it runs so often."""
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


class ToCsv(ConvertCase):
    HEADER = ("rank,host,pid,unix_ns,t,e,tid,d,p,n,b,us,why,free,ok,name,uuid,dropped,allocs,hits,misses,frees,bypassed,live,held,"
              "peak_live,peak_held,segments_alloc,segments_free,oom,order,kept,block,f,at,h,offset,by,result,text,comm,since,segments,blocks,others,bytes,open")

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


class RmmLog:
    """What RMM's log parser and replay do (cpp/benchmarks/utilities/log_parser.hpp and replay/replay.cpp): columns by name, three
    actions, hexadecimal pointers or (nil), only the default stream. Blocks are kept by pointer: an allocation of a pointer that is
    there is lost, a free of one that is not there frees null with a size."""

    def __init__(self, out: bytes) -> None:
        lines = out.decode("ascii").split("\n")
        assert lines.pop() == ""
        names = lines[0].split(",")
        assert lines[0] == "Thread,Time,Action,Pointer,Size,Stream", lines[0]
        self.live: dict[int, int] = {}
        self.counts: "collections.Counter[str]" = collections.Counter()
        self.peak = now = 0
        for line in lines[1:]:
            row = dict(zip(names, line.split(","), strict=True) if sys.version_info >= (3, 10) else zip(names, line.split(",")))
            assert re.fullmatch(r"\d+", row["Thread"]) and re.fullmatch(r"\d+", row["Size"]), line
            assert re.fullmatch(r"[012]\d:[0-5]\d:[0-5]\d\.\d{6}", row["Time"]), line
            assert row["Stream"] == "0" and int(row["Size"]) < 1 << 64 and int(row["Thread"]) < 1 << 64, line
            assert row["Pointer"] == "(nil)" or re.fullmatch(r"0x[0-9a-f]{1,16}", row["Pointer"]), line
            p, n = 0 if row["Pointer"] == "(nil)" else int(row["Pointer"], 16), int(row["Size"])
            self.counts[row["Action"]] += 1
            if row["Action"] == "allocate":
                assert p not in self.live, f"allocated twice: {line}"
                self.live[p] = n
                now += n
                self.peak = max(self.peak, now)
            elif row["Action"] == "free":
                assert self.live.pop(p, None) == n, f"not there, or of another size: {line}"
                now -= n
            else:
                assert row["Action"] == "allocate failure", line


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


class Timeline:
    """The rules of the trace-event format that Perfetto and Chrome go by: microseconds in ts and dur, slices of a thread nest or
    follow each other, counters are numbers, whatever is used is named by metadata, process 0 is the idle one."""

    def __init__(self, out: bytes) -> None:
        whole = json.loads(out)
        self.other = whole["otherData"]
        self.events: list[Event] = whole["traceEvents"]
        self.processes: dict[int, str] = {}
        self.threads: dict[tuple[int, int], str] = {}
        self.counters: dict[tuple[int, str], list[tuple[float, int]]] = {}
        self.slices: dict[tuple[int, int], list[Event]] = {}
        self.marks: list[Event] = []
        last: dict[Any, float] = {}
        for e in self.events:
            assert type(e["pid"]) is int and e["pid"] > 0 and type(e["tid"]) is int and type(e["ts"]) in (int, float), e
            track: Any = None
            if e["ph"] == "M":
                if e["name"] == "process_name":
                    assert e["pid"] not in self.processes
                    self.processes[e["pid"]] = e["args"]["name"]
                elif e["name"] == "thread_name":
                    assert all(tid != e["tid"] for _, tid in self.threads), "one number for two threads"
                    self.threads[e["pid"], e["tid"]] = e["args"]["name"]
                else:
                    assert e["name"] == "process_sort_index"
                continue
            assert e["pid"] in self.processes, e
            if e["ph"] == "C":
                track = (e["pid"], e["name"])
                for k, v in e["args"].items():
                    assert type(v) is int and v >= 0, e
                    self.counters.setdefault((e["pid"], f"{e['name']} {k}"), []).append((e["ts"], v))
            elif e["ph"] == "X":
                assert (e["pid"], e["tid"]) in self.threads and e["dur"] >= 0
                track = (e["pid"], e["tid"])
                before = self.slices.setdefault(track, [])
                assert not before or before[-1]["ts"] + before[-1]["dur"] <= e["ts"] + 1e-4, (before[-1], e)
                before.append(e)
            else:
                assert e["ph"] == "i" and e["s"] == "p" and (e["pid"], e["tid"]) in self.threads, e
                track = (e["pid"], "marks")
                self.marks.append(e)
            assert e["ts"] >= last.get(track, e["ts"]), e
            last[track] = e["ts"]

    def top(self, name: str, pid: int = 1) -> int:
        return max(v for _, v in self.counters[pid, name])


class ToPerfetto(ConvertCase):
    def timeline(self, *args: str, status: int = 0) -> Timeline:
        return Timeline(self.convert("to-perfetto", *args, status=status))

    def test_counters_have_every_peak_and_the_end(self) -> None:
        run = Run(devices=(0, 1), steps=600)
        path = self.write(run.events)
        sizes = []
        for every in ([], ["--every", "0"], ["--every", "1"], ["--every", "100000"], ["--every", "1e12"]):
            line = self.timeline(*every, path)
            for d in (0, 1):
                pool, driver = f"device {d} pool", f"device {d} driver"
                self.assertEqual(line.top(f"{pool} live"), run.peak_live[d])
                self.assertEqual(line.top(f"{driver} held"), run.peak_held[d])
                self.assertEqual(line.counters[1, f"{driver} held"][-1][1], run.held(d))
                self.assertEqual(line.counters[1, f"{pool} live"][-1][1], run.live(d))
                for live, cached, held in zip(*(line.counters[1, n] for n in (f"{pool} live", f"{pool} cached", f"{driver} held"))):
                    self.assertEqual((live[0], live[1] + cached[1]), (held[0], held[1]))
            sizes.append(len(line.counters[1, "device 0 driver held"]))
        self.assertEqual(sizes[1], len({e["t"] for e in of(run.events, "alloc", "free_requested", "segment_alloc", "segment_free")
                                        if e["d"] == 0}))
        self.assertGreater(sizes[1], 2 * sizes[3])
        self.assertLessEqual(sizes[4], 3)

    def test_values_in_time(self) -> None:
        line = self.timeline("--every", "0", self.write(good()))
        self.assertEqual(line.counters[1, "device 0 driver held"],
                         [(0.2, 2 * MIB), (0.21, 2 * MIB), (0.22, 2 * MIB), (0.23, 2 * MIB), (0.24, 2 * MIB), (0.25, 66 * MIB),
                          (0.26, 66 * MIB), (0.27, 66 * MIB), (0.29, 2 * MIB)])
        self.assertEqual([v for _, v in line.counters[1, "device 0 pool live"]],
                         [0, 1024, 1536, 512, 1536, 1536, 64 * MIB + 1536, 1536, 1536])

    def test_slices_and_marks(self) -> None:
        run = Run()
        line = self.timeline(self.write(run.events))
        got = sorted((round(1000 * (s["ts"] + s["dur"])), s["dur"], s["args"]["address"], line.threads[track])
                     for track, slices in line.slices.items() for s in slices)
        # Of segment_free only those whose duration is known.
        calls = [e for e in of(run.events, "segment_alloc", "segment_free") if "us" in e]
        self.assertEqual(got, sorted((e["t"], e["us"], e["p"], f"thread {e['tid']}") for e in calls))
        names = collections.Counter(m["name"].split()[0] for m in line.marks)
        self.assertEqual(names, {k: len(of(run.events, k)) for k in ("trim", "oom", "policy", "end")})
        self.assertIn("oom 900.0 MiB", [m["name"] for m in line.marks])

    def test_registrations(self) -> None:
        """What two communicators have is counted once, until neither has it, and what a communicator has ends with it."""
        def of_comm(t: int, e: str, comm: str, p: int = BASE, d: int = 0, ok: int = 1) -> Event:
            return ev(t, e, p=p, n=2 * MIB, d=d, comm=comm, us=0.5, ok=ok)

        run = Run(devices=(0, 1))
        events = run.events[:-1]
        begin = run.t
        registrations = [
            of_comm(begin + 2000, "register", "0x1"), of_comm(begin + 4000, "register", "0x2"),
            of_comm(begin + 6000, "register", "0x2", p=BASE + 8 * MIB),
            of_comm(begin + 8000, "register", "0x1", p=BASE + 16 * MIB, ok=0),
            of_comm(begin + 10_000, "register", "0x3", d=1), of_comm(begin + 12_000, "deregister", "0x1"),
            of_comm(begin + 14_000, "deregister", "0x3", d=1)]
        made = [ev(begin + 100, "comm_init", d=d, comm=comm, rank=0, ranks=1, nccl=22809)
                for comm, d in (("0x1", 0), ("0x2", 0), ("0x3", 1))]
        ended = ev(begin + 16_000, "comm_destroy", d=0, comm="0x2", ok=1)
        path = self.write([*events, *made, *registrations, ended, ev(begin + 20_000, "end", dropped=0)])
        line = self.timeline("--every", "0", path)
        at = {d: [(round(1000 * t - begin), n) for t, n in line.counters[1, f"device {d} NCCL registered"]] for d in (0, 1)}
        self.assertEqual(at, {0: [(2000, 2 * MIB), (6000, 4 * MIB), (16_000, 0)], 1: [(10_000, 2 * MIB), (14_000, 0)]})
        slices = [(round(1000 * (s["ts"] + s["dur"])), s["dur"], s["args"]["address"], s["args"]["communicator"],
                   s["args"]["device"], s["name"], line.threads[track])
                  for track, found in line.slices.items() for s in found if s["cat"] == "NCCL"]
        self.assertEqual(sorted(slices), [(e["t"], e["us"], e["p"], e["comm"], e["d"],
                                           f"{e['e']} 2.0 MiB{'' if e['ok'] else ' refused'}", f"thread {e['tid']}")
                                          for e in registrations])
        # Of the highest moment and the last of each interval nothing is lost.
        line = self.timeline("--every", "1e12", path)
        self.assertEqual([n for _, n in line.counters[1, "device 0 NCCL registered"]], [4 * MIB, 0])
        line = self.timeline(self.write(run.events))
        self.assertFalse([name for _, name in line.counters if "NCCL" in name])

    def test_calls_of_a_thread_never_overlap(self) -> None:
        # Longer, as written, than the time since the one before.
        events = [header(), ev(1000, "segment_alloc", p=BASE, n=MIB, us=5), ev(3000, "segment_alloc", p=BASE + MIB, n=MIB, us=2.5)]
        slices, = self.timeline(self.write(events)).slices.values()
        self.assertEqual([(s["ts"], s["dur"]) for s in slices], [(0, 1), (1, 2)])

    def test_ranks_are_named_and_on_one_clock(self) -> None:
        late = Run(seed=2, rank=1, pid=7, host="b", t0_unix_ns=T0 + 5_000_000).events
        line = self.timeline(self.write(late, "b"), self.write(Run().events, "a"), self.write([header(None)], "c"))
        self.assertEqual(line.processes, {1: "rank 0 (host a, pid 42)", 2: "rank 1 (host b, pid 7)", 3: "pid 42 (host a, pid 42)"})
        first = min(e["ts"] for e in line.events if e["pid"] == 2 and e["ph"] == "i")
        self.assertEqual(first, (5_000_000 + late[1]["t"]) / 1000)

    def test_segment_events_only(self) -> None:
        line = self.timeline(self.write(without_allocs(Run().events)))
        self.assertEqual(list(line.counters), [(1, "device 0 driver held")])

    def test_killed(self) -> None:
        line = self.timeline(self.write(good()[:-2]))
        self.assertRegex(line.marks[-1]["name"], "killed or still running")
        self.assertEqual(line.marks[-1]["ts"], 0.3)
        self.assertIn("rank 0: killed or still running", self.err)

    def test_size_is_bounded(self) -> None:
        class Count:
            def __init__(self) -> None:
                self.n = 0

            def put(self, *_: Any, **__: Any) -> None:
                self.n += 1

        with mock.patch.object(to_perfetto, "MOMENTS", 50):
            line = Count()
            counters = to_perfetto.Counters(cast(Any, line), 1, 0, 0, None)
            for i in range(100_000):
                counters.add(i * 40_000, i % 97, 0)
            counters.flush()
        # 4 s at 100 us are 40000 intervals; doubled 50 by 50 not one in a hundred is left.
        self.assertGreater(line.n, 100)
        self.assertLess(line.n, 800)
        events = [header()]
        for i in range(2000):
            events += [ev(1000 * i, "segment_alloc", p=BASE, n=MIB, us=0.2 if i % 2 else 3),
                       ev(1000 * i + 1, "segment_free", p=BASE, n=MIB),
                       ev(1000 * i + 2, "trim", n=MIB, why="limit")]
            del events[-2]["us"]
        path = self.write(events)
        with mock.patch.object(to_perfetto, "SLICES", 100), mock.patch.object(to_perfetto, "MARKS", 100):
            out = self.dir / "out.json"
            status, _, err = test_trace_fuzz.run(["to-perfetto", "-o", str(out), path], "utf-8")
        self.assertEqual(status, 0, err)
        got = Timeline(out.read_bytes())
        slices, = got.slices.values()
        # All of the first 100, of the next 200 the longer ones, then, from 4 us on, none.
        self.assertEqual(len(slices), 300)
        self.assertEqual(len(got.marks), 100)
        self.assertRegex(err, r"rank 0 .*: left out for size: 1700 slices, 1901 marks")
        self.assertEqual(list(got.other["left out"].values()), [{"slices": 1700, "marks": 1901}])

    def test_every_must_be_a_number_of_microseconds(self) -> None:
        for wrong in ("-1", "x", "nan", "inf"):
            self.convert("to-perfetto", f"--every={wrong}", self.write(good()), status=2)


class Snapshot:
    """What PyTorch's _memory_viz.py and MemoryViz.js rely on. The page reads a pickle with these opcodes only. It finds the blocks
    of a segment by adding up their sizes, and the past by undoing entries one by one from the state at the end: a block that is
    not inside a segment at that time, or a free_requested of a block that is not there, ends in a TypeError and an empty page."""

    OPCODES = set("PROTO STOP FRAME MARK MEMOIZE BINGET LONG_BINGET EMPTY_DICT SETITEMS SETITEM EMPTY_LIST APPENDS APPEND "
                  "EMPTY_TUPLE TUPLE1 TUPLE2 TUPLE3 TUPLE BININT BININT1 BININT2 LONG1 BINUNICODE SHORT_BINUNICODE NONE "
                  "NEWTRUE NEWFALSE BINFLOAT".split())

    def __init__(self, out: bytes) -> None:
        names = set()
        for op, arg, _ in pickletools.genops(out):
            names.add(op.name)
            assert op.name != "PROTO" or arg == 4
            assert not isinstance(arg, int) or -1 << 63 <= arg < 1 << 63
            if isinstance(arg, str):
                arg.encode()  # the page decodes UTF-8
        assert names <= self.OPCODES, names - self.OPCODES
        self.whole = pickle.loads(out)
        self.segments: list[Event] = self.whole["segments"]
        self.traces: list[list[Event]] = self.whole["device_traces"]
        assert isinstance(self.whole["allocator_settings"], dict) and self.whole["external_annotations"] == []
        for seg in self.segments:
            self.check_segment(seg)
        for d, trace in enumerate(self.traces):
            self.check_trace(d, trace)

    def check_frames(self, o: Event) -> None:
        assert o["frames"], o
        for f in o["frames"]:
            assert type(f["filename"]) is str and type(f["line"]) is int and type(f["name"]) is str

    def check_segment(self, seg: Event) -> None:
        self.check_frames(seg)
        assert 0 <= seg["device"] < len(self.traces) and seg["stream"] == 0
        at = seg["address"]
        external = internal = allocated = 0
        for b in seg["blocks"]:
            self.check_frames(b)
            assert b["address"] == at and b["size"] > 0, "the blocks do not tile the segment"
            at += b["size"]
            if b["state"] == "active_allocated":
                assert 0 < b["requested_size"] <= b["size"]
                allocated += b["requested_size"]
                internal += b["size"] - b["requested_size"]
            else:
                assert b["state"] == "inactive" and b["requested_size"] == 0
                external += b["size"]
        assert at == seg["address"] + seg["total_size"] == seg["address"] + external + internal + allocated
        assert seg["allocated_size"] == seg["active_size"] == internal + allocated and seg["requested_size"] == allocated

    def check_trace(self, d: int, trace: list[Event]) -> None:
        segments = {s["address"]: s["total_size"] for s in self.segments if s["device"] == d}
        blocks = {b["address"]: b["requested_size"] for s in self.segments if s["device"] == d for b in s["blocks"]
                  if b["state"] == "active_allocated"}
        pending: Optional[Event] = None
        time_us = None
        for e in reversed(trace):
            self.check_frames(e)
            assert "category" not in e and e["stream"] == 0 and type(e["size"]) is int
            assert type(e["time_us"]) is int and (time_us is None or e["time_us"] <= time_us)
            time_us = e["time_us"]
            p, n = e.get("addr", 0), e["size"]
            if pending:
                assert (e["action"], p, n) == ("free_requested", pending["addr"], pending["size"]), "not a pair"
                assert p not in blocks
                blocks[p] = n
                assert any(s <= p and p + n <= s + m for s, m in segments.items()), "a block outside segments"
                pending = None
            elif e["action"] == "free_completed":
                pending = e
            elif e["action"] == "alloc":
                assert blocks.pop(p) == n, "an allocation of what is not there later"
            elif e["action"] == "segment_free":
                assert p not in segments
                segments[p] = n
            elif e["action"] == "segment_alloc":
                assert segments.pop(p) == n
                assert not any(p <= b < p + n for b in blocks), "blocks of a segment that is not there yet"
            elif e["action"] == "oom":
                assert type(e["device_free"]) is int and "addr" not in e
            else:
                assert e["action"] == "snapshot", e
        assert not pending
        self.before = getattr(self, "before", []) + [(segments, blocks)]

    def blocks(self, d: int = 0) -> dict[int, int]:
        return {b["address"]: b["requested_size"] for s in self.segments if s["device"] == d for b in s["blocks"]
                if b["state"] == "active_allocated"}

    def count(self, action: str, d: int = 0) -> int:
        return sum(e["action"] == action for e in self.traces[d])


class ToPytorch(ConvertCase):
    def snapshot(self, *args: str, status: int = 0) -> Snapshot:
        return Snapshot(self.convert("to-pytorch", *args, status=status))

    def test_state_and_history(self) -> None:
        for seed in range(5):
            run = Run(seed=seed)
            s = self.snapshot(self.write(run.events))
            self.assertEqual(s.blocks(), run.blocks[0])
            self.assertEqual({g["address"]: g["total_size"] for g in s.segments}, run.segments[0])
            self.assertEqual(s.before, [({}, {})])  # undone to the beginning nothing is left
            for action in ("alloc", "segment_alloc", "segment_free", "oom"):
                self.assertEqual(s.count(action), run.counts[action, 0])
            # Blocks that died with their context were never freed by the program, but are gone.
            self.assertEqual(s.count("free_completed"), run.counts["alloc", 0] - len(run.blocks[0]))
            self.assertGreater(s.count("free_completed"), run.counts["free_requested", 0])
            self.assertEqual(s.traces[0][-1]["action"], "snapshot")
            self.assertEqual(s.whole["allocator_settings"]["CUPOOL_FREE"], "auto")
            self.assertEqual(self.err, "")

    def test_what_the_library_wrote(self) -> None:
        s = self.snapshot(str(TRACES / "allocs.jsonl"))
        self.assertEqual((s.count("alloc"), s.count("free_completed"), s.count("oom")), (22, 17, 3))
        self.assertEqual(sum(g["total_size"] for g in s.segments), 20971520)

    def test_callers(self) -> None:
        """Innermost first, the rank last; what is freed has the rank alone, as nobody knows who freed it."""
        frame = {"t": 1, "e": "frame", "tid": 42}
        events = [header(), {**frame, "f": 3, "p": "0x10", "at": "liba.so+0x10 (f(int) (.part.0))"}, {**frame, "f": 4, "p": "0x20", "at": "app+0x20"},
                  ev(2, "segment_alloc", p=BASE, n=2 * MIB), ev(3, "alloc", p=BASE, n=512, f=[3, 4]), ev(4, "alloc", p=BASE + 512, n=512, f=[4, 9]),
                  ev(5, "alloc", p=BASE + 1024, n=512), ev(6, "free_requested", p=BASE, n=512), ev(6, "free_completed", p=BASE, n=512),
                  ev(7, "alloc", p=BASE, n=100, f=[0]), {**frame, "t": 8, "f": 9, "p": "0x30", "at": "?"}, ev(9, "end", dropped=0)]
        rank = ("app", "rank 0 (host a, pid 42)")
        a, b, c, unknown = ("liba.so", "f(int) (.part.0) +0x10"), ("app", "+0x20"), ("?", "?"), ("unknown", "?")
        path = self.write(events)
        s = self.snapshot(path)

        def frames(o: Event) -> list[tuple[str, str]]:
            return [(f["filename"], f["name"]) for f in o["frames"]]

        self.assertEqual([(e["action"], frames(e)) for e in s.traces[0]],
                         [("segment_alloc", [rank]), ("alloc", [a, b, rank]), ("alloc", [b, c, rank]), ("alloc", [rank]),
                          ("free_requested", [rank]), ("free_completed", [rank]), ("alloc", [unknown, rank]), ("snapshot", [rank])])
        self.assertEqual([frames(x) for x in s.segments[0]["blocks"]], [[unknown, rank], [b, c, rank], [rank], [rank]])
        # More stacks than are kept: those that came later have none. A deep one is cut.
        with mock.patch.multiple(to_pytorch, MOST_STACKS=2, DEEPEST=1):
            s = self.snapshot(path)
        self.assertEqual([frames(e) for e in s.traces[0] if e["action"] == "alloc"], [[a, rank], [rank], [rank], [rank]])
        # Of entries that were left out, what is not live needs no frames; the newest keep theirs.
        s = self.snapshot("--max-entries", "1", path)
        self.assertEqual([frames(e) for e in s.traces[0]], [[unknown, rank], [rank]])

    def test_callers_as_the_library_wrote_them(self) -> None:
        path = TRACES / "stacks.jsonl"
        events = [json.loads(x) for x in path.read_text().splitlines()]
        names = {e["f"]: e["at"] for e in of(events, "frame")}
        s = self.snapshot(str(path))
        got = [[f["filename"] + f["name"].rpartition(" ")[2] for f in e["frames"][:-1]] for e in s.traces[0] if e["action"] == "alloc"]
        self.assertEqual(got, [[names[f].partition(" ")[0] for f in e["f"]] for e in of(events, "alloc")])
        self.assertTrue(all(got))

    def test_times_are_of_the_wall_clock(self) -> None:
        s = self.snapshot(self.write(Run(t0_unix_ns=T0 + 123_000).events))
        first = of(Run().events, "segment_alloc")[0]
        self.assertEqual(s.traces[0][0]["time_us"], (T0 + 123_000 + first["t"]) // 1000)

    def test_segment_events_only(self) -> None:
        for events in (without_allocs(Run().events), without_allocs(good())):
            s = self.snapshot(self.write(events))
            self.assertTrue(s.segments)
            for seg in s.segments:
                block, = seg["blocks"]
                self.assertEqual((block["size"], block["state"]), (seg["total_size"], "active_allocated"))
            self.assertEqual(s.before, [({}, {})])
            self.assertEqual(s.count("alloc"), s.count("segment_alloc"))

    def test_newest_entries_are_kept(self) -> None:
        run = Run(devices=(0, 1))
        path = self.write(run.events)
        whole = self.snapshot(path)
        self.assertFalse(whole.whole["allocator_settings"]["trace_alloc_overflowed"])
        for most in (0, 1, 2, 7, 100):
            s = self.snapshot("--max-entries", str(most), path)
            self.assertEqual(s.segments, whole.segments)
            for d in (0, 1):
                self.assertEqual(s.traces[d], whole.traces[d][len(whole.traces[d]) - len(s.traces[d]):])
                free = s.count("free_completed", d)
                self.assertEqual(len(s.traces[d]) - free - 1, most)
                entries = len(whole.traces[d]) - 1 - whole.count("free_completed", d)
                self.assertIn(f"rank 0 device {d}: the oldest {entries - most} of {entries} entries were left out", self.err)
            self.assertTrue(s.whole["allocator_settings"]["trace_alloc_overflowed"])
        self.convert("to-pytorch", "--max-entries=-1", path, status=2)

    def test_devices_keep_their_numbers(self) -> None:
        run = Run(devices=(2, 5))
        s = self.snapshot(self.write(run.events))
        self.assertEqual([len(t) > 0 for t in s.traces], [False, False, True, False, False, True])
        self.assertEqual(s.blocks(5), run.blocks[5])
        # A number that no machine has is no reason for a list of that length.
        self.assertEqual(len(self.snapshot(self.write([header(), ev(1, "segment_alloc", p=BASE, n=MIB, d=1 << 60)])).traces), 1)

    def test_each_device_of_each_rank_is_a_device(self) -> None:
        s = self.snapshot(self.rank(1), self.rank(0, devices=(0, 1)))
        self.assertEqual([t[0]["frames"][0]["name"] for t in s.traces],
                         ["rank 0 (host a, pid 100)"] * 2 + ["rank 1 (host a, pid 101)"])
        self.assertEqual(s.blocks(2), Run(seed=2).blocks[0])
        self.assertIn("the viewer's device 2 is rank 1 device 0", self.err)
        self.assertEqual(s.whole["allocator_settings"]["device 2"], "rank 1 device 0")
        self.assertEqual(s.whole["allocator_settings"]["rank 1 CUPOOL_FREE"], "auto")

    def test_contradictions_do_not_reach_the_snapshot(self) -> None:
        start = good()[:5]
        for more in ([ev(230, "free_requested", p=BASE, n=512)],  # of nothing
                     [ev(230, "alloc", p=BASE + 512, n=100)],  # in another's place
                     [ev(230, "alloc", p=BASE + 2 * MIB, n=100)],  # in no segment
                     [ev(230, "alloc", p=BASE + 2 * MIB - 512, n=1000)],  # half outside
                     [ev(230, "segment_alloc", p=BASE + MIB, n=2 * MIB)],  # in another's place
                     [ev(230, "segment_free", p=BASE + MIB, n=MIB)],  # of nothing
                     [ev(230, "segment_free", p=BASE, n=2 * MIB)],  # with blocks in it
                     [ev(230, "segment_alloc", p=(1 << 64) - 512, n=512)]):  # more than fits
            s = self.snapshot(self.write([*start, *more, ev(500, "end", dropped=0)]), status=1)
            self.assertRegex(self.err, "1 event that contradict")
            self.assertEqual(s.before, [({}, {})])

    def test_not_to_a_terminal(self) -> None:
        main, side = pty.openpty()
        try:
            done = subprocess.run([sys.executable, str(TOOL), "to-pytorch", self.write(good())], stdout=side,
                                  stderr=subprocess.PIPE)
        finally:
            os.close(side)
            os.close(main)
        self.assertEqual(done.returncode, 2)
        self.assertRegex(done.stderr.decode(), "standard output is a terminal.*use -o FILE")


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
        self.assertIn("rank 1: killed or still running", self.err)

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
        for paths in ((a,), (a, a, a), ("-", "-")):
            self.convert("diff", *paths, status=2)


class Everywhere(ConvertCase):
    """What holds for every conversion."""

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
                self.assertIn("rank 0: killed or still running (no end line)", self.err)
                got = self.convert(command, self.write(cut))
                self.assertIn("rank 0: killed or still running (no end line, last line cut)", self.err)
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
        measure = ("import resource,subprocess,sys\n"
                   "c=subprocess.run([sys.executable,*sys.argv[1:]],stdout=subprocess.DEVNULL).returncode\n"
                   "print(c,resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)")
        used: dict[str, list[int]] = {c: [] for c in COMMANDS}
        for count in (20_000, 70_000):
            path = self.dir / f"{count}.jsonl"
            with path.open("w") as f:
                f.write(json.dumps(header()) + "\n" + json.dumps(ev(0, "segment_alloc", p=BASE, n=64 * MIB)) + "\n")
                for i in range(count // 2):
                    # Sixteen blocks live at a time, each address reused again and again.
                    p = hex(BASE + 512 + 4096 * (i % 16))
                    if i >= 16:
                        f.write(f'{{"t":{10000 * i},"e":"free_requested","tid":42,"d":0,"p":"{p}","n":4096}}\n')
                    f.write(f'{{"t":{10000 * i + 5},"e":"alloc","tid":42,"d":0,"p":"{p}","n":4096}}\n')
            for command in COMMANDS:
                more = ["--max-entries", "1000"] if command == "to-pytorch" else []
                done = subprocess.run([sys.executable, "-c", measure, str(TOOL), command, *more, str(path)], capture_output=True,
                                      text=True)
                status, kib = map(int, done.stdout.split())
                self.assertEqual(status, 0)
                used[command].append(kib)
        for command, (small, large) in used.items():
            self.assertLess(large, small + 4 * 1024, command)  # less than 84 bytes for each event more


class Damaged(unittest.TestCase):
    """Whatever is wrong with a trace, what is written is right in its format, or nothing is written."""

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


if __name__ == "__main__":
    unittest.main()
