# SPDX-License-Identifier: Apache-2.0
"""cupool_pause and cupool_resume: memory goes to the driver and comes back at the same addresses, with its contents; what the
program does meanwhile; every reason to refuse; each call of the driver failing.
"""

import os
import subprocess
import unittest
from pathlib import Path
from typing import Any

from e2e import BIN, LIB, MIB, SANITIZE, Case, Done, Trace, Word

SLOW = 1 if SANITIZE == "none" else 5  # a sanitizer finds in fewer rounds what it finds
RUNS = int(os.environ.get("TEST_RUNS", "1"))

EBUSY, EALREADY, ENOTSUP, ENOMEM, EIO, EINVAL, EAGAIN, ENOSYS = -16, -114, -95, -12, -5, -22, -11, -38
KEEP, DISCARD = "pause:1", "pause:2"
SEGMENTS = 14 * MIB  # of these:
SOME = ("alloc:600", "alloc:3000000", "alloc:5000", "alloc:7000000")


class Base(Case):
    def pause(self, *words: str, **env: Any) -> Done:
        return self.go(BIN / "pause_app", *words, **{"CUPOOL_BACKEND": "vmm", "CUPOOL_LOG_LEVEL": "error", **env})

    def lines(self, *words: str, **env: Any) -> "list[str]":
        return [line.rstrip() for line in self.pause(*words, **env).out.splitlines()]

    def start(self, *words: str, env: "dict[str, Word]") -> "subprocess.Popen[str]":
        child = subprocess.Popen([str(BIN / "pause_app"), *words], env=self.env(**{"CUPOOL_BACKEND": "vmm", **env}), cwd=self.folder(),
                                 stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.addCleanup(child.communicate)
        self.addCleanup(child.kill)
        return child

    def said(self, child: "subprocess.Popen[str]") -> str:
        assert child.stdout
        return child.stdout.readline().strip()

    def go_on(self, child: "subprocess.Popen[str]") -> None:
        assert child.stdin
        child.stdin.write("\n")
        child.stdin.flush()


class Contents(Base):
    def test_they_are_kept(self) -> None:
        """Those of live blocks; and the device has the memory meanwhile."""
        for more in ({}, {"CUPOOL_HOST_POOL": "1"}, {"CUPOOL_FREE": "relaxed"}, {"CUPOOL_FREE": "strict"}, {"CUPOOL_FILL": "0xA5"},
                     {"SIMGPU_ADVERSARY": "7"}, {"SIMGPU_DELAY_US": "300"}):
            with self.subTest(str(more)):
                out = self.lines("info", *SOME, "info", KEEP, "info", "stats", "resume", "check", "stats", **more)
                free = [int(line.split()[1]) for line in out if line.startswith("free")]
                self.assertEqual(free[0], free[2])
                self.assertEqual(free[0] - free[1], SEGMENTS)
                self.assertEqual([line for line in out if not line.startswith("free")],
                                 ["pause 0", "stats 14680064 10006528 14680064", "resume 0", "check 0 4", "stats 14680064 10006528 0"])

    def test_they_are_dropped(self) -> None:
        """Nothing is copied, and the memory is there again, zeros."""
        done = self.pause(*SOME, DISCARD, "resume", "check", "forget", "check")
        self.assertEqual(done.out.splitlines(), ["pause 0 ", "resume 0 ", "check 4 4", "check 0 4"])
        self.assertEqual((done.counts.get("cuMemHostAlloc", 0), done.counts.get("cuMemcpyDtoHAsync_v2", 0)), (0, 0))

    def test_neighbouring_blocks_are_copied_at_once(self) -> None:
        done = self.pause(*["alloc:512"] * 200, KEEP, "resume", "check")
        self.assertEqual(done.out.splitlines()[-1], "check 0 200")
        self.assertEqual((done.counts["cuMemcpyDtoHAsync_v2"], done.counts["cuMemcpyHtoDAsync_v2"]), (1, 1))

    def test_the_pinned_pool_stays_warm(self) -> None:
        """Once it has the memory, further cycles take none from the driver; without the pool each takes its own."""
        words = SOME + (KEEP, "resume") * 5 + ("check",)
        for pool, calls in (("1", 1), ("0", 5)):
            done = self.pause(*words, CUPOOL_HOST_POOL=pool)
            self.assertEqual((done.out.splitlines()[-1], done.counts["cuMemHostAlloc"]), ("check 0 4", calls))

    def test_more_than_a_piece_of_host_memory(self) -> None:
        self.assertEqual(self.lines("alloc:200000000", "alloc:100000000", KEEP, "resume", "check")[-1], "check 0 2")

    def test_many_cycles(self) -> None:
        """Blocks come and go while the memory is away."""
        blocks = ["alloc:600", "alloc:9000", "alloc:3000", "alloc:30000"] * 2
        for more in ({}, {"CUPOOL_HOST_POOL": "1", "CUPOOL_FREE": "relaxed"}):
            self.assertEqual(self.lines(*blocks, f"cycles:{125 * RUNS // SLOW}:1", "check", **more)[0], "cycles 0 0 1")
        self.assertEqual(self.lines(*blocks, f"cycles:{50 // SLOW}:2")[0], "cycles 0 0 1")

    def test_a_graph_runs_again(self) -> None:
        words = ["alloc:4096", "alloc:8192", "alloc:3000000", "graph", "replay"]
        self.assertEqual(self.lines(*words, KEEP, "resume", "replay", DISCARD, "resume", "replay"),
                         ["replay 0", "pause 0", "resume 0", "replay 0", "pause 0", "resume 0", "replay 0"])

    def test_work_is_waited_for(self) -> None:
        """Of the other device, too, which reaches the memory."""
        for words, blocks in ((("busy:200",), 4), (("device:1", "alloc:600", "busy:200", "device:0"), 5)):
            self.assertEqual(self.lines(*SOME, *words, KEEP, "resume", "check"), ["pause 0", "resume 0", f"check 0 {blocks}"])

    def test_a_peer_reaches_it_again(self) -> None:
        done = self.pause("device:1", "alloc:600", "device:0", *SOME, KEEP, "resume", "device:1", "check")
        self.assertEqual(done.out.splitlines()[-1], "check 0 5")


class Meanwhile(Base):
    def test_requests_and_frees(self) -> None:
        """New memory serves the requests; a free is a free, and a segment that gets empty does not come back."""
        out = self.lines(*SOME, KEEP, "free:3", "stats", "alloc:7000000", "stats", "free:1", "resume", "check", "stats")
        self.assertEqual(out, ["pause 0", "stats 6291456 3006464 6291456", "stats 14680064 10006528 6291456", "resume 0", "check 0 3",
                               "stats 10485760 7006208 0"])

    def test_everything_is_freed(self) -> None:
        done = self.pause(*SOME, KEEP, "free:0", "free:1", "free:2", "free:3", "trim", "stats", "resume", "check", "alloc:600", KEEP, "resume", "check",
                          CUPOOL_LOG_LEVEL="warn")
        self.assertEqual((done.warnings, done.counts["cuMemUnmap"], done.counts["cuMemAddressFree"]), ([], 4, 3))
        out = [line.rstrip() for line in done.out.splitlines()]
        self.assertEqual(out, ["pause 0", "trim 0", "stats 0 0 0", "resume 0", "check 0 0", "pause 0", "resume 0", "check 0 1"])

    def test_decay_and_trim(self) -> None:
        """The background thread finds nothing to do there."""
        out = self.lines(*SOME, KEEP, "alloc:3000000", "free:4", "trim", "stats", "resume", "check", CUPOOL_DECAY="0")
        self.assertEqual((out[0], out[-2], out[-1]), ("pause 0", "resume 0", "check 0 4"))
        self.assertEqual(out[2], "stats 14680064 10006528 14680064")

    def test_the_context_ends(self) -> None:
        for how in (KEEP, DISCARD):
            out = self.lines(*SOME, how, "reset", "info", "alloc:600", "resume", "check", how, "resume", "resume")
            self.assertEqual([line for line in out if "free" not in line], ["pause 0", "resume 0", "check 0 1", "pause 0", "resume 0",
                                                                            f"resume {EALREADY} it is not paused"])

    def test_the_context_ends_and_nothing_is_paused(self) -> None:
        self.assertEqual(self.lines(*SOME, KEEP, "reset", "alloc:600", "stats"), ["pause 0", "stats 2097152 1024 0"])

    def test_the_context_ends_and_another_is_paused(self) -> None:
        self.assertEqual(self.lines(*SOME, KEEP, "reset", "alloc:600", KEEP, "resume", "check"), ["pause 0", "pause 0", "resume 0", "check 0 1"])

    def test_the_process_ends(self) -> None:
        for how in (KEEP, DISCARD):
            done = self.pause(*SOME, how, CUPOOL_STATS="exit", CUPOOL_LOG_LEVEL="warn")
            trace = self.one_trace(done)
            self.assertTrue(trace.ended)
            self.assertEqual(trace.total("paused"), SEGMENTS)
            self.assert_fine(trace.path)

    def test_two_devices(self) -> None:
        out = self.lines("alloc:600", "device:1", "alloc:3000000", KEEP, "stats", "device:0", "stats", KEEP, "resume", "device:1", "resume",
                         "check")
        self.assertEqual(out, ["pause 0", "stats 4194304 3000320 4194304", "stats 2097152 1024 0", "pause 0", "resume 0", "resume 0",
                               "check 0 2"])

    def test_a_device_without_memory(self) -> None:
        """Its work writes the other device's memory: the pause waits for it."""
        self.assertEqual(self.lines("alloc:600", "device:1", "busy:300", "device:0", KEEP, "resume", "check"), ["pause 0", "resume 0", "check 0 1"])

    def test_threads(self) -> None:
        for free in ("auto", "relaxed"):
            self.assertEqual(self.lines("alloc:600", "alloc:300000", f"threads:4:{5000 // SLOW}", "check", CUPOOL_FREE=free), ["threads 0", "check 0 2"])

    def test_primary_contexts_are_retained_and_released(self) -> None:
        """While another thread's call may end the context, no step leaves it out."""
        for how in ("1", "2"):
            self.assertEqual(self.lines(*["alloc:600", "alloc:9000", "alloc:3000000"] * 2, "retains", f"cycles:{150 // SLOW}:{how}"), ["cycles 0 0 1"])

    def test_another_thread_exports(self) -> None:
        """Memory is exported or paused, and never both: the importer would go on with memory of which the exporter knows no more."""
        self.assertEqual(self.lines("alloc:5000", "exports:50", "check", CUPOOL_LOG_LEVEL="off"), ["exports 0", "check 0 1"])

    def test_another_device_exports(self) -> None:
        """Its memory is not touched."""
        out = self.lines("alloc:600", "export", "device:1", "alloc:600", KEEP, "resume", "check", "device:0", KEEP, CUPOOL_LOG_LEVEL="off")
        self.assertEqual(out, ["export 0", "pause 0", "resume 0", "check 0 2", f"pause {EBUSY} memory is exported to another process or library"])

    def test_an_export_just_before_the_pools_are_suspended(self) -> None:
        """The idle segment goes to the driver then, after the pause has looked whether memory is exported."""
        out = self.lines("alloc:600", "alloc:30000000", "free:1", "beside:cuEventRecord:export", KEEP, "check", "free:0", "alloc:600", KEEP, "resume",
                         CUPOOL_DECAY="off", CUPOOL_LOG_LEVEL="off")
        self.assertEqual(out, ["export 0", f"pause {EBUSY} memory is exported to another process or library", "check 0 1", "pause 0", "resume 0"])

    def test_a_pause_in_the_middle_of_an_export(self) -> None:
        """The memory has no other content until it is resumed: there is no handle of it."""
        out = self.lines("alloc:600", "beside:cuMemExportToShareableHandle:pause", "export", "resume", "check", "export", KEEP, CUPOOL_LOG_LEVEL="off")
        self.assertEqual(out, ["pause 0", "export 1", "resume 0", "check 0 1", "export 0",
                               f"pause {EBUSY} memory is exported to another process or library"])

    def test_what_the_trace_has(self) -> None:
        done = self.pause(*SOME, KEEP, "resume", DISCARD, "resume", "forget", CUPOOL_STATS="exit", CUPOOL_LOG_LEVEL="warn")
        trace = self.one_trace(done)
        events = trace.of("pause", "resume")
        self.assertEqual([(e["e"], e["d"], e.get("mode"), e["n"], e["segments"]) for e in events],
                         [("pause", 0, "keep", SEGMENTS, 3), ("resume", 0, None, SEGMENTS, 3), ("pause", 0, "discard", SEGMENTS, 3),
                          ("resume", 0, None, SEGMENTS, 3)])
        self.assertGreaterEqual(events[0]["copied"], 10 * 1000 * 1000)
        self.assertEqual([e["copied"] for e in events[1:]], [events[0]["copied"], 0, 0])
        self.assert_fine(trace.path)


class Refusals(Base):
    def test_each_reason(self) -> None:
        cases = [
            (("alloc:600", "begin", KEEP, "end"), {}, EBUSY, "a stream captures"),
            (("alloc:600", KEEP, KEEP), {}, EALREADY, "it is paused"),
            (("alloc:600", KEEP), {"CUPOOL_BACKEND": "cuda"}, ENOTSUP, "its memory does not come from virtual memory calls (CUPOOL_BACKEND=vmm)"),
            (("alloc:600", KEEP), {"SIMGPU_VMM": "0"}, ENOTSUP, "its memory does not come from virtual memory calls (CUPOOL_BACKEND=vmm)"),
            (("alloc:600", KEEP), {"CUPOOL_DEBUG": "guard"}, ENOTSUP, "CUPOOL_DEBUG=guard looks at all memory"),
        ]
        for words, env, code, why in cases:
            with self.subTest(why, env=env):
                done = self.pause(*words, **env, CUPOOL_LOG_LEVEL="warn")
                self.assertIn(f"pause {code} {why}", done.out.splitlines())
                self.assertIn(f"warning: device 0 is not paused: {why}", done.warnings[-1:] + done.warnings)
        self.assertEqual(self.lines("alloc:600", "resume", KEEP, "begin", "resume", "end", "resume", "check"),
                         [f"resume {EALREADY} it is not paused", "pause 0", f"resume {EBUSY} a stream captures", "resume 0", "check 0 1"])

    def test_a_capture_keeps_idle_memory(self) -> None:
        """A pause that is refused because of it has given nothing back."""
        out = self.lines("alloc:600", "alloc:30000000", "free:1", "stats", "begin", KEEP, "stats", "end", KEEP, "stats", CUPOOL_DECAY="off")
        self.assertEqual(out, ["stats 33554432 1024 0", f"pause {EBUSY} a stream captures", "stats 33554432 1024 0", "pause 0",
                               "stats 2097152 1024 2097152"])

    def test_registered_memory(self) -> None:
        done = self.pause("alloc:600", KEEP, "check", preload=str(LIB.with_name("libcupool-nccl.so")), CUPOOL_REGISTER="1")
        self.assertEqual(done.out.splitlines()[0], f"pause {EBUSY} memory is registered with NCCL (CUPOOL_REGISTER)")

    def test_what_is_no_request(self) -> None:
        out = self.lines(KEEP, "resume", "alloc:600", "pause:0", "pause:3", KEEP, "resume", "check")
        self.assertEqual(out, [f"pause {EAGAIN}", f"resume {EAGAIN}", f"pause {EINVAL}", f"pause {EINVAL}", "pause 0", "resume 0", "check 0 1"])
        self.assertEqual(self.lines("alloc:600", KEEP, "resume", preload=None), [f"pause {ENOSYS}", f"resume {ENOSYS}"])
        self.assertEqual(self.lines("alloc:600", KEEP, "resume", CUPOOL_ENABLE="0"), [f"pause {ENOSYS}", f"resume {ENOSYS}"])


class Failures(Base):
    CALLS = {  # with errors that the driver can give
        "cuMemUnmap": 1, "cuMemCreate": 2, "cuMemMap": 2, "cuMemSetAccess": 999, "cuMemRelease": 999, "cuMemHostAlloc": 2,
        "cuMemFreeHost": 999, "cuMemcpyDtoHAsync_v2": 1, "cuMemcpyHtoDAsync_v2": 1, "cuStreamSynchronize": 1, "cuStreamCreate": 2,
        "cuCtxGetCurrent": 999, "cuMemAddressReserve": 2,
    }

    def test_each_call_once(self) -> None:
        """Whatever fails, nothing is lost: a pause is undone, a resume can be repeated, and then everything is as before."""
        few = ("alloc:600", "alloc:3000000", "alloc:5000", "alloc:5000000")
        words = ("info", *few, "mark:go", KEEP, "resume", KEEP, "resume", "resume", "check", "free:0", "free:1", "free:2", "free:3", "trim", "info")
        failed = set()
        for name, code in self.CALLS.items():
            before = self.pause("info", *few, "mark:go").counts.get(name, 0)
            after = self.pause(*words).counts.get(name, 0)
            for n in range(before + 1, min(after, before + 9) + 1):
                with self.subTest(name, n=n):
                    out = self.lines(*words, SIMGPU_FAULT=f"{name}:{n}:{code}")
                    self.assertIn("check 0 4", out)
                    self.assertEqual(out[0], out[-1], out)
                    failed |= {(name, line.split()[0]) for line in out if line.split()[1:] and line.split()[1][0] == "-" and f"{EALREADY}" not in line}
        for each in (("cuMemUnmap", "pause"), ("cuMemHostAlloc", "pause"), ("cuMemcpyDtoHAsync_v2", "pause"), ("cuMemcpyHtoDAsync_v2", "resume"),
                     ("cuMemMap", "resume"), ("cuMemSetAccess", "resume")):
            self.assertIn(each, failed)

    def test_calls_that_fail_for_good(self) -> None:
        """It stays paused, and says so; or it is not paused."""
        for name, code, out in (("cuMemCreate", 2, ["pause 0", f"resume {ENOMEM} the device has not so much memory left"]),
                                ("cuMemMap", 999, ["pause 0", f"resume {EIO} the driver does not give the memory back"]),
                                ("cuMemHostAlloc", 2, [f"pause {ENOMEM} there is no pinned host memory for the contents",
                                                       f"resume {EALREADY} it is not paused"]),
                                ("cuStreamSynchronize", 1, [f"pause {EIO} the driver has not copied the contents",
                                                            f"resume {EALREADY} it is not paused"]),
                                ("cuMemUnmap", 999, [f"pause {EIO} the driver does not take memory back", f"resume {EALREADY} it is not paused"])):
            with self.subTest(name):
                before = self.pause(*SOME).counts.get(name, 0)
                self.assertEqual(self.lines(*SOME, KEEP, "resume", SIMGPU_FAULT=f"{name}:{before + 1}+:{code}"), out)

    def test_a_neighbour_has_the_memory(self) -> None:
        """Resume is all or nothing, and can be called again."""
        card = {"SIMGPU_SHARED": self.tmp / "card", "SIMGPU_MEMORY": "102M"}
        ours = self.start("alloc:30000000", "alloc:30000000", KEEP, "wait", "resume", "info", "stats", "wait", "resume", "check", env=card)
        self.assertEqual(self.said(ours), "pause 0")
        other = self.start("alloc:70000000", "mark:has", "wait", "free:0", "trim", "mark:gave", "wait", env=card)
        self.assertEqual(self.said(other), "has")
        self.go_on(ours)
        self.assertEqual(self.said(ours), f"resume {ENOMEM} the device has not so much memory left")
        self.assertEqual(self.said(ours), f"free {102 * MIB - 68 * MIB}")
        self.assertEqual(self.said(ours), f"stats {2 * 30 * MIB} {2 * 30000128} {2 * 30 * MIB}")
        self.go_on(other)
        self.assertEqual((self.said(other), self.said(other)), ("trim 1", "gave"))
        self.go_on(ours)
        self.assertEqual((self.said(ours), self.said(ours)), ("resume 0", "check 0 2"))

    def test_a_neighbour_gives_idle_memory_back(self) -> None:
        for idle, asked in ((70000000, 30 * MIB), (100000000, 60 * MIB)):  # there was room for one of the two; for none
            folder = self.folder()
            card = {"SIMGPU_SHARED": folder / "card", "SIMGPU_MEMORY": "102M", "CUPOOL_NEIGHBOURS": "20000"}
            ours = self.start("alloc:30000000", "alloc:30000000", KEEP, "wait", "resume", "check",
                              env={**card, "CUPOOL_TRACE_FILE": folder / "trace"})
            self.assertEqual(self.said(ours), "pause 0")
            other = self.start(f"alloc:{idle}", "free:0", "mark:idle", "wait", env=card)
            self.assertEqual(self.said(other), "idle")
            self.go_on(ours)
            self.assertEqual((self.said(ours), self.said(ours)), ("resume 0", "check 0 2"))
            ours.communicate()
            self.assertEqual([e["n"] for e in Trace(folder / "trace").of("ask")], [asked])
            self.go_on(other)
            other.communicate()
