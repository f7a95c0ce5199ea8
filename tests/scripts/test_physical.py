# SPDX-License-Identifier: Apache-2.0
"""Physical memory in traces: what check finds wrong, and what summary and to-perfetto make of it.

Not here: whether the library writes such events; tests/e2e/test_vmm.py holds that against what the driver says.
"""

import json
import re
import subprocess
import unittest
from typing import Any, Optional

import test_trace_fuzz
from made_traces import BASE, MIB, Event, ev, good, header
from made_traces import Case as Tool

LIB, APP = "libtorch_cuda.so+0x12", "app+0x34"
A, B, C = 0x10, 0x20, 0x30  # handles


def taker(t: int, e: str, h: Optional[int] = None, result: int = 0, **keys: Any) -> Event:
    more: Event = {} if h is None else {"h": hex(h)}
    return ev(t, e, us=1.5, result=result, **more, **keys)


def create(t: int, h: int, n: int, d: Optional[int] = 0, by: str = "program", at: str = APP, **keys: Any) -> Event:
    return taker(t, "mem_create", h, n=n, by=by, at=at, **({} if d is None else {"d": d}), **keys)


def mapping(t: int, p: int, n: int, h: int, offset: int = 0, **keys: Any) -> Event:
    return taker(t, "mem_map", h, p=p, n=n, offset=offset, **keys)


def expandable() -> list[Event]:
    """As PyTorch does it: addresses for all, memory for some of them at a time, handles kept; and NCCL, which keeps none."""
    return [
        header(),
        taker(10, "address_reserve", p=BASE, n=64 * MIB, by="program", at=LIB),
        create(20, A, 20 * MIB, at=LIB),
        mapping(21, BASE, 20 * MIB, A),
        create(30, B, 20 * MIB, at=LIB),
        mapping(31, BASE + 20 * MIB, 20 * MIB, B),
        taker(40, "address_reserve", p=BASE + 256 * MIB, n=2 * MIB, by="nccl", at="libnccl.so.2+0x9"),
        create(41, C, 2 * MIB, by="nccl", at="libnccl.so.2+0x8"),
        mapping(42, BASE + 256 * MIB, 2 * MIB, C),
        taker(43, "mem_release", C),
        taker(50, "mem_retain", C, p=BASE + 256 * MIB),
        taker(51, "mem_release", C),
        taker(60, "mem_unmap", p=BASE, n=20 * MIB),
        taker(61, "mem_release", A),
        create(70, 0, 1 << 40, at=LIB, result=2),
        taker(80, "mem_unmap", p=BASE + 256 * MIB, n=2 * MIB),
        taker(81, "address_free", p=BASE + 256 * MIB, n=2 * MIB),
        ev(90, "end", dropped=0),
    ]


class Case(Tool):
    def run_tool(self, *args: str, stdin: Optional[bytes] = None) -> "subprocess.CompletedProcess[str]":
        """In this process: there are many."""
        status, out, err = test_trace_fuzz.run(list(args), "utf-8")
        self.assertIsNotNone(status, err)
        return subprocess.CompletedProcess(args, status or 0, out, err)


class Check(Case):
    def wrong(self, events: list[Event], *expected: str) -> None:
        out = self.check(events, 1, *expected)
        self.assertEqual(out.count("jsonl:") - 1, len(expected), out)

    def test_right(self) -> None:
        self.check(expandable(), 0, "ok; complete")

    def test_an_event_that_is_missing(self) -> None:
        """Memory that it took is given up all the same, or used."""
        for t in (10, 20, 21, 30, 40, 41, 42, 50):
            self.check([e for e in expandable() if e.get("t") != t], 1)

    def test_handles(self) -> None:
        start = expandable()[:4]
        self.wrong([*start, taker(30, "mem_release", 0x99)], r":5: mem_release 0x99: nobody has made it")
        self.wrong([*start, taker(30, "mem_release", A), taker(31, "mem_release", A)], r":6: .*released already")
        self.wrong([*start, create(30, A, MIB)], r":5: mem_create 0x10: the handle of line 3 is still held")
        self.wrong([*start, taker(30, "mem_retain", 0x99, p=BASE)], r":5: mem_retain 0x99")

    def test_mappings(self) -> None:
        start = expandable()[:4]
        self.wrong([*start, mapping(30, BASE, MIB, A)], r"something is mapped at 0x7f0000000000 already")
        self.wrong([*start, mapping(30, BASE + 32 * MIB, MIB, B)], r"nobody has made the handle 0x20")
        self.wrong([*start, mapping(30, BASE + 63 * MIB, 2 * MIB, A)], r"not inside reserved addresses")
        self.wrong([*start, mapping(30, BASE + 32 * MIB, 2 * MIB, A, offset=19 * MIB)], r"the handle of line 3 has 20971520 bytes")
        for p, n in ((BASE, 10 * MIB), (BASE + MIB, 19 * MIB), (BASE + 32 * MIB, MIB), (BASE, 21 * MIB)):
            self.wrong([*start, taker(30, "mem_unmap", p=p, n=n)], r"not what was mapped there")
        self.wrong([*start, taker(30, "address_free", p=BASE, n=64 * MIB)], r"something is mapped there")
        self.wrong([*start, taker(30, "address_free", p=BASE, n=32 * MIB)], r"has not been reserved", r"something is mapped there")
        self.wrong([*start, taker(30, "address_reserve", p=BASE + MIB, n=MIB, by="program", at=APP)], r"reserved already")

    def test_several_at_a_time(self) -> None:
        """One call may unmap what several have mapped."""
        self.check([*expandable()[:6], taker(50, "mem_unmap", p=BASE, n=40 * MIB)], 0)

    def test_what_failed_changes_nothing(self) -> None:
        end = [taker(100, "mem_release", 0x99, 1), taker(101, "mem_unmap", p=1, n=1, result=1), mapping(102, 5, 1, 0x99, result=1),
               taker(103, "address_free", p=5, n=1, result=1), taker(104, "mem_retain", 0, 1, p=5), create(105, 0, 5, None, result=1)]
        self.check([*expandable()[:-1], *end], 0)

    def test_given_to_another_thread(self) -> None:
        """The line of what was given up comes after that of whoever got it next; its time does not."""
        self.check([*expandable()[:6], taker(60, "mem_unmap", p=BASE, n=20 * MIB), {**create(80, A, 2 * MIB), "tid": 43},
                    taker(70, "mem_release", A)], 0)

    def test_of_other_processes_and_multicast(self) -> None:
        """They have handles, and no memory that would be counted."""
        events = [header(), taker(10, "address_reserve", p=BASE, n=8 * MIB, by="nccl", at=APP),
                  taker(20, "mem_import", A, by="nccl", at=APP), mapping(21, BASE, 4 * MIB, A),
                  taker(30, "multicast_create", B, n=2 * MIB, by="nccl", at=APP), mapping(31, BASE + 4 * MIB, 2 * MIB, B),
                  create(40, C, 2 * MIB, None, by="nccl"), taker(41, "mem_import", C, by="nccl", at=APP), taker(50, "mem_release", C)]
        path = self.write(events)
        self.check(events, 0)
        host, = self.summary(path)["ranks"][0]["physical"]
        self.assertEqual((host["device"], host["now"], host["handles"]), (None, 2 * MIB, 1))
        self.assertIn("host: physical memory", self.run_tool("summary", path).stdout)

    def test_keys(self) -> None:
        for at, e in enumerate(expandable()[1:-1], 1):
            for key in e:
                if key in ("e", "d"):
                    continue
                events = expandable()
                del events[at][key]
                self.assertIn(f"{e['e']}: {key} is missing", self.check(events, 1))

    def test_cut_anywhere(self) -> None:
        whole = b"".join(json.dumps(e).encode() + b"\n" for e in expandable())
        for at in range(whole.index(b"\n") + 1, len(whole), 97):
            self.check(whole[:at], 0, "killed, still running, or its disk was full")


class Figures(Case):
    def test_summary(self) -> None:
        path = self.write(expandable())
        device, = self.summary(path)["ranks"][0]["physical"]
        torch, nccl = device.pop("callers")
        self.assertEqual(device, {"device": 0, "now": 20 * MIB, "peak": 42 * MIB, "handles": 1, "created": 3, "refused": 1})
        self.assertEqual(torch, {"by": "program", "object": "libtorch_cuda.so", "now": 20 * MIB, "peak": 40 * MIB, "handles": 1,
                                 "created": 2, "refused": 1})
        self.assertEqual(nccl, {"by": "nccl", "object": "libnccl.so.2", "now": 0, "peak": 2 * MIB, "handles": 0, "created": 1, "refused": 0})
        out = self.run_tool("summary", path).stdout
        self.assertRegex(out, r"rank 0 device 0: physical memory")
        self.assertRegex(out, r"program +libtorch_cuda.so +20.0 MiB +40.0 MiB +1 +2 +1")
        self.assertRegex(out, r"all +20.0 MiB +42.0 MiB")
        self.assertNotIn("no event on any device", out)

    def test_none(self) -> None:
        path = self.write(good())
        self.assertEqual(self.summary(path)["ranks"][0]["physical"], [])
        self.assertNotIn("physical", self.run_tool("summary", path).stdout)

    def test_perfetto(self) -> None:
        done = self.run_tool("to-perfetto", "--every=0", self.write(expandable()))
        self.assertEqual(done.returncode, 0, done.stderr)
        counted = [(e["ts"], e["args"]["held"]) for e in json.loads(done.stdout)["traceEvents"] if e["ph"] == "C"]
        self.assertEqual({e["name"] for e in json.loads(done.stdout)["traceEvents"] if e["ph"] == "C"}, {"device 0 physical"})
        self.assertEqual(counted, [(0.02, 20 * MIB), (0.03, 40 * MIB), (0.041, 42 * MIB), (0.061, 22 * MIB), (0.08, 20 * MIB)])

    def test_the_others_go_on(self) -> None:
        """Commands that make nothing of these events read the trace as if they were not there."""
        with_them = self.write([*good()[:-1], *({**e, "t": 400 + i} for i, e in enumerate(expandable()[1:-1])), ev(500, "end", dropped=0)])
        without = self.write([*good()[:-1], ev(500, "end", dropped=0)], "other.jsonl")
        for command in (["to-rmm"], ["to-pytorch"]):
            one, other = (self.run_tool(*command, p, "-o", str(self.dir / n)) for p, n in ((with_them, "1"), (without, "2")))
            self.assertEqual((one.returncode, other.returncode), (0, 0), one.stderr)
            self.assertEqual(*((self.dir / n).read_bytes().replace(b"other.jsonl", b"t.jsonl") for n in "12"))
        for command in (["plot", "-o", str(self.dir / "x.html")], ["merge"], ["to-csv"], ["top", "--once"]):
            done = self.run_tool(*command, with_them)
            self.assertEqual(done.returncode, 0, done.stderr)

    def test_page(self) -> None:
        """A curve of what is past the pool, without what the pool takes from NCCL; of a device that has no pool, too."""
        out = self.dir / "x.html"
        for by in ("cupool", "nccl"):
            events = [{**e, **({"by": by} if e.get("by") == "nccl" else {})} for e in expandable()]
            done = self.run_tool("plot", "-o", str(out), self.write(events))
            self.assertEqual(done.returncode, 0, done.stderr)
            track, = json.loads(re.search(r'<script[^>]*application/json[^>]*>(.*?)</script>', out.read_text(), re.S)[1])["tracks"]  # type: ignore[index]
            more = 2 * MIB if by == "nccl" else 0
            values = [(20, 20 * MIB), (30, 40 * MIB), *([(41, 42 * MIB)] if more else []), (61, 20 * MIB + more), *([(80, 20 * MIB)] if more else [])]
            self.assertEqual(list(zip(track["series"]["t"], track["series"]["past"]["last"])), values)
            self.assertEqual(track["peaks"]["past"], {"n": 40 * MIB + more, "t": 41 if more else 30})
        self.run_tool("plot", "-o", str(self.dir / "x.svg"), self.write(expandable()))
        self.assertIn("past the pool", (self.dir / "x.svg").read_text())

    def test_plot_of_nothing_else(self) -> None:
        done = self.run_tool("plot", "-o", str(self.dir / "x.svg"), self.write(expandable()))
        self.assertEqual(done.returncode, 0, done.stderr)
