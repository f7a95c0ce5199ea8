# SPDX-License-Identifier: Apache-2.0
"""Programs that do what makes locks hang: exit() in a signal handler, a constructor that waits for a thread, thousands of frees
that have to wait. Each has to end, and as natively.
"""

import os
import shutil
import subprocess
import time
import unittest
from concurrent.futures import ThreadPoolExecutor

from e2e import BIN, Case, Trace, not_with_coverage

HANG = BIN / "hang"


class Hang(Case):
    def test_exit_in_a_signal_handler(self) -> None:
        """The handler may have come at any moment, also while the thread held a lock that our own end takes."""
        for events in ("segment", "segment,alloc"):
            with self.subTest(events), ThreadPoolExecutor(20) as pool:
                def one(i: int, events: str = events) -> "list[str]":
                    # 7: it was the handler that ended it. The trace can be read, even if it has lost lines.
                    done = self.go(HANG, "sigexit", str(5000 + i * 1237), rc=7, CUPOOL_TRACE_EVENTS=events, CUPOOL_STATS="exit")
                    self.assertNotIn("abort", done.err)
                    return done.files
                for files in pool.map(one, range(20)):
                    self.assertEqual(len(files), 1)

    @not_with_coverage
    def test_exit_in_a_signal_handler_with_a_report(self) -> None:
        """Here the lock is that of the report of memory that was not freed."""
        with ThreadPoolExecutor(20) as pool:
            list(pool.map(lambda i: self.go(HANG, "sigexit", str(5000 + i * 1237), rc=7, CUPOOL_DEBUG="1"), range(60)))

    def test_thousands_of_frees_in_one_capture(self) -> None:
        """Each is kept back. Its cost must not grow with the number that is kept back already."""
        self.go(HANG, "frees", "200000")

    def test_what_a_free_waits_in_is_seen(self) -> None:
        """Its first event is in the file while the host still waits for the device."""
        folder = self.folder()
        child = subprocess.Popen([HANG, "waits", "20"], cwd=folder, env=self.env(CUPOOL_FREE="strict", CUPOOL_TRACE_EVENTS="segment,alloc"))
        try:
            while not [p for p in folder.iterdir() if "free_requested" in p.read_text()]:
                self.assertIsNone(child.poll())
                time.sleep(0.01)
        finally:
            child.kill()
            child.wait()
        self.assertEqual([len(Trace(p).of("free_requested", "free_completed")) for p in folder.iterdir()], [1])

    def test_how_long_a_free_took_is_seen(self) -> None:
        """One that waited for the device was complete so much later than it was asked for."""
        done = self.go(HANG, "waits", "1", CUPOOL_FREE="strict", CUPOOL_TRACE_EVENTS="segment,alloc")
        requested, completed = self.one_trace(done).of("free_requested", "free_completed")
        self.assertGreaterEqual(completed["t"] - requested["t"], 500_000_000)

    def test_guard_bytes_wait_only_where_a_free_does(self) -> None:
        """Neither cudaFreeAsync nor the end of a process waits for what the device does."""
        self.assertEqual(self.go(HANG, "flagged", "20", CUPOOL_DEBUG="guard").err, "")
        self.assertIn("some blocks were not looked at", self.go(HANG, "busy", "6", CUPOOL_DEBUG="guard", rc=6).err)

    def test_guard_bytes_are_looked_at_where_a_free_does_not_wait(self) -> None:
        done = self.go(HANG, "overruns", "10", CUPOOL_DEBUG="guard")
        self.assertEqual(done.err.count("overrun: byte 1000 of a block of 1000 bytes"), 10, done.err)
        self.assertEqual(done.err.count("(seen at its free)"), 10)

    def test_guard_bytes_of_another_device(self) -> None:
        """An endless wait in one hides nothing of the other."""
        done = self.go(HANG, "apart", "6", CUPOOL_DEBUG="guard", SIMGPU_DEVICES="2", rc=6)
        self.assertEqual(done.err.count("overrun: byte 1000 of a block of 1000 bytes"), 20, done.err)
        self.assertEqual(done.err.count("some blocks were not looked at"), 1)

    @not_with_coverage
    def test_exit_by_a_cancelled_thread(self) -> None:
        """Often: where the library's thread has ended before it is waited for, there is nothing to be cancelled in."""
        for _ in range(20):
            self.go(HANG, "cancelled", "6", rc=6)

    def test_many_threads(self) -> None:
        """Many that begin at the same time, and as many one after the other: each is served by the pool and in the trace, in an
        order that can be."""
        done = self.go(HANG, "threads", "300", CUPOOL_TRACE_EVENTS="segment,alloc")
        trace = self.one_trace(done)
        self.assertEqual([len(trace.of(e)) for e in ("alloc", "free_requested", "free_completed")], [600, 600, 600])
        live: "set[str]" = set()
        for event in trace.of("alloc", "free_requested"):
            (self.assertNotIn if event["e"] == "alloc" else self.assertIn)(event["p"], live)
            live ^= {event["p"]}
        self.assertEqual(trace.events[-1]["dropped"], 0)

    @unittest.skipIf(tuple(map(int, (os.confstr("CS_GNU_LIBC_VERSION") or "glibc 0.0").split()[1].split("."))) < (2, 35),
                     "before glibc 2.35 there is no way to tell who calls without the loader's lock")
    def test_a_constructor_that_waits_for_a_thread(self) -> None:
        """The thread allocates while the dynamic loader's lock is held."""
        out = self.go(HANG, "dlopen", BIN / "loaded_waits.so").out
        self.assertEqual(out, "in the thread: 0\n")
        self.assertEqual(self.go(HANG, "dlfirst", BIN / "loaded_waits.so").out, out)
        # Also with who asked: names and the unwinder are to be had without that lock.
        done = self.go(HANG, "dlopen", BIN / "loaded_waits.so", CUPOOL_TRACE_STACKS="1", CUPOOL_TRACE_EVENTS="segment,alloc")
        self.assertEqual(done.out, "in the thread: 0\n")
        self.assertTrue([e for e in self.one_trace(done).of("frame") if e["at"].startswith("loaded_waits.so+0x")])

    def test_a_walk_over_all_objects_that_waits_for_a_thread(self) -> None:
        """A child that is forked while a call of the library's is in dl_iterate_phdr hangs in its first dlopen."""
        self.go(HANG, "walked", "2")

    def test_a_small_default_stack(self) -> None:
        """The program's threads need little of it; the driver's calls that the library's thread makes may need more."""
        self.go(HANG, "stack", "65536", CUPOOL_DECAY="1")


class Theirs(Case):
    def test_a_library_that_is_exempt_gets_what_the_pool_holds(self) -> None:
        for name in ("libmpi_x.so", "libnccl.so.2", "libother.so"):
            with self.subTest(name):
                self.go(HANG, "theirs", shutil.copy(BIN / "loaded.so", self.tmp / name))


class Native(Case):
    @not_with_coverage
    def test_the_programs_are_right(self) -> None:
        self.go(HANG, "sigexit", "20000", rc=7, preload=None)
        self.go(HANG, "waits", "0", preload=None)
        self.go(HANG, "frees", "1000", preload=None)
        self.go(HANG, "threads", "10", preload=None)
        self.go(HANG, "stack", "65536", preload=None)
        self.go(HANG, "flagged", "2", preload=None)
        self.go(HANG, "walked", "2", preload=None)
        for how in ("busy", "cancelled"):
            self.go(HANG, how, "6", rc=6, preload=None)
        self.assertEqual(self.go(HANG, "dlfirst", BIN / "loaded_waits.so", preload=None).out, "in the thread: 0\n")
        self.assertEqual(self.go(HANG, "dlopen", BIN / "loaded_waits.so", preload=None).out, "in the thread: 0\n")
        self.go(HANG, "theirs", BIN / "loaded.so", preload=None)
