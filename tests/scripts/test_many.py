# SPDX-License-Identifier: Apache-2.0
"""cupool-trace summary of a job of 512 ranks: five lines if all are alike, and whatever is not is found. The traces are made here.

Not here: the figures themselves, which test_trace looks at in single traces.
"""

import json
import os
import re
import unittest
from typing import Any

import many
from test_trace import BASE, MIB, Case, Event, ev

RANKS, GIB = 512, 1 << 30
EQUAL = """\
512 processes of app on 64 hosts, 512 devices; 0.000 to 0.000 s, all complete
in all: 61440 requests, 95.0% hits, about 5.95 s saved; 3072 driver calls, 314.9 ms in them; oom 0, trims 0
each: peak held 192.0 MiB, peak live 21.0 MiB, requests 120, driver calls 6
problems: none
out of line: none
"""


def stats_of(events: "list[Event]") -> Event:
    return next(e for e in events if e.get("e") == "stats")


def killed(events: "list[Event]") -> None:
    del events[-40:]


def out_of_memory(events: "list[Event]") -> None:
    events[5:5] = [ev(events[5]["t"], "oom", n=GIB, held=32 * MIB, live=MIB) for _ in range(3)]


def holds_more(events: "list[Event]") -> None:
    at = next(i for i, e in enumerate(events) if e.get("e") == "segment_alloc")
    events.insert(at, ev(events[at]["t"], "segment_alloc", p=BASE + (1 << 40), n=GIB))
    s = stats_of(events)
    s.update(held=s["held"] + GIB, peak_held=s["peak_held"] + GIB, segments_alloc=s["segments_alloc"] + 1)


def strict(events: "list[Event]") -> None:
    events[1]["free"] = "strict"


def other_limit(events: "list[Event]") -> None:
    events[0]["settings"]["CUPOOL_LIMIT"] = "8G"


def faulty(events: "list[Event]") -> None:
    del events[2]


# The changes of one rank, and the lines that name them.
UNLIKE: "list[tuple[many.Change, str]]" = [
    (killed, r"^problems: killed, still running, or its disk was full, no end line: rank 77$"),
    (out_of_memory, r"^problems: out of memory: rank 77; 3 times$"),
    (holds_more, r"^each: peak held 192.0 MiB \(most 1.2 GiB, rank 77\), .*\n(.*\n)+out of line: rank 77: peak held 1.2 GiB \(median 192.0 MiB\)"),
    (strict, r"^out of line: rank 77: free policy auto, strict \(others auto\)$"),
    (other_limit, r"^out of line: rank 77: CUPOOL_LIMIT 8G \(others 0\)$"),
    (faulty, r"^problems: faults in the trace, which check names: rank 77; \d+ times$"),
]


class Many(Case):
    def job(self, ranks: int, changes: "dict[int, many.Change]" = {}, **more: Any) -> "list[str]":
        return many.job(self.dir, ranks, changes=changes, **more)

    def out(self, *args: str, status: int = 0) -> str:
        done = self.run_tool("summary", str(self.dir), *args)
        self.assertEqual((done.returncode, done.stderr), (status, ""))
        return done.stdout

    def test_equal_ranks_take_five_lines(self) -> None:
        self.job(RANKS)
        self.assertEqual(self.out(), EQUAL)
        top = self.out("--top", "3")
        self.assertEqual(top[:len(EQUAL)], EQUAL)
        self.assertEqual(len(top.splitlines()), 5 + 1 + 4)
        self.assertEqual(len(re.findall(r"(?m)^\d+ +node\d+ +\d+ +app +complete", self.out("-v"))), RANKS)
        self.assertEqual(self.run_tool("check", str(self.dir)).returncode, 0)

    def test_one_that_is_unlike_the_others(self) -> None:
        for change, pattern in UNLIKE:
            with self.subTest(change.__name__):
                self.job(100, {77: change}, steps=10)
                out = self.out(status=1 if change is faulty else 0)
                self.assertRegex(out, re.compile(pattern, re.M))
                self.assertEqual(len(out.splitlines()), 5, out)

    def test_many_that_are(self) -> None:
        """They are counted, and the first are named; what is the matter with all of them takes one line."""
        paths = self.job(RANKS, {**dict.fromkeys(range(100, 150), killed), 7: out_of_memory, **dict.fromkeys(range(200, 230), strict)}, steps=10)
        os.unlink(paths[300])
        lines = self.out().splitlines()
        self.assertEqual(lines[3:7], ["problems:", "  out of memory: rank 7; 3 times", "  killed, still running, or its disk was full, no end line: ranks 100-149",
                                      "  rank 300 of 512: no trace given"])
        self.assertEqual(lines[7], "out of line:")
        self.assertEqual(lines[-1], "  and 70 more")
        self.assertEqual(len(lines), 8 + 10 + 1)

    def test_the_most_first(self) -> None:
        self.job(12, {5: holds_more}, steps=4)
        rows = self.out("--top", "2").splitlines()[-2:]
        self.assertEqual([row.split()[0] for row in rows], ["5", "0"])
        self.assertEqual(self.run_tool("summary", str(self.dir), "--top", "0").returncode, 2)

    def test_callers_of_all(self) -> None:
        """The callers that requested memory, added up over all ranks."""
        def called(events: "list[Event]") -> None:
            events[0]["settings"]["CUPOOL_TRACE_STACKS"] = "1"
            events.insert(1, {"t": 1, "e": "frame", "tid": 42, "f": 1, "p": "0x1", "at": "app+0x10 (forward)"})
            for e in events:
                if e.get("e") == "alloc":
                    e["f"] = [1]
        self.job(12, dict.fromkeys(range(12), called), steps=4)
        self.assertRegex(self.out(), r"\n\n1 caller, by .*\ncaller .*\napp \(forward\) +12 +252.0 MiB +0 B +288\n$")

    def test_small_differences_and_few_ranks(self) -> None:
        """A few ranks that do a little more or less are in line; of two neither is the unusual one; of four all is printed."""
        def little(rank: int) -> many.Change:
            return lambda events: stats_of(events).update(peak_live=(21 << 20) + (rank << 18))
        self.job(40, {r: little(r) for r in range(40)}, steps=4)
        self.assertIn("out of line: none", self.out())
        for path in sorted(self.dir.iterdir())[4:]:
            path.unlink()
        self.assertRegex(self.out(), re.compile(r"^3 +0 +cuda", re.M))
        for path in sorted(self.dir.iterdir())[2:]:
            path.unlink()
        strict_one = self.dir / "r0000.jsonl"
        strict_one.write_text(strict_one.read_text().replace('"ordered"', '"strict"'))
        self.assertIn("out of line: none", self.out())

    def test_leaks(self) -> None:
        """Memory that is not freed, by stack, over all ranks: the most bytes first."""
        def leaky(events: "list[Event]") -> None:
            events[1:1] = [{"t": 1, "e": "frame", "tid": 42, "f": f, "p": hex(f), "at": f"app+{f:#x}"} for f in (1, 2, 3)]
            for e in events:
                if e.get("e") == "alloc":
                    e["f"] = [1, 2] if e["n"] == MIB else [3]
            for n in (MIB, 4 * MIB):  # the last free of each
                for kind in ("free_requested", "free_completed"):
                    events.remove([e for e in events if e.get("e") == kind and e["n"] == n][-1])
        self.job(12, dict.fromkeys(range(12), leaky), steps=4)
        done = self.run_tool("leaks", str(self.dir))
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "60.0 MiB in 24 blocks never freed, by 2 stacks\n\n48.0 MiB  12 blocks  12 ranks\n"
                         "    app+0x3\n\n12.0 MiB  12 blocks  12 ranks\n    app+0x1\n    app+0x2\n", ""))
        got = json.loads(self.run_tool("leaks", "--json", "--top", "1", str(self.dir)).stdout)
        self.assertEqual([(o["bytes"], o["blocks"], o["ranks"]) for o in got["stacks"]], [(48 * MIB, 12, 12), (12 * MIB, 12, 12)])
        self.job(2, steps=1)
        self.assertEqual(self.run_tool("leaks", *map(str, sorted(self.dir.iterdir())[:2])).stdout, "nothing is left, as far as the traces tell\n")

    def test_leaks_by_range(self) -> None:
        """Each stack says in which ranges its blocks were asked for: the innermost that the thread had pushed then."""
        def leaky(events: "list[Event]") -> None:
            def put(before: "Event", *more: "Event") -> None:
                events[events.index(before):events.index(before)] = [{"t": before["t"], "tid": 42, **e} for e in more]
            def begin(text: str, domain: str = "", number: int = 0) -> "Event":
                return {"e": "range_begin", "text": text, "domain": domain, "range": number}
            kept = sorted(([e for e in events if e.get("e") == "alloc" and e["n"] == n][-1] for n in (MIB, 4 * MIB)), key=events.index)
            end = {"e": "range_end", "domain": "", "range": 0}
            put(kept[0], end, begin("step"), begin("started", number=7), begin("evaluate"), begin("elsewhere", "domain"), {**end, "domain": "domain"})
            put(kept[1], end)
            events[:] = [e for e in events if not (str(e.get("e")).startswith("free_") and any(e["p"] == k["p"] and e["t"] >= k["t"] for k in kept))]
        self.job(1, {0: leaky}, steps=4)
        text = self.run_tool("leaks", str(self.dir)).stdout
        self.assertIn("    asked for in evaluate (1 block), step (1 block)\n", text)
        got = json.loads(self.run_tool("leaks", "--json", str(self.dir)).stdout)
        self.assertEqual(got["stacks"][0]["ranges"], {"evaluate": 1, "step": 1})

    def test_json(self) -> None:
        self.job(12, {5: holds_more, 6: killed}, steps=4)
        got = json.loads(self.out("--json"))
        self.assertEqual(got["problems"], ["killed, still running, or its disk was full, no end line: rank 6"])
        self.assertEqual({o["rank"] for o in got["out_of_line"]}, {5, 6})
        self.assertEqual(len(got["ranks"]), 12)
