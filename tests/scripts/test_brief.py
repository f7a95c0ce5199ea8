# SPDX-License-Identifier: Apache-2.0
"""The quick ways through a trace give what the thorough ones give: the reader of briefs against Reader, runs of blocks against single ones.

Traces are made up at random, with contradictions, threads that overtake each other, several devices and lines that are no events.
"""

import json
import random
import unittest
import unittest.mock
from typing import Any

from made_traces import BASE, MIB, Case, Event, ev, header, stats

from many import written

from cupool_trace import brief, plot, ranges, reader, record, replay  # noqa: E402

ODD = [b'{"t":5,"e":"alloc","tid":42,"d":0,"p":"0x7","n":0}', b"{}", b"", b'{"t":7', b'{"t":9,"e":"free_requested}', b'\xff\xfe', b'[1]',
       b'{"t":1,"e":"free_requestedX","tid":42,"d":0,"p":"0x7","n":5}', b'{"t":800000,"e":"later_kind","tid":42,"d":0,"p":"0x7f0000000000","n":5}']


def made(r: random.Random, faults: bool) -> "list[Event | bytes]":
    """Segments and blocks on two devices by three threads; faults: what contradicts, and lines that are none."""
    out: "list[Event | bytes]" = [header()]
    live: "dict[int, tuple[int, int, int, int]]" = {}
    t = 10
    for d in (0, 1):
        out += [ev(t, "segment_alloc", d=d, p=BASE + s * 64 * MIB, n=32 * MIB, **({"b": "vmm"} if r.random() < 0.1 else {})) for s in range(3)]
    for _ in range(r.randrange(50, 600)):
        t += r.randrange(3)
        d, tid, n = r.randrange(2) if r.random() < 0.2 else 0, 40 + r.randrange(3), r.choice([512, 700, 1024, 2048, 4096, 5 * MIB])
        p = BASE + r.randrange(3) * 64 * MIB + r.randrange(8) * 4 * MIB + (r.randrange(4) << 9)
        at = t - r.randrange(4) * (r.random() < 0.1)
        known = [k for k, (of, begin, end, _) in live.items() if of == d and begin < p + n + 512 and p < end]
        if r.random() < 0.55 and (faults or not known):
            more: Event = {**({"f": r.choice([[1], [1, 2], [3, 2, 1], []])} if r.random() < 0.7 else {}), **({"block": 8192} if r.random() < 0.1 and faults else {})}
            out.append(ev(at, "alloc", tid=tid, d=d, p=p, n=n, **more))
            live[len(out)] = d, p, p + (n + 511) // 512 * 512, n
        elif live:
            key = r.choice(list(live))
            of, p, _, n = live.pop(key)
            out.append(ev(at, "free_requested", tid=tid, d=of, p=p, n=n + (r.random() < 0.05 and faults)))
            if r.random() < 0.3:
                out.append(ev(t, "trim", tid=41, d=0, n=5, why="oom"))
            out.append(ev(max(at, t) - 4 * (r.random() < 0.05), "free_completed", tid=tid if r.random() < 0.9 else 41, d=of, p=p, n=n))
        if faults and r.random() < 0.05:
            out.append(r.choice(ODD))
        if faults and r.random() < 0.01:
            out.append(ev(t, "segment_free", p=BASE, n=32 * MIB, why="excess"))
    return [*out, stats(t, d=0), ev(t + 1, "end", dropped=0), *([ev(t + 2, "alloc", p=BASE, n=512)] if faults and r.random() < 0.2 else [])]


def content(r: random.Random, lines: "list[Event | bytes]") -> bytes:
    """A line is now and then written in another form than the library's, and the last one may be cut."""
    whole = b"".join(e + b"\n" if isinstance(e, bytes) else json.dumps(e).encode() + b"\n" if r.random() < 0.05 else written([e]) for e in lines)
    return whole[:-3] if r.random() < 0.1 else whole


def briefs(entries: "list[reader.Entry]") -> "list[Any]":
    """Every event of a block as a Brief with its own time, whichever it was."""
    return [(t, line, (e["t"], brief.brief(e)) if type(e) is dict and e["e"] in ("alloc", "free_requested") else (t, e) if type(e) is tuple else e)
            for t, line, e in entries]


class Quick(Case):
    def both(self, path: str) -> None:
        found = []
        for kind in (lambda p, problems: reader.Reader(p, problems, brief.UNWANTED), brief.BriefReader):
            problems = reader.Problems()
            one = kind(path, problems)
            entries = [e for batch in one.batches() for e in batch]
            found.append((briefs(entries), problems.kept, problems.count, one.header, one.lines, one.state, one.last_t, one.left_out))
        self.assertEqual(found[0], found[1])

    def test_reader(self) -> None:
        for seed in range(60):
            r = random.Random(seed)
            path = self.write(content(r, made(r, bool(seed % 3))))
            with self.subTest(seed), unittest.mock.patch.object(reader, "BLOCK", r.choice([300, 5000, 1 << 16])), \
                    unittest.mock.patch.object(brief, "MOST_KNOWN", r.choice([2, 1 << 15])):
                self.both(path)

    def test_first_lines(self) -> None:
        """A free's two lines where the header belongs, and a file of them alone."""
        pair = written([ev(5, "free_requested", p=BASE, n=512), ev(6, "free_completed", p=BASE, n=512)])
        for text in (pair, pair * 3, written([header()]) + pair[:-1], written([header()]) + pair * 2):
            self.both(self.write(text))

    def test_windows(self) -> None:
        for seed in range(40):
            r = random.Random(seed)
            window = r.randrange(1, 30)
            entries: "list[reader.Entry]" = [(max(0, i + r.randrange(-40, 40)), i, {}) for i in range(r.randrange(300))]
            cut = sorted(r.randrange(len(entries) + 1) for _ in range(r.randrange(9)))
            batches = [entries[a:b] for a, b in zip([0, *cut], [*cut, len(entries)])]
            got = [e for part in brief.windows(iter(batches), window) for e in part]
            self.assertEqual(got, list(reader.in_time_order(entries, window)))

    def test_recorder(self) -> None:
        """Runs of blocks, and each block by itself: the same page, the same problems."""
        for seed in range(60):
            r = random.Random(seed)
            path = self.write(content(r, made(r, bool(seed % 2))))
            limits = record.Limits(0, 0, 0, 0, 0, 0)
            limits.points, limits.blocks = r.choice([8, 64, 5000]), r.choice([8, 64, 5000])
            begin, end = r.choice([(0, 1 << 53), (100, 300), (0, 50), (400, 1 << 53)])
            pages = []
            for quick in (True, False):
                kind = record.Recorder if quick else type("Slow", (record.Recorder,), {"blocks": lambda self, entries, at: at})
                with unittest.mock.patch.object(ranges, "LONG", 4 if seed % 4 else 1024):
                    rank = replay.Rank(path, lambda problems: kind(problems, limits, begin, end))
                plot.finish([rank])
                accounts = [(d, backend, {k: getattr(part, k) for k in replay.Part.__slots__ if k != "got"}) for d, dev in rank.replay.devices.items()
                            for backend, part in [(None, dev), *dev.backends.items()]]
                pages.append((plot.page_data([rank], begin, end, limits), rank.problems.kept, rank.live_at_end(), accounts))
            with self.subTest(seed):
                self.assertEqual(pages[0], pages[1])

    def test_largest(self) -> None:
        """Of blocks with equal areas, too, the right ones stay."""
        for seed in range(20):
            r = random.Random(seed)
            ended = [(t, r.randrange(64) << 12, (0, n, 0, None, t - 240 // n)) for t in range(1000, 1400) for n in [r.choice([1, 2, 3, 4, 6, 8])]]
            one, other = (record.Largest(20, record.by_area) for _ in range(2))
            one.add_ended(ended, 1100, 1300)
            for t, p, (_, n, _, _, since) in ended:
                if t >= 1100 and since <= 1300:
                    other.add(record.Box(p, n, since, t, None, None, None, None), t)
            self.assertEqual([(b.p, b.n, b.t0, b.t1) for b in one.boxes], [(b.p, b.n, b.t0, b.t1) for b in other.boxes])
            self.assertEqual(sorted(one.rest.cells.values()), sorted(other.rest.cells.values()))

    def test_runs_are_taken(self) -> None:
        """Nearly all events of a usual trace go the quick way, or nothing would be gained."""
        one_by_one = 0

        class Counted(record.Recorder):
            def block(self, t: int, line: int, e: brief.Brief) -> None:
                nonlocal one_by_one
                one_by_one += 1
                super().block(t, line, e)

        r = random.Random(1)
        rank = replay.Rank(self.write(written([e for e in made(r, False) if isinstance(e, dict)])),
                           lambda problems: Counted(problems, plot.limits_for(1), 0, 1 << 53))
        self.assertGreater(rank.replay.events, 100)
        self.assertLess(one_by_one, rank.replay.events // 20)
