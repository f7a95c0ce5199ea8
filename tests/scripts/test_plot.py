# SPDX-License-Identifier: Apache-2.0
"""Tests of cupool-trace plot: what is in the page, SVG and PNG, and what the page does in a browser.

The figures are compared with ones counted here, not with those of the replay. The browser's part needs Chromium and is skipped
without it. Not here: whether it looks good.
"""
from __future__ import annotations

import contextlib
import copy
import gzip
import html.parser
import io
import json
import random
import re
import struct
import subprocess
import sys
import unittest
import xml.etree.ElementTree
import zlib
from pathlib import Path
from typing import Any, Iterator, Optional
from unittest import mock

import chromium
import test_trace_fuzz
from made_traces import BASE, MIB, ROOT, Case, Event, ev, good, header, text

sys.path.insert(0, str(ROOT / "scripts"))
from cupool_trace import cli, picture, plot, record  # noqa: E402

HOSTILE = "\x07 \ud800 </script><script>alert(1)</script><!-- &amp; \u2028 '\""


class Page(html.parser.HTMLParser):
    """What a browser would load, run or show of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, Optional[str]]]] = []
        self.scripts: list[str] = []
        self._script = False
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: "list[tuple[str, Optional[str]]]") -> None:
        self.tags.append((tag, dict(attrs)))
        self._script = tag == "script"
        if self._script:
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._script = False

    def handle_data(self, data: str) -> None:
        if self._script:
            self.scripts[-1] += data


def decode_png(content: bytes) -> tuple[int, int, bytes]:
    """Width, height, RGB."""
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    at, packed, size = 8, b"", (0, 0)
    while at < len(content):
        length, name = struct.unpack_from(">I4s", content, at)
        data = content[at + 8:at + 8 + length]
        assert struct.unpack_from(">I", content, at + 8 + length)[0] == zlib.crc32(name + data), name
        if name == b"IHDR":
            size = struct.unpack_from(">II", data)
            assert data[8:] == b"\x08\x02\0\0\0"
        elif name == b"IDAT":
            packed += data
        at += 12 + length
    assert name == b"IEND"
    raw, (w, h) = zlib.decompress(packed), size
    assert len(raw) == h * (3 * w + 1)
    rows = [raw[i * (3 * w + 1):(i + 1) * (3 * w + 1)] for i in range(h)]
    assert all(row[0] == 0 for row in rows)
    return w, h, b"".join(row[1:] for row in rows)


def life(seed: int, steps: int, spike: bool = False) -> list[Event]:
    """A program that allocates and frees at random in segments that come and go."""
    r = random.Random(seed)
    events, t = [header()], 1000
    segments: dict[int, int] = {}
    blocks: dict[int, int] = {}
    for step in range(steps):
        t += r.randint(1, 5000)
        what = r.random()
        if spike and step == steps // 2:
            p = BASE + (1 << 40)
            events += [ev(t, "segment_alloc", p=p, n=640 * MIB), ev(t + 1, "alloc", p=p, n=600 * MIB + 512),
                       ev(t + 2, "free_requested", p=p, n=600 * MIB + 512), ev(t + 3, "segment_free", p=p, n=640 * MIB)]
            t += 3
        if what < 0.02 or not segments:
            p = BASE + r.randrange(1 << 12) * 8 * MIB
            if p not in segments:
                segments[p] = r.randint(1, 4) * 2 * MIB
                events.append(ev(t, "segment_alloc", p=p, n=segments[p]))
        elif what < 0.03:
            p = r.choice(sorted(segments))
            if not any(p <= b < p + segments[p] for b in blocks):
                events.append(ev(t, "segment_free", p=p, n=segments.pop(p)))
        elif what < 0.55:
            seg = r.choice(sorted(segments))
            p = seg + r.randrange(segments[seg] // 65536) * 65536
            if p not in blocks:
                blocks[p] = r.randint(1, 65536)
                events.append(ev(t, "alloc", p=p, n=blocks[p]))
        elif blocks:
            p = r.choice(list(blocks))
            n = blocks.pop(p)
            events += [ev(t, "free_requested", p=p, n=n), ev(t, "free_completed", p=p, n=n)]
    return [*events, ev(t + 10, "end", dropped=0)]


def walk(events: list[Event]) -> Iterator[tuple[int, int, int]]:
    """Time, held and live after every event that changes one."""
    held = live = 0
    for e in events[1:]:
        sign = {"segment_alloc": 1, "segment_free": -1, "alloc": 1, "free_requested": -1}.get(e["e"])
        if sign is None:
            continue
        if e["e"].startswith("segment"):
            held += sign * e["n"]
        else:
            live += sign * -(-e["n"] // 512) * 512
        yield e["t"], held, live


class PlotCase(Case):
    def plot(self, *paths: str, status: int = 0, options: "tuple[str, ...]" = (), kind: str = "html") -> Path:
        out = self.dir / f"out.{kind}"
        done = self.run_tool("plot", *paths, "-o", str(out), *options)
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        return out

    def data_of(self, out: Path) -> Event:
        page = Page(out.read_text(encoding="ascii"))
        data: Event = json.loads(page.scripts[0])
        return data

    def data(self, events: "list[Event] | bytes", **more: Any) -> Event:
        return self.data_of(self.plot(self.write(events), **more))

    def small(self, events: list[Event], points: int = 100, segments: int = 100, blocks: int = 100, marks: int = 20) -> Event:
        """As if a page could hold only so much. In process, to set that."""
        out = self.dir / "small.html"
        with mock.patch.multiple(plot, POINTS=(points, points), SEGMENTS=(segments, segments), BLOCKS=(blocks, blocks), MARKS=(marks, marks)), \
                contextlib.redirect_stdout(io.StringIO()):
            self.assertEqual(cli.main(["plot", self.write(events), "-o", str(out)]), 0)
        return self.data_of(out)


def called() -> list[Event]:
    """Blocks whose callers are known, and one whose is not. Most is live from 400 on."""
    return [header(), {"t": 1, "e": "frame", "tid": 42, "f": 3, "p": "0x10", "at": "libx.so+0x10 (make)"},
            {"t": 2, "e": "frame", "tid": 42, "f": 4, "p": "0x20", "at": "app+0x20"},
            ev(100, "segment_alloc", p=BASE, n=64 * MIB), ev(200, "alloc", p=BASE, n=8 * MIB, f=[3, 4]),
            ev(300, "alloc", p=BASE + 16 * MIB, n=16 * MIB, f=[4]), ev(400, "alloc", p=BASE + 32 * MIB, n=MIB),
            ev(700, "free_requested", p=BASE + 16 * MIB, n=16 * MIB), ev(1000, "end", dropped=0)]


def outgrown() -> list[Event]:
    """2 MiB are held and registered, and from 600 to 1000 6 MiB more of the program's own are registered."""
    comm = {"d": 0, "comm": "0x1"}
    own = {**comm, "p": BASE + 64 * MIB, "n": 6 * MIB, "us": 1, "ok": 1}
    return [header(), ev(50, "comm_init", **comm, rank=0, ranks=1, nccl=22809), ev(100, "segment_alloc", p=BASE, n=2 * MIB),
            ev(200, "register", **{**own, "p": BASE, "n": 2 * MIB}), ev(600, "register", **own), ev(1000, "deregister", **own),
            ev(1200, "end", dropped=0)]


def column(series: Event, name: str, which: str) -> list[int]:
    values: list[int] = series[name].get(which, series[name]["last"])
    return values


class Data(PlotCase):
    def test_registered(self) -> None:
        """A curve of its own where there is something to show, and none elsewhere."""
        at = {"p": BASE, "n": 2 * MIB, "us": 1, "ok": 1, "d": 0, "comm": "0x1"}
        for allocs in ("segment,alloc", "segment"):
            events = [header(events=allocs), ev(50, "comm_init", d=0, comm="0x1", rank=0, ranks=1, nccl=22809),
                      ev(100, "segment_alloc", p=BASE, n=2 * MIB), ev(200, "register", **at), ev(300, "deregister", **{**at, "ok": 0}),
                      ev(400, "deregister", **at), ev(500, "register", **at), ev(600, "comm_destroy", d=0, comm="0x1", ok=0), ev(700, "end", dropped=0)]
            track, = self.data(events)["tracks"]
            self.assertEqual(list(zip(track["series"]["t"], track["series"]["registered"]["last"])),
                             [(100, 0), (200, 2 * MIB), (300, 2 * MIB), (400, 0), (500, 2 * MIB), (600, 0)])
            self.assertEqual(track["peaks"]["registered"], {"n": 2 * MIB, "t": 200})
        track, = self.data(called())["tracks"]
        self.assertNotIn("registered", {*track["series"], *track["peaks"]})

    def test_registrations_of_a_segment(self) -> None:
        """With whom and when; a communicator's end is that of its registrations, and of very many some are only counted."""
        one, two = ({"d": 0, "comm": comm} for comm in ("0x1", "0x2"))
        at = {"p": BASE, "n": 2 * MIB, "us": 1, "ok": 1}
        events = [header(), ev(50, "comm_init", **one, rank=1, ranks=2, nccl=22809), ev(51, "comm_init", **two, rank=0, ranks=4, nccl=22809),
                  ev(100, "segment_alloc", p=BASE, n=2 * MIB), ev(110, "segment_alloc", p=BASE + 4 * MIB, n=2 * MIB),
                  ev(200, "register", **one, **at), ev(210, "register", **two, **at), ev(220, "register", **two, **{**at, "p": BASE + 4 * MIB, "ok": 0}),
                  ev(230, "register", **two, **{**at, "p": BASE + 64 * MIB}),
                  ev(300, "deregister", **one, **at), ev(400, "comm_destroy", **two, ok=1), ev(500, "end", dropped=0)]
        self.assertEqual(self.data(events)["tracks"][0]["segments"]["registered"], {
            "0": {"of": [["0x1 (rank 1 of 2)", 200, 300], ["0x2 (rank 0 of 4)", 210, 400]], "others": 0}})
        many = [e for i in range(10) for e in (ev(50, "comm_init", d=0, comm=hex(i), rank=0, ranks=1, nccl=1), ev(50, "register", d=0, comm=hex(i), **at))]
        data = self.data([header(), ev(10, "segment_alloc", p=BASE, n=2 * MIB), *many])
        known = data["tracks"][0]["segments"]["registered"]["0"]
        self.assertEqual((len(known["of"]), known["of"][0][1:], known["others"]), (8, [50, None], 2))

    def test_every_value_to_the_byte(self) -> None:
        events = life(1, 3000)
        track = self.data(events)["tracks"][0]
        series = track["series"]
        self.assertEqual(series["width_ns"], 1)
        self.assertEqual(track["merged"], [])
        expected: dict[int, tuple[int, int]] = {t: (held, live) for t, held, live in walk(events)}
        self.assertEqual(series["t"], list(expected))
        self.assertEqual(list(zip(series["held"]["last"], series["live"]["last"])), list(expected.values()))
        self.assertEqual(series["cached"]["last"], [held - live for held, live in expected.values()])
        self.assertEqual(track["peaks"]["held"]["n"], max(h for h, _ in expected.values()))
        self.assertEqual(track["peaks"]["live"]["n"], max(v for _, v in expected.values()))
        self.assertEqual(expected[track["peaks"]["live"]["t"]][1], track["peaks"]["live"]["n"])

    def test_agrees_with_the_counters(self) -> None:
        track = self.data(good())["tracks"][0]
        s = good()[-2]
        self.assertEqual(max(column(track["series"], "held", "max")), s["peak_held"])
        self.assertEqual(max(column(track["series"], "live", "max")), s["peak_live"])
        self.assertEqual(track["series"]["held"]["last"][-1], s["held"])
        self.assertEqual(track["series"]["live"]["last"][-1], s["live"])
        self.assertEqual((track["peaks"]["held"], track["peaks"]["live"]["t"]), ({"n": 66 * MIB, "t": 250}, 260))

    def test_segments_and_blocks(self) -> None:
        track = self.data(good())["tracks"][0]
        seg = track["segments"]
        self.assertEqual([(seg["t0"][i], seg["t1"][i], seg["n"][i], seg["us"][i]) for i in range(2)],
                         [(200, None, 2 * MIB, 100), (250, 290, 64 * MIB, 250.5)])
        where = [int(track["regions"][r][0], 16) + o for r, o in zip(seg["region"], seg["offset"])]
        self.assertEqual(where, [BASE, BASE + 64 * MIB])
        self.assertEqual(len(track["regions"]), 2)  # they lie apart
        blk = track["blocks"]
        self.assertEqual(list(zip(blk["t0"], blk["t1"], blk["offset"], blk["n"])),
                         [(210, 230, 512, 1000), (220, None, 1536, 512), (240, None, 512, 1024), (260, 270, 0, 64 * MIB)])

    def test_callers(self) -> None:
        track = self.data(called())["tracks"][0]
        blk = track["blocks"]
        self.assertEqual([None if c is None else blk["callers"][c] for c in blk["caller"]], ["libx.so (make)", "app+0x20", None])
        self.assertEqual([c["caller"] for c in track["figures"]["callers"]], ["app+0x20", "libx.so (make)"])
        self.assertEqual([[blk["frames"][f] for f in stack] for stack in blk["stacks"]], [["app+0x20"], ["libx.so (make)", "app+0x20"]])
        self.assertNotIn("callers", self.data(good())["tracks"][0]["blocks"])

    def test_marks(self) -> None:
        marks = self.data(good())["tracks"][0]["marks"]
        self.assertEqual([(t, kind, count) for t, kind, count, _ in marks],
                         [(100, "policy", 1), (280, "ipc", 1), (291, "trim", 1), (300, "oom", 1), (410, "end", 1)])
        self.assertIn("900.0 MiB asked for, 2.0 MiB held", marks[3][3])
        self.assertIn("refused", marks[1][3])

    def test_segments_only(self) -> None:
        events = [e for e in good() if e.get("e") not in ("alloc", "free_requested", "free_completed")]
        events[0]["events"] = "segment"
        track = self.data(events)["tracks"][0]
        self.assertEqual(set(track["series"]), {"width_ns", "t", "held"})
        self.assertEqual(set(track["peaks"]), {"held"})

    def test_address_beyond_what_javascript_counts(self) -> None:
        p = (1 << 63) + 512 * 1001
        track = self.data([header(), ev(1, "segment_alloc", p=p, n=2 * MIB), ev(2, "end", dropped=0)])["tracks"][0]
        self.assertEqual(track["regions"], [[hex(p), 2 * MIB]])
        self.assertEqual(track["segments"]["offset"], [0])

    def test_context_died(self) -> None:
        events = good()
        events[12]["why"] = "context"
        self.assertEqual(self.data(events)["tracks"][0]["segments"]["why"], {"1": "context"})

    def test_ranks_and_devices_and_their_clocks(self) -> None:
        second = copy.deepcopy(good())
        second[0].update(rank=1, pid=43, t0_unix_ns=second[0]["t0_unix_ns"] + 5000)
        second[1:1] = [{**e, "d": 1, "tid": 43} if "d" in e else e for e in good()[1:-1]]
        data = self.data_of(self.plot(self.write(second, "b"), self.write(good(), "a")))
        self.assertEqual([(t["process"], t["device"]) for t in data["tracks"]], [(0, 0), (1, 0), (1, 1)])
        self.assertEqual([p["offset_ns"] for p in data["processes"]], [0, 5000])

    def test_killed_cut_gzip(self) -> None:
        whole = text(good()[:9])
        for content in (whole[:-20], gzip.compress(whole)[:-12]):
            data = self.data(content)
            self.assertFalse(data["processes"][0]["complete"])
            self.assertEqual(data["tracks"][0]["marks"][-1][1], "killed")
        self.assertEqual(len(self.data(gzip.compress(text(good())))["tracks"][0]["segments"]["n"]), 2)

    def test_window(self) -> None:
        track = self.data(good(), options=("--from", "0.000000255", "--to", "0.000000275"))["tracks"][0]
        self.assertEqual(track["series"]["t"], [255, 260, 270])
        # What was there before counts; what was gone by then, or came later, is not drawn.
        self.assertEqual(track["series"]["held"]["last"], [66 * MIB] * 3)
        self.assertEqual(track["blocks"]["t0"], [220, 240, 260])
        self.assertEqual(track["marks"], [])
        empty = self.data(good(), options=("--from", "5"))["tracks"][0]
        self.assertEqual((empty["series"]["t"], empty["series"]["held"]["last"]), ([5 * 10**9], [2 * MIB]))

    def test_nothing(self) -> None:
        self.assertEqual(self.data([header(None)])["tracks"], [])
        for kind in ("svg", "png"):
            self.assertGreater(len(self.plot(self.write([header(None)]), kind=kind).read_bytes()), 100)

    def test_problems(self) -> None:
        self.assertEqual(self.data(good()[1:], status=1)["processes"][0]["problems"], 1)


class Reduced(PlotCase):
    def test_peaks_are_kept(self) -> None:
        events = life(2, 6000, spike=True)
        values = list(walk(events))
        for points in (64, 100, 1000):
            track = self.small(events, points=points)["tracks"][0]
            series = track["series"]
            self.assertLessEqual(len(series["t"]), points)
            self.assertGreater(series["width_ns"], 1)
            for name, of in (("held", [h for _, h, _ in values]), ("live", [v for _, _, v in values]), ("cached", [h - v for _, h, v in values])):
                self.assertEqual(max(column(series, name, "max")), max(of), name)
                self.assertEqual(min(column(series, name, "min")), min(of), name)
                self.assertEqual(column(series, name, "last")[-1], of[-1])
                self.assertEqual(track["peaks"][name]["n"], max(of))

    def test_every_value_lies_in_its_bucket(self) -> None:
        events = life(3, 4000)
        series = self.small(events, points=150)["tracks"][0]["series"]
        index, width = 0, series["width_ns"]
        for t, held, live in walk(events):
            while index + 1 < len(series["t"]) and series["t"][index + 1] <= t:
                index += 1
            self.assertEqual(t // width, series["t"][index] // width)
            for name, value in (("held", held), ("live", live)):
                self.assertLessEqual(column(series, name, "min")[index], value)
                self.assertGreaterEqual(column(series, name, "max")[index], value)

    def test_largest_segments_are_exact(self) -> None:
        r = random.Random(4)
        sizes = [r.randint(1, 1 << 20) * 512 for _ in range(2000)]
        events = [header()]
        for i, n in enumerate(sizes):
            events += [ev(100 * i, "segment_alloc", p=BASE + (i % 7 << 36), n=n), ev(100 * i + 50, "segment_free", p=BASE + (i % 7 << 36), n=n)]
        track = self.small([*events, ev(10**6, "end", dropped=0)], segments=200)["tracks"][0]
        self.assertEqual(sorted(track["segments"]["n"]), sorted(sizes)[-200:])
        merged = track["merged_segments"]
        self.assertEqual((sum(m[5] for m in merged), sum(m[6] for m in merged)), (1800, sum(sorted(sizes)[:-200])))
        self.assertEqual(max(m[7] for m in merged), sorted(sizes)[-201])
        self.assertLessEqual(len(merged), 40)
        self.assertIn("segments: the 200 largest are exact, 1800 others merged", track["merged"][1])

    def test_what_was_merged_is_said(self) -> None:
        events = life(5, 5000)
        for i in range(100):
            events.insert(-1, ev(events[-1]["t"] - 1, "oom", n=i + 1, held=0, live=0, tid=1000 + i))
            events.insert(-1, ev(5 + 1000 * i, "trim", n=1, why="decay", tid=2000 + i))
        track = self.small(events)["tracks"][0]
        said = "\n".join(track["merged"])
        for pattern in (r"curves: least and greatest value of every \d", r"blocks: the 100 largest .* are exact, \d+ others merged into \d+ area", "trim: events within"):
            self.assertRegex(said, pattern)
        marks = [m for m in track["marks"] if m[1] == "oom"]
        self.assertEqual([m[2] for m in marks], [100])
        self.assertIn("100 B asked for", marks[0][3])
        blocks = sum(1 for e in events if e.get("e") == "alloc")
        self.assertEqual(len(track["blocks"]["n"]) + sum(m[5] for m in track["merged_blocks"]), blocks)

    def test_page_is_bounded(self) -> None:
        """In bytes, whatever is in it, and what was merged for that is said; no peak is lost."""
        out = self.dir / "out.html"
        path = self.write(life(12, 4000, spike=True))
        whole = self.data_of(self.plot(path))["tracks"][0]
        self.assertEqual(whole["merged"], [])
        empty = len(plot.template())
        sizes = []
        for most in (out.stat().st_size, out.stat().st_size - 1, empty + 60_000, 1):  # the last one cannot be
            with mock.patch.object(plot, "PAGE", most), contextlib.redirect_stdout(io.StringIO()):
                self.assertEqual(cli.main(["plot", path, "-o", str(out)]), 0)
            sizes.append(out.stat().st_size)
            self.assertTrue(sizes[-1] <= most or most == 1)
            track = self.data_of(out)["tracks"][0]
            self.assertEqual((track["peaks"], len(track["merged"]) > 0), (whole["peaks"], most < sizes[0]))
            self.assertEqual(max(column(track["series"], "live", "max")), whole["peaks"]["live"]["n"])
        self.assertEqual(sizes, sorted(sizes, reverse=True))
        self.assertGreater(sizes[1], sizes[0] * 2 // 3)  # no more is merged than was asked for
        self.assertGreater(sizes[2], empty + 30_000)

    def test_long_texts_are_cut(self) -> None:
        events = called()
        events[2]["at"] = "app+0x20 (" + "x" * 100_000 + ")"
        events[3:3] = [ev(3 + i, "policy", free="strict", why="y" * 100_000) for i in range(3)]
        out = self.plot(self.write(events))
        track = self.data_of(out)["tracks"][0]
        for name in (track["blocks"]["callers"][0], track["figures"]["callers"][0]["caller"]):
            self.assertEqual(name[:10], "app (xxxxx")
        self.assertLess(out.stat().st_size, len(plot.template()) + 10_000)

    def test_time_that_goes_back(self) -> None:
        thin = record.Thinned(10, record.merge_marks)
        for t in (100, 50, 200):
            thin.add([t, 1, t, ""])
        self.assertEqual(thin.items, [[100, 2, 100, ""], [200, 1, 200, ""]])

    def test_memory_does_not_grow_with_the_trace(self) -> None:
        measure = ("import resource,sys\nsys.path.insert(0,sys.argv[1])\nfrom cupool_trace import cli,plot\n"
                   "plot.POINTS=plot.SEGMENTS=plot.BLOCKS=plot.MARKS=(500,500)\ncli.main(sys.argv[2:])\n"
                   "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)")
        used, sizes = [], []
        for count in (20_000, 120_000):
            path = self.dir / f"{count}.jsonl"
            with path.open("w") as f:
                f.write(json.dumps(header()) + "\n" + json.dumps(ev(0, "segment_alloc", p=BASE, n=64 * MIB)) + "\n")
                for i in range(count // 2):
                    p = hex(BASE + 4096 * (i % 16))
                    if i >= 16:
                        f.write(f'{{"t":{10 * i},"e":"free_requested","tid":42,"d":0,"p":"{p}","n":4096}}\n')
                    f.write(f'{{"t":{10 * i + 5},"e":"alloc","tid":42,"d":0,"p":"{p}","n":4096}}\n')
            out = self.dir / "out.html"
            done = subprocess.run([sys.executable, "-c", measure, str(ROOT / "scripts"), "plot", str(path), "-o", str(out)],
                                  capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)
            used.append(int(done.stdout.split()[-1]))
            sizes.append(out.stat().st_size)
        self.assertLess(used[1], used[0] + 8 * 1024, used)
        self.assertLess(sizes[1], 2 * sizes[0], sizes)


class Files(PlotCase):
    def test_no_external_references(self) -> None:
        out = self.plot(self.write(good())).read_text()
        page = Page(out)
        self.assertEqual(len(page.scripts), 2)
        for tag, attributes in page.tags:
            for name in ("src", "href", "action", "data", "srcset", "poster"):
                self.assertIn(attributes.get(name), (None, "data:,"), tag)
        self.assertNotRegex(out, r"https?:|//[a-z]+\.|@import|url\(|\bfetch\(|XMLHttpRequest|WebSocket|\bimport\(")
        policy = [a["content"] for t, a in page.tags if t == "meta" and a.get("http-equiv") == "Content-Security-Policy"]
        self.assertRegex(str(policy), "default-src 'none'")

    def hostile(self) -> str:
        events = good()
        events[0].update(host=HOSTILE, exe=HOSTILE, settings={HOSTILE: HOSTILE})
        events.insert(1, ev(1, "device", d=0, name=HOSTILE, uuid=HOSTILE))
        events[2]["why"] = HOSTILE
        return self.write(events, "<img src=x onerror=alert(1)>.jsonl")

    def test_hostile_names_in_html(self) -> None:
        out = self.plot(self.hostile())
        page = Page(out.read_text(encoding="ascii"))
        self.assertEqual([t for t, _ in page.tags if t in ("script", "img")], ["script", "script"])
        data = json.loads(page.scripts[0])
        self.assertEqual((data["processes"][0]["host"], data["tracks"][0]["figures"]["name"]), (HOSTILE, HOSTILE))
        self.assertNotIn("<", page.scripts[0])
        # The page's own script puts text into elements in no other way.
        self.assertNotRegex(page.scripts[1], r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function")

    def test_numbers_that_json_has_not(self) -> None:
        events = good()
        events[0]["settings"] = {"x": float("nan"), "y": [float("inf")]}
        events[3]["more"] = float("nan")

        def refuse(name: str) -> None:
            self.fail(name)

        page = Page(self.plot(self.write(events)).read_text(encoding="ascii"))
        json.loads(page.scripts[0], parse_constant=refuse)

    def test_svg(self) -> None:
        for path in (self.write(good()), self.hostile()):
            root = xml.etree.ElementTree.parse(self.plot(path, kind="svg")).getroot()
            self.assertEqual(root.tag, "{http://www.w3.org/2000/svg}svg")
            shown = " ".join(t.text or "" for t in root.iter("{http://www.w3.org/2000/svg}text"))
            self.assertIn("peak live 64.0 MiB, peak held 66.0 MiB", shown)
            self.assertFalse([e.tag for e in root.iter() if e.tag.rpartition("}")[2] not in ("svg", "style", "rect", "path", "text")])

    def test_png(self) -> None:
        for path in (self.write(good()), self.hostile()):
            width, height, rgb = decode_png(self.plot(path, kind="png").read_bytes())
            self.assertEqual(width, picture.WIDTH)
            self.assertGreater(height, picture.HEIGHT)
            for name in ("live", "cached", "oom", "text"):
                self.assertIn(bytes.fromhex(picture.COLORS[name][0][1:]), rgb, name)

    def test_pictures_have_the_peak(self) -> None:
        # One event among thousands, far narrower than a pixel: it is the highest point of the picture.
        data = self.data(life(6, 3000, spike=True))
        track = data["tracks"][0]
        low, high = picture.columns(track["series"], "live", 0, data["processes"][0]["last_ns"], 0, data["processes"][0]["last_ns"], 300)
        self.assertEqual(max(high), track["peaks"]["live"]["n"])
        self.assertGreaterEqual(max(high), 600 * MIB)
        self.assertLess(max(low), 600 * MIB)

    def test_pictures_have_what_is_registered(self) -> None:
        """A line, also above what is held. What the PNG has is compared with the SVG."""
        path = self.write(outgrown())
        root = xml.etree.ElementTree.parse(self.plot(path, kind="svg")).getroot()
        shown = [t.text for t in root.iter("{http://www.w3.org/2000/svg}text")]
        self.assertIn("registered", shown)
        # Pieces from x0 to x1, from the top to the bottom.
        pieces = {e.get("class"): [(float(x0), float(x1), float(y0), float(y1)) for x0, y1, y0, x1 in
                                   re.findall(r"M(\S+) ([^V]+)V([^H]+)H([^V]+)V[^M]+", e.get("d", ""))]
                  for e in root.iter("{http://www.w3.org/2000/svg}path")}
        _, end, top, ground = pieces["cached"][0]

        def bytes_at(t: int, name: str = "registered") -> float:
            x = picture.LEFT + (end - picture.LEFT) * t / 1200
            (_, _, y0, y1), = [piece for piece in pieces[name] if piece[0] <= x < piece[1]]
            self.assertEqual(y1 - y0, 2)
            return 2 * MIB * (ground - (y0 + y1) / 2) / (ground - top)

        for t, n in ((150, 0), (400, 2 * MIB), (800, 8 * MIB), (1100, 2 * MIB)):
            self.assertAlmostEqual(bytes_at(t), n, delta=MIB / 50)
        width, _, rgb = decode_png(self.plot(path, kind="png").read_bytes())
        color = bytes.fromhex(picture.COLORS["registered"][0][1:])
        for x0, _, y0, y1 in pieces["registered"]:
            if y1 > ground:
                continue  # the axis is in front of it
            x = int(x0)
            rows = [i // (3 * width) for i in range(3 * x, len(rgb), 3 * width) if rgb[i:i + 3] == color]
            self.assertEqual((rows[0], rows[-1] + 1), (round(y0), round(y1)))
            # An edge tells it from whatever it lies on.
            for row in (rows[0] - 1, rows[-1] + 1):
                self.assertEqual(rgb[3 * (row * width + x):][:3], bytes.fromhex(picture.COLORS["page"][0][1:]))
        self.assertNotIn('class="registered"', self.plot(self.write(good()), kind="svg").read_text())

    def test_pictures_say_which_gpu(self) -> None:
        path = self.write([header(), ev(1, "device", d=0, name="GPU", uuid="11111111-aaaa"), *good()[1:]])
        self.assertIn(">rank 0 device 0 (GPU 11111111), a, app 42, ", self.plot(path, kind="svg").read_text())
        self.assertIn(">rank 0 device 0, a, app 42, ", self.plot(self.write(good()), kind="svg").read_text())

    def test_legend_has_room(self) -> None:
        marks = [[0, kind, 1, ""] for kind in ("oom", "trim", "policy", "ipc", "mark", "gap", "end", "killed")]
        tracks: list[Event] = [{"marks": marks, "series": {name: {} for name in series}}
                               for series in (("held", "live", "cached", "registered"), ("held",))]
        for letter in (picture.Svg.letter, picture.Raster.letter):
            keys = picture.legend(tracks, letter)
            self.assertEqual({name for name, _, _ in keys}, set(picture.NAMES))
            ends = [x + 12 + letter * len(picture.NAMES[name]) for name, x, _ in keys]
            self.assertLessEqual(max(ends), picture.WIDTH)
            for before, (_, x, y), (_, _, y_before) in zip(ends, keys[1:], keys):
                self.assertTrue(x - 6 > before if y == y_before else y >= y_before + 16)

    def test_every_letter(self) -> None:
        self.assertEqual({len(v) for v in picture._LETTERS.values()}, {14})
        used = "".join(picture.NAMES.values()) + "KiB MiB GiB TiB 0123456789.,-_/() rank device peak GPU memory over time"
        self.assertFalse(set(used) - set(picture._LETTERS))

    def test_output(self) -> None:
        path = self.write(good())
        self.assertEqual(self.run_tool("plot", path).returncode, 2)
        done = self.run_tool("plot", path, "-o", str(self.dir / "x.pdf"))
        self.assertEqual(done.returncode, 2)
        self.assertIn("must end in .html, .svg or .png", done.stderr)
        done = self.run_tool("plot", path, "-o", str(self.dir / "none" / "x.html"))
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertIn("x.html: No such file", done.stderr)
        self.assertEqual([p.name for p in self.dir.iterdir()], ["t.jsonl"])
        (self.dir / "folder.svg").mkdir()
        self.assertEqual(self.run_tool("plot", path, "-o", str(self.dir / "folder.svg")).returncode, 2)
        self.assertEqual(sorted(p.name for p in self.dir.iterdir()), ["folder.svg", "t.jsonl"])
        done = self.run_tool("plot", str(self.dir / "none"), "-o", str(self.dir / "x.html"))
        self.assertEqual((done.returncode, (self.dir / "x.html").exists()), (2, False))
        # The files that can be read are drawn.
        self.plot(str(self.dir / "none"), path, status=2)

    def test_json(self) -> None:
        done = self.run_tool("plot", "--json", self.write(good()), "-o", str(self.dir / "x.svg"))
        got = json.loads(done.stdout)
        self.assertEqual((got["bytes"], got["devices"][0]["peaks"]["held"]["n"]), ((self.dir / "x.svg").stat().st_size, 66 * MIB))

    def test_damaged_traces(self) -> None:
        r = random.Random(3)
        for i in range(120):
            path = self.write(test_trace_fuzz.damaged(r), f"{i % 2}.jsonl")
            out = self.dir / ("x.html", "x.svg")[i % 2]
            status, _, said = test_trace_fuzz.run(["plot", path, self.write(good(), "good.jsonl"), "-o", str(out)], "utf-8")
            self.assertIn(status, (0, 1, 2), said)
            if i % 2:
                xml.etree.ElementTree.parse(out)
            else:
                self.data_of(out)

    def test_standard_input(self) -> None:
        done = self.run_tool("plot", "-", "-o", str(self.dir / "x.html"), stdin=gzip.compress(text(good())))
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_page_is_one_file_of_all_parts(self) -> None:
        parts = sorted(p.name for p in (ROOT / "scripts/cupool_trace/page").iterdir())
        self.assertEqual(parts, sorted(["page.html", "style.css", *plot.SCRIPTS]))
        page = self.plot(self.write(good())).read_text()
        for name in (*plot.SCRIPTS, "style.css"):
            self.assertIn(plot.part(name), page)
        self.assertNotRegex(page, r"@(STYLE|SCRIPT|DATA)@|<link (?!rel=\"icon\" href=\"data:)|<script src|@import")


@unittest.skipUnless(chromium.find(), "no Chromium")
class InBrowser(PlotCase):
    browser: chromium.Browser

    @classmethod
    def setUpClass(cls) -> None:
        program = chromium.find()
        assert program
        try:
            cls.browser = chromium.Browser(program)
        except OSError as e:
            raise unittest.SkipTest(f"Chromium does not start: {e}") from e
        cls.addClassCleanup(cls.browser.close)

    def setUp(self) -> None:
        super().setUp()
        self.addCleanup(self.no_complaints)

    def no_complaints(self) -> None:
        problems, self.browser.problems = self.browser.problems, []
        requests, self.browser.requests = self.browser.requests, []
        self.assertEqual(problems, [])
        self.assertFalse([r for r in requests if not r.startswith(("file:", "data:"))])

    def show(self, *traces: "list[Event]") -> None:
        for i, events in enumerate(traces):
            events[0].update(rank=i, pid=42 + i)
        self.browser.open(self.plot(*(self.write(e, f"r{i}.jsonl") for i, e in enumerate(traces))))

    def state(self) -> Any:
        return self.browser.evaluate("cupoolPlot.state()")

    def tip(self) -> str:
        return str(self.browser.evaluate("document.getElementById('tip').hidden ? '' : document.getElementById('tip').textContent"))

    def into_view(self, selector: str) -> None:
        self.browser.evaluate(f"document.querySelector({json.dumps(selector)}).scrollIntoView({{block: 'center'}})")
        self.browser.frame()

    def point_at(self, kind: str, index: int) -> tuple[float, float]:
        self.into_view("#map")
        at = self.browser.evaluate(f"cupoolPlot.locate('{kind}', {index})")
        self.browser.mouse("mouseMoved", at["x"], at["y"])
        self.browser.frame()
        return at["x"], at["y"]

    def point_at_time(self, track: int, t: int) -> tuple[float, float]:
        self.into_view("#charts")
        at = self.browser.evaluate(f"cupoolPlot.locateTime({track}, {t})")
        self.browser.mouse("mouseMoved", at["x"], at["y"])
        self.browser.frame()
        return at["x"], at["y"]

    def painted(self, selector: str) -> int:
        """Pixels of a canvas that are not empty."""
        got = self.browser.evaluate(f"(() => {{ const c = document.querySelector({json.dumps(selector)}); let n = 0; "
                                    "const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data; "
                                    "for (let i = 3; i < d.length; i += 4) if (d[i]) n++; return n; })()")
        return int(got)

    def test_it_draws(self) -> None:
        self.show(life(7, 2000))
        self.assertEqual(self.state()["errors"], [])
        for selector in ("#charts canvas", "#map canvas"):
            self.assertGreater(self.painted(selector), 5000, selector)
        self.assertEqual(self.browser.evaluate("document.querySelectorAll('#rows tr').length"), 1)

    def test_hover_over_memory(self) -> None:
        self.show(good())
        self.point_at_time(0, 255)
        hover = self.state()["hover"]
        self.assertEqual((hover["kind"], hover["values"]["held"], hover["values"]["live"]), ("memory", [66 * MIB] * 2, [2048 - 512] * 2))
        self.assertIn("66.00 MiB (69,206,016 B)", self.tip())
        self.browser.mouse("mouseMoved", 2, 2)
        self.browser.frame()
        self.assertIsNone(self.state()["hover"])
        self.assertEqual(self.tip(), "")

    def test_registered_above_what_is_held(self) -> None:
        self.show(outgrown())
        self.point_at_time(0, 800)
        self.assertEqual(self.state()["hover"]["values"]["registered"], [8 * MIB] * 2)
        # Purple, however thin: less green than red and blue.
        seen = self.browser.evaluate("""(() => {
          const c = document.querySelector('#charts canvas'), r = c.getBoundingClientRect(), k = c.width / r.width;
          const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
          return [400, 800].map(t => {
            let n = 0;
            for (let i = 4 * Math.round((cupoolPlot.locateTime(0, t).x - r.left) * k); i < d.length; i += 4 * c.width)
              if (d[i + 3] && Math.min(d[i], d[i + 2]) - d[i + 1] > 20) n++;
            return n;
          });
        })()""")
        for n in seen:
            self.assertIn(n, range(1, 5))

    def test_registered_is_seen_on_what_is_live(self) -> None:
        """As the line is of a dark colour upon another, it has an edge."""
        at = {"d": 0, "comm": "0x1"}
        self.show([header(), ev(50, "comm_init", **at, rank=0, ranks=1, nccl=22809), ev(100, "segment_alloc", p=BASE, n=4 * MIB),
                   ev(110, "segment_alloc", p=BASE + 4 * MIB, n=4 * MIB), ev(120, "alloc", p=BASE, n=4 * MIB), ev(130, "alloc", p=BASE + 4 * MIB, n=4 * MIB),
                   ev(200, "register", **at, p=BASE, n=4 * MIB, us=1, ok=1), ev(1000, "end", dropped=0)])
        where = self.browser.evaluate("cupoolPlot.locateTime(0, 600)")
        column = self.browser.evaluate("""(() => { const c = document.querySelector('#charts canvas'), r = c.getBoundingClientRect();
            const d = c.getContext('2d').getImageData(Math.round(%s - r.left), 0, 1, c.height).data;
            return [...Array(c.height).keys()].map(i => [...d.slice(4 * i, 4 * i + 3)].map(v => v.toString(16).padStart(2, '0')).join('')); })()""" % where["x"])
        middle = column.index("8e44ad")
        for side in (column[middle - 3:middle], column[middle + 1:middle + 4]):
            self.assertIn("ffffff", side, column)
        self.assertEqual((column[middle - 6], column[middle + 6]), ("2f74d0", "2f74d0"))

    def test_hover_says_with_whom_it_is_registered(self) -> None:
        events = outgrown()
        events[3:3] = [ev(150, "segment_alloc", p=BASE + 8 * MIB, n=2 * MIB)]
        self.show(events)
        self.point_at("segment", 0)
        self.assertIn("registered with 0x1 (rank 0 of 1) 0.000000200 s, to its end", self.tip())
        self.point_at("segment", 1)
        self.assertIn("never registered with NCCL", self.tip())

    def test_hover_over_marks(self) -> None:
        self.show(good())
        self.point_at_time(0, 300)
        self.assertIn("out of memory: 900.0 MiB asked for", self.tip())

    def test_hover_says_who_asked(self) -> None:
        self.show(called())
        self.point_at("block", 0)
        self.assertIn("asked for by libx.so (make)\n  libx.so (make)\n  app+0x20", self.tip())

    def test_who_took_most(self) -> None:
        """Of the focused device: by whom blocks were asked for, and who took physical memory past the pool."""
        rows = "[...document.querySelectorAll('#takers tbody tr')].map(r => [...r.children].map(c => c.textContent))"
        physical = [ev(450, "mem_create", d=0, h="0x10", n=20 * MIB, us=1, result=0, by="nccl", at="libnccl.so.2+0x5"),
                    ev(460, "mem_release", h="0x10", us=1, result=0)]
        self.show(called()[:7] + physical + called()[7:], good())
        self.assertEqual(self.browser.evaluate(rows), [
            ["app+0x20", "16.0 MiB", "0 B", "1"], ["libx.so (make)", "8.0 MiB", "8.0 MiB", "1"],
            ["past the pool: libnccl.so.2 (nccl), at its own peak", "20.0 MiB", "0 B", "1"]])
        self.browser.key("]")
        self.assertTrue(self.browser.evaluate("document.getElementById('takers').hidden"))

    def test_hover_over_segment_and_block(self) -> None:
        events = good()
        del events[9:11]  # the block that fills the second segment
        events[-2].update(allocs=3, frees=1)
        self.show(events)
        self.point_at("segment", 1)
        hover = self.state()["hover"]
        self.assertEqual((hover["kind"], hover["index"]), ("segment", 1))
        for part in ("segment of 64.00 MiB (67,108,864 B)", hex(BASE + 64 * MIB), "allocated 0.000000250 s", "250.5 us", "freed 0.000000290 s", "0 blocks"):
            self.assertIn(part, self.tip())
        x, y = self.point_at("block", 1)
        self.browser.click(x, y)
        self.assertIn(self.state()["hover"]["kind"], ("block", "segment"))
        self.assertIsNotNone(self.state()["pinned"])
        self.assertFalse(self.browser.evaluate("document.getElementById('pinned').hidden"))

    def test_block_in_its_segment(self) -> None:
        self.show([header(), ev(100, "segment_alloc", p=BASE, n=4 * MIB), ev(200, "alloc", p=BASE + MIB, n=2 * MIB),
                   ev(800, "free_requested", p=BASE + MIB, n=2 * MIB), ev(1000, "end", dropped=0)])
        self.point_at("block", 0)
        self.assertEqual(self.state()["hover"]["kind"], "block")
        self.assertIn("block of 2.00 MiB", self.tip())
        self.assertIn(f"in the segment of 4.00 MiB (4,194,304 B) at {BASE:#x}", self.tip())
        self.assertIn("freed 0.000000800 s", self.tip())

    def test_zoom_with_the_mouse(self) -> None:
        self.show(life(8, 2000))
        before = self.state()["view"]
        width = before["t1"] - before["t0"]
        x0, y = self.point_at_time(0, int(before["t0"] + width * 0.25))
        x1, _ = self.point_at_time(0, int(before["t0"] + width * 0.5))
        pixels = hash_of(self.browser, "#charts canvas")
        self.browser.drag(x0, y, x1, y)
        view = self.state()["view"]
        self.assertAlmostEqual(view["t0"], before["t0"] + width * 0.25, delta=width * 0.01)
        self.assertAlmostEqual(view["t1"], before["t0"] + width * 0.5, delta=width * 0.01)
        self.assertNotEqual(pixels, hash_of(self.browser, "#charts canvas"))
        # A wheel alone scrolls the page; with Ctrl (2) it zooms and what is under the pointer stays there.
        self.browser.mouse("mouseWheel", (x0 + x1) / 2, y, deltaX=0, deltaY=-120)
        self.browser.frame()
        self.assertEqual(self.state()["view"], view)
        at = self.browser.evaluate("cupoolPlot.locateTime(0, 0)")["y"]
        self.browser.mouse("mouseWheel", (x0 + x1) / 2, at, deltaX=0, deltaY=-120, modifiers=2)
        self.browser.frame()
        closer = self.state()["view"]
        self.assertLess(closer["t1"] - closer["t0"], (view["t1"] - view["t0"]) * 0.9)
        self.browser.click(x0, at, count=2)
        self.assertEqual(self.state()["view"], before)

    def test_zoom_in_the_map(self) -> None:
        self.show(life(9, 2000))
        self.into_view("#map")
        r = self.browser.evaluate("(() => { const r = document.querySelector('#map canvas.over').getBoundingClientRect(); "
                                  "return [r.left, r.top, r.width, r.height]; })()")
        self.browser.drag(r[0] + r[2] * 0.4, r[1] + r[3] * 0.3, r[0] + r[2] * 0.6, r[1] + r[3] * 0.6)
        state = self.state()
        self.assertAlmostEqual(state["map"]["hi"] - state["map"]["lo"], 0.3 * r[3] / (r[3] - 44), delta=0.02)
        lo = state["map"]["lo"]
        self.browser.key("ArrowUp")
        self.assertGreater(self.state()["map"]["lo"], lo)
        self.browser.click(*self.browser.evaluate(
            "(() => { const r = document.getElementById('reset').getBoundingClientRect(); return [r.left + 5, r.top + 5]; })()"))
        self.assertEqual(self.state()["map"], {"lo": 0, "hi": 1})

    def test_keyboard(self) -> None:
        self.show(life(10, 1000))
        before = self.state()["view"]
        self.browser.key("+")
        view = self.state()["view"]
        self.assertAlmostEqual((view["t1"] - view["t0"]) / (before["t1"] - before["t0"]), 0.6, delta=0.01)
        self.browser.key("ArrowRight")
        moved = self.state()["view"]
        self.assertGreater(moved["t0"], view["t0"])
        self.assertAlmostEqual(moved["t1"] - moved["t0"], view["t1"] - view["t0"], delta=1)
        for _ in range(80):
            self.browser.key("+")
        closest = self.state()["view"]
        self.assertGreaterEqual(closest["t1"] - closest["t0"], 19.9)
        self.browser.key("-")
        self.browser.key("0")
        self.assertEqual(self.state()["view"], before)
        self.browser.key("f")
        self.browser.key("Escape")
        self.assertEqual(self.state()["map"], {"lo": 0, "hi": 1})

    def test_ranks_and_devices(self) -> None:
        two = [{**e, "d": 1, "tid": 43} if "d" in e else e for e in good()]
        self.show(good(), good()[:-2] + two[1:], good())
        self.assertEqual(self.state()["shown"], [0, 1, 2, 3])
        choose = "(() => {{ const s = document.getElementById('{0}'); s.value = '{1}'; s.dispatchEvent(new Event('change')); }})()"
        self.browser.evaluate(choose.format("rank", "1"))
        self.assertEqual((self.state()["shown"], self.state()["focus"]), ([1, 2], 1))
        self.browser.evaluate(choose.format("device", "1"))
        self.assertEqual((self.state()["shown"], self.state()["focus"]), ([2], 2))
        self.browser.evaluate(choose.format("rank", "0"))
        self.assertEqual(self.state()["shown"], [])
        self.browser.evaluate(choose.format("rank", "") + ";" + choose.format("device", ""))
        self.browser.evaluate("document.querySelectorAll('#rows input')[0].click()")
        self.assertEqual(self.state()["shown"], [1, 2, 3])
        self.browser.evaluate("document.querySelectorAll('#rows tr')[3].click()")
        self.assertEqual(self.state()["focus"], 3)
        self.browser.frame()
        self.assertIn("rank 2, device 0", self.browser.evaluate("document.getElementById('maptitle').textContent"))
        self.browser.key("]")
        self.assertEqual((self.state()["focus"], self.state()["shown"]), (0, [0, 1, 2, 3]))

    def test_many_ranks_show_a_few_at_first(self) -> None:
        self.show(*(good() for _ in range(20)))
        self.assertEqual(self.state()["shown"], list(range(8)))
        self.assertEqual(self.browser.evaluate("document.querySelectorAll('#rows tr').length"), 20)

    def test_runs_of_different_days(self) -> None:
        later = good()
        later[0]["t0_unix_ns"] += 86400 * 10**9
        self.show(good(), later)
        self.assertTrue(self.state()["align"])
        self.assertLess(self.state()["view"]["t1"], 10**6)
        self.browser.evaluate("document.getElementById('align').click()")
        self.assertGreater(self.state()["view"]["t1"], 86400 * 10**9)

    def test_times_are_those_of_the_axis(self) -> None:
        """Of a process that began later too; it also says how late that was in the process's own time."""
        later = good()
        later[0]["t0_unix_ns"] += 400
        self.show(good(), later)
        self.point_at_time(1, 700)
        self.assertIn("at 0.000000700 s, 0.000000300 s after its start", self.tip())
        self.assertIn("0.000000700 s  out of memory", self.tip())
        self.browser.key("]")
        self.point_at("segment", 0)
        self.assertIn("allocated 0.000000600 s", self.tip())
        self.point_at_time(0, 300)
        self.assertNotIn("after its start", self.tip())

    def test_which_gpu(self) -> None:
        """Each rank may call its own device 0."""
        ranks = [[header(), ev(1, "device", d=0, name="GPU", uuid=uuid), *good()[1:]] for uuid in ("11111111-aaaa", "22222222-bbbb")]
        self.show(*ranks)
        for i, uuid in enumerate(("11111111", "22222222")):
            self.assertIn(f"0 GPU {uuid}", self.browser.evaluate(f"document.querySelectorAll('#rows tr')[{i}].textContent"))
            self.assertIn(f"GPU {uuid}", self.browser.evaluate(f"document.querySelectorAll('#charts h2')[{i}].textContent"))

    def test_nothing_moves_when_zoomed(self) -> None:
        """Where the pointer is stays over the same chart: the text of the range grows in room that it has already."""
        self.addCleanup(self.browser.call, "Emulation.clearDeviceMetricsOverride")
        late = [{**e, "t": e["t"] + 10**12} for e in good()[1:]]
        for width in range(700, 1500, 50):
            self.browser.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
            self.show([*good()[:1], *late], good())
            top = "document.querySelector('#charts').getBoundingClientRect().top"
            before = self.browser.evaluate(top)
            for _ in range(60):
                self.browser.evaluate("document.getElementById('in').click()")
            self.browser.frame()
            self.assertLess(self.state()["view"]["t1"] - self.state()["view"]["t0"], 1000)
            self.assertEqual(self.browser.evaluate(top), before, width)

    def test_legend_has_what_is_drawn(self) -> None:
        """Fainter where a column of pixels has several values, even if every value is in the page."""
        self.show(good())
        self.assertIn("fainter: only at times", self.browser.evaluate("document.getElementById('legend').textContent"))

    def test_light_and_dark(self) -> None:
        self.addCleanup(self.browser.colors, "light")
        self.browser.colors("light")
        self.show(good())
        shots = []
        for scheme in ("light", "dark"):
            self.browser.colors(scheme)
            self.assertEqual(self.state()["theme"], scheme)
            shots.append(self.browser.evaluate("getComputedStyle(document.body).backgroundColor"))
        self.assertNotEqual(*shots)
        self.browser.evaluate("document.getElementById('theme').click()")
        self.assertEqual(self.state()["theme"], "light")
        width, height = struct.unpack_from(">II", self.browser.screenshot(), 16)
        self.assertGreater(width * height, 10**6)

    def test_hostile_names_are_text(self) -> None:
        events = good()
        hostile = "<img src=x onerror='document.title=1'></script><b>"
        events[0].update(host=hostile, exe=hostile)
        events.insert(1, ev(1, "device", d=0, name=hostile, uuid=""))
        self.show(events)
        self.point_at_time(0, 255)
        self.assertEqual(self.browser.evaluate("document.title"), "GPU memory over time")
        self.assertEqual(self.browser.evaluate("document.querySelectorAll('img, td b, #charts b').length"), 0)
        self.assertIn(hostile, self.browser.evaluate("document.body.textContent"))

    def test_map_of_only_the_time_shown(self) -> None:
        far = BASE + (1 << 40)
        self.show([header(), ev(100, "segment_alloc", p=BASE, n=8 * MIB), ev(400, "segment_free", p=BASE, n=8 * MIB),
                   ev(600, "segment_alloc", p=far, n=2 * MIB), ev(1000, "end", dropped=0)])
        whole = self.browser.evaluate("cupoolPlot.locate('segment', 0)")
        self.assertIsNotNone(whole)
        x0, y = self.point_at_time(0, 700)
        x1, _ = self.point_at_time(0, 900)
        self.browser.drag(x0, y, x1, y)
        # The first segment is gone by then, and the second has the whole height.
        self.assertIsNone(self.browser.evaluate("cupoolPlot.locate('segment', 0)"))
        self.assertEqual(self.state()["map"], {"lo": 0, "hi": 1})
        self.browser.key("f")
        self.assertFalse(self.state()["fitting"])
        self.browser.key("0")
        self.assertEqual((self.state()["fitting"], self.browser.evaluate("cupoolPlot.locate('segment', 0)")), (True, whole))

    def test_stats_that_say_more_than_events(self) -> None:
        events = good()
        events[-2]["peak_live"] += 4096
        self.show(events)
        self.assertIn("rounded up to 512 B, at most 64.00 MiB (67,110,400 B); its stats line counts whole blocks",
                      self.browser.evaluate("document.getElementById('notes').textContent"))

    def test_odd_traces(self) -> None:
        for events in ([header(None)], [header(), ev(5, "policy", free="strict", why="x")],
                       [header(), ev(0, "segment_alloc", p=BASE, n=512), ev(0, "end", dropped=0)],
                       [header(), ev(1 << 50, "segment_alloc", p=(1 << 64) - 512, n=(1 << 63) + 1, us=0)]):
            with self.subTest(events=events[1:]):
                self.browser.open(self.plot(self.write(events)))
                for key in "+-f0[]":
                    self.browser.key(key)
                self.assertEqual(self.state()["errors"], [])

    def test_damaged_traces_draw(self) -> None:
        r = random.Random(4)
        for _ in range(12):
            status, _, _ = test_trace_fuzz.run(
                ["plot", self.write(test_trace_fuzz.damaged(r), "a"), self.write(test_trace_fuzz.damaged(r), "b"), "-o", str(self.dir / "x.html")], "utf-8")
            if status != 2:
                self.browser.open(self.dir / "x.html")
                for key in "++f]0":
                    self.browser.key(key)
                self.assertEqual(self.state()["errors"], [])

    def test_reduced(self) -> None:
        self.small(life(11, 6000, spike=True), points=200, segments=70, blocks=200)
        self.browser.open(self.dir / "small.html")
        self.assertIn("least and greatest value of every", self.browser.evaluate("document.getElementById('notes').textContent"))
        peak = self.browser.evaluate("cupoolPlot.data.tracks[0].peaks.live")
        self.point_at_time(0, peak["t"])
        self.assertGreaterEqual(self.state()["hover"]["values"]["live"][1], 600 * MIB)
        self.assertGreater(self.painted("#map canvas"), 1000)


def hash_of(browser: chromium.Browser, selector: str) -> str:
    return str(browser.evaluate(f"document.querySelector({json.dumps(selector)}).toDataURL()"))


if __name__ == "__main__":
    unittest.main()
