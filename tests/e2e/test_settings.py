# SPDX-License-Identifier: Apache-2.0
"""Settings: each has its effect, a wrong value is reported once and harmless, and cupool-info shows the values in force.

test_rank and test_trace have the meaning of each setting for launchers and traces; accepted values and names, and the messages
about others, are in tests/unit/shim/base/test_settings.c.
"""

import re
import shutil
import sys
import unittest
from pathlib import Path

from e2e import SANITIZE, INFO, MIB, SOURCE, Case, Done, Trace, Word, app

# NAME, type, default, help of every row of conf.def.
ROWS = re.findall(r'^CONF\(\w+, "(\w+)", (\w+), "([^"]*)", "[^"]*",\s*"([^"]*)', (SOURCE / "shim" / "conf.def").read_text(), re.M)

# One value of each type that is not accepted; all that are and are not stand in tests/unit/shim/base/test_settings.c.
REFUSED = {"BOOL": "", "CHOICE": "nonsense", "SIZE": "1." + "0" * 100000, "NUMBER": "x", "SECONDS": "1s", "FILL": "on", "STATS": "exit,",
           "STRING": "y" * 1024}


class Base(Case):
    def used(self, *args: Word, **env: str) -> "tuple[Done, Trace]":
        done = self.go(app("shared"), *(args or ("churn:60:100000",)), **env)
        return done, self.one_trace(done)


class Wrong(Base):
    def test_the_table_was_read(self) -> None:
        self.assertGreaterEqual(len(ROWS), 9)
        self.assertIn(("LIMIT", "SIZE", "0"), [r[:3] for r in ROWS])

    def test_invalid_values(self) -> None:
        """Reported once, with the accepted values; the default is in force. A wrong value of every setting at a time."""
        done, trace = self.used(**{f"CUPOOL_{name}": REFUSED[kind] for name, kind, _, _ in ROWS})
        self.assertEqual(len(done.warnings), len(ROWS), done.err)
        for (name, _, default, _), said in zip(ROWS, done.warnings):
            self.assertRegex(said, f"CUPOOL_{name} .*; using {re.escape(default or 'none')}$")
            self.assertEqual(trace.header["settings"][f"CUPOOL_{name}"], default)

    def test_nothing_is_said_by_programs_without_cuda(self) -> None:
        self.assertEqual(self.go("/bin/true", CUPOOL_FREE="x", CUPOOL_Z="z").err, "")

    def test_nothing_is_said_when_switched_off(self) -> None:
        self.assertEqual(self.go(app("shared"), "churn:9:4096", CUPOOL_ENABLE="0", CUPOOL_FREE="x", CUPOOL_Z="z").err, "")


class Effects(Base):
    def policy(self, trace: Trace) -> "tuple[str, str]":
        events = trace.of("policy")
        self.assertEqual(len(events), 1)
        return events[0]["free"], events[0]["why"]

    @unittest.skipIf("thread" in SANITIZE, "Python, which was not built with it")
    def test_strict_before_the_first_request(self) -> None:
        """Calls seen by then hold for the device from its first free on, and log and trace name them."""
        code = ("import ctypes\ncuda = ctypes.CDLL('libcudart.so.13')\np = ctypes.c_void_p()\n"
                "assert cuda.cudaMallocManaged(ctypes.byref(p), ctypes.c_size_t(4096), 1) == 0\n"
                "assert cuda.cudaMalloc(ctypes.byref(p), ctypes.c_size_t(4096)) == 0 and cuda.cudaFree(p) == 0\n")
        done = self.go(sys.executable, "-c", code, CUPOOL_LOG_LEVEL="info")
        self.assertEqual(self.policy(self.one_trace(done)), ("strict", "managed memory"))
        self.assertIn("info: device 0: frees wait on the host: managed memory", done.warnings)

    def test_free_relaxed(self) -> None:
        """Frees share their ordering calls, as many bytes of them as the slack allows."""
        done, trace = self.used(CUPOOL_FREE="relaxed")
        self.assertEqual(self.policy(trace), ("relaxed", "CUPOOL_FREE"))
        for call in ("cuCtxRecordEvent", "cuCtxWaitEvent", "cuCtxSynchronize"):
            self.assertEqual(done.counts.get(call, 0), 0)  # 60 small blocks are less than 64 MiB
        records = []
        for policy, slack, size in (("ordered", "10", 6000000), ("relaxed", "0", 6000000), ("relaxed", "0", 30000000),
                                    ("relaxed", "1000", 30000000)):
            done = self.go(app("shared"), f"churn:300:{size}", CUPOOL_FREE=policy, CUPOOL_SLACK=slack)
            records.append(done.counts.get("cuCtxRecordEvent", 0))
        self.assertEqual(records[0], 300)
        self.assertLess(records[1], 150)
        self.assertEqual(records[2], 300)  # few of a quarter of the slack would fit beside each other
        self.assertLess(records[3], 150)

    def test_free_with_an_old_driver(self) -> None:
        for value, why, warnings in (("auto", "driver older than 12.5", 0), ("ordered", "driver older than 12.5", 1),
                                     ("relaxed", "driver older than 12.5", 1), ("strict", "CUPOOL_FREE", 0)):
            with self.subTest(value):
                # Natively the same program: a newer runtime on an older driver need not work at all.
                if self.go(app("driver"), "churn:9:4096", preload=None, rc=None, SIMGPU_DRIVER_VERSION="12040").rc:
                    self.skipTest("the simulated GPU does not run it either")
                done = self.go(app("driver"), "churn:60:100000", CUPOOL_FREE=value, SIMGPU_DRIVER_VERSION="12040")
                trace = self.one_trace(done)
                self.assertEqual(self.policy(trace), ("strict", why))
                self.assertEqual(len(done.warnings), warnings, done.err)
                if warnings:
                    self.assertRegex(done.warnings[0], f"CUPOOL_FREE={value}.*12.5.*strict")
                self.assertEqual(done.counts.get("cuCtxWaitEvent", 0), 0)
                self.assertEqual((trace.total("allocs"), trace.total("frees")), (60, 60))

    def test_limit(self) -> None:
        """The pool holds no more; requests beyond it are served by the driver."""
        words = [f"alloc:6:{4 * MIB}", "alloc:20:100000", "free:26", f"churn:60:{3 * MIB}", f"alloc:3:{30 * MIB}", "free:3"]
        done, trace = self.used(*words, CUPOOL_LIMIT="16M")
        self.assertLessEqual(trace.total("peak_held"), 16 * MIB)
        self.assertGreater(trace.total("bypassed"), 0)
        self.assertEqual(trace.total("allocs") + trace.total("bypassed"), 6 + 20 + 60 + 3)
        self.assertEqual(done.counts["cuMemAlloc_v2"], trace.total("bypassed") + trace.total("segments_alloc"))
        self.assert_fine(trace.path)
        _, free = self.used(*words)
        self.assertGreater(free.total("peak_held"), 16 * MIB)
        self.assertEqual(free.total("bypassed"), 0)

    def test_stats(self) -> None:
        done, trace = self.used("churn:100:100000", CUPOOL_STATS="exit")
        lines = done.err.splitlines()
        self.assertTrue(all(line.startswith("cupool: ") for line in lines), done.err)
        title, row = lines[0].split()[1:], lines[1].split()[1:]
        self.assertEqual(title[:3], ["device", "allocs", "hits"])
        self.assertEqual([row[0], row[1], row[3], row[4]], ["0", "100", "100", "0"])
        self.assertAlmostEqual(float(row[2].rstrip("%")), 100.0 * trace.total("hits") / 100, delta=0.01)
        self.assertEqual(lines[-1], f"cupool: trace: {trace.path.name}")
        self.assertEqual(self.go(app("shared"), "churn:9:4096", CUPOOL_STATS="off").err, "")

    def test_stats_without_trace(self) -> None:
        done = self.go(app("shared"), "churn:9:4096", CUPOOL_STATS="exit", CUPOOL_TRACE_FILE="off")
        self.assertEqual((len(done.err.splitlines()), done.files), (2, []))

    def test_stats_are_printed_at_every_log_level(self) -> None:
        self.assertTrue(self.go(app("shared"), "churn:9:4096", CUPOOL_STATS="exit", CUPOOL_LOG_LEVEL="off").err)

    def test_changed_by_the_program_afterwards(self) -> None:
        """Read once: half a process with other settings would help nobody."""
        _, trace = self.used("churn:9:4096", "setenv:CUPOOL_TRACE_EVENTS:segment,alloc", "setenv:CUPOOL_ENABLE:0", "churn:50:4096")
        self.assertEqual((trace.total("allocs"), trace.of("alloc")), (59, []))


class Info(Case):
    def info(self, *args: str, rc: int = 0, **env: str) -> Done:
        return self.go(INFO, *args, preload=None, rc=rc, **env)

    def test_every_setting(self) -> None:
        blocks = dict(re.findall(r"^(CUPOOL_\w+)=(.*\n(?: .*\n)*)", self.info("-c").out, re.M))
        self.assertEqual(sorted(blocks), sorted(f"CUPOOL_{r[0]}" for r in ROWS))
        for name, _, default, text in ROWS:
            block = blocks[f"CUPOOL_{name}"]
            self.assertEqual(block.split("\n")[0], default)
            self.assertIn(text.strip(), block)
            self.assertIn(f"default: {default or '(none)'};", block)
            self.assertIn("value from: default", block)

    def test_sources(self) -> None:
        done = self.info("-c", CUPOOL_FREE="strict", CUPOOL_LIMIT="nonsense", CUPOOL_STATZ="1")
        self.assertRegex(done.out, r"CUPOOL_FREE=strict\n.*\n.*value from: environment")
        self.assertRegex(done.out, r"CUPOOL_LIMIT=0\n.*\n.*value from: default \(.*not accepted\)")
        self.assertIn("did you mean CUPOOL_STATS?", done.err)
        self.assertIn("CUPOOL_LIMIT", done.err)

    def test_markdown_has_a_section_for_each(self) -> None:
        lines = self.info("--markdown").out.splitlines()
        self.assertEqual([line for line in lines if line.startswith("#")], [f"## `CUPOOL_{row[0]}`" for row in ROWS])
        self.assertLessEqual(max(map(len, lines)), 120)

    def test_usage(self) -> None:
        self.assertRegex(self.info("--version").out, r"^cupool \d+\.\d+\.\d+\n$")
        self.assertIn("usage", self.info("--help").out)
        self.assertIn("--nothing", self.info("--nothing", rc=2).err)
        self.assertIn("'more'", self.info("--settings", "more", rc=2).err)

    def test_it_writes_nothing(self) -> None:
        self.assertEqual(self.info("--process").files, [])
        self.assertEqual(self.go(INFO, "--process").files, [])  # preloaded itself

    def test_process_names_the_trace(self) -> None:
        out = self.info("--process", CUPOOL_TRACE_FILE="t.%e.%r", CUPOOL_RANK="3").out
        self.assertIn("would be: t.cupool-info.3\n", out)


class Launcher(Base):
    """cupool-run sets what it says; the rest of it is in tests/scripts."""

    def test_with_the_simulated_gpu(self) -> None:
        build = Path(app("shared")).parents[2]
        if not (build / "shim" / "libcupool.so").exists() or not shutil.which("sh"):
            self.skipTest("not the build folder's usual shape")
        cwd = self.folder()
        done = self.go(SOURCE / "scripts" / "cupool-run", "--sim=3", "--trace=out/%e.%r.jsonl", "--events=segment,alloc",
                       "--free=strict", "--stats", "--", app("static"), "churn:100:100000", "exit:4", preload=None, rc=4, cwd=cwd,
                       BUILDDIR=build, LD_LIBRARY_PATH=None)
        trace = Trace(cwd / "out" / "app_static.x.jsonl")
        self.assertEqual((len(trace.of("alloc")), trace.of("policy")[0]["free"]), (100, "strict"))
        self.assertIn("cupool: device", re.sub(" +", " ", done.err))
