# SPDX-License-Identifier: Apache-2.0
"""Tests of what cupool-trace shows of pinned host memory, on small traces written here."""

import json
import re
import unittest

from made_traces import BASE, MIB, Case, Event, ev, header, stats

from cupool_trace import schema

HOST = 0x7E0000000000


def counters(t: int, **more: int) -> Event:
    return ev(t, "host_stats", **{**dict.fromkeys(schema.HOST_STATS, 0), **more})


def pinned() -> "list[Event]":
    """Two segments of device 0 and one of device 1; one goes back, and its address is taken anew while the driver's free is under
    way: the line of that free comes last."""
    return [
        header(),
        ev(50, "device", d=0, name="GPU", uuid="1"),
        ev(100, "segment_alloc", p=BASE, n=2 * MIB),
        ev(200, "host_alloc", p=HOST, n=2 * MIB, us=400),
        ev(300, "host_alloc", p=HOST + 4 * MIB, n=8 * MIB, us=1500.5),
        ev(400, "host_alloc", p=HOST + 64 * MIB, n=MIB, us=100, d=1),
        ev(600, "host_alloc", p=HOST + 4 * MIB, n=4 * MIB, us=1000),
        ev(500, "host_free", p=HOST + 4 * MIB, n=8 * MIB, us=0.2, tid=43),
        ev(650, "host_free", p=HOST + 64 * MIB, n=MIB, us=0, why="lost", d=1),
        stats(700, held=2 * MIB, peak_held=2 * MIB, segments_alloc=1, d=0),
        stats(700, d=1),
        counters(700, allocs=20, hits=16, misses=4, held=6 * MIB, peak_held=11 * MIB, peak_live=10 * MIB, live=6 * MIB,
                 segments_alloc=4, segments_free=1, bound=3),
        ev(710, "end", dropped=0),
    ]


class Pinned(Case):
    def figures(self, events: "list[Event]") -> Event:
        rank: Event = json.loads(self.run_tool("summary", "--json", self.write(events)).stdout)["ranks"][0]
        return rank["pinned"]

    def test_summary(self) -> None:
        f = self.figures(pinned())
        expected = {"requests": 20, "hits": 16, "hit_rate": 0.8, "peak_held": 11 * MIB, "held_at_end": 6 * MIB, "peak_live": 10 * MIB,
                    "driver_calls": 5, "driver_us": 3000.7, "segments_alloc": 4, "segments_free": 2, "bound": 3}
        self.assertEqual({k: f[k] for k in expected}, expected)
        out = self.run_tool("summary", self.write(pinned())).stdout
        self.assertRegex(out, re.compile(r"^rank 0: pinned memory: 20 requests, 80.0% hits; peak live 10.0 MiB, peak held 11.0 MiB, "
                                         r"6.0 MiB held at the end; 5 driver calls, 3.0\d? ms in them$", re.M))
        self.assertIn("rank 0: pinned memory: 3 requests came to the bound", out)
        # Devices hold device memory alone.
        self.assertRegex(out, re.compile(r"^0 +0 +cuda .* 2.0 MiB ", re.M))

    def test_summary_of_a_job(self) -> None:
        other = [header(rank=1), *pinned()[1:]]
        other[-1:-1] = [ev(705, "host_oom", b="host", n=MIB, held=0, live=0, idle=0, waiting=0, why="driver")]
        out = self.run_tool("summary", self.write(pinned(), "a.jsonl"), self.write(other, "b.jsonl")).stdout
        self.assertRegex(out, re.compile(r"^pinned memory: 40 requests in 2 processes, peak held 11.0 MiB at most; 10 driver calls, 6.0\d? ms in them$", re.M))
        self.assertIn("out of pinned memory: rank 1\n", out)
        without = [e for e in pinned() if "host" not in e.get("e", "")]
        self.assertNotIn("pinned", self.run_tool("summary", self.write(without, "a.jsonl"), self.write([header(rank=1), *without[1:]], "b.jsonl")).stdout)

    def test_summary_of_a_killed_process(self) -> None:
        events = [e for e in pinned() if e.get("e") not in ("stats", "host_stats", "end")]
        f = self.figures(events)
        self.assertEqual((f["requests"], f["peak_held"], f["held_at_end"]), (None, 11 * MIB, 6 * MIB))
        self.assertIn("requests and hits are unknown, peak held 11.0 MiB", self.run_tool("summary", self.write(events)).stdout)

    def test_summary_without_any(self) -> None:
        events = [e for e in pinned() if "host" not in e.get("e", "")]
        self.assertIsNone(self.figures(events))
        self.assertNotIn("pinned", self.run_tool("summary", self.write(events)).stdout)

    def test_out_of_memory(self) -> None:
        events = pinned()
        events[-1:-1] = [ev(700 + i, "host_oom", b="host", n=64 * MIB, held=6 * MIB, live=2 * MIB, idle=4 * MIB, waiting=0, why="driver")
                         for i in range(7)]
        f = self.figures(events)
        self.assertEqual((f["oom"], f["oom_moments"][0]["n"]), (7, 64 * MIB))
        out = self.run_tool("summary", self.write(events)).stdout
        self.assertEqual(out.count("rank 0: out of pinned memory at 0.000 s: 64.0 MiB asked for, 6.0 MiB held, 2.0 MiB live, 4.0 MiB idle; why: the driver has no more\n"), 5)
        self.assertIn("rank 0: out of pinned memory 7 times in all\n", out)

    def test_check(self) -> None:
        def said(events: "list[Event]") -> str:
            return self.run_tool("check", self.write(events)).stdout

        self.assertIn("t.jsonl: ok; ", said(pinned()))
        self.assertNotIn("warning", said(pinned()))
        for change, message in (
                ({6: {"t": 450}}, "host_alloc 0x7e0000400000 4194304: overlaps the live segment"),
                ({7: {"n": MIB}}, "host_free 0x7e0000400000 1048576: the segment of line 5 has 8388608 bytes"),
                ({7: {"p": "0x1000"}}, "host_free 0x1000 8388608: no live segment starts there"),
                ({11: {"segments_alloc": 5}}, "warning: pinned memory: host_stats says segments_alloc 5, 4 events were seen"),
                ({11: {"segments_free": 2}}, "warning: pinned memory: host_stats says segments_free 2, 2 events were seen"),
                ({3: {"us": "1"}}, "us")):
            events = pinned()
            for i, more in change.items():
                events[i].update(more)
            self.assertIn(message, said(events))

    def test_after_events_were_left_out(self) -> None:
        """The event says what is held; addresses that are not known are no problem."""
        events = pinned()[:5] + [
            ev(500, "gap", why="rate", since=400, segments=7, blocks=0, others=0, bytes=900, open=0),
            ev(500, "held", d=0, b="cuda", n=2 * MIB, segments=1), ev(500, "host_held", d=0, b="host", n=32 * MIB, segments=3),
            ev(600, "host_free", p=HOST, n=2 * MIB, us=5), ev(610, "host_alloc", p=HOST + 4 * MIB, n=MIB, us=5), ev(710, "end", dropped=0)]
        f = self.figures(events)
        self.assertEqual((f["held_at_end"], f["peak_held"]), (31 * MIB, 32 * MIB))
        self.assertNotIn("problem", self.run_tool("check", self.write(events)).stdout)

    def test_picture(self) -> None:
        """A line of its own."""
        for events, there in ((pinned(), True), ([e for e in pinned() if "host" not in e.get("e", "")], False)):
            out = self.dir / "out.svg"
            self.run_tool("plot", self.write(events), "-o", str(out))
            self.assertEqual('class="host"' in out.read_text(), there)
            self.assertEqual("pinned host memory" in out.read_text(), there)

    def test_page(self) -> None:
        out = self.dir / "out.html"
        self.run_tool("plot", self.write(pinned()), "-o", str(out))
        data = json.loads(re.search(r'<script[^>]*application/json[^>]*>(.*?)</script>', out.read_text(), re.S)[1])  # type: ignore[index]
        first, second = data["tracks"]
        self.assertEqual(list(zip(first["series"]["t"], first["series"]["host"]["last"])),
                         [(100, 0), (200, 2 * MIB), (300, 10 * MIB), (500, 2 * MIB), (600, 6 * MIB)])
        self.assertEqual(first["peaks"]["host"], {"n": 10 * MIB, "t": 300})
        self.assertEqual(second["series"]["host"]["last"], [MIB, 0])
        self.assertEqual(first["series"]["held"]["last"][-1], 2 * MIB)

    def test_timeline(self) -> None:
        out = self.dir / "out.json"
        self.run_tool("to-perfetto", "--every", "0", self.write(pinned()), "-o", str(out))
        found = json.loads(out.read_text())["traceEvents"]
        values = [(e["ts"], *e["args"].values()) for e in found if e["ph"] == "C" and "pinned host memory" in e["name"] and "0" in e["name"]]
        self.assertEqual([v for _, v, *_ in values], [2 * MIB, 10 * MIB, 2 * MIB, 6 * MIB])
        slices = [e for e in found if e["ph"] == "X" and e["name"].startswith("host_free 8.0")]
        self.assertEqual([(e["ts"], e["dur"]) for e in slices], [(0.5, 0.2)])
