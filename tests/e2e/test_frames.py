# SPDX-License-Identifier: Apache-2.0
"""CUPOOL_TRACE_STACKS: allocation events say who asked."""

import re
import unittest

from e2e import MIB, SANITIZE, Case, app

STACKS = {"CUPOOL_TRACE_EVENTS": "segment,alloc", "CUPOOL_TRACE_STACKS": "1"}


class Frames(Case):
    def test_who_asked(self) -> None:
        """Every kind of program: the innermost frame is its own, none is ours, and each number is told once."""
        for kind in ("shared", "static", "driver", "dlsym"):
            with self.subTest(kind):
                done = self.go(app(kind), "alloc:3:4096", f"alloc:2:{3 * MIB}", "churn:20:4096", **STACKS)
                trace = self.one_trace(done)
                self.assert_fine(trace.path)
                frames = {e["f"]: e["at"] for e in trace.of("frame")}
                self.assertEqual(len(frames), len(trace.of("frame")))
                self.assertEqual(len({e["p"] for e in trace.of("frame")}), len(frames))
                allocs = trace.of("alloc")
                self.assertEqual(len(allocs), 25)
                for e in allocs:
                    self.assertTrue(1 <= len(e["f"]) <= 8)
                    names = [frames[f] for f in e["f"]]
                    self.assertFalse([n for n in names if n.startswith("libcupool")], names)
                    # A program that uses dlsym reaches us from inside cudart; the others directly.
                    self.assertRegex(names[0], r"^(app_|libcudart)")
                    self.assertTrue([n for n in names if n.startswith("app_")], names)
                self.assertLess(len(frames), 30)
                self.assertEqual(done.err, "")

    def test_different_callers_differ(self) -> None:
        trace = self.one_trace(self.go(app("static"), "alloc:1:4096", "contents:4096", **STACKS))
        one, other = (tuple(e["f"]) for e in trace.of("alloc"))
        self.assertNotEqual(one, other)

    def test_frees_have_none(self) -> None:
        trace = self.one_trace(self.go(app("shared"), "churn:9:4096", **STACKS))
        self.assertEqual([e for e in trace.of("free_requested", "free_completed") if "f" in e], [])

    def test_threads(self) -> None:
        """All of them need the same numbers at once."""
        trace = self.one_trace(self.go(app("shared"), "threads:8:200:4096", **STACKS))
        self.assert_fine(trace.path)
        told = [e["f"] for e in trace.of("frame")]
        self.assertEqual(len(told), len(set(told)))
        self.assertLessEqual({f for e in trace.of("alloc") for f in e["f"]}, set(told))

    def test_off(self) -> None:
        for env in ({"CUPOOL_TRACE_EVENTS": "segment,alloc"}, {"CUPOOL_TRACE_STACKS": "1"}):
            done = self.go(app("shared"), "churn:9:4096", **env)
            self.assertFalse(re.search(r'"f":|"frame"', self.one_trace(done).text))

    @unittest.skipIf(SANITIZE != "none", "sanitizers need more")
    def test_a_name_that_json_cannot_have(self) -> None:
        import shutil
        odd = self.tmp / 'a "b\\c\nd'
        shutil.copy(app("static"), odd)
        frames = self.one_trace(self.go(odd, "alloc:1:4096", **STACKS)).of("frame")
        self.assertTrue([f for f in frames if f["at"].startswith("a ?b?c?d+0x")], frames)
