# SPDX-License-Identifier: Apache-2.0
"""Driver functions that fail, each in turn: those that shim/real.h lists, because the library calls them for itself at moments
when the program did not ask for anything like that.

The program must not crash, hang or see wrong data. It may see CUDA's error; what it sees is CUDA's, not an invention.
"""
from __future__ import annotations

import re
import signal
import subprocess
import unittest
from concurrent.futures import ThreadPoolExecutor

from e2e import MIB, SANITIZE, SOURCE, Case, Done, Trace, app

FUNCTIONS = re.findall(r"\(\*(cu\w+)\)\(", (SOURCE / "shim" / "real.h").read_text())

# Out of memory, unknown error, an error of an earlier kernel, not permitted, the driver is going, capture.
CODES = [2, 999, 700, 800, 4, 900]
# Which call fails: the n-th, or from the n-th on.
WHEN = ["1", "2", "7", "1+", "4+"]

WORK = ["tolerate", "alloc:3:4096", "churn:25:100000", f"alloc:2:{3 * MIB}", "free:2", f"churn:8:{5 * MIB}", "free:1", "churn:10:4096"]
ALLOCS = 3 + 25 + 2 + 8 + 10

# The GPU is small enough to run out of: the ladder and giving back run, too.
SMALL = {"SIMGPU_MEMORY": "48M"}
SMALL_WORK = ["tolerate", f"alloc:2:{5 * MIB}", "free:2", f"alloc:3:{4 * MIB}", "free:2", f"churn:10:{7 * MIB}", "free:1",
              "churn:20:4096", "alloc:2:4096"]

# Driver functions whose failure the library can do without: with these failing the program must see no error at all that it does
# not see natively. The others are the ordering itself, without which a free has to fail or wait.
HARMLESS = ["cuDevicePrimaryCtxGetState", "cuDriverGetVersion", "cuThreadExchangeStreamCaptureMode", "cuStreamIsCapturing",
            "cuStreamGetCtx", "cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2"]


class Faults(Case):
    def outcome(self, kind: str, fault: str, work: "list[str]", **env: str) -> Done:
        done = self.go(app(kind), *work, rc=None, SIMGPU_FAULT=fault, **env)
        # 3 without toleration: cudaError before it could be tolerated (start-up).
        self.assertIn(done.rc, (0, 3), f"{fault} {kind}: {done.out}{done.err}")
        self.assertNotIn("wrong data", done.out)
        return done

    def errors(self, done: Done) -> "set[int]":
        return {int(n) for n in re.findall(r"^error (\d+) in", done.out, re.M)}

    def test_the_table_was_read(self) -> None:
        self.assertGreaterEqual(len(FUNCTIONS), 15)
        self.assertIn("cuCtxWaitEvent", FUNCTIONS)
        self.assertLessEqual(set(HARMLESS), set(FUNCTIONS))

    def test_the_injection_works(self) -> None:
        """Otherwise everything below would pass for nothing."""
        done = self.outcome("driver", "cuMemAlloc_v2:1:2", ["tolerate", "alloc:1:4096"], CUPOOL_ENABLE="0")
        self.assertEqual(self.errors(done), {2})

    def one(self, kind: str, fault: str, work: "list[str]", env: "dict[str, str]") -> None:
        try:
            done = self.outcome(kind, fault, work, **env)
        except subprocess.TimeoutExpired:
            self.fail("it hangs")
        # An error that the program sees is the injected one, or what CUDA makes of the address 1. Memory whose release or ordering
        # fails for ever is missing in the end.
        self.assertLessEqual(self.errors(done), {int(fault.split(":")[2]), 1} | ({2} if env.get("SIMGPU_MEMORY") else set()), done.out)
        for trace in done.traces():
            self.assert_whole(trace)

    def each(self, codes: "list[int]", when: "list[str]", work: "list[str]", **env: str) -> None:
        """All functions, moments and codes; each with one kind of program, in turn. Two at a time, because most of it is waiting."""
        cases = []
        for i, function in enumerate(FUNCTIONS):
            for j, w in enumerate(when):
                for code in codes if SANITIZE == "none" else codes[:1]:
                    cases.append((("driver", "shared", "static")[(i + j + code) % 3], f"{function}:{w}:{code}"))
        with ThreadPoolExecutor(2) as workers:
            results = [(case, workers.submit(self.one, *case, work, env)) for case in cases]
            for case, result in results:
                with self.subTest(case):
                    result.result()

    def assert_whole(self, trace: Trace) -> None:
        self.assertTrue(trace.ended)
        live: "dict[str, int]" = {}
        for e in trace.of("segment_alloc", "segment_free"):
            if e["e"] == "segment_alloc":
                self.assertNotIn(e["p"], live)
                live[e["p"]] = e["n"]
            else:
                self.assertEqual(live.pop(e["p"], None), e["n"])

    def test_ordered(self) -> None:
        self.each([2, 999], WHEN, WORK)

    def test_other_codes(self) -> None:
        self.each(CODES[2:], ["1", "2+"], WORK)

    def test_strict(self) -> None:
        self.each([999], ["1", "3", "1+"], WORK, CUPOOL_FREE="strict")

    def test_short_of_memory(self) -> None:
        self.each([2, 999], ["1", "4", "2+"], SMALL_WORK, **SMALL)

    def test_harmless_ones_stay_unseen(self) -> None:
        for function in HARMLESS:
            for kind in ("driver", "shared"):
                fault = f"{function}:1+:999"
                native = self.go(app(kind), *WORK, preload=None, rc=None, SIMGPU_FAULT=fault)
                if native.rc or self.errors(native):
                    continue  # the program needs it itself
                with self.subTest(fault, kind=kind):
                    done = self.outcome(kind, fault, WORK)
                    self.assertEqual(self.errors(done), set())
                    self.assertEqual(self.one_trace(done).total("allocs"), ALLOCS)

    def test_one_failed_order_costs_one_free(self) -> None:
        """An order that fails is an error of that free; what it left behind is published by the next and is not lost."""
        done = self.go(app("shared"), "tolerate", "alloc:4:4096", "free:4", "churn:50:4096", SIMGPU_FAULT="cuCtxWaitEvent:2:999")
        trace = self.one_trace(done)
        self.assertEqual((trace.total("live"), trace.total("frees"), trace.total("kept")), (0, 54, 1))

    def test_an_error_of_the_context_is_seen_at_the_free(self) -> None:
        """As natively, where cudaFree waits and returns the error of an earlier kernel."""
        for kind in ("shared", "static", "driver"):
            done = self.go(app(kind), "tolerate", "alloc:20:4096", "free:19",
                           SIMGPU_FAULT="cuCtxRecordEvent:2+:700,cuCtxWaitEvent:2+:700,cuMemGetInfo_v2:4+:700")
            # Not the first few: how often we ask for other reasons is our business.
            self.assertGreaterEqual(done.out.count("error 700 in free"), 10, done.out)

    def test_driver_refuses_memory_once(self) -> None:
        """As natively: the request that was refused fails, the next one works."""
        done = self.go(app("shared"), "tolerate", "churn:5:4096", SIMGPU_FAULT="cuMemAlloc_v2:1+:2")
        self.assertEqual(self.errors(done), {2})
        done = self.go(app("shared"), "tolerate", "churn:5:4096", "churn:5:9000000", SIMGPU_FAULT="cuMemAlloc_v2:1:2")
        self.assertLessEqual(self.errors(done), {2})

    def test_no_signal_is_hidden(self) -> None:
        """The same programs without faults end well: rc 3 above is the fault's doing."""
        for work, env in ((WORK, {}), (SMALL_WORK, SMALL)):
            done = self.go(app("shared"), *work, **env)
            self.assertEqual(self.errors(done), set())
            self.assertNotEqual(done.rc, -signal.SIGSEGV)


if __name__ == "__main__":
    unittest.main()
