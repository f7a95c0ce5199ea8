# SPDX-License-Identifier: Apache-2.0
"""The report when there is no memory: in the trace each time, on stderr now and then. The program's error and last error are the
native ones.
"""

import re
import shutil
import subprocess
import unittest
from typing import Any

from e2e import BIN, MIB, Case, Done, app

KEYS = {"t", "e", "tid", "d", "n", "held", "live", "idle", "pending", "holes", "ranges", "segments", "largest", "device_free",
        "device_total", "others", "why"}
ALL = 64 * MIB


class Base(Case):
    def report(self, *words: str, kind: str = "shared", **env: str) -> Done:
        return self.go(BIN / f"report_{kind}", *words, **{"SIMGPU_MEMORY": "64M", **env})

    def oom(self, *words: str, **env: str) -> "dict[str, Any]":
        """The one report of a run, from the trace; its parts add up."""
        done = self.report(*words, **env)
        trace = self.one_trace(done)
        self.assert_fine(trace.path)
        [event] = trace.of("oom")
        self.assertEqual(set(event), KEYS)
        if event["device_total"]:
            self.assertEqual(event["device_free"] + event["held"] + event["others"], event["device_total"])
        self.assertGreaterEqual(event["held"], sum(event[k] for k in ("live", "pending", "idle", "holes")))
        self.check_block(done, event)
        return event

    def check_block(self, done: Done, event: "dict[str, Any]") -> None:
        """The block on stderr has the same numbers, to the byte."""
        self.assertEqual(len(done.err.splitlines()), len(done.warnings), done.err)
        said = "\n".join(done.warnings)
        self.assertIn(f"device {event['d']}: a request of {event['n']}", said)
        for key, text in (("held", "held"), ("live", "live"), ("idle", "idle"), ("pending", "kept back")):
            self.assertRegex(said, rf"\b{event[key]}( \([^)]*\))? {text}\b")
        self.assertRegex(said, rf"\b{event['holes']}( \([^)]*\))? in {event['ranges']} holes of {event['segments']} segments, "
                               rf"largest free range {event['largest']}\b")
        if event["device_total"]:
            self.assertRegex(said, rf"device: {event['device_free']}( \([^)]*\))? free of {event['device_total']}.*others hold {event['others']}\b")


class Program(Base):
    def test_errors_are_the_native_ones(self) -> None:
        words = ["last", f"alloc:{100 * MIB}", "last", "alloc:4096", f"alloc:{100 * MIB}", f"alloc:{100 * MIB}", "last", "limit",
                 f"many:20:{5 * MIB}", "last", f"other:{80 * MIB}", "last"]
        for kind in ("shared", "static"):
            native = self.report(*words, kind=kind, preload=None)
            self.assertIn("last 2 2 0", native.out)
            for env in ({}, {"CUPOOL_LOG_LEVEL": "off"}, {"CUPOOL_HOOK": "runtime"}, {"CUPOOL_DEBUG": "1"}, {"CUPOOL_LIMIT": "8M"}):
                with self.subTest(kind, **env):
                    self.assertEqual(self.report(*words, kind=kind, **env).out, native.out)

    def test_the_driver_api_too(self) -> None:
        done = self.go(app("driver"), "tolerate", f"alloc:1:{100 * MIB}", SIMGPU_MEMORY="64M")
        self.assertEqual(done.out, "error 2 in alloc\nerrors 1\n")
        [event] = self.one_trace(done).of("oom")
        self.check_block(done, event)

    def test_an_error_of_the_question_is_nobodys(self) -> None:
        """The driver does not say how much it has: one line less, and no other error."""
        plain = self.report("alloc:4096", f"alloc:{100 * MIB}", "last")
        calls = plain.counts["cuMemGetInfo_v2"]
        done = self.report("alloc:4096", f"alloc:{100 * MIB}", "last", SIMGPU_FAULT=f"cuMemGetInfo_v2:{calls}:999")
        self.assertEqual(done.out, plain.out)
        [event] = self.one_trace(done).of("oom")
        self.assertEqual((event["device_total"], event["why"]), (0, "unknown"))
        self.assertNotIn("device: ", done.err.replace("device 0: ", ""))

    def test_nothing_is_said_where_nothing_is_refused(self) -> None:
        done = self.report(f"many:10:{6 * MIB}", "many:8:4096")
        self.assertEqual((done.err, done.out, self.one_trace(done).of("oom")), ("", "", []))

    def test_what_is_freed_on_a_stream(self) -> None:
        """It serves again, also where the driver orders nothing and cannot be asked."""
        for version in ("13000", "12040"):
            with self.subTest(version):
                self.assertEqual(self.report(f"async:20:{8 * MIB}", SIMGPU_DRIVER_VERSION=version).out, "async 0\n")

    def test_switched_off(self) -> None:
        done = self.report(f"alloc:{100 * MIB}", CUPOOL_ENABLE="0")
        self.assertEqual((done.err, done.files), ("", []))

    def test_a_library_that_is_passed_through(self) -> None:
        """Its requests are the driver's business: nothing is said of them, and nothing started, by the driver's API or the runtime's."""
        for name in ("libmpi_x.so", "libnccl.so.2", "libother.so"):
            for hook in ("auto", "runtime"):
                with self.subTest(name, hook=hook):
                    done = self.go(BIN / "hang", "refused", shutil.copy(BIN / "loaded.so", self.tmp / name), CUPOOL_HOOK=hook,
                                   CUPOOL_STATS_FILE="page", CUPOOL_STATS="exit")
                    self.assertEqual(done.out, "refused: 2\n")
                    if name == "libother.so":
                        # With the runtime's hooks alone the very first request comes before there is a driver to be seen.
                        self.assertEqual("out of memory" in done.err, hook == "auto")
                    else:
                        self.assertRegex(done.err, r"^cupool: nothing was pooled: .*\n" + (r"cupool: advice: .*\n$" if hook == "runtime" else "$"))
                        self.assertEqual(done.files, [])

    def test_without_stderr(self) -> None:
        done = self.report("closefrom:2", f"alloc:{100 * MIB}", "last")
        self.assertEqual(done.out, "alloc 2\nlast 2 2 0\n")
        cwd = self.folder()
        env = self.env(SIMGPU_MEMORY="64M")
        subprocess.run(["sh", "-c", 'exec "$@" 2>&-', "sh", BIN / "report_shared", "alloc:4096", f"alloc:{100 * MIB}"], env=env, cwd=cwd,
                       check=True, stdout=subprocess.DEVNULL, timeout=60)
        subprocess.run(["sh", "-c", 'exec "$@" 2>/dev/full', "sh", BIN / "report_shared", "alloc:4096", f"alloc:{100 * MIB}"], env=env,
                       cwd=cwd, check=True, stdout=subprocess.DEVNULL, timeout=60)

    def test_a_child_says_nothing(self) -> None:
        done = self.report("alloc:4096", "fork{", f"alloc:{100 * MIB}", "}")
        self.assertIn("child ended: exit 0", done.out)
        self.assertEqual((done.err, self.one_trace(done).of("oom")), ("", []))


class Numbers(Base):
    def test_live(self) -> None:
        event = self.oom(*["alloc:%d" % (6 * MIB)] * 10, f"alloc:{6 * MIB}")
        self.assertEqual((event["n"], event["live"], event["held"], event["device_free"], event["others"], event["why"]),
                         (6 * MIB, 60 * MIB, 60 * MIB, 4 * MIB, 0, "live"))

    def test_size(self) -> None:
        event = self.oom("alloc:1000", f"alloc:{ALL + 1}")
        self.assertEqual((event["why"], event["live"], event["holes"], event["ranges"], event["segments"], event["largest"]),
                         ("size", 1024, 2 * MIB - 512 - 1024, 1, 1, 2 * MIB - 512 - 1024))

    def test_others(self) -> None:
        event = self.oom(f"alloc:{2 * MIB}", f"other:{50 * MIB}", f"alloc:{30 * MIB}")
        self.assertEqual((event["others"], event["held"], event["why"]), (50 * MIB, 2 * MIB, "others"))

    def test_pieces(self) -> None:
        """Half of each shared segment is free, which would have been enough in one piece."""
        words = [f"many:62:{MIB}", *(f"free:{i}" for i in range(0, 62, 2))]
        event = self.oom(*words, f"alloc:{20 * MIB}", CUPOOL_DECAY="off")
        self.assertEqual(event["live"], 31 * MIB)
        self.assertEqual(event["live"] + event["holes"], event["held"])
        self.assertEqual((event["holes"], event["ranges"], event["segments"], event["largest"]), (31 * MIB, 31, 31, MIB))
        self.assertEqual(event["why"], "pieces")

    def test_limit(self) -> None:
        event = self.oom(f"alloc:{8 * MIB}", f"many:5:{10 * MIB}", f"alloc:{10 * MIB}", CUPOOL_LIMIT="8M")
        self.assertEqual((event["held"], event["others"], event["why"]), (8 * MIB, 50 * MIB, "limit"))

    def test_within_the_limit(self) -> None:
        event = self.oom(f"alloc:{30 * MIB}", f"other:{32 * MIB}", f"alloc:{10 * MIB}", CUPOOL_LIMIT="40M")
        self.assertEqual((event["held"], event["others"], event["why"]), (30 * MIB, 32 * MIB, "others"))

    def test_capture(self) -> None:
        """Memory freed before a capture, under work that is not over, cannot go back before its end, unless the free was put in
        order; and the library calls no driver function then."""
        words = (f"many:48:{MIB}", *(f"free:{i}" for i in range(48)), "begin", f"alloc:{30 * MIB}", "end")
        event = self.oom(*words, CUPOOL_FREE="relaxed", CUPOOL_SLACK="100", SIMGPU_FAULT="cuEventQuery:1+:600")
        self.assertEqual((event["pending"] + event["idle"], event["live"], event["why"], event["device_total"]),
                         (48 * MIB, 0, "capture", 0))
        self.assertGreater(event["pending"], 24 * MIB)
        self.assertEqual(self.one_trace(self.report(*words)).of("oom"), [])

    def test_the_driver_has_as_much(self) -> None:
        event = self.oom("alloc:4096", f"alloc:{10 * MIB}", SIMGPU_FAULT="cuMemAlloc_v2:2+:2")
        self.assertEqual((event["why"], event["device_free"]), ("driver", 62 * MIB))


class Often(Base):
    def test_now_and_then(self) -> None:
        done = self.report(f"many:1030:{100 * MIB}")
        trace = self.one_trace(done)
        self.assertEqual(len(trace.of("oom")), 1030)
        firsts = [w for w in done.warnings if w.startswith("warning: out of memory")]
        self.assertEqual(len(firsts), 2, firsts)
        self.assertIn("for the 1024th time", firsts[1])
        # Every block is looked at for these two, and besides once a second at most.
        looked = [e for e in trace.of("oom") if "why" in e]
        self.assertEqual(trace.of("oom")[0], looked[0])
        self.assertIn(trace.of("oom")[1023], looked)
        self.assertLess(len(looked), 500)

    def test_log_level(self) -> None:
        for level, said in (("off", False), ("error", False), ("warn", True), ("info", True)):
            done = self.report(f"alloc:{100 * MIB}", CUPOOL_LOG_LEVEL=level)
            self.assertEqual("out of memory" in done.err, said, level)
            self.assertEqual(len(self.one_trace(done).of("oom")), 1)

    def test_one_write(self) -> None:
        """The lines of two processes do not mix: each block is one system call."""
        done = self.report(f"alloc:{100 * MIB}")
        pids = re.findall(r"^cupool\[(\d+)\]: ", done.err, re.M)
        self.assertEqual(len(pids), 4, done.err)
        self.assertEqual(len(set(pids)), 1)
