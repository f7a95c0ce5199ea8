# SPDX-License-Identifier: Apache-2.0
"""CUPOOL_STATS while a program runs: at a signal, every so often; and what that must not do: take a signal away from the
program, end it, or write into a child's or a parent's output.
"""

import json
import os
import re
import signal
import subprocess
import time
import unittest
from pathlib import Path
from typing import Any, Optional

from e2e import BIN, LIB, MIB, SANITIZE, SOURCE, TIMEOUT, Case, Done, Trace, app, full_pipe, tool

USR2 = int(signal.SIGUSR2)
HEAD = re.compile(r"^cupool: process (\d+) after ([\d.]+) s \((\w+)\):$", re.M)


class Base(Case):
    def report(self, *words: str, **env: Any) -> Done:
        return self.go(BIN / "report_shared", *words, **env)

    @staticmethod
    def stats(cwd: Path, why: Optional[str]) -> "list[dict[str, Any]]":
        [path] = [p for p in cwd.iterdir() if ".jsonl" in p.name]
        # It may still be being written.
        lines = path.read_text().split("\n")[:-1]
        import json
        return [e for e in map(json.loads, lines) if e.get("e") == "stats" and e.get("why") == why]


class Signal(Base):
    WORDS = ("churn:50:4096", "ready", "await:go", "churn:50:4096")

    def at_signals(self, *words: str, times: int = 1, number: int = USR2, value: str = "signal:USR2", **env: str) -> "tuple[str, str, Path]":
        def then(child: "subprocess.Popen[str]", cwd: Path) -> None:
            for i in range(times):
                self.signal_until(child, number, lambda: child.poll() is not None or len(self.stats(cwd, "signal")) > i)
        # With a clock that slow nobody else wakes the thread in time.
        return self.running(*(words or self.WORDS), then=then, CUPOOL_STATS=value, CUPOOL_DECAY="600", **env)

    def test_counters_so_far(self) -> None:
        _, err, cwd = self.at_signals()
        heads = HEAD.findall(err)
        self.assertEqual([h[2] for h in heads], ["signal"])
        lines = err.splitlines()
        self.assertEqual(len(lines), 3, err)
        self.assertEqual(lines[1].split()[1:4], ["device", "allocs", "hits"])
        self.assertEqual(lines[2].split()[1:3], ["0", "50"])
        [early] = self.stats(cwd, "signal")
        [last] = self.stats(cwd, None)
        self.assertEqual((early["allocs"], last["allocs"], last["frees"]), (50, 100, 100))
        [path] = [p for p in cwd.iterdir() if ".jsonl" in p.name]
        self.assert_fine(path)
        self.assertEqual(Trace(path).total("allocs"), 100)

    def test_the_table_says_what_the_trace_does(self) -> None:
        """Everything in its column; rounded to tenths of a MiB and hundredths of a percent."""
        done = self.report("alloc:4096", "churn:30:3250000", "churn:7:99999999999", CUPOOL_STATS="exit", CUPOOL_LIMIT="20M", PMIX_RANK="3")
        rank = re.escape(f"cupool[rank 3, {self.one_trace(done).header['pid']}]: ")
        [stats] = self.one_trace(done).of("stats")
        [row] = [line.split()[4:] for line in done.err.splitlines() if re.match(f"{rank}+0 ", line)]
        table = done.err[done.err.index("cupool[rank"):].splitlines()
        self.assertEqual([line for line in table if not re.match(rank, line)], [])
        hundredths = int(stats["hits"] * 10000 / stats["allocs"] + 0.5)
        tenths = [(stats[key] * 10 + MIB // 2) // MIB for key in ("peak_live", "peak_held")]
        self.assertEqual(row, [str(stats["allocs"]), f"{hundredths // 100}.{hundredths % 100:02}%", str(stats["frees"]), str(stats["bypassed"]),
                               str(stats["segments_alloc"] + stats["segments_free"]), "7",
                               *(f"{n // 10}.{n % 10}" for n in tenths)])
        self.assertGreater(min(stats["bypassed"], tenths[0] % 10), 0)
        # An error that the program got is one in the table and in the summary, also if the pool had no part in it.
        devices = json.loads(tool.run("summary", "--json", self.one_trace(done).path).stdout)["ranks"][0]["devices"]
        self.assertEqual((devices["0"]["oom"], len(self.one_trace(done).of("oom"))), (7, 7))

    def test_again_and_again(self) -> None:
        _, err, cwd = self.at_signals(times=5)
        self.assertEqual(len(HEAD.findall(err)), 5)
        self.assertEqual(len(self.stats(cwd, "signal")), 5)

    def test_just_before_the_end(self) -> None:
        """The exit waits for the thread that writes."""
        for _ in range(10):
            self.assertEqual(len(HEAD.findall(self.report("alloc:4096", f"raise:{USR2}", CUPOOL_STATS="signal:USR2").err)), 1)

    def test_other_signals_and_exit(self) -> None:
        for value, number in (("signal:HUP", int(signal.SIGHUP)), ("signal:10,exit", 10), ("exit,signal:rtmin+2", int(signal.SIGRTMIN) + 2)):
            with self.subTest(value):
                _, err, _ = self.at_signals(number=number, value=value)
                self.assertEqual(len(HEAD.findall(err)), 1)
                self.assertEqual("cupool: trace: " in err, "exit" in value)

    def test_a_storm_is_survived(self) -> None:
        """As many as come, while the program works; no call of it fails."""
        def then(child: "subprocess.Popen[str]", cwd: Path) -> None:
            for _ in range(300):
                child.send_signal(USR2)
        out, err, cwd = self.running("churn:50:4096", "ready", "churn:3000:100000", "await:go", "sleep:50", then=then,
                                     CUPOOL_STATS="signal:USR2", CUPOOL_TRACE_EVENTS="segment,alloc")
        self.assertGreaterEqual(len(HEAD.findall(err)), 1)
        self.assertEqual(self.stats(cwd, None)[0]["allocs"], 3050)
        self.assert_fine(*[p for p in cwd.iterdir() if ".jsonl" in p.name])

    def test_calls_go_on(self) -> None:
        """System calls that a handler may interrupt are restarted."""
        out = self.report("alloc:4096", f"caught:{USR2}", f"raise:{USR2}", "sleep:100", CUPOOL_STATS="signal:USR2")
        self.assertEqual(out.out, "caught 0 other's\n")
        self.assertEqual(len(HEAD.findall(out.err)), 1)

    def test_before_the_first_request_it_ends_the_program(self) -> None:
        """As natively: nothing of ours is there yet."""
        self.report(f"raise:{USR2}", rc=-USR2, CUPOOL_STATS="signal:USR2")
        self.report("alloc:4096", f"raise:{USR2}", rc=-USR2)

    def test_the_programs_handler_stays(self) -> None:
        done = self.report(f"handler:{USR2}", "alloc:4096", f"raise:{USR2}", f"caught:{USR2}", "sleep:50", CUPOOL_STATS="signal:USR2")
        self.assertEqual(done.out, "caught 1 ours\n")
        self.assertEqual(len(done.warnings), 1, done.err)
        self.assertIn(f"signal {USR2}", done.warnings[0])
        self.assertEqual(HEAD.findall(done.err), [])
        done = self.report(f"ignore:{USR2}", "alloc:4096", f"raise:{USR2}", f"caught:{USR2}", CUPOOL_STATS="signal:USR2")
        self.assertEqual((done.out, len(done.warnings)), ("caught 0 ignored\n", 1))

    def test_the_program_takes_it_later(self) -> None:
        done = self.report("alloc:4096", f"handler:{USR2}", f"raise:{USR2}", f"caught:{USR2}", "sleep:50", CUPOOL_STATS="signal:USR2")
        self.assertEqual((done.out, done.err), ("caught 1 ours\n", ""))

    @unittest.skipIf("thread" in SANITIZE, "with it no handler is called in a child of a program with threads")
    def test_a_child_keeps_the_programs_handler(self) -> None:
        done = self.report("alloc:4096", f"handler:{USR2}", "fork{", f"raise:{USR2}", f"caught:{USR2}", "}", CUPOOL_STATS="signal:USR2")
        self.assertIn("caught 1 ours\n", done.out)

    def test_off_touches_no_signal(self) -> None:
        for value in ("off", "exit", "timer:100"):
            self.assertEqual(self.report("alloc:4096", f"caught:{USR2}", CUPOOL_STATS=value).out, "caught 0 default\n")

    def test_a_child_has_no_handler(self) -> None:
        """It would wake nobody: the signal does what it does natively."""
        done = self.report("alloc:4096", "fork{", f"caught:{USR2}", f"raise:{USR2}", "}", f"raise:{USR2}", "sleep:100",
                           CUPOOL_STATS="signal:USR2")
        self.assertEqual(done.out, f"caught 0 default\nchild ended: signal {USR2}\n")
        self.assertEqual(len(HEAD.findall(done.err)), 1)

    def test_blocked_where_the_program_blocks_it(self) -> None:
        done = self.report("alloc:4096", f"mask:{USR2}", f"raise:{USR2}", "sleep:50", CUPOOL_STATS="signal:USR2")
        self.assertEqual(done.err, "")

    def test_without_stderr(self) -> None:
        """Closed, closed from the start, full: the program goes on, and the trace has it all the same."""
        words = ("alloc:4096", f"raise:{USR2}", "sleep:100")
        self.report("closefrom:2", *words, CUPOOL_STATS="signal:USR2,exit")
        for redirect in ("2>&-", "2>/dev/full"):
            cwd = self.folder()
            subprocess.run(["sh", "-c", f'exec "$@" {redirect}', "sh", BIN / "report_shared", *words], cwd=cwd, check=True,
                           env=self.env(CUPOOL_STATS="signal:USR2,exit"), timeout=TIMEOUT)
            self.assertEqual(len(self.stats(cwd, "signal")), 1)

    def test_without_a_trace(self) -> None:
        done = self.report("alloc:4096", f"raise:{USR2}", "sleep:100", CUPOOL_STATS="signal:USR2", CUPOOL_TRACE_FILE="off")
        self.assertEqual((len(HEAD.findall(done.err)), done.files), (1, []))

    def test_nobody_reads_stderr(self) -> None:
        """A full pipe holds up the thread that writes, not the program; its exit waits for two seconds at most."""
        read, write = full_pipe()
        try:
            before = time.monotonic()
            self.running("alloc:4096", "ready", "await:go", "churn:100:4096", stderr=write, CUPOOL_STATS="signal:USR2",
                         then=lambda child, cwd: child.send_signal(USR2))
            self.assertLess(time.monotonic() - before, TIMEOUT / 3)
        finally:
            os.close(read)
            os.close(write)

    def test_killed_the_last_one_counts(self) -> None:
        def then(child: "subprocess.Popen[str]", cwd: Path) -> None:
            self.signal_until(child, USR2, lambda: self.stats(cwd, "signal"))
        _, _, cwd = self.running("churn:70:4096", "ready", "await:go", "kill", rc=-9, then=then, CUPOOL_STATS="signal:USR2")
        [path] = [p for p in cwd.iterdir() if ".jsonl" in p.name]
        self.assert_fine(path, complete=False)
        done = subprocess.run([SOURCE / "scripts" / "cupool-trace", "summary", path], capture_output=True, text=True, timeout=60)
        self.assertIn(" ~70 ", done.stdout)
        self.assertIn("the last stats line", done.stdout)


class Contexts(Base):
    def test_peaks_of_contexts_that_came_one_after_the_other(self) -> None:
        """Never more than one block was there at a time; all else adds up."""
        done = self.report(*["churn:1:99999999", "churn:1:67108864", "reset"] * 4, "churn:1:1048576", CUPOOL_LIMIT="80M")
        trace = self.one_trace(done)
        [stats] = [e for e in trace.of("stats") if e["d"] == 0]
        self.assertEqual((stats["peak_live"], stats["peak_held"]), (64 << 20, 64 << 20))
        self.assertEqual((stats["allocs"], stats["segments_alloc"], stats["bypassed"]), (5, 5, 4))
        self.assertEqual((stats["segments_free"], stats["held"], stats["live"]), (4, 2 << 20, 0))
        self.assertEqual({e["uuid"] for e in trace.of("device")}, {f"73696d75-6c61-7465-642d-{trace.header['pid']:08x}3030"})


    def test_no_request_was_pooled(self) -> None:
        done = self.report("alloc:4096", CUPOOL_LIMIT="1", CUPOOL_STATS="exit")
        self.assertRegex(done.err, r": +0 +0 +0\.00% +0 +1 ")


class Timer(Base):
    def test_every_so_often(self) -> None:
        """Never early; late on a machine that is busy, and then there may be a third before the program goes on."""
        def then(child: "subprocess.Popen[str]", cwd: Path) -> None:
            self.wait_for(lambda: len(self.stats(cwd, "timer")) == 2, "stats")
        _, err, cwd = self.running("churn:20:4096", "ready", "await:go", "churn:20:4096", then=then, CUPOOL_STATS="timer:1s")
        heads = HEAD.findall(err)
        self.assertGreaterEqual(len(heads), 2)
        for i, head in enumerate(heads):
            self.assertEqual(head[2], "timer")
            self.assertGreaterEqual(float(head[1]), 1 + i - 0.1)
        self.assertEqual([e["allocs"] for e in self.stats(cwd, "timer")[:2]] + [e["allocs"] for e in self.stats(cwd, None)], [20, 20, 40])
        self.assert_fine(*[p for p in cwd.iterdir() if ".jsonl" in p.name])

    def test_nothing_in_a_child(self) -> None:
        done = self.report("alloc:4096", "fork{", "sleep:1500", "}", CUPOOL_STATS="timer:1s", CUPOOL_TRACE_FILE="off")
        self.assertEqual(len({h[0] for h in HEAD.findall(done.err)}), 1)

    def test_no_exit_waits_for_it(self) -> None:
        self.assert_quick(2, lambda: self.report("alloc:4096", CUPOOL_STATS="timer:1h"))
        for child in ("fork{", "_fork{"):  # which has no thread of ours
            self.assert_quick(1.5, lambda: self.report("alloc:4096", child, "pid", "}"))

    def test_switched_off(self) -> None:
        done = self.report("alloc:4096", "sleep:1100", CUPOOL_STATS="timer:1s", CUPOOL_ENABLE="0")
        self.assertEqual((done.err, done.files), ("", []))


class NotPooled(Base):
    """Memory that passes the pool by: a program that takes all of it so sees no difference, and should know why."""
    EXIT = {"CUPOOL_STATS": "exit"}

    def line(self, done: Done) -> str:
        lines = [line for line in done.err.splitlines() if line.startswith("cupool: not pooled: ")]
        self.assertLessEqual(len(lines), 1, done.err)
        return lines[0][len("cupool: not pooled: "):] if lines else ""

    def test_by_what(self) -> None:
        done = self.report("alloc:4096", "other:3000000", "other:1048576", "managed:5242880", "pitch:100:100", **self.EXIT)
        self.assertEqual(self.line(done), "3.9 MiB by cudaMallocAsync (2 calls), 5.0 MiB by cudaMallocManaged (1 call), cudaMallocPitch (1 call)")
        self.assertIn("cupool:      0           1 ", done.err)

    def test_none(self) -> None:
        self.assertEqual(self.line(self.report("alloc:4096", "churn:10:4096", **self.EXIT)), "")

    def test_refused_calls_do_not_count(self) -> None:
        self.assertEqual(self.line(self.report("alloc:4096", "other:900000000000", **self.EXIT)), "")

    def test_nothing_was_pooled(self) -> None:
        """No table, but the reason."""
        done = self.report("pid", "other:2097152", **self.EXIT)
        self.assertEqual(done.err.splitlines(), ["cupool: nothing was pooled: no cudaMalloc or cuMemAlloc of the program's own came by in process "
                                                 + done.out.split()[1], "cupool: not pooled: 2.0 MiB by cudaMallocAsync (1 call)"])
        self.assertEqual(len(self.report("limit", **self.EXIT).err.splitlines()), 1)

    def test_said_only_to_those_who_ask(self) -> None:
        for env in ({}, {"CUPOOL_STATS": "off"}, {"CUPOOL_ENABLE": "0"}):
            self.assertEqual(self.report("other:2097152", **env).err, "")

    def test_switched_off(self) -> None:
        """The reason in place of a table, also where requests were made; children of the process do not repeat it."""
        done = self.report("pid", "alloc:4096", "fork{", "pid", "}", "_fork{", "pid", "}", CUPOOL_ENABLE="0", **self.EXIT)
        self.assertEqual(done.err, f"cupool: nothing was pooled: CUPOOL_ENABLE=0 switches cupool off in process {done.out.split()[1]}\n")

    def test_debug_pools_nothing(self) -> None:
        """The reason in place of a table without rows."""
        reason = "cupool: nothing was pooled: CUPOOL_DEBUG=1 makes every request a driver allocation of its own"
        done = self.report("alloc:4096", "other:2097152", "churn:5:4096", CUPOOL_DEBUG="1", **self.EXIT)
        lines = [line for line in done.err.splitlines() if "not freed" not in line]
        self.assertEqual(lines, [reason, "cupool: not pooled: 2.0 MiB by cudaMallocAsync (1 call)"])
        self.assertEqual(done.files, [])
        self.assertIn("allocs", self.report("churn:5:4096", CUPOOL_DEBUG="guard", **self.EXIT).err)

    def test_programs_without_cuda_and_children(self) -> None:
        self.assertEqual(self.go("sh", "-c", "true; /bin/true; exit 3", rc=3, **self.EXIT).err, "")
        done = self.report("other:2097152", "fork{", "pid", "}", "_fork{", "pid", "}", **self.EXIT)
        self.assertEqual(len(done.err.splitlines()), 2, done.err)

    def test_physical_memory(self) -> None:
        done = self.go(BIN / "vmm", "proc", "life", **self.EXIT)
        self.assertRegex(self.line(done), r"^[\d.]+ MiB by cuMemCreate \(\d+ calls?\)$")
        of_ucx = self.go(BIN / "host", "l", BIN / "libucp_vmm.so", "proc", "life", **self.EXIT)
        self.assertEqual(self.line(of_ucx), "")

    def test_while_it_runs(self) -> None:
        def then(child: "subprocess.Popen[str]", cwd: Path) -> None:
            self.signal_until(child, USR2, lambda: self.stats(cwd, "signal"))
        _, err, _ = self.running("alloc:4096", "other:2097152", "ready", "await:go", then=then, CUPOOL_STATS="signal:USR2")
        self.assertIn("\ncupool: not pooled: 2.0 MiB by cudaMallocAsync (1 call)\n", err)


class Advice(Base):
    """The rules and their limits are in tests/unit/shim/report/test_advice.c; here is where their numbers come from."""
    def advice(self, done: Done) -> str:
        lines = done.err.splitlines()
        said = [line for line in lines if ": advice: " in line]
        self.assertEqual(said, [line for line in lines[-1:] if said], "one at most, and last")
        return said[0].split(": advice: ")[1] if said else ""

    def go_with(self, *words: str, **env: Any) -> str:
        return self.advice(self.report(*words, CUPOOL_STATS="exit", **env))

    def test_waits(self) -> None:
        self.assertIn("100 of 100 frees waited on the host, because of CUPOOL_FREE=strict", self.go_with("churn:100:4096", CUPOOL_FREE="strict"))
        self.assertIn("because CUPOOL_HOOK=runtime sees too little", self.go_with("churn:101:4096", CUPOOL_HOOK="runtime"))
        self.assertIn("100 of 100 frees waited on the host, because the driver is older than CUDA 12.5",
                      self.go_with("churn:100:4096", SIMGPU_DRIVER_VERSION="12040"))
        self.assertRegex(self.go_with("managed:4096", "churn:100:4096"), r"^100 of 100 frees .* because of managed memory: try CUPOOL_FREE=ordered")

    def test_none(self) -> None:
        for env in ({}, {"CUPOOL_FREE": "ordered"}, {"CUPOOL_FREE": "relaxed"}):
            self.assertEqual(self.go_with("churn:100:4096", **env), "")
        self.assertEqual(self.advice(self.report("churn:100:4096", CUPOOL_FREE="strict")), "")
        self.assertNotIn("advice", self.report("churn:100:4096", f"raise:{USR2}", "sleep:100", CUPOOL_FREE="strict", CUPOOL_STATS="signal:USR2").err)

    def test_memory(self) -> None:
        self.assertEqual(self.go_with("churn:4:4194304", CUPOOL_DECAY="0"),
                         "16 MiB went back after 0 s of idleness (CUPOOL_DECAY) and were asked for again, in turn: raise CUPOOL_DECAY")
        self.assertEqual(self.go_with("churn:3:4194304", CUPOOL_DECAY="0"), "")
        # A device that is nearly full takes memory back by itself; a longer CUPOOL_DECAY would not help.
        self.assertEqual(self.go_with(f"alloc:{251 * MIB}", "churn:300:4194304", SIMGPU_MEMORY="256M"), "")
        # Of each request the first two calls of the driver, which are the pool's, are refused.
        refused = ",".join(f"cuMemAlloc_v2:{i // 2 + 1}:2" for i in range(20))
        self.assertRegex(self.go_with(*[f"alloc:{3 * MIB}"] * 10, SIMGPU_FAULT=refused), "^the driver refused the pool memory 10 times")
        # The program's own errors are not the pool's.
        self.assertEqual(self.go_with(f"alloc:{600 * MIB}", f"churn:12:{600 * MIB}", SIMGPU_MEMORY="1G"), "")
        self.assertRegex(self.go_with("alloc:4096", "churn:100:8388608", CUPOOL_LIMIT="4M"), "^100 of 101 requests went to the driver")

    def test_pytorch(self) -> None:
        fake = self.tmp / "libc10_cuda.so"
        fake.symlink_to(BIN / "libnextlib.so")
        self.assertIn("PYTORCH_NO_CUDA_MEMORY_CACHING=1", self.go_with("churn:3:4096", preload=f"{LIB}:{fake}"))
        self.assertEqual(self.go_with("churn:3:4096", preload=f"{LIB}:{fake}", PYTORCH_NO_CUDA_MEMORY_CACHING="1"), "")

    def test_nothing_was_pooled(self) -> None:
        self.assertIn("unset it", self.go_with("pid", "other:2097152", CUPOOL_HOOK="runtime"))


class Packed(Case):
    """Large blocks go into free segments of others as far as the device's size allows: a sixteenth of it may be kept so from
    going back, less by the square of the bytes in use."""

    def test_as_far_as_the_device_allows(self) -> None:
        # Each 3.5 MiB in a free segment of 6 MiB keep 2 MiB. Until less than that is left of the 16 or 8 MiB, those find one. On a
        # large device the bound allows 60 MiB, and more after a peak.
        for memory, peak, count, hits in ("256M", [], 12, 6), ("128M", [], 12, 3), ("8G", [], 12, 12), ("8G", [f"alloc:1:{1000 * MIB}", "free:1"], 45, 45):
            with self.subTest(memory, peak=peak):
                done = self.go(app("shared"), *peak, f"alloc:{count}:{6 * MIB}", f"free:{count}", f"alloc:{count}:{7 * MIB // 2}", f"free:{count}",
                               SIMGPU_MEMORY=memory)
                self.assertEqual(self.one_trace(done).total("hits"), hits)
