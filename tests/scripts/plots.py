# SPDX-License-Identifier: Apache-2.0
"""Made traces to plot, the page of cupool-trace plot taken apart, and the base of the tests of it."""

import contextlib
import html.parser
import io
import json
import random
import sys
import unittest
from pathlib import Path
from typing import Any, Iterator, Optional
from unittest import mock

import chromium
from made_traces import BASE, MIB, ROOT, Case, Event, ev, header

sys.path.insert(0, str(ROOT / "scripts"))
from cupool_trace import cli, plot  # noqa: E402

class Page(html.parser.HTMLParser):
    """The parts of a page that a browser would load, run or show."""

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


class BrowserCase(PlotCase):
    """Pages in one browser for all tests of a class; without a browser they are skipped."""

    browser: chromium.Browser

    @classmethod
    def setUpClass(cls) -> None:
        program = chromium.find()
        if not program:
            raise unittest.SkipTest("no Chromium")
        try:
            cls.browser = chromium.Browser(program)
        except OSError as e:
            raise unittest.SkipTest(f"Chromium does not start: {e}") from e
        cls.addClassCleanup(cls.browser.close)


# A context of a copy: many reads of one canvas make the browser complain.
COPY = """window.cupoolTest = c => { const g = Object.assign(document.createElement('canvas'), {width: c.width, height: c.height}).getContext('2d');
    g.drawImage(c, 0, 0); return g; }; 0"""


def hash_of(browser: chromium.Browser, selector: str) -> str:
    return str(browser.evaluate(f"document.querySelector({json.dumps(selector)}).toDataURL()"))


class ViewerCase(BrowserCase):
    """A page in the browser, and what a person does with it."""

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

    def point(self, selector: str, where: str) -> tuple[float, float]:
        self.into_view(selector)
        at = self.browser.evaluate(f"cupoolPlot.{where}")
        self.browser.mouse("mouseMoved", at["x"], at["y"])
        self.browser.frame()
        return at["x"], at["y"]

    def point_at(self, kind: str, index: int) -> tuple[float, float]:
        return self.point("#map", f"locate('{kind}', {index})")

    def point_at_time(self, track: int, t: int) -> tuple[float, float]:
        return self.point("#charts", f"locateTime({track}, {t})")

    def painted(self, selector: str) -> int:
        """Pixels of a canvas that are not empty."""
        got = self.browser.evaluate(f"(() => {{ const c = document.querySelector({json.dumps(selector)}); let n = 0; "
                                    "const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data; "
                                    "for (let i = 3; i < d.length; i += 4) if (d[i]) n++; return n; })()")
        return int(got)
