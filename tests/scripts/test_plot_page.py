# SPDX-License-Identifier: Apache-2.0
"""Tests of cupool-trace plot's page in a browser: callers, what ran, the capacity, the list of keys. Skipped without Chromium.

Not here: the curves, the map, zooming and many ranks, which are in test_plot_browser.
"""

import os
import unittest
from unittest import mock

from made_traces import BASE, MIB, ev, good, header
from plots import COPY, ViewerCase, called, hash_of


class Page(ViewerCase):
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

    def test_callers_are_sorted_and_chosen(self) -> None:
        """The heads sort, by click and key; the blocks of a chosen caller are strong on the map, and the others faint."""
        names = "[...document.querySelectorAll('#takers tbody tr')].map(r => r.children[0].textContent)"
        button = "document.querySelectorAll('#takers {} button')[{}]"
        self.show(called())
        self.assertEqual(self.browser.evaluate(names), ["app+0x20", "libx.so (make)"])
        for head in (2, 0, 3):
            self.browser.evaluate(button.format("th", head) + ".click()")
            first = self.browser.evaluate(names)
            self.browser.evaluate(button.format("th", head) + ".click()")
            if head != 3:  # of equal numbers the order may stay
                self.assertEqual(self.browser.evaluate(names), first[::-1])
            self.assertEqual(self.browser.evaluate("document.activeElement.textContent"), ["caller", "at the peak", "at the end", "requests"][head])
        before = hash_of(self.browser, "#map canvas")
        self.browser.evaluate(button.format("td", 0) + ".focus()")
        self.browser.key("Enter", text="\r")
        self.browser.frame()
        chosen = self.state()["caller"]
        self.assertIn(chosen, self.browser.evaluate(names))
        self.assertNotEqual(hash_of(self.browser, "#map canvas"), before)
        self.assertEqual(self.browser.evaluate("document.querySelector('#takers [aria-pressed=true]').textContent"), chosen)
        self.browser.evaluate("document.querySelector('#takers [aria-pressed=true]').click()")
        self.browser.frame()
        self.assertIsNone(self.state()["caller"])
        self.assertEqual(hash_of(self.browser, "#map canvas"), before)

    def test_callers_are_searched(self) -> None:
        """By name and by the frames of the stack; the key s begins, and keys of the page are text there."""
        names = "[...document.querySelectorAll('#takers tbody tr')].map(r => r.children[0].textContent)"
        self.show(called())
        self.browser.key("s")
        self.assertEqual(self.browser.evaluate("document.activeElement.id"), "findcaller")
        view = self.state()["view"]
        for key in "LIB-":
            self.browser.key(key)
        self.assertEqual((self.browser.evaluate(names), self.state()["view"]), ([], view))
        self.browser.evaluate("(() => { const f = $('findcaller'); f.value = 'LIBX'; f.dispatchEvent(new Event('input')); })()".replace("$(", "document.getElementById("))
        self.assertEqual(self.browser.evaluate(names), ["libx.so (make)"])
        self.assertEqual(self.browser.evaluate("document.getElementById('takersfound').textContent"), "1 of 2")
        self.browser.evaluate("(() => { const f = document.getElementById('findcaller'); f.value = 'app+0x20'; f.dispatchEvent(new Event('input')); })()")
        self.assertEqual(len(self.browser.evaluate(names)), 2)  # a frame of both

    def test_blocks_coloured_by_caller(self) -> None:
        """Eight callers: six colours, two greys; by box and key; a legend of one row whose names choose."""
        events = [header(), *({"t": i, "e": "frame", "tid": 42, "f": i, "p": hex(i), "at": f"a{i}.so+0x1 ({'long ' * 12}{i})"} for i in range(1, 9)),
                  ev(100, "segment_alloc", p=BASE, n=64 * MIB),
                  *(ev(200 + i, "alloc", p=BASE + 8 * MIB * (i - 1), n=MIB * (9 - i) // 2 + 3 * MIB, f=[i]) for i in range(1, 9)), ev(1000, "end", dropped=0)]
        colors = """[...Array(8).keys()].map(i => { const at = cupoolPlot.locate('block', i), c = document.querySelector('#map canvas');
            const r = c.getBoundingClientRect(); return [...cupoolTest(c).getImageData(Math.round(at.x - r.left), Math.round(at.y - r.top), 1, 1).data].join(); })"""
        self.addCleanup(self.browser.colors, "light")
        self.show(events)
        self.browser.evaluate(COPY)
        self.assertEqual(len(set(self.browser.evaluate(colors))), 1)
        self.browser.key("c")
        for scheme in ("light", "dark"):
            self.browser.colors(scheme)
            seen = self.browser.evaluate(colors)
            self.assertEqual((len(set(seen)), seen[6]), (7, seen[7]), seen)
            legend = self.browser.evaluate("[...document.querySelectorAll('#callers .swatch')].map(s => getComputedStyle(s).backgroundColor)")
            self.assertEqual([f"rgb({', '.join(s.split(',')[:3])})" for s in seen[:7]], legend)
        tops = self.browser.evaluate("[...document.querySelectorAll('#callers > *')].map(e => e.getBoundingClientRect()).map(r => [Math.round(r.top / 4), r.right < innerWidth])")
        self.assertEqual((len(tops), len({top for top, _ in tops}), all(inside for _, inside in tops)), (7, 1, True), tops)
        self.browser.evaluate("document.querySelectorAll('#callers button')[1].focus()")
        self.browser.key("Enter", text="\r")
        self.assertIn("2)", self.state()["caller"])
        self.assertEqual(self.browser.evaluate("document.activeElement.getAttribute('aria-pressed')"), "true")
        self.assertEqual([a == b for a, b in zip(self.browser.evaluate(colors), seen)], [i == 1 for i in range(8)])
        self.browser.evaluate("document.getElementById('coloured').click()")
        self.assertEqual((self.state()["coloured"], self.browser.evaluate("document.getElementById('callers').hidden")), (False, True))
        self.show(good())
        self.browser.key("c")
        self.assertEqual((self.state()["coloured"], self.browser.evaluate("document.getElementById('colouredbox').hidden")), (False, True))

    def test_what_ran(self) -> None:
        events = called()
        events[0].update(exe="trainer", t0_unix_ns=1795672041772475507)
        events.insert(1, {"t": 1, "e": "device", "tid": 42, "d": 0, "name": "NVIDIA H200", "uuid": "GPU-1", "total": 141 << 30})
        self.show(events)
        about = self.browser.evaluate("document.getElementById('about').textContent")
        self.assertRegex(about, r"^trainer \u00b7 started 2026-11-26 05:47:21 UTC \u00b7 ran 1(\.\d+)? us \u00b7 1 process \u00b7 ")
        self.assertEqual(self.browser.evaluate("document.title"), "trainer: GPU memory over time")
        self.assertIn("GPU has 141.0 GiB", self.browser.evaluate("document.querySelector('#charts h2').textContent"))

    def test_capacity(self) -> None:
        """A line where the curves keep half of the height, else a text at the upper edge."""
        reds = """(() => { const c = document.querySelector('#charts canvas'), d = cupoolTest(c).getImageData(0, 0, c.width, c.height).data;
            const rows = new Array(c.height).fill(0);
            for (let i = 0; i < d.length; i += 4) if (d[i] - Math.max(d[i + 1], d[i + 2]) > 60) rows[Math.floor(i / 4 / c.width)]++;
            const at = cupoolPlot.locateBytes(0, %d);
            return [Math.max(...rows), rows.findIndex(n => n), at.y - c.getBoundingClientRect().top, at.top]; })()"""
        for total, line in ((96 * MIB, True), (141 << 30, False), (0, False)):
            events = called()
            if total:
                events.insert(1, {"t": 1, "e": "device", "tid": 42, "d": 0, "name": "GPU", "uuid": "", "total": total})
            self.show(events)
            self.browser.evaluate(COPY)
            most, first, y, top = self.browser.evaluate(reds % total)
            self.assertEqual(most > 300, line)
            self.assertIn(top, range(96 * MIB, 129 * MIB) if line else range(64 * MIB, 97 * MIB))
            self.assertIn(first, range(int(y) - 20, int(y)) if line else range(20, 36) if total else (-1,))
            label = self.browser.evaluate("document.querySelector('#charts canvas').getAttribute('aria-label')")
            self.assertEqual("the GPU has" in label, total > 0, label)

    def test_keys_are_shown(self) -> None:
        """By key and button; keys of the page do nothing meanwhile, and Escape closes the list alone. Every key of the page is in it."""
        opened = "document.getElementById('keys').open"
        self.show(good())
        self.browser.key("+")
        view = self.state()["view"]
        self.browser.key("?")
        self.assertTrue(self.browser.evaluate(opened))
        self.browser.key("-")
        self.browser.key("Escape", windowsVirtualKeyCode=27)
        self.assertEqual((self.browser.evaluate(opened), self.state()["view"]), (False, view))
        self.browser.evaluate("document.getElementById('help').click()")
        self.assertTrue(self.browser.evaluate(opened))
        self.assertEqual(self.browser.evaluate("document.activeElement.id"), "keysclose")
        said = set(self.browser.evaluate("[...document.querySelectorAll('#keys kbd')].map(k => k.textContent)"))
        self.assertLessEqual({*"+-0fc[]s/?pn", "Esc", "Home", "Enter", "\u2190", "\u2191"}, said)
        self.browser.evaluate("document.getElementById('keysclose').click()")
        self.assertFalse(self.browser.evaluate(opened))

    def test_settings_that_are_not_default(self) -> None:
        events, program = good(), self.dir / "cupool-info"
        program.write_text("#!/bin/sh\nprintf 'CUPOOL_FREE=auto\\n    x.\\n    accepted: a|b; default: auto; value from: default\\n'\n")
        program.chmod(0o755)
        about = "document.getElementById('about').textContent"
        for free, said in (("relaxed", "settings: CUPOOL_FREE=relaxed"), ("auto", "default settings")):
            events[0]["settings"] = {"CUPOOL_FREE": free}
            with mock.patch.dict(os.environ, PATH=f"{self.dir}:{os.environ['PATH']}"):
                self.show(events)
            self.assertIn(f" \u00b7 {said} \u00b7 ", self.browser.evaluate(about))

    def test_equal_notes_share_a_line(self) -> None:
        """A page of 512 devices had 512 lines that said one thing."""
        events = [good()[0], *(e for e in good()[1:] if e["e"] not in ("alloc", "free_requested", "free_completed", "stats"))]
        self.show(*([{**events[0], "events": "segment"}, *events[1:]] for _ in range(6)))
        items = self.browser.evaluate("[...document.querySelectorAll('#notes li')].map(l => l.textContent)")
        self.assertEqual([i for i in items if "live memory and blocks are unknown" in i],
                         [i for i in items if i.startswith("rank 0, device 0 and 5 others: live memory and blocks are unknown")])
        self.assertEqual(len([i for i in items if "unknown" in i]), 1, items)
