# SPDX-License-Identifier: Apache-2.0
"""Contexts that end while other threads are in calls on them: nobody crashes or hangs, and the next context is a good one."""

import time
import unittest

from e2e import BIN, SANITIZE, Case

ENDS = BIN / "ends"


class Ends(Case):
    def test_reset_beside_requests(self) -> None:
        for policy in ("auto", "strict", "relaxed"):
            with self.subTest(policy):
                self.go(ENDS, "reset", "60", CUPOOL_FREE=policy)

    def test_releases_beside_requests(self) -> None:
        self.go(ENDS, "release", "300")

    def test_destruction_beside_requests(self) -> None:
        self.go(ENDS, "destroy", "100")

    def test_reset_beside_a_thread_that_waits_for_the_device(self) -> None:
        """Natively the reset gets to the driver at once; it must not wait for what the thread waits for."""
        self.go(ENDS, "waiting", "free", CUPOOL_FREE="strict")
        self.go(ENDS, "waiting", "request", CUPOOL_FREE="ordered", SIMGPU_MEMORY="1G")

    def test_streams_destroyed_beside_captures(self) -> None:
        """The driver reads freed memory if it is asked about a stream that another thread destroys."""
        self.go(ENDS, "streams", "3000", SIMGPU_ADVERSARY="1")

    @unittest.skipIf("thread" in SANITIZE, "the sanitizer has a thread of its own")
    def test_the_last_thread(self) -> None:
        """It ends the process, whatever threads the library has, and its exit handlers are as those of any exit."""
        for threads, env in (("0", {}), ("3", {"CUPOOL_TRACE_EVENTS": "segment,alloc"}), ("0", {"CUPOOL_DECAY": "off"}), ("3", {"CUPOOL_DECAY": "600"})):
            with self.subTest(threads, **env):
                done = self.go(ENDS, "threads", threads, **env)
                self.assertEqual((done.out, done.err), ("freed at exit: 0\n", ""))
                self.assertTrue(self.one_trace(done).ended)

    @unittest.skipIf(SANITIZE != "none", "sanitizers are slow")
    def test_the_last_thread_is_not_waited_for_long(self) -> None:
        """Natively the process ends at once. The fastest of some: the machine may be busy."""
        took = []
        for _ in range(10):
            start = time.monotonic()
            self.go(ENDS, "threads", "0")
            took.append(time.monotonic() - start)
            if took[-1] < 0.7:
                break
        self.assertLess(min(took), 0.7)

    @unittest.skipIf(SANITIZE != "none", "a sanitizer refuses RTLD_DEEPBIND")
    def test_a_capture_that_ends_unseen(self) -> None:
        """The driver is asked now and then whether it goes on."""
        self.go(ENDS, "capture", BIN / "ends_deep.so")


class Native(Case):
    def test_the_programs_are_right(self) -> None:
        for how in (("reset", "20"), ("release", "100"), ("destroy", "30"), ("waiting", "free"), ("waiting", "request"), ("streams", "3000"), ("threads", "3"), ("capture", BIN / "ends_deep.so")):
            if how[0] == "capture" and SANITIZE != "none" or how[0] == "threads" and "thread" in SANITIZE:
                continue
            with self.subTest(how[0]):
                self.go(ENDS, *how, preload=None, SIMGPU_MEMORY="1G", SIMGPU_ADVERSARY="1" if how[0] == "streams" else "0")
