# SPDX-License-Identifier: Apache-2.0
"""Tests of cupool-trace to-perfetto: the timeline is read the way Perfetto reads it."""

import collections
import json
import unittest
from typing import Any, cast
from unittest import mock

import test_trace_fuzz
from conversions import T0, ConvertCase, Run, of, without_allocs
from formats import Timeline
from made_traces import BASE, MIB, Event, ev, good, header
from plots import called

from cupool_trace import to_perfetto


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

    def test_who_had_most_at_the_peak(self) -> None:
        line = self.timeline(self.write(called()))
        peaks = [m for m in line.marks if "peak" in m["name"]]
        self.assertEqual([(m["ts"], m["name"], m["args"]) for m in peaks], [
            (0.4, "device 0: peak of live memory, 25.0 MiB", {"app+0x20": "16.0 MiB", "libx.so (make) < app+0x20": "8.0 MiB"})])

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

    def test_marks_of_auto_and_of_other_processes(self) -> None:
        events = [dict(header(), settings={"CUPOOL_FREE": "auto"}), *good()[1:]]
        events[-1:-1] = [ev(409, "ask", d=0, n=8 * MIB, asked=3, answered=2, given=4 * MIB, us=5.5)]
        names = [m["name"] for m in self.timeline(self.write(events)).marks]
        self.assertIn("ask 8.0 MiB", names)
        self.assertIn("policy auto", names)

    def test_ranges(self) -> None:
        """Ends without a beginning are left out, and where events are missing all ranges end."""
        def line(t: int, e: str, number: int = 0, text: str = "", tid: int = 7) -> Event:
            return {"t": t, "e": e, "tid": tid, "domain": "", "range": number, **({"text": text} if e == "range_begin" else {})}
        gap = {"t": 325, "e": "gap", "why": "rate", "since": 320, "segments": 0, "blocks": 0, "others": 4, "bytes": 99, "open": 0}
        events = [*good()[:-1], line(301, "range_end"), line(302, "range_begin", text="a"), line(303, "range_begin", text="b"),
                  line(304, "range_end"), line(305, "range_begin", 5, "c"), line(306, "range_end", 5, tid=8), line(307, "range_end", 6), gap,
                  line(330, "range_end"), good()[-1]]
        written = json.loads(self.convert("to-perfetto", self.write(events)))["traceEvents"]
        put = [(e["ph"], e["name"], round(1000 * e["ts"])) for e in written if e.get("cat") == "NVTX"]
        self.assertEqual(put, [("B", "a", 302), ("B", "b", 303), ("E", "", 304), ("b", "c", 305), ("e", "c", 306), ("E", "", 325)])

    def test_registrations(self) -> None:
        """Memory registered with two communicators is counted once, until neither has it, and a communicator's registrations end with it."""
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
        self.assertRegex(line.marks[-1]["name"], "killed, still running, or its disk was full")
        self.assertEqual(line.marks[-1]["ts"], 0.3)
        self.assertIn("rank 0: killed, still running, or its disk was full", self.err)

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
        self.assertEqual(list(got.other["left out"].values()), [{"slices": 1700, "marks": 1901, "ranges": 0}])

    def test_every_must_be_a_number_of_microseconds(self) -> None:
        for wrong in ("-1", "x", "nan", "inf"):
            self.convert("to-perfetto", f"--every={wrong}", self.write(good()), status=2)
