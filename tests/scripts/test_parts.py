# SPDX-License-Identifier: Apache-2.0
"""Tests of parts of cupool-trace in this process, where a trace that shows a mistake would take too long to run."""

import json
import random
import re
import tempfile
import unittest
import unittest.mock
from pathlib import Path

from made_traces import BASE, ROOT, ev, header

from cupool_trace import export, ranges, reader, replay, schema


def one_by_one(path: Path) -> "list[reader.Entry]":
    return list(reader.Reader(str(path), reader.Problems()).events())


class Parts(unittest.TestCase):
    """Parts of the commands whose mistakes only a long trace would show."""

    def test_counters(self) -> None:
        """The event `stats` has the traced rows of the library's list, and what went past the pool."""
        rows = re.findall(r"^COUNTER\((\w+), ([01])\)", (ROOT / "pool/counters.def").read_text(encoding="utf-8"), re.M)
        self.assertEqual({name for name, traced in rows if traced == "1"} | {"bypassed"}, {*schema.STATS, "bound", "helped", "paused"})  # not in older traces

    def test_counters_for_prometheus(self) -> None:
        """Every counter of the statistics page has a metric: others would be left out without a word."""
        pool = set(re.findall(r"^COUNTER\((\w+),", (ROOT / "pool/counters.def").read_text(encoding="utf-8"), re.M))
        host = set(re.findall(r"^HOST_(?:COUNTER|OWN)\((\w+)\)", (ROOT / "pool/host_counters.def").read_text(encoding="utf-8"), re.M))
        self.assertLess({"allocs", "helped"}, pool)
        self.assertLess({"allocs", "passing"}, host)
        self.assertEqual(set(export.METRICS), pool | {"bypassed"})
        self.assertEqual(set(export.HOST), host)

    def test_ranges(self) -> None:
        """Against a list that is searched from its beginning to its end. Lists of eight are split and emptied all the time."""
        with unittest.mock.patch.object(ranges, "LONG", 8):
            for seed in range(20):
                r = random.Random(seed)
                there, known = ranges.Ranges(), {}  # start: end
                for k in range(400):
                    start = r.randrange(1000)
                    end = start + r.randrange(1, r.choice([20, 400]))
                    met = sorted(s for s, e in known.items() if s < end and e > start)
                    self.assertEqual(there.overlapping(start, end), met)
                    self.assertEqual(there.end_of(start), max((e for s, e in known.items() if s <= start < e), default=0))
                    if met or r.random() < (0.9 if k % 200 < 120 else 0.1):
                        self.assertEqual(there.add(start, end, k, k), not met)
                        if not met:
                            known[start] = end
                    elif known:
                        gone = r.choice(list(known))
                        self.assertEqual(there.pop(gone)[0], known.pop(gone))
                        self.assertNotIn(gone, there)
                    self.assertEqual([(s, e) for s, e, _ in there.items()], sorted(known.items()))
                    self.assertEqual(len(there), len(known))

    def test_segment_at(self) -> None:
        """Against all segments, which are so small that several share what is remembered of their neighbourhood."""
        with unittest.mock.patch.object(replay, "MOST_PAGES", 3):
            for seed in range(20):
                r = random.Random(seed)
                device = replay.Device()
                known: dict[int, int] = {}  # start: end
                for k in range(1000):
                    start = r.choice([0, BASE]) + (r.randrange(16) << replay.PAGE - 2)
                    if r.random() < 0.1:
                        if start in known:
                            device.end_segment(start)
                            del known[start]
                        else:
                            end = start + (r.randrange(1, 12) << replay.PAGE - 2)
                            if device.segments.add(start, end, end - start, k):
                                known[start] = end
                    p, n = start + r.randrange(-1000, 1 << replay.PAGE), r.randrange(1, 1 << replay.PAGE)
                    found = device.segment_at(max(0, p), n)
                    expected = [e for s, e in known.items() if s <= max(0, p) and max(0, p) + n <= e]
                    self.assertEqual([found[0]] if found else [], expected)

    def test_order(self) -> None:
        """An event that is out of place by less than the window finds its place, and a thread's events stay in their order."""
        for seed in range(50):
            r = random.Random(seed)
            window = r.randrange(1, 40)
            events = [{"t": t // 3, "tid": 0} for t in range(500)]
            # By places that are off by less than the window.
            lines = sorted(range(500), key=lambda i: i + r.random() * (window - 1))
            entries: list[reader.Entry] = [(events[i]["t"], line, events[i]) for line, i in enumerate(lines)]
            got = list(reader.in_time_order(entries, window))
            self.assertEqual([e["t"] for _, _, e in got], [e["t"] for e in events])
            for (_, a, x), (_, b, y) in zip(got, got[1:]):
                self.assertTrue(x["t"] < y["t"] or a < b)

    def test_a_thread_keeps_its_order(self) -> None:
        """Also one whose time goes back, which is a problem each time; what another thread did meanwhile is none."""
        with tempfile.TemporaryDirectory() as folder:
            for seed in range(20):
                r = random.Random(seed)
                events = [header(), *(ev(r.randrange(1, 100), r.choice(["alloc", "free_completed", "trim"]), p=BASE, n=512, why="oom", tid=r.randrange(3))
                                      for _ in range(300))]
                path = Path(folder) / "t.jsonl"
                # Blanks or none: both ways through a line.
                path.write_text("".join(json.dumps(e, separators=(",", r.choice([":", ": "]))) + "\n" for e in events))
                problems = reader.Problems()
                one = reader.Reader(str(path), problems)
                got = list(reader.in_time_order(one.events(), r.randrange(1, 40)))
                self.assertEqual(sorted(line for _, line, _ in got), list(range(2, 302)))
                for tid in range(3):
                    mine = [line for _, line, e in got if e["tid"] == tid]
                    self.assertEqual(mine, sorted(mine))
                own = [[e["t"] for e in events[1:] if e["tid"] == tid] for tid in range(3)]
                self.assertEqual(problems.count, sum(b < a for t in own for a, b in zip(t, t[1:])))
                self.assertEqual(one.last_t, max(map(max, own)))
                # Events that no command wants are checked all the same, and nothing else is missing then.
                fewer_problems = reader.Problems()
                fewer = reader.Reader(str(path), fewer_problems, frozenset(["free_completed"]))
                self.assertEqual([(t, line) for t, line, _ in fewer.events()], [(t, line) for t, line, e in one_by_one(path) if e["e"] != "free_completed"])
                self.assertEqual((fewer_problems.kept, fewer_problems.count, fewer.last_t), (problems.kept, problems.count, one.last_t))
                self.assertEqual(fewer.left_out, sum(e.get("e") == "free_completed" for e in events))
