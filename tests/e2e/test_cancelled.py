# SPDX-License-Identifier: Apache-2.0
"""Threads with a pending cancellation, which POSIX delivers in certain calls of the C library only. A call of CUDA makes none of
them, so it returns; with cupool it must, too, although the library opens and closes files meanwhile, and takes no lock with it.
"""

import errno
import unittest

from e2e import BIN, SANITIZE, Case

CANCELLED = BIN / "cancelled"
WANT = {call: f"back {first}\ncancelled\nanother {second}\n"
        for call, first, second in (("alloc", 0, 0), ("free", 0, 1), ("exported", 0, 1), ("handle", 0, 0), ("host", 0, 0),
                                    ("populated", 0, 0), ("info", 0, 0), ("reset", 0, 0), ("copies", 0, 0))}
OF_CUPOOL = {call: f"back 0\ncancelled\nanother {second}\n" for call, second in (("trim", 0), ("pause", -errno.EALREADY),
                                                                              ("resume", -errno.EALREADY))}


@unittest.skipIf("address" in SANITIZE, "the address sanitizer itself does not get over a cancelled thread")
class Cancelled(Case):
    def calls(self, *names: str, **env: str) -> None:
        for name in names:
            with self.subTest(name, **env):
                self.assertEqual(self.go(CANCELLED, name, **env).out, {**WANT, **OF_CUPOOL}[name])

    def test_natively(self) -> None:
        for name, want in WANT.items():
            with self.subTest(name):
                self.assertEqual(self.go(CANCELLED, name, preload=None).out, want)

    def test_with_the_defaults(self) -> None:
        self.calls(*WANT)

    def test_files_and_sockets(self) -> None:
        self.calls("alloc", "free", "handle", CUPOOL_TRACE_EVENTS="segment,alloc", CUPOOL_STATS_FILE="s.%p", CUPOOL_CTL="ctl")

    def test_virtual_memory(self) -> None:
        """An exported segment has a descriptor, which is closed by the thread that frees the last exported block."""
        self.calls("alloc", "free", "exported", "handle", "reset", CUPOOL_BACKEND="vmm")

    def test_pauses(self) -> None:
        """A device that a cancelled thread was about to pause would be nobody's to resume."""
        for more in ({}, {"CUPOOL_TRACE_EVENTS": "segment,alloc"}, {"CUPOOL_HOST_POOL": "1"}, {"SIMGPU_DELAY_US": "3000"}):
            self.calls(*OF_CUPOOL, CUPOOL_BACKEND="vmm", **more)

    def test_pinned_memory(self) -> None:
        """The first request looks how much memory the machine has. Large memory is touched by other threads."""
        self.calls("host", CUPOOL_HOST_POOL="1")
        self.calls("populated", CUPOOL_HOST_POOL="1", CUPOOL_HOST_POPULATE="1", CUPOOL_HOST_LIMIT="1G")
