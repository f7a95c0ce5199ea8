# SPDX-License-Identifier: Apache-2.0
"""Ranges of NVTX as bands on the page of cupool-trace plot: the data, and the page in a browser where there is one."""

import random
import unittest
from typing import Any, Optional
from unittest import mock

from made_traces import BASE, MIB, Event, ev, header
from plots import BrowserCase, PlotCase

from cupool_trace import bands, plot  # noqa: E402


def begin(t: int, text: str, tid: int = 42, domain: str = "", number: int = 0) -> Event:
    return {"t": t, "e": "range_begin", "tid": tid, "text": text, "domain": domain, "range": number}


def end(t: int, tid: int = 42, domain: str = "", number: int = 0) -> Event:
    return {"t": t, "e": "range_end", "tid": tid, "domain": domain, "range": number}


def trace(*ranges: Event) -> "list[Event]":
    first = [header(), ev(10, "segment_alloc", p=BASE, n=4 * MIB), ev(20, "alloc", p=BASE, n=MIB)]
    return [*first, *ranges, ev(1000, "end", dropped=0)]


NESTED = [begin(100, "step"), begin(110, "forward"), begin(120, "layer"), end(180), end(300), begin(310, "backward"),
          begin(320, "reduce", 77, "NCCL"), begin(330, "prefetch", number=5), end(400, 77, "NCCL"), end(500), end(600, 77, number=5), end(700)]


def shown(got: Event) -> "list[tuple[str, str, int, int, Optional[int]]]":
    return [(got["names"][n], got["rows"][r]["thread"], got["rows"][r]["depth"], t0, t1)
            for n, r, t0, t1 in zip(got["name"], got["row"], got["t0"], got["t1"])]


class Data(PlotCase):
    def bands(self, *ranges: Event, **more: Any) -> Event:
        got: Event = self.data(trace(*ranges), **more)["processes"][0]["bands"]
        return got

    def test_rows(self) -> None:
        got = self.bands(*NESTED)
        self.assertEqual(shown(got), [
            ("step", "main thread", 0, 100, 700), ("forward", "main thread", 1, 110, 300), ("layer", "main thread", 2, 120, 180),
            ("backward", "main thread", 1, 310, 500), ("NCCL: reduce", "thread 77", 0, 320, 400), ("prefetch", "any thread", 0, 330, 600)])
        self.assertEqual([(r["thread"], r["depth"]) for r in got["rows"]],
                         [("main thread", 0), ("main thread", 1), ("main thread", 2), ("thread 77", 0), ("any thread", 0)])
        self.assertEqual((got["count"], got["note"], got["merged"]), (6, None, []))
        self.assertEqual(got["by_name"][:2], [["step", 1, 600, 600, 100], ["prefetch", 1, 270, 270, 330]])
        self.assertNotIn("bands", self.data(trace())["processes"][0])
        self.assertEqual([m for m in self.data(trace(*NESTED))["tracks"][0]["marks"] if m[1] == "range"], [])

    def test_ends(self) -> None:
        """Without a beginning; without an end; of another domain first; where events were left out."""
        gap = {"t": 600, "e": "gap", "why": "rate", "since": 550, "bytes": 9, "open": 0,
               **dict.fromkeys(("segments", "blocks", "others", "lines", "records"), 0)}
        got = shown(self.bands(end(30), end(40, number=3), begin(50, "a"), begin(60, "b", domain="D"), end(70), begin(80, "c"), end(90, domain="D")))
        self.assertEqual(got, [("a", "main thread", 0, 50, 70), ("D: b", "main thread", 1, 60, 90), ("c", "main thread", 2, 80, None)])
        from cupool_trace.schema import REQUIRED
        gap.update({k: 0 for k in REQUIRED["gap"] if k not in gap})
        self.assertEqual(shown(self.bands(begin(500, "a"), gap, end(700), begin(710, "b"), end(720))),
                         [("a", "main thread", 0, 500, 600), ("b", "main thread", 0, 710, 720)])

    def test_many(self) -> None:
        """The longest are exact, the others are counted where they were, and nothing is lost."""
        r, t, ranges, lengths = random.Random(1), 100, [], []
        for i in range(3000):
            lengths.append(r.randrange(1, 1000))
            ranges += [begin(t, f"n{i % 7}"), end(t + lengths[-1])]
            t += 1001
        with mock.patch.object(plot, "RANGES", (100, 100)):
            out = self.dir / "many.html"
            with mock.patch("sys.stdout"):
                from cupool_trace import cli
                self.assertEqual(cli.main(["plot", self.write([*trace(*ranges)[:-1], ev(t, "end", dropped=0)]), "-o", str(out)]), 0)
        got = self.data_of(out)["processes"][0]["bands"]
        self.assertEqual(sorted(b - a for a, b in zip(got["t0"], got["t1"])), sorted(lengths)[-100:])
        self.assertEqual(sum(cell[3] for cell in got["merged"]), 2900)
        self.assertLessEqual(len(got["merged"]), 50)
        self.assertTrue(all(0 <= cell[1] < cell[2] <= t for cell in got["merged"]))
        self.assertRegex(got["note"], r"^ranges: the 100 longest of 3000 are exact, 2900 others merged into \d+ areas$")
        self.assertEqual(sum(n for _, n, *_ in got["by_name"]), 3000)
        self.assertEqual(sum(total for _, _, total, *_ in got["by_name"]), sum(lengths))

    def test_deep_and_many_names(self) -> None:
        deep = [begin(100 + i, f"d{i}") for i in range(30)] + [end(200 + i) for i in range(30)]
        got = self.bands(*deep)
        self.assertEqual((len(got["rows"]), len(got["t0"])), (bands.ROWS, bands.ROWS))
        self.assertEqual(got["note"], "ranges: 6 are not drawn, deeper than 24 rows or of further threads")
        names = [e for i in range(60) for e in (begin(100 + 2 * i, f"x{i}"), end(101 + 2 * i))]
        with mock.patch.object(bands, "NAMES", 50):
            one = bands.Bands(1000, 0, 1 << 53)
            for e in names:
                one.apply(e)
            got = one.data(42)
        self.assertEqual((len(got["by_name"]), got["other_names"]), (bands.LISTED, 51 - bands.LISTED))
        self.assertEqual(got["by_name"][0][:3], [bands.OTHERS, 10, 10])

    def test_a_part_of_the_time(self) -> None:
        got = self.bands(*NESTED, options=("--from", "0.00000045", "--to", "0.00000055"))
        self.assertEqual({n for n, *_ in shown(got)}, {"step", "backward", "prefetch"})

    def test_picture(self) -> None:
        text = self.plot(self.write(trace(*NESTED)), kind="svg").read_text()
        self.assertIn("range begins (NVTX)", text)
        self.assertNotIn("range begins (NVTX)", self.plot(self.write(trace()), kind="svg").read_text())


class InBrowser(BrowserCase):
    def show(self, *ranges: Event) -> None:
        self.browser.open(self.plot(self.write(trace(*ranges))))

    def tearDown(self) -> None:
        problems, self.browser.problems = self.browser.problems, []
        # The tests read pixels back more than once, which Chromium remarks on.
        self.assertEqual(([p for p in problems if "willReadFrequently" not in p], self.state()["errors"]), ([], []))

    def state(self) -> Any:
        return self.browser.evaluate("cupoolPlot.state()")

    def text(self, selector: str) -> str:
        return str(self.browser.evaluate(f"document.querySelector('{selector}').textContent"))

    def index(self, name: str) -> int:
        return int(self.browser.evaluate(f"(b => b.name.findIndex(n => b.names[n] === '{name}'))(cupoolPlot.data.processes[0].bands)"))

    def at(self, name: str) -> "tuple[float, float]":
        self.browser.evaluate("document.querySelector('#bands').scrollIntoView({block: 'center'})")
        self.browser.frame()
        at = self.browser.evaluate(f"cupoolPlot.locateBand({self.index(name)})")
        return at["x"], at["y"]

    def search(self, text: str) -> None:
        self.browser.evaluate(f"(e => {{ e.focus(); e.value = '{text}'; e.dispatchEvent(new Event('input')); }})(document.querySelector('#find'))")
        self.browser.frame()

    def painted(self) -> str:
        return str(self.browser.evaluate("document.querySelector('#bands canvas').toDataURL()"))

    def test_hidden_without_ranges(self) -> None:
        self.show()
        self.assertTrue(self.browser.evaluate("document.querySelector('#bands').hidden"))
        self.browser.key("/")
        self.show(*NESTED)
        self.assertFalse(self.browser.evaluate("document.querySelector('#bands').hidden"))
        self.assertNotIn("NVTX", self.text("#legend"))

    def test_colors(self) -> None:
        """One colour a name, and another one in the dark."""
        self.show(*NESTED)
        seen = []
        for scheme in ("light", "dark"):
            self.browser.colors(scheme)
            self.browser.frame()
            for name in ("step", "forward", "NCCL: reduce"):
                x, y = self.at(name)
                seen.append(self.browser.evaluate(
                    "(() => { const c = document.querySelector('#bands canvas'), r = c.getBoundingClientRect(); "
                    f"return [...c.getContext('2d').getImageData({x} - r.left, {y} - r.top + 6, 1, 1).data]; }})()"))
        self.browser.colors("light")
        self.assertEqual(len({tuple(c) for c in seen}), 6, seen)
        self.assertTrue(all(min(c[:3]) > 130 for c in seen[:3]) and all(max(c[:3]) < 150 for c in seen[3:]), seen)

    def test_pointing(self) -> None:
        self.show(*NESTED)
        self.browser.mouse("mouseMoved", *self.at("layer"))
        self.browser.frame()
        hover = self.state()["hover"]
        self.assertEqual((hover["kind"], hover["band"], hover["title"]), ("bands", self.index("layer"), "layer"))
        self.assertIn("in step > forward", "\n".join(hover["lines"]))
        self.browser.click(*self.at("layer"))
        view = self.state()["view"]
        self.assertTrue(100 < view["t0"] < 120 and 180 < view["t1"] < 220, view)
        self.assertIn("layer: 60 ns, from 0.000000120 s to 0.000000180 s; main thread; in step > forward", self.text("#band"))

    def test_names_at_the_crosshair(self) -> None:
        self.show(*NESTED)
        self.browser.evaluate("document.querySelector('#charts').scrollIntoView({block: 'center'})")
        self.browser.frame()
        at = self.browser.evaluate("cupoolPlot.locateTime(0, 150)")
        self.browser.mouse("mouseMoved", at["x"], at["y"])
        self.browser.frame()
        self.assertEqual(self.state()["hover"]["ranges"], ["step", "forward", "layer"])
        self.assertIn("in step\n  forward\n  layer", self.text("#tip"))

    def test_search(self) -> None:
        self.show(*NESTED, begin(800, "forward"), end(900))
        plain = self.painted()
        self.search("FORW")
        self.assertEqual(self.text("#found"), "2 of 7")
        self.assertNotEqual(self.painted(), plain)
        for key, t in (("Enter", 110), ("Enter", 800), ("Enter", 110)):
            self.browser.key(key)
            self.assertEqual(self.browser.evaluate("cupoolPlot.data.processes[0].bands.t0[cupoolPlot.state().band]"), t)
        self.browser.key("Enter", modifiers=8)  # Shift
        self.assertEqual(self.browser.evaluate("cupoolPlot.data.processes[0].bands.t0[cupoolPlot.state().band]"), 800)
        self.assertIn("forward: ", self.text("#band"))
        self.browser.key("Escape")
        self.assertEqual((self.text("#found"), self.state()["find"]), ("", ""))

    def test_keys(self) -> None:
        """All ranges can be reached without a mouse, and what is chosen is said."""
        self.show(*NESTED)
        self.browser.evaluate("document.querySelector('#bands canvas.over').focus()")
        names = []
        for key in ("ArrowDown", "ArrowDown", "ArrowDown", "ArrowUp", "n", "p", "ArrowUp"):
            self.browser.key(key)
            names.append(self.text("#band").split(":")[0])
        self.assertEqual(names, ["step", "forward", "layer", "forward", "backward", "forward", "step"])
        self.browser.key("Enter")
        view = self.state()["view"]
        self.assertTrue(60 < view["t0"] < 100 and 700 < view["t1"] < 740, view)
        self.assertEqual(self.browser.evaluate("document.querySelector('#band').getAttribute('role')"), "status")
        self.assertRegex(self.browser.evaluate("document.querySelector('#bands canvas.over').getAttribute('aria-label')"), "ranges of rank 0 over time, in 5 rows")

    def test_table(self) -> None:
        self.show(*NESTED)
        row = "[...document.querySelectorAll('#bands tbody tr')].map(r => [...r.children].map(c => c.textContent))"
        self.assertEqual(self.browser.evaluate(row)[:2], [["step", "1", "600 ns", "600 ns", "0.000000100 s"], ["prefetch", "1", "270 ns", "270 ns", "0.000000330 s"]])
        self.browser.evaluate("document.querySelectorAll('#bands tbody button')[1].click()")
        self.browser.frame()
        self.assertEqual((self.state()["find"], self.state()["band"]), ("prefetch", self.index("prefetch")))

    def test_merged(self) -> None:
        ranges = [e for i in range(400) for e in (begin(100 + 2 * i, "tiny"), end(101 + 2 * i))]
        with mock.patch.object(plot, "RANGES", (64, 64)), mock.patch("sys.stdout"):
            from cupool_trace import cli
            out = self.dir / "m.html"
            self.assertEqual(cli.main(["plot", self.write(trace(*ranges)), "-o", str(out)]), 0)
        self.browser.open(out)
        self.assertIn("the 64 longest of 400 are exact, 336 others merged", self.text("#notes"))
        self.search("tiny")
        self.assertEqual(self.text("#found"), "64 of 64 drawn, 336 more not drawn")
        x, y = self.at("tiny")
        self.browser.mouse("mouseMoved", x + 200, y)
        self.browser.frame()
        self.assertRegex(self.text("#tip"), r"^\d+ shorter ranges, not drawn one by one|^tiny")
