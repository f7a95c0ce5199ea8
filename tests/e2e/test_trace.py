# SPDX-License-Identifier: Apache-2.0
"""The trace of real processes: its contents, what survives which end, and what it must never do to the program: fail it, write
into its files, keep its children's events.
"""

import json
import os
import re
import signal
import socket
import subprocess
import unittest
from pathlib import Path

from e2e import BIN, INFO, MIB, SANITIZE, Case, Done, Trace, app, not_with_coverage

# Enough driver calls and more allocation events than the buffer holds.
WORK = ["churn:300:5000", "alloc:3:4096", "churn:30:5000000", "free:2"]
ALLOCS = {"CUPOOL_TRACE_EVENTS": "segment,alloc"}


class Contents(Case):
    def test_every_kind_of_program_and_events(self) -> None:
        for kind in ("shared", "static", "driver"):
            for events in ({}, ALLOCS):
                with self.subTest(kind, events=events):
                    done = self.go(app(kind), *WORK, **events)
                    trace = self.one_trace(done)
                    self.assert_fine(trace.path)
                    self.assertTrue(trace.ended)
                    self.assertEqual(trace.events[-1]["dropped"], 0)
                    self.assertEqual(trace.total("allocs"), 333)
                    self.assertEqual(trace.total("frees"), 332)
                    self.assertEqual(len(trace.of("segment_alloc")), trace.total("segments_alloc"))
                    wanted = (333, 332, 332) if events else (0, 0, 0)
                    self.assertEqual(tuple(len(trace.of(e)) for e in ("alloc", "free_requested", "free_completed")), wanted)
                    self.assertEqual(done.err, "")

    def test_order_within_a_free(self) -> None:
        """Events of the library's work in a free stand between the free's two lines."""
        done = self.go(app("static"), "alloc:2:4194304", "free:2", CUPOOL_DECAY="0", **ALLOCS)
        trace = self.one_trace(done)
        self.assert_fine(trace.path)
        self.assertEqual([e["e"] for e in trace.events if e["e"] in ("alloc", "free_requested", "segment_free", "free_completed")],
                         ["alloc"] * 2 + ["free_requested", "segment_free", "free_completed"] * 2)

    def test_header(self) -> None:
        done = self.go(app("shared"), "pid", "alloc:1:4096", CUPOOL_FREE="strict", **ALLOCS)
        header = self.one_trace(done).header
        self.assertEqual(header["cupool"], 1)
        self.assertEqual(header["version"], self.go(INFO, "--version", preload=None).out.split()[1])
        self.assertEqual(header["host"], socket.gethostname())
        self.assertEqual(f"pid {header['pid']}\n", done.out)
        self.assertEqual((header["exe"], header["events"]), ("app_shared", "segment,alloc"))
        self.assertEqual((header["rank"], header["local_rank"], header["rank_from"]), (None, None, "none"))
        shown = dict(re.findall(r"^(CUPOOL_\w+)=(.*)$", self.go(INFO, "-c", preload=None, CUPOOL_FREE="strict", **ALLOCS).out, re.M))
        self.assertEqual(header["settings"], shown)

    def test_header_of_long_names(self) -> None:
        """There is room for all settings, however long."""
        done = self.go(app("shared"), "alloc:1:4096", CUPOOL_TRACE_FILE="./" * 490 + "t", CUPOOL_STATS_FILE="./" * 490 + "p")
        settings = Trace(done.cwd / "t").header["settings"]
        self.assertEqual(list(settings), re.findall(r"^(CUPOOL_\w+)=", self.go(INFO, "-c", preload=None).out, re.M))

    def test_header_of_odd_names(self) -> None:
        """The header is JSON for every name of a file."""
        odd = self.tmp / 'a "b\\c\nd é'
        odd.symlink_to(app("shared"))
        done = self.go(odd, "alloc:1:4096", CUPOOL_TRACE_FILE='t"\\é%%\x01.jsonl')
        self.assertEqual(done.files, ['t"\\é%\x01.jsonl'])
        self.assertIn("CUPOOL_TRACE_FILE", self.one_trace(done).header["settings"])

    def test_clocks(self) -> None:
        """t0 is the wall clock of the header, and times rise within a thread."""
        import time
        before = time.time_ns()
        trace = self.one_trace(self.go(app("shared"), "threads:4:100:100000", **ALLOCS))
        after = time.time_ns()
        self.assertTrue(before <= trace.header["t0_unix_ns"] <= after)
        self.assertLessEqual(trace.header["t0_unix_ns"] + trace.events[-1]["t"], after + 50_000_000)
        last: "dict[int, int]" = {}
        for e in trace.events:
            self.assertGreaterEqual(e["t"], last.get(e["tid"], 0))
            last[e["tid"]] = e["t"]
        self.assertGreaterEqual(len(last), 4)

    def test_file_name_letters(self) -> None:
        done = self.go(app("static"), "pid", "alloc:1:4096", CUPOOL_TRACE_FILE="%h.r%r.l%l.%p.%e.%%.%z.%",
                       RANK="3", LOCAL_RANK="2")
        pid = done.out.split()[1]
        self.assertEqual(done.files, [f"{socket.gethostname()}.r3.l2.{pid}.app_static.%.%z.%"])
        done = self.go(app("static"), "pid", "alloc:1:4096")
        self.assertEqual(done.files, [f"cupool.{socket.gethostname()}.rx.{done.out.split()[1]}.jsonl"])

    def test_none_wanted(self) -> None:
        for value in ("off", ""):
            self.assertEqual(self.go(app("shared"), *WORK, CUPOOL_TRACE_FILE=value).files, [])

    def test_existing_files_are_never_overwritten(self) -> None:
        cwd = self.folder()
        for name in ("t.jsonl", "t.jsonl.1"):
            (cwd / name).write_text("somebody's")
        (cwd / "t.jsonl.2").symlink_to("nowhere")  # a link that leads nowhere must not be followed either
        done = self.go(app("shared"), "alloc:1:4096", cwd=cwd, CUPOOL_TRACE_FILE="t.jsonl")
        self.assertEqual(done.files, ["t.jsonl", "t.jsonl.1", "t.jsonl.2", "t.jsonl.3"])
        self.assertEqual((cwd / "t.jsonl").read_text() + (cwd / "t.jsonl.1").read_text(), "somebody's" * 2)
        self.assertTrue(Trace(cwd / "t.jsonl.3").ended)

    def test_nothing_before_the_first_request(self) -> None:
        self.assertEqual(self.go(app("shared"), "capture", "chdir:/", "chdir:/proc").files, [])

    def test_the_folder_is_the_one_of_the_first_request(self) -> None:
        cwd = self.folder()
        (cwd / "sub").mkdir()
        done = self.go(app("shared"), "chdir:sub", "alloc:1:4096", "chdir:/", "churn:20:5000000", cwd=cwd)
        self.assertEqual(done.files, ["sub"])
        self.assertEqual(len(list((cwd / "sub").iterdir())), 1)


class Ends(Case):
    """How the process ends, and the trace that it leaves."""

    def segments(self, done: Done) -> "tuple[Trace, int]":
        trace = self.one_trace(done)
        return trace, len(trace.of("segment_alloc"))

    def test_killed(self) -> None:
        """Every segment event is in the file; of the allocation events at most the last buffer is missing."""
        sizes = [f"alloc:1:{n * MIB}" for n in range(3, 12)]
        whole, n = self.segments(self.go(app("static"), *sizes))
        for events in ({}, ALLOCS):
            done = self.go(app("static"), *sizes, "kill", rc=-signal.SIGKILL, **events)
            trace, killed = self.segments(done)
            self.assertEqual((killed, n), (9, 9))
            self.assertFalse(trace.ended)
            self.assert_fine(trace.path, complete=False)
            self.assertEqual([e["n"] for e in trace.of("segment_alloc")], [e["n"] for e in whole.of("segment_alloc")])
        # Every one before the last segment event, each in its place.
        self.assertEqual([e["e"] for e in trace.of("segment_alloc", "alloc")][:17], (["segment_alloc", "alloc"] * 9)[:17])

    def test_killed_later(self) -> None:
        """Allocation events, too, are in the file soon, without anything else to be written."""
        done = self.go(app("static"), "alloc:1:4096", "churn:20:4096", 'written:t.jsonl:"free_completed":20', "kill", rc=-signal.SIGKILL,
                       CUPOOL_TRACE_FILE="t.jsonl", **ALLOCS)
        trace = self.one_trace(done)
        self.assertEqual((len(trace.of("alloc")), len(trace.of("free_completed"))), (21, 20))
        self.assert_fine(trace.path, complete=False)

    def test_other_ends(self) -> None:
        for word, rc, ended in (("exit:5", 5, True), ("_exit:6", 6, False), ("abort", -signal.SIGABRT, False)):
            with self.subTest(word):
                done = self.go(app("shared"), *WORK, word, rc=rc)
                trace, n = self.segments(done)
                self.assertGreater(n, 1)
                self.assertEqual(trace.ended, ended)
                self.assert_fine(trace.path, complete=ended)
                self.assertEqual(done.err, "")

    def test_terminated_from_outside(self) -> None:
        cwd = self.folder()
        child = subprocess.Popen([app("shared"), "alloc:1:4096", f"alloc:1:{3 * MIB}", "churn:100000000:4096"],
                                 env=self.env(**ALLOCS), cwd=cwd)
        try:
            while not [p for p in cwd.iterdir() if p.read_text().count("segment_alloc") >= 2]:
                self.assertIsNone(child.poll())
        finally:
            child.terminate()
            child.wait()
        self.assert_fine(*cwd.iterdir(), complete=False)


class Unwritable(Case):
    """Where no trace can be written the program runs as without one, and one line says so."""

    def no_trace(self, path: str, *words: str, **more: str) -> Done:
        done = self.go(app("shared"), *WORK, "exit:5", rc=5, CUPOOL_TRACE_FILE=path, **ALLOCS, **more)
        self.assertEqual(done.files, [])
        self.assertEqual(len(done.err.splitlines()), 1, done.err)
        self.assertEqual(len(done.warnings), 1)
        for word in ("no trace", *words):
            self.assertIn(word, done.warnings[0])
        return done

    def test_missing_folder(self) -> None:
        self.no_trace("no/such/folder.jsonl", "no/such/folder.jsonl", os.strerror(2))
        self.no_trace("/proc/nothing/t.jsonl", "/proc/nothing/t.jsonl")

    def test_a_file_is_no_folder(self) -> None:
        (self.tmp / "file").touch()
        self.no_trace(f"{self.tmp}/file/t.jsonl", os.strerror(20))

    def test_a_folder_is_no_file(self) -> None:
        """The name is taken, so the next one is tried; the folder stays as it is."""
        cwd = self.folder()
        (cwd / "t").mkdir()
        done = self.go(app("shared"), "alloc:1:4096", cwd=cwd, CUPOOL_TRACE_FILE="t")
        self.assertEqual(done.files, ["t", "t.1"])

    def test_forbidden_folder(self) -> None:
        folder = self.tmp / "forbidden"
        folder.mkdir()
        folder.chmod(0o555)
        if os.access(folder, os.W_OK):  # root may write everywhere, but not there
            folder = Path("/sys/kernel")
            if not folder.is_dir():
                self.skipTest("no folder that root cannot write to")
        self.no_trace(f"{folder}/t.jsonl")

    def test_name_too_long(self) -> None:
        self.no_trace("x" * 300, os.strerror(36))
        # The longest value that a setting may have, of folders that are each short enough.
        self.no_trace("y/" * 500)

    def test_value_too_long(self) -> None:
        done = self.go(app("shared"), *WORK, CUPOOL_TRACE_FILE="z/" * 1000)
        self.assertIn("CUPOOL_TRACE_FILE", done.warnings[0])
        self.assertEqual(len(done.traces()), 1)  # the default

    def test_expanded_too_long(self) -> None:
        link = self.tmp / ("e" * 200)
        link.symlink_to(app("shared"))
        done = self.go(app("shared"), *WORK, "exit:5", rc=5, CUPOOL_TRACE_FILE="%e/" * 300 + "t")
        self.assertEqual((done.files, len(done.warnings)), ([], 1), done.err)

    def test_silenced(self) -> None:
        done = self.go(app("shared"), *WORK, CUPOOL_TRACE_FILE="no/such/folder", CUPOOL_LOG_LEVEL="error")
        self.assertEqual(done.err, "")

    def test_fifo_is_not_waited_for(self) -> None:
        cwd = self.folder()
        os.mkfifo(cwd / "t")
        self.assertEqual(self.go(app("shared"), "alloc:1:4096", cwd=cwd, CUPOOL_TRACE_FILE="t").files, ["t"])

    def test_a_pipe_on_stdout_is_no_trace(self) -> None:
        done = self.go(app("shared"), "alloc:1:4096", CUPOOL_TRACE_FILE="/dev/stdout", CUPOOL_STATS_FILE="/dev/stdout")
        self.assertEqual((done.files, sorted(Path("/dev").glob("stdout.*"))), ([], []))

    def test_a_device_is_no_trace(self) -> None:
        """Not even beside it: for a user who may write to /dev, /dev/null.1 would be the next name."""
        def beside() -> "set[Path]":
            return set(Path("/dev").glob("null?*"))
        before = beside()
        try:
            done = self.go(app("shared"), *WORK, "fds:200", CUPOOL_TRACE_FILE="/dev/null", **ALLOCS)
            opened = [line for line in done.out.split("\n") if line and "simgpu" not in line and "socket:" not in line]
            self.assertEqual((opened, done.err, done.files, beside()), ([], "", [], before))
        finally:
            for path in beside() - before:
                path.unlink()


class Full(Case):
    """Writing stops working half-way."""

    def lost(self, done: Done) -> None:
        """One warning, and a file that begins with its header."""
        self.assertEqual(len(done.warnings), 1, done.err)
        self.assertIn("cannot write the trace", done.warnings[0])
        self.assertEqual(len(done.err.splitlines()), 1)
        path = next(done.cwd / f for f in done.files if ".jsonl" in f)
        self.assertEqual(json.loads(path.read_text().split("\n")[0])["cupool"], 1)

    @not_with_coverage
    def test_file_size_limit(self) -> None:
        """The kernel's answer is a signal that ends the program. Not this one."""
        done = self.go(app("shared"), "alloc:1:4096", "fsize:9000", "churn:3000:5000", "churn:30:5000000", "exit:5", rc=5, **ALLOCS)
        self.lost(done)
        self.assertNotIn("SIGXFSZ", done.out)
        self.assertLessEqual((done.cwd / done.files[0]).stat().st_size, 9000)

    def test_file_size_limit_lifted(self) -> None:
        """Lost lines are counted, and the lines after them stand alone."""
        done = self.go(app("shared"), "alloc:1:4096", "fsize:9000", "churn:3000:5000", "churn:30:5000000", "fsize:-1",
                       f"alloc:1:{7 * MIB}", CUPOOL_DECAY="off", **ALLOCS)
        self.lost(done)
        text = (done.cwd / done.files[0]).read_text().split("\n")
        end = json.loads(text[-2])
        self.assertEqual(end["e"], "end")
        bad = []
        for line in text[:-1]:
            try:
                json.loads(line)
            except ValueError:
                bad.append(line)
        self.assertLessEqual(len(bad), 1)  # the line at which the limit was met
        self.assertTrue(any('"e":"gap"' in line for line in text if line not in bad))  # and not the next one
        # Every event is there, or counted as dropped: one for each alloc, two for each free, and those of segments.
        stats = [json.loads(line) for line in text[:-1] if '"stats"' in line]
        events = sum(s["allocs"] + 2 * s["frees"] + s["segments_alloc"] + s["segments_free"] for s in stats)
        seen = sum('"alloc"' in line or '"free_' in line or '"segment_' in line for line in text[1:-1] if line not in bad)
        self.assertGreater(end["dropped"], 0)
        self.assertEqual(seen + end["dropped"], events)

    @not_with_coverage
    def test_signal_is_not_left_pending(self) -> None:
        done = self.go(app("shared"), "alloc:1:4096", "xfsz", "fsize:100", "threads:4:500:5000", "churn:30:5000000", **ALLOCS)
        self.assertNotIn("SIGXFSZ", done.out)
        self.lost(done)

    @not_with_coverage
    def test_part_of_a_header(self) -> None:
        """It is no trace, and goes again."""
        done = self.go(BIN / "report_shared", "other:5000", "fsize:100", "alloc:5000", CUPOOL_TRACE_FILE="t")
        self.assertEqual((len(done.warnings), (done.cwd / "t").stat().st_size), (1, 0), done.err)

    def disk(self, size: str) -> Path:
        disk = self.tmp / "disk"
        disk.mkdir()
        if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", disk], capture_output=True).returncode:
            self.skipTest("a small file system cannot be mounted here")
        self.addCleanup(subprocess.run, ["umount", "-l", disk], check=True)
        return disk

    def test_no_room_for_the_header(self) -> None:
        """Lines without it are no trace: an empty file is left, which the next run takes."""
        disk = self.disk("64k")
        with open(disk / "others", "wb", buffering=0) as f:
            f.write(bytes(65536))
        with open(disk / "t", "wb"):
            pass
        done = self.go(app("shared"), *WORK, f"unlink:{disk / 'others'}", *WORK, "exit:5", rc=5, cwd=disk, CUPOOL_TRACE_FILE="t",
                       CUPOOL_STATS="exit", **ALLOCS)
        self.assertEqual((len(done.warnings), (disk / "t").stat().st_size), (1, 0), done.err)
        self.assertIn("cupool: device", " ".join(done.err.split()))
        self.assertNotIn("cupool: trace:", done.err)
        done = self.go(app("shared"), *WORK[:1], cwd=disk, CUPOOL_TRACE_FILE="t")
        self.assertEqual(done.files, ["t"])
        self.assert_fine(disk / "t")

    def test_disk_full(self) -> None:
        disk = self.disk("16k")
        done = self.go(app("shared"), "churn:3000:5000", "churn:30:5000000", "exit:5", rc=5, cwd=disk, **ALLOCS)
        self.lost(done)


class Descriptors(Case):
    """Programs that close what they did not open, and count descriptors."""

    def test_closed_and_reused(self) -> None:
        """The program gets our number for a file of its own; not one byte of ours may get into it."""
        for events in ({}, ALLOCS):
            mine = self.tmp / "mine"
            mine.write_text("")
            done = self.go(app("shared"), *WORK, "closefrom:3", f"occupy:260:{mine}", *WORK, f"alloc:2:{9 * MIB}", "exit:5", rc=5,
                           **events)
            self.assertEqual(set(mine.read_text().split("\n")), {"mine", ""})
            self.assertGreater(mine.stat().st_size, 5 * 200)
            self.assertEqual(len(done.warnings), 1, done.err)
            self.assertIn("cannot write the trace", done.warnings[0])

    def test_closed_only(self) -> None:
        done = self.go(app("shared"), *WORK, "closefrom:3", *WORK, "exit:5", rc=5)
        self.assertEqual(len(done.warnings), 1, done.err)

    def test_closed_before_the_first_request(self) -> None:
        trace = self.one_trace(self.go(app("shared"), "closefrom:3", *WORK))
        self.assert_fine(trace.path)

    def test_ours_is_out_of_the_way(self) -> None:
        """Programs expect low numbers, and some use them up to select()'s limit."""
        out = self.go(app("shared"), "alloc:1:4096", "fds:3").out
        ours = [int(line.split()[1]) for line in out.split("\n") if ".jsonl" in line]
        self.assertEqual(len(ours), 1)
        self.assertGreaterEqual(ours[0], 200)

    def test_few_descriptors(self) -> None:
        self.one_trace(self.go(app("shared"), "nofile:64", *WORK))

    def test_standard_descriptors_closed(self) -> None:
        """Our file must not become a program's stdout."""
        cwd = self.folder()
        self.go("sh", "-c", f"exec {app('shared')} pid alloc:1:4096 pid tids <&- >&- 2>&-", cwd=cwd)
        trace = Trace(next(cwd.iterdir()))
        self.assertTrue(trace.ended)
        self.assertNotIn("pid 1", trace.text.replace('"pid":', ""))


class Processes(Case):
    def test_fork_before_the_first_request(self) -> None:
        """Each has a GPU, a pool and a trace of its own."""
        done = self.go(app("static"), "pid", "fork{", "pid", *WORK, "}", "churn:50:4096", **ALLOCS)
        pids = {int(w) for w in re.findall(r"pid (\d+)", done.out)}
        self.assertIn("child ended: exit 0", done.out)
        traces = done.traces()
        self.assertEqual({t.header["pid"] for t in traces}, pids)
        self.assertEqual(sorted(t.total("allocs") for t in traces), [50, 333])
        for t in traces:
            self.assertEqual({e["tid"] for e in t.events}, {t.header["pid"]})
            self.assert_fine(t.path)

    def test_fork_afterwards(self) -> None:
        """CUDA does not work in such a child, and the trace is the parent's alone; its buffer is written once."""
        for how in ("exit:0", "_exit:0", "abort"):
            with self.subTest(how):
                done = self.go(app("static"), "pid", *WORK, "tolerate", "fork{", "alloc:2:4096", "churn:20:4096", how, "}",
                               *WORK, **ALLOCS)
                native = self.go(app("static"), "pid", *WORK, "tolerate", "fork{", "alloc:2:4096", "churn:20:4096", how, "}",
                                 *WORK, preload=None)
                self.assertEqual(re.findall(r"error .*|child ended.*", done.out), re.findall(r"error .*|child ended.*", native.out))
                trace = self.one_trace(done)
                self.assertEqual({e["tid"] for e in trace.events}, {trace.header["pid"]})
                self.assertEqual(len(trace.of("alloc")), 666)
                self.assertEqual(len(trace.of("end")), 1)
                self.assert_fine(trace.path)

    def test_fork_while_threads_allocate(self) -> None:
        """One of them may hold our locks at that moment: the child must not wait for it."""
        self.go(app("shared"), "churn:20:4096", *["threads:4:20:4096", "fork{", "exit:0", "}"] * 5, **ALLOCS)

    def test_exec(self) -> None:
        """The process id stays, so the new program gets the name; the old file ends as if killed, and nothing of ours is inherited."""
        done = self.go(app("static"), *WORK, "exec", "fds:100", "churn:50:4096", **ALLOCS)
        second, first = done.traces()
        self.assertEqual(first.path.name, second.path.name + ".1")
        self.assertEqual((first.ended, second.ended), (False, True))
        self.assertEqual(second.total("allocs"), 50)
        self.assertEqual(re.findall("fd .*", done.out), [])
        self.assert_fine(first.path, complete=False)
        self.assert_fine(second.path)

    def test_programs_started_by_it(self) -> None:
        done = self.go("sh", "-c", f"/bin/true; {app('shared')} churn:20:4096; {app('static')} churn:20:4096; exit 3", rc=3)
        self.assertEqual([t.header["exe"] for t in sorted(done.traces(), key=lambda t: t.header["exe"])], ["app_shared", "app_static"])

    @unittest.skipIf("address" in SANITIZE, "the address sanitizer itself does not get over a cancelled thread")
    def test_cancelled_threads(self) -> None:
        """A thread that is cancelled inside a call must not take a lock with it."""
        few = 25 * int(os.environ.get("TEST_RUNS", "1")) if SANITIZE == "none" else 100
        for times, events in ((100, {}), (few, ALLOCS)):  # thousands of events each time
            done = self.go(app("shared"), f"cancel:{times}", "churn:50:4096", "threads:4:50:4096", **events)
            trace = self.one_trace(done)
            self.assertTrue(trace.ended)
            self.assert_fine(trace.path)
