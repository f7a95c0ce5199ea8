# SPDX-License-Identifier: Apache-2.0
"""Tests of cupool-trace plot: the page in a browser. They need Chromium and are skipped without it.

Not here: whether it looks good.
"""

import random
import struct
import unittest

import test_trace_fuzz
from made_traces import BASE, MIB, ev, good, header
from plots import ViewerCase, called, hash_of, life, outgrown


class InBrowser(ViewerCase):
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

    def test_values_of_the_other_charts(self) -> None:
        """Beside the line of the time that is pointed at; the chart under the pointer has its tip."""
        self.show(good(), good())
        self.point_at_time(0, 255)
        self.browser.frame()
        self.assertEqual(self.state()["beside"], ["", "held 66.0 MiB, live 1.5 KiB, cached 66.0 MiB"])
        self.point_at_time(1, 150)
        self.browser.frame()
        self.assertEqual(self.state()["beside"], ["", ""])  # before the first segment nothing is known
        self.browser.mouse("mouseMoved", 2, 2)
        self.browser.frame()
        self.assertEqual(self.state()["beside"], ["", ""])

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

    def test_all_ranks_in_one_card(self) -> None:
        """Twenty in which one holds more: it is named, its line is stronger, and a click on it, the name or a key shows one alone."""
        more = good()
        more[1:1] = [ev(50, "segment_alloc", p=BASE + (1 << 30), n=512 * MIB), ev(60, "alloc", p=BASE + (1 << 30), n=500 * MIB)]
        self.show(*(good() if i != 13 else more for i in range(20)))
        self.assertRegex(self.browser.evaluate("document.getElementById('unlike').textContent"), r"^out of line: rank 13, device 0: .*live at the end 500.0 MiB")
        self.assertIn("8 of 20 devices have a chart here", self.browser.evaluate("document.getElementById('charts').textContent"))
        lines = self.browser.evaluate("""(() => { const [at, c] = [[12, 13].map(cupoolPlot.locateRow), document.querySelector('#all canvas')];
            const r = c.getBoundingClientRect(), d = c.getContext('2d').getImageData(Math.round(at[0].x - r.left), 0, 1, c.height).data;
            return at.map(p => d[4 * Math.round(p.y - r.top) + 3]); })()""")
        self.assertGreater(lines[1], 2 * lines[0])
        self.into_view("#all")
        at = self.browser.evaluate("cupoolPlot.locateRow(13)")
        self.browser.mouse("mouseMoved", at["x"] + 400, at["y"])  # when the others have something, too
        self.browser.frame()
        self.assertRegex(self.tip(), r"^rank 13, device 0 at .*: 500.00 MiB .*least 1.5 KiB .*median 1.5 KiB .*most 500.00 MiB")
        self.browser.click(at["x"], at["y"])
        self.assertEqual((self.state()["shown"], self.state()["focus"]), ([13], 13))
        self.browser.key("ArrowDown")
        self.assertEqual((self.state()["shown"], self.state()["focus"]), ([14], 14))
        self.browser.evaluate("document.querySelector('#unlike button').click()")
        self.assertEqual((self.state()["shown"], self.state()["focus"]), ([13], 13))

    def test_few_ranks_have_no_such_card(self) -> None:
        self.show(good(), good())
        self.assertTrue(self.browser.evaluate("document.getElementById('all').hidden"))
        self.assertTrue(self.browser.evaluate("document.getElementById('flame').hidden"))

    def test_the_calls_that_led_to_the_peak(self) -> None:
        """24 MiB at 300: 8 by make() for app, 16 by app alone. A click on a frame gives it the full width; the frames are buttons."""
        self.show(called())
        frames = "[...document.querySelectorAll('#flame button')].map(b => [b.getAttribute('aria-label'), Math.round(100 * b.clientWidth / b.parentElement.clientWidth)])"
        said = [text for text, _ in self.browser.evaluate(frames)]
        self.assertEqual(said, ["all: 24.0 MiB, 100.0%", "app+0x20: 24.0 MiB, 100.0%", "libx.so (make): 8.0 MiB, 33.3%"])
        self.assertIn(dict(self.browser.evaluate(frames))[said[2]], range(30, 35))
        self.browser.evaluate("document.querySelectorAll('#flame button')[2].click()")
        self.assertGreater(dict(self.browser.evaluate(frames))[said[2]], 97)
        self.assertEqual(self.browser.evaluate("document.activeElement.getAttribute('aria-label')"), said[2])
        self.browser.evaluate("document.querySelectorAll('#flame button')[0].click()")
        self.assertIn(dict(self.browser.evaluate(frames))[said[2]], range(30, 35))

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
        self.assertEqual(self.browser.evaluate("document.title"), f"{hostile}: GPU memory over time")
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
