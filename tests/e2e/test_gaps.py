# SPDX-License-Identifier: Apache-2.0
"""A trace that does not grow without end (CUPOOL_TRACE_LIMIT), does not take the speed of a program that allocates all the time, and
says what it leaves out.
"""

import signal
import subprocess
import sys
import unittest
from typing import Any

from e2e import BIN, MIB, TRACE_TOOL, Case, Trace, app

ALLOCS = {"CUPOOL_TRACE_EVENTS": "segment,alloc"}
NO_CACHE = {"CUPOOL_DECAY": "0"}  # each request is a segment


class Base(Case):
    def gaps(self, trace: Trace) -> "list[dict[str, Any]]":
        gaps = trace.of("gap")
        for key in ("segments", "blocks", "others", "bytes", "since"):
            self.assertTrue(all(g[key] >= 0 for g in gaps))
        return gaps

    def assert_all_counted(self, trace: Trace, dropped: int = 0) -> None:
        """Events that are not in the file are in the gaps' counters, and the end has the memory that is held."""
        seen = len(trace.of("segment_alloc", "segment_free"))
        out = sum(g["segments"] for g in self.gaps(trace))
        self.assertEqual(seen + out + dropped, trace.total("segments_alloc") + trace.total("segments_free"))
        last = len(trace.events) - 1 - [e["e"] for e in trace.events[::-1]].index("gap")
        told = {(e["d"], e["b"]): e["n"] for e in trace.events[last:] if e["e"] == "held"}
        for e in trace.events[last:]:  # what came after that
            if e["e"] in ("segment_alloc", "segment_free"):
                told[e["d"], e["b"]] += e["n"] if e["e"] == "segment_alloc" else -e["n"]
        self.assertEqual(sum(told.values()), trace.total("held"))

    def checked(self, trace: Trace) -> str:
        done = subprocess.run([sys.executable, TRACE_TOOL, "check", trace.path], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout


class Limit(Base):
    def test_segments(self) -> None:
        done = self.go(app("shared"), f"alloc:1:{3 * MIB}", "churn:400:3200000", f"alloc:1:{9 * MIB}", CUPOOL_TRACE_LIMIT="20K", **NO_CACHE)
        trace = self.one_trace(done)
        self.assertLess(trace.path.stat().st_size, 20480 + 1500)  # lines that are always written come on top
        self.assertGreater(len(trace.of("segment_alloc")), 50)
        first, *_, last = self.gaps(trace)
        self.assertEqual((first["why"], first["open"], first["segments"] + first["others"], last["why"], last["open"]), ("limit", 1, 1, "limit", 0))
        self.assertEqual(first["since"], last["since"])
        self.assertTrue(trace.ended)
        self.assertEqual(trace.events[-1]["dropped"], 0)
        self.assert_all_counted(trace)
        self.assertRegex(self.checked(trace), r": ok; ended; \d+ events were left out from [\d.]+ s on \(limit\); \d+ lines; 2 segments live at its end\n")
        self.assertEqual(done.err, "")

    def test_allocations(self) -> None:
        trace = self.one_trace(self.go(app("shared"), "churn:5000:4096", "churn:50:5000000", CUPOOL_TRACE_LIMIT="200K", **ALLOCS))
        self.assertLess(trace.path.stat().st_size, 204800 + 1500)
        gaps = self.gaps(trace)
        events = len(trace.of("alloc", "free_requested", "free_completed"))
        self.assertGreater(events, 1000)
        self.assertEqual(events + sum(g["blocks"] for g in gaps), 3 * 5050)
        self.assert_all_counted(trace)
        self.checked(trace)

    def test_none(self) -> None:
        trace = self.one_trace(self.go(app("shared"), "churn:400:3200000", CUPOOL_TRACE_LIMIT="0", **NO_CACHE))
        segments = len(trace.of("segment_alloc"))
        self.assertEqual((trace.of("gap"), segments), ([], trace.of("stats")[-1]["misses"]))
        self.assertGreater(segments, 100)
        self.assert_fine(trace.path)

    def test_always_written(self) -> None:
        trace = self.one_trace(self.go(app("shared"), "churn:5:5000000", "reset", "churn:5:5000000", CUPOOL_TRACE_LIMIT="1", **NO_CACHE))
        self.assertEqual({e["e"] for e in trace.events}, {"device", "policy", "gap", "held", "stats", "end"})
        self.assertEqual(len(trace.of("policy")), 2)

    def test_killed(self) -> None:
        trace = self.one_trace(self.go(app("shared"), "churn:400:3200000", "kill", CUPOOL_TRACE_LIMIT="20K", rc=-signal.SIGKILL, **NO_CACHE))
        self.assertEqual({(gap["why"], gap["open"]) for gap in self.gaps(trace)}, {("limit", 1)})
        self.assertIn("(no end line); events were left out from ", self.checked(trace))


class Rate(Base):
    def test_a_program_without_a_cache(self) -> None:
        trace = self.one_trace(self.go(BIN / "report_shared", "churn:20000:5000000", **NO_CACHE))
        written = len(trace.of("segment_alloc", "segment_free", "trim"))
        self.assertGreaterEqual(written, 16384)
        self.assertLess(written, 16384 + 2000 * (1 + trace.events[-1]["t"] // 1000000000))
        self.assertEqual({g["why"] for g in self.gaps(trace)}, {"rate"})
        self.assert_all_counted(trace)
        self.checked(trace)

    def test_not_with_allocation_events(self) -> None:
        trace = self.one_trace(self.go(BIN / "report_shared", "churn:7000:5000000", **NO_CACHE, **ALLOCS))
        self.assertEqual((trace.of("gap"), trace.total("segments_alloc")), ([], len(trace.of("segment_alloc"))))
        self.assert_fine(trace.path)


class Error(Base):
    def test_what_was_lost_is_no_fault(self) -> None:
        """Where the disk was full for a while, nobody takes what follows for contradictions."""
        for then in [], ["reset"]:  # a rare event, or one of the frequent ones, is the first that can be written again
            with self.subTest(then=then):
                self.lost(then)

    def lost(self, then: "list[str]") -> None:
        done = self.go(app("shared"), f"alloc:1:{3 * MIB}", "fsize:9000", "churn:100:5000000", "free:1", "fsize:-1", *then, f"alloc:1:{7 * MIB}",
                       "churn:20:5000000", CUPOOL_TRACE_FILE="t.jsonl", **NO_CACHE)
        self.assertEqual(len(done.warnings), 1, done.err)
        text = (done.cwd / "t.jsonl").read_text()
        half = [line for line in text.split("\n")[:-1] if not line.endswith("}")]
        self.assertLessEqual(len(half), 1)
        (done.cwd / "t.jsonl").write_text("".join(line + "\n" for line in text.split("\n")[:-1] if line not in half))
        trace = self.one_trace(done)
        [gap] = self.gaps(trace)
        self.assertEqual((gap["why"], gap["open"]), ("error", 0))
        (done.cwd / "t.jsonl").write_text(text)
        self.checked(trace)
