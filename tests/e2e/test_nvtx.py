# SPDX-License-Identifier: Apache-2.0
"""Ranges and marks of NVTX: in the trace with cupool-run --nvtx, in a profiler's hands if one is there, and gone otherwise."""

import json
import re
import unittest

from e2e import BIN, INFO, LIB, SOURCE, TRACE_TOOL, Case, Done, need

RUN = SOURCE / "scripts/cupool-run"
PROGRAM = BIN / "nvtx"
TOOL = BIN / "nvtx_tool.so"


@unittest.skipUnless(PROGRAM.exists(), "NVTX's header is not here")
class Nvtx(Case):
    def run_it(self, *options: str, program: "tuple[object, ...]" = (PROGRAM,), **env: object) -> Done:
        return self.go(RUN, *options, "--", *program, preload=None, **{"BUILDDIR": INFO.parents[1], **env})

    def events(self, done: Done) -> "list[tuple[object, ...]]":
        return [(e["e"], e.get("text"), e.get("domain"), e.get("range"))
                for e in self.one_trace(done).of("mark", "range_begin", "range_end")]

    def test_each_kind(self) -> None:
        done = self.run_it("--nvtx")
        trace = self.one_trace(done)
        b, e = "range_begin", "range_end"
        self.assertEqual(self.events(done), [
            (e, None, "", 0),  # of a range that began before there was a trace
            (b, "outer", "", 0), (b, "registered", 'lib"rary', 0), (e, None, 'lib"rary', 0),
            (b, "€ 😀", "dömain", 1), ("mark", "€ 😀", None, None), (e, None, "dömain", 1), (e, None, "", 0),
            (b, "crossing", "", 2), (b, "thread", "", 0), (e, None, "", 2), (e, None, "", 0),
            ("mark", 'mark "a"', None, None), ("mark", "mark ü", None, None), ("mark", "", None, None),
            (b, "ascii", "", 0), (e, None, "", 0), (b, "unicode", "", 3), (e, None, "", 3), (b, "start", "", 4), (e, None, "", 4),
            (b, "left open", "", 0)])
        tids = {x["text"]: x["tid"] for x in trace.of(b)}
        self.assertNotEqual(tids["thread"], tids["outer"])
        self.assert_fine(trace.path)

    def test_returns_are_as_without_a_tool(self) -> None:
        native = self.go(PROGRAM, preload=None)
        self.assertEqual(native.out.replace("start 0", "start 1"), self.run_it("--nvtx").out)

    def test_long_texts_are_cut(self) -> None:
        done = self.run_it("--nvtx", program=(PROGRAM, "x" * 5000))
        self.assertIn("x" * 300, [str(text)[:300] for _, text, _, _ in self.events(done)])
        self.assert_fine(self.one_trace(done).path)

    def test_off_by_default(self) -> None:
        self.assertEqual(self.events(self.run_it()), [])
        self.assertEqual(self.events(self.go(PROGRAM)), [])

    def test_a_profiler_goes_first(self) -> None:
        """Its variable stays, and the user is told. Without --nvtx nothing is said."""
        for options in (("--nvtx",), ()):
            done = self.run_it(*options, NVTX_INJECTION64_PATH=TOOL)
            self.assertIn("profiler: outer\n", done.out)
            self.assertEqual(self.events(done), [])
            self.assertEqual(f"--nvtx: NVTX_INJECTION64_PATH is set, so the ranges go to {TOOL}\n" in done.err, bool(options))
        # One that is started by the launcher puts its own path into the variable.
        done = self.run_it("--nvtx", program=("env", f"NVTX_INJECTION64_PATH={TOOL}", PROGRAM))
        self.assertIn("profiler: outer\n", done.out)
        self.assertEqual(self.events(done), [])

    def test_nested_launchers(self) -> None:
        done = self.run_it("--nvtx", program=(RUN, "--nvtx", "--register", PROGRAM))
        self.assertIn("outer", [text for _, text, _, _ in self.events(done)])
        self.assertNotIn("--nvtx", done.err)

    def test_switched_off(self) -> None:
        self.assertEqual(self.run_it("--nvtx", CUPOOL_ENABLE="0").out, self.go(PROGRAM, preload=None).out)

    def test_not_preloaded(self) -> None:
        """The variable outlives the preload in a child: the library, loaded late, refuses or does nothing."""
        native = self.go(PROGRAM, preload=None)
        done = self.go(PROGRAM, preload=None, NVTX_INJECTION64_PATH=LIB)
        self.assertEqual((done.out.replace("start 1", "start 0"), done.err, done.files), (native.out, "", []))

    def test_drawn(self) -> None:
        done = self.run_it("--nvtx")
        [path] = [t.path for t in done.traces()]
        need("python3")
        self.go("python3", TRACE_TOOL, "to-perfetto", path, "-o", self.tmp / "p.json", preload=None)
        events = json.loads((self.tmp / "p.json").read_text())["traceEvents"]
        slices = [e["name"] for e in events if e.get("cat") == "NVTX" and e["ph"] == "B"]
        self.assertEqual(slices, ["outer", "registered", "thread", "ascii", "left open"])
        self.assertEqual(len([e for e in events if e["ph"] == "E"]), 4)
        asynchronous = [(e["ph"], e["name"]) for e in events if e["ph"] in "be"]
        self.assertEqual(asynchronous, [(ph, name) for name in ("€ 😀", "crossing", "unicode", "start") for ph in "be"])
        self.go("python3", TRACE_TOOL, "plot", path, "-o", self.tmp / "p.html", preload=None)
        data = re.search(r'<script type="application/json" id="data">(.*?)</script>', (self.tmp / "p.html").read_text())
        assert data
        bands = json.loads(data[1])["processes"][0]["bands"]
        self.assertEqual({bands["names"][k] for k in bands["name"]},
                         {"outer", 'lib"rary: registered', "thread", "ascii", "left open", "dömain: € 😀", "crossing", "unicode", "start"})
