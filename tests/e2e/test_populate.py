# SPDX-License-Identifier: Apache-2.0
"""Large pinned memory that the library maps and registers itself (CUPOOL_HOST_POPULATE=1)."""

import unittest
from typing import Any

from e2e import BIN, LIB, MIB, Case, Done, Trace

LARGE = 256 * MIB


class Populate(Case):
    def large(self, *words: str, preload: str = str(LIB), **env: Any) -> "tuple[Done, Trace]":
        done = self.go(BIN / "report_shared", *words, preload=preload, **{
            "CUPOOL_HOST_POOL": "1", "CUPOOL_HOST_POPULATE": "1", "CUPOOL_DECAY": "600", "CUPOOL_FREE": "strict", **env})
        self.assertEqual(done.err, "")
        trace = self.one_trace(done)
        self.assert_fine(trace.path)
        return done, trace

    @staticmethod
    def calls(done: Done) -> "list[int]":
        return [done.counts.get(name, 0) for name in ("cuMemHostRegister_v2", "cuMemHostUnregister", "cuMemAllocHost_v2", "cuMemHostAlloc", "cuMemFreeHost")]

    def test_registered_once(self) -> None:
        """All of it can be used, and it is used again."""
        done, trace = self.large(f"pin:{LARGE}", "write:0", "unpin:0", f"pinchurn:3:{LARGE}", f"pin:{LARGE}", "write:1")
        self.assertEqual(done.out, f"write {LARGE // 4096}\nunpin 0\nwrite {LARGE // 4096}\n")
        self.assertEqual(self.calls(done), [1, 0, 0, 0, 0])
        [stats] = trace.of("host_stats")
        self.assertEqual((stats["hits"], stats["misses"], stats["held"]), (4, 1, LARGE))

    def test_goes_back(self) -> None:
        """The bound leaves no room for both."""
        done, trace = self.large(f"pin:{LARGE}", "unpin:0", f"pin:{LARGE + 64 * MIB}", "write:1", "unpin:1", CUPOOL_HOST_LIMIT="400M")
        self.assertEqual(self.calls(done), [2, 1, 0, 0, 0])
        self.assertEqual([e["n"] for e in trace.of("host_free")], [LARGE])

    def test_beyond_the_bound(self) -> None:
        """It goes back with its free, which waits for all work, as the driver's own does. Four threads touch all of it, and no more."""
        size = LARGE + 2 * MIB
        for policy in ("strict", "ordered"):
            done, trace = self.large(f"pin:{LARGE}", f"pin:{size}", "write:1", "unpin:1", "write:0", "unpin:0", CUPOOL_HOST_LIMIT="300M", CUPOOL_FREE=policy)
            self.assertEqual(self.calls(done), [2, 1, 0, 0, 0])
            self.assertEqual([e["n"] for e in trace.of("host_free")], [size])

    def test_what_the_driver_serves(self) -> None:
        """Smaller memory, write-combined memory, all of it without the setting and without a pool."""
        for words, env, calls in (((f"pin:{200 * MIB}",), {}, 0), ((f"pinflags:{LARGE}:4",), {}, 0), ((f"pinflags:{LARGE}:7",), {}, 0),
                                  ((f"pin:{LARGE}",), {"CUPOOL_HOST_POPULATE": "0"}, 0), ((f"pin:{LARGE}",), {"CUPOOL_HOST_POOL": "0"}, 0),
                                  ((f"pinflags:{LARGE}:3",), {}, 1), ((f"pinflags:{LARGE}:0",), {}, 1)):
            with self.subTest(words=words, **env):
                done, _ = self.large("alloc:4096", *words, "write:0", "unpin:0", **env)
                self.assertEqual(done.counts.get("cuMemHostRegister_v2", 0), calls)
                self.assertEqual(done.out.splitlines()[-1], "unpin 0")

    def test_refused(self) -> None:
        """The driver's own allocation serves the request, and nothing stays mapped."""
        done, trace = self.large(f"pin:{LARGE}", "write:0", "unpin:0", SIMGPU_FAULT="cuMemHostRegister_v2:1:2")
        self.assertEqual(done.counts["cuMemHostRegister_v2"], 1)
        self.assertEqual(done.counts.get("cuMemAllocHost_v2", 0) + done.counts.get("cuMemHostAlloc", 0), 1)
        [stats] = trace.of("host_stats")
        self.assertEqual((stats["failed"], stats["held"]), (0, LARGE))

    def test_where_memory_is_scarce(self) -> None:
        """A cgroup that has less than twice as much left, or a machine: touching could end the program."""
        for available, limit, used, calls in ((2 * LARGE, 0, 0, 1), (2 * LARGE - MIB, 0, 0, 0), (16 * LARGE, 8 * LARGE, 6 * LARGE, 1),
                                              (16 * LARGE, 8 * LARGE, 6 * LARGE + MIB, 0), (16 * LARGE, LARGE, 2 * LARGE, 0)):
            with self.subTest(available=available, limit=limit, used=used):
                root = self.folder()
                (root / "proc/self").mkdir(parents=True)
                (root / "sys/fs/cgroup/job").mkdir(parents=True)
                (root / "proc/meminfo").write_text(f"MemTotal: 1 kB\nMemAvailable: {available // 1024} kB\n")
                (root / "proc/self/cgroup").write_text("0::/job\n")
                (root / "sys/fs/cgroup/job/memory.max").write_text(f"{limit or 'max'}\n")
                (root / "sys/fs/cgroup/job/memory.current").write_text(f"{used}\n")
                done, _ = self.large(f"pin:{LARGE}", preload=f"{BIN / 'libmachine.so'} {LIB}", MACHINE_ROOT=root, CUPOOL_HOST_LIMIT="1T")
                self.assertEqual(done.counts.get("cuMemHostRegister_v2", 0), calls)

    def test_a_context_takes_it_along(self) -> None:
        """Its addresses are free again: of five, most are of an earlier one."""
        done, trace = self.large(*[word for i in range(5) for word in (f"pin:{LARGE}", f"write:{i}", "reset")])
        self.assertEqual([e["why"] for e in trace.of("host_free")], ["lost"] * 5)
        self.assertLess(len({e["p"] for e in trace.of("host_alloc")}), 4)

    def test_fork(self) -> None:
        """The child does not have it, so no page of it is copied; the parent's stays."""
        done = self.go(BIN / "report_shared", f"pin:{LARGE}", "write:0", "fork{", "write:0", "}", "write:0", "unpin:0",
                       CUPOOL_HOST_POOL="1", CUPOOL_HOST_POPULATE="1", CUPOOL_FREE="strict")
        # A sanitizer ends the child in a way of its own.
        self.assertRegex(done.out, rf"\Awrite {LARGE // 4096}\nchild ended: (signal|exit) [1-9]\d*\nwrite {LARGE // 4096}\nunpin 0\n\Z")

    def test_nodes(self) -> None:
        """Whichever thread touches it, it lies on the node of the requesting thread, unless that has a policy, which the other threads inherit."""
        for nodes, words, policy in (("0-1", (), "1 1"), ("0", (), "0 0"), ("0-1", ("policy:2:1",), "0 0")):
            with self.subTest(nodes=nodes, words=words):
                root = self.folder()
                (root / "sys/devices/system/node").mkdir(parents=True)
                (root / "sys/devices/system/node/online").write_text(f"{nodes}\n")
                (root / "proc").mkdir()
                (root / "proc/meminfo").write_text("MemAvailable: 8000000 kB\n")
                done, _ = self.large(*words, f"pin:{LARGE}", "policyof:0", preload=f"{BIN / 'libmachine.so'} {LIB}", MACHINE_ROOT=root)
                self.assertEqual(done.out, f"policy of it: {policy}\n")
                self.assertEqual(done.counts["cuMemHostRegister_v2"], 1)

    def test_signals_are_the_programs(self) -> None:
        """The threads that touch take none; the program's own are as before."""
        done, _ = self.large("handler:10", f"pin:{LARGE}", "raise:10", "caught:10", "mask:12", "raise:12", f"pin:{LARGE}", "pending:12")
        self.assertEqual(done.out, "caught 1 ours\npending 1\n")
