# SPDX-License-Identifier: Apache-2.0
"""Tests of cupool-trace plot: the data of the page, also of one that may hold only a part of them.

The figures are compared with ones counted here, not with those of the replay.
"""

import contextlib
import copy
import gzip
import io
import json
import os
import random
import re
import subprocess
import sys
import unittest
from unittest import mock

from made_traces import BASE, MIB, ROOT, ev, good, header, text
from plots import PlotCase, called, column, life, walk

sys.path.insert(0, str(ROOT / "scripts"))
from cupool_trace import cli, defaults, plot, reasons, record  # noqa: E402

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

    def test_more_callers_of_fewer_devices(self) -> None:
        """There is a search over them; a page of very many devices names at least eight of each."""
        events = [header(), *({"t": i, "e": "frame", "tid": 42, "f": i, "p": hex(i), "at": f"a{i}.so+0x1"} for i in range(1, 41)),
                  ev(100, "segment_alloc", p=BASE, n=64 * MIB), *(ev(200 + i, "alloc", p=BASE + MIB * i, n=512 * i, f=[i]) for i in range(1, 41))]
        self.assertEqual(len(self.data(events)["tracks"][0]["figures"]["callers"]), 40)
        with mock.patch.object(plot, "CALLS", (30, 30)), contextlib.redirect_stdout(io.StringIO()):
            self.assertEqual(cli.main(["plot", self.write(events), "-o", str(self.dir / "few.html")]), 0)
        self.assertEqual(len(self.data_of(self.dir / "few.html")["tracks"][0]["figures"]["callers"]), 8)

    def test_settings_that_are_not_default(self) -> None:
        """As cupool-info has the defaults; those of the output alone do not count, and without it nothing is said."""
        program = self.dir / "cupool-info"
        rows = {"CUPOOL_FREE": "auto", "CUPOOL_LIMIT": "0", "CUPOOL_RANK": "(none)", "CUPOOL_STATS": "off"}
        program.write_text("#!/bin/sh\n[ -z \"$CUPOOL_FREE\" ] && cat <<'END'\ncupool 1\n" + "".join(
            f"{k}={v}\n    Words: default: x; value from: y.\n    accepted: 0|1; default: {v}; value from: default\n" for k, v in rows.items()) + "END\n")
        program.chmod(0o755)
        with mock.patch.dict(os.environ, CUPOOL_FREE="strict"):
            known = defaults.defaults(str(program))
        self.assertEqual(known, {**rows, "CUPOOL_RANK": ""})
        two = [{"settings": {"CUPOOL_FREE": free, "CUPOOL_LIMIT": "4G", "CUPOOL_RANK": "", "CUPOOL_STATS": "exit", "CUPOOL_OLD": "1"}} for free in ("auto", "strict")]
        self.assertEqual(defaults.changed(two, known), ["CUPOOL_LIMIT=4G", "CUPOOL_FREE=strict (in 1 of 2 processes)"])
        self.assertEqual(defaults.changed([{}], known), [])
        for broken in (None, str(self.dir / "missing"), "/bin/false"):
            self.assertEqual(defaults.defaults(broken), {})
        with mock.patch.object(defaults, "find_program", lambda: None):
            self.assertNotIn("settings", self.data(good()))

    def test_marks(self) -> None:
        marks = self.data(good())["tracks"][0]["marks"]
        self.assertEqual([(t, kind, count) for t, kind, count, _ in marks],
                         [(100, "policy", 1), (280, "ipc", 1), (291, "trim", 1), (300, "oom", 1), (410, "end", 1)])
        self.assertIn("900.0 MiB asked for, 2.0 MiB held", marks[3][3])
        self.assertIn("refused", marks[1][3])
        why = {e["e"]: e["why"] for e in good()[1:] if e["e"] == "trim"}["trim"]
        self.assertEqual(marks[2][3], f"trim gave back 64.0 MiB: {reasons.SAID['trim'][why]}")

    def test_every_reason_is_a_sentence(self) -> None:
        text = (ROOT / "docs/trace.md").read_text()
        for event, begin, end in (("trim", "* `trim` (", "* `ask` ("), ("oom", "* `why`: `capture`", "\n\n"), ("host_oom", "`why` is `busy`", "* `host_held`")):
            part = text[text.index(begin):]
            words = re.findall(r"`([a-z]+)`(?::| \(|,| or|\.| \()", part[:part.index(end)])
            self.assertEqual(set(words) - {"trim", "why"}, set(reasons.SAID[event]))
        self.assertEqual(set(re.findall(r"(?m)^\* `why` = `(\w+)`: ", text)), set(reasons.SAID["gap"]))
        self.assertEqual(reasons.sentence("trim", "new"), "new")

    def test_marks_of_auto_and_of_other_processes(self) -> None:
        events = [dict(header(), settings={"CUPOOL_FREE": "auto"}), *good()[1:]]
        events[-1:-1] = [ev(407, "ask", d=0, n=8 * MIB, asked=3, answered=2, given=4 * MIB, us=5.5),
                         {"t": 408, "e": "range_begin", "tid": 1, "text": "forward", "domain": "", "range": 0},
                         {"t": 409, "e": "range_begin", "tid": 1, "text": "all", "domain": "NCCL", "range": 0}]
        texts = {kind: text for _, kind, _, text in self.data(events)["tracks"][0]["marks"]}
        self.assertRegex(texts["policy"], "^free policy auto: ")
        self.assertEqual(texts["ask"], "3 processes on the card asked for 8.0 MiB: 2 answered, 4.0 MiB given")
        self.assertEqual(self.data(events)["processes"][0]["bands"]["names"], ["NCCL: all", "forward"])

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
        # Blocks from before count; blocks that were gone by then, or came later, are not drawn.
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
