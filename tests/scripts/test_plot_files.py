# SPDX-License-Identifier: Apache-2.0
"""Tests of cupool-trace plot: the files that it writes, a page, an SVG or a PNG.

Not here: whether they look good.
"""

import gzip
import json
import random
import re
import struct
import sys
import unittest
import xml.etree.ElementTree
import zlib

import test_trace_fuzz
from made_traces import MIB, ROOT, Event, ev, good, header, text
from plots import Page, PlotCase, life, outgrown

sys.path.insert(0, str(ROOT / "scripts"))
from cupool_trace import picture, plot  # noqa: E402

HOSTILE = "\x07 \ud800 </script><script>alert(1)</script><!-- &amp; \u2028 '\""

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
        marks = [[0, kind, 1, ""] for kind in ("oom", "trim", "policy", "ipc", "ask", "mark", "gap", "end", "killed")]
        tracks: list[Event] = [{"marks": marks, "series": {name: {} for name in series}}
                               for series in (("held", "live", "cached", "registered", "host", "past"), ("held",))]
        for letter in (picture.Svg.letter, picture.Raster.letter):
            keys = picture.legend([{"bands": {"t0": [0], "row": [0], "rows": [{"depth": 0}]}}], tracks, letter)
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
