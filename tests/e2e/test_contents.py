# SPDX-License-Identifier: Apache-2.0
"""The contents of memory (CUPOOL_FILL), writes found in and behind it (CUPOOL_DEBUG), its return when idle (CUPOOL_DECAY)."""

import re
import shutil
import unittest

from e2e import BIN, LIB, MIB, SANITIZE, SIM, Case, Done, app

KINDS = ("shared", "static", "driver")


class Fill(Case):
    def contents(self, kind: str, *words: str, **env: str) -> "list[str]":
        return re.findall(r"^contents (\S+)$", self.go(app(kind), *words, **env).out, re.M)

    def dirty(self, size: int) -> "list[str]":
        """Fresh from the driver, and again after a program has written into it."""
        return [f"contents:{size}", f"alloc:1:{size}", "free:1", f"contents:{size}"]

    def test_native_zeroes_what_the_driver_does(self) -> None:
        for kind in KINDS:
            self.assertEqual(self.contents(kind, *self.dirty(3 * MIB), CUPOOL_FILL="native"), ["0x00", "0x00"])
            self.assertEqual(self.contents(kind, *self.dirty(3 * MIB), preload=None), ["0x00", "0x00"])

    def test_native_in_both_policies(self) -> None:
        for policy in ("ordered", "strict"):
            self.assertEqual(self.contents("shared", *self.dirty(3 * MIB), CUPOOL_FILL="native", CUPOOL_FREE=policy),
                             ["0x00", "0x00"])

    def test_off_leaves_what_was_there(self) -> None:
        """Without this the tests above would show nothing."""
        self.assertNotEqual(self.contents("shared", *self.dirty(3 * MIB))[1], "0x00")

    def test_a_byte(self) -> None:
        for kind in KINDS:
            for size in (3 * MIB, 4096, 512):
                with self.subTest(kind=kind, size=size):
                    self.assertEqual(self.contents(kind, *self.dirty(size), CUPOOL_FILL="0xA5"), ["0xa5", "0xa5"])

    def test_native_leaves_small_blocks_alone(self) -> None:
        done = self.go(app("shared"), *self.dirty(4096), CUPOOL_FILL="native")
        self.assertNotIn("cuMemsetD8Async", done.counts)

    def test_programs_work(self) -> None:
        for fill in ("native", "0xFF"):
            self.go(app("shared"), "churn:200:100000", f"churn:40:{5 * MIB}", "threads:4:50:300000", CUPOOL_FILL=fill)


class Debug(Case):
    def test_guard_finds_an_overrun_at_the_free_and_at_exit(self) -> None:
        for kind in KINDS:
            for size in (1000, 4096, 100000, 3 * MIB):
                with self.subTest(kind=kind, size=size):
                    done = self.go(app(kind), "alloc:2:5000", f"overrun:1:{size}", "free:1", f"overrun:3:{size}", CUPOOL_DEBUG="guard")
                    found = [w for w in done.warnings if "overrun" in w]
                    self.assertEqual(len(found), 2, done.err)
                    self.assertIn(f"byte {size} of a block of {size} bytes", found[0])
                    self.assertIn("at its free", found[0])
                    self.assertIn("at exit", found[1])
                    self.assertIn(f"app_{kind}+0x", found[0])

    def test_guard_has_nothing_to_say_about_sound_programs(self) -> None:
        done = self.go(app("shared"), "churn:200:100000", f"churn:20:{5 * MIB}", "alloc:50:1000", "free:50", CUPOOL_DEBUG="guard")
        self.assertEqual(done.err, "")

    def test_guard_bytes_are_not_in_the_trace(self) -> None:
        done = self.go(app("shared"), "alloc:3:1000", "free:3", CUPOOL_DEBUG="guard", CUPOOL_TRACE_EVENTS="segment,alloc")
        events = self.one_trace(done).of("alloc", "free_requested", "free_completed")
        self.assertEqual([e["n"] for e in events], [1000] * 9)

    def test_guard_forgets_what_a_reset_has_ended(self) -> None:
        for kind in ("shared", "static"):
            done = self.go(app(kind), "alloc:8:1000", "reset", "alloc:1:100000", CUPOOL_DEBUG="guard")
            self.assertNotIn("overrun", done.err)

    def leaks(self, done: Done) -> "list[tuple[int, int]]":
        return [(int(a), int(b)) for a, b in re.findall(r"not freed: (\d+) bytes in (\d+) blocks, from", done.err)]

    def test_what_was_not_freed_is_said_by_caller(self) -> None:
        for mode in ("1", "guard"):
            done = self.go(app("shared"), "alloc:5:1000", "free:2", CUPOOL_DEBUG=mode)
            self.assertEqual(self.leaks(done), [(3000, 3)], done.err)
            self.assertRegex(done.err, r"from app_shared\+0x")

    def test_own_gives_every_request_a_driver_allocation(self) -> None:
        for kind in KINDS:
            done, native = (self.go(app(kind), "churn:100:4096", "alloc:3:100000", "free:3", **env)
                            for env in ({"CUPOOL_DEBUG": "1"}, {"preload": None}))
            for name in ("cuMemAlloc_v2", "cuMemFree_v2"):
                self.assertEqual(done.counts[name], native.counts[name])
            self.assertEqual((done.err, done.files), ("", []))

    @unittest.skipIf(SANITIZE != "none", "the stand-in wraps malloc, as sanitizers do")
    def test_under_a_debugging_tool_every_request_is_a_driver_allocation(self) -> None:
        """compute-sanitizer and cuda-gdb look at driver allocations; they are known by the libraries that they preload."""
        for tool in ("libsanitizer-collection.so", "libcudadebugger.so"):
            folder = self.folder()
            shutil.copy(BIN / "libsecond.so", folder / tool)
            done = self.go(app("shared"), "churn:100:4096", preload=f"{LIB}:{tool}", LD_LIBRARY_PATH=f"{folder}:{SIM}", CUPOOL_LOG_LEVEL="info")
            self.assertEqual(done.counts["cuMemAlloc_v2"], 100)
            self.assertIn(f"info: {tool} is loaded: every request is a driver allocation of its own", done.warnings)


class Decay(Case):
    def released_before_the_last_request(self, until: str, **env: str) -> "tuple[int, set[str]]":
        """Bytes, and the reasons that the trims give."""
        done = self.go(app("shared"), f"alloc:4:{8 * MIB}", "alloc:100:4096", "free:104", until, "alloc:1:512",
                       CUPOOL_TRACE_EVENTS="segment,alloc", CUPOOL_TRACE_FILE="t.jsonl", **env)
        trace = self.one_trace(done)
        last = [i for i, e in enumerate(trace.events) if e["e"] == "alloc"][-1]
        before = trace.events[:last]
        return sum(e["n"] for e in before if e["e"] == "segment_free"), {e["why"] for e in before if e["e"] == "trim"}

    def test_idle_memory_goes_back(self) -> None:
        released, why = self.released_before_the_last_request('written:t.jsonl:"trim":1', CUPOOL_DECAY="1")
        self.assertGreaterEqual(released, 32 * MIB)
        self.assertEqual(why, {"decay"})

    def test_not_when_off_nor_before_its_time(self) -> None:
        for decay in ("off", "60"):
            self.assertEqual(self.released_before_the_last_request("sleep:2500", CUPOOL_DECAY=decay), (0, set()))

    def test_zero_is_at_once(self) -> None:
        done = self.go(app("shared"), f"alloc:4:{8 * MIB}", "free:4", f"alloc:1:{8 * MIB}", CUPOOL_DECAY="0")
        trace = self.one_trace(done)
        self.assertEqual(trace.total("hits"), 0)
        self.assertEqual(len(trace.of("segment_free")), 4)

    def test_memory_in_use_stays(self) -> None:
        done = self.go(app("shared"), f"alloc:4:{8 * MIB}", "sleep:2500", "free:4", CUPOOL_DECAY="1")
        self.assertEqual(self.one_trace(done).of("trim"), [])

    def test_it_takes_no_call_that_holds_up_the_device(self) -> None:
        done = self.go(app("shared"), f"alloc:4:{8 * MIB}", "free:4", 'written:t.jsonl:"trim":1', CUPOOL_DECAY="1", CUPOOL_TRACE_FILE="t.jsonl")
        self.assertNotIn("cuMemFree_v2", done.counts)
        self.assertGreaterEqual(done.counts["cuMemFreeAsync"], 4)
